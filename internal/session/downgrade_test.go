package session

import (
	"context"
	"errors"
	"fmt"
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
	read := w.must(s.Downgrade(ctx, s.NewSpec(reading, "orders", opts), h))
	return read
}

// tryDowngrade is downgrade in session a, which is expected to fail.
func (w *world) tryDowngrade(ctx context.Context, h lock.Hold) error {
	w.Helper()
	read, err := w.a.Downgrade(ctx, w.a.NewSpec(reading, "orders", nil), h)
	if read != nil || err == nil {
		w.Errorf("got a read hold: %v, %v", read, err)
	}
	return err
}

// After a downgrade the owner continues to read. Other readers enter immediately. No writer does, not even one that was
// waiting before.
func TestDowngrade(t *testing.T) {
	inBubble(t, func(w *world) {
		write := w.take(w.a, writing, w.Context())
		writer := w.goLock(w.b, writing, w.Context())
		reader := w.goRead(w.a, w.Context(), lock.WithReaderPreference())
		time.Sleep(pollTime / 2)
		start := time.Now()
		read := w.downgrade(w.a, write.Context(), write) // whose context is canceled, but not the context of read
		other := <-reader
		w.wantTook(start, 0)
		w.wantErr(write.Err(), lock.ErrUnlocked)
		w.wantErr(write.Unlock(w.Context()), lock.ErrNotHeld)
		again := w.take(w.a, reading, read.Context())
		w.unlockAll(again, other)
		time.Sleep(10 * time.Minute)
		if err := read.Context().Err(); err != nil {
			w.Errorf("the read hold: %v", context.Cause(read.Context()))
		}
		w.waitsOn(writer)
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
		w.wantHeld(read)
		cancel()
		w.wantErr(read.Err(), context.Canceled)
		w.unlock(read)
	})
}

// The context of a downgrade, or of its write hold, is canceled before: no command is sent, and the write hold is
// unchanged in Redis.
func TestDowngrade_canceledBefore(t *testing.T) {
	forEach(t, map[string]bool{"of the call": true, "of the write hold": false}, func(w *world, call bool) {
		canceled, cancel := context.WithCancel(w.Context())
		ctx, parent := canceled, w.Context()
		if !call {
			ctx, parent = parent, ctx
		}
		h := w.take(w.a, writing, parent)
		n := w.scripts()
		cancel()
		err := w.tryDowngrade(ctx, h)
		w.wantErr(err, context.Canceled)
		w.wantNotErrs(err, lock.ErrNotAcquired, lock.ErrUnavailable)
		w.wantSent(n, 0)
		if call {
			w.wantHeld(h)
		}
		if w.mini.HGet("orders", h.Owner()+":write") != "1" {
			w.Error("Redis does not have the write hold")
		}
		w.unlock(h)
	})
}

// The context of a downgrade is canceled during the release of the write side, because another lock was lost. The downgrade
// succeeds: the write hold was not lost.
func TestDowngrade_otherLockLost(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.downgrade(w.a, w.Context(), w.take(w.a, writing, w.Context()))) // loads the scripts
		ctx, cancel := context.WithCancelCause(w.Context())
		write, reply := w.take(w.a, writing, w.Context()), make(chan struct{})
		w.onScripts(func(n int) (a redistest.Action) {
			if n == 2 { // the release of the write side
				a.HoldReply = reply
			}
			return a
		})
		var read lock.Hold
		ended := w.begin(func() (err error) {
			read, err = w.a.Downgrade(ctx, w.a.NewSpec(reading, "orders", nil), write)
			return err
		})
		cancel(fmt.Errorf("%w: %w", lock.ErrNotHeld, lock.ErrLost))
		err := <-ended
		close(reply)
		if w.wantNoErr(err); err == nil {
			w.unlock(read)
		}
	})
}

// The context of a downgrade is canceled during its request: it ends like a TryLock, and leaves the write hold unchanged.
func TestDowngrade_canceled(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.a, writing, w.Context())
		w.onNext(redistest.Action{DelayRequest: time.Second})
		err := w.tryDowngrade(w.within(time.Second/2), h)
		w.wantErr(err, context.DeadlineExceeded)
		w.wantNotErrs(err, lock.ErrNotAcquired, lock.ErrUnavailable)
		time.Sleep(opTime)
		w.wantHeld(h)
		w.unlock(h)
		time.Sleep(opTime)
	})
}

// An owner with several write holds continues to write. An owner that already reads has two read holds.
func TestDowngrade_oneOfSeveral(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		first, second := w.take(w.a, writing, ctx), w.take(w.a, writing, ctx)
		reads := w.take(w.a, reading, ctx)
		more := w.downgrade(w.a, ctx, second)
		w.wantCount(reads, 2)
		w.wantHeld(first)
		if more.Owner() != reads.Owner() {
			w.Errorf("owners %s and %s", reads.Owner(), more.Owner())
		}
		w.refused(w.b, reading)
		last := w.downgrade(w.a, ctx, first)
		w.tryElsewhere(reading)
		w.unlockAll(reads, more, last)
	})
}

// The write hold was lost before, or is lost now: there is no read hold, even if the lock is free in the meantime, and
// nothing stays.
func TestDowngrade_ofALostHold(t *testing.T) {
	deleted := func(then func(w *world) lock.Hold) func(w *world, h lock.Hold) lock.Hold {
		return func(w *world, _ lock.Hold) lock.Hold { w.mini.Del("orders"); return then(w) }
	}
	forEach(t, map[string]func(w *world, h lock.Hold) (other lock.Hold){
		"released":              func(w *world, h lock.Hold) lock.Hold { w.unlock(h); return nil },
		"notified":              func(w *world, h lock.Hold) lock.Hold { w.mini.Del("orders"); <-h.Context().Done(); return nil },
		"deleted":               deleted(func(*world) lock.Hold { return nil }),
		"deleted and taken":     deleted(func(w *world) lock.Hold { return w.take(w.b, writing, w.Context()) }),
		"deleted and kept":      deleted(func(w *world) lock.Hold { return w.take(w.b, writing, w.Context(), lingers) }),
		"deleted and read":      deleted(func(w *world) lock.Hold { return w.take(w.b, reading, w.Context()) }),
		"deleted and read here": deleted(func(w *world) lock.Hold { return w.take(w.a, reading, w.Context()) }),
	}, func(w *world, lose func(w *world, h lock.Hold) (other lock.Hold)) {
		h := w.take(w.a, writing, w.Context())
		other, known := lose(w, h), h.Err()
		n := w.scripts()
		start := time.Now()
		err := w.tryDowngrade(w.Context(), h)
		if known != nil {
			w.wantSent(n, 0)
		}
		w.wantErr(err, lock.ErrNotHeld)
		if errors.Is(err, lock.ErrLost) == errors.Is(known, lock.ErrUnlocked) {
			w.Error(err)
		}
		w.wantTook(start, 0)
		w.wantErr(h.Err())
		if other != nil {
			synctest.Wait()
			state, err := Inspect(w.Context(), w.b, w.b.NewSpec(reading, "orders", nil), luascripts.InspectRW)
			if err != nil || len(state.Holders) != 1 {
				w.Errorf("%+v, %v", state, err)
			}
			w.wantHeld(other)
			w.unlock(other)
		}
	})
}

// Downgrade rejects a hold that is not a write hold of this lock, and leaves it unchanged.
func TestDowngrade_ofAnotherHold(t *testing.T) {
	inBubble(t, func(w *world) {
		reject := func(name string, h lock.Hold) {
			w.Helper()
			_, err := w.a.Downgrade(w.Context(), w.a.NewSpec(reading, name, nil), h)
			w.wantErr(err, lock.ErrNotHeld)
			w.wantNotErrs(err, lock.ErrLost)
			if h != nil {
				w.wantHeld(h)
			}
		}
		elsewhere, here := w.take(w.b, reading, w.Context()), w.take(w.a, reading, w.Context())
		for _, h := range []lock.Hold{nil, here, elsewhere, struct{ lock.Hold }{here}} {
			reject("orders", h)
		}
		w.unlockAll(elsewhere, here)
		write := w.take(w.a, writing, w.Context())
		reject("invoices", write)
		w.unlock(write)
		elsewhere = w.take(w.b, writing, w.Context())
		reject("orders", elsewhere)
		w.unlock(elsewhere)
	})
}

// Redis does not respond. If it does not confirm the read hold, the write hold is unchanged. If it does not confirm the
// release of the write hold, the release continues in the background.
func TestDowngrade_withoutAReply(t *testing.T) {
	forEach(t, map[string]int{"of the reading": 1, "of the end": 2}, func(w *world, swallowed int) {
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
		w.wantWithin(start, 2*opTime)
		w.wire.OnRequest(nil)
		if swallowed == 1 {
			w.wantNotErrs(err)
			w.wantHeld(h)
			read = w.downgrade(w.a, w.Context(), h) // retry
		} else if err != nil {
			w.Fatal(err)
		}
		time.Sleep(3 * opTime)
		w.unlock(w.take(w.b, reading, w.Context()))
		w.wantHeld(read)
		w.unlock(read)
		time.Sleep(3 * opTime)
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
		read := w.downgrade(w.a, w.Context(), w.take(w.a, writing, ctx))
		w.unlockAll(<-waits, read)
		w.unlockLost(h)
	})
}

// Another goroutine of the writer's owner has the turn of the read side for a second: the downgrade waits for it.
func TestDowngrade_waitsForItsTurn(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		write := w.take(w.a, writing, ctx)
		w.onNext(redistest.Action{DelayRequest: time.Second})
		other := w.goRead(w.a, ctx)
		start := time.Now()
		read := w.downgrade(w.a, ctx, write)
		w.wantTook(start, time.Second)
		w.unlockAll(<-other, read)
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
		start := time.Now()
		err := w.tryDowngrade(ctx, write)
		w.wantErr(err, lock.ErrNotAcquired)
		w.wantNotErrs(err, lock.ErrUnavailable)
		w.wantTook(start, opTime)
		w.wantHeld(write) // before a renewal
		w.unlock(other)
		w.unlock(<-waits)
		w.unlockLost(write)
	})
}

// Invalid options end a downgrade before anything else, and the write hold is unchanged.
func TestDowngrade_wrongOptions(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.a, writing, w.Context())
		spec := w.a.NewSpec(reading, "orders", []lock.Option{lock.WithWait(-1)})
		if read, err := w.a.Downgrade(w.Context(), spec, h); read != nil || !errors.Is(err, spec.Err) || spec.Err == nil {
			w.Errorf("%v, %v", read, err)
		}
		w.wantHeld(h)
		w.unlock(h)
	})
}

// Close begins after a downgrade has checked the write hold. Close releases that hold, and the downgrade returns
// ErrClosed.
func TestDowngrade_duringClose(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.a, writing, w.Context())
		ctx := &errHook{Context: w.Context(), f: func() { w.close(w.a) }}
		w.wantErr(w.tryDowngrade(ctx, h), lock.ErrClosed)
	})
}

// The write hold is lost during a downgrade, with or without a last renewal that timed out. Then the context of the
// downgrade is canceled. The error reports the loss, and not only the timeout.
func TestDowngrade_lostInBetween(t *testing.T) {
	forEach(t, map[string][]lock.Option{
		"a fixed lease":   {lock.WithFixedLease(leaseTime)},
		"a renewed lease": nil,
	}, func(w *world, opts []lock.Option) {
		read, write := *reading, *writing
		read.Sibling, write.Sibling = &write, &read
		write.Renew = func(_ context.Context, _ rueidis.Client, batch []luascripts.Renewal, _ time.Duration, _ int) []luascripts.Renewed {
			return slices.Repeat([]luascripts.Renewed{{Err: &net.OpError{Op: "dial", Err: context.DeadlineExceeded}}}, len(batch))
		}
		h := w.take(w.a, &write, w.Context(), opts...)
		time.Sleep(time.Until(h.Until()) - time.Second)
		reply := make(chan struct{})
		w.onNext(redistest.Action{HoldReply: reply})
		_, err := w.a.Downgrade(w.within(2*time.Second), w.a.NewSpec(&read, "orders", nil), h)
		w.wantErr(err, lock.ErrNotHeld, lock.ErrExpired)
		w.wantNotErrs(err, lock.ErrNotAcquired)
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
		lock.ErrUnlocked: "not held: already unlocked",
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
		w.onNext(redistest.Action{HoldReply: reply})
		err := w.tryDowngrade(w.Context(), h)
		w.wantErr(err, lock.ErrUnavailable)
		w.wantNotErrs(err, lock.ErrNotAcquired)
		if strings.Contains(err.Error(), "%!") {
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
		write, read := w.take(w.a, writing, ctx), w.take(w.a, reading, ctx)
		if read.Token() != 0 || write.Token() == 0 {
			w.Errorf("tokens %d for reading and %d for writing", read.Token(), write.Token())
		}
		time.Sleep(time.Hour)
		w.unlock(write)
		writer := w.goLock(w.b, writing, w.Context())
		w.unlock(w.take(w.b, reading, w.Context(), lock.WithReaderPreference()))
		time.Sleep(time.Hour)
		w.wantHeld(read)
		w.wantFail(w.a.Lock, ctx, w.a.NewSpec(writing, "orders", nil), lock.ErrUpgrade)
		w.unlock(read)
		w.unlock(<-writer)
	})
}

// A read hold lasts until Unlock, like the write hold before it. Its caller's context is canceled: the session reports that
// the work is still running.
func TestDowngrade_lastsUntilUnlock(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		write := w.must(lock.UntilUnlock(w.locker(w.a, writing)).Lock(ctx))
		read := w.downgrade(w.a, w.Context(), write)
		cancel()
		time.Sleep(10 * leaseTime)
		w.wantHeld(read)
		w.unlock(read)
		w.wantEnds("draining", "released", "released", "still running") // the write hold was released, too
	})
}
