package bridge

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	rsredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/redis/go-redis/v9"
)

// slow is the time after which the servers of these tests grant a lock.
const slow = 5 * time.Second

var errRefused = errors.New("connection refused")

// slowServer grants a lock of redislock slowly, and is unavailable afterward.
type slowServer struct {
	redis.Scripter
	busy, asked atomic.Int32 // busy is how often it first reports that another owner has the lock
	silent      bool         // it accepts requests without replying, and the client waits longer than its context
}

func (s *slowServer) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	switch n := s.asked.Add(1); {
	case n <= s.busy.Load():
		cmd.SetErr(redis.Nil)
	case n == s.busy.Load()+1:
		time.Sleep(slow)
		cmd.SetVal("OK")
	case s.silent:
		time.Sleep(time.Hour)
		fallthrough
	default:
		cmd.SetErr(errRefused)
	}
	return cmd
}

// slowPool and slowConn do the same for redsync.
type (
	slowPool struct{}
	slowConn struct{ rsredis.Conn }
)

func (slowPool) Get(context.Context) (rsredis.Conn, error) { return slowConn{}, nil }

func (slowConn) SetNX(string, string, time.Duration) (bool, error) {
	time.Sleep(slow)
	return true, nil
}
func (slowConn) Eval(*rsredis.Script, ...any) (any, error) { return nil, errRefused }
func (slowConn) Close() error                              { return nil }

// A lease that cannot be extended counts from before the request that acquired the lock. The context is canceled before the lease
// expires.
func TestKeep_endsBeforeTheLease(t *testing.T) {
	const lease = 30 * time.Second
	for name, open := range map[string]func() (old OldLock, waits time.Duration){
		"redislock": func() (OldLock, time.Duration) {
			return Redislock(redislock.New(&slowServer{}), "orders", lease, time.Second), 0
		},
		"redislock, that waits": func() (OldLock, time.Duration) {
			s := &slowServer{}
			s.busy.Store(100)
			return Redislock(redislock.New(s), "orders", lease, time.Second), 100 * time.Second
		},
		"redislock, on a silent server": func() (OldLock, time.Duration) {
			return Redislock(redislock.New(&slowServer{silent: true}), "orders", lease, time.Second), 0
		},
		"redsync": func() (OldLock, time.Duration) {
			return Redsync(redsync.New(slowPool{}), "orders", lease), 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				old, waits := open()
				began := time.Now()
				held, unlock, err := old.Lock(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				<-held.Done()
				if lasted := time.Since(began) - waits; lasted > lease-lease/10 {
					t.Errorf("it counts as held for %v after the question, with a lease of %v", lasted, lease)
				}
				if cause := context.Cause(held); !errors.Is(cause, ErrOldLockLost) {
					t.Errorf("the cause: %v", cause)
				}
				if err := unlock(t.Context()); !errors.Is(err, errRefused) {
					t.Errorf("unlock: %v", err)
				}
			})
		})
	}
}
