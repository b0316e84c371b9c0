package session

import (
	"fmt"
	"strings"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// maxName bounds a name. It is repeated in every command, in the replication
// stream and in a channel; Redis itself would take half a gigabyte.
const maxName = 4096

// reserved begin the keys that other kinds of locks, and package fence, keep beside
// theirs. A lock of that name would lie on top of one.
var reserved = []string{queuePrefix + ":", timeoutPrefix + ":", tokenPrefix + ":", wishPrefix + ":", "leasehold_fence:"}

// What stands beside a lock's own key. All but the last are Redisson's.
const (
	channelPrefix   = "redisson_lock__channel"
	queuePrefix     = "redisson_lock_queue"
	timeoutPrefix   = "redisson_lock_timeout"
	tokenPrefix     = "redisson_lock_token"
	rwChannelPrefix = "redisson_rwlock"
	wishPrefix      = "leasehold_rwlock_wish"
)

// Every key and channel of a lock is made in this file, from its name alone.
// The rules are Redisson's, byte for byte: the lock's key is the name itself,
// and what stands beside it is "<prefix>:{<name>}", or "<prefix>:<name>" where
// the name brings braces of its own.

// PlainKeys are the keys of a lock that is one hash.
func PlainKeys(name string) luascripts.Keys {
	return luascripts.Keys{Lock: name, Channel: beside(channelPrefix, name), Publish: "PUBLISH"}
}

// FairKeys are the keys of a lock with a queue.
func FairKeys(name string) luascripts.Keys {
	k := PlainKeys(name)
	k.Queue, k.Timeouts = beside(queuePrefix, name), beside(timeoutPrefix, name)
	k.Never = k.Queue + "::never" // rights to the queue are rights to it
	return k
}

// RWKeys are the keys of a read/write lock, but for those of the reading leases:
// they begin with Beside, Redisson's suffixName, and the scripts make them.
func RWKeys(name string) luascripts.Keys {
	k := luascripts.Keys{Lock: name, Channel: beside(rwChannelPrefix, name), Publish: "PUBLISH", Wish: beside(wishPrefix, name), Beside: name}
	if !strings.Contains(name, "{") {
		k.Beside = "{" + name + "}"
	}
	k.Never = k.Beside + "::rwlock_timeout:0" // rights to the others are rights to it
	return k
}

// beside is Redisson's prefixName.
func beside(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

// checkName refuses names whose keys would not share a cluster slot, and so
// could never be locked together with what stands beside them. Names are never
// changed to fit: two names must not become one key. (What stands beside x and {x} is
// the same by Redisson's rule, so they share a queue. Use one of the two.)
func checkName(name, mapped string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", lock.ErrName)
	case len(mapped) > maxName:
		return fmt.Errorf("%w: %d bytes, the most is %d", lock.ErrName, len(mapped), maxName)
	}
	for _, r := range reserved {
		if strings.HasPrefix(mapped, r) {
			return fmt.Errorf("%w: %q is where other locks keep their state", lock.ErrName, r)
		}
	}
	open := strings.IndexByte(mapped, '{')
	if open < 0 {
		if strings.IndexByte(mapped, '}') >= 0 {
			return fmt.Errorf("%w: a } without a { before it", lock.ErrName)
		}
		return nil
	}
	// The hash tag is what stands between the first { and the first } after it.
	switch end := strings.IndexByte(mapped[open+1:], '}'); {
	case end < 0:
		return fmt.Errorf("%w: a { without a } after it", lock.ErrName)
	case end == 0:
		return fmt.Errorf("%w: an empty {}", lock.ErrName)
	}
	return nil
}

// hashTag is the part of a key that decides its cluster slot. Names whose braces
// do not make one are refused.
func hashTag(key string) string {
	_, after, braced := strings.Cut(key, "{")
	if tag, _, closed := strings.Cut(after, "}"); braced && closed && tag != "" {
		return tag
	}
	return key
}

// CheckPrefix refuses a prefix that no name could follow.
func CheckPrefix(prefix string) error {
	if err := checkName("x", prefix+"x"); err != nil {
		return fmt.Errorf("key prefix %.64q: %w", prefix, err)
	}
	return nil
}
