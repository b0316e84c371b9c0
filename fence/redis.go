package fence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/slots"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Redis guards writes to keys of a Redis server or cluster. Check and write are one script. It is
// safe for concurrent use.
//
// The token counter of a key is a string in a separate key, with the largest token in decimal:
//
//	orders:42      leasehold_fence:{orders:42}
//	{orders}:42    leasehold_fence:{orders}:42:
//
// Both share a slot, and no two keys have the same counter. All writers of a key must use the
// guard. The key must not be the name of the lock, because that is the key of the lock itself.
//
// A transient error matches [lock.ErrUnavailable]. After the rueidis client was closed, the error
// matches [lock.ErrClosed]. After a timeout or a broken connection it is unknown whether the write
// was executed. Set, HSet and Del can be repeated with the same token. A
// delayed duplicate is rejected once a newer holder wrote, but can undo a later write of the same
// holder.
//
// Counters are as durable as the data, and go back with it if a failover loses the latest writes.
// They must not be evicted (maxmemory-policy noeviction). A user needs +evalsha +eval +get +set,
// for Set +strlen, for HSet +hlen +hset, for Del +persist +del, on the data and on
// leasehold_fence:*.
type Redis struct {
	rdb  rueidis.Client
	keep time.Duration
}

// RedisOption is an option of [NewRedis].
type RedisOption interface{ apply(*Redis) }

type redisOption func(*Redis)

func (o redisOption) apply(r *Redis) { o(r) }

// WithHighestTokenExpiry makes the token counter expire d after the last accepted write to its key.
// By default it has no expiry, and stays even if the data is deleted or expires. It takes about 100
// bytes and the length of the key. Choose d longer than any pause after which a holder can resume,
// such as several days.
func WithHighestTokenExpiry(d time.Duration) RedisOption {
	return redisOption(func(r *Redis) { r.keep = d })
}

// NewRedis returns a guard that uses rdb and never closes it. NewRedis sends no command.
func NewRedis(rdb rueidis.Client, opts ...RedisOption) (*Redis, error) {
	r := &Redis{rdb: rdb}
	for i, o := range opts {
		if o == nil {
			return nil, wrap("fence", "", fmt.Errorf("option %d of %d is nil", i+1, len(opts)))
		}
		o.apply(r)
		if r.keep < time.Millisecond {
			return nil, wrap("fence", "", fmt.Errorf("WithHighestTokenExpiry(%v): must be at least 1ms", r.keep))
		}
	}
	if rdb == nil {
		return nil, wrap("fence", "", errors.New("the rueidis client is nil"))
	}
	return r, nil
}

// Set sets a string, like SET, and removes its expiry. It fails with [ErrStale] if a larger token
// was seen for key, and with [lock.ErrWrongType] if the key is not a string. If memory is full, it
// fails with OOM, which also matches [lock.ErrUnavailable]. Nothing was written then.
func (r *Redis) Set(ctx context.Context, token uint64, key, value string) error {
	return r.guard(ctx, "fenced set", token, key, func(f luascripts.Fence) (luascripts.Fenced, error) {
		return luascripts.SetFenced(ctx, r.rdb, f, value)
	})
}

// HSet sets fields of a hash, all or none, and leaves its other fields unchanged. It fails like
// [Redis.Set].
func (r *Redis) HSet(ctx context.Context, token uint64, key string, fields map[string]string) error {
	if len(fields) == 0 {
		return wrap("fenced hset", key, errors.New("want at least 1 field, got 0"))
	}
	pairs := make([]string, 0, 2*len(fields))
	for name, value := range fields {
		pairs = append(pairs, name, value)
	}
	return r.guard(ctx, "fenced hset", token, key, func(f luascripts.Fence) (luascripts.Fenced, error) {
		return luascripts.HSetFenced(ctx, r.rdb, f, pairs...)
	})
}

// Del deletes a key of any type. It is not an error if there is none. The counter stays, so that no
// stale holder creates the key again. Del fails with [ErrStale] if a larger token was seen, and
// works even if memory is full.
func (r *Redis) Del(ctx context.Context, token uint64, key string) error {
	return r.guard(ctx, "fenced del", token, key, func(f luascripts.Fence) (luascripts.Fenced, error) {
		return luascripts.DelFenced(ctx, r.rdb, f)
	})
}

// Script is a Lua script for writes other than Set, HSet and Del. It runs behind the guard, in one
// step with the check (see [Redis.Run]).
type Script struct{ own *luascripts.OwnFenced }

// NewScript returns a [Script] with this text. Its KEYS and ARGV are the same as without a guard.
// The text is code, so use a constant of your program.
func NewScript(text string) *Script { return &Script{luascripts.NewOwnFenced(text)} }

// Run runs s unless a larger token was seen for the first of keys, and returns the result of the
// script. A nil reply is not an error. On a cluster all keys must be in one slot. If the script
// fails, the counter stays raised.
func (r *Redis) Run(ctx context.Context, token uint64, s *Script, keys []string, args ...string) (rueidis.RedisMessage, error) {
	if len(keys) == 0 {
		return rueidis.RedisMessage{}, wrap("fenced script", "", errors.New("want at least 1 key, got 0"))
	}
	if s == nil || s.own == nil {
		return rueidis.RedisMessage{}, wrap("fenced script", keys[0], errors.New("no script: call NewScript"))
	}
	if key, is := slots.Elsewhere(r.rdb, keys[0], keys[1:]); is {
		return rueidis.RedisMessage{}, wrap("fenced script", keys[0], fmt.Errorf("key %q is in a different hash slot", key))
	}
	var reply rueidis.RedisMessage
	err := r.guard(ctx, "fenced script", token, keys[0], func(f luascripts.Fence) (got luascripts.Fenced, err error) {
		reply, got, err = s.own.Exec(ctx, r.rdb, f, keys[1:], args)
		return got, err
	})
	return reply, err
}

// guard runs one guarded write and returns its error.
func (r *Redis) guard(ctx context.Context, op string, token uint64, key string, write func(luascripts.Fence) (luascripts.Fenced, error)) error {
	if err := Check(token, 0); err != nil {
		return wrap(op, key, err)
	}
	register, err := keys.Fence(key)
	if err != nil {
		return wrap(op, key, fmt.Errorf("invalid key: %w", err))
	}
	if ctx.Err() != nil {
		return wrap(op, key, command.Ended(ctx, 0))
	}
	began := time.Now()
	got, err := write(luascripts.Fence{Data: key, TokenCounter: register, Token: token, Keep: r.keep})
	switch {
	case err != nil:
		command.Settle(ctx)
		return wrap(op, key, command.New(r.rdb, command.Config{}).Failed(ctx, began, command.DetectClosed(ctx, r.rdb, err)))
	case got.Verdict == luascripts.Stale:
		return wrap(op, key, &StaleError{Token: token, Highest: got.Highest})
	case got.Verdict == luascripts.Foreign:
		return wrap(op, key, fmt.Errorf("%w: token counter %s", lock.ErrWrongType, register))
	}
	return nil
}
