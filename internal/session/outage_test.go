package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// wantEnd checks what the error of a wait or a TryLock matches, and what it does not. No error matches both
// ErrNotAcquired and ErrUnavailable.
func (w *world) wantEnd(what string, err error, match []error, not ...error) {
	w.Helper()
	for _, target := range match {
		if !errors.Is(err, target) {
			w.Errorf("%s: %v, want one that matches %q", what, err, target)
		}
	}
	for _, target := range not {
		if errors.Is(err, target) {
			w.Errorf("%s: %v, which matches %q", what, err, target)
		}
	}
	if errors.Is(err, lock.ErrNotAcquired) && errors.Is(err, lock.ErrUnavailable) {
		w.Errorf("%s: %v, which matches both", what, err)
	}
	if losses := err != nil && notServed.MatchString(err.Error()); losses != errors.Is(err, lock.ErrUnavailable) {
		w.Errorf("%s: %v, does it say that Redis is unavailable?", what, err)
	}
}

// notServed finds the text of an error of a call that Redis did not serve.
var notServed = regexp.MustCompile(`Redis at \S+ (does not respond|has not responded for|cannot serve this now|has been unable to serve this for)`)

// ends are the ways in which a wait can end without the lock.
var ends = map[string]struct {
	waits bool // the limit is that of WithWait
	ctx   func(context.Context, time.Duration) (context.Context, context.CancelFunc)
	match error
	not   error
}{
	"WithWait": {
		waits: true,
		ctx: func(ctx context.Context, _ time.Duration) (context.Context, context.CancelFunc) {
			return ctx, func() {}
		},
		match: os.ErrDeadlineExceeded,
		not:   context.DeadlineExceeded,
	},
	"deadline": {ctx: context.WithTimeout, match: context.DeadlineExceeded, not: context.Canceled},
	"cancel": {
		ctx: func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(d, cancel)
			return ctx, cancel
		},
		match: context.Canceled,
		not:   context.DeadlineExceeded,
	},
}

// threeEnd starts three calls of Lock that end in this way after d, and returns their errors.
func (w *world) threeEnd(kind *Kind, endName string, d time.Duration) (errs []error) {
	w.Helper()
	end := ends[endName]
	var opts []lock.Option
	if end.waits {
		opts = []lock.Option{lock.WithWait(d)}
	}
	var failed []<-chan error
	for range 3 {
		ctx, cancel := end.ctx(w.Context(), d)
		defer cancel()
		failed = append(failed, w.beginLock(w.a, kind, ctx, opts...))
	}
	for _, err := range failed {
		errs = append(errs, <-err)
	}
	return errs
}

var allKinds = map[string]*Kind{"plain": plain, "fair": fair, "reading": reading, "writing": writing}

// Redis does not respond from the start. No error of a wait or a TryLock reports another owner, whether the waiter
// sends the request itself or joins another one. If its context is canceled before a request is overdue, the error is
// only that of the context.
func TestUnavailable_fromTheStart(t *testing.T) {
	for endName, end := range ends {
		for _, d := range []time.Duration{30 * time.Millisecond, 2 * time.Second, 20 * time.Second} {
			t.Run(fmt.Sprint(endName, d), func(t *testing.T) {
				forEach(t, allKinds, func(w *world, kind *Kind) {
					w.unlock(w.take(w.a, kind, w.Context())) // connects
					w.wire.Freeze(true)
					for _, err := range w.threeEnd(kind, endName, d) {
						w.wantEnd("Lock", err, []error{end.match}, end.not, lock.ErrNotAcquired)
						if want := d > opTime || end.waits; errors.Is(err, lock.ErrUnavailable) != want {
							w.Errorf("Lock: %v, does it match ErrUnavailable?", err)
						}
					}
					w.wire.Freeze(false)
					time.Sleep(2 * leaseTime) // the server executes the delayed commands now, and the session releases the grants
				})
			})
		}
	}
}

func TestUnavailable_try(t *testing.T) {
	forEach(t, allKinds, func(w *world, kind *Kind) {
		w.unlock(w.take(w.a, kind, w.Context()))
		w.wire.Freeze(true)
		spec := w.a.NewSpec(kind, "orders", nil)
		_, err := w.a.TryLock(w.within(50*time.Millisecond), spec)
		w.wantEnd("deadline", err, []error{context.DeadlineExceeded}, lock.ErrUnavailable, lock.ErrNotAcquired)
		_, err = w.a.TryLock(w.Context(), spec)
		w.wantEnd("operation time-out", err, []error{lock.ErrUnavailable, os.ErrDeadlineExceeded}, lock.ErrNotAcquired)
		w.wire.Freeze(false)
		time.Sleep(2 * leaseTime)
	})
}

// within returns a context with a timeout of d.
func (w *world) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(w.Context(), d)
	w.Cleanup(cancel)
	return ctx
}

// Another owner has the lock, and Redis confirms it. However a wait ends, even while the next request is due or in
// flight, its error reports another owner.
func TestUnavailable_notWhileRedisReplies(t *testing.T) {
	const ms = time.Millisecond
	for endName, end := range ends {
		t.Run(endName, func(t *testing.T) {
			forEach(t, allKinds, func(w *world, kind *Kind) {
				w.unlock(w.take(w.a, kind, w.Context())) // loads the script
				if kind.Keep != nil {
					if _, err := kind.Keep(w.Context(), w.rdb, kind.Keys("orders"), nil); err != nil { // and the script of batched entries
						w.Fatal(err)
					}
				}
				h := w.take(w.b, rival(kind), w.Context())
				w.slowScripts(20 * ms)
				for _, d := range []time.Duration{30 * ms, 300 * ms, 1000 * ms, 1025 * ms, 1030 * ms, 2500 * ms} {
					for _, err := range w.threeEnd(kind, endName, d) {
						w.wantEnd(d.String(), err, []error{lock.ErrNotAcquired, end.match}, lock.ErrUnavailable)
					}
				}
				_, err := w.a.TryLock(w.Context(), w.a.NewSpec(kind, "orders", nil))
				w.wantEnd("TryLock", err, []error{lock.ErrNotAcquired}, lock.ErrUnavailable)
				w.unlock(h)
			})
		})
	}
}

// Redis replies that another owner has the lock, and then becomes unavailable. The waiter relies on the reply for a
// short time. When its next request is overdue, the error reports Redis as unavailable.
func TestUnavailable_afterARefusal(t *testing.T) {
	forEach(t, allKinds, func(w *world, kind *Kind) {
		h, spec := w.take(w.b, rival(kind), w.Context()), w.a.NewSpec(kind, "orders", nil)
		for after, want := range map[time.Duration]error{
			300 * time.Millisecond:              lock.ErrNotAcquired,
			pollTime + opTime - time.Second/2:   lock.ErrNotAcquired, // its latest request is in flight
			2*pollTime + opTime + time.Second/2: lock.ErrUnavailable,
			20 * time.Second:                    lock.ErrUnavailable,
		} {
			ctx, cancel := context.WithCancel(w.Context())
			first, second := w.beginFail(w.a.Lock, ctx, spec), w.beginFail(w.a.Lock, ctx, spec)
			time.Sleep(10 * time.Millisecond)
			w.wire.Freeze(true)
			time.Sleep(after - 10*time.Millisecond)
			if kind.WaitPolicy == lockstate.OnlyFirst { // otherwise a TryLock sends a request
				_, err := w.a.TryLock(w.within(time.Millisecond), spec)
				w.wantEnd("TryLock behind the others after "+after.String(), err, []error{want})
			}
			cancel()
			w.wantEnd(after.String(), <-first, []error{want, context.Canceled})
			w.wantEnd(after.String(), <-second, []error{want, context.Canceled})
			w.resume()
		}
		w.unlock(h)
	})
}

// A transient error reply counts as unavailable, and an error about the caller is returned. If memory is full, a
// TryLock does not retry.
func TestUnavailable_replies(t *testing.T) {
	type test struct {
		reply     string
		available bool
		immediate bool // a TryLock does not retry
		replica   bool // the error names the address
	}
	forEach(t, map[string]test{
		"loading":          {reply: loading},
		"cluster down":     {reply: "CLUSTERDOWN Hash slot not served"},
		"no primary":       {reply: "MASTERDOWN Link with MASTER is down"},
		"slot moves":       {reply: "TRYAGAIN Multiple keys request during rehashing"},
		"busy":             {reply: "BUSY Redis is busy running a script."},
		"replica":          {reply: "READONLY You can't write against a read only replica.", immediate: true, replica: true},
		"no permission":    {reply: "NOPERM this user has no permissions", available: true},
		"out of memory":    {reply: "OOM command not allowed", immediate: true},
		"too few replicas": {reply: "NOREPLICAS Not enough good replicas to write."},
	}, func(w *world, c test) {
		spec := w.a.NewSpec(plain, "orders", nil)
		w.unlock(w.lock(w.a, w.Context()))
		w.mini.SetError(c.reply)
		start := time.Now()
		_, try := w.a.TryLock(w.Context(), spec)
		took := time.Since(start)
		_, wait := w.a.Lock(w.within(2*time.Second), spec)
		_, inspect := Inspect(w.Context(), w.a, spec, luascripts.InspectReentrant)
		w.mini.SetError("")
		if c.available {
			w.wantEnd("TryLock", try, nil, lock.ErrUnavailable, lock.ErrNotAcquired)
			w.wantEnd("Lock", wait, nil, lock.ErrUnavailable, lock.ErrNotAcquired)
			w.wantEnd("Inspect", inspect, nil, lock.ErrUnavailable)
		} else {
			w.wantEnd("TryLock", try, []error{lock.ErrUnavailable}, lock.ErrNotAcquired)
			w.wantEnd("Lock", wait, []error{lock.ErrUnavailable, context.DeadlineExceeded})
			w.wantEnd("Inspect", inspect, []error{lock.ErrUnavailable})
		}
		for _, err := range []error{try, wait, inspect} {
			if !strings.Contains(errText(err), c.reply) {
				w.Errorf("%v does not say %q", err, c.reply)
			}
		}
		if c.immediate && took != 0 {
			w.Errorf("TryLock takes %v", took)
		}
		address := w.a.sender.Address()
		if c.replica && (address == "" || !strings.Contains(try.Error(), address) || !strings.Contains(try.Error(), "replica")) {
			w.Errorf("%v, want the address of the replica, which is %q", try, address)
		}
	})
}

// A call that does not wait for a lock also ends without a reply.
func TestUnavailable_otherCalls(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		h, again := w.lock(w.a, ctx), w.lock(w.a, ctx)
		w.wire.Freeze(true)
		spec := w.a.NewSpec(plain, "orders", nil)
		_, err := w.a.Lock(lock.ContextWithNewOwner(w.within(time.Millisecond)), spec)
		w.wantEnd("another owner", err, []error{lock.ErrNotAcquired}, lock.ErrUnavailable) // the process knows that another owner has the lock
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		_, err = w.a.Lock(short, spec)
		w.wantEnd("reentry", err, []error{context.DeadlineExceeded}, lock.ErrUnavailable, lock.ErrNotAcquired)
		_, err = Inspect(w.within(50*time.Millisecond), w.a, spec, luascripts.InspectReentrant)
		w.wantEnd("Inspect with a deadline", err, []error{context.DeadlineExceeded}, lock.ErrUnavailable)
		_, err = w.a.Force(w.Context(), w.a.NewSpec(plain, "other", nil), luascripts.ForceReentrant)
		w.wantEnd("ForceUnlock", err, []error{lock.ErrUnavailable, os.ErrDeadlineExceeded})
		w.wantEnd("Unlock with a deadline", again.Unlock(w.within(50*time.Millisecond)), []error{context.DeadlineExceeded}, lock.ErrUnavailable, lock.ErrNotHeld)
		w.wantEnd("Unlock", h.Unlock(w.Context()), []error{lock.ErrUnavailable, os.ErrDeadlineExceeded}, lock.ErrNotHeld)
		w.wire.Freeze(false)
		w.wire.CutAll()
		time.Sleep(time.Minute)
	})
}

// A TryLock is refused because another owner has the lock. A waiter behind it therefore does not report Redis as
// unavailable.
func TestUnavailable_notBehindARefusedTryLock(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.slowScripts(20 * time.Millisecond)
		go func() { _, _ = w.a.TryLock(w.Context(), w.a.NewSpec(plain, "orders", nil)) }()
		time.Sleep(time.Millisecond)
		_, err := w.a.Lock(w.within(900*time.Millisecond), w.a.NewSpec(plain, "orders", nil))
		w.wantEnd("Lock", err, []error{lock.ErrNotAcquired, context.DeadlineExceeded}, lock.ErrUnavailable)
		w.unlock(h)
	})
}

// A command that changes the hold count of an owner got no reply in time, or an error. A call that waits for it much
// later reports for how long it has had no reply.
func TestUnavailable_afterAnEarlierCommand(t *testing.T) {
	late := redistest.Action{DelayReply: 3 * opTime}
	forEach(t, map[string]func(w *world, ctx context.Context, inner lock.Hold) error{
		"an Unlock": func(w *world, ctx context.Context, inner lock.Hold) error {
			w.onNext(late)
			return inner.Unlock(ctx)
		},
		"a reentry": func(w *world, ctx context.Context, inner lock.Hold) error {
			w.onNext(late)
			_, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil))
			return err
		},
		"a refusal": func(w *world, ctx context.Context, inner lock.Hold) error {
			w.mini.SetError("NOPERM no right")
			_, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil))
			w.mini.SetError("")
			return err
		},
	}, func(w *world, earlier func(w *world, ctx context.Context, inner lock.Hold) error) {
		outer := w.lock(w.a, w.Context())
		inner := w.lock(w.a, outer.Context())
		ctx, cancel := context.WithTimeout(outer.Context(), 10*time.Millisecond)
		w.wantErr(earlier(w, ctx, inner))
		cancel()
		time.Sleep(time.Hour)

		w.onNext(late)
		again := w.waitingFor(w.a, outer.Context(), w.a.NewSpec(plain, "orders", nil))
		ctx, cancel = context.WithTimeout(outer.Context(), opTime+time.Second)
		defer cancel()
		if _, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil)); !errors.Is(err, lock.ErrUnavailable) || !strings.HasSuffix(err.Error(), "for "+(opTime+time.Second).String()) {
			w.Error(err)
		}
		w.unlock(<-again)
		_ = inner.Unlock(w.Context())
		w.unlock(outer)
	})
}

// A waiter gets the lock by a hand-off inside the process, without a request. A call behind it does not report that a
// reply is missing, even if the next request is due only after an operation timeout.
func TestUnavailable_notBehindAHandOff(t *testing.T) {
	forEach(t, map[string]*Kind{"plain": plain, "fair": fair}, func(w *world, kind *Kind) {
		config := testConfig()
		config.OpTimeout = pollTime / 4
		s := New(w.mini.Client(w), config)
		h := w.take(s, kind, w.Context())
		next, behind := w.goLock(s, kind, w.Context()), w.beginLock(s, kind, w.within(pollTime*3/4))
		time.Sleep(2 * pollTime / 5) // past the first requests
		w.unlock(h)
		h = <-next
		w.wantEnd("Lock", <-behind, []error{lock.ErrNotAcquired, context.DeadlineExceeded}, lock.ErrUnavailable)
		w.unlock(h)
		w.close(s)
	})
}
