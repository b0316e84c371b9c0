//go:build linux

package integration_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// throughClock returns the address of a proxy to addr. To the clients behind it, and to the server, it looks as if the
// clients' clock were ahead of the server's: each number that could be a current time in ms is shifted on its way to
// the server, and back on its way to the client.
func throughClock(t *testing.T, addr string, ahead time.Duration) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		l.Close()
		wg.Wait()
	})
	pass := func(from, to net.Conn, by time.Duration) {
		defer from.Close()
		defer to.Close()
		for r := bufio.NewReader(from); ; {
			// Line by line: everything in the protocol ends with a line break. Lines inside binary strings pass
			// unchanged.
			line, err := r.ReadBytes('\n')
			if err != nil {
				return
			}
			if _, err := to.Write(moved(line, by)); err != nil {
				return
			}
		}
	}
	wg.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", addr)
			if err != nil {
				from.Close()
				continue
			}
			stop := context.AfterFunc(ctx, func() {
				from.Close()
				to.Close()
			})
			wg.Go(func() { defer stop(); pass(from, to, ahead) })
			wg.Go(func() { pass(to, from, -ahead) })
		}
	})
	return l.Addr().String()
}

// moved returns a line of the protocol, shifted by the given duration if it is a time.
func moved(line []byte, by time.Duration) []byte {
	number, ok := bytes.CutSuffix(line, []byte("\r\n"))
	sign := []byte(nil)
	if rest, integer := bytes.CutPrefix(number, []byte(":")); integer {
		sign, number = []byte(":"), rest
	}
	if !ok || len(number) != 13 || number[0] != '1' {
		return line
	}
	at, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil {
		return line
	}
	return append(strconv.AppendInt(sign, at+by.Milliseconds(), 10), '\r', '\n')
}

func TestMoved(t *testing.T) {
	for line, want := range map[string]string{
		"1795377142103\r\n": "1795377144103\r\n", ":1795377142103\r\n": ":1795377144103\r\n", "$13\r\n": "$13\r\n", ":1\r\n": ":1\r\n",
		"922337203685477\r\n": "922337203685477\r\n", "1795377142103": "1795377142103", "gpus\r\n": "gpus\r\n", "179537714210x\r\n": "179537714210x\r\n", "\n": "\n",
	} {
		if got := string(moved([]byte(line), 2*time.Second)); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// Permits stay held if the clock of a Java client is wrong within a bound: while it is ahead by less than our lease
// minus the renewal interval, Java cannot acquire permits that we hold.
func TestJavaSemaphore_clocks(t *testing.T) {
	t.Parallel()
	const lease = 6 * time.Second // renewed every two seconds, so at least four remain
	wrong := func(t *testing.T, ahead time.Duration) (*javaScene, javaPermits) {
		t.Helper()
		s := newJavaSceneWith(t, oneServer(t), lease)
		o := javaOptions{Watchdog: lease.Milliseconds(), Addresses: []string{throughClock(t, s.addr(), ahead)}}
		return s, javaPermits{s.java.java.open(t, o), "gpus"}
	}
	t.Run("ahead, in the bound", func(t *testing.T) {
		t.Parallel()
		s, java := wrong(t, 2*time.Second)
		h, err := s.c.NewSemaphore("gpus", 1).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := java.acquires(t, lease+lease/2, time.Hour, 1); len(got) > 0 || h.Err() != nil {
			t.Errorf("Java got %q, and our hold is %v", got, h.Err())
		}
		s.unlock(h)
		java.stands(t, 1, 0, 1)
	})
	t.Run("ahead, out of the bound", func(t *testing.T) {
		t.Parallel()
		s, java := wrong(t, lease+time.Second)
		h, err := s.c.NewSemaphore("gpus", 1).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := java.acquires(t, 0, time.Hour, 1); len(got) != 1 {
			t.Fatalf("Java, by whose clock our lease has expired, got %q: then the test is wrong", got)
		}
		until := h.Until()
		<-h.Context().Done() // at the next renewal
		if !errors.Is(h.Err(), lock.ErrLost) || time.Now().After(until.Add(lease/3)) {
			t.Errorf("notified %v after the end of the lease: %v", time.Since(until), h.Err())
		}
	})
	t.Run("behind", func(t *testing.T) {
		t.Parallel()
		const behind = 2 * time.Second
		s, java := wrong(t, -behind)
		if !asks[bool](t, java.redisson, java.request("trySetPermits", 0, 0, 1)) {
			t.Fatal("Java could not make the semaphore")
		}
		got := java.acquires(t, 0, 5*time.Second, 1)
		if len(got) != 1 {
			t.Fatal("Java could not acquire the permit")
		}
		id, err := hex.DecodeString(got[0])
		if err != nil {
			t.Fatal(err)
		}
		// The part of Java's lease that is missing by the server's clock.
		text, err := s.rdb.Do(t.Context(), s.rdb.B().Arbitrary("EVAL", "local t = redis.call('TIME') return redis.call('ZSCORE', KEYS[1], ARGV[1]) - t[1] * 1000", "1", "{gpus}:timeout", string(id)).Build()).ToInt64()
		if left := time.Duration(text) * time.Millisecond; err != nil || left > 5*time.Second-behind+time.Second {
			t.Errorf("%v are left of a lease of 5s, %v", left, err)
		}
		h, err := s.c.NewSemaphore("gpus", 1).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if java.releases(t, got[0]) {
			t.Error("Java released a permit of leasehold")
		}
		if n := len(luascripts.Permits(h.Owner())); n != 1 || h.Err() != nil {
			t.Errorf("%d permits, %v", n, h.Err())
		}
		s.unlock(h)
		java.stands(t, 1, 0, 1)
	})
}
