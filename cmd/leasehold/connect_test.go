package main

import (
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// connects runs a command under a lock with the environment, and returns the call.
func connects(t *testing.T, want int, env []string, flags ...string) *tool {
	t.Helper()
	c := prepare(t, env, append(append([]string{"run", "--no-wait"}, flags...), lockName(t), "--", "echo", "ran")...).start()
	c.ends(want)
	return c
}

func TestConnect_user(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Do(t, "ACL", "SETUSER", "jobs", "on", ">secret", "allkeys", "allchannels", "+@all")
	s.Do(t, "ACL", "SETUSER", "default", "off")
	for name, test := range map[string]struct {
		want int
		said string
		env  []string
	}{
		"in the URL":     {0, "", []string{"LEASEHOLD_REDIS_URL=redis://jobs:secret@" + s.Addr()}},
		"beside the URL": {0, "", []string{"REDIS_URL=redis://jobs@" + s.Addr(), "REDISCLI_AUTH=secret"}},
		"our variable":   {0, "", []string{"REDIS_URL=redis://127.0.0.1:1", "LEASEHOLD_REDIS_URL=redis://jobs@" + s.Addr(), "REDISCLI_AUTH=secret"}},
		"wrong":          {exitBroken, "check the user and the password", []string{"LEASEHOLD_REDIS_URL=redis://jobs:mistake@" + s.Addr()}},
		"none":           {exitBroken, "set the password in the URL or in REDISCLI_AUTH", []string{"LEASEHOLD_REDIS_URL=redis://" + s.Addr()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := connects(t, test.want, test.env)
			c.stderr.await(t, test.said)
		})
	}
}

func TestConnect_tls(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	_, addr := redistest.StartTLS(t, authority)
	ca, cert, key := authority.Files(t)
	env := []string{"LEASEHOLD_REDIS_URL=rediss://" + addr}
	connects(t, 0, env, "--cacert", ca, "--cert", cert, "--key", key)
	connects(t, 0, env, "--insecure", "--cert", cert, "--key", key)
	connects(t, exitBroken, env, "--cert", cert, "--key", key).stderr.await(t, "--cacert")
	connects(t, exitUsage, env, "--cert", cert).stderr.await(t, "must be used together")
	connects(t, exitUsage, env, "--cacert", key).stderr.await(t, "no PEM certificate")
}

func TestConnect_sentinel(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	addr := redistest.StartTLSSentinel(t, authority)
	ca, cert, key := authority.Files(t)
	connects(t, 0, []string{"LEASEHOLD_REDIS_URL=rediss://" + addr + "?master_set=primary"}, "--cacert", ca, "--cert", cert, "--key", key)
}

func TestConnect_cluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	connects(t, 0, []string{"LEASEHOLD_REDIS_URL=redis://" + cluster.Addrs()[0]})
}

// The error for a server that accepts the connection but does not respond differs from that for a server that does not run.
func TestConnect_silentServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Freeze(t)
	c := on(t, s, "ls")
	c.ends(exitFailure)
	c.stderr.await(t, "the server accepted the connection but does not respond")
	s.Thaw(t)
}

func TestRedacted(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"redis://user:secret@host:1/2?master_set=m":  "redis://host:1/2?master_set=m",
		"redis://secret@/2":                          "redis://localhost:6379/2",
		"redis://host:1?password=secret&db=2#secret": "redis://host:1?db=2",
		"redis:user:secret@host":                     "an invalid URL",
		"redis://user:se%zzcret@host":                "an invalid URL",
		"unix:///run/redis.sock?db=1":                "unix:///run/redis.sock?db=1",
	} {
		if got := redacted(address); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"leasehold: lock: first\nsecond":                       "lock: first; second",
		`unknown command "redis://user:secret@host" for x`:     `unknown command "redis://***@host" for x`,
		"redis://a:s@h and rediss://:p@ss@h, user@example.com": "redis://***@h and rediss://***@h, user@example.com",
		"redis://secret@h or redis://a:s/c@h":                  "redis://***@h or redis://***@h",
		"as in redis://user:password@h or http://:password@h/": "as in redis://user:password@h or http://:password@h/",
	} {
		if got := oneLine(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// For a wrong URL, or a different server at its address, a command reports the same error as client.Open.
func TestConnect_says(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	_, addr := redistest.StartTLS(t, authority)
	s := redistest.Start(t)
	for url, c := range map[string]struct {
		want int
		said string
	}{
		"redis://" + s.Addr() + "?tls=true":          {exitUsage, `unknown URL parameter "tls"; for TLS the URL begins with rediss://`},
		"redis://user:12#secret@" + s.Addr():         {exitUsage, "write %23"},
		"redis://secret@" + s.Addr():                 {exitBroken, "as in redis://:password@host:port"},
		"redis://user:%zzsecret@" + s.Addr():         {exitUsage, "want redis://user:password@host:port"},
		"redis://" + addr:                            {exitBroken, "the server uses TLS on this port: use rediss://"},
		"redis://" + s.Addr() + "?master_set=orders": {exitBroken, "is not a Sentinel"},
	} {
		tool := connects(t, c.want, []string{"LEASEHOLD_REDIS_URL=" + url})
		tool.stderr.await(t, c.said)
		if text := tool.stderr.String(); strings.Contains(text, "secret") || strings.Contains(text, "user:12") {
			t.Errorf("%s: %s", url, text)
		}
	}
}
