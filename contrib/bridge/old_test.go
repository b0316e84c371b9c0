package bridge

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	rsredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis/rueidislock"
)

// errTaken stands for a lock that another owner holds.
var errTaken = errors.New("taken")

// script is a server for every library. It returns its errors one after the other, and then grants the lock.
type script struct {
	errs  []error
	asked int
}

func (s *script) next() error {
	s.asked++
	if s.asked > len(s.errs) {
		return nil
	}
	return s.errs[s.asked-1]
}

type scriptRedislock struct {
	redis.Scripter
	*script
}

func (s scriptRedislock) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	switch err := s.next(); err {
	case nil:
		cmd.SetVal("OK")
	case errTaken:
		cmd.SetErr(redis.Nil)
	default:
		cmd.SetErr(err)
	}
	return cmd
}

type scriptRedsync struct {
	rsredis.Conn
	*script
}

func (s scriptRedsync) Get(context.Context) (rsredis.Conn, error) {
	return scriptConn{script: s.script}, nil
}

type scriptConn struct {
	rsredis.Conn
	*script
}

func (s scriptConn) SetNX(string, string, time.Duration) (bool, error) {
	err := s.next()
	if err == errTaken {
		return false, nil
	}
	return err == nil, err
}
func (scriptConn) Eval(*rsredis.Script, ...any) (any, error) { return int64(1), nil }
func (scriptConn) Close() error                              { return nil }

type scriptRueidislock struct {
	rueidislock.Locker
	*script
}

func (s scriptRueidislock) TryWithContext(ctx context.Context, _ string) (context.Context, context.CancelFunc, error) {
	switch err := s.next(); err {
	case nil:
		held, cancel := context.WithCancel(ctx)
		return held, cancel, nil
	case errTaken:
		return nil, nil, rueidislock.ErrNotLocked
	default:
		return nil, nil, err
	}
}

// WithContext behaves like a rueidislock that receives no messages.
func (s scriptRueidislock) WithContext(ctx context.Context, _ string) (context.Context, context.CancelFunc, error) {
	<-ctx.Done()
	return nil, nil, ctx.Err()
}

// Lock continues after a transient error, and returns a permanent one.
func TestLock_errors(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for library, open := range map[string]func(*script) OldLock{
		"redsync": func(s *script) OldLock {
			return Redsync(redsync.New(scriptRedsync{script: s}), name, time.Minute)
		},
		"redislock": func(s *script) OldLock {
			return Redislock(redislock.New(scriptRedislock{script: s}), name, time.Minute, time.Second)
		},
		"rueidislock": func(s *script) OldLock { return Rueidislock(scriptRueidislock{script: s}, name) },
	} {
		for what, c := range map[string]struct {
			errs  []error
			lasts bool // the last of errs is returned; otherwise the lock is acquired after all of them
		}{
			"a blip": {[]error{refused, errTaken, errors.New("LOADING Redis is loading the dataset in memory"), refused}, false},
			"errors of a client that can pass": {[]error{
				redis.ErrPoolTimeout, errTaken,
				errors.New("redis: all sentinels specified in configuration are unreachable: dial tcp: refused"),
				errors.New("ERR max number of clients reached"),
				errors.New("ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write against a read only replica."),
			}, false},
			"a permission":               {[]error{errors.New("NOPERM this user has no permissions")}, true},
			"a password after a refusal": {[]error{errTaken, refused, errors.New("WRONGPASS invalid username-password pair")}, true},
			"a closed client":            {[]error{redis.ErrClosed}, true},
			"a closed pool":              {[]error{errors.New("redigo: get on closed pool")}, true},
			"a closed locker":            {[]error{rueidislock.ErrLockerClosed}, true},
		} {
			t.Run(library+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &script{errs: c.errs}
					if c.lasts { // no request follows
						s.errs = append(s.errs, errTaken, errTaken)
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					_, unlock, err := open(s).Lock(ctx)
					switch {
					case !c.lasts && err != nil:
						t.Fatalf("asked %d times: %v", s.asked, err)
					case !c.lasts:
						_ = unlock(t.Context())
					case err == nil, errors.Is(err, lock.ErrNotAcquired), errors.Is(err, lock.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
						t.Errorf("asked %d times: %v", s.asked, err)
					case !errors.Is(err, c.errs[len(c.errs)-1]):
						t.Errorf("%v", err)
					}
				})
			})
		}
	}
}
