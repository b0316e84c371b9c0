package session

import (
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

// tokenCounter is the key of the token counter of the tests' lock. It is kept by design.
const tokenCounter = "redisson_lock_token:{orders}"

// A holder raises the tokens of all later holders, even as a writer. Package reentrant tests hand-offs.
func TestRaise(t *testing.T) {
	forEach(t, map[string]*Kind{"plain": plain, "write": writing}, func(w *world, k *Kind) {
		h := w.take(w.a, k, w.Context(), lock.WithFencing())
		w.wantNoErr(h.(lockimpl.Fenced).RaiseToken(w.Context(), 1000))
		w.unlock(h)
		nextOwner := w.take(w.a, k, w.Context(), lock.WithFencing())
		if nextOwner.Token() <= 1000 {
			w.Errorf("the next holder has the token %d", nextOwner.Token())
		}
		w.unlock(nextOwner)
		w.mini.Del(tokenCounter)
	})
}

// The readers after a writer have a larger token than the one that the writer raised.
func TestRaise_byAWriter(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.a, writing, w.Context(), lock.WithFencing())
		raised := h.Token() + 1000
		w.wantNoErr(h.(lockimpl.Fenced).RaiseToken(w.Context(), raised))
		w.unlock(h)
		reader := w.take(w.b, reading, w.Context(), lock.WithFencing())
		if reader.Token() <= raised {
			w.Errorf("the reader has the token %d, the writer raised its token to %d", reader.Token(), raised)
		}
		w.unlock(reader)
		w.mini.Del(tokenCounter)
	})
}

// A holder raised the tokens, and a waiter of its process is next. Its token is larger.
func TestRaise_nextInTheProcess(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context(), lock.WithFencing())
		next := w.waiting(w.a, w.Context(), lock.WithFencing())
		time.Sleep(time.Millisecond) // otherwise it is not handed off inside the process
		raised := h.Token() + 1000
		w.wantNoErr(h.(lockimpl.Fenced).RaiseToken(w.Context(), raised))
		w.unlock(h)
		h = <-next
		if h.Token() <= raised {
			w.Errorf("the next holder has the token %d, want more than %d", h.Token(), raised)
		}
		w.unlock(h)
		w.mini.Del(tokenCounter)
	})
}

// Only the holder can raise a token counter, and a lock without fencing has none.
func TestRaise_fails(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		if err := h.(lockimpl.Fenced).RaiseToken(w.Context(), 1000); !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, lock.ErrUnavailable) {
			w.Errorf("without fencing: %v", err)
		}
		w.unlock(h)
		for _, foreign := range []bool{false, true} {
			h := w.lock(w.a, w.Context(), lock.WithFencing())
			w.mini.Del("orders")
			want := lock.ErrLost
			if foreign {
				want = lock.ErrWrongType
				w.wantNoErr(w.mini.Set("orders", "of somebody else"))
			}
			if err := h.(lockimpl.Fenced).RaiseToken(w.Context(), 1000); !errors.Is(err, want) || errors.Is(err, lock.ErrUnavailable) {
				w.Errorf("a foreign key: %v: %v", foreign, err)
			}
			w.mini.Del("orders")
			w.wantErr(h.Unlock(w.Context()), lock.ErrLost)
		}
		w.mini.Del(tokenCounter)
	})
}
