package registry

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

const id = "0190b5a2-7e2f-7abc-8def-0123456789ab"

var testClient = lock.Client{ID: id, Host: "host-7", PID: 4711, Name: "billing", Label: "zone=a", Version: "v1.2.3", Started: time.Date(2026, 11, 22, 3, 4, 5, 600700800, time.UTC)}

// record captures the output of a logger. It is safe for concurrent use.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// configOf returns the configuration of an entry that logs to said.
func configOf(logged *record) Config {
	return Config{Client: testClient, Timeout: time.Second, Logger: slog.New(slog.NewTextHandler(logged, nil))}
}

// inBubble runs f on virtual time, with an in-memory server and an entry on it.
func inBubble(t *testing.T, f func(t *testing.T, m *redistest.Mini, wire *redistest.Proxy, e *Entry, logged *record)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		var logged record
		e := New(m.Client(t, redistest.Via(wire), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }), configOf(&logged))
		f(t, m, wire, e, &logged)
		e.End()
		if err := e.Wait(context.Background()); err != nil {
			t.Error(err)
		}
		if keys := m.Keys(); len(keys) > 0 {
			t.Errorf("left in Redis: %q", keys)
		}
	})
}

func read(t *testing.T, rdb rueidis.Client, ids ...string) map[string]lock.Client {
	t.Helper()
	clients, err := Read(t.Context(), rdb, ids)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

// A client that is not connected yet when it uses its first lock repeats the first write a second later, and then after
// pauses that double up to the interval.
func TestEntry_notConnectedYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		const connects = 30 * time.Second
		c, began, attempts := configOf(&record{}), time.Now(), []time.Duration{}
		c.Share = func(context.Context, string, func(rueidis.DedicatedClient) error) (bool, error) {
			attempts = append(attempts, time.Since(began))
			if time.Since(began) < connects {
				return true, net.ErrClosed
			}
			return false, nil
		}
		e := New(m.Client(t), c)
		e.Begin()
		time.Sleep(connects)
		synctest.Wait()
		rdb := m.Client(t)
		if got := read(t, rdb, id); len(got) > 0 {
			t.Errorf("before it is connected: %+v", got)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if want := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second, 15 * time.Second, 25 * time.Second, 35 * time.Second}; !slices.Equal(attempts, want) {
			t.Errorf("attempts after %v, want %v", attempts, want)
		}
		if got := read(t, rdb, id)[id]; got != testClient {
			t.Errorf("%+v, want %+v", got, testClient)
		}
		e.End()
		if err := e.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The entry has the fields of its Config, and expires a minute after its last update. If it is lost, the client writes
// it again.
func TestEntry(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.Mini, wire *redistest.Proxy, e *Entry, logged *record) {
		rdb := m.Client(t)
		time.Sleep(time.Hour)
		if keys := m.Keys(); len(keys) > 0 {
			t.Errorf("before Begin: %q", keys)
		}
		e.Begin()
		e.Begin()
		synctest.Wait()
		if got := read(t, rdb, id)[id]; got != testClient {
			t.Errorf("%+v, want %+v", got, testClient)
		}
		if ttl := m.TTL(keys.Client(id)); ttl != TTL {
			t.Errorf("got a TTL of %v, want %v", ttl, TTL)
		}
		var calls atomic.Int32
		wire.OnRequest(func(req [][]byte) redistest.Action {
			if strings.EqualFold(string(req[0]), "EVALSHA") {
				calls.Add(1)
			}
			return redistest.Action{}
		})
		time.Sleep(Interval - time.Millisecond)
		synctest.Wait()
		if calls.Load() != 0 {
			t.Errorf("%d calls in less than an interval", calls.Load())
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if ttl := m.TTL(keys.Client(id)); ttl != TTL || calls.Load() != 1 {
			t.Errorf("after an interval and %d calls the TTL is %v", calls.Load(), ttl)
		}
		m.FlushAll()
		time.Sleep(Interval)
		synctest.Wait()
		if got := read(t, rdb, id)[id]; got != testClient {
			t.Errorf("after a flush: %+v", got)
		}
		if logged.String() != "" {
			t.Errorf("the client logged %s", logged)
		}
	})
}

// An entry without Begin ends without a command. An entry that has ended does not begin.
func TestEntry_never(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.Mini, _ *redistest.Proxy, e *Entry, _ *record) {
		e.End()
		e.Begin()
		synctest.Wait()
		if n := m.CommandCount(); n > 3 { // those of the connection
			t.Errorf("%d commands", n)
		}
	})
}

// The entry of a client that dies expires after a minute.
func TestEntry_dies(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.Mini, wire *redistest.Proxy, e *Entry, _ *record) {
		rdb := m.Client(t)
		e.Begin()
		synctest.Wait()
		wire.Refuse(true)
		wire.CutAll()
		time.Sleep(TTL - time.Millisecond)
		if len(read(t, rdb, id)) != 1 {
			t.Error("the entry of a dead client expired too early")
		}
		time.Sleep(time.Millisecond)
		if len(read(t, rdb, id)) != 0 {
			t.Error("the entry of a dead client did not expire")
		}
		wire.Refuse(false)
	})
}

// If a server is unavailable for the TTL of an entry, the client logs one warning. When the server recovers, the client
// writes the entry again.
func TestEntry_unavailable(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.Mini, wire *redistest.Proxy, e *Entry, logged *record) {
		rdb := m.Client(t)
		e.Begin()
		synctest.Wait()
		wire.Refuse(true)
		wire.CutAll()
		time.Sleep(TTL)
		synctest.Wait()
		if logged.String() != "" {
			t.Errorf("within %v the client logged %s", TTL, logged)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := strings.Count(logged.String(), "registry entry not updated"); n != 1 {
			t.Errorf("the client logged %d times: %s", n, logged)
		}
		wire.Refuse(false)
		time.Sleep(2 * Interval)
		synctest.Wait()
		if len(read(t, rdb, id)) != 1 {
			t.Error("the entry was not written again")
		}
	})
}

// If the server does not respond, Wait takes at most as long as two commands, and returns when its context is canceled.
func TestEntry_waitWithoutAReply(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.Mini, wire *redistest.Proxy, e *Entry, _ *record) {
		e.Begin()
		synctest.Wait()
		wire.Freeze(true)
		e.End()
		start := time.Now()
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := e.Wait(short); err == nil || time.Since(start) != time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if err := e.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("Wait took %v", took)
		}
		wire.Freeze(false)
		m.FlushAll()
	})
}

// If the server denies the command, the client logs that once and does not retry.
func TestEntry_denied(t *testing.T) {
	t.Parallel()
	for name, permissions := range map[string]string{
		"key":     "~other:* +@all",
		"hset":    "~* +@all -hset",
		"expire":  "~* +@all -pexpire",
		"script":  "~* +@all -evalsha -eval",
		"hexists": "~* +@all -hexists",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			as := s.AddUser(t, "locks", strings.Fields(permissions)...)
			var logged record
			e := New(s.Client(t, as), configOf(&logged))
			e.Begin()
			<-e.done
			if n := strings.Count(logged.String(), "\n"); n != 1 || !strings.Contains(logged.String(), "registry entry denied") || strings.Contains(logged.String(), id) {
				t.Errorf("the client logged %s", &logged)
			}
			e.End()
			if err := e.Wait(t.Context()); err != nil {
				t.Error(err)
			}
			reply := s.Do(t, "KEYS", "*")
			if left, err := reply.AsStrSlice(); err != nil || len(left) > 0 {
				t.Errorf("left: %q, %v", left, err)
			}
		})
	}
}

// The updates of an entry follow the table of error replies. After a transient error, or one that leaves the outcome
// unknown, the entry is written an interval later, or a second later if it never was, and nothing is logged. After any
// other error, the client logs that once and does not retry.
func TestEntry_replies(t *testing.T) {
	t.Parallel()
	for _, row := range slices.Concat(retry.Replies, retry.ProxyReplies) {
		for _, when := range []string{"first", "later"} {
			t.Run(row.Match+"/"+when, func(t *testing.T) {
				inBubble(t, func(t *testing.T, m *redistest.Mini, wire *redistest.Proxy, e *Entry, logged *record) {
					if when == "later" {
						e.Begin()
						synctest.Wait()
					}
					var refused atomic.Int32
					wire.OnRequest(func(req [][]byte) redistest.Action {
						if part := string(req[0]); part != "EVALSHA" && part != "EVAL" {
							return redistest.Action{}
						}
						refused.Add(1)
						return redistest.Action{Refuse: row.Reply}
					})
					e.Begin()
					time.Sleep(2*Interval + time.Millisecond)
					synctest.Wait()
					n := refused.Load()
					wire.OnRequest(nil)
					time.Sleep(Interval)
					synctest.Wait()
					switch ttl := m.TTL(keys.Client(id)); {
					case row.Temporary || row.MayHaveRun():
						if n < 2 || ttl <= TTL-Interval || logged.String() != "" {
							t.Errorf("%d writes were rejected, the TTL is %v, and the client logs %q", n, ttl, logged)
						}
					case n != 1 || ttl > TTL-2*Interval || strings.Count(logged.String(), "registry entry denied") != 1:
						t.Errorf("%d writes were rejected, the TTL is %v, and the client logs %q", n, ttl, logged)
					}
					m.FlushAll()
				})
			})
		}
	}
}

// A key of the wrong type is not changed, and Read returns no client for it.
func TestEntry_wrongType(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	s.Do(t, "SET", keys.Client(id), "theirs")
	s.Do(t, "HSET", keys.Client("other"), "host", strings.Repeat("x", 10000), "pid", "many", "started", "long ago")
	config := configOf(new(record))
	config.Timeout = time.Minute
	e := New(rdb, config)
	if err := e.keep(); !refused(err) {
		t.Errorf("%v", err)
	}
	clients, err := Read(t.Context(), rdb, []string{id, "other", "nobody"})
	if other := clients["other"]; err == nil || len(clients) != 1 || len(other.Host) != MostText || other.PID != 0 || !other.Started.IsZero() {
		t.Errorf("%+v", clients)
	}
	reply := s.Do(t, "GET", keys.Client(id))
	if text, err := reply.ToString(); text != "theirs" {
		t.Errorf("%q, %v", text, err)
	}
	ttl := s.Do(t, "PTTL", keys.Client(id))
	if n, err := ttl.ToInt64(); n != -1 {
		t.Errorf("the TTL of the other key is %d ms, %v", n, err)
	}
}

// Read reads a limited number of entries, and fails if the server denies it.
func TestRead(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	var ids []string
	for i := range MostRead + 10 {
		ids = append(ids, fmt.Sprint("client", i))
		s.Do(t, "HSET", keys.Client(ids[i]), "host", "h", "pid", fmt.Sprint(i))
	}
	clients := read(t, rdb, ids...)
	if len(clients) != MostRead || clients["client7"].PID != 7 {
		t.Errorf("%d entries, client7 is %+v", len(clients), clients["client7"])
	}
	if clients := read(t, rdb); len(clients) != 0 {
		t.Errorf("without ids: %+v", clients)
	}
	as := s.AddUser(t, "stranger", "~orders:*", "+@all")
	if clients, err := Read(t.Context(), s.Client(t, as), ids); err == nil {
		t.Errorf("without the permission: %d entries", len(clients))
	}
}

func TestName(t *testing.T) {
	const other = "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b"
	s := lock.State{
		Holders: []lock.Holder{{Owner: id + ":1"}, {Owner: id + ":2"}},
		Waiters: []lock.Waiter{{Owner: other + ":84"}, {Owner: "nonsense"}},
	}
	ids := Name(&s, map[string]lock.Client{id: testClient})
	if fmt.Sprint(ids) != fmt.Sprint([]string{id, other}) {
		t.Errorf("%q", ids)
	}
	if s.Holders[0].Client != testClient || s.Holders[1].Client != testClient || s.Waiters[0].Client != (lock.Client{ID: other}) || s.Waiters[1].Client != (lock.Client{}) {
		t.Errorf("%+v", s)
	}
}

func TestSelf(t *testing.T) {
	c := Self(id, "", "")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	// the tests of a module have no version
	if c.ID != id || c.Host != host || c.PID == 0 || c.Name != filepath.Base(os.Args[0]) || c.Version != "(devel)" || time.Since(c.Started) > time.Minute {
		t.Errorf("%+v", c)
	}
	if c := Self(id, "billing", "zone=a"); c.Name != "billing" || c.Label != "zone=a" {
		t.Errorf("%+v", c)
	}
}

// Long texts are truncated, but not within a character, so that no application fills Redis with them.
func TestBounded(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "",
		"host-7":                       "host-7",
		strings.Repeat("x", MostText):  strings.Repeat("x", MostText),
		strings.Repeat("x", 10000):     strings.Repeat("x", MostText),
		"x" + strings.Repeat("é", 200): "x" + strings.Repeat("é", (MostText-2)/2),
		"a\xffb":                       "ab",
	} {
		if got := bounded(text); got != want {
			t.Errorf("%q is cut to %q", text, got)
		}
	}
	long := strings.Repeat("x", 10000)
	reported := New(nil, Config{Client: lock.Client{ID: id, Host: long, Name: long, Label: long, Version: long}}).told
	for _, text := range []string{reported.Host, reported.Name, reported.Label, reported.Version} {
		if len(text) != MostText {
			t.Errorf("an entry has a text of %d bytes", len(text))
		}
	}
}

// Redis does not respond when a client ends during an update of its entry. Wait returns when its context is canceled.
func TestEntry_endsDuringAnUpdate(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.Mini, wire *redistest.Proxy, e *Entry, _ *record) {
		e.Begin()
		time.Sleep(Interval - time.Millisecond)
		wire.Freeze(true)
		time.Sleep(2 * time.Millisecond) // the update is in flight
		e.End()
		start := time.Now()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := e.Wait(short); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		wire.Freeze(false)
		synctest.Wait()
		m.FlushAll()
	})
}

// A client whose entry was written ends. The entry is deleted before Wait returns.
func TestEntry_ends(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.Mini, wire *redistest.Proxy, e *Entry, _ *record) {
		e.Begin()
		synctest.Wait()
		if !m.Exists(keys.Client(id)) {
			t.Fatal("there is no entry, so the test shows nothing")
		}
		var calls atomic.Int32
		wire.OnRequest(func(req [][]byte) redistest.Action {
			if part := string(req[0]); part != "PING" { // sent by rueidis
				calls.Add(1)
			}
			return redistest.Action{}
		})
		e.End()
		if err := e.Wait(t.Context()); err != nil || m.Exists(keys.Client(id)) {
			t.Errorf("%v, the entry is there: %v", err, m.Exists(keys.Client(id)))
		}
		e.End()
		e.Begin()
		time.Sleep(10 * Interval)
		if n := calls.Load(); n != 1 {
			t.Errorf("%d commands, want that one which deletes the entry", n)
		}
	})
}

// A client that never used a lock has no entry, and Wait returns immediately.
func TestEntry_neverUsed(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *redistest.Mini, _ *redistest.Proxy, e *Entry, _ *record) {
		e.End()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		if err := e.Wait(ctx); err != nil || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		e.Begin()
	})
}

// The server is repeatedly unavailable for less than the TTL of an entry. Nothing is logged.
func TestEntry_shortOutages(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *redistest.Mini, wire *redistest.Proxy, e *Entry, logged *record) {
		e.Begin()
		for range 5 {
			time.Sleep(2 * Interval)
			wire.Refuse(true)
			wire.CutAll()
			time.Sleep(TTL / 2)
			wire.Refuse(false)
		}
		time.Sleep(2 * Interval)
		if logged.String() != "" {
			t.Errorf("the client logged %s", logged)
		}
	})
}

// A server without the command repeats its arguments in the error. The log has the reason, but not the arguments.
func TestEntry_unknownCommand(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--rename-command", "EVALSHA", "")
	var logged record
	config := configOf(&logged)
	config.Timeout = time.Minute
	e := New(s.Client(t), config)
	e.Begin()
	if err := e.Wait(t.Context()); err != nil { // it ends without a retry
		t.Error(err)
	}
	if err := e.keep(); err == nil || !strings.Contains(err.Error(), id) {
		t.Errorf("the server replied %v, so the test shows nothing", err)
	}
	if text := logged.String(); !strings.Contains(text, "EVALSHA") || strings.Contains(text, id) {
		t.Errorf("the client logged %s", text)
	}
}

// A client without a logger uses the default logger, which may be set late.
func TestLogger(t *testing.T) {
	if e := New(nil, Config{}); e.logger() != slog.Default() {
		t.Error("got a different logger, want the default")
	}
	own := slog.New(slog.NewTextHandler(io.Discard, nil))
	if e := New(nil, Config{Logger: own}); e.logger() != own {
		t.Error("got a different logger, want the client's")
	}
}

// A row of failures is logged once, after it has lasted for the TTL of an entry. So is the next row.
func TestFailing(t *testing.T) {
	var f failing
	start := time.Now()
	for _, c := range []struct {
		after time.Duration
		fails bool
		said  bool
	}{
		{0, false, false},
		{1 * time.Second, true, false},
		{TTL, true, false},
		{TTL + time.Second - 1, true, false},
		{TTL + time.Second, true, true},
		{TTL + 2*time.Second, true, false},
		{3 * TTL, true, false},
		{4 * TTL, false, false}, // the row ends
		{5 * TTL, true, false},
		{6*TTL - 1, true, false},
		{6 * TTL, true, true},
		{8 * TTL, true, false},
	} {
		var err error
		if c.fails {
			err = io.EOF
		}
		if logged := f.said(start.Add(c.after), err); logged != c.said {
			t.Errorf("after %v, %v: %v", c.after, err, logged)
		}
	}
}

// Only a permanent error ends the updates.
func TestRefused(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	for text, want := range map[string]bool{
		"LOADING Redis is loading": false, "READONLY You can't write": false, "OOM command not allowed": false, "MISCONF Redis is configured": false,
		"NOPERM this user has no": true, "NOAUTH Authentication required": true, "WRONGTYPE Operation against": true, "ERR unknown command 'EVALSHA'": true, "ERR something": false,
	} {
		err := rdb.Do(t.Context(), rdb.B().Eval().Script("return redis.error_reply(ARGV[1])").Numkeys(0).Arg(text).Build()).Error()
		if err == nil || refused(err) != want {
			t.Errorf("%v: %v", err, !want)
		}
	}
	for _, err := range []error{nil, io.EOF, context.DeadlineExceeded} {
		if refused(err) {
			t.Errorf("%v: the server did not say that", err)
		}
	}
}

// A reply with fewer fields than requested is decoded as far as possible.
func TestParse_short(t *testing.T) {
	if c := parse(id, nil); c != (lock.Client{ID: id}) {
		t.Errorf("%+v", c)
	}
}

// A start time that JSON cannot represent is omitted, because it would fail the whole list.
func TestParse_startedInNoYear(t *testing.T) {
	s := redistest.Start(t)
	for _, text := range []string{"9999-12-31T23:59:59-12:00", "0000-01-01T00:00:00+12:00", "0000-06-01T00:00:00Z"} {
		s.Do(t, "HSET", keys.Client(id), "started", text, "host", "host-7")
		if all, err := Read(t.Context(), s.Client(t), []string{id}); err != nil || all[id].Host != "host-7" || !all[id].Started.IsZero() {
			t.Errorf("%s: %+v, %v", text, all, err)
		}
	}
}

// The entry is written with a connection that the client shares, if there is one. It is removed on the connection of the
// locks.
func TestEntry_shares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		var dials atomic.Int32 // of the client's own
		shared, own := m.Client(t), m.Client(t, func(o *rueidis.ClientOption) {
			o.DialCtxFn = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
				dials.Add(1)
				return m.Dial()
			}
		})
		c := configOf(new(record))
		var mu sync.Mutex // guards the following variables
		sharing, calls := true, 0
		c.Share = func(_ context.Context, key string, f func(rueidis.DedicatedClient) error) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			if calls++; key != keys.Client(id) {
				t.Errorf("for %s", key)
			}
			if !sharing {
				return false, nil
			}
			return true, shared.Dedicated(f)
		}
		e := New(own, c)
		before := dials.Load()
		e.Begin()
		time.Sleep(3*Interval + time.Millisecond)
		synctest.Wait()
		if n := dials.Load() - before; calls != 4 || n != 0 {
			t.Errorf("%d calls, %d connections of its own", calls, n)
		}
		mu.Lock()
		sharing = false
		mu.Unlock()
		time.Sleep(Interval)
		synctest.Wait()
		if n := dials.Load() - before; calls != 5 || n == 0 {
			t.Errorf("%d calls, %d connections of its own", calls, n)
		}
		m.FlushAll()
		time.Sleep(Interval)
		e.End()
		if err := e.Wait(t.Context()); err != nil || len(m.Keys()) != 0 || calls != 6 {
			t.Errorf("%v, %d calls, left %q", err, calls, m.Keys())
		}
	})
}

// While the slot of the entry is migrated, its node replies ASK, and then MOVED. The entry is written on the connection of the
// locks, where rueidis follows.
func TestEntry_redirected(t *testing.T) {
	for _, reply := range []string{"ASK 3999 127.0.0.1:6381", "MOVED 3999 127.0.0.1:6381"} {
		inBubble(t, func(t *testing.T, m *redistest.Mini, _ *redistest.Proxy, e *Entry, logged *record) {
			wire := m.Proxy(t)
			shared := m.Client(t, redistest.Via(wire))
			e.config.Share = func(_ context.Context, _ string, f func(rueidis.DedicatedClient) error) (bool, error) {
				return true, shared.Dedicated(f)
			}
			redirects := func(req [][]byte) (act redistest.Action) {
				if strings.HasPrefix(string(req[0]), "EVAL") {
					act.Refuse = reply
				}
				return act
			}
			wire.OnRequest(redirects)
			e.Begin()
			time.Sleep(2*TTL + time.Millisecond)
			synctest.Wait()
			if ttl := m.TTL(keys.Client(id)); ttl != TTL-time.Millisecond || logged.String() != "" {
				t.Errorf("%s: the TTL is %v, and the client logs %q", reply, ttl, logged)
			}
		})
	}
}
