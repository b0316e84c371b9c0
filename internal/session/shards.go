package session

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// slots is how many a cluster has.
const slots = 16384

// slotOf is the slot of a key on a cluster, as rueidis will see it.
func slotOf(rdb rueidis.Client, key string) uint16 {
	c := rdb.B().Exists().Key(key).Build()
	return c.Slot()
}

// shards knows which slots of a cluster are at the same node, so that renewals go to
// one node at a time, and one that is slow delays no other. rueidis finds the way of
// each command, but does not tell. What is known here decides nothing else, so it
// only needs to be right as a rule.
type shards struct {
	table atomic.Pointer[table]
	next  atomic.Int64 // when to ask again, in ns since begun
}

// table has for each slot the lowest one at the same node: that names the node, and
// stays when a replica takes over.
type table [slots]uint16

var begun = time.Now()

// guess is for a cluster that has not answered: neighbours are together.
var guess = func() *table {
	var t table
	for slot := range t {
		t[slot] = uint16(slot) / 1024 * 1024
	}
	return &t
}()

// shard returns the node of a slot. It does not block, but asks the cluster in the
// background, once in each interval between renewals.
func (s *Session) shard(slot uint16) uint16 {
	sh := &s.shards
	now, next := int64(time.Since(begun)), sh.next.Load()
	if now >= next && sh.next.CompareAndSwap(next, now+int64(s.Lease/3)) {
		s.work.Go(s.askShards)
	}
	if t := sh.table.Load(); t != nil {
		return t[slot]
	}
	return guess[slot]
}

// askShards asks any node which slots are where. If that one does not answer, the
// next question may go to another.
func (s *Session) askShards() {
	t, _, err := await(context.Background(), s, s.OpTimeout, func(ctx context.Context) (*table, error) {
		return parseSlots(s.rdb.Do(ctx, s.rdb.B().ClusterSlots().Build()))
	}, nil)
	if err == nil {
		s.shards.table.Store(t)
	}
}

var errSlots = errors.New("not an answer to CLUSTER SLOTS")

// parseSlots reads the answer to CLUSTER SLOTS. What is in no range stays with its
// neighbours.
func parseSlots(reply rueidis.RedisResult) (*table, error) {
	answer, err := reply.ToArray()
	if err != nil {
		return nil, err
	}
	type span struct {
		from, to int64
		node     string
	}
	spans := make([]span, len(answer))
	for i := range answer {
		parts, err := answer[i].ToArray() // from, to, master, replicas
		if err != nil || len(parts) < 3 {
			return nil, errSlots
		}
		master, err := parts[2].ToArray() // address, port, id
		if err != nil || len(master) < 3 {
			return nil, errSlots
		}
		from, err1 := parts[0].ToInt64()
		to, err2 := parts[1].ToInt64()
		id, err3 := master[2].ToString()
		if errors.Join(err1, err2, err3) != nil || from < 0 || to >= slots {
			return nil, errSlots
		}
		spans[i] = span{from, to, id}
	}
	slices.SortFunc(spans, func(a, b span) int { return int(a.from - b.from) })
	t := *guess
	lowest := make(map[string]uint16)
	for _, sp := range spans {
		if _, known := lowest[sp.node]; !known {
			lowest[sp.node] = uint16(sp.from)
		}
		for slot := sp.from; slot <= sp.to; slot++ {
			t[slot] = lowest[sp.node]
		}
	}
	return &t, nil
}
