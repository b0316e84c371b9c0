//go:build linux

package integration_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// A hostile client has a user on the same server. It publishes arbitrary messages to every channel that leasehold
// clients are subscribed to: forged grants, forged requests, protocol words, and lines of a megabyte. No message grants
// a lock, or makes a client spin, grow or panic.
//
// The waiting processes detect violations: a forged message that granted them a lock would end their call, and a panic
// would end the process.
func TestNeighbour(t *testing.T) {
	took := time.Duration(figure(10)) * time.Second
	for _, flood := range []struct {
		name      string
		perSecond int
		messages  []string // the default is all sorts of forgeries
	}{
		{"forged messages", 50_000, nil},
		{"hints", 50_000, []string{"0"}},
		{"huge lines", 50, []string{strings.Repeat("0123456789abcdef", 1<<16)}},
	} {
		t.Run(flood.name, func(t *testing.T) {
			server := redistest.Start(t)
			holder, waiter := startWorker(t), startWorker(t)
			for _, w := range []*worker{holder, waiter} {
				w.do(t, request{Do: "open", Addr: server.Addr()})
			}
			kinds := []kind{plain, fair, read, write}
			held, answers := map[kind]granted{}, map[kind]<-chan reply{}
			for _, k := range kinds {
				with := k
				if k == read {
					with = write // a reader waits only for a writer
				}
				held[k] = value[granted](t, holder.do(t, request{Do: "lock", Kind: with, Name: "held by " + string(k), Wait: promptTimeout}))
				answers[k] = waiter.send(t, request{Do: "lock", Kind: k, Name: "held by " + string(k), Wait: 10 * time.Minute})
			}
			channels, forged := listened(t, server, len(kinds)), forgeries(t, server)
			if flood.messages != nil {
				forged = flood.messages
			}

			queries, before := server.CommandCalls(t, "evalsha"), usageOf(t, waiter.cmd.Process.Pid)
			sent := publish(t, server, channels, forged, flood.perSecond, took)
			after := usageOf(t, waiter.cmd.Process.Pid)
			queries = server.CommandCalls(t, "evalsha") - queries
			for k, answer := range answers {
				select {
				case r, ok := <-answer:
					t.Fatalf("%s: the wait for a lock that another process holds ended: %+v, %v", k, r, ok)
				default:
				}
			}
			t.Logf("figure: %s: %d messages in %v to %d channels of a process that waits for %d locks: it used %.0f %% of a processor, sent %.0f requests per second, and its memory grew from %d to %d MB, with a maximum of %d MB",
				flood.name, sent, took, len(channels), len(kinds), 100*(after.cpu-before.cpu).Seconds()/took.Seconds(), float64(queries)/took.Seconds(), before.rss>>20, after.rss>>20, after.peak>>20)
			if polls := int64(took.Seconds()+1) * 2 * int64(len(kinds)); queries > int64(sent)+polls {
				t.Errorf("%d requests after %d messages, want at most one for each", queries, sent)
			}
			if grown := after.rss - before.rss; grown > 128<<20 {
				t.Errorf("the process grew by %d MB", grown>>20)
			}

			// After the flood it has no lasting effect: the locks are handed off as before.
			for _, k := range kinds {
				holder.do(t, request{Do: "unlock", Hold: held[k].Hold})
				got := value[granted](t, must(t, receive(t, answers[k])))
				waiter.do(t, request{Do: "unlock", Hold: got.Hold})
			}
			holder.do(t, request{Do: "close"})
			waiter.do(t, request{Do: "close"})
			noKeys(t, server)
		})
	}
}

// A client with write access to the keys can keep a lock for itself, as docs/operate/security.md says. But whatever it
// writes into the queue of a plain lock grants no one the lock while it is held, and once it is free a waiter acquires
// it.
func TestNeighbour_line(t *testing.T) {
	server := redistest.Start(t)
	holder, waiter := ours(t, server.Client(t)), ours(t, server.Client(t))
	forged := "0 0|"
	for i := range 5 { // unknown processes that claim to be alive indefinitely: each keeps the lock for as long as its offer
		forged += fmt.Sprintf("00000000-0000-7000-8000-%012d:1 200 1 1 99999999999999;", i)
	}
	for what, line := range map[string]string{
		"nothing":                "",
		"no line":                "aside",
		"no entries":             "0 0|",
		"no end":                 "0 0|" + strings.Repeat(";", 30_000),
		"no numbers":             "0 0|a b c d e;",
		"more than can be":       strings.Repeat("9", 400) + " " + strings.Repeat("9", 400) + "|",
		"longer than can be":     "0 0|" + strings.Repeat("00000000-0000-7000-8000-000000000000:1 200 0 0 0;", 20_000),
		"bytes":                  "0 0|\x00\xff\r\n$-1\r\n",
		"processes that are not": forged,
		"a pattern":              "0 0|%d+ [^;]*%1;",
	} {
		h, err := holder.NewLock("a").Lock(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), promptTimeout)
		start, got := make(chan struct{}), make(chan handedOff, 1)
		go func() {
			close(start)
			h, err := waiter.NewLock("a").Lock(ctx)
			got <- handedOff{h, err, time.Now()}
		}()
		<-start
		until(t, func() bool {
			field := server.Do(t, "HGET", "a", "leasehold_line")
			return !field.IsNil()
		})
		server.Do(t, "HSET", "a", "leasehold_line", line)
		server.Do(t, "PUBLISH", "redisson_lock__channel:{a}", "0") // make the waiter send a request, and find that queue
		select {
		case p := <-got:
			t.Fatalf("%s: the waiter was admitted while the lock is held: %v", what, p.err)
		case <-time.After(20 * time.Millisecond):
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Errorf("%s: Unlock: %v", what, err)
		}
		p := <-got
		if p.err != nil {
			t.Fatalf("%s: Lock of the waiter: %v", what, p.err)
		}
		if err := p.hold.Unlock(t.Context()); err != nil {
			t.Errorf("%s: Unlock of the waiter: %v", what, err)
		}
		cancel()
		until(t, func() bool { return len(server.LockKeys(t)) == 0 })
	}
}

// listened returns the channels that have subscribers, once no new ones have appeared for a while.
func listened(t *testing.T, server *redistest.Server, atLeast int) (channels []string) {
	t.Helper()
	since := time.Now()
	until(t, func() bool {
		reply := server.Do(t, "PUBSUB", "CHANNELS")
		now, err := reply.AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		if len(now) != len(channels) {
			channels, since = now, time.Now()
		}
		return len(channels) >= atLeast && time.Since(since) > 500*time.Millisecond
	})
	return channels
}

// forgeries returns messages that look like leasehold's and like Redisson's, with the owners that are in Redis.
func forgeries(t *testing.T, server *redistest.Server) []string {
	t.Helper()
	all := []string{"", "0", "1", "-1", "0:1", "aside", "taken", "99999999999999999999", "nil", "{}", "\x00\xff\r\n*1\r\n", strings.Repeat("9", 500)}
	for _, key := range server.LockKeys(t) {
		is := server.Do(t, "TYPE", key)
		if what, _ := is.ToString(); what != "hash" {
			continue
		}
		reply := server.Do(t, "HKEYS", key)
		fields, err := reply.AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fields {
			id, number, _ := strings.Cut(f, ":")
			all = append(all, f, id, number, f+":"+f, "granted "+f, f+":1:30000")
		}
	}
	return all
}

// publish sends this many messages per second for a while, on a separate connection, and returns how many it sent.
func publish(t *testing.T, server *redistest.Server, channels, messages []string, perSecond int, took time.Duration) (sent int) {
	t.Helper()
	conn, err := net.Dial("tcp", server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ended := make(chan error, 1)
	go func() { // the replies
		_, err := io.Copy(io.Discard, conn)
		ended <- err
	}()
	const step = 200 * time.Microsecond // notifications that arrive together trigger one request
	random := rand.New(rand.NewPCG(seed(t), 2))
	out := bufio.NewWriter(conn)
	ctx, cancel := context.WithTimeout(t.Context(), took)
	defer cancel()
	start := time.Now()
	for tick := time.NewTicker(step); ctx.Err() == nil; {
		due := int(time.Since(start).Seconds() * float64(perSecond))
		for ; sent < due; sent++ {
			channel, message := channels[random.IntN(len(channels))], messages[random.IntN(len(messages))]
			fmt.Fprintf(out, "*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(channel), channel, len(message), message)
		}
		if err := out.Flush(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-tick.C:
		case err := <-ended:
			t.Fatalf("the server hung up: %v", err)
		case <-ctx.Done():
			tick.Stop()
		}
	}
	return sent
}

// usage is the resource usage of a process.
type usage struct {
	cpu       time.Duration
	rss, peak int64
}

func usageOf(t *testing.T, pid int) (u usage) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	status, err2 := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for _, f := range fields[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		u.cpu += time.Duration(n) * 10 * time.Millisecond
	}
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		for name, to := range map[string]*int64{"VmRSS:": &u.rss, "VmHWM:": &u.peak} {
			if f[0] == name {
				n, err := strconv.ParseInt(f[1], 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				*to = n << 10
			}
		}
	}
	return u
}
