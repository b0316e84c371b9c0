package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/internal/registry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// hearing returns a session that listens for forced unlocks. The wire is between it and the server.
func (w *world) hearing() *Session {
	c := testConfig()
	c.WatchForced = true
	return New(w.mini.Client(w, redistest.Via(w.wire), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }), c)
}

// gets has s take the lock as kind, and returns the hold when s listens.
func (w *world) hears(s *Session, kind *Kind) lock.Hold {
	w.Helper()
	h := w.take(s, kind, w.Context())
	time.Sleep(hearAfter + time.Millisecond)
	synctest.Wait()
	if n := w.mini.PubSubNumSub(keys.Client(s.id))[keys.Client(s.id)]; n != 1 {
		w.Fatalf("%d listen", n)
	}
	return h
}

// close closes sessions that a test made.
func (w *world) close(all ...*Session) {
	w.Helper()
	for _, s := range all {
		if err := s.Close(w.within(time.Minute)); err != nil {
			w.Errorf("Close: %v", err)
		}
	}
}

// A forced unlock tells the holder in another process at once, and who did it: long before its next renewal.
func TestForce_tellsTheHolder(t *testing.T) {
	inBubble(t, func(w *world) {
		holder, other := w.hearing(), w.hearing()
		h := w.hears(holder, plain)
		if done, err := other.Force(w.Context(), other.NewSpec(plain, "orders", nil), luascripts.ForceReentrant); err != nil || !done {
			w.Fatal(done, err)
		}
		synctest.Wait()
		if err := h.Err(); !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrForceUnlocked) || !errors.Is(err, lock.ErrGone) || !strings.Contains(err.Error(), "force-unlocked by ") || strings.Contains(err.Error(), "evicted") {
			w.Errorf("the holder is told %v", err)
		}
		w.close(holder, other)
	})
}

// A forced unlock by the process of the holder tells it by itself, and why.
func TestForce_tellsTheHolderHere(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		if done, err := w.a.Force(w.Context(), w.a.NewSpec(plain, "orders", nil), luascripts.ForceReentrant); err != nil || !done {
			w.Fatal(done, err)
		}
		if err := h.Err(); !errors.Is(err, lock.ErrForceUnlocked) {
			w.Errorf("the holder is told %v", err)
		}
	})
}

// A process that no message reaches waits for a lock, and takes it from its holder by force. Its waiter asks at once.
func TestForce_wakesWaiters(t *testing.T) {
	inBubble(t, func(w *world) {
		w.deafened()
		h := w.lock(w.b, w.Context())
		next := w.waiting(w.a, w.Context())
		time.Sleep(pollTime * 3 / 2)
		if done, err := w.a.Force(w.Context(), w.a.NewSpec(plain, "orders", nil), luascripts.ForceReentrant); err != nil || !done {
			w.Fatal(done, err)
		}
		w.unlock(w.next(next))
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) {
			w.Error(err)
		}
	})
}

// A forced unlock says so to each owner of another client, and to no one else: no other field of the lock is an owner. A session
// that does not listen itself tells no one, and does not look whom.
func TestForce_tellsOwners(t *testing.T) {
	inBubble(t, func(w *world) {
		quiet := w.a
		telling := w.hearing()
		for _, s := range []*Session{telling, quiet} {
			h := w.take(w.b, reading, w.Context())
			said, looked := new(atomic.Int64), new(atomic.Int64)
			w.wire.OnRequest(func(words [][]byte) redistest.Action {
				switch string(words[0]) {
				case "PUBLISH":
					said.Add(1)
				case "HSCAN":
					looked.Add(1)
				}
				return redistest.Action{}
			})
			if done, err := s.Force(w.Context(), s.NewSpec(writing, "orders", nil), luascripts.ForceRW); err != nil || !done {
				w.Fatal(done, err)
			}
			want := int64(0)
			if s == telling {
				want = 1
			}
			if said.Load() != want || looked.Load() != want {
				w.Errorf("%d messages after %d looks, want %d", said.Load(), looked.Load(), want)
			}
			if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) {
				w.Error(err)
			}
		}
		w.close(telling)
	})
}

// When a session looks whether it has to listen, it holds nothing, or a lock that it has just obtained. It looks again.
func TestHears_looksAgain(t *testing.T) {
	for name, later := range map[string]time.Duration{"a young hold": hearAfter / 2, "no hold": 2 * hearAfter} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				s := w.hearing()
				w.unlock(w.take(s, plain, w.Context()))
				time.Sleep(later)
				h := w.take(s, plain, w.Context())
				time.Sleep(2*hearAfter + time.Millisecond)
				if !s.hub.Lingers(keys.Client(s.id)) {
					w.Error("it does not listen")
				}
				w.unlock(h)
				w.close(s)
			})
		})
	}
}

// A message of a forced unlock is only a reason to ask Redis, and only if it names an owner that has a lock here. It takes no lock from
// its holder.
func TestHears_forgedMessages(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.hearing()
		h := w.hears(s, plain)
		channel, forged := registry.Taken(h.Owner(), "eve")
		scripts := w.scripts()
		for _, message := range []string{"", "nonsense", "taken", "taken  eve", "taken 1 eve"} {
			w.mini.Publish(channel, message)
		}
		synctest.Wait()
		if n := scripts.Load(); n != 0 {
			w.Errorf("it asked %d times about nobody", n)
		}
		w.mini.Publish(channel, forged)
		synctest.Wait()
		if n := scripts.Load(); n == 0 || h.Err() != nil {
			w.Errorf("asked %d times; the hold: %v", n, h.Err())
		}
		w.unlock(h)
		w.close(s)
	})
}

// Redis is slow, and many messages come. The session asks for some of them, and leaves the rest to the renewals. Close does not wait for
// those.
func TestHears_manyMessages(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.hearing()
		var asked atomic.Int64
		answer := make(chan struct{})
		k := hookable()
		k.Renew = func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed {
			asked.Add(1)
			<-answer
			return plain.Renew(ctx, rdb, batch, lease, perCall)
		}
		h := w.hears(s, k)
		first := asked.Load() // it asks once as it begins to listen
		channel, message := registry.Taken(h.Owner(), "eve")
		for range 2 * hearMost {
			w.mini.Publish(channel, message)
			synctest.Wait()
		}
		if n := asked.Load() - first; n != hearMost {
			w.Errorf("it asked %d times at once, want %d", n, hearMost)
		}
		close(answer)
		synctest.Wait()
		w.unlock(h)
		w.close(s)
	})
}

// asks counts the commands that come by the wire from now on, by their names.
func (w *world) asks() map[string]int {
	asked := make(map[string]int)
	w.wire.OnRequest(func(words [][]byte) redistest.Action {
		asked[string(words[0])]++
		return redistest.Action{}
	})
	return asked
}

// Force tells each owner of another client once, at most tellMost of them, and neither its own nor what is no owner. It reads a lock of one
// owner by HGETALL, and one that many may have by a part, so that each needs no other right.
func TestForce_whom(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.hearing()
		asked := w.asks()
		other := w.b.id + ":7"
		for _, field := range []string{other, other + luascripts.Writing, s.id + ":8", "mode", "not an owner"} {
			w.mini.HSet("orders", field, "1")
		}
		for kind, command := range map[*Kind]string{plain: "HGETALL", writing: "HSCAN"} {
			clear(asked)
			if got := s.others(w.Context(), s.NewSpec(kind, "orders", nil), opTime); !slices.Equal(got, []string{other}) {
				w.Errorf("%s: %q, want %q", command, got, other)
			}
			if len(asked) != 1 || asked[command] != 1 {
				w.Errorf("it sent %v, want %s", asked, command)
			}
		}
		for i := range 2 * tellMost {
			w.mini.HSet("orders", fmt.Sprint(w.b.id, ":", i), "1")
		}
		if got := s.others(w.Context(), s.NewSpec(plain, "orders", nil), opTime); len(got) != tellMost {
			w.Errorf("%d owners, want %d", len(got), tellMost)
		}
		w.mini.Del("orders")
		w.close(s)
	})
}

// What is said about a forced unlock goes by the same kind of channel as all that is said about the lock. Without time or owners nothing is said.
func TestForce_says(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.hearing()
		asked := w.asks()
		owners := []string{w.b.id + ":1", w.b.id + ":2"}
		spec := s.NewSpec(plain, "orders", nil)
		s.tell(w.Context(), spec, owners, 0)
		s.tell(w.Context(), spec, nil, opTime)
		synctest.Wait()
		if len(asked) != 0 {
			w.Errorf("it sent %v", asked)
		}
		s.tell(w.Context(), spec, owners, opTime)
		spec.Keys.Publish = "SPUBLISH"
		s.tell(w.Context(), spec, owners, opTime)
		if len(asked) != 3 || asked["SET"] != 2 || asked["PUBLISH"] != 2 || asked["SPUBLISH"] != 2 {
			w.Errorf("it sent %v", asked)
		}
		w.close(s)
	})
}
