package keys

import (
	"fmt"
	"strings"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// The patterns of the keys that show latches, wait groups and elections.
const (
	Latches    = latchPrefix + ":*"
	WaitGroups = waitGroupPrefix + ":*"
	Leaders    = leaderPrefix + ":*"
)

// Latch returns the keys of a latch. Redisson adds braces to the name of the channel, also if the name has some: see
// CheckLatch.
func Latch(name string) luascripts.Keys {
	k := luascripts.Keys{Lock: name, Channel: latchChannel + "{" + name + "}", Publish: "PUBLISH", LatchKeys: luascripts.LatchKeys{Rounds: ours(latchPrefix, name), Calls: ours(latchCalls, name)}}
	k.Never = k.Rounds + ":never" // a user with rights to the rounds has rights to this key
	return k
}

// Leader returns the key at which the holder of a lock says what it says as a leader, and the channel of the same name.
func Leader(name string) luascripts.Keys {
	k := ours(leaderPrefix, name)
	return luascripts.Keys{Lock: k, Channel: k, Publish: "PUBLISH"}
}

// WaitGroup returns the key of the workers of a wait group, and the channel of the same name.
func WaitGroup(name string) luascripts.Keys {
	k := ours(waitGroupPrefix, name)
	return luascripts.Keys{Lock: k, Channel: k, Publish: "PUBLISH"}
}

// WaitGroupOf returns the wait group whose workers these are, and whether it is one.
func WaitGroupOf(members string) (name string, ok bool) { return nameOf(waitGroupPrefix, members) }

// LeaderOf returns the lock whose holder says something as a leader here, and whether it is one.
func LeaderOf(board string) (name string, ok bool) { return nameOf(leaderPrefix, board) }

// nameOf returns the name whose key with this prefix this is: see ours.
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

// LatchOf returns the latch whose rounds these are, and whether it is one.
func LatchOf(rounds string) (name string, ok bool) {
	name, ok = strings.CutPrefix(rounds, latchPrefix+":{")
	if !ok || !strings.HasSuffix(name, "}") {
		return "", false
	}
	return strings.TrimSuffix(name, "}"), true
}

// CheckLatch returns what is wrong with the name of a latch. It must have no braces: Redisson adds some to the name of the
// channel, which then has another slot of a cluster than the count.
func CheckLatch(prefix, name string) error {
	if strings.ContainsAny(prefix+name, "{}") {
		return fmt.Errorf("%w: braces are not allowed, because Redisson's latches do not work with them on a cluster", lock.ErrBadName)
	}
	return Check(prefix, name)
}
