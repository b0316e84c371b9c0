package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/doctor"
	"github.com/leasehold-go/leasehold/internal/redistest"
)

func TestDoctor(t *testing.T) {
	t.Parallel()
	well := redistest.Start(t)
	well.AddUser(t, "jobs", "~orders:*", "+@all")
	well.AddUser(t, "blind", "~orders:*", "&*", "+@all", "-info")
	unlimited := redistest.Start(t, "--maxmemory-policy", "allkeys-lru")
	evicting := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl")
	for name, test := range map[string]struct {
		args string
		want int
		says []string
	}{
		"well":            {"--url " + well.URL(), 0, []string{": ok\n", "✓ lock"}},
		"warning":         {"--url " + unlimited.URL(), 1, []string{": warning\n", "! memory", "→ CONFIG SET maxmemory-policy noeviction"}},
		"failure":         {"--url " + evicting.URL(), 2, []string{": failure\n", "✗ memory", "→ CONFIG SET maxmemory-policy noeviction"}},
		"rights":          {"--prefix orders: --for plain --url redis://jobs:secret@" + well.Addr(), 2, []string{"✗ permissions plain", "→ ACL SETUSER jobs &redisson_lock__channel:{orders:*"}},
		"no server":       {"--url redis://jobs:secret@127.0.0.1:1", 2, []string{"redis://127.0.0.1:1: failure\n", "✗ connection", "connection refused", "→ check that the server is running"}},
		"a wrong user":    {"--url redis://jobs:secrets@" + well.Addr(), 2, []string{"→ check the user and the password"}},
		"role":            {"--role operator --prefix orders: --url redis://jobs:secret@" + well.Addr(), 2, []string{"✗ permissions plain", "✗ permissions admin", "→ ACL SETUSER jobs ~leasehold_client:*"}},
		"unknown role":    {"--role root --url " + well.URL(), 2, nil},
		"unknown policy":  {"--prefix orders: --for plain --url redis://blind:secret@" + well.Addr(), 1, []string{"! memory", "the eviction policy is unknown"}},
		"no ACL of":       {"--print-acl root", 2, nil},
		"ACL of a prefix": {"--print-acl page --prefix a'b", 2, nil},
		"ACL":             {"--print-acl page --prefix orders:", 0, []string{"ACL SETUSER leasehold-page on resetkeys resetchannels -@all ~orders:* "}},
		"unknown kind":    {"--for barrier --url " + well.URL(), 2, nil},
		"two servers":     {"--url redis://a --url redis://b", 2, nil},
		"slow":            {"--slow 1ns --url " + well.URL(), 1, []string{": warning\n", "! scripts", "→ check SLOWLOG GET"}},
		"never slow":      {"--slow 0 --url " + well.URL(), 2, nil},
		"no time":         {"--timeout 0 --url " + well.URL(), 2, nil},
		"negative time":   {"--timeout -1s --url " + well.URL(), 2, nil},
		"unknown output":  {"-o yaml --url " + well.URL(), 2, nil},
		"a word too many": {"redis://user:secret@a", 2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"doctor", "--slow", "1h"}, strings.Fields(test.args)...) // whatever this machine does
			c := prepare(t, nil, args...).start()
			c.ends(test.want)
			for _, want := range test.says {
				if !strings.Contains(c.stdout.String(), want) {
					t.Errorf("it does not say %q", want)
				}
			}
			if usage := test.says == nil; usage != (c.stderr.String() != "") || usage != (c.stdout.String() == "") {
				t.Errorf("%q on stdout, and %q on stderr", c.stdout, c.stderr)
			}
			if all := c.stdout.String() + c.stderr.String(); strings.Contains(all, "secret") || strings.Contains(all, "\x1b") {
				t.Errorf("it shows a password or has codes for a terminal: %q", all)
			}
		})
	}
}

func TestDoctor_json(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--maxmemory-policy", "allkeys-lru")
	c := on(t, s, "doctor", "-o", "json")
	c.ends(1)
	var r doctor.Report
	if err := json.Unmarshal([]byte(c.stdout.String()), &r); err != nil {
		t.Fatalf("%v: %s", err, c.stdout)
	}
	if r.Server != s.URL() || r.Mode != "standalone" || r.Status != doctor.Warning || len(r.Checks) < 10 {
		t.Errorf("%+v", r)
	}
	noKeys(t, s, "")
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		c := prepare(t, nil, "completion", shell).start()
		c.ends(0)
		if !strings.Contains(c.stdout.String(), "leasehold") {
			t.Errorf("%s: %q", shell, c.stdout)
		}
	}
	for args, want := range map[string]string{
		"run --on-lost ": "ignore\n",
		"doctor -o ":     "json\n",
		"do":             "doctor\t",
		"run ":           ":4\n",                    // no files in place of the name of a lock
		"run name -- ":   ":0\n",                    // files after it
		"version --out":  "--output\toutput format", // with a description
	} {
		c := prepare(t, nil, append([]string{"__complete"}, strings.Split(args, " ")...)...).start()
		c.ends(0)
		if !strings.Contains(c.stdout.String(), want) {
			t.Errorf("%q completes to %q, want %q", args, c.stdout, want)
		}
	}
}
