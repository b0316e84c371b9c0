package session

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Each test here fails without one guard of what follows from the answer to a release, or from
// an answer that does not come.

// deafened has session a hear no messages.
func (w *world) deafened() {
	w.wire.OnRequest(func(req [][]byte) redistest.Action {
		return redistest.Action{DropRequest: string(req[0]) == "SUBSCRIBE"}
	})
}

// The answer to a release says that the lock was let go for others. The next in this process
// hears no messages. It asks when the others had their time, and not later.
func TestGuard_asideByTheAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		w.deafened()
		var passed atomic.Int32
		k := gated(nil, func(pass passFunc) passFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Pass) (luascripts.Passed, error) {
				first := passed.Add(1) == 1
				if first {
					p.Heir = ""
				}
				reply, err := pass(ctx, rdb, k, owner, p)
				reply.Aside = first
				return reply, err
			}
		})
		h := w.take(w.a, k, w.Context())
		next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
		time.Sleep(2 * place.MaxPassTime)
		start := time.Now()
		w.unlock(h)
		h = <-next
		if took := time.Since(start); took != asideTime {
			w.Errorf("the next asks after %v, want %v", took, asideTime)
		}
		w.unlock(h)
	})
}

// A release gives the lock to another process. The next in this one asks when it hears messages,
// and not before; if it hears them already, it need not ask at all.
func TestGuard_asksWhenItListens(t *testing.T) {
	for name, want := range map[string]int64{"not yet": 2, "already": 1} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				h := w.lock(w.b, w.Context())
				if name == "already" {
					next := w.waiting(w.a, w.Context())
					w.unlock(h)
					w.unlock(w.next(next)) // and it listens on for a while
				} else {
					w.unlock(h)
					w.unlock(w.lock(w.a, w.Context())) // the server knows the scripts
				}
				h = w.lock(w.a, w.Context())
				there := w.waiting(w.b, w.Context())
				here := w.waiting(w.a, w.Context())
				time.Sleep(2 * place.MaxPassTime)
				sent := w.scripts()
				w.unlock(h)
				h = w.next(there)
				if n := sent.Load(); n != want {
					w.Errorf("%d scripts for a release, want %d", n, want)
				}
				w.unlock(h)
				w.unlock(w.next(here))
			})
		})
	}
}

// The next in the process has asked, and asks again a poll interval later. A release finds that
// the lock is gone: the next has it at once.
func TestGuard_aReleaseOfWhatIsGone(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		next := w.waiting(w.a, w.Context())
		time.Sleep(pollTime * 3 / 2)
		w.mini.Del("orders") // publishes nothing
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) {
			w.Errorf("unlock of a lost hold: %v", err)
		}
		w.unlock(w.next(next))
	})
}

// A release breaks off, and is carried out late. The heir that it names has given up before the
// release broke off, or after it. The lock is not left with it for an offer.
func TestGuard_theHeirOfAReleaseCarriedOutLate(t *testing.T) {
	for _, gone := range []string{"before", "after"} {
		t.Run(gone, func(t *testing.T) {
			inBubble(t, func(w *world) {
				breaks, settles := make(chan struct{}), make(chan struct{})
				var passed atomic.Int32
				var carryOut func()
				var holder string
				k := gated(nil, func(pass passFunc) passFunc {
					return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Pass) (luascripts.Passed, error) {
						switch n := passed.Add(1); {
						case n == 1:
							carryOut = func() {
								if reply, err := pass(w.Context(), w.rdb, k, owner, p); err != nil || reply.Token == 0 {
									w.Errorf("%+v, %v", reply, err)
								}
							}
							<-breaks
							return luascripts.Passed{}, &luascripts.ReplyError{Script: "a garbled reply"}
						case owner == holder:
							<-settles // what sees to the release is late, too
						}
						return pass(ctx, rdb, k, owner, p)
					}
				})
				h := w.take(w.a, k, w.Context())
				holder = h.Owner()
				ctx, cancel := context.WithCancel(w.Context())
				heir := w.waitingFor(w.a, ctx, w.a.NewSpec(k, "orders", nil))
				time.Sleep(2 * place.MaxPassTime)
				unlocked := make(chan error, 1)
				go func() { unlocked <- h.Unlock(w.Context()) }()
				synctest.Wait()
				leave := func() { cancel(); <-heir; synctest.Wait() }
				if gone == "before" {
					leave()
				}
				close(breaks)
				if err := <-unlocked; err == nil {
					w.Error("the server did not confirm")
				}
				synctest.Wait()
				if gone == "after" {
					leave()
				}
				time.Sleep(opTime - time.Millisecond)
				carryOut()
				time.Sleep(2 * time.Millisecond)
				if w.mini.Exists("orders") {
					w.Errorf("the lock is held for %v more, without a holder", w.mini.TTL("orders"))
				}
				close(settles)
			})
		})
	}
}

// A question is carried out, and breaks off. Its caller gives up before it asks again: nothing is
// left in Redis.
func TestGuard_aQuestionThatBrokeOffAndACallerThatGoes(t *testing.T) {
	inBubble(t, func(w *world) {
		var asked atomic.Int32
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
				a, err := acquire(ctx, rdb, k, q)
				if asked.Add(1) == 1 {
					return luascripts.Acquired{}, io.EOF
				}
				return a, err
			}
		}, nil)
		ctx, cancel := context.WithTimeout(w.Context(), time.Millisecond) // the pause is longer
		defer cancel()
		<-w.waitingFor(w.a, ctx, w.a.NewSpec(k, "orders", nil))
		synctest.Wait()
		if n := asked.Load(); n != 1 || w.mini.Exists("orders") {
			w.Errorf("asked %d times; the lock is held for %v more, without a holder", n, w.mini.TTL("orders"))
		}
	})
}

// A caller gives up while its question has no answer. It is taken back when there is one, and
// nothing is sent before.
func TestGuard_aQuestionIsTakenBackOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		goes := make(chan struct{})
		k := asksOnce(1, true, goes)
		never := make(chan struct{})
		sent := passes(k, 0, never)
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.waitingFor(w.a, ctx, w.a.NewSpec(k, "orders", nil))
		cancel()
		<-gone
		synctest.Wait()
		if n := sent.Load(); n != 0 {
			w.Errorf("%d releases of what Redis has not heard of", n)
		}
		close(goes)
		synctest.Wait()
		if n := sent.Load(); n != 1 || w.mini.Exists("orders") {
			w.Errorf("%d releases of what was granted to nobody, and the lock is held for %v more", n, w.mini.TTL("orders"))
		}
	})
}

// A release gives the lock to another process, and puts this one in line for a waiter that has
// never asked. The process is cut off, and the waiter gives up. The place is taken back when the
// server is back, also when that takes longer than a command.
func TestSettle_outlastsAPlaceByARelease(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		us, _, _ := strings.Cut(h.Owner(), ":")
		w.deafened()
		there := w.waiting(w.b, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		here := w.waiting(w.a, ctx)
		time.Sleep(2 * place.MaxPassTime)
		w.unlock(h)
		h = w.next(there)
		if line := w.mini.HGet("orders", "leasehold_line"); !strings.Contains(line, us) {
			w.Errorf("it does not stand in line: %q", line)
		}
		time.AfterFunc(time.Millisecond, cancel)
		w.cutOff((patiencePolls - 1) * pollTime)
		<-here
		time.Sleep(pollTime + pollTime/2)
		if line := w.mini.HGet("orders", "leasehold_line"); strings.Contains(line, us) {
			w.Errorf("it stands in line yet: %q", line)
		}
		w.wire.OnRequest(nil)
		w.unlock(h)
	})
}

// A release gives the lock to another process, and that one gives it back before the release is
// answered here. The next in this process has the lock with the answer: this process hears
// messages already, and heard that one.
func TestGuard_hearsBeforeTheAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		answer := make(chan struct{})
		k := gated(nil, nil)
		passes(k, 2, answer)
		spec := w.a.NewSpec(k, "orders", nil)
		h := w.lock(w.b, w.Context())
		here := w.waitingFor(w.a, w.Context(), spec)
		w.unlock(h)
		w.unlock(w.next(here)) // it listens on for a while
		h = w.take(w.a, k, w.Context())
		there := w.waiting(w.b, w.Context())
		here = w.waitingFor(w.a, w.Context(), spec)
		time.Sleep(2 * place.MaxPassTime)
		unlocked := make(chan struct{})
		go func() { w.unlock(h); close(unlocked) }()
		w.unlock(<-there)
		synctest.Wait()
		start := time.Now()
		close(answer)
		<-unlocked
		h = <-here
		if took := time.Since(start); took != 0 {
			w.Errorf("it has the lock after %v", took)
		}
		w.unlock(h)
	})
}

// A release is carried out, and breaks off. The next in this process, which asks a poll interval
// later and hears no messages, has the lock at once.
func TestGuard_aReleaseThatBreaksOffWakesTheNext(t *testing.T) {
	inBubble(t, func(w *world) {
		w.deafened()
		var passed atomic.Int32
		k := gated(nil, func(pass passFunc) passFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Pass) (luascripts.Passed, error) {
				first := passed.Add(1) == 1
				reply, err := pass(ctx, rdb, k, owner, p)
				if first {
					return luascripts.Passed{}, &luascripts.ReplyError{Script: "a garbled reply"}
				}
				return reply, err
			}
		})
		h := w.take(w.a, k, w.Context())
		next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
		time.Sleep(pollTime * 3 / 2)
		start := time.Now()
		if err := h.Unlock(w.Context()); err == nil {
			w.Error("the server did not confirm")
		}
		h = <-next
		if took := time.Since(start); took != 0 {
			w.Errorf("the next has it after %v", took)
		}
		w.unlock(h)
	})
}
