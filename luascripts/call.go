package luascripts

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// Verdict is what a script found about an owner.
type Verdict int

const (
	Done    Verdict = 1  // the owner has what it requested
	Held    Verdict = 0  // acquire: another owner has the lock
	Free    Verdict = 0  // force: no owner had it
	Gone    Verdict = -2 // the owner holds nothing
	Foreign Verdict = -4 // the key has the wrong type
)

// Keys has the names of the keys and channels that the scripts of one lock use. A name that this
// type of lock does not have is empty.
type Keys struct {
	Lock         string // the hash
	Channel      string // the channel of waiters; the channels of a fair lock's waiters begin with it
	QueueChannel string // plain: the channel of all clients that use the queue; a client in the queue also subscribes to "<queue channel>:<client uuid>"
	Publish      string // the command that notifies them: PUBLISH or SPUBLISH

	// Scattered reports that a message may reach subscribers that the publishing server does not
	// count, such as subscribers on other nodes of a cluster.
	Scattered bool

	Queue    string // fair, semaphore: the list of waiting owners
	Timeouts string // fair, semaphore: the zset of their deadlines

	Never string // fair, read/write, semaphore, latch: a key that never exists

	TokenCounter string // the latest fencing token, or "" without fencing

	ReadWriteKeys
	SemaphoreKeys
	LatchKeys
}

// ReadWriteKeys has the names that only read/write locks have.
type ReadWriteKeys struct {
	Intent      string // the waiting writer that later readers wait behind
	Reservation string // the waiting reader that writers wait behind when a writer has left
	LeasePrefix string // the prefix of the keys of read leases
}

// SemaphoreKeys has the names and settings that only semaphores have. Keys.Lock is the number of free
// permits.
type SemaphoreKeys struct {
	Leases  string // the zset of the permits that are held
	Change  string // the channel at which Redisson's clients listen
	Slots   string // the hash of the permits' slots
	Permits int    // the number of permits of an owner
	Total   int    // the required total; 0 accepts any
}

// LatchKeys has the names that only latches have. Keys.Lock is the count.
type LatchKeys struct {
	Rounds string // the hash of its rounds
	Calls  string // the zset of the calls that were counted
}

// Request is the request of an owner to an acquire script. Each type of lock ignores the fields
// that it does not use.
type Request struct {
	Owner string
	Lease time.Duration
	Want  int // the hold count that must result; 1 for the first hold

	// WaiterTimeout is how long the entry of a waiter lives in Redis without a renewal. The entry
	// is a queue position, a writer intent or a reader reservation. With 0 there is none.
	WaiterTimeout time.Duration

	Offer      time.Duration // plain: the lease with which the lock is granted to an owner in the queue; 0 does not enter it
	RetryAfter time.Duration // plain: the time after which an owner in the queue retries
	Spare      int           // plain, fair: the number of tokens that this owner gets in addition to its own

	Waited time.Duration // plain, read/write: how long the owner has been waiting
	Writer string        // read: the owner string by which the caller writes, or ""
	Yield  bool          // read: wait behind a writer that arrived earlier

	// Replicas is the number of replicas that must confirm, within ReplicaTimeout.
	Replicas       int
	ReplicaTimeout time.Duration
}

// NoExpiry is the lease of a key without an expiry.
const NoExpiry time.Duration = -1

// Acquired is the reply to an acquire script.
type Acquired struct {
	Verdict  Verdict
	Token    uint64        // Done on a first hold: the fencing token
	Left     time.Duration // Held: the remaining lease of the other owner, or NoExpiry
	NoPubSub bool          // plain, Held: no message reaches the process of the owner
	Kept     time.Duration // Held: the other client may keep the lock without an owner, so an owner that does not wait retries for this long; otherwise 0
	Own      bool          // fair, Held: a message on the owner's own channel may also notify it of its turn
	Next     string        // fair, Done: the numbers of the next owners in the queue, as long as they belong to the same client, separated by spaces

	Confirmed int // Done: the number of replicas that confirmed the grant, if the request requires any
}

// acquire runs an acquire script, and waits for the replicas if the request requires any.
func acquire(ctx context.Context, rdb rueidis.Client, s *script, keys, args []string, q Request) (Acquired, error) {
	if q.Replicas == 0 {
		return acquired(s, s.exec(ctx, rdb, keys, args))
	}
	return s.execReplicated(ctx, rdb, keys, args, q.Replicas, q.ReplicaTimeout)
}

// acquired reads the reply of an acquire script.
func acquired(s *script, reply rueidis.RedisResult) (Acquired, error) {
	msg, err := reply.ToMessage()
	if err != nil {
		return Acquired{}, err
	}
	return parseAcquired(s, &msg)
}

// parseAcquired reads the reply of an acquire script, which is not an error. A string is a grant, and a number is not.
func parseAcquired(s *script, msg *rueidis.RedisMessage) (Acquired, error) {
	if msg.IsString() {
		text, _ := msg.ToString()
		token, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return Acquired{}, &ReplyError{s.name, strconv.Quote(text)}
		}
		return Acquired{Verdict: Done, Token: token}, nil
	}
	if msg.IsArray() {
		if parts, err := msg.ToArray(); s == fairAcquire && err == nil && len(parts) > 1 && parts[1].IsString() {
			token, next, ok := grantedFair(parts[1:])
			if v, err := parts[0].ToInt64(); !ok || err != nil || v != int64(Done) {
				return Acquired{}, &ReplyError{s.name, msg.String()}
			}
			return Acquired{Verdict: Done, Token: token, Next: next}, nil
		}
		left, err := msg.AsIntSlice()
		switch {
		case err == nil && len(left) == 1 && left[0] >= -1:
			return Acquired{Verdict: Held, Left: remaining(left[0]), NoPubSub: true}, nil
		case err == nil && len(left) == 2 && left[0] >= -1 && left[1]&^1 == 0:
			return Acquired{Verdict: Held, Left: remaining(left[0]), Own: left[1] == 1}, nil
		case err == nil && len(left) == 3 && left[0] >= -1 && left[1]&^1 == 0 && left[2] > 0:
			return Acquired{Verdict: Held, Left: remaining(left[0]), NoPubSub: s != fairAcquire && left[1] == 1, Own: s == fairAcquire && left[1] == 1, Kept: Millis(left[2])}, nil
		}
		return Acquired{}, &ReplyError{s.name, msg.String()}
	}
	n, err := msg.ToInt64()
	switch {
	case err != nil:
		return Acquired{}, &ReplyError{s.name, msg.String()}
	case n >= -1:
		return Acquired{Verdict: Held, Left: remaining(n)}, nil
	case n == int64(Gone), n == int64(Foreign), n == int64(again), n == int64(more) && s == writeAcquire:
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

// dated reads the reply of a script that does nothing once the server's time has reached before, in ms, and returns that time
// instead. Otherwise now is 0.
func dated(s *script, reply rueidis.RedisResult, before int64, legal ...Verdict) (v Verdict, now int64, err error) {
	if n, err := reply.AsInt64(); err == nil && n > int64(Done) && n >= before {
		return 0, n, nil
	}
	v, err = verdict(s, reply, legal...)
	return v, 0, err
}

// Snapshot is the state of a lock in Redis.
type Snapshot struct {
	Exists  bool
	Foreign bool          // fair, read/write: the key has the wrong type
	Left    time.Duration // or NoExpiry
	Mode    string        // read/write: "read", "write", or "" when free
	Fields  []Field       // in the server's order
	Waiters []Waiter      // in first-come, first-served order
}

// Field is one field of the lock's hash.
type Field struct{ Name, Value string }

// Waiter is one waiting owner, as stored in Redis.
type Waiter struct {
	Owner         string
	WaiterTimeout time.Duration // time after which it counts as dead without a heartbeat; NoExpiry if it counts as alive while it is subscribed
	Enters        bool          // fair, in a heartbeat: it enters the queue, unless it is already queued
	Total         int           // semaphore, in a heartbeat: the required total; 0 accepts any
}

// remaining returns a PTTL reply as a duration.
func remaining(pttl int64) time.Duration {
	if pttl < 0 {
		return NoExpiry
	}
	return Millis(pttl)
}

// longest is the longest duration that is read from a server. Adding to it does not overflow.
const longest = 100 * 365 * 24 * time.Hour

// Millis returns a duration of ms milliseconds, at most 100 years, because an expiry can be longer
// than a time.Duration.
func Millis(ms int64) time.Duration {
	return time.Duration(min(ms, longest.Milliseconds())) * time.Millisecond
}

// fields reads a list of alternating names and values.
func fields(msgs []rueidis.RedisMessage) ([]Field, bool) {
	if len(msgs)%2 != 0 {
		return nil, false
	}
	var all []Field
	for i := 0; i < len(msgs); i += 2 {
		name, err1 := msgs[i].ToString()
		value, err2 := msgs[i+1].ToString()
		if err1 != nil || err2 != nil {
			return nil, false
		}
		all = append(all, Field{name, value})
	}
	return all, true
}

// waiters reads a list of alternating owners and milliseconds.
func waiters(msgs []rueidis.RedisMessage) ([]Waiter, bool) {
	if len(msgs)%2 != 0 {
		return nil, false
	}
	var all []Waiter
	for i := 0; i < len(msgs); i += 2 {
		owner, err1 := msgs[i].ToString()
		timeout, err2 := msgs[i+1].ToInt64()
		if err1 != nil || err2 != nil {
			return nil, false
		}
		all = append(all, Waiter{Owner: owner, WaiterTimeout: remaining(timeout)})
	}
	return all, true
}

// withTokenCounter adds the counter of fencing tokens to keys, if there is one.
func (k *Keys) withTokenCounter(keys ...string) []string {
	if k.TokenCounter != "" {
		keys = append(keys, k.TokenCounter)
	}
	return keys
}
