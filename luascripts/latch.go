package luascripts

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var (
	latchInit   = load("latch_init")
	latchDown   = load("latch_down")
	latchStatus = load("latch_status")
	latchDelete = load("latch_delete")
)

// LatchCall is a call that changes a latch.
type LatchCall struct {
	ID    string        // unique to the call
	Part  string        // CountDownLatch: a name that counts once in each round; "" if the call has none
	Count int64         // CountDownLatch: how much it counts, up to MostCounts; 0 means 1, and a call with a Part also counts 1
	Keep  time.Duration // how long Redis stores the call
	Stay  time.Duration // the TTL of the rounds and calls, which live for at least half of it after a call
	Again bool          // an earlier copy may still arrive: it must not do what this copy did not do
}

// MostCounts is the maximum Count of a call, so that the record of a call can store how many of them had an effect.
const MostCounts = 1000

// LatchState is the state of a latch in Redis.
type LatchState struct {
	Did   int64 // the effect of the call, now or through an earlier copy: how much it counted, or 1 for other calls; 0 for none
	Left  int64 // the count; 0 if there is none
	Round int64 // the number of the round, larger for a later one; 0 if Redis has no round
	Open  int64 // the latest round whose count reached 0
	Gone  int64 // the latest round that was deleted
}

// IsOpen reports whether the latch is released, because its count reached 0.
func (s LatchState) IsOpen() bool {
	return s.Left == 0 && s.Round > 0 && s.Open == s.Round && s.Gone != s.Round
}

func (k Keys) latch() []string { return []string{k.Lock, k.Rounds, k.Calls, k.Never} }

// InitLatch sets the count of a latch that has none. Did is 0 if there is a latch.
func InitLatch(ctx context.Context, rdb rueidis.Client, k Keys, n int64, c LatchCall) (LatchState, Verdict, error) {
	return latchState(latchInit, 1, latchInit.exec(ctx, rdb, k.latch(), []string{strconv.FormatInt(n, 10), c.ID, ms(c.Keep), ms(c.Stay), k.Channel, k.Publish, bit(c.Again)}))
}

// CountDownLatch decrements the count of a latch. Did is less than the Count of the call if the count reached 0, and 0 if it was 0 before.
func CountDownLatch(ctx context.Context, rdb rueidis.Client, k Keys, c LatchCall) (LatchState, Verdict, error) {
	n := max(c.Count, 1)
	if c.Part != "" {
		n = 1
	}
	return latchState(latchDown, n, latchDown.exec(ctx, rdb, k.latch(), []string{c.ID, c.Part, ms(c.Keep), ms(c.Stay), k.Channel, k.Publish, bit(c.Again), strconv.FormatInt(n, 10)}))
}

// LatchStatus returns the state of a latch.
func LatchStatus(ctx context.Context, rdb rueidis.Client, k Keys, stay time.Duration) (LatchState, Verdict, error) {
	return latchState(latchStatus, 0, latchStatus.exec(ctx, rdb, k.latch(), []string{ms(stay)}))
}

// DeleteLatch deletes a latch. Did is 0 if there was none.
func DeleteLatch(ctx context.Context, rdb rueidis.Client, k Keys, c LatchCall) (LatchState, Verdict, error) {
	return latchState(latchDelete, 1, latchDelete.exec(ctx, rdb, k.latch(), []string{c.ID, ms(c.Keep), ms(c.Stay), k.Channel, k.Publish, bit(c.Again)}))
}

// latchState reads the reply of a latch script whose Did is at most `most`. The verdict is Done or Foreign.
func latchState(s *script, most int64, reply rueidis.RedisResult) (LatchState, Verdict, error) {
	msg, err := reply.ToMessage()
	if err != nil {
		return LatchState{}, 0, err
	}
	if n, err := msg.ToInt64(); err == nil && n == int64(Foreign) {
		return LatchState{}, Foreign, nil
	}
	n, err := msg.AsIntSlice()
	if err != nil || len(n) != 5 || n[0] < 0 || n[0] > most || n[1] < 0 || n[2] < 0 || n[3] < 0 || n[4] < 0 {
		return LatchState{}, 0, &ReplyError{s.name, msg.String()}
	}
	return LatchState{Did: n[0], Left: n[1], Round: n[2], Open: n[3], Gone: n[4]}, Done, nil
}
