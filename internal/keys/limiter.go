package keys

import (
	"fmt"
	"strings"

	"github.com/leasehold-go/leasehold/lock"
)

// CheckLimiter returns an error if the name of a rate limiter is not valid after the prefix. It
// must not contain a colon: "a:b" with the key c of a caller, and "a" with the key b:c, would be
// one key in Redis.
func CheckLimiter(prefix, name string) error {
	if strings.Contains(name, ":") {
		return fmt.Errorf("%w: a colon is not allowed, because a limiter stores each key at <name>:<key>", lock.ErrBadName)
	}
	return Check(prefix, name)
}

// Limiter returns where the rate limiter of a checked name stores the used quota of key, or an error if the key is not valid. The
// key can be any text, even with braces, because each command has one key. Limiter rejects a key that a window, a filter or a
// semaphore could store next to its own: it has one of their suffixes, and braces before that, in the prefix, the name or the
// key.
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
