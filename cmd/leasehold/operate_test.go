package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/leader"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// redissonOwner is an owner of Redisson.
const redissonOwner = "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:84"

// seldom makes a client renew its leases so rarely that no renewal detects a force-unlock before the message about it arrives.
var seldom = client.WithWatchdogTimeout(10 * time.Minute)

// billing is a client that holds locks.
func billing(t *testing.T, rdb rueidis.Client, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(rdb, append([]client.Option{client.WithName("billing"), client.WithLabel("zone=a"), client.WithWatchdogTimeout(6 * time.Second)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func mustLock(t *testing.T, l lock.Locker) lock.Hold {
	t.Helper()
	h, err := l.Lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// knows waits until the server has the entry of the client.
func knows(t *testing.T, rdb rueidis.Client, c *client.Client) {
	t.Helper()
	for end := time.Now().Add(promptly); ; time.Sleep(5 * time.Millisecond) {
		if n, err := rdb.Do(t.Context(), rdb.B().Exists().Key("leasehold_client:"+c.ID()).Build()).AsInt64(); err == nil && n == 1 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the client is not known")
		}
	}
}

// host returns the name of this machine.
func host(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// says waits for the tool to end, and checks its exit code, and what its output contains and does not contain.
func says(t *testing.T, c *tool, code int, want ...string) {
	t.Helper()
	c.ends(code)
	all := c.stdout.String() + c.stderr.String()
	for _, text := range want {
		if !strings.Contains(all, text) {
			t.Errorf("%q does not say %q, but\n%s", c.cmd.Args[1:], text, all)
		}
	}
	if strings.Contains(all, "\x1b") || strings.Contains(all, "secret") {
		t.Errorf("%q has codes for a terminal, or a password: %q", c.cmd.Args[1:], all)
	}
}

func TestLs(t *testing.T) {
	t.Parallel()
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		ls(t, s.Client(t), s.URL())
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartCluster(t)
		ls(t, s.Client(t), s.Nodes[0].URL())
	})
}

func ls(t *testing.T, rdb rueidis.Client, url string) {
	c := billing(t, rdb)
	mustLock(t, c.NewLock("orders:1"))
	h := mustLock(t, c.NewLock("orders:2"))
	mustLock(t, c.NewRWLock("catalog").Read())
	mustLock(t, c.NewLock("odd\x1b[31m\nname"))
	for _, words := range [][]string{{"HSET", "java", redissonOwner, "1"}, {"HSET", "visits", "today", "1"}, {"SET", "text", "x"}} {
		if err := rdb.Do(t.Context(), rdb.B().Arbitrary(words[0]).Keys(words[1]).Args(words[2:]...).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	knows(t, rdb, c)
	call := func(args ...string) *tool {
		return prepare(t, []string{"REDIS_URL=" + url}, args...).start()
	}
	all := call("ls")
	says(t, all, 0, "NAME ", "WAITING", "billing on "+host(t), "Redisson "+redissonOwner[:36], `"odd\x1b[31m\nname"`, "no expiry")
	if text := all.stdout.String(); strings.Count(text, "\n") != 6 || strings.Contains(text, "visits") || strings.Contains(text, h.Owner()) || strings.Index(text, "orders:1") > strings.Index(text, "orders:2") {
		t.Errorf("%s", text)
	}
	says(t, call("ls", "orders:*", "-o", "wide"), 0, "OWNER", h.Owner(), "zone=a")
	names := call("ls", "orders:*", "-o", "name")
	says(t, names, 0)
	if text := names.stdout.String(); text != "orders:1\norders:2\n" && text != "orders:2\norders:1\n" {
		t.Errorf("%q", text)
	}
	rw := call("ls", "--kind", "rw", "-o", "json")
	says(t, rw, 0)
	var list []lockJSON
	if err := json.Unmarshal([]byte(rw.stdout.String()), &list); err != nil || len(list) != 1 || list[0].Name != "catalog" || list[0].Holders[0].Client.Name != "billing" || list[0].Holders[0].Since == nil || *list[0].LeaseMS <= 0 {
		t.Errorf("%+v, %v", list, err)
	}
	lines := call("ls", "java", "-o", "jsonl")
	says(t, lines, 0)
	var one lockJSON
	if err := json.Unmarshal([]byte(lines.stdout.String()), &one); err != nil || one.LeaseMS != nil || one.Holders[0].Since != nil || one.Holders[0].Owner != redissonOwner {
		t.Errorf("%+v, %v", one, err)
	}
	none := call("ls", "nothing:*", "-o", "json")
	says(t, none, 0)
	if none.stdout.String() != "[]\n" {
		t.Errorf("%q", none.stdout)
	}
	says(t, call("ls", "nothing:*"), 0, "NAME ", "leasehold: no held lock matches nothing:* on "+url+"\n")
	says(t, call("ls", "orders"), 0, "lock orders is not held on "+url+"; for all names with this prefix: leasehold ls 'orders*'\n")
	says(t, call("ls", "it's"), 0, "lock it's is not held on "+url+"\n")
	says(t, call("ls", "new\nline"), 0, `lock "new\nline" is not held on `+url+"\n")
	says(t, call("ls", `or\ders`), 0, `no held lock matches or\ders on `+url+"\n")
	says(t, call("ls", "--kind", "fair"), 0, "no held lock of type fair matches * on "+url+"\n")
	says(t, call("clients"), 0, "NAME ", "billing", host(t), "zone=a")
	says(t, call("clients", "-o", "wide"), 0, c.ID())
	clients := call("clients", "-o", "jsonl")
	says(t, clients, 0)
	var who clientJSON
	if err := json.Unmarshal([]byte(clients.stdout.String()), &who); err != nil || who.ID != c.ID() || who.Host != host(t) || who.Started == nil {
		t.Errorf("%+v, %v", who, err)
	}
	complete := func(args ...string) *tool {
		return completed(t, func() *tool { return call(append([]string{"__complete"}, args...)...) })
	}
	says(t, complete("inspect", "ord"), 0, "orders:1\tplain, billing on ", "orders:2\tplain", ":4\n")
	says(t, complete("ls", "--kind", "rw", ""), 0, "catalog\trw, billing on ")
	says(t, complete("run", "ord"), 0, "orders:1\tplain, billing on ", "orders:2\tplain", ":4\n")
	says(t, call("__complete", "run", "orders:1", "--", ""), 0, ":0\n")
}

func TestOperate_wrongly(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.AddUser(t, "jobs", "~orders:*", "+@all", "-scan")
	as := "redis://jobs:secret@" + s.Addr()
	s.Do(t, "SET", "text", "x")
	s.Do(t, "HSET", "orders:2", redissonOwner, "1")
	for args, test := range map[string]struct {
		code int
		says string
	}{
		"ls --kind cuckoo":                      {2, "must be one of any, plain, fair, rw, semaphore"},
		"ls a b":                                {2, "2 arguments: use leasehold ls [PATTERN]\n"},
		"ls -o yaml":                            {2, "must be one of table, json, wide, jsonl, name"},
		"inspect":                               {2, "0 arguments: use leasehold inspect NAME\n"},
		"inspect a{b":                           {2, "bad lock name"},
		"inspect text":                          {1, "key text is not a lock; nothing was changed"},
		"unlock text --yes":                     {1, "key text is not a lock; nothing was changed"},
		"unlock orders:1 --yes":                 {1, "orders:1 is not held; nothing was changed"},
		"unlock orders:1 --operator a\nb":       {2, "leasehold: --operator (\"a\\nb\"): must be a single line"},
		"unlock orders:2 --yes --reason a\nb":   {2, "bad reason"},
		"clients x":                             {2, "1 argument: use leasehold clients\n"},
		"ls --url " + as:                        {1, "the user lacks a permission: run leasehold doctor"},
		"inspect else --url " + as:              {1, "the user lacks a permission"},
		"ls --url redis://a:secret@127.0.0.1:1": {1, "connection refused; check that the server is running"},
	} {
		words := strings.Split(args, " ")
		says(t, on(t, s, words...), test.code, test.says)
	}
	says(t, prepare(t, nil, "ls").start(), 2, "no server URL: set --url or LEASEHOLD_REDIS_URL")
}

func TestInspect(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	c := billing(t, rdb)
	says(t, on(t, s, "inspect", "orders:1"), 0, "orders:1: free\n", "leasehold: no key for orders:1 on "+s.URL()+": free, or ")
	says(t, on(t, s, "inspect", "orders:*"), 0, "orders:*: free\n", "inspect takes a name; use leasehold ls for a pattern\n")
	h := mustLock(t, c.NewFairLock("orders:1", lock.WithFencing()))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.NewFairLock("orders:1").Lock(ctx)
	}()
	await(t, "nobody waits", func() bool {
		state, err := c.NewFairLock("orders:1").Inspect(t.Context())
		return err != nil || len(state.Waiters) == 1
	})
	knows(t, rdb, c)
	says(t, on(t, s, "inspect", "orders:1"), 0, "orders:1: a fair lock, held\n", "holder   billing on "+host(t)+", pid ", "zone=a", "requested ", " ago, at ", "(includes the wait)\n",
		"owner "+h.Owner(), " left\n", "waiters  1. billing on ", "waiter timeout in ",
		fmt.Sprintf("token    %d, or up to 64 larger after hand-offs within the process\n         highest %d; the next token is larger\n", h.Token(), h.Token()+64))
	j := on(t, s, "inspect", "orders:1", "-o", "json")
	says(t, j, 0)
	var l lockJSON
	if err := json.Unmarshal([]byte(j.stdout.String()), &l); err != nil || l.Kind != "fair" || l.Mode != "exclusive" || l.Waiting != 1 || len(l.Waiters) != 1 || l.Waiters[0].WaiterTimeoutMS == nil || l.Token != h.Token() || l.HighestToken != h.Token()+64 {
		t.Errorf("%+v, %v", l, err)
	}
	cancel()
	<-done
	s.Do(t, "HSET", "java", "mode", "read", redissonOwner, "2")
	s.Do(t, "SET", "{java}:"+redissonOwner+":rwlock_timeout:1", "1")
	says(t, on(t, s, "inspect", "java"), 0, "java: a read/write lock, held by 1 reader\n", "Redisson "+redissonOwner[:36]+", thread 84", "request time unknown, held 2 times", "no expiry")
}

// unlock removes only the holder that it displayed, notifies the holder, and writes an audit record. Off a
// terminal, it does nothing without --yes.
func TestUnlock(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	c := billing(t, rdb, seldom)
	h := mustLock(t, c.NewLock("orders:1"))
	knows(t, rdb, c)
	says(t, on(t, s, "unlock", "orders:1"), 2, "holder  billing on ", "not a terminal, nothing was changed; use --yes")
	says(t, on(t, s, "unlock", "orders:1", "--yes", "--owner", redissonOwner), 1, "is not held by owner "+redissonOwner+"; nothing was changed")
	if h.Err() != nil {
		t.Fatal(h.Err())
	}
	hears(t, s, c)
	says(t, on(t, s, "unlock", "orders:1", "--yes", "--owner", h.Owner(), "--operator", "alice", "--reason", "stuck since 3"), 0, "holder  billing on ", "unlocked; notification sent to the holder (billing on "+host(t)+", pid ", "keeps running alongside the next holder")
	<-h.Context().Done()
	if err := h.Err(); !errors.Is(err, lock.ErrForceUnlocked) || !strings.Contains(err.Error(), "by alice: stuck since 3") {
		t.Errorf("the holder is told %v", err)
	}
	says(t, on(t, s, "inspect", "orders:1"), 0, "orders:1: free\n", "ago, by alice\n", "stuck since 3\n", "from billing on ")

	// The workers of a wait group, which has no next holder, and a latch, which has no holder.
	if _, err := c.NewWaitGroup("workers").Add(t.Context()); err != nil {
		t.Fatal(err)
	}
	u := on(t, s, "unlock", "workers", "--yes")
	says(t, u, 0, "notification sent to the worker (billing on ", "The removed workers count as lost")
	if text := u.stdout.String(); strings.Contains(text, "holder") {
		t.Error(text)
	}
	if _, err := c.NewLatch("latch").TrySetCount(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	says(t, on(t, s, "unlock", "latch", "--yes"), 1, "latch is a latch, which has no holder; nothing was changed")

	// All displayed readers.
	a, b := mustLock(t, c.NewRWLock("rw").Read()), mustLock(t, billing(t, s.Client(t)).NewRWLock("rw").Read())
	says(t, on(t, s, "unlock", "rw", "-y"), 0, "a read/write lock, held by 2 readers\n", "2 holders")
	if held(t, s, "rw") {
		t.Error("it is held still")
	}
	<-a.Context().Done()
	<-b.Context().Done()
}

// An unlock that fails halfway reports which holders lost the lock, and for which one the outcome is unknown, even when it is interrupted.
func TestUnlock_breaksOff(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	proxy := redistest.NewProxy(t, s.Addr())
	readers := make(map[string]bool)
	var order []string
	for range 3 {
		c := billing(t, s.Client(t), seldom)
		readers[mustLock(t, c.NewRWLock("rw").Read()).Owner()] = true
		knows(t, rdb, c)
	}
	order = slices.Sorted(maps.Keys(readers)) // in which unlock removes them
	unlock := func(act func() redistest.Action, of string) *tool {
		proxy.OnRequest(func(req [][]byte) redistest.Action {
			if strings.EqualFold(string(req[0]), "EVALSHA") && slices.ContainsFunc(req, func(b []byte) bool { return string(b) == of }) {
				return act()
			}
			return redistest.Action{}
		})
		return prepare(t, []string{"LEASEHOLD_REDIS_URL=redis://" + proxy.Addr()}, "unlock", "rw", "--yes").start()
	}
	cut := unlock(func() redistest.Action { return redistest.Action{DropReply: true} }, order[1])
	says(t, cut, 1, "1 of 3 holders removed; ", "unknown outcome for holder billing on ")
	if text := cut.stderr.String(); strings.Contains(text, "TLS") {
		t.Errorf("a connection that broke says that the server wants TLS: %s", text)
	}

	asked := make(chan struct{})
	c := unlock(func() redistest.Action { close(asked); return redistest.Action{HoldReply: t.Context().Done()} }, order[2])
	<-asked
	c.signal(os.Interrupt)
	says(t, c, 130, "unknown outcome for holder billing on ", "interrupted by a signal (interrupt)")
}

// completed calls a completion until it returns names. A completion that takes too long returns none.
func completed(t *testing.T, call func() *tool) (c *tool) {
	t.Helper()
	await(t, "no names", func() bool {
		c = call()
		c.wait()
		return strings.Contains(c.stdout.String(), "\t")
	})
	return c
}

// Completion omits names that a shell could not type: it would cut them, or move its cursor.
func TestComplete_oddNames(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, name := range []string{"ok", "two\nlines", "a\ttab", "\x1b[2J", "\xff"} {
		s.Do(t, "HSET", name, redissonOwner, "1")
	}
	c := completed(t, func() *tool {
		return prepare(t, []string{"REDIS_URL=" + s.URL()}, "__complete", "inspect", "").start()
	})
	says(t, c, 0, "ok\tplain, ")
	if got := strings.Count(c.stdout.String(), "\n"); got != 2 { // and the directive
		t.Errorf("it completes to %q", c.stdout)
	}
}

// full is a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// A command that cannot write its output fails.
func TestOperate_nowhereToWrite(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Do(t, "HSET", "orders:1", redissonOwner, "1")
	s.Do(t, "SET", "api:alice", "gcra 1 0 5", "PX", "60000")
	for _, line := range []string{
		"inspect orders:1", "inspect orders:1 -o json", "inspect api:alice", "ls", "ls -o json", "ls -o jsonl", "ls -o name", "ls --kind ratelimit",
		"clients", "doctor", "doctor -o json", "version",
	} {
		args := strings.Fields(line)
		if args[0] != "version" {
			args = append(args, "--url", s.URL())
		}
		var stderr strings.Builder
		if code := run(t.Context(), args, full{}, &stderr); code != exitFailure || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("%s: exit code %d, and it says %q", line, code, &stderr)
		}
	}
}

// With several holders, the longest lease says nothing about the others, so inspect shows the lease of each.
func TestInspect_leases(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := billing(t, s.Client(t), seldom)
	for name, hold := range map[string]func(...lock.Option) lock.Locker{
		"gpus": func(opts ...lock.Option) lock.Locker { return c.NewSemaphore("gpus", 3, opts...) },
		"rw":   func(opts ...lock.Option) lock.Locker { return c.NewRWLock("rw", opts...).Read() },
	} {
		mustLock(t, hold(lock.WithFixedLease(2*time.Hour)))
		alone := on(t, s, "inspect", name)
		alone.ends(0)
		if text := alone.stdout.String(); strings.Count(text, "lease") != 1 {
			t.Errorf("of one holder: %s", text)
		}
		mustLock(t, hold(lock.WithFixedLease(time.Hour)))
		matchesText(t, on(t, s, "inspect", name), `(?s).*, lease (2h00m|1h5\dm) left\n.*, lease (1h00m|5\dm\d\ds) left\n.*\nlease +(2h00m|1h5\dm) left\n`)
		for _, command := range [][]string{{"inspect", name, "-o", "json"}, {"ls", name, "-o", "jsonl"}} {
			j := on(t, s, command...)
			j.ends(0)
			var l lockJSON
			if err := json.Unmarshal([]byte(j.stdout.String()), &l); err != nil || len(l.Holders) != 2 {
				t.Fatalf("%v: %s", err, j.stdout)
			}
			for i, hours := range []int64{2, 1} {
				if left := l.Holders[i].LeaseMS; left == nil || *left <= (hours-1)*3_600_000 || *left > hours*3_600_000 {
					t.Errorf("%q: holder %d: not %d h: %s", command, i, hours, j.stdout)
				}
			}
		}
	}
}

// A replica that has lost its primary shows held locks as free, so the tool warns of it.
func TestReplica(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, replica := range []bool{false, true} {
		if replica {
			s.Do(t, "REPLICAOF", "127.0.0.1", "1")
		}
		for _, command := range []string{"ls", "inspect orders:1"} {
			c := on(t, s, strings.Fields(command)...)
			c.ends(0)
			if text := c.stderr.String(); strings.Contains(text, s.Addr()+" is a replica, which can show a held lock as free: connect to the primary") != replica {
				t.Errorf("%s, replica %v: %s", command, replica, text)
			}
		}
		url := serving(t, s)
		for _, path := range []string{"", "locks", "lock?name=orders:1"} {
			if text := body(t, url+path); strings.Contains(text, "This server is a replica") != replica {
				t.Errorf("%q, replica %v: %s", path, replica, text)
			}
		}
	}
}

// The question before a force-unlock says how many of the displayed holders it removes.
func TestTakeOf(t *testing.T) {
	for want, got := range map[string]string{
		"Force-unlock rw and remove its holder":           takeOf("rw", 1, 1, "holder"),
		"Force-unlock rw and remove its 3 holders":        takeOf("rw", 3, 3, "holder"),
		"Force-unlock rw and remove 1 of its 3 holders":   takeOf("rw", 1, 3, "holder"),
		"Force-unlock job and remove 1 of its 12 workers": takeOf("job", 1, 12, "worker"),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A stuck run is found and force-unlocked. It is notified, and the next run acquires the lock.
func TestUnlock_run(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	name := lockName(t)
	stuck := on(t, s, "run", name, "--", "sleep", "1000")
	awaitHeld(t, s, name)
	registered(t, s, stuck)
	await(t, "the holder does not listen", func() bool {
		reply := s.Do(t, "PUBSUB", "CHANNELS", "leasehold_client:*")
		channels, err := reply.AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		return len(channels) > 0
	})
	next := on(t, s, "run", name, "--", "echo", "mine")
	says(t, on(t, s, "ls"), 0, name, "leasehold run on ")
	says(t, on(t, s, "unlock", name, "--yes", "--operator", "alice"), 0, ", runs sleep", "unlocked; notification sent to the holder (leasehold run on ")
	says(t, stuck, 123, "by alice")
	says(t, next, 0, "mine")
}

func TestWatch(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := billing(t, s.Client(t))
	h := mustLock(t, c.NewLock("orders:1"))
	knows(t, s.Client(t), c)
	w := on(t, s, "watch", "orders:1", "text")
	w.stdout.await(t, `"event":"seen","name":"orders:1","owner":"`+h.Owner()+`","client":{"id":"`+c.ID()+`","name":"billing"`)
	w.stdout.await(t, `"event":"seen","name":"text","lease_ms":null,"holding":0,"waiting":0}`)
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	w.stdout.await(t, `"event":"released","name":"orders:1","owner":"`+h.Owner())
	s.Do(t, "HSET", "orders:1", redissonOwner, "1")
	w.stdout.await(t, `"event":"acquired","name":"orders:1","owner":"`+redissonOwner)
	says(t, on(t, s, "unlock", "orders:1", "-y", "--operator", "alice"), 0, "unlocked")
	w.stdout.await(t, `"by":"alice"`)
	s.Do(t, "SET", "text", "x")
	w.stderr.await(t, "key has the wrong type")
	w.signal(os.Interrupt)
	says(t, w, exitInterrupted)
	if n := strings.Count(w.stderr.String(), "wrong type"); n != 1 {
		t.Errorf("it says so %d times", n)
	}
	says(t, on(t, s, "watch"), 2, "0 arguments: use leasehold watch NAME...")
	says(t, on(t, s, "watch", "a{b"), 2, "bad lock name")
}

// The advice about a wrong password appears once, although the library gives it too.
func TestAdvice_once(t *testing.T) {
	c := prepare(t, nil, "ls", "--url", "redis://jobs:mistake@"+redistest.Start(t).Addr()).start()
	c.ends(1)
	if n := strings.Count(c.stderr.String(), "check the user and the password"); n != 1 {
		t.Errorf("%d times: %s", n, c.stderr)
	}
}

// The password of a Sentinel is not that of the URL.
func TestAdvice_sentinelPassword(t *testing.T) {
	sentinel := redistest.StartSentinel(t, 1).Sentinels[0]
	sentinel.Do(t, "ACL", "SETUSER", "default", "resetpass", ">hunter2")
	c := prepare(t, nil, "ls", "--url", "redis://jobs:secret@"+sentinel.Addr()+"?master_set="+redistest.PrimaryName).start()
	c.ends(1)
	if text := c.stderr.String(); !strings.Contains(text, "LEASEHOLD_SENTINEL_PASSWORD") || strings.Contains(text, "in the URL or in") || strings.Contains(text, "ClientOption") {
		t.Error(text)
	}
}

// The error text for a missing permission depends on the server's version, and on whether a script ran the command.
func TestAdvice_denied(t *testing.T) {
	for _, reply := range []string{
		"NOPERM User jobs has no permissions to run the 'hget' command",
		"The user executing the script can't run this command or subcommand script: 14fa",
		"ACL failure in script: User jobs has no permissions to run the 'hget' command script: 14fa",
	} {
		if do := adviceOnReply(reply); !strings.Contains(do, "leasehold doctor") {
			t.Errorf("on %q the advice is %q", reply, do)
		}
	}
}

// Text that anyone can write into Redis does not move the cursor of a terminal.
func TestShown_everywhere(t *testing.T) {
	odd := "a\x1b[31m\x7f\u009b2Jb:1"
	l := admin.Lock{Kind: admin.WaitGroup, Holding: 1}
	l.Name, l.Mode, l.Holders = odd, lock.Worker, []lock.Holder{{Owner: odd, Client: lock.Client{ID: odd}, Mode: lock.Worker, Count: 1}}
	l.Lost, l.Waiters, l.Leader = l.Holders, []lock.Waiter{{Owner: odd}}, &leader.Leader{Value: odd}
	var b strings.Builder
	if err := errors.Join(detail(l).table(&b), listLocks(&b, 0, []admin.Lock{l}, true), writeJSON(&b, toJSON(l)), jsonLine(&b, toJSON(l))); err != nil {
		t.Fatal(err)
	}
	b.WriteString(oneLine(odd))
	if strings.ContainsFunc(b.String(), func(c rune) bool { return unicode.IsControl(c) && c != '\n' }) {
		t.Errorf("%q", b.String())
	}
	var read lockJSON
	_, last, _ := strings.Cut(b.String(), "\n{\"name\"")
	last, _, _ = strings.Cut(last, "\n")
	if err := json.Unmarshal([]byte("{\"name\""+last), &read); err != nil || read.Name != odd || read.Holders[0].Owner != odd {
		t.Errorf("%+v, %v", read, err)
	}
}

// A reader whose lease was not read has an unknown lease, not the lease of the lock.
func TestInspect_unknownLease(t *testing.T) {
	var l admin.Lock
	l.Mode, l.Lease, l.Holding = lock.Write, time.Minute, 2
	l.Holders = []lock.Holder{{Owner: "a:1", Mode: lock.Write, Count: 1}, {Owner: "a:1", Mode: lock.Read, Count: 1}}
	var b strings.Builder
	if err := detail(l).table(&b); err != nil || strings.Count(b.String(), ", lease unknown\n") != 1 {
		t.Errorf("%s, %v", &b, err)
	}
	if j := toJSON(l); j.Holders[0].LeaseMS == nil || j.Holders[1].LeaseMS != nil {
		t.Errorf("%+v", j)
	}
}

// Two names that are not UTF-8 can look alike in JSON. Their bytes distinguish them.
func TestJSON_bytes(t *testing.T) {
	var b strings.Builder
	var l admin.Lock
	l.Name = "a\xff"
	h := historyJSON{Name: l.Name, NameBytes: []byte(l.Name)}
	if err := errors.Join(jsonLine(&b, toJSON(l)), jsonLine(&b, eventToJSON(admin.Event{Lock: l})), jsonLine(&b, h)); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), `"name":"a\ufffd","name_base64":"Yf8="`); n != 3 {
		t.Errorf("%s", b.String())
	}
	l.Name = "a\ufffd"
	b.Reset()
	if err := jsonLine(&b, toJSON(l)); err != nil || strings.Contains(b.String(), "base64") {
		t.Errorf("%s, %v", b.String(), err)
	}
}

// Locks with the same name have a fixed order, regardless of the order in which a list finds them.
func TestSorted_equalNames(t *testing.T) {
	group, plain := admin.Lock{Kind: admin.WaitGroup}, admin.Lock{Kind: admin.Plain}
	for _, found := range [][]admin.Lock{{group, plain}, {plain, group}} {
		all, err := sorted(func(yield func(admin.Lock, error) bool) {
			for _, l := range found {
				yield(l, nil)
			}
		})
		if err != nil || len(all) != 2 || all[0].Kind != admin.Plain {
			t.Errorf("%+v, %v", all, err)
		}
	}
}

// A watch that ends by itself has failed.
func TestPrintEvents_ends(t *testing.T) {
	var out, stderr strings.Builder
	err := printEvents(t.Context(), func(yield func(admin.Event, error) bool) { yield(admin.Event{}, errors.New("unavailable")) }, &out, &stderr)
	if code := report(t.Context(), &stderr, nil, err); code != exitFailure || stderr.String() != "leasehold: unavailable\n" {
		t.Errorf("exit code %d, %q", code, stderr.String())
	}
}
