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

// Key is a key, and the reply to TYPE that its owner expects. Type is "" if TYPE cannot tell the owner's
// data from other data.
type Key struct{ Name, Type string }

// Foreign adds to err what a key holds, if err means that the key has the wrong type. Of several keys,
// it names the first one with an unexpected type, or else the first one that exists. It queries the
// server, for up to a quarter of the operation timeout. If that fails, it returns err unchanged.
func (s *Sender) Foreign(ctx context.Context, err error, keys ...Key) error {
	if !errors.Is(err, lock.ErrWrongType) || ctx.Err() != nil || s.Enter() != nil {
		return err
	}
	defer s.Done()
	o := SendFunc(ctx, s, s.Timeout/4, func(ctx context.Context) (string, error) {
		return wrong(ctx, s.Redis, keys)
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

// wrong describes what the key that Foreign names holds. It returns "" if no key exists.
func wrong(ctx context.Context, rdb rueidis.Client, keys []Key) (string, error) {
	var key, typ string
	for _, k := range keys {
		is, err := rdb.Do(ctx, retry.Once(rdb, "TYPE", k.Name)).ToString()
		if err != nil { // mutant: never: without a type, nothing is said
			return "", err
		}
		if is == "none" {
			continue
		}
		if key == "" || is != k.Type {
			key, typ = k.Name, is
		}
		if is != k.Type {
			break
		}
	}
	text := held(ctx, rdb, key, typ)
	if len(keys) > 1 && text != "" {
		text = fmt.Sprintf("%q is %s", key, text)
	}
	return text, nil
}

// held describes what a key of this type holds without its content, or returns "" if the key does not
// exist. The user may lack permission for the commands that tell the types of lock apart.
func held(ctx context.Context, rdb rueidis.Client, key, typ string) string {
	switch typ {
	case "string":
		switch text, err := rdb.Do(ctx, retry.Once(rdb, "GETRANGE", key, "0", "20")).ToString(); {
		case err != nil: // mutant: never: text
			return "a string, as semaphores, latches and the locks of redsync and redislock are"
		case number.MatchString(text):
			return "a number, as semaphores and latches are"
		}
		return "a string, as the locks of redsync and redislock are"
	case "hash":
		fields, err := rdb.Do(ctx, retry.Once(rdb, "HSCAN", key, "0", "COUNT", "8")).AsScanEntry()
		if err != nil { // mutant: never: text
			return "a lock of another type, or another hash"
		}
		return lockIn(fields.Elements)
	case "list":
		return "a list"
	case "set":
		return "a set"
	case "zset":
		return "a sorted set"
	case "stream":
		return "a stream"
	}
	return ""
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
