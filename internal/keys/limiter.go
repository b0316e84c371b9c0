package keys

import (
	"fmt"
	"strings"

	"github.com/leasehold-go/leasehold/lock"
)

// CheckLimiter says what is wrong with the name of a rate limiter, which has the prefix
// before it in Redis. No colon may be in it: "a:b" and the key c of a caller, and "a" and
// the key b:c, would be one key in Redis.
func CheckLimiter(prefix, name string) error {
	if strings.Contains(name, ":") {
		return fmt.Errorf("%w: a colon is not allowed, because a limiter stores each key at <name>:<key>", lock.ErrBadName)
	}
	return Check(prefix, name)
}

// Limiter returns where the rate limiter of a checked name keeps what is owed of key, or what is wrong
// with that key. It can be any text, also with braces: there is one key in each command. A key is refused
// that a window, a filter or a semaphore could keep beside its own: it ends as these do, and has braces before that, of the prefix, the name or the key.
func Limiter(prefix, name, key string) (string, error) {
	full := prefix + name + ":" + key
	if len(full) > maxName {
		return "", fmt.Errorf("%w: %d bytes with its key: must be at most %d", lock.ErrBadName, len(full), maxName)
	}
	for _, r := range reserved {
		if strings.HasPrefix(full, r) {
			return "", fmt.Errorf("%w: %q is reserved for the state of locks", lock.ErrBadName, r)
		}
	}
	for _, s := range suffixes {
		if name, ok := strings.CutSuffix(full, s); ok && strings.Contains(name, "{") {
			return "", fmt.Errorf("%w: after braces, %s is reserved for the state of rate limiters, filters and semaphores", lock.ErrBadName, s)
		}
	}
	return full, nil
}
