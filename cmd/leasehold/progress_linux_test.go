package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/terminal"
	"github.com/leasehold-go/leasehold/internal/redistest"
)

// On a terminal, each command that takes more than two seconds shows its progress, and removes it at the end.
func TestTerminal_progress(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Do(t, "EVAL", "for i = 1, 15000 do redis.call('SET', 'noise:' .. i, i) end return 1", "0")
	for args, shows := range map[string]string{
		"ls":                     "% of the keys scanned",
		"clients":                "listing clients for ",
		"doctor --slow 1h":       "checking the server for ",
		"bench --duration 1s -y": "measuring hot, 3 of 4: ",
		"demo --only job,queue":  "  … ",
	} {
		name, _, _ := strings.Cut(args, " ")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slow := redistest.NewProxy(t, s.Addr())
			p := inTerminal(t, s, strings.Fields(args)...)
			switch name {
			case "demo": // its lines go to a file
				lines, err := os.Create(filepath.Join(t.TempDir(), "lines"))
				if err != nil {
					t.Fatal(err)
				}
				defer lines.Close()
				p.cmd.Stdout = lines
			case "ls", "clients", "doctor":
				p.cmd.Args = append(p.cmd.Args, "--url", "redis://"+slow.Addr())
				slow.OnRequest(func(req [][]byte) (a redistest.Action) {
					if command := strings.ToUpper(string(req[0])); command == "SCAN" || strings.HasPrefix(command, "EVAL") {
						a.DelayReply = time.Second
					}
					return a
				})
			}
			p.begin()
			p.stdout.await(t, shows)
			slow.OnRequest(nil)
			if code := p.wait().ExitCode(); code != 0 && name != "demo" { // on a busy machine a scene may fail
				t.Errorf("exit code %d", code)
			}
			erased := func() bool {
				_, last, _ := strings.Cut(p.stdout.String(), shows)
				return strings.Contains(last, "\r"+terminal.EraseRight)
			}
			for end := time.Now().Add(promptly); !erased(); time.Sleep(5 * time.Millisecond) { // the test reads the output later than the tool writes it
				if time.Now().After(end) {
					t.Fatalf("the progress stays: %q", p.stdout)
				}
			}
		})
	}
}
