package admin

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/leader"
	"github.com/redis/rueidis"
)

// board returns the command that reads the leader value of a lock.
func (a *Admin) board(name string) rueidis.Completed {
	return a.rdb.B().Hmget().Key(keys.Leader(name).Lock).Field("token", "value", "since").Build()
}

// lastMilli is the end of the year 9999 in ms since 1970. Package time cannot write a later time as JSON.
const lastMilli = 253402300799999

// said parses the reply to board. It returns nil if no value is published, or if the user is not allowed to read it.
func said(reply rueidis.RedisResult) (*leader.Leader, error) {
	words, err := reply.ToArray()
	if _, refused := rueidis.IsRedisErr(err); refused {
		return nil, nil
	}
	if err != nil || len(words) != 3 {
		return nil, err
	}
	token, err1 := words[0].AsUint64()
	value, err2 := words[1].ToString()
	since, err3 := words[2].AsInt64()
	if errors.Join(err1, err2, err3) != nil || since < 0 || since > lastMilli {
		return nil, nil
	}
	return &leader.Leader{Value: value, Since: time.UnixMilli(since), Token: token}, nil
}

// elections returns the locks that have a leader value under one of the keys boards, and whose names match pattern.
func (a *Admin) elections(ctx context.Context, boards []string, pattern string) (found []Lock, err error) {
	var names []string
	for _, key := range boards {
		if name, ok := keys.LeaderOf(key); ok && matches(pattern, name) && keys.Check("", name) == nil {
			names = append(names, name)
		}
	}
	for some := range slices.Chunk(names, atOnce) {
		locks, err := a.look(ctx, some, pattern == "*")
		if err != nil {
			return nil, err
		}
		for _, l := range locks {
			if l.Leader != nil {
				found = append(found, l)
			}
		}
	}
	return found, nil
}
