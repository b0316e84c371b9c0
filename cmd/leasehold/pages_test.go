package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

var (
	block   = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	comment = regexp.MustCompile(`\s+# .*$`)
	marked  = regexp.MustCompile(`(?m)^\$ (leasehold .*)$`)
	bare    = regexp.MustCompile(`(?m)^(leasehold .*)$`)
)

// commands returns the calls of the tool in the code blocks of the pages, by page.
func commands(t *testing.T) map[string][]string {
	t.Helper()
	const root = "../.."
	all := make(map[string][]string)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".md") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, b := range block.FindAllStringSubmatch(string(text), -1) {
			prompt := marked // other lines are output of the tool
			if b[1] == "sh" {
				prompt = bare
			}
			for _, c := range prompt.FindAllStringSubmatch(b[2], -1) {
				page := strings.TrimPrefix(path, root+"/")
				all[page] = append(all[page], comment.ReplaceAllString(c[1], ""))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Each call of the tool on a page works with a lock that a process holds. A call that does not end by itself is checked until it
// has begun.
func TestPages(t *testing.T) {
	s := redistest.Start(t)
	const name = "orders:42"
	on(t, s, "run", name, "--", "sleep", "3600")
	on(t, s, "run", "nightly", "--", "sleep", "3600")
	awaitHeld(t, s, name)
	awaitHeld(t, s, "nightly")

	s.Do(t, "SET", "api:alice", "gcra 1795000000000000 0 54000000 1795018720000000:960")

	dir := t.TempDir()
	for _, script := range []string{"report.sh", "report-once.sh"} {
		if err := os.WriteFile(filepath.Join(dir, script), []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	call := func(t *testing.T, args ...string) *tool {
		t.Helper()
		c := prepare(t, []string{"LEASEHOLD_REDIS_URL=" + s.URL(), "PATH=" + dir + string(os.PathListSeparator) + os.Getenv("PATH")}, args...)
		c.cmd.Dir = dir
		return c.start()
	}

	// The exit code if it is not 0, and a text in the output of a call that does not end by itself.
	codes := map[string]int{
		"leasehold doctor": -1, // there may be a warning about the server of the tests
		"leasehold doctor --url redis://jobs@db1:6379 --prefix orders: --for plain":  2,         // there is no db1
		"leasehold unlock NAME --reason 'why, ticket'":                               exitUsage, // off a terminal, it requires --yes
		"leasehold unlock orders:42 --reason 'pid 4711 hangs in a read, ticket 815'": exitUsage,
		"leasehold run --no-wait nightly -- ./report.sh":                             75,
	}
	endless := map[string]string{
		"leasehold watch NAME":                                            `"seen"`,
		"leasehold watch orders:42":                                       `"seen"`,
		"leasehold serve":                                                 "http://",
		"leasehold serve --allow-unlock --operator alice":                 "http://",
		"leasehold run nightly -- ./report.sh":                            "",
		"leasehold run --wait 5m nightly -- ./report.sh":                  "",
		"leasehold run --wait 3h --max-hold 2h nightly -- report-once.sh": "",
	}
	found, took := 0, map[string]bool{}
	for page, calls := range commands(t) {
		for _, line := range calls {
			found++
			line, _, _ = strings.Cut(line, " | ") // jq is not tested
			if took[line] || strings.HasPrefix(line, "leasehold bench") || strings.Contains(line, "unlock orders:42 --yes") {
				continue // bench has its own tests, and night_test.go tests the unlock
			}
			took[line] = true
			t.Run(page+"/"+line, func(t *testing.T) {
				args := words(strings.ReplaceAll(line, "NAME", name))[1:]
				if want, ok := endless[line]; ok {
					if args[0] == "serve" {
						args = append(args, "--listen", "127.0.0.1:0")
					}
					c := call(t, args...)
					for !strings.Contains(c.stdout.String()+c.stderr.String(), want) || args[0] == "run" && !waited(t, s) {
						select {
						case <-c.closed:
							t.Fatal("it has ended")
						case <-time.After(time.Millisecond):
						}
					}
					c.signal(os.Interrupt)
					c.wait()
					return
				}
				if args[0] == "doctor" && !slices.Contains(args, "--print-acl") {
					args = append(args, "--slow", "1h") // the machine of the tests may be busy
				}
				c := call(t, args...)
				code := c.wait().ExitCode()
				if want := codes[line]; want != code && want >= 0 {
					t.Errorf("exit code %d, want %d", code, want)
				}
				if strings.Contains(c.stderr.String(), "unknown") {
					t.Error(c.stderr)
				}
			})
		}
	}
	if found < 25 {
		t.Errorf("%d calls were found", found)
	}
	for call := range codes {
		if !took[call] {
			t.Errorf("no page has %q any more", call)
		}
	}
	for call := range endless {
		if !took[call] {
			t.Errorf("no page has %q any more", call)
		}
	}
}

// waited reports whether a process waits for the lock called nightly.
func waited(t *testing.T, s *redistest.Server) bool {
	t.Helper()
	c := on(t, s, "inspect", "nightly")
	c.ends(exitOK)
	return strings.Contains(c.stdout.String(), "waiters")
}

// words splits a line as a shell does, with support only for single quotes.
func words(line string) (words []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			words = append(words, part)
		} else {
			words = append(words, strings.Fields(part)...)
		}
	}
	return words
}
