package luascripts

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"
)

// Renewal is one lock to renew.
type Renewal struct {
	Keys  *Keys
	Owner string
	Slot  uint16 // the slot of the keys on a cluster; otherwise the same for all
}

func (r Renewal) slot() uint16 { return r.Slot }

// Renewed is the reply for one lock. It is Done, Gone or Foreign, or an error.
type Renewed struct {
	Verdict Verdict
	Err     error
}

// renewer is a script that renews. Its keys start with the one that never exists, unless never is nil.
// The other keys are the result of keyOf for each lock, or the key of the lock if keyOf is nil. Its
// arguments are the lease, and what argsOf adds for each lock.
type renewer struct {
	*script
	never  func(*Keys) string
	keyOf  func(*Keys) string
	argsOf func(args []string, r *Renewal) []string
}

// renew renews all locks of batch, with all calls in one pipeline. A call has up to perCall locks, which
// are neighbors in batch and in one slot. It returns one reply for each lock, in order.
//
// A call of several locks that the server rejects is repeated for each lock alone. The server may be a
// cluster that appears as one server, or a slot may be partly migrated. One denied lock must not fail
// the others.
func (s *renewer) renew(ctx context.Context, rdb rueidis.Client, batch []Renewal, lease time.Duration, perCall int) []Renewed {
	calls := split(make([][]Renewal, 0, 1+(len(batch)-1)/perCall), batch, perCall)
	replies := execAll(ctx, rdb, len(calls), func(i int, w *words) *script { return s.words(w, calls[i], lease) })
	renewed := make([]Renewed, len(batch))
	rest := renewed
	for i, reply := range replies {
		call := calls[i]
		into := rest[:len(call)]
		rest = rest[len(call):]
		err := s.verdicts(reply, into)
		if len(calls) > 1 && errors.Is(err, rueidis.ErrNoSlot) { // mutant: operand 2: a renewal can be repeated
			// A slot has no node, and the library sent none of the calls.
			copy(into, s.renew(ctx, rdb, call, lease, perCall))
		} else if _, refused := rueidis.IsRedisErr(err); refused && len(call) > 1 { // mutant: operand 1: a renewal can be repeated
			copy(into, s.renew(ctx, rdb, call, lease, 1))
		} else if err != nil {
			for j := range into {
				into[j] = Renewed{Err: err}
			}
		}
	}
	return renewed
}

// words returns the script, and adds the keys and arguments of one call to w.
func (s *renewer) words(w *words, call []Renewal, lease time.Duration) *script {
	w.add(settingMs(lease))
	if s.never != nil {
		w.keys = append(w.keys, s.never(call[0].Keys))
	}
	for i := range call {
		key := call[i].Keys.Lock
		if s.keyOf != nil {
			key = s.keyOf(call[i].Keys)
		}
		w.keys = append(w.keys, key)
		w.args = s.argsOf(w.args, &call[i])
	}
	return s.script
}

// verdicts reads the reply of a call into renewed.
func (s *renewer) verdicts(reply rueidis.RedisResult, renewed []Renewed) error {
	msg, err := reply.ToMessage()
	if err != nil {
		return err
	}
	numbers, err := msg.AsIntSlice()
	if err != nil || len(numbers)%2 != 1 || numbers[0] != int64(len(renewed)) {
		return &ReplyError{s.name, msg.String()}
	}
	for i := range renewed {
		renewed[i] = Renewed{Verdict: Done}
	}
	for i := 1; i < len(numbers); i += 2 {
		index, v := numbers[i], Verdict(numbers[i+1])
		if index < 1 || index > int64(len(renewed)) || v != Gone && v != Foreign {
			return &ReplyError{s.name, msg.String()}
		}
		renewed[index-1].Verdict = v
	}
	return nil
}
