package luascripts

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var (
	reentrantAcquire = load("reentrant_acquire")
	reentrantRelease = load("reentrant_release")
	reentrantRenew   = load("reentrant_renew")
	reentrantInspect = load("reentrant_inspect")
	reentrantForce   = load("reentrant_force")
)

// Verdict is what a script found about the caller's owner.
type Verdict int

const (
	Done    Verdict = 1  // it is as asked
	Held    Verdict = 0  // acquire: another owner has the lock
	Free    Verdict = 0  // force: nobody had it
	Gone    Verdict = -2 // the owner holds nothing
	Foreign Verdict = -4 // the key holds something else
)

// Keys names what the scripts of one lock touch.
type Keys struct {
	Lock    string // the hash
	Channel string // where waiters listen
	Publish string // the command that reaches them: PUBLISH or SPUBLISH
}

// NoExpiry stands for the lease of a key that has none.
const NoExpiry time.Duration = -1

// Acquired is the reply to an acquire script.
type Acquired struct {
	Verdict Verdict
	Token   uint64        // Done on a first hold: the fencing token
	Left    time.Duration // Held: what is left of the other's lease, or NoExpiry
}

// AcquireReentrant makes owner hold the lock want times.
func AcquireReentrant(ctx context.Context, rdb rueidis.Client, k Keys, owner string, lease time.Duration, want int) (Acquired, error) {
	reply := reentrantAcquire.exec(ctx, rdb, []string{k.Lock}, []string{owner, ms(lease), strconv.Itoa(want)})
	return acquired(reentrantAcquire, reply)
}

// ReleaseReentrant leaves owner leave holds of the lock: Done, Gone or Foreign.
func ReleaseReentrant(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int) (Verdict, error) {
	reply := reentrantRelease.exec(ctx, rdb, []string{k.Lock}, []string{owner, strconv.Itoa(leave), k.Channel, k.Publish})
	return verdict(reentrantRelease, reply, Done, Gone, Foreign)
}

// Renewal is one lock to renew.
type Renewal struct{ Key, Owner string }

// Renewed is the reply for one lock: Done, Gone or Foreign, or an error.
type Renewed struct {
	Verdict Verdict
	Err     error
}

// RenewReentrant lengthens the leases of all batch, perCall locks in each
// script call, all calls in one pipeline. One reply for each lock, in order.
//
// More than one lock a call is only right where there are no cluster slots. A
// call of several that the server refuses is made again for each lock alone: it
// may be a cluster that looks like one server, and one lock that is denied must
// not end the others.
func RenewReentrant(ctx context.Context, rdb rueidis.Client, batch []Renewal, lease time.Duration, perCall int) []Renewed {
	calls := make([]call, 0, (len(batch)+perCall-1)/perCall)
	for first := 0; first < len(batch); first += perCall {
		part := batch[first:min(first+perCall, len(batch))]
		c := call{keys: make([]string, len(part)), args: make([]string, 1, len(part)+1)}
		c.args[0] = ms(lease)
		for i, r := range part {
			c.keys[i] = r.Key
			c.args = append(c.args, r.Owner)
		}
		calls = append(calls, c)
	}
	renewed := make([]Renewed, 0, len(batch))
	for i, reply := range reentrantRenew.pipeline(ctx, rdb, calls) {
		verdicts, err := renewals(reply, len(calls[i].keys))
		if _, refused := rueidis.IsRedisErr(err); refused && len(calls[i].keys) > 1 {
			first := len(renewed)
			renewed = append(renewed, RenewReentrant(ctx, rdb, batch[first:first+len(calls[i].keys)], lease, 1)...)
			continue
		}
		for j := range calls[i].keys {
			if err != nil {
				renewed = append(renewed, Renewed{Err: err})
			} else {
				renewed = append(renewed, Renewed{Verdict: verdicts[j]})
			}
		}
	}
	return renewed
}

// Snapshot is a plain lock as it stands.
type Snapshot struct {
	Exists bool
	Left   time.Duration // or NoExpiry
	Fields []Field       // in the server's order
}

// Field is one field of the lock's hash.
type Field struct{ Name, Value string }

// InspectReentrant reads the lock.
func InspectReentrant(ctx context.Context, rdb rueidis.Client, k Keys) (Snapshot, error) {
	reply, err := reentrantInspect.exec(ctx, rdb, []string{k.Lock}, nil).ToArray()
	if err != nil {
		return Snapshot{}, err
	}
	bad := &ReplyError{Script: reentrantInspect.name, Reply: fmt.Sprintf("list of %d", len(reply))}
	if len(reply)%2 != 1 {
		return Snapshot{}, bad
	}
	left, err := reply[0].ToInt64()
	if err != nil {
		return Snapshot{}, bad
	}
	s := Snapshot{Exists: left != -2, Left: remaining(left)}
	for i := 1; i < len(reply); i += 2 {
		name, err1 := reply[i].ToString()
		value, err2 := reply[i+1].ToString()
		if err1 != nil || err2 != nil {
			return Snapshot{}, bad
		}
		s.Fields = append(s.Fields, Field{name, value})
	}
	return s, nil
}

// ForceReentrant frees the lock whoever holds it: Done when somebody did, Free
// when nobody did, or Foreign.
func ForceReentrant(ctx context.Context, rdb rueidis.Client, k Keys) (Verdict, error) {
	reply := reentrantForce.exec(ctx, rdb, []string{k.Lock}, []string{k.Channel, k.Publish})
	return verdict(reentrantForce, reply, Done, Free, Foreign)
}

// acquired reads the reply of an acquire script: a string is a grant, a number
// is not.
func acquired(s *script, reply rueidis.RedisResult) (Acquired, error) {
	msg, err := reply.ToMessage()
	if err != nil {
		return Acquired{}, err
	}
	if msg.IsString() {
		text, _ := msg.ToString()
		token, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return Acquired{}, &ReplyError{s.name, strconv.Quote(text)}
		}
		return Acquired{Verdict: Done, Token: token}, nil
	}
	n, err := msg.ToInt64()
	switch {
	case err != nil:
		return Acquired{}, &ReplyError{s.name, msg.String()}
	case n >= -1:
		return Acquired{Verdict: Held, Left: remaining(n)}, nil
	case n == int64(Gone), n == int64(Foreign):
		return Acquired{Verdict: Verdict(n)}, nil
	default:
		return Acquired{}, &ReplyError{s.name, strconv.FormatInt(n, 10)}
	}
}

func verdict(s *script, reply rueidis.RedisResult, legal ...Verdict) (Verdict, error) {
	msg, err := reply.ToMessage()
	if err != nil {
		return 0, err
	}
	n, err := msg.ToInt64()
	if err == nil {
		for _, v := range legal {
			if n == int64(v) {
				return v, nil
			}
		}
	}
	return 0, &ReplyError{s.name, msg.String()}
}

func renewals(reply rueidis.RedisResult, n int) ([]Verdict, error) {
	msg, err := reply.ToMessage()
	if err != nil {
		return nil, err
	}
	bad := &ReplyError{reentrantRenew.name, msg.String()}
	numbers, err := msg.AsIntSlice()
	if err != nil || len(numbers) != n {
		return nil, bad
	}
	verdicts := make([]Verdict, n)
	for i, number := range numbers {
		switch v := Verdict(number); v {
		case Done, Gone, Foreign:
			verdicts[i] = v
		default:
			return nil, bad
		}
	}
	return verdicts, nil
}

// ms is d as scripts take it.
func ms(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// remaining is a PTTL reply as a duration.
func remaining(pttl int64) time.Duration {
	if pttl < 0 {
		return NoExpiry
	}
	return time.Duration(pttl) * time.Millisecond
}
