package session

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
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
	after time.Duration
	opts  []lock.Option
	ctx   func(context.Context, time.Duration) (context.Context, context.CancelFunc)
	match error
	not   error
}{
	"WithWait": {
		opts: []lock.Option{lock.WithWait(2 * time.Second)},
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

var allKinds = map[string]*Kind{"plain": plain, "fair": fair, "reading": reading, "writing": writing}

// Redis does not respond from the start. No error of a wait or a TryLock reports another owner, whether the waiter
// sends the request itself or joins another one. If its context is canceled before a request is overdue, the error is
// only that of the context.
func TestUnavailable_fromTheStart(t *testing.T) {
	for kindName, kind := range allKinds {
		for endName, end := range ends {
			for _, d := range []time.Duration{30 * time.Millisecond, 2 * time.Second, 20 * time.Second} {
				t.Run(kindName+"/"+endName+"/"+d.String(), func(t *testing.T) {
					inBubble(t, func(w *world) {
						w.unlock(w.take(w.a, kind, w.Context())) // connects
						w.wire.Freeze(true)
						opts := end.opts
						if opts != nil {
							opts = []lock.Option{lock.WithWait(d)}
						}
						errs := make(chan error)
						for range 3 {
							go func() {
								ctx, cancel := end.ctx(w.Context(), d)
								defer cancel()
								_, err := w.a.Lock(ctx, w.a.NewSpec(kind, "orders", opts))
								errs <- err
							}()
						}
						for range 3 {
							err := <-errs
							w.wantEnd("Lock", err, []error{end.match}, end.not, lock.ErrNotAcquired)
							if want := d > opTime || opts != nil; errors.Is(err, lock.ErrUnavailable) != want {
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
}

func TestUnavailable_try(t *testing.T) {
	for name, kind := range allKinds {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.unlock(w.take(w.a, kind, w.Context()))
				w.wire.Freeze(true)
				try := func(ctx context.Context) <-chan error {
					errs := make(chan error, 1)
					go func() {
						_, err := w.a.TryLock(ctx, w.a.NewSpec(kind, "orders", nil))
						errs <- err
					}()
					return errs
				}
				ctx, cancel := context.WithTimeout(w.Context(), 50*time.Millisecond)
				defer cancel()
				w.wantEnd("deadline", <-try(ctx), []error{context.DeadlineExceeded}, lock.ErrUnavailable, lock.ErrNotAcquired)
				w.wantEnd("operation time-out", <-try(w.Context()), []error{lock.ErrUnavailable, os.ErrDeadlineExceeded}, lock.ErrNotAcquired)

				w.wire.Freeze(false)
				time.Sleep(2 * leaseTime)
			})
		})
	}
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
	for kindName, kind := range allKinds {
		for endName, end := range ends {
			t.Run(kindName+"/"+endName, func(t *testing.T) {
				inBubble(t, func(w *world) {
					rival := kind
					if kind.Sibling != nil {
						rival = writing
					}
					w.unlock(w.take(w.a, kind, w.Context())) // loads the script
					if kind.Keep != nil {
						if _, err := kind.Keep(w.Context(), w.rdb, kind.Keys("orders"), nil); err != nil { // and the script of batched entries
							w.Fatal(err)
						}
					}
					h := w.take(w.b, rival, w.Context())
					w.slowScripts(20 * time.Millisecond)
					for _, d := range []time.Duration{30 * time.Millisecond, 300 * time.Millisecond, time.Second, time.Second + 25*time.Millisecond, 1030 * time.Millisecond, 2500 * time.Millisecond} {
						opts := end.opts
						if opts != nil {
							opts = []lock.Option{lock.WithWait(d)}
						}
						errs := make(chan error)
						for range 3 {
							go func() {
								ctx, cancel := end.ctx(w.Context(), d)
								defer cancel()
								_, err := w.a.Lock(ctx, w.a.NewSpec(kind, "orders", opts))
								errs <- err
							}()
						}
						for range 3 {
							w.wantEnd(d.String(), <-errs, []error{lock.ErrNotAcquired, end.match}, lock.ErrUnavailable)
						}
					}
					_, err := w.a.TryLock(w.Context(), w.a.NewSpec(kind, "orders", nil))
					w.wantEnd("TryLock", err, []error{lock.ErrNotAcquired}, lock.ErrUnavailable)
					w.unlock(h)
				})
			})
		}
	}
}

// Redis replies that another owner has the lock, and then becomes unavailable. The waiter relies on the reply for a
// short time. When its next request is overdue, the error reports Redis as unavailable.
func TestUnavailable_afterARefusal(t *testing.T) {
	for kindName, kind := range allKinds {
		t.Run(kindName, func(t *testing.T) {
			inBubble(t, func(w *world) {
				rival := kind
				if kind.Sibling != nil {
					rival = writing
				}
				h := w.take(w.b, rival, w.Context())
				for after, unavailable := range map[time.Duration]bool{
					300 * time.Millisecond:              false,
					pollTime + opTime - time.Second/2:   false, // its latest request is in flight
					2*pollTime + opTime + time.Second/2: true,
					20 * time.Second:                    true,
				} {
					ctx, cancel := context.WithCancel(w.Context())
					errs := make(chan error)
					for range 2 {
						go func() {
							_, err := w.a.Lock(ctx, w.a.NewSpec(kind, "orders", nil))
							errs <- err
						}()
					}
					time.Sleep(10 * time.Millisecond)
					w.wire.Freeze(true)
					time.Sleep(after - 10*time.Millisecond)
					want := lock.ErrNotAcquired
					if unavailable {
						want = lock.ErrUnavailable
					}
					if kind.WaitPolicy == lockstate.OnlyFirst { // otherwise a TryLock sends a request
						_, err := w.a.TryLock(w.within(time.Millisecond), w.a.NewSpec(kind, "orders", nil))
						w.wantEnd("TryLock behind the others after "+after.String(), err, []error{want})
					}
					cancel()
					for range 2 {
						w.wantEnd(after.String(), <-errs, []error{want, context.Canceled})
					}
					w.wire.Freeze(false)
					w.wire.CutAll()
					time.Sleep(time.Minute)
				}
				w.unlock(h)
			})
		})
	}
}

// A transient error reply counts as unavailable, and an error about the caller is returned. If memory is full, a
// TryLock does not retry.
func TestUnavailable_replies(t *testing.T) {
	for reply, unavailable := range map[string]bool{
		"LOADING Redis is loading the dataset in memory":        true,
		"CLUSTERDOWN Hash slot not served":                      true,
		"MASTERDOWN Link with MASTER is down":                   true,
		"TRYAGAIN Multiple keys request during rehashing":       true,
		"BUSY Redis is busy running a script.":                  true,
		"READONLY You can't write against a read only replica.": true,
		"NOPERM this user has no permissions":                   false,
		"OOM command not allowed":                               true,
		"NOREPLICAS Not enough good replicas to write.":         true,
	} {
		t.Run(reply, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.unlock(w.lock(w.a, w.Context()))
				w.mini.SetError(reply)
				start := time.Now()
				_, try := w.a.TryLock(w.Context(), w.a.NewSpec(plain, "orders", nil))
				took := time.Since(start)
				_, wait := w.a.Lock(w.within(2*time.Second), w.a.NewSpec(plain, "orders", nil))
				_, inspect := Inspect(w.Context(), w.a, w.a.NewSpec(plain, "orders", nil), luascripts.InspectReentrant)
				w.mini.SetError("")
				if unavailable {
					w.wantEnd("TryLock", try, []error{lock.ErrUnavailable}, lock.ErrNotAcquired)
					w.wantEnd("Lock", wait, []error{lock.ErrUnavailable, context.DeadlineExceeded})
					w.wantEnd("Inspect", inspect, []error{lock.ErrUnavailable})
				} else {
					w.wantEnd("TryLock", try, nil, lock.ErrUnavailable, lock.ErrNotAcquired)
					w.wantEnd("Lock", wait, nil, lock.ErrUnavailable, lock.ErrNotAcquired)
					w.wantEnd("Inspect", inspect, nil, lock.ErrUnavailable)
				}
				for _, err := range []error{try, wait, inspect} {
					if !strings.Contains(err.Error(), reply) {
						t.Errorf("%v does not say %q", err, reply)
					}
				}
				if strings.Contains(reply, "OOM") && took != 0 {
					t.Errorf("TryLock takes %v", took)
				}
				if strings.Contains(reply, "READONLY") {
					if took != 0 || !strings.Contains(try.Error(), w.a.sender.Address()) || !strings.Contains(try.Error(), "replica") || w.a.sender.Address() == "" {
						t.Errorf("after %v: %v, want at once the address of the replica, which is %q", took, try, w.a.sender.Address())
					}
				}
			})
		})
	}
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
	for name, earlier := range map[string]func(w *world, ctx context.Context, inner lock.Hold) error{
		"an Unlock": func(w *world, ctx context.Context, inner lock.Hold) error {
			w.wire.OnRequest(redistest.Once("EVALSHA", late))
			return inner.Unlock(ctx)
		},
		"a reentry": func(w *world, ctx context.Context, inner lock.Hold) error {
			w.wire.OnRequest(redistest.Once("EVALSHA", late))
			_, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil))
			return err
		},
		"a refusal": func(w *world, ctx context.Context, inner lock.Hold) error {
			w.mini.SetError("NOPERM no right")
			_, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil))
			w.mini.SetError("")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				outer := w.lock(w.a, w.Context())
				inner := w.lock(w.a, outer.Context())
				ctx, cancel := context.WithTimeout(outer.Context(), 10*time.Millisecond)
				if err := earlier(w, ctx, inner); err == nil {
					w.Error("it succeeded")
				}
				cancel()
				time.Sleep(time.Hour)

				w.wire.OnRequest(redistest.Once("EVALSHA", late))
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
		})
	}
}

// A waiter gets the lock by a hand-off inside the process, without a request. A call behind it does not report that a
// reply is missing, even if the next request is due only after an operation timeout.
func TestUnavailable_notBehindAHandOff(t *testing.T) {
	for name, kind := range map[string]*Kind{"plain": plain, "fair": fair} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				config := testConfig()
				config.OpTimeout = pollTime / 4
				s := New(w.mini.Client(w), config)
				h := w.take(s, kind, w.Context())
				next, behind := w.goLock(s, kind, w.Context()), make(chan error)
				synctest.Wait()
				go func() {
					_, err := s.Lock(w.within(pollTime*3/4), s.NewSpec(kind, "orders", nil))
					behind <- err
				}()
				time.Sleep(2 * pollTime / 5) // past the first requests
				w.unlock(h)
				h = <-next
				w.wantEnd("Lock", <-behind, []error{lock.ErrNotAcquired, context.DeadlineExceeded}, lock.ErrUnavailable)
				w.unlock(h)
				if err := s.Close(w.Context()); err != nil {
					w.Error(err)
				}
			})
		})
	}
}
