// Package keys derives the keys and channels of a lock from its name alone. It sends nothing. The
// scripts derive the rest from the owners they find, by the same rules: the keys of read leases, and
// the channel of one owner or one client.
//
// Keys and channels that Redisson also has are named as in Redisson, byte for byte. The lock's key is its
// name. The others are "<prefix>:{<name>}", or "<prefix>:<name>" if the name contains braces. All keys
// and channels of a lock are therefore in one slot of a cluster. By this rule, x and {x} share everything
// but the lock's key.
//
// Names that only leasehold has begin with leasehold, and no two locks share one. If the name of the
// lock contains braces, they are "<prefix>:<name>:".
package keys

import (
	"errors"
	"fmt"
	"strings"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// Prefixes of the keys and channels of a lock, except its own key. Those that begin with leasehold
// are ours, the others Redisson's.
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

// reserved has the prefixes of the keys of locks, clients and package fence. A lock with such a
// name could collide with one of them.
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

// mostLeases is how many holds of a reader of Redisson, each with its own key, are checked (luascripts/include_rw.lua).
const mostLeases = 256

// ReadLeases returns the keys that can have the lease of a reader with this number of holds. A reader is alive if one of
// them exists.
func ReadLeases(name, owner string, holds int) (all []string) {
	for n := holds; n > max(holds-mostLeases, 0); n-- {
		all = append(all, fmt.Sprintf("%s:%s:rwlock_timeout:%d", tagged(name), owner, n))
	}
	return all
}

// Semaphore returns the keys of a semaphore. The zset of its permits is named by Redisson's suffixName.
func Semaphore(name string) luascripts.Keys {
	k := luascripts.Keys{Lock: name, Channel: ours(semTurnsPrefix, name), Publish: "PUBLISH", Queue: ours(semQueuePrefix, name), Timeouts: ours(semAlivePrefix, name)}
	k.SemaphoreKeys = luascripts.SemaphoreKeys{Leases: suffixed(name, "timeout"), Change: prefixed(semChangePrefix, name), Slots: ours(semSlotsPrefix, name)}
	k.Never = k.Queue + ":never" // a user with permissions for the queue has permissions for this key
	return k
}

// Tokens returns the counter of a lock's fencing tokens.
func Tokens(name string) string { return prefixed(tokenPrefix, name) }

// Fence returns the token counter of package fence for a user's key, or an error if the key is not
// valid.
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

// ClientID returns the client of this key or channel, and whether there is one.
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
// although no owner uses it. For a plain lock, it is the channel of OfClient.
func OfKeeper(name, client string) string { return OfClient(ours(queueChannelPrefix, name), client) }

// prefixed implements Redisson's prefixName.
func prefixed(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

// tagged returns the first part of Redisson's suffixName.
func tagged(name string) string {
	if strings.Contains(name, "{") {
		return name
	}
	return "{" + name + "}"
}

// suffixed implements Redisson's suffixName.
func suffixed(name, suffix string) string { return tagged(name) + ":" + suffix }

// suffixes has the suffixes of the keys that windows, Bloom filters and semaphores of Redisson store next to their own.
var suffixes = []string{":value", ":permits", ":config", ":timeout"}

// ours returns the name of something that Redisson does not have. No two locks share it, because it
// ends in a brace, or in a colon if the lock's name contains braces.
func ours(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name + ":"
	}
	return prefix + ":{" + name + "}"
}

// maxName is the maximum size of a name in bytes. A name is in every command, in the replication
// stream and in a channel. Redis itself would accept half a gigabyte.
const maxName = 4096

// Check returns an error if a name is not valid after the client's prefix. It rejects names whose
// keys would not share a cluster slot, because no script could use them together. It never changes
// a name to make it valid, because two names must not become one key.
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

// checkSuffix returns an error for a key that windows, filters or semaphores without braces in their names store next to their
// own.
func checkSuffix(full string) error {
	for _, s := range suffixes {
		if strings.HasPrefix(full, "{") && strings.HasSuffix(full, "}"+s) && strings.Count(full, "}") == 1 {
			return fmt.Errorf("%w: {…}%s is reserved for the state of rate limiters, filters and semaphores", lock.ErrBadName, s)
		}
	}
	return nil
}

// CheckPrefix returns an error if no valid name can follow a prefix.
func CheckPrefix(prefix string) error {
	if err := Check(prefix, "x"); err != nil {
		return fmt.Errorf("key prefix %.64q: %w", prefix, err)
	}
	return nil
}

// checkBraces returns an error for a key whose braces are not a hash tag.
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

// Tag returns the part of a key that determines its cluster slot. Check accepts only keys whose
// braces, if any, are a hash tag.
func Tag(key string) string {
	_, after, open := strings.Cut(key, "{")
	if tag, _, closed := strings.Cut(after, "}"); open && closed && tag != "" {
		return tag
	}
	return key
}
