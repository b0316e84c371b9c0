// Package keys makes the keys and channels of a lock from the lock's name
// alone. It sends nothing. The scripts make the rest from the owners that they find, by the same rules:
// the keys of read leases, and the channel of one owner or one client.
//
// The names of keys and channels that Redisson has, too, are Redisson's, byte for byte. The lock's key is
// its name. The rest is "<prefix>:{<name>}", or "<prefix>:<name>" where the name has
// its own braces. So all keys and channels of a lock are in one slot of a cluster. By that
// rule x and {x} share all but the lock's key.
//
// The names that only leasehold has begin with leasehold, and no two locks share one: where the name has
// its own braces, it is "<prefix>:<name>:".
package keys

import (
	"errors"
	"fmt"
	"strings"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// The keys and channels of a lock, apart from its own key, begin with these prefixes. Those that
// begin with leasehold are ours, the others Redisson's.
const (
	channelPrefix      = "redisson_lock__channel"
	queuePrefix        = "redisson_lock_queue"
	timeoutPrefix      = "redisson_lock_timeout"
	tokenPrefix        = "redisson_lock_token"
	rwChannelPrefix    = "redisson_rwlock"
	queueChannelPrefix = "leasehold_channel"
	intentPrefix       = "leasehold_rwlock_wish"
	reservationPrefix  = "leasehold_rwlock_turn"
	fencePrefix        = "leasehold_fence"
	clientPrefix       = "leasehold_client"
	forcedPrefix       = "leasehold_forced"
	semChangePrefix    = "redisson_sc"
	semTurnsPrefix     = "leasehold_semaphore"
	semQueuePrefix     = "leasehold_semaphore_queue"
	semAlivePrefix     = "leasehold_semaphore_alive"
	semSlotsPrefix     = "leasehold_semaphore_slots"
	latchChannel       = "redisson_countdownlatch__channel__"
	latchPrefix        = "leasehold_latch"
	latchCalls         = "leasehold_latch_calls"
	leaderPrefix       = "leasehold_leader"
	waitGroupPrefix    = "leasehold_crew"
)

// reserved begin the keys that locks, clients and package fence keep. A lock with such a
// name could lie on one of them.
var reserved = []string{queuePrefix + ":", timeoutPrefix + ":", tokenPrefix + ":", intentPrefix + ":", reservationPrefix + ":", fencePrefix + ":", clientPrefix + ":", forcedPrefix + ":", semQueuePrefix + ":", semAlivePrefix + ":", semSlotsPrefix + ":", latchPrefix + ":", latchCalls + ":", leaderPrefix + ":", waitGroupPrefix + ":"}

// Plain returns the keys of a plain lock.
func Plain(name string) luascripts.Keys {
	return luascripts.Keys{Lock: name, Channel: prefixed(channelPrefix, name), QueueChannel: ours(queueChannelPrefix, name), Publish: "PUBLISH"}
}

// Fair returns the keys of a fair lock.
func Fair(name string) luascripts.Keys {
	k := luascripts.Keys{Lock: name, Channel: prefixed(channelPrefix, name), Publish: "PUBLISH", Queue: prefixed(queuePrefix, name), Timeouts: prefixed(timeoutPrefix, name)}
	k.Never = k.Queue + "::never" // a user with permissions for the queue has permissions for this key
	return k
}

// ReadWrite returns the keys of a read/write lock. The keys of its read leases
// begin with LeasePrefix, which is Redisson's suffixName.
func ReadWrite(name string) luascripts.Keys {
	k := luascripts.Keys{Lock: name, Channel: prefixed(rwChannelPrefix, name), Publish: "PUBLISH"}
	k.ReadWriteKeys = luascripts.ReadWriteKeys{Intent: ours(intentPrefix, name), Reservation: ours(reservationPrefix, name), LeasePrefix: tagged(name)}
	k.Never = k.LeasePrefix + "::rwlock_timeout:0" // a user with permissions for the reading leases has permissions for it
	return k
}

// mostLeases is how many holds of a reader of Redisson, each with a key, are looked at (luascripts/include_rw.lua).
const mostLeases = 256

// ReadLeases returns the keys that can have the lease of a reader with this number of holds. A reader is alive if one of
// them exists.
func ReadLeases(name, owner string, holds int) (all []string) {
	for n := holds; n > max(holds-mostLeases, 0); n-- {
		all = append(all, fmt.Sprintf("%s:%s:rwlock_timeout:%d", tagged(name), owner, n))
	}
	return all
}

// Semaphore returns the keys of a semaphore. The zset of its permits has a name by Redisson's suffixName.
func Semaphore(name string) luascripts.Keys {
	k := luascripts.Keys{Lock: name, Channel: ours(semTurnsPrefix, name), Publish: "PUBLISH", Queue: ours(semQueuePrefix, name), Timeouts: ours(semAlivePrefix, name)}
	k.SemaphoreKeys = luascripts.SemaphoreKeys{Leases: suffixed(name, "timeout"), Change: prefixed(semChangePrefix, name), Slots: ours(semSlotsPrefix, name)}
	k.Never = k.Queue + ":never" // a user with permissions for the queue has permissions for this key
	return k
}

// Tokens returns the counter of a lock's fencing tokens.
func Tokens(name string) string { return prefixed(tokenPrefix, name) }

// Fence returns the token counter of package fence for a user's key, or what is
// wrong with that key.
func Fence(key string) (string, error) {
	if key == "" {
		return "", errors.New("empty")
	}
	if strings.HasPrefix(key, fencePrefix+":") {
		return "", fmt.Errorf("%q is reserved for token counters", fencePrefix+":")
	}
	if err := checkBraces(key); err != nil {
		return "", err
	}
	return ours(fencePrefix, key), nil
}

// Forced returns the key of the audit record of the last force-unlock.
func Forced(name string) string { return ours(forcedPrefix, name) }

// Client returns the key of the registry entry of a client, and the channel on which it is
// notified that one of its locks was force-unlocked.
func Client(id string) string { return clientPrefix + ":" + id }

// ClientID returns the client whose key or channel this is, and whether it is one.
func ClientID(key string) (id string, ok bool) { return strings.CutPrefix(key, clientPrefix+":") }

// OfOwner returns the channel of one owner that waits for a fair lock.
func OfOwner(channel, owner string) string { return channel + ":" + owner }

// OfTurns returns the channel on which a client receives the numbers of its owners that are next in a
// fair lock's queue.
func OfTurns(channel, client string) string {
	return channel + ":" + client + luascripts.TurnChannelSuffix
}

// OfClient returns the channel of one client in the queue of a plain lock.
func OfClient(queueChannel, client string) string { return queueChannel + ":" + client }

// OfKeeper returns the channel on which a client is notified that another one wants a lock that it may keep
// although no owner uses it. For a plain lock, it is that of OfClient.
func OfKeeper(name, client string) string { return OfClient(ours(queueChannelPrefix, name), client) }

// prefixed returns a name by the rule of Redisson's prefixName.
func prefixed(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

// tagged is what Redisson's suffixName begins with.
func tagged(name string) string {
	if strings.Contains(name, "{") {
		return name
	}
	return "{" + name + "}"
}

// suffixed is Redisson's suffixName.
func suffixed(name, suffix string) string { return tagged(name) + ":" + suffix }

// suffixes end the keys that windows, Bloom filters and semaphores of Redisson keep next to their own.
var suffixes = []string{":value", ":permits", ":config", ":timeout"}

// ours is the name of something that Redisson does not have. No two locks share it: it
// ends in a brace, or in a colon if the lock's name brings its own braces.
func ours(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name + ":"
	}
	return prefix + ":{" + name + "}"
}

// maxName is the largest number of bytes of a name. A name is in every command, in
// the replication stream and in a channel; Redis itself would accept half a gigabyte.
const maxName = 4096

// Check returns what is wrong with a name, which has the client's prefix before it in
// Redis. It refuses names whose keys would not share a cluster slot: no script could
// use them together. A name is never changed to fit, as two names must not become
// one key.
func Check(prefix, name string) error {
	full := prefix + name
	switch {
	case name == "":
		return fmt.Errorf("%w: empty", lock.ErrBadName)
	case len(full) > maxName:
		return fmt.Errorf("%w: %d bytes: must be at most %d", lock.ErrBadName, len(full), maxName)
	}
	for _, r := range reserved {
		if strings.HasPrefix(full, r) {
			return fmt.Errorf("%w: %q is reserved for the state of other locks", lock.ErrBadName, r)
		}
	}
	if err := checkBraces(full); err != nil {
		return fmt.Errorf("%w: %w", lock.ErrBadName, err)
	}
	return checkSuffix(full)
}

// checkSuffix returns an error for a key that windows, filters or semaphores without braces in their names keep next to their own.
func checkSuffix(full string) error {
	for _, s := range suffixes {
		if strings.HasPrefix(full, "{") && strings.HasSuffix(full, "}"+s) && strings.Count(full, "}") == 1 {
			return fmt.Errorf("%w: {…}%s is reserved for the state of rate limiters, filters and semaphores", lock.ErrBadName, s)
		}
	}
	return nil
}

// CheckPrefix returns what is wrong with a prefix that no name could follow.
func CheckPrefix(prefix string) error {
	if err := Check(prefix, "x"); err != nil {
		return fmt.Errorf("key prefix %.64q: %w", prefix, err)
	}
	return nil
}

// checkBraces returns an error for a key with braces that are no hash tag.
func checkBraces(key string) error {
	before, after, open := strings.Cut(key, "{")
	switch {
	case !open && strings.Contains(before, "}"):
		return errors.New("a } without a { before it")
	case !open:
		return nil
	}
	// The hash tag is the text between the first { and the first } after it.
	switch strings.IndexByte(after, '}') {
	case -1:
		return errors.New("a { without a } after it")
	case 0:
		return errors.New("an empty {}")
	}
	return nil
}

// Tag returns the part of a key that decides its cluster slot. Check accepts only
// keys whose braces are a hash tag, if they have any.
func Tag(key string) string {
	_, after, open := strings.Cut(key, "{")
	if tag, _, closed := strings.Cut(after, "}"); open && closed && tag != "" {
		return tag
	}
	return key
}
