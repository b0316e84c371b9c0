package demo

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/ratelimit"
)

const (
	perWindow = 100 // calls allowed per window
	window    = time.Second
)

var attack = 2500 * time.Millisecond // how long the limiters are called

// algorithm reports whether a call is admitted at a time. The time is that of a simulated clock, so that every call
// comes exactly when it does most harm.
type algorithm func(now time.Duration) bool

// The five usual algorithms, each implemented correctly.

func fixedWindow() algorithm {
	at, n := time.Duration(-1), 0
	return func(now time.Duration) bool {
		if w := now / window; w != at {
			at, n = w, 0
		}
		n++
		return n <= perWindow
	}
}

func slidingLog() algorithm {
	var log []time.Duration
	return func(now time.Duration) bool {
		log = slices.DeleteFunc(log, func(t time.Duration) bool { return t <= now-window })
		if len(log) == perWindow {
			return false
		}
		log = append(log, now)
		return true
	}
}

func slidingCounter() algorithm {
	at, before, n := time.Duration(-1), 0.0, 0.0
	return func(now time.Duration) bool {
		switch w := now / window; {
		case w == at+1:
			at, before, n = w, n, 0
		case w != at:
			at, before, n = w, 0, 0
		}
		if before*(1-float64(now%window)/float64(window))+n+1 > perWindow {
			return false
		}
		n++
		return true
	}
}

func tokenBucket() algorithm {
	tokens, last := float64(perWindow), time.Duration(0)
	return func(now time.Duration) bool {
		tokens = min(perWindow, tokens+float64(perWindow)*float64(now-last)/float64(window))
		last = now
		if tokens < 1-1e-9 {
			return false
		}
		tokens--
		return true
	}
}

func leakyQueue() algorithm {
	next := time.Duration(0)
	return func(now time.Duration) bool {
		if now < next {
			return false
		}
		next = now + window/perWindow
		return true
	}
}

// Three of them, with bugs that are common.

// loggingFirst adds a call to the log before it checks whether the call is admitted.
func loggingFirst() algorithm {
	var log []time.Duration
	return func(now time.Duration) bool {
		log = slices.DeleteFunc(log, func(t time.Duration) bool { return t <= now-window })
		log = append(log, now)
		return len(log) <= perWindow
	}
}

// forgetfulBucket does not record when it was last filled.
func forgetfulBucket() algorithm {
	tokens := float64(perWindow)
	return func(now time.Duration) bool {
		tokens = min(perWindow, tokens+float64(perWindow)*float64(now)/float64(window)) // the time since its creation, in every call
		if tokens < 1 {
			return false
		}
		tokens--
		return true
	}
}

// incrThenExpire counts with INCR, and sets the expiry only if it found no key. Once, the key expires between check and INCR.
func incrThenExpire() algorithm {
	n, until, raced := 0, time.Duration(0), false
	return func(now time.Duration) bool {
		exists := n > 0
		if exists && until > 0 && now >= until-time.Millisecond && !raced {
			raced, n, until = true, 0, 0 // the key existed when it was checked, and has expired since
		} else if until > 0 && now >= until {
			n, until, exists = 0, 0, false
		}
		n++ // INCR creates a missing key, without an expiry
		if !exists {
			until = now + window
		}
		return n <= perWindow
	}
}

// burst sends calls to an algorithm without a pause, starting just before a window boundary. It returns the
// maximum number admitted in any window.
func burst(a algorithm) (most int) {
	var passed []time.Duration
	for now := 2*window - time.Millisecond; now < 5*window; now += time.Millisecond {
		for range 2 * perWindow {
			if !a(now) {
				break
			}
			passed = append(passed, now)
		}
	}
	for i := range passed {
		n := 0
		for _, t := range passed[i:] {
			if t < passed[i]+window {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// hammered returns the number of calls admitted in ten windows at twice the rate.
func hammered(a algorithm) (passed int) {
	for now := time.Duration(0); now < 10*window; now += window / perWindow / 2 {
		if a(now) {
			passed++
		}
	}
	return passed
}

// burstReport is the result of the scene.
type burstReport struct {
	most     map[string]int // by algorithm
	hammered map[string]int
	limiter  int // calls that the rate limiter certainly admitted in its busiest window
	window   int // the same for the Redisson-compatible rate limiter
	took     int // total number of admitted calls, of the limiter that admitted fewer
}

// borderBurst shows what the usual algorithms admit at worst, and what leasehold's admit on a real clock.
func borderBurst(ctx context.Context, s *stage) error {
	s.out.line("%d calls per second are allowed. Callers start just before a second boundary, and call without a pause.", perWindow)
	r := burstReport{most: map[string]int{}, hammered: map[string]int{}}
	for _, a := range []struct {
		name string
		make func() algorithm
	}{{"fixed window", fixedWindow}, {"sliding log", slidingLog}, {"sliding counter", slidingCounter}, {"token bucket", tokenBucket}, {"leaky bucket, as a queue", leakyQueue}} {
		r.most[a.name] = burst(a.make())
		s.out.line("%-26s  admits at most %3d in a second", a.name, r.most[a.name])
	}
	r.hammered["log"] = hammered(loggingFirst())
	r.hammered["bucket"] = hammered(forgetfulBucket())
	r.hammered["incr"] = hammered(incrThenExpire())

	clients, err := s.openMany(ctx, 2)
	if err != nil {
		return err
	}
	w := clients[0].NewRedissonRateLimiter("calls window")
	if _, err := w.Init(ctx, perWindow, window); err != nil {
		return err
	}
	limit := ratelimit.Limit{Rate: perWindow / 2, Per: window, Burst: perWindow / 2}
	s.out.progress("two limiters of %d a second are called without a pause for %v", perWindow, attack)
	var limited, windowed []pass
	err = each(ctx, 2, func(ctx context.Context, i int) error {
		var err error
		if i == 0 {
			limited, err = attackers(ctx, len(clients), func(i int) (bool, error) {
				d, err := clients[i].NewRateLimiter("calls", ratelimit.FailClosed().After(tidyLimit), limit).Take(ctx, "ann", 1)
				return d.OK, err
			})
		} else {
			windowed, err = attackers(ctx, len(clients), func(i int) (bool, error) {
				d, err := clients[i].NewRedissonRateLimiter("calls window").Take(ctx, 1)
				return d.OK, err
			})
		}
		return err
	})
	if err != nil {
		return err
	}
	r.limiter, r.window, r.took = certainly(limited), certainly(windowed), min(len(limited), len(windowed))
	s.check(checkBursts(r)...)
	return nil
}

// pass is a call that was admitted at a time between sent and heard.
type pass struct{ sent, heard time.Time }

// attackers lets n callers call for the time of the attack, and returns the admitted calls.
func attackers(ctx context.Context, n int, take func(i int) (bool, error)) (passed []pass, err error) {
	end := time.Now().Add(attack)
	var mu sync.Mutex
	err = each(ctx, n, func(ctx context.Context, i int) error {
		for time.Now().Before(end) {
			sent := time.Now()
			ok, err := take(i)
			if err != nil {
				return err
			}
			if ok {
				mu.Lock()
				passed = append(passed, pass{sent, time.Now()})
				mu.Unlock()
			} else if err := sleep(ctx, time.Millisecond); err != nil {
				return err
			}
		}
		return nil
	})
	return passed, err
}

// certainly returns the maximum number of calls that were certainly admitted within a window, by both the wall clock, which
// the server uses and which may be changed, and the monotonic clock.
func certainly(passed []pass) (most int) {
	for _, from := range passed {
		n := 0
		for _, to := range passed {
			if !to.sent.Before(from.sent) && to.heard.Before(from.sent.Add(window)) && to.heard.Round(0).Before(from.sent.Round(0).Add(window)) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

func checkBursts(r burstReport) []claim {
	algorithms := fmt.Sprintf("%d, %d and %d", r.most["fixed window"], r.most["sliding counter"], r.most["token bucket"])
	return []claim{
		claimf(min(r.most["fixed window"], r.most["sliding counter"], r.most["token bucket"]) >= 2*perWindow-2,
			"a fixed window, a sliding counter and a token bucket of %d admit up to twice as many: %s", perWindow, algorithms),
		claimf(r.most["sliding log"] == perWindow && r.most["leaky bucket, as a queue"] <= perWindow+1, "a sliding log and a leaky bucket keep the limit: %d and %d", r.most["sliding log"], r.most["leaky bucket, as a queue"]),
		claimf(r.hammered["log"] < 2*perWindow, "a sliding log that counts rejected calls: at twice the rate, %d are admitted in ten seconds, not %d", r.hammered["log"], 10*perWindow),
		claimf(r.hammered["bucket"] > 15*perWindow, "a token bucket that loses its fill time: %d are admitted, not %d", r.hammered["bucket"], 11*perWindow),
		claimf(r.hammered["incr"] < 5*perWindow, "INCR, then EXPIRE only for a new key: the key expired in between, lost its expiry, and after %d calls none is admitted", r.hammered["incr"]),
		claimf(r.limiter <= perWindow && r.took > perWindow/2, "leasehold's rate limiter with half the rate and a burst of half: limit %d per second by the clock of Redis, at most %d admitted", perWindow, r.limiter),
		claimf(r.window <= perWindow, "leasehold's Redisson-compatible rate limiter: limit %d per second, at most %d admitted", perWindow, r.window),
	}
}
