package session

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/luascripts"
)

// reporter tells operators what goes wrong while no call is there to return an error. A
// message that comes often is said once in a while, with how often it was left out.
type reporter struct {
	given  *slog.Logger // set once: the caller's; nil is slog.Default, which gets no Debug
	looked sync.Once    // see LookOnce

	mu    sync.Mutex
	kinds map[string]*report // by message; guarded by mu
}

// report is one kind of message, and its current interval.
type report struct {
	until time.Time       // when the interval ends
	about map[string]bool // what it was said of
	left  int             // how often it was not said since it was last said
}

const (
	reportEvery = 10 * time.Second // an interval: what was said of a lock is not said of it again in it
	reportMost  = 10               // of how many locks it is said in one
)

// logger returns the logger to use now: an application may set slog's default late.
func (r *reporter) logger() *slog.Logger {
	if r.given != nil {
		return r.given
	}
	return slog.Default()
}

// debug says something only to a logger that the caller gave.
func (r *reporter) debug(message string, args ...any) {
	if r.given != nil {
		r.given.Debug(message, args...)
	}
}

// warn says message, which is about what about names, unless it was said often of late.
func (r *reporter) warn(message, about string, args ...any) {
	r.say(slog.LevelWarn, message, about, args)
}

// lost says that the lock of spec was lost, by cause. That is an error: what the holder did may have
// been done twice.
func (r *reporter) lost(spec *Spec, cause error) {
	r.say(slog.LevelError, "lock lost", spec.Name, []any{"lock", spec.Name, "mode", spec.Mode, "cause", cause})
}

// say says message at a level, unless it was said often of late.
func (r *reporter) say(level slog.Level, message, about string, args []any) {
	left, say := r.due(message, about)
	if !say {
		return
	}
	if left > 0 {
		args = append(args, "suppressed", left)
	}
	r.logger().Log(context.Background(), level, message, args...)
}

// due reports whether a message is to be said, and how many of its kind were not.
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

// silent warns that Redis has not served a request for spec, for quiet so far. A silence of less
// than a poll interval is worth no warning, unless the server is a replica.
func (s *Session) silent(spec *Spec, quiet time.Duration, err error) {
	if quiet < s.Poll && !command.IsReadOnly(err) {
		s.report.debug("acquire attempt failed, will retry", "lock", spec.Name, "err", err)
		return
	}
	s.report.warn("redis unavailable, will retry", spec.Name, "lock", spec.Name, "for", command.Brief(quiet), "err", err)
}

// unhinted warns that the server refuses the subscription to a channel. The warning leaves out
// the owner in which the names of some channels end.
func (s *Session) unhinted(channel string, err error) {
	effect := "polling once per second"
	if channel == keys.Client(s.id) {
		effect = "force-unlocks are detected at the next renewal"
	}
	lockOf, _, _ := strings.Cut(channel, ":"+s.id)
	s.report.warn("subscription denied (ACL); "+effect, lockOf, "channel", lockOf, "err", err)
}

// CheckEvictionOnce has a goroutine ask the server whether it evicts keys when its memory is full, and
// warn of that: it takes locks from their holders. It asks once in the life of a session,
// whatever the server replies.
func (s *Session) CheckEvictionOnce() {
	s.report.looked.Do(func() {
		if s.enter() != nil {
			return
		}
		go func() {
			defer s.sender.Done()
			policy, _, err := command.Send[string](context.Background(), s.sender, s.OpTimeout, command.Func[string](func(ctx context.Context) (string, error) {
				return luascripts.Evicts(ctx, s.rdb)
			}))
			if err == nil && policy != "" {
				s.report.warn("server evicts keys; set maxmemory-policy noeviction", "", "server", s.sender.Address(), "maxmemory-policy", policy)
			}
		}()
	})
}
