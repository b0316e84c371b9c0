package registry

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// Texts that are too long are cut, and not in the middle of a letter. So no application fills Redis with them.
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
	told := New(nil, Config{Client: lock.Client{ID: id, Host: long, Name: long, Label: long, Version: long}}).told
	for _, text := range []string{told.Host, told.Name, told.Label, told.Version} {
		if len(text) != MostText {
			t.Errorf("an entry has a text of %d bytes", len(text))
		}
	}
}

// Redis does not answer when a client ends while it keeps its entry. Wait, whose context has ended, waits for the time of two commands:
// of the one under way, and of the one that deletes the entry.
func TestEntry_endsWhileItKeeps(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.Mini, wire *redistest.Proxy, e *Entry, _ *record) {
		e.Begin()
		time.Sleep(Interval - time.Millisecond)
		wire.Freeze(true)
		time.Sleep(2 * time.Millisecond) // it keeps the entry now
		e.End()
		began := time.Now()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := e.Wait(ended); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		wire.Freeze(false)
		synctest.Wait()
		m.FlushAll()
	})
}

// A client whose entry was written ends, and the entry goes before the client says that it has ended.
func TestEntry_ends(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.Mini, wire *redistest.Proxy, e *Entry, _ *record) {
		e.Begin()
		synctest.Wait()
		if !m.Exists(keys.Client(id)) {
			t.Fatal("there is no entry, so nothing is proved")
		}
		var calls atomic.Int32
		wire.OnRequest(func(req [][]byte) redistest.Action {
			if word := string(req[0]); word != "PING" { // the client library's own
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

// A client that never used a lock has no entry, and nobody waits for its end.
func TestEntry_neverUsed(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *redistest.Mini, _ *redistest.Proxy, e *Entry, _ *record) {
		e.End()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		if err := e.Wait(ctx); err != nil || time.Since(began) != 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		e.Begin()
	})
}

// The server is away for less than the life of an entry, again and again. Nobody needs to know.
func TestEntry_awayAgainAndAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *redistest.Mini, wire *redistest.Proxy, e *Entry, said *record) {
		e.Begin()
		for range 5 {
			time.Sleep(2 * Interval)
			wire.Refuse(true)
			wire.CutAll()
			time.Sleep(TTL / 2)
			wire.Refuse(false)
		}
		time.Sleep(2 * Interval)
		if said.String() != "" {
			t.Errorf("the client logs %s", said)
		}
	})
}

// A server that does not know the command repeats its arguments. The log says why there is no entry, and has none of them.
func TestEntry_unknownCommand(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--rename-command", "EVALSHA", "")
	var said record
	e := New(s.Client(t), configOf(&said))
	e.Begin()
	if err := e.Wait(t.Context()); err != nil { // it ends by itself
		t.Error(err)
	}
	if err := e.keep(); err == nil || !strings.Contains(err.Error(), id) {
		t.Errorf("the server says %v, so nothing is proved", err)
	}
	if text := said.String(); !strings.Contains(text, "EVALSHA") || strings.Contains(text, id) {
		t.Errorf("the client logs %s", text)
	}
}

// A client without a logger has the default one, which may be set late.
func TestLogger(t *testing.T) {
	if e := New(nil, Config{}); e.logger() != slog.Default() {
		t.Error("it is not the default")
	}
	own := slog.New(slog.NewTextHandler(io.Discard, nil))
	if e := New(nil, Config{Logger: own}); e.logger() != own {
		t.Error("it is not the client's own")
	}
}

// A row of failures is told once, when it has lasted for the life of an entry, and the next row again.
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
		if said := f.said(start.Add(c.after), err); said != c.said {
			t.Errorf("after %v, %v: %v", c.after, err, said)
		}
	}
}

// Only a server that replies that it never will is not asked again.
func TestRefused(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	for text, want := range map[string]bool{
		"LOADING Redis is loading": false, "READONLY You can't write": false, "OOM command not allowed": false, "MISCONF Redis is configured": false,
		"NOPERM this user has no": true, "NOAUTH Authentication required": true, "WRONGTYPE Operation against": true, "ERR something": true,
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

// An answer with fewer fields than were asked for names the client as well as it can.
func TestParse_short(t *testing.T) {
	if c := parse(id, nil); c != (lock.Client{ID: id}) {
		t.Errorf("%+v", c)
	}
}

// What a client reads from the message that its lock was taken.
func TestParseTaken(t *testing.T) {
	for message, want := range map[string]struct {
		number, by string
		ok         bool
	}{
		"taken 7 alice":                               {"7", "alice", true},
		"taken 7 Åse at the console":                  {"7", "Åse at the console", true},
		"taken 7 a\nb\x7f\u0080\u009fc\u00a0\u00ff d": {"7", "a b   c\u00a0\u00ff d", true},
		"taken 7 \x1b[2J":                             {"7", " [2J", true},
		"taken 7 ":                                    {"7", "somebody", true},
		"taken 7":                                     {"7", "somebody", true},
		"taken 7 " + strings.Repeat("x", 1000):        {"7", strings.Repeat("x", MostText), true},
		"taken  alice":                                {"", "alice", false},
		"taken":                                       {"", "", false},
		"took 7 alice":                                {"", "", false},
		"":                                            {"", "", false},
	} {
		if number, by, ok := ParseTaken(message); number != want.number || by != want.by || ok != want.ok {
			t.Errorf("%q: %q, %q, %v", message, number, by, ok)
		}
	}
	if _, message := Taken(id+":7", strings.Repeat("x", 1000)); message != "taken 7 "+strings.Repeat("x", MostText) {
		t.Errorf("the message has %d bytes", len(message))
	}
}
