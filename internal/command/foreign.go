package command

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Foreign adds to err what the key holds, if err means that the key has the wrong type. It queries
// the server, for up to a quarter of the operation timeout. If that fails, it returns err unchanged.
// The caller must be counted by Add.
func (s *Sender) Foreign(ctx context.Context, key string, err error) error {
	if !errors.Is(err, lock.ErrWrongType) || ctx.Err() != nil {
		return err
	}
	o := SendFunc(ctx, s, s.Timeout/4, func(ctx context.Context) (string, error) {
		return held(ctx, s.Redis, key)
	})
	if o.Value != "" {
		return Final{fmt.Errorf("%w: %s", lock.ErrWrongType, o.Value)}
	}
	return err
}

var (
	number = regexp.MustCompile(`^-?[0-9]{1,19}$`)
	holder = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}:-?[0-9]+$`)
)

// held describes what key holds without its content, or returns "" if the key does not exist. The
// user may lack permission for the commands that tell the types of lock apart.
func held(ctx context.Context, rdb rueidis.Client, key string) (string, error) {
	kind, err := rdb.Do(ctx, retry.Once(rdb, "TYPE", key)).ToString()
	if err != nil { // mutant: never: without a type, nothing is said
		return "", err
	}
	switch kind {
	case "string":
		switch text, err := rdb.Do(ctx, retry.Once(rdb, "GETRANGE", key, "0", "20")).ToString(); {
		case err != nil: // mutant: never: text
			return "a string, as semaphores, latches and the locks of redsync and redislock are", nil
		case number.MatchString(text):
			return "a number, as semaphores and latches are", nil
		}
		return "a string, as the locks of redsync and redislock are", nil
	case "hash":
		fields, err := rdb.Do(ctx, retry.Once(rdb, "HSCAN", key, "0", "COUNT", "8")).AsScanEntry()
		if err != nil { // mutant: never: text
			return "a lock of another type, or another hash", nil
		}
		return lockIn(fields.Elements), nil
	case "list":
		return "a list", nil
	case "set":
		return "a set", nil
	case "zset":
		return "a sorted set", nil
	case "stream":
		return "a stream", nil
	}
	return "", nil
}

// lockIn returns the type of lock that a hash with these fields and values is.
func lockIn(fields []string) string {
	owner := ""
	for i := 0; i+1 < len(fields); i += 2 { // mutant: border: they come in pairs
		if fields[i] == "mode" && (fields[i+1] == "read" || fields[i+1] == "write") {
			return "a read/write lock"
		}
	}
	for i := 0; i+1 < len(fields); i += 2 { // mutant: border: they come in pairs
		switch field := fields[i]; {
		case holder.MatchString(field) && number.MatchString(fields[i+1]):
			owner = field
		case field != luascripts.QueueField:
			return "a hash that is not a lock"
		}
	}
	switch fair, known := luascripts.FairOwner(owner); {
	case owner == "":
		return "a hash that is not a lock"
	case !known:
		return "a plain or a fair lock"
	case fair:
		return "a fair lock"
	}
	return "a plain lock"
}
