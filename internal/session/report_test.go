package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
)

// logLines collects the lines of the default logger.
type logLines struct {
	mu   sync.Mutex
	text bytes.Buffer
	all  bytes.Buffer // all output since the start
}

func (h *logLines) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all.Write(p)
	return h.text.Write(p)
}

// lines returns the lines that contain it, and clears all.
func (h *logLines) lines(what string) (lines []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for line := range strings.Lines(h.text.String()) {
		if strings.Contains(line, what) {
			lines = append(lines, line)
		}
	}
	h.text.Reset()
	return lines
}

// want fails the test unless n lines contain what, and the first of them contains all of these texts. It clears all.
func (h *logLines) want(w *world, n int, what string, texts ...string) {
	w.Helper()
	lines := h.lines(what)
	if len(lines) != n {
		w.Errorf("logged %d lines with %q, want %d: %q", len(lines), what, n, lines)
		return
	}
	for _, text := range texts {
		if !strings.Contains(lines[0], text) {
			w.Errorf("logged %q, want %q", lines[0], text)
		}
	}
}

// withDefaultLogger runs f in a world whose session a has no configured logger. The default logger would accept Debug,
// too.
func withDefaultLogger(t *testing.T, f func(w *world, log *logLines)) {
	t.Helper()
	log := &logLines{}
	before := slog.Default()
	defer slog.SetDefault(before)
	inBubble(t, func(w *world) {
		w.a.report.given = nil
		slog.SetDefault(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		f(w, log)
		for line := range strings.Lines(log.all.String()) {
			level := "level=WARN "
			if strings.Contains(line, `msg="lock lost"`) {
				level = "level=ERROR "
			}
			if !strings.Contains(line, level) {
				t.Errorf("want %s: %s", level, line)
			}
		}
	})
}

func TestReport_nothingWithoutFaults(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *logLines) {
		for _, kind := range allKinds {
			rival := rival(kind)
			h := w.take(w.b, rival, w.Context())
			_, err := w.a.Lock(w.within(1500*time.Millisecond), w.a.NewSpec(kind, "orders", nil))
			w.wantEnd("Lock", err, []error{lock.ErrNotAcquired})
			got := make(chan lock.Hold)
			go func() { got <- w.take(w.a, kind, w.Context()) }()
			time.Sleep(3 * time.Second)
			w.unlock(h)
			h = <-got
			time.Sleep(2 * leaseTime)
			w.unlock(h)

			ctx, cancel := context.WithCancel(lock.ContextWithNewOwner(w.Context()))
			outer, inner := w.take(w.a, kind, ctx), w.take(w.a, kind, ctx) // a reentry
			if _, err := w.b.TryLock(w.Context(), w.b.NewSpec(rival, "orders", nil)); kind != reading && !errors.Is(err, lock.ErrNotAcquired) {
				t.Errorf("TryLock: %v", err)
			}
			w.unlockAll(inner, outer)
			cancel() // after the Unlock
			w.unlock(w.take(w.a, kind, w.Context(), lock.WithFixedLease(time.Minute), lock.WithMaxHold(time.Hour)))
			time.Sleep(2 * leaseTime)
		}
		var wg sync.WaitGroup
		for range 20 { // it is offered and handed off
			for _, s := range []*Session{w.a, w.b} {
				wg.Go(func() {
					for range 20 {
						w.unlock(w.lock(s, w.Context()))
					}
				})
			}
		}
		wg.Wait()
		w.lock(w.a, w.Context())
		if err := w.a.Close(w.Context()); err != nil { // releases what is held
			t.Error(err)
		}
		log.want(w, 0, "")
	})
}

// Each message is logged once per lock and interval, for a maximum number of locks. The next message has the number of
// suppressed ones: none is forgotten.
func TestReport_isLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const locks, seconds = 50, 100
		log := &logLines{}
		r := &reporter{given: slog.New(slog.NewTextHandler(log, nil))}
		for range seconds {
			for i := range locks {
				name := fmt.Sprint("orders", i)
				r.warn("trouble", name, "lock", name)
				r.lost(&Spec{Kind: plain, Name: name}, lock.ErrLost)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(reportEvery)
		r.warn("trouble", "last", "lock", "last")
		r.lost(&Spec{Kind: plain, Name: "last"}, lock.ErrLost)
		text := log.all.String()
		for _, message := range []string{"msg=trouble", `msg="lock lost"`} {
			logged, left := 0, 0
			for line := range strings.Lines(text) {
				if !strings.Contains(line, message) {
					continue
				}
				logged++
				if _, n, counted := strings.Cut(line, "suppressed="); counted {
					var k int
					if _, err := fmt.Sscan(n, &k); err != nil {
						t.Fatal(err)
					}
					left += k
				}
			}
			if want := int(seconds*time.Second/reportEvery)*reportMost + 1; logged != want {
				t.Errorf("%s is logged %d times, want %d", message, logged, want)
			}
			if want := locks*seconds + 1; logged+left != want {
				t.Errorf("%s: %d were logged or counted, want %d", message, logged+left, want)
			}
		}
	})
}

// A release that is never confirmed is logged, because no call could return that.
func TestReport_neverConfirmed(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *logLines) {
		h := w.lock(w.a, w.Context(), lock.WithFixedLease(time.Minute))
		w.wire.Freeze(true)
		_ = h.Unlock(w.Context()) // no reply
		time.Sleep(3 * time.Minute)
		log.want(w, 1, "release not confirmed")
		w.resume()
	})
}

// A Lock whose context ends during a request that fails is not logged: it does not retry, and its error says what happened.
func TestReport_endedDuringAFailure(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *logLines) {
		start := time.Now()
		var over atomic.Bool
		k := onRequest(plain, func(request) (luascripts.Acquired, error) {
			over.Store(time.Since(start) >= pollTime) // from then on, a failure would be logged
			return luascripts.Acquired{}, io.EOF
		})
		ctx := &errFunc{w.Context(), func() error {
			if over.Load() {
				return context.Canceled
			}
			return nil
		}}
		w.wantFail(w.a.Lock, ctx, w.a.NewSpec(k, "orders", nil), context.Canceled, lock.ErrUnavailable)
		log.want(w, 0, "will retry")
	})
}

// The session soon logs a Lock that waits for an unavailable Redis, and then at intervals until it ends.
func TestReport_unavailable(t *testing.T) {
	for name, dead := range map[string]bool{"dead": true, "paused": false} {
		for kindName, kind := range allKinds {
			t.Run(name+"/"+kindName, func(t *testing.T) {
				withDefaultLogger(t, func(w *world, log *logLines) {
					w.unlock(w.take(w.a, kind, w.Context()))
					if dead {
						w.cut()
					} else {
						w.wire.Freeze(true)
					}
					ctx, cancel := context.WithCancel(w.Context())
					var failed []<-chan error
					for range 5 {
						failed = append(failed, w.beginLock(w.a, kind, ctx))
					}
					time.Sleep(opTime + time.Second)
					log.want(w, 1, "redis unavailable", "level=WARN", "lock=orders")
					time.Sleep(2 * time.Minute)
					if lines := log.lines("redis unavailable"); len(lines) < 8 || len(lines) > 12 || !strings.Contains(lines[3], "suppressed=") && dead {
						t.Errorf("in two minutes %d lines, want one in %v: %q", len(lines), reportEvery, lines)
					}
					cancel()
					for _, err := range failed {
						<-err
					}
					w.wire.Refuse(false)
					w.resume()
				})
			})
		}
	}
}

// A replica is reported immediately.
func TestReport_replica(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *logLines) {
		w.unlock(w.lock(w.a, w.Context()))
		w.mini.SetError("READONLY You can't write against a read only replica.")
		_, _ = w.a.Lock(w.within(10*time.Millisecond), w.a.NewSpec(plain, "orders", nil)) // its messages count
		w.mini.SetError("")
		log.want(w, 1, "replica", w.a.sender.Address())
	})
}

// If many locks fail together, some are named, and the others counted.
func TestReport_lossesAndRenewals(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *logLines) {
		const many = 50
		var holds []lock.Hold
		for i := range many {
			holds = append(holds, w.lockNamed(fmt.Sprint("orders", i)))
		}
		w.wire.Freeze(true)
		time.Sleep(leaseTime * 2 / 3)
		if lines := log.lines("lease renewal failed"); len(lines) == 0 || len(lines) > 3 || !strings.Contains(lines[0], "level=WARN") {
			t.Errorf("failed renewals: %q", lines)
		}
		time.Sleep(leaseTime)
		log.want(w, reportMost, "lock lost")
		w.resume()
		h := w.lock(w.a, w.Context())
		w.mini.Del("orders")
		<-h.Context().Done()
		synctest.Wait() // the line is logged after the cancellation
		log.want(w, 1, "lock lost", fmt.Sprint("suppressed=", many-reportMost))
		for _, h := range holds {
			_ = h.Unlock(w.Context()) // it is lost
		}
	})
}

// The warning about a denied subscription names its effect, and no owner string.
func TestReport_deniedSubscriptions(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *logLines) {
		w.a.subscriptionDenied(keys.Client(w.a.id), errors.New("NOPERM"))
		w.a.subscriptionDenied(keys.OfClient("leasehold_channel:{orders}", w.a.id), errors.New("NOPERM"))
		lines := log.lines("subscription denied")
		if len(lines) != 2 || !strings.Contains(lines[0], "force-unlocks are detected at the next renewal") || !strings.Contains(lines[1], "polling once per second") {
			t.Errorf("%q", lines)
		}
		if strings.Contains(strings.Join(lines, ""), w.a.id) {
			t.Errorf("an owner is logged: %q", lines)
		}
	})
}

// The server denies the renewals of several locks together.
func TestReport_deniedRenewals(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *logLines) {
		var holds []lock.Hold
		for i := range 5 {
			holds = append(holds, w.lockNamed(fmt.Sprint("orders", i)))
		}
		w.mini.SetError("NOPERM this user has no permissions")
		time.Sleep(leaseTime / 2)
		w.mini.SetError("")
		if lines := log.lines("lease renewal failed"); len(lines) == 0 || !strings.Contains(lines[0], "NOPERM") {
			t.Errorf("%q", lines)
		}
		w.unlockAll(holds...)
	})
}

// A configured logger also gets Debug messages, even about short outages, but none about a wait without an error.
func TestReport_debug(t *testing.T) {
	inBubble(t, func(w *world) {
		log := &logLines{}
		w.a.report.given = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		h := w.take(w.b, fair, w.Context())
		next := w.goLock(w.a, fair, w.Context())
		time.Sleep(3 * pollTime)
		w.unlock(h)
		w.unlock(<-next)
		log.want(w, 0, "acquire attempt failed")
		w.a.reportUnavailable(w.a.NewSpec(plain, "orders", nil), pollTime/2, errors.New("no reply"))
		log.want(w, 1, "acquire attempt failed", "level=DEBUG", "orders")
	})
}

// A renewal warns once if the server evicts keys. Before Redis 7, a script cannot tell whether it is allowed to read the
// policy, so it does not.
func TestReport_evictions(t *testing.T) {
	server := redistest.Start(t, "--maxmemory", "100mb")
	asks := server.Do(t, "EVAL", "return redis.acl_check_cmd and 1 or 0", "0")
	warnings, err := asks.ToInt64()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t}
	for policy, want := range map[string]int{"allkeys-lru": int(warnings), "noeviction": 0} {
		server.Do(t, "CONFIG", "SET", "maxmemory-policy", policy)
		log := &logLines{}
		c := testConfig()
		c.CheckEviction, c.Logger = true, slog.New(slog.NewTextHandler(log, nil))
		s := New(server.Client(t), c)
		h := w.take(s, plain, t.Context())
		for range 2 {
			if errs := s.renew(t.Context(), []watchdog.Subject{h.(*hold).acquisition()}); errors.Join(errs...) != nil {
				t.Error(errs)
			}
		}
		if err := s.Close(t.Context()); err != nil { // after the reply to the check
			t.Error(err)
		}
		if lines := log.lines("server evicts keys"); len(lines) != want || want > 0 && !strings.Contains(lines[0], "maxmemory-policy="+policy) {
			t.Errorf("%s: logged %q", policy, lines)
		}
	}
}

// A closed session does not check for eviction, and a server that denies the check is not queried again.
func TestReport_evictionsNotChecked(t *testing.T) {
	inBubble(t, func(w *world) {
		n := w.scripts()
		w.mini.SetError("NOPERM this user has no permissions")
		for range 2 {
			w.a.CheckEvictionOnce()
			synctest.Wait()
		}
		w.mini.SetError("")
		if n.Load() != 1 {
			t.Errorf("%d queries", n.Load())
		}
	})
	inBubble(t, func(w *world) {
		w.close(w.a)
		w.sendsNothing(func() {
			w.a.CheckEvictionOnce()
			synctest.Wait()
		})
	})
}

// The check for eviction is repeated until the server has replied, and then no more.
func TestReport_evictionsWhileUnavailable(t *testing.T) {
	forEach(t, map[string]bool{"refused": true, "no reply": false}, func(w *world, refused bool) {
		w.wire.Refuse(refused)
		w.wire.Freeze(!refused)
		if refused {
			w.wire.CutAll()
		}
		w.a.CheckEvictionOnce()
		time.Sleep(2 * opTime)
		w.wire.Refuse(false)
		w.wire.Freeze(false)
		w.wire.CutAll()
		time.Sleep(2 * opTime)
		n := w.scripts()
		for i := range 3 {
			w.a.CheckEvictionOnce()
			w.a.CheckEvictionOnce() // while the other one is in flight
			time.Sleep(opTime)
			if sent := n.Load(); sent == 0 || i > 0 && sent > 2 {
				w.Errorf("check %d: %d commands", i, sent)
			}
		}
	})
}

// The warning of failed renewals counts only the failed ones.
func TestReport_someRenewalsFailed(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *logLines) {
		h := w.lock(w.a, w.Context())
		held := h.(*hold).acquisition()
		acquisitions := []*acquisition{held, held, held}
		(&renewal{s: w.a, acquisitions: acquisitions, order: []int{0, 1, 2}}).warnFailed([]error{nil, errors.New("no reply"), watchdog.ErrGone})
		log.want(w, 1, "lease renewal failed", "locks=1 ", "no reply")
		w.unlock(h)
	})
}

// Redis does not respond for about a lease, and then recovers: the release is confirmed or finds the lock gone, and
// nothing is logged. The command in flight during that time does not decide.
func TestReport_confirmedAfterAPause(t *testing.T) {
	for after := time.Duration(0); after <= 4*opTime; after += opTime / 4 {
		for name, resume := range map[string]func(*world){
			"it continues":          func(w *world) { w.wire.Freeze(false) },
			"its connections broke": func(w *world) { w.wire.CutAll(); w.wire.Freeze(false) },
		} {
			t.Run(fmt.Sprint(name, " ", after), func(t *testing.T) {
				withDefaultLogger(t, func(w *world, log *logLines) {
					h := w.lock(w.a, w.Context())
					w.wire.Freeze(true)
					_ = h.Unlock(w.Context()) // no reply
					time.Sleep(leaseTime + after)
					resume(w)
					time.Sleep(time.Minute)
					log.want(w, 0, "release not confirmed")
				})
			})
		}
	}
}
