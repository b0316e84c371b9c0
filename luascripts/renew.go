package luascripts

import (
	"context"
	"time"

	"github.com/redis/rueidis"
)

// Renewal is one lock to renew.
type Renewal struct {
	Keys  *Keys
	Owner string
	Slot  uint16 // the slot of the keys on a cluster; otherwise the same for all
}

// Renewed is the reply for one lock. It is Done, Gone or Foreign, or an error.
type Renewed struct {
	Verdict Verdict
	Err     error
}

// renewer is a script that renews. Its keys are the one that never exists, if that is not nil,
// and of each lock the one that keyOf returns, or that of the lock itself; its arguments are the lease and what argsOf adds for each lock.
type renewer struct {
	*script
	never  func(*Keys) string
	keyOf  func(*Keys) string
	argsOf func(args []string, r *Renewal) []string
}

// renew runs the script for all of batch, all calls in one pipeline: perCall locks in
// each call, but only neighbours in batch of one slot. It returns one reply for each
// lock, in order.
//
// A call of several locks that the server refuses is repeated for each lock alone: the
// server may be a cluster that looks like one server, or a slot may be half moved; and one
// denied lock must not end the others.
func (s *renewer) renew(ctx context.Context, rdb rueidis.Client, batch []Renewal, lease time.Duration, perCall int) []Renewed {
	ends := make([]int, 0, 1+(len(batch)-1)/perCall) // where in batch each call ends
	for i := range batch {
		if last := len(ends) - 1; last >= 0 && i-starts(ends, last) < perCall && batch[i].Slot == batch[i-1].Slot {
			ends[last] = i + 1
		} else {
			ends = append(ends, i+1)
		}
	}
	replies := execAll(ctx, rdb, len(ends), func(i int, w *words) *script {
		s.words(w, batch[starts(ends, i):ends[i]], lease)
		return s.script
	})
	renewed := make([]Renewed, len(batch))
	for i, reply := range replies {
		part := batch[starts(ends, i):ends[i]]
		into := renewed[starts(ends, i):ends[i]]
		err := s.verdicts(reply, into)
		if _, refused := rueidis.IsRedisErr(err); refused && len(part) > 1 {
			copy(into, s.renew(ctx, rdb, part, lease, 1))
		} else if err != nil {
			for j := range into {
				into[j] = Renewed{Err: err}
			}
		}
	}
	return renewed
}

// starts returns where the i-th part begins; ends says where the parts end.
func starts(ends []int, i int) int {
	if i == 0 {
		return 0
	}
	return ends[i-1]
}

// words puts the keys and the arguments of one call into w.
func (s *renewer) words(w *words, part []Renewal, lease time.Duration) {
	w.add(settingMs(lease))
	if s.never != nil {
		w.keys = append(w.keys, s.never(part[0].Keys))
	}
	for i := range part {
		key := part[i].Keys.Lock
		if s.keyOf != nil {
			key = s.keyOf(part[i].Keys)
		}
		w.keys = append(w.keys, key)
		w.args = s.argsOf(w.args, &part[i])
	}
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
		place, v := numbers[i], Verdict(numbers[i+1])
		if place < 1 || place > int64(len(renewed)) || v != Gone && v != Foreign {
			return &ReplyError{s.name, msg.String()}
		}
		renewed[place-1].Verdict = v
	}
	return nil
}
