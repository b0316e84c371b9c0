package session

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// reporter logs errors that no call can return. It limits the rate of each message and logs how many were suppressed.
type reporter struct {
	given           *slog.Logger // set once: the caller's; nil means slog.Default, without debug messages
	evictionChecked atomic.Bool  // see CheckEvictionOnce

	mu    sync.Mutex
	kinds map[string]*report // by message; guarded by mu
}

// report is the rate limit of one message.
type report struct {
	until time.Time       // when the current interval ends
	about map[string]bool // the locks for which it was logged in this interval
	left  int             // how often it was suppressed since it was last logged
}

const (
	reportEvery = 10 * time.Second // the interval: at most one message per lock
	reportMost  = 10               // the maximum number of locks per message and interval
)

// debug logs only to a logger that the caller configured.
func (r *reporter) debug(message string, args ...any) {
	if r.given != nil {
		r.given.Debug(message, args...)
	}
}

// warn logs a warning about the lock named about, subject to the rate limit.
func (r *reporter) warn(message, about string, args ...any) {
	r.say(slog.LevelWarn, message, about, args)
}

// lost logs that the lock of spec was lost because of cause, which may be the error of a hold. The level is error, because
// another client may have done the same work.
func (r *reporter) lost(spec *Spec, cause error) {
	var l loss
	if errors.As(cause, &l) { // mutant: always: text
		cause = l.cause
	}
	r.say(slog.LevelError, "lock lost", spec.Name, []any{"lock", spec.Name, "mode", spec.Mode, "cause", cause})
}

// unlockFailed logs that the release of h, whose Unlock did not wait for it, failed with err.
func (r *reporter) unlockFailed(h *hold, err error) {
	spec := h.acquisition().spec
	if errors.Is(err, lock.ErrLost) {
		r.lost(spec, err)
		return
	}
	r.warn("release not confirmed, will retry", spec.Name, "lock", spec.Name, "mode", spec.Mode, "err", h.unlockError(err))
}

// say logs message at level, subject to the rate limit.
func (r *reporter) say(level slog.Level, message, about string, args []any) {
	left, say := r.due(message, about)
	if !say {
		return
	}
	if left > 0 { // mutant: always, border: text
		args = append(args, "suppressed", left)
	}
	// An application may set slog's default late.
	cmp.Or(r.given, slog.Default()).Log(context.Background(), level, message, args...)
}

// due reports whether to log message, and how many such messages were suppressed before.
func (r *reporter) due(message, about string) (left int, say bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kinds == nil {
		r.kinds = make(map[string]*report)
	}
	k := r.kinds[message]
	if k == nil {
		k = &report{about: make(map[string]bool)}
		r.kinds[message] = k
	}
	if now := time.Now(); !now.Before(k.until) {
		k.until = now.Add(reportEvery)
		clear(k.about)
	}
	if k.about[about] || len(k.about) == reportMost {
		k.left++
		return 0, false
	}
	k.about[about] = true
	left, k.left = k.left, 0
	return left, true
}

// reportUnavailable logs that requests for spec have failed for quiet. It warns only after a poll interval, or if the
// server is a replica.
func (s *Session) reportUnavailable(spec *Spec, quiet time.Duration, err error) {
	if quiet < s.Poll && !command.IsReadOnly(err) { // mutant: border: a nanosecond
		s.report.debug("acquire attempt failed, will retry", "lock", spec.Name, "err", err)
		return
	}
	s.report.warn("redis unavailable, will retry", spec.Name, "lock", spec.Name, "for", command.Brief(quiet), "err", err)
}

// subscriptionDenied warns that the server denies the subscription to a channel. The warning omits the owner string at
// the end of some channel names.
func (s *Session) subscriptionDenied(channel string, err error) {
	effect := "polling once per second"
	if channel == keys.Client(s.id) {
		effect = "force-unlocks are detected at the next renewal"
	}
	lockOf, _, _ := strings.Cut(channel, ":"+s.id)
	s.report.warn("subscription denied (ACL); "+effect, lockOf, "channel", lockOf, "err", err)
}

// CheckEvictionOnce starts a goroutine that warns if the server evicts keys, because eviction deletes held locks. Once the
// server has replied, further calls do nothing.
func (s *Session) CheckEvictionOnce() {
	if s.report.evictionChecked.Swap(true) || s.sender.Enter() != nil {
		return
	}
	go func() {
		defer s.sender.Done()
		o := command.SendFunc(context.Background(), s.sender, s.OpTimeout, func(ctx context.Context) (string, error) {
			return luascripts.Evicts(ctx, s.rdb)
		})
		switch policy := o.Value; {
		case o.Err != nil:
			s.report.evictionChecked.Store(!s.sender.MayPass(o.Err)) // the next call may have a reply
		case policy != "":
			s.report.warn("server evicts keys; set maxmemory-policy noeviction", "", "server", s.sender.Address(), "maxmemory-policy", policy)
		}
	}()
}
