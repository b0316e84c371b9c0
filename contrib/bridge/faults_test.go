package bridge

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/leasehold-go/leasehold/internal/adaptertest"
	"github.com/redis/go-redis/v9"
)

// The error of TryDo after each fault. The lock of the other library may be the first to report it.
func TestFaults(t *testing.T) {
	t.Parallel()
	for library, of := range map[string]func(*redis.Client) OldLock{
		"redsync": func(c *redis.Client) OldLock {
			return Redsync(redsync.New(redsyncredis.NewPool(c)), "old:orders", time.Minute) // each request is limited to a twentieth of that
		},
		"redislock": func(c *redis.Client) OldLock {
			return Redislock(redislock.New(c), "old:orders", 8*time.Second, time.Millisecond)
		},
	} {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			adaptertest.Walk(t, map[string]string{
				adaptertest.Free:         "run",
				adaptertest.Busy:         "error: ErrNotAcquired",
				adaptertest.Refused:      "error: ErrUnavailable",
				adaptertest.Unresponsive: "error: ErrUnavailable",
				adaptertest.ReadOnly:     "error: ErrUnavailable",
				adaptertest.Denied:       "error",
				adaptertest.WrongType:    "error: ErrWrongType",
				adaptertest.BadName:      "error: ErrBadName",
				adaptertest.Closed:       "error: ErrClosed",
				adaptertest.Canceled:     "error: Canceled",
				adaptertest.Deadline:     "error: DeadlineExceeded",
			}, func(t *testing.T, c adaptertest.Call) string {
				options := &redis.Options{Addr: c.Addr, MaxRetries: -1, ReadTimeout: adaptertest.ReplyTime, DisableIdentity: true}
				switch c.Fault {
				case adaptertest.Denied:
					options.Username, options.Password = "reader", "any"
				case adaptertest.Unresponsive:
					options.ReadTimeout = time.Second
				}
				other := redis.NewClient(options)
				defer other.Close()
				seen := ""
				if err := TryDo(c.Ctx, of(other), c.Lock, func(context.Context) error { seen = "run"; return nil }); err != nil {
					return seen + "error" + matches(err, c.Fault)
				}
				return seen
			})
		})
	}
}

// matches ignores timeouts of the other library.
func matches(err error, fault string) string {
	m := adaptertest.Matches(err)
	if fault != adaptertest.Deadline {
		m = strings.Replace(m, "DeadlineExceeded, ", "", 1)
	}
	return m
}
