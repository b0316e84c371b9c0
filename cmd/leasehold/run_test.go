//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/leasehold-go/leasehold/internal/adaptertest"
	"github.com/leasehold-go/leasehold/internal/redistest"
)

// The termination signals, by their short names.
var endings = map[string]syscall.Signal{
	"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "TERM": syscall.SIGTERM,
}

func init() { detached = &syscall.SysProcAttr{Setsid: true} }

// The exit codes of calls without signals.
func TestRun_exitCodes(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	nobody := "redis://user:secret@127.0.0.1:1"
	for name, test := range map[string]struct {
		args string // %s is the name
		want int
		said string // on standard error
	}{
		"the command's own":        {"run %s -- exit 7", 7, ""},
		"success":                  {"run %s -- exit 0", 0, ""},
		"ended by a signal":        {"run %s -- kill -KILL $$", 137, ""},
		"not found":                {"run %s -- no-such-program", 127, "no-such-program"},
		"no program":               {"run %s -- /dev/null", 126, "/dev/null"},
		"no server":                {"run %s --url " + nobody + " -- exit 0", 125, "127.0.0.1:1: connect: connection refused; check that the server is running"},
		"a URL that is none":       {"run %s --url http://user:secret@127.0.0.1 -- exit 0", 2, "See leasehold run --help."},
		"no command":               {"run %s", 2, "no command"},
		"nothing behind --":        {"run %s --", 2, "no command"},
		"no name":                  {"run -- exit 0", 2, "0 names"},
		"two names":                {"run %s other -- exit 0", 2, "2 names"},
		"a name that cannot be":    {"run {}%s -- exit 0", 2, "bad lock name"},
		"wait less than nothing":   {"run %s --wait -1s -- exit 0", 2, "--wait"},
		"wait and no wait":         {"run %s --wait 1s --no-wait -- exit 0", 2, "--no-wait exclude"},
		"a lease too short":        {"run %s --lease 1ms -- exit 0", 2, "must be at least 100ms"},
		"an unknown signal":        {"run %s --on-lost stop -- exit 0", 2, "term"},
		"shared and exclusive":     {"run %s -s -x -- exit 0", 2, "exclude each other"},
		"one of three servers":     {"run %s --quorum -- exit 0", 2, "--quorum with 1 URL: want an odd number, at least 3"},
		"no permits":               {"run %s --permits 0 -- exit 0", 2, "must be at least 1 and"},
		"a fair semaphore":         {"run %s --permits 2 --fair -- exit 0", 2, "--permits cannot be combined with"},
		"max less than min":        {"run %s --max-hold 1s --min-hold 2s -- exit 0", 2, "--min-hold 2s"},
		"max and no end":           {"run %s --max-hold 1s --on-lost ignore -- exit 0", 2, "--max-hold requires a signal"},
		"a code that is none":      {"run %s -E 256 -- exit 0", 2, "255"},
		"two servers":              {"run %s --url redis://a --url redis://b -- exit 0", 2, "--quorum"},
		"a quorum of two":          {"run %s --quorum --url redis://a --url redis://b -- exit 0", 2, "odd"},
		"a fair quorum":            {"run %s --quorum --fair -- exit 0", 2, "no queue"},
		"TLS flags without TLS":    {"run %s --insecure -- exit 0", 2, "rediss://"},
		"an authority that is not": {"run %s --url rediss://127.0.0.1:1 --cacert /no/such/file -- exit 0", 2, "--cacert"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock := lockName(t)
			// A shell runs commands of more than one word.
			words := strings.Fields(strings.ReplaceAll(test.args, "%s", lock))
			for i, w := range words {
				if w == "--" && i+2 < len(words) {
					words = append(words[:i+1], "sh", "-c", strings.Join(words[i+1:], " "))
					break
				}
			}
			c := on(t, s, words...)
			c.ends(test.want)
			if said := c.stderr.String(); !strings.Contains(said, test.said) || (test.said == "") != (said == "") {
				t.Errorf("run says %q, want %q", said, test.said)
			}
			if c.stdout.String() != "" {
				t.Errorf("run writes to standard output: %q", c.stdout)
			}
			if all := c.stdout.String() + c.stderr.String(); strings.Contains(all, "secret") {
				t.Errorf("the output shows the password: %s", all)
			}
			noKeys(t, s, lock)
		})
	}
	t.Run("nobody says where", func(t *testing.T) {
		t.Parallel()
		c := prepare(t, nil, "run", "x", "--", "true").start()
		c.ends(exitUsage)
		c.stderr.await(t, "LEASEHOLD_REDIS_URL")
	})
	t.Run("quiet", func(t *testing.T) {
		t.Parallel()
		c := on(t, s, "run", "-q", "x", "--url", nobody, "--", "true")
		c.ends(exitBroken)
		if c.stderr.String() != "" {
			t.Errorf("run says %q", c.stderr)
		}
	})
}

// The exit codes of run for each fault of the server, and for two error replies of an unavailable server. The code is 75 only if another
// owner holds the lock.
func TestRun_faults(t *testing.T) {
	t.Parallel()
	// exits returns the exit codes of run at a server, without and with a wait.
	exits := func(t *testing.T, url, lock string, succeeds bool) string {
		var codes []string
		for _, wait := range []string{"--no-wait", "--wait=" + adaptertest.ReplyTime.String()} {
			c := prepare(t, []string{"LEASEHOLD_REDIS_URL=" + url}, "run", wait, lock, "--", "echo", "ran").start()
			codes = append(codes, fmt.Sprint(c.wait().ExitCode()))
			if ran, said := c.stdout.String() != "", c.stderr.String(); ran != succeeds || (said == "") != succeeds {
				t.Errorf("%s: the command ran: %t, want %t; run printed %q", wait, ran, succeeds, said)
			}
		}
		return strings.Join(codes, ", ")
	}
	adaptertest.Walk(t, adaptertest.Only(map[string]string{
		adaptertest.Free:         "0, 0",
		adaptertest.Busy:         "75, 75",
		adaptertest.Refused:      "125, 125",
		adaptertest.Unresponsive: "125, 125",
		adaptertest.ReadOnly:     "125, 125",
		adaptertest.Denied:       "125, 125",
		adaptertest.WrongType:    "125, 125",
		adaptertest.BadName:      "2, 2",
	}), func(t *testing.T, c adaptertest.Call) string {
		url := "redis://"
		if c.Fault == adaptertest.Denied {
			url += "reader:any@"
		}
		return exits(t, url+c.Addr, c.Lock.Name(), c.Fault == adaptertest.Free)
	})
	s := redistest.Start(t)
	for _, reply := range []string{"LOADING Redis is loading the dataset in memory", "OOM command not allowed when used memory > 'maxmemory'."} {
		t.Run(strings.Fields(reply)[0], func(t *testing.T) {
			t.Parallel()
			p := redistest.NewProxy(t, s.Addr())
			lock := lockName(t)
			p.OnRequest(func(req [][]byte) (a redistest.Action) {
				if isAbout(req, lock) {
					a.Refuse = reply
				}
				return a
			})
			if codes := exits(t, "redis://"+p.Addr(), lock, false); codes != "125, 125" {
				t.Errorf("exit codes %s, want 125", codes)
			}
		})
	}
}

// The command gets standard input, its environment, and its arguments unchanged.
func TestRun_command(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lock := lockName(t)
	c := on(t, s, "run", lock, "--lease", "7s", "--", "sh", "-c", `
		read line
		echo "$line|$1|$LEASEHOLD_LOCK_NAME|$LEASEHOLD_LEASE_MS"
		[ "$LEASEHOLD_FENCING_TOKEN" -gt 1000000 ] && echo token
		echo "owner $LEASEHOLD_OWNER."
		read line`, "sh", "-w")
	c.say("a line")
	c.stdout.await(t, "a line|-w|"+lock+"|7000\n")
	c.stdout.await(t, "token\n")
	c.stdout.await(t, "owner ")
	owners := s.Do(t, "HKEYS", lock)
	if fields, err := owners.AsStrSlice(); err != nil || len(fields) == 0 {
		t.Errorf("the lock: %q, %v", fields, err)
	} else {
		c.stdout.await(t, "owner "+fields[0]+".\n")
	}
	c.stdin.Close()
	c.ends(1) // the exit code of read at the end of its input
	if c.stderr.String() != "" {
		t.Errorf("run says %q", c.stderr)
	}
	noKeys(t, s, lock)
}

// In a nested run, the environment is that of the inner lock.
func TestRun_nested(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	tool, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	lock := lockName(t)
	c := on(t, s, "run", lock, "--", tool, "run", "--shared", lock+"2", "--", "sh", "-c", `echo "$LEASEHOLD_LOCK_NAME, token: $LEASEHOLD_FENCING_TOKEN."`)
	c.ends(0)
	if got, want := c.stdout.String(), lock+"2, token: .\n"; got != want {
		t.Errorf("the command says %q, want %q", got, want)
	}
}

// Each row has the type of the holder's lock, the type of another run's lock, and the exit code of the other run.
func TestRun_kinds(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, test := range []struct {
		holder, other string
		want          int
	}{
		{"", "", 75},
		{"", "--fair", 125},
		{"--fair", "--fair", 75},
		{"--shared", "--shared", 0},
		{"--shared", "--exclusive", 75},
		{"--exclusive", "--shared", 75},
		{"--exclusive", "--exclusive", 75},
		{"", "--shared", 125},
		{"--exclusive", "", 125},
		{"", "-E=9", 9},
		{"", "-w=5s", 75},
		{"--shared", "-x -w=5s", 75},
	} {
		t.Run(fmt.Sprintf("%s then %s", test.holder, test.other), func(t *testing.T) {
			t.Parallel()
			lock := lockName(t)
			holder := on(t, s, append(append([]string{"run"}, strings.Fields(test.holder)...), lock, "--", "sh", "-c", "echo ready; read line")...)
			holder.stdout.await(t, "ready")

			flags := strings.Fields(test.other)
			if !strings.Contains(test.other, "-w") {
				flags = append(flags, "--no-wait")
			}
			c := on(t, s, append(append([]string{"run"}, flags...), lock, "--", "true")...)
			c.ends(test.want)
			if said := c.stderr.String(); (said == "") != (test.want == 0) || strings.Count(said, "\n")-strings.Count(said, "leasehold: waiting for") > 1 {
				t.Errorf("run says %q", said)
			}
			holder.say("")
			holder.ends(0)
			noKeys(t, s, lock)
		})
	}
}

// With --permits 2, two run at the same time, and a third does not. All must pass the same number.
func TestRun_permits(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lock := lockName(t)
	run := func(permits string, command ...string) *tool {
		return on(t, s, append([]string{"run", "--permits", permits, "--no-wait", lock, "--"}, command...)...)
	}
	var holders []*tool
	for range 2 {
		h := run("2", "sh", "-c", `echo "ready, token: $LEASEHOLD_FENCING_TOKEN."; read line`)
		h.stdout.await(t, "ready, token: .")
		holders = append(holders, h)
	}
	third := run("2", "true")
	third.ends(75)
	other := run("3", "true")
	other.ends(125)
	if said := other.stderr.String(); !strings.Contains(said, "semaphore has 2, --permits wants 3") {
		t.Errorf("run says %q", said)
	}
	for _, h := range holders {
		h.say("")
		h.ends(0)
	}
	again := run("2", "true")
	again.ends(0)
}

// 1: One run holds the lock. 2: Another run waits for it. 3: The first ends, and the other acquires the
// lock.
func TestRun_waits(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, kind := range []string{"", "--fair", "--exclusive"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			lock := lockName(t)
			run := append([]string{"run", "-v"}, strings.Fields(kind)...)
			holder := on(t, s, append(run, lock, "--", "sh", "-c", "echo ready; read line")...)
			holder.stdout.await(t, "ready") // 1
			c := on(t, s, append(run, lock, "--", "echo", "ran")...)
			c.stderr.await(t, "another owner holds") // 2
			holder.say("")                           // 3
			holder.ends(0)
			c.ends(0)
			if got := c.stdout.String(); got != "ran\n" {
				t.Errorf("it wrote %q", got)
			}
			noKeys(t, s, lock)
		})
	}
}

// The server does not respond. The tool reports that, and not that another owner has the lock.
func TestRun_serverFrozen(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	lock := lockName(t)
	for _, wait := range []string{"--no-wait", "--wait=300ms"} {
		proxy.OnRequest(func(req [][]byte) (a redistest.Action) {
			if isAbout(req, lock) {
				a.HoldRequest = t.Context().Done()
			}
			return a
		})
		c := prepare(t, []string{"REDIS_URL=redis://" + proxy.Addr()}, "run", wait, "--lease", "6s", lock, "--", "true").start()
		c.ends(exitBroken)
		proxy.CutAll()
	}
}

// leasehold and its command ignore the signals that its parent ignores.
func TestRun_nohup(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	for name, signal := range map[string]syscall.Signal{"HUP": syscall.SIGHUP, "INT": syscall.SIGINT} { // INT as after &
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock := lockName(t)
			c := prepare(t, []string{"LEASEHOLD_REDIS_URL=" + s.URL()})
			c.cmd.Path = "/bin/sh"
			c.cmd.Args = []string{"sh", "-c", `trap "" ` + name + `; exec "$@"`, "sh", path, "run", lock, "--", "sh", "-c", "echo ready; read line; kill -" + name + " $$; exit 6"}
			c.start()
			c.stdout.await(t, "ready")
			c.signal(signal)
			c.say("")
			c.ends(6)
		})
	}
}

// A closed standard error, for example a pipe to a program that ended, ends neither run nor its command.
func TestRun_closedStderr(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lock := lockName(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := prepare(t, []string{"LEASEHOLD_REDIS_URL=" + s.URL()}, "run", "--on-lost", "ignore", lock, "--", "sh", "-c", "echo ready; read line; exit 6")
	c.cmd.Stderr = w
	c.start()
	w.Close()
	c.stdout.await(t, "ready")
	r.Close()
	s.Do(t, "DEL", lock) // run reports the loss
	c.say("")
	c.ends(6)
	noKeys(t, s, lock)
}

// A lease that leasehold does not renew expires, and the lock is lost.
func TestRun_noRenew(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lock := lockName(t)
	c := on(t, s, "run", "--no-renew", "--lease", "2s", lock, "--", "sleep", "60")
	c.ends(exitLost)
	awaitFree(t, s, lock) // Redis lets it expire a little later
	noKeys(t, s, lock)
}

// With --fencing, readers have a token, too. It is larger than the token of each earlier writer, and
// smaller than the token of each later one.
func TestRun_fencing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lock := lockName(t)
	var tokens []int
	for _, kind := range []string{"--exclusive", "--shared", "--exclusive"} {
		c := on(t, s, "run", "--fencing", kind, lock, "--", "sh", "-c", `echo "$LEASEHOLD_FENCING_TOKEN"`)
		c.ends(0)
		token, err := strconv.Atoi(strings.TrimSpace(c.stdout.String()))
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, token)
	}
	if tokens[1] <= tokens[0] || tokens[2] <= tokens[1] {
		t.Errorf("tokens: %d", tokens)
	}
}

// The program is found as with execvp(3). A program that cannot be started is an error before the lock is acquired: here there is no server.
func TestRun_program(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	dir := t.TempDir()
	for name, file := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"bin/plain":    {"echo \"script $0 $1\"\n", 0o755},
		"bin/shebang":  {"#! /bin/sh -e\necho \"shebang $1\"\n", 0o755},
		"bin/denied":   {"#!/bin/sh\n", 0o644},
		"bin/later":    {"#!/bin/sh\n", 0o644},
		"bin2/later":   {"#!/bin/sh\necho later\n", 0o755},
		"bin/carriage": {"#!/bin/sh\r\n", 0o755},
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(file.text), file.mode)); err != nil {
			t.Fatal(err)
		}
	}
	for command, test := range map[string]struct {
		want         int
		stdout, said string
	}{
		"plain":          {0, "script bin/plain one\n", ""},
		"./bin/plain":    {0, "script ./bin/plain one\n", ""},
		"shebang":        {0, "shebang one\n", ""},
		"later":          {0, "later\n", ""},
		"denied":         {126, "", "permission denied"},
		"bin/denied":     {126, "", "permission denied"},
		dir:              {126, "", "is a directory"},
		"carriage":       {127, "", `interpreter "/bin/sh\r": no such file`},
		"no-such":        {127, "", "not found"},
		"./no-such":      {127, "", "no such file"},
		"bin/plain/none": {126, "", "not a directory"},
		"":               {127, "", "not found"},
	} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			url := s.URL()
			if test.want != 0 {
				url = "redis://127.0.0.1:1"
			}
			c := prepare(t, []string{"LEASEHOLD_REDIS_URL=" + url, "PATH=bin:bin2:/bin:/usr/bin"}, "run", lockName(t), "--", command, "one")
			c.cmd.Dir = dir
			c.start().ends(test.want)
			if got, said := c.stdout.String(), c.stderr.String(); got != test.stdout || !strings.Contains(said, test.said) || (said == "") != (test.said == "") {
				t.Errorf("the command wrote %q, run %q", got, said)
			}
		})
	}
}

// If another process stops the command, run reports it and keeps the lock. The command is continued when run is.
func TestRun_stopped(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lock := lockName(t)
	c := on(t, s, "run", "--lease", "6s", lock, "--", "sh", "-c", "kill -STOP $$; echo on; read line; exit 4")
	c.stderr.await(t, "the command is stopped (signal); \""+lock+"\" stays held until it continues")
	c.signal(syscall.SIGCONT)
	c.stdout.await(t, "on")
	c.stderr.await(t, "the command continues")
	c.say("")
	c.ends(4)
	noKeys(t, s, lock)
}

// SIGTSTP reaches the command, and SIGCONT continues it.
func TestRun_suspended(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := on(t, s, "run", lockName(t), "--", "sh", "-c", "echo ready; read line; exit 4")
	c.stdout.await(t, "ready")
	c.signal(syscall.SIGTSTP)
	c.stderr.await(t, "the command is stopped")
	c.signal(syscall.SIGCONT)
	c.stderr.await(t, "the command continues")
	c.say("")
	c.ends(4)
}

// --max-hold ends the command, whatever it does, and the lock is held until the command has ended.
func TestRun_maxHold(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, kind := range []string{"exits", "stopped", "ignores", "forks", "leaves"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			lock := lockName(t)
			c := on(t, s, append([]string{"run", "--max-hold", "3s", "-k", "50ms", lock, "--"}, command(kind, "TERM")...)...)
			c.stdout.await(t, "ready")
			c.ends(exitMaxHold)
			if said := c.stderr.String(); !strings.Contains(said, "maximum hold of 3s") || (kind == "stopped") != strings.Contains(said, "because of --max-hold") {
				t.Errorf("run says %q", said)
			}
			noKeys(t, s, lock)
		})
	}
	t.Run("held until the command is over", func(t *testing.T) {
		t.Parallel()
		lock := lockName(t)
		c := on(t, s, "run", "--lease", "6s", "--max-hold", "3s", "-k", "1h", lock, "--", "sh", "-c", `trap 'echo told; read line; exit' TERM; while :; do sleep 0.01; done`)
		c.stdout.await(t, "told")
		if !held(t, s, lock) {
			t.Error("the lock is free, and the command goes on")
		}
		c.say("")
		c.ends(exitMaxHold)
	})
}
