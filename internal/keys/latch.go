package keys

import (
	"fmt"
	"strings"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// Patterns of the keys of latches, wait groups and elections.
const (
	Latches    = latchPrefix + ":*"
	WaitGroups = waitGroupPrefix + ":*"
	Leaders    = leaderPrefix + ":*"
)

// Latch returns the keys of a latch. Redisson adds braces to the name of the channel even if the name contains
// braces: see CheckLatch.
func Latch(name string) luascripts.Keys {
	k := luascripts.Keys{Lock: name, Channel: latchChannel + "{" + name + "}", Publish: "PUBLISH", LatchKeys: luascripts.LatchKeys{Rounds: ours(latchPrefix, name), Calls: ours(latchCalls, name)}}
	k.Never = k.Rounds + ":never" // a user with permissions for the rounds has permissions for this key
	return k
}

// Leader returns the key at which the holder of a lock publishes its leader value, and the channel of the same name.
func Leader(name string) luascripts.Keys {
	k := ours(leaderPrefix, name)
	return luascripts.Keys{Lock: k, Channel: k, Publish: "PUBLISH"}
}

// WaitGroup returns the key of the workers of a wait group, and the channel of the same name.
func WaitGroup(name string) luascripts.Keys {
	k := ours(waitGroupPrefix, name)
	return luascripts.Keys{Lock: k, Channel: k, Publish: "PUBLISH"}
}

// WaitGroupOf returns the wait group with this key of workers, and whether there is one.
func WaitGroupOf(members string) (name string, ok bool) { return nameOf(waitGroupPrefix, members) }

// LeaderOf returns the lock whose holder publishes its leader value at this key, and whether there is one.
func LeaderOf(board string) (name string, ok bool) { return nameOf(leaderPrefix, board) }

// nameOf returns the name for a key with this prefix: see ours.
func nameOf(prefix, key string) (name string, ok bool) {
	name, ok = strings.CutPrefix(key, prefix+":")
	if inner, tagged := strings.CutPrefix(name, "{"); tagged && strings.HasSuffix(inner, "}") && !strings.Contains(strings.TrimSuffix(inner, "}"), "{") {
		return strings.TrimSuffix(inner, "}"), ok
	}
	if name, colon := strings.CutSuffix(name, ":"); colon && strings.Contains(name, "{") {
		return name, ok
	}
	return "", false
}

// LatchOf returns the latch with this key of rounds, and whether there is one.
func LatchOf(rounds string) (name string, ok bool) {
	name, ok = strings.CutPrefix(rounds, latchPrefix+":{")
	if !ok || !strings.HasSuffix(name, "}") {
		return "", false
	}
	return strings.TrimSuffix(name, "}"), true
}

// CheckLatch returns an error if the name of a latch is not valid. It must not contain braces. Redisson adds some to the
// name of the channel, which would then be in a different slot of a cluster than the count.
func CheckLatch(prefix, name string) error {
	if strings.ContainsAny(prefix+name, "{}") {
		return fmt.Errorf("%w: braces are not allowed, because Redisson's latches do not work with them on a cluster", lock.ErrBadName)
	}
	return Check(prefix, name)
}
