package session

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// downgrade returns a read hold for h, and fails the test on an error.
func (w *world) downgrade(s *Session, ctx context.Context, h lock.Hold, opts ...lock.Option) lock.Hold {
	w.Helper()
	read, err := s.Downgrade(ctx, s.NewSpec(reading, "orders", opts), h)
	if err != nil {
		w.Fatal(err)
	}
	return read
}

// After a downgrade the owner continues to read. Other readers enter immediately. No writer does, not even one that was
// waiting before.
func TestDowngrade(t *testing.T) {
	inBubble(t, func(w *world) {
		write := w.take(w.a, writing, w.Context())
		writer := w.goLockKind(w.b, writing, w.Context())
		reader := w.goRead(w.a, w.Context(), lock.WithReaderPreference())
		time.Sleep(pollTime / 2)
		start := time.Now()
		read := w.downgrade(w.a, write.Context(), write) // whose context is canceled, but not the context of read
		other := <-reader
		if took := time.Since(start); took != 0 {
			w.Errorf("it took %v until both read", took)
		}
		if !errors.Is(write.Err(), lock.ErrUnlocked) || !errors.Is(write.Unlock(w.Context()), lock.ErrNotHeld) {
			w.Errorf("the write hold: %v", write.Err())
		}
		again := w.take(w.a, reading, read.Context())
		w.unlock(again)
		w.unlock(other)
		time.Sleep(10 * time.Minute)
		if err := read.Context().Err(); err != nil {
			w.Errorf("the read hold: %v", context.Cause(read.Context()))
		}
		select {
		case <-writer:
			w.Error("got a writer and a reader at the same time")
		default:
		}
		w.unlock(read)
		w.unlock(<-writer)
	})
}

// The read hold has the parent context of the write hold, and ends when that context is canceled.
func TestDowngrade_context(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		call, done := context.WithCancel(w.Context())
		write := w.take(w.a, writing, ctx)
		read := w.downgrade(w.a, call, write)
		done()
		if err := read.Err(); err != nil {
			w.Errorf("with the call: %v", err)
		}
		cancel()
		if err := read.Err(); !errors.Is(err, context.Canceled) {
			w.Errorf("%v, want the end of the context that the write hold had", err)
		}
		w.unlock(read)

		write = w.take(w.a, writing, w.Context())
		if _, err := w.a.Downgrade(call, w.a.NewSpec(reading, "orders", nil), write); !errors.Is(err, context.Canceled) || write.Err() != nil {
			w.Errorf("canceled call: %v; write hold: %v", err, write.Err())
		}
		w.unlock(write)

		ctx, cancel = context.WithCancel(w.Context())
		write = w.take(w.a, writing, ctx)
		cancel()
		if _, err := w.a.Downgrade(w.Context(), w.a.NewSpec(reading, "orders", nil), write); !errors.Is(err, context.Canceled) || w.mini.HGet("orders", write.Owner()+":write") != "1" {
			w.Errorf("canceled parent of the read hold: %v", err)
		}
		w.unlock(write)
	})
}

// An owner with several write holds continues to write. An owner that already reads has two read holds.
func TestDowngrade_oneOfSeveral(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		first, second := w.take(w.a, writing, ctx), w.take(w.a, writing, ctx)
		reads := w.take(w.a, reading, ctx)
		more := w.downgrade(w.a, ctx, second)
		if w.count(reads) != 2 || more.Owner() != reads.Owner() || first.Err() != nil {
			w.Errorf("%d read holds of %s and %s, the other write hold: %v", w.count(reads), reads.Owner(), more.Owner(), first.Err())
		}
		if h, err := w.b.TryLock(w.Context(), w.b.NewSpec(reading, "orders", nil)); err == nil {
			w.Error("a reader was admitted while a writer had the lock")
			w.unlock(h)
		}
		last := w.downgrade(w.a, ctx, first)
		w.unlock(w.take(w.b, reading, w.Context()))
		for _, h := range []lock.Hold{reads, more, last} {
			w.unlock(h)
		}
	})
}

// The write hold was lost before, or is lost now: there is no read hold, even if the lock is free in the meantime, and
// nothing stays.
func TestDowngrade_ofALostHold(t *testing.T) {
	for name, lose := range map[string]func(w *world, h lock.Hold) (other lock.Hold){
		"released": func(w *world, h lock.Hold) lock.Hold { w.unlock(h); return nil },
		"notified": func(w *world, h lock.Hold) lock.Hold {
			w.mini.Del("orders")
			<-h.Context().Done()
			return nil
		},
		"deleted":           func(w *world, h lock.Hold) lock.Hold { w.mini.Del("orders"); return nil },
		"deleted and taken": func(w *world, h lock.Hold) lock.Hold { w.mini.Del("orders"); return w.take(w.b, writing, w.Context()) },
		"deleted and kept": func(w *world, h lock.Hold) lock.Hold {
			w.mini.Del("orders")
			return w.take(w.b, writing, w.Context(), lingers)
		},
		"deleted and read":      func(w *world, h lock.Hold) lock.Hold { w.mini.Del("orders"); return w.take(w.b, reading, w.Context()) },
		"deleted and read here": func(w *world, h lock.Hold) lock.Hold { w.mini.Del("orders"); return w.take(w.a, reading, w.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				h := w.take(w.a, writing, w.Context())
				other := lose(w, h)
				n := w.scripts()
				start := time.Now()
				read, err := w.a.Downgrade(w.Context(), w.a.NewSpec(reading, "orders", nil), h)
				if known := name == "released" || name == "notified"; known && n.Load() != 0 {
					w.Errorf("got %d commands, although the loss was known", n.Load())
				}
				if read != nil || !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) == (name == "released") {
					w.Errorf("%v, %v", read, err)
				}
				if took := time.Since(start); took != 0 {
					w.Errorf("after %v", took)
				}
				if h.Err() == nil {
					w.Error("the write hold is valid")
				}
				if other != nil {
					synctest.Wait()
					if state, err := Inspect(w.Context(), w.b, w.b.NewSpec(reading, "orders", nil), luascripts.InspectRW); err != nil || len(state.Holders) != 1 || other.Err() != nil {
						w.Errorf("%+v, %v; the other's hold: %v", state, err, other.Err())
					}
					w.unlock(other)
				}
			})
		})
	}
}

// Downgrade rejects a hold that is not a write hold of this lock, and leaves it unchanged.
func TestDowngrade_ofAnotherHold(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.a.NewSpec(reading, "orders", nil)
		other := w.take(w.b, reading, w.Context())
		here := w.take(w.a, reading, w.Context())
		for name, h := range map[string]lock.Hold{"nil": nil, "a read hold": here, "another client's read hold": other, "of another type": struct{ lock.Hold }{here}} {
			if _, err := w.a.Downgrade(w.Context(), spec, h); !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) {
				w.Errorf("%s: %v", name, err)
			}
		}
		w.unlock(other)
		w.unlock(here)
		write := w.take(w.a, writing, w.Context())
		if _, err := w.a.Downgrade(w.Context(), w.a.NewSpec(reading, "invoices", nil), write); !errors.Is(err, lock.ErrNotHeld) || write.Err() != nil {
			w.Errorf("of another lock: %v, and the write hold: %v", err, write.Err())
		}
		w.unlock(write)
		elsewhere := w.take(w.b, writing, w.Context())
		if _, err := w.a.Downgrade(w.Context(), spec, elsewhere); !errors.Is(err, lock.ErrNotHeld) || elsewhere.Err() != nil {
			w.Errorf("another client's: %v, and that hold: %v", err, elsewhere.Err())
		}
		w.unlock(elsewhere)
	})
}

// Redis does not respond. If it does not confirm the read hold, the write hold is unchanged. If it does not confirm the
// release of the write hold, the release continues in the background.
func TestDowngrade_withoutAReply(t *testing.T) {
	for name, swallowed := range map[string]int{"of the reading": 1, "of the end": 2} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.known()
				h := w.take(w.a, writing, w.Context())
				n := 0
				w.wire.OnRequest(func(req [][]byte) redistest.Action {
					if string(req[0]) == "EVALSHA" {
						n++
					}
					return redistest.Action{DropReply: n >= swallowed}
				})
				start := time.Now()
				read, err := w.a.Downgrade(w.Context(), w.a.NewSpec(reading, "orders", nil), h)
				if took := time.Since(start); took > 2*opTime {
					w.Errorf("after %v", took)
				}
				w.wire.OnRequest(nil)
				if swallowed == 1 {
					if err == nil || h.Err() != nil {
						w.Fatalf("%v, and the write hold: %v", err, h.Err())
					}
					read = w.downgrade(w.a, w.Context(), h) // retry
				} else if err != nil {
					w.Fatal(err)
				}
				time.Sleep(3 * opTime)
				w.unlock(w.take(w.b, reading, w.Context()))
				if err := read.Err(); err != nil {
					w.Error(err)
				}
				w.unlock(read)
				time.Sleep(3 * opTime)
			})
		})
	}
}

// A canceled context ends a downgrade like a TryLock, and leaves the write hold unchanged.
func TestDowngrade_canceled(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.a, writing, w.Context())
		done, cancel := context.WithCancel(w.Context())
		cancel()
		if _, err := w.a.Downgrade(done, w.a.NewSpec(reading, "orders", nil), h); errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.Canceled) || errors.Is(err, lock.ErrUnavailable) {
			w.Errorf("before its request: %v", err)
		}
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayRequest: time.Second}))
		short, cancel := context.WithTimeout(w.Context(), time.Second/2)
		defer cancel()
		if _, err := w.a.Downgrade(short, w.a.NewSpec(reading, "orders", nil), h); errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lock.ErrUnavailable) {
			w.Errorf("during its request: %v", err)
		}
		time.Sleep(opTime)
		if err := h.Err(); err != nil {
			w.Error(err)
		}
		w.unlock(h)
		time.Sleep(opTime)
	})
}

// Another goroutine of the writer's owner has been waiting to read since before the write hold.
func TestDowngrade_whileTheOwnerWaitsToRead(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, writing, w.Context())
		ctx := lock.ContextWithNewOwner(w.Context())
		waits := w.goRead(w.a, ctx)
		time.Sleep(pollTime / 2)
		w.mini.Del("orders")
		write := w.take(w.a, writing, ctx)
		read := w.downgrade(w.a, w.Context(), write)
		w.unlock(<-waits)
		w.unlock(read)
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) {
			w.Error(err)
		}
	})
}

// Another goroutine of the writer's owner has the turn of the read side for a second: the downgrade waits for it.
func TestDowngrade_waitsForItsTurn(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		write := w.take(w.a, writing, ctx)
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayRequest: time.Second}))
		other := w.goRead(w.a, ctx)
		synctest.Wait()
		start := time.Now()
		read := w.downgrade(w.a, ctx, write)
		if took := time.Since(start); took != time.Second {
			w.Errorf("it took %v", took)
		}
		w.unlock(<-other)
		w.unlock(read)
	})
}

// Another goroutine of the writer's owner has the turn of the read side. It waits for a writer that came after a loss
// that is not detected yet.
func TestDowngrade_behindAnotherCallOfItsOwner(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		write := w.take(w.a, writing, ctx)
		w.mini.Del("orders")
		other := w.take(w.b, writing, w.Context())
		waits := w.goRead(w.a, ctx)
		synctest.Wait()
		start := time.Now()
		if _, err := w.a.Downgrade(ctx, w.a.NewSpec(reading, "orders", nil), write); !errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, lock.ErrUnavailable) || time.Since(start) != opTime {
			w.Errorf("%v after %v", err, time.Since(start))
		}
		if err := write.Err(); err != nil {
			w.Errorf("the write hold, before a renewal: %v", err)
		}
		w.unlock(other)
		w.unlock(<-waits)
		if err := write.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) {
			w.Error(err)
		}
	})
}

// Invalid options end a downgrade before anything else, and the write hold is unchanged.
func TestDowngrade_wrongOptions(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.a, writing, w.Context())
		spec := w.a.NewSpec(reading, "orders", []lock.Option{lock.WithWait(-1)})
		if read, err := w.a.Downgrade(w.Context(), spec, h); read != nil || !errors.Is(err, spec.Err) || spec.Err == nil || h.Err() != nil {
			w.Errorf("%v, %v, and the write hold: %v", read, err, h.Err())
		}
		w.unlock(h)
	})
}

// Close begins after a downgrade has checked the write hold. Close releases that hold, and the downgrade returns
// ErrClosed.
func TestDowngrade_duringClose(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.a, writing, w.Context())
		ctx := &errHook{Context: w.Context(), f: func() {
			if err := w.a.Close(context.Background()); err != nil {
				w.Error(err)
			}
		}}
		if read, err := w.a.Downgrade(ctx, w.a.NewSpec(reading, "orders", nil), h); read != nil || !errors.Is(err, lock.ErrClosed) {
			w.Errorf("%v, %v", read, err)
		}
	})
}

// The context of a downgrade or of its write hold is canceled: no command is sent.
func TestDowngrade_canceledBefore(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		h := w.take(w.a, writing, ctx)
		n := w.scripts()
		cancel()
		for _, call := range []context.Context{ctx, w.Context()} {
			if _, err := w.a.Downgrade(call, w.a.NewSpec(reading, "orders", nil), h); errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.Canceled) || n.Load() != 0 {
				w.Errorf("%v, and %d commands", err, n.Load())
			}
		}
		w.unlock(h)
	})
}

// The write hold is lost during a downgrade, and then its context is canceled. The error reports the loss.
func TestDowngrade_lostInBetween(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.a, writing, w.Context(), lock.WithFixedLease(time.Second))
		reply := make(chan struct{})
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldReply: reply}))
		ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
		defer cancel()
		if _, err := w.a.Downgrade(ctx, w.a.NewSpec(reading, "orders", nil), h); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrExpired) || errors.Is(err, lock.ErrNotAcquired) {
			w.Error(err)
		}
		close(reply)
		time.Sleep(opTime)
	})
}

// The write hold is lost during a downgrade, and its last renewal timed out. Then the context of the downgrade times out.
// The error reports the loss, and not only the timeout.
func TestDowngrade_lostAfterATimeout(t *testing.T) {
	inBubble(t, func(w *world) {
		read, write := *reading, *writing
		read.Sibling, write.Sibling = &write, &read
		write.Renew = func(_ context.Context, _ rueidis.Client, batch []luascripts.Renewal, _ time.Duration, _ int) []luascripts.Renewed {
			return slices.Repeat([]luascripts.Renewed{{Err: &net.OpError{Op: "dial", Err: context.DeadlineExceeded}}}, len(batch))
		}
		h := w.take(w.a, &write, w.Context())
		time.Sleep(time.Until(h.Until()) - time.Second)
		reply := make(chan struct{})
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldReply: reply}))
		_, err := w.a.Downgrade(w.within(2*time.Second), w.a.NewSpec(&read, "orders", nil), h)
		if !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrExpired) || errors.Is(err, lock.ErrNotAcquired) {
			w.Error(err)
		}
		close(reply)
		time.Sleep(opTime)
	})
}

// A session without an observer downgrades a hold.
func TestDowngrade_noObserver(t *testing.T) {
	inBubble(t, func(w *world) {
		write := w.take(w.b, writing, w.Context())
		w.unlock(w.downgrade(w.b, w.Context(), write))
	})
}

// A hold that was released is not held. A hold that was lost is not held either, and the error says why.
func TestNotHeld(t *testing.T) {
	for cause, want := range map[error]string{
		nil:              "",
		lock.ErrUnlocked: lock.ErrNotHeld.Error(),
		&lock.Error{Op: "hold", Name: "orders", Err: loss{lock.ErrGone}}: lock.ErrNotHeld.Error() + ": " + loss{lock.ErrGone}.Error(),
	} {
		if err := notHeld(cause); errText(err) != want {
			t.Errorf("after %v: %v, want %q", cause, err, want)
		}
	}
}

// Redis does not respond, and the context of a downgrade is not canceled. The error reports only that Redis is
// unavailable.
func TestDowngrade_unavailable(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.a, writing, w.Context())
		reply := make(chan struct{})
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldReply: reply}))
		_, err := w.a.Downgrade(w.Context(), w.a.NewSpec(reading, "orders", nil), h)
		if !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrNotAcquired) || strings.Contains(err.Error(), "%!") {
			w.Error(err)
		}
		close(reply)
		w.unlock(h)
		time.Sleep(opTime)
	})
}

// A writer continues to read after it stopped writing. Its read hold is renewed until its release, and then nothing is
// left.
func TestDowngrade_livesForHours(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		write := w.take(w.a, writing, ctx)
		read := w.take(w.a, reading, ctx)
		if read.Token() != 0 || write.Token() == 0 {
			w.Errorf("tokens %d for reading and %d for writing", read.Token(), write.Token())
		}
		time.Sleep(time.Hour)
		w.unlock(write)
		served := w.inOrder(1, func(int) lock.Hold { return w.take(w.b, writing, w.Context()) })
		others := w.take(w.b, reading, w.Context(), lock.WithReaderPreference())
		w.unlock(others)
		time.Sleep(time.Hour)
		if err := read.Err(); err != nil {
			w.Errorf("the reading was lost: %v", err)
		}
		if _, err := w.a.Lock(ctx, w.a.NewSpec(writing, "orders", nil)); !errors.Is(err, lock.ErrUpgrade) {
			w.Errorf("write under a read hold: got %v, want ErrUpgrade", err)
		}
		w.unlock(read)
		served()
	})
}

// A read hold lasts until Unlock, like the write hold before it. Its caller's context is canceled: the session reports that
// the work is still running.
func TestDowngrade_lastsUntilUnlock(t *testing.T) {
	inBubble(t, func(w *world) {
		n := w.listen()
		ctx, cancel := context.WithCancel(w.Context())
		write, err := lock.UntilUnlock(w.locker(w.a, writing)).Lock(ctx)
		if err != nil {
			w.Fatal(err)
		}
		read := w.downgrade(w.a, w.Context(), write)
		cancel()
		time.Sleep(10 * leaseTime)
		if err := read.Err(); err != nil {
			w.Error(err)
		}
		w.unlock(read)
		if len(n.draining) != 1 || len(n.running) != 1 || len(n.abandoned) != 0 {
			w.Errorf("got %d Draining, %d StillRunning, %d abandoned holds", len(n.draining), len(n.running), len(n.abandoned))
		}
	})
}
