package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
	"github.com/redis/rueidis"
)

// A fixed lease lasts exactly until the time to which it was extended, in Redis as well.
func TestExtend_fixedLease(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context(), lock.WithFixedLease(time.Second))
		start := time.Now()
		if err := h.Extend(w.Context(), time.Minute); err != nil {
			w.Fatal(err)
		}
		if got := h.Until().Sub(start); got < 59*time.Second || got > time.Minute {
			w.Errorf("promised for %v", got)
		}
		if err := h.Extend(w.Context(), time.Second); err != nil {
			w.Fatal(err)
		}
		if got := w.mini.TTL("orders"); got < 59*time.Second || got > time.Minute {
			w.Errorf("the TTL is %v", got)
		}
		time.Sleep(time.Until(h.Until()) - time.Millisecond)
		if err := h.Err(); err != nil {
			w.Errorf("before its end: %v", err)
		}
		time.Sleep(2 * time.Millisecond)
		if err := h.Err(); !errors.Is(err, lock.ErrExpired) {
			w.Errorf("after its end: %v", err)
		}
		_ = h.Unlock(w.Context())
		time.Sleep(time.Second) // until Redis has expired the key
	})
}

// A renewed hold is still renewed after an extension. Its lock is not handed off while the key would outlive the next
// holder, and Unlock frees it immediately.
func TestExtend_renewed(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		next := w.waitingFor(w.a, ctx, w.a.NewSpec(plain, "orders", nil))
		time.Sleep(time.Millisecond) // within the time of a hand-off
		if err := h.Extend(w.Context(), time.Hour); err != nil {
			w.Fatal(err)
		}
		if err := h.Unlock(w.Context()); err != nil {
			w.Fatal(err)
		}
		h = <-next
		if left := w.mini.TTL("orders"); left > leaseTime {
			w.Errorf("the TTL of the next holder's key is %v", left)
		}
		time.Sleep(3 * leaseTime)
		if err := h.Extend(w.Context(), 2*leaseTime); err != nil {
			w.Fatal(err)
		}
		time.Sleep(4 * leaseTime)
		if err := h.Err(); err != nil {
			w.Errorf("it is not renewed any more: %v", err)
		}
		if err := h.Unlock(w.Context()); err != nil {
			w.Fatal(err)
		}
	})
}

// Each case has its own error: a released hold, a lost hold, and an invalid duration.
func TestExtend_errors(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		for _, d := range []time.Duration{0, -time.Second, lock.MinLease - 1, 1<<63 - 1} {
			if err := h.Extend(w.Context(), d); err == nil || errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrUnavailable) {
				w.Errorf("%v: %v", d, err)
			}
		}
		done, cancel := context.WithCancel(w.Context())
		cancel()
		n := w.scripts()
		err := h.Extend(done, time.Minute)
		synctest.Wait()
		if !errors.Is(err, context.Canceled) || errors.Is(err, lock.ErrUnavailable) || n.Load() != 0 {
			w.Errorf("with a canceled context: %v, and %d commands", err, n.Load())
		}
		w.mini.Del("orders")
		if err := h.Extend(w.Context(), time.Minute); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrGone) {
			w.Errorf("after its key was deleted: %v", err)
		}
		if err := h.Err(); !errors.Is(err, lock.ErrGone) {
			w.Errorf("the hold: %v", err)
		}
		if err := h.Extend(h.Context(), time.Minute); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrGone) {
			w.Errorf("under its own context: %v", err)
		}
		if w.mini.Exists("orders") {
			w.Error("the key is back")
		}
		_ = h.Unlock(w.Context())
		h = w.lock(w.a, w.Context())
		if err := h.Unlock(w.Context()); err != nil {
			w.Fatal(err)
		}
		if err := h.Extend(w.Context(), time.Minute); !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) {
			w.Errorf("after Unlock: %v", err)
		}
	})
}

// A duration that overflows is rejected, and no command is sent. The shortest and the longest durations are accepted.
func TestExtend_tooLong(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		for _, d := range []time.Duration{lock.MinLease, maxExtension} {
			if err := h.Extend(w.Context(), d); err != nil {
				w.Errorf("%v: %v", d, err)
			}
		}
		n := w.scripts()
		if err := h.Extend(w.Context(), maxExtension+time.Millisecond); err == nil || errors.Is(err, lock.ErrUnavailable) || n.Load() != 0 {
			w.Errorf("%v, and %d commands", err, n.Load())
		}
		w.unlock(h)
	})
}

// Close, Unlock or a loss ends the hold after Extend has checked it, and before Extend sends a command. Extend reports
// what ended the hold, and sends nothing.
func TestExtend_endsInBetween(t *testing.T) {
	for name, ends := range map[string]func(w *world, h lock.Hold) error{
		"by a loss": func(w *world, h lock.Hold) error {
			w.mini.Del("orders")
			h.(*hold).acquisition().lease.Lose(watchdog.ErrGone)
			return nil
		},
		"by Close":  func(w *world, _ lock.Hold) error { return w.a.Close(context.Background()) },
		"by Unlock": func(w *world, h lock.Hold) error { return h.Unlock(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				h := w.lock(w.a, w.Context())
				n := w.scripts()
				ctx := &errHook{Context: w.Context(), f: func() {
					if err := ends(w, h); err != nil {
						w.Error(err)
					}
					n.Store(0)
				}}
				err := h.Extend(ctx, time.Hour)
				if !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrClosed) != (name == "by Close") || errors.Is(err, lock.ErrGone) != (name == "by a loss") || n.Load() != 0 {
					w.Errorf("%v, and %d commands", err, n.Load())
				}
				if a := h.(*hold).acquisition(); locked(a.at, a.Unconfirmed) {
					w.Error("an extension that was not sent counts as unconfirmed")
				}
			})
		})
	}
}

// A loss or a Close has removed the hold from its acquisition, and has not set its cause yet. Extend reports which it was.
func TestExtend_beforeTheCause(t *testing.T) {
	for phase, want := range map[lockstate.Phase]error{lockstate.Lost: lock.ErrLost, lockstate.Closed: lock.ErrClosed} {
		inBubble(t, func(w *world) {
			w.observer() // no witness: it is not notified of this end
			h := w.lock(w.a, w.Context()).(*hold)
			a := h.acquisition()
			err := h.Extend(&errHook{Context: w.Context(), f: func() { // the first step of acquisition.end
				a.at.lock()
				a.at.state.End(&a.Acquisition, phase)
				a.at.unlock()
			}}, time.Hour)
			for _, target := range []error{lock.ErrNotHeld, lock.ErrLost, lock.ErrClosed} {
				if errors.Is(err, target) != (target == lock.ErrNotHeld || target == want) {
					w.Errorf("%v, want %v", err, want)
				}
			}
			if err := w.a.release(w.Context(), a, time.Now(), nil); err != nil {
				w.Error(err)
			}
			a.at.tidy()
		})
	}
}

// A reader has one key for all its holds. It lives as long as the lease, even after a hold was released.
func TestExtend_eachHoldOfAReader(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		first, second := w.take(w.a, reading, ctx), w.take(w.a, reading, ctx)
		if err := first.Extend(w.Context(), time.Hour); err != nil {
			w.Fatal(err)
		}
		lives := func(holds string) {
			if left := w.mini.TTL("{orders}:" + first.Owner() + ":rwlock_timeout:" + holds); left < 59*time.Minute {
				w.Errorf("the lease of %s holds has %v left", holds, left)
			}
		}
		lives("2")
		w.unlock(second)
		lives("1")
		w.unlock(first)
	})
}

// Redis rejects an extension. The hold lives on, because the error does not affect it.
func TestExtend_refused(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.mini.SetError("NOPERM this user has no permissions")
		err := h.Extend(w.Context(), time.Hour)
		w.mini.SetError("")
		if err == nil || errors.Is(err, lock.ErrNotHeld) || h.Err() != nil {
			w.Errorf("%v, and the hold: %v", err, h.Err())
		}
		w.unlock(h)
	})
}

// The lease expires while Extend waits for a reply that never comes: the hold is lost, and Extend returns that.
func TestExtend_expiresInBetween(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context(), lock.WithFixedLease(time.Second))
		reply := make(chan struct{})
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldReply: reply}))
		if err := h.Extend(w.Context(), time.Minute); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrExpired) {
			w.Error(err)
		}
		close(reply)
	})
}

// late returns a kind whose first renewal is not sent until sent is closed.
func (w *world) late() (k *Kind, sent chan struct{}) {
	sent = make(chan struct{})
	first := make(chan struct{}, 1)
	first <- struct{}{}
	k = hookable()
	k.Renew = func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed {
		select {
		case <-first:
			<-sent
			return plain.Renew(w.Context(), w.rdb, batch, lease, perCall)
		default:
			return plain.Renew(ctx, rdb, batch, lease, perCall)
		}
	}
	return k, sent
}

// Extend is replied to after its context was canceled. A confirmation extends the lease, from the time of the send; an
// error does not.
func TestExtend_lateReply(t *testing.T) {
	for _, gone := range []bool{false, true} {
		inBubble(t, func(w *world) {
			k, sent := w.late()
			h := w.take(w.a, k, w.Context(), lock.WithFixedLease(leaseTime))
			until := h.Until()
			if gone {
				w.mini.Del("orders")
			}
			start := time.Now()
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			defer cancel()
			if err := h.Extend(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lock.ErrNotHeld) {
				w.Error(err)
			}
			close(sent)
			synctest.Wait()
			switch got := h.Until(); {
			case gone && !got.Equal(until):
				w.Errorf("it is gone, and promised for %v", got.Sub(start))
			case !gone && (got.Sub(start) < 59*time.Minute || got.Sub(start) > time.Hour):
				w.Errorf("promised for %v", got.Sub(start))
			}
			if err := h.Unlock(w.Context()); errors.Is(err, lock.ErrLost) != gone {
				w.Error(err)
			}
		})
	}
}

// Redis confirms an extension, so it cannot be executed later. After Unlock, one command retains the lock, and no other
// command follows.
func TestExtend_confirmed(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, commands := range []int64{4, 2} { // the first time, each command is resent with its script
			h := w.lock(w.a, w.Context(), lock.WithMinHold(time.Second))
			n := w.scripts()
			if err := h.Extend(w.Context(), time.Minute); err != nil {
				w.Error(err)
			}
			w.unlock(h)
			time.Sleep(time.Minute)
			if got := n.Load(); got != commands {
				w.Errorf("%d commands, want %d: an extension and a retention", got, commands)
			}
		}
	})
}

// The reply to Extend comes after its caller left, and so late that the command may have been sent twice. The second copy
// may be executed later.
func TestExtend_lateReplyOfACopy(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: 2 * time.Second}))
		if err := h.Extend(w.within(time.Second/2), time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			w.Error(err)
		}
		time.Sleep(2 * time.Second)
		if a := h.(*hold).acquisition(); !locked(a.at, func() bool { return a.Late && !a.Unconfirmed() }) {
			w.Error("no copy of the extension is expected")
		}
		w.unlock(h)
	})
}

// Extend is executed after its context was canceled and after Unlock. The minimum hold time of the lock does not become
// longer.
func TestExtend_executedLate(t *testing.T) {
	inBubble(t, func(w *world) {
		k, sent := w.late()
		h := w.take(w.a, k, w.Context(), lock.WithMinHold(2*leaseTime/3))
		ctx, cancel := context.WithTimeout(w.Context(), time.Second/2) // too short to send it twice
		defer cancel()
		if err := h.Extend(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			w.Error(err)
		}
		w.unlock(h)
		time.Sleep(time.Second)
		close(sent)
		time.Sleep(2 * leaseTime / 3)
		if w.mini.Exists("orders") {
			w.Errorf("it is held for %v more, without a holder", w.mini.TTL("orders"))
			time.Sleep(time.Hour)
		}
	})
}

// Extend was executed, and its reply is lost. The hold ends as if it had not been extended, and the lock does not stay
// locked without a holder.
func TestExtend_replyLost(t *testing.T) {
	inBubble(t, func(w *world) {
		k := *plain
		k.Renew = func(ctx context.Context, rdb rueidis.Client, locks []luascripts.Renewal, lease time.Duration, most int) []luascripts.Renewed {
			_ = plain.Renew(ctx, rdb, locks, lease, most)
			return []luascripts.Renewed{{Err: io.EOF}}
		}
		h := w.take(w.a, &k, w.Context(), lock.WithFixedLease(leaseTime))
		if err := h.Extend(w.Context(), time.Hour); !errors.Is(err, lock.ErrUnavailable) {
			w.Error(err)
		}
		<-h.Context().Done()
		if err := h.Err(); !errors.Is(err, lock.ErrExpired) {
			w.Error(err)
		}
		time.Sleep(leaseTime)
		if w.mini.Exists("orders") {
			w.Errorf("it is held for %v more, without a holder", w.mini.TTL("orders"))
			time.Sleep(time.Hour)
		}
	})
}

// A process was paused, and the lease has expired. Extend is the first to check it, and sends no command, even if Redis
// still has the lock.
func TestExtend_checksTheClock(t *testing.T) {
	inBubble(t, func(w *world) {
		for range 100 { // until the watchdog's timer is not first
			h := w.lock(w.a, w.Context(), lock.WithFixedLease(time.Second))
			ended := h.Context().Done()
			time.Sleep(time.Until(h.Until()))
			select {
			case <-ended:
				time.Sleep(time.Second)
				continue
			default:
			}
			start := time.Now()
			ctx := &errHook{Context: w.Context(), f: func() { w.Error("Extend went on") }}
			if err := h.Extend(ctx, time.Minute); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrExpired) || time.Since(start) != 0 {
				w.Errorf("%v after %v", err, time.Since(start))
			}
			time.Sleep(time.Second)
			return
		}
		w.Error("the timer was first a hundred times")
	})
}

// A fixed lease expires in Redis without a command. The hold ends slightly earlier, because clocks may differ. No other
// owner has the lock until the full lease has passed, and then a waiter has it immediately.
func TestFixedLease_lastsToTheEnd(t *testing.T) {
	for name, k := range map[string]*Kind{"plain": plain, "fair": fair, "writer": writing} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				start := time.Now()
				h := w.take(w.a, k, w.Context(), lock.WithFixedLease(time.Hour))
				<-h.Context().Done()
				if early := time.Hour - time.Since(start); !errors.Is(h.Err(), lock.ErrExpired) || early <= 0 {
					w.Errorf("%v, %v before its end", h.Err(), early)
				}
				time.Sleep(time.Second)
				if h, err := w.b.TryLock(w.Context(), w.b.NewSpec(k, "orders", nil)); !errors.Is(err, lock.ErrNotAcquired) {
					w.Errorf("before its end: %v", err)
					if err == nil {
						w.unlock(h)
					}
				}
				next := w.take(w.b, k, w.Context())
				if after := time.Since(start) - time.Hour; after < 0 || after > pollTime {
					w.Errorf("the next has it %v after the end", after)
				}
				w.unlock(next)
			})
		})
	}
}

// A release offers the lock to a waiter, with a separate lease; a call with a fixed lease claims it. The lock is free
// when the fixed lease expires, and not when the offer does.
func TestFixedLease_afterAHandOff(t *testing.T) {
	const fixed = pollTime / 2
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.waiting(w.b, ctx)
		synctest.Wait()
		short := w.waiting(w.b, w.Context(), lock.WithFixedLease(fixed))
		time.Sleep(pollTime / 2)
		cancel()
		if h := <-gone; h != nil {
			w.unlock(h)
		}
		w.unlock(h)
		got := w.next(short)
		start := time.Now()
		next := w.take(w.a, plain, w.Context())
		if after := time.Since(start) - fixed; after > 0 { // it is released as soon as it is lost
			w.Errorf("the next has it %v after the end", after)
		}
		if err := got.Err(); !errors.Is(err, lock.ErrExpired) {
			w.Error(err)
		}
		w.unlock(next)
	})
}

// A reentry extends the lock in Redis. Its caller leaves before the reply, or the fixed lease expires here before it. The
// lock is free then, and not a lease after the reentry.
func TestFixedLease_afterAReentry(t *testing.T) {
	for name, test := range map[string]struct {
		after       time.Duration // when the owner re-enters, after the grant
		callTimeout time.Duration // of the reentry
		reply       time.Duration // the delay of the reply
		err         error
	}{
		"abandoned": {2 * time.Second, 100 * time.Millisecond, 200 * time.Millisecond, context.DeadlineExceeded},
		"too late":  {4*time.Second - 100*time.Millisecond, time.Second, 200 * time.Millisecond, lock.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				fixed := []lock.Option{lock.WithFixedLease(4 * time.Second)}
				ctx := lock.ContextWithNewOwner(w.Context())
				h := w.take(w.a, alone, ctx, fixed...)
				time.Sleep(test.after)
				w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: test.reply}))
				short, cancel := context.WithTimeout(ctx, test.callTimeout)
				defer cancel()
				if _, err := w.a.Lock(short, w.a.NewSpec(alone, "orders", fixed)); !errors.Is(err, test.err) {
					w.Error(err)
				}
				<-h.Context().Done()
				time.Sleep(time.Second) // for its release
				next, err := w.b.TryLock(w.Context(), w.b.NewSpec(alone, "orders", nil))
				if err != nil {
					w.Fatalf("after the fixed lease: %v", err)
				}
				w.unlock(next)
			})
		})
	}
}

// A writer with a fixed lease whose owner also reads stops writing when that lease expires, although the reader
// continues, or had a longer lease.
func TestFixedLease_ofAWriterThatReads(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		t.Run(fmt.Sprintf("leaves %t", leaves), func(t *testing.T) {
			inBubble(t, func(w *world) {
				write := w.take(w.a, writing, w.Context(), lock.WithFixedLease(2*time.Second))
				owner := context.WithoutCancel(write.Context())
				read := w.take(w.a, reading, owner, lock.WithFixedLease(time.Hour))
				if leaves {
					w.unlock(read)
				}
				<-write.Context().Done()
				time.Sleep(time.Second)
				other, err := w.b.TryLock(w.Context(), w.b.NewSpec(reading, "orders", nil))
				if err != nil {
					w.Fatalf("another reader after the fixed lease: %v", err)
				}
				w.unlock(other)
				if !leaves {
					w.unlock(read)
				}
			})
		})
	}
}
