// Package slots tracks which slots of a cluster are on the same node, so that each batch of
// renewals goes to one node, and a slow node does not delay the others.
//
// rueidis routes each command, but does not expose the node. A [Table] is used for nothing else, so
// it may be wrong at times.
package slots

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// count is the number of slots of a cluster.
const count = 16384

// OfKey returns the slot of a key on a cluster, as rueidis computes it.
func OfKey(rdb rueidis.Client, key string) uint16 {
	c := rdb.B().Exists().Key(key).Build()
	return c.Slot()
}

// Elsewhere returns the first of others that is in a different slot of a cluster than key. A command with both would
// make the client library panic.
func Elsewhere(rdb rueidis.Client, key string, others []string) (other string, is bool) {
	if rdb.Mode() != rueidis.ClientModeCluster {
		return "", false
	}
	slot := OfKey(rdb, key)
	for _, other := range others {
		if OfKey(rdb, other) != slot {
			return other, true
		}
	}
	return "", false
}

// Table stores which slots are on the same node. The zero Table guesses. It is safe for concurrent
// use.
type Table struct {
	known atomic.Pointer[nodes] // nil before the first reply
	next  atomic.Int64          // time of the next query, in ns since begun
}

// nodes has for each slot the lowest slot on the same node. That number identifies the node, and
// stays the same when a replica takes over.
type nodes [count]uint16

var begun = time.Now()

// guess is used until a cluster has replied: neighboring slots are assumed to be on the same node.
var guess = func() *nodes {
	var n nodes
	for slot := range n {
		n[slot] = uint16(slot) / 1024 * 1024
	}
	return &n
}()

// Of returns the node of a slot: a number that all slots of that node share.
func (t *Table) Of(slot uint16) uint16 {
	if known := t.known.Load(); known != nil {
		return known[slot]
	}
	return guess[slot]
}

// Due reports whether the caller should call Refresh now. In each interval, it returns true for one of
// all callers.
func (t *Table) Due(interval time.Duration) bool {
	now, next := int64(time.Since(begun)), t.next.Load()
	return now >= next && t.next.CompareAndSwap(next, now+int64(interval)) // mutant: border: a nanosecond later
}

// Refresh queries a node for the slots of each node, with CLUSTER SLOTS. After an error the Table
// is unchanged. The next query may go to another node.
func (t *Table) Refresh(ctx context.Context, rdb rueidis.Client) error {
	known, err := parse(rdb.Do(ctx, rdb.B().ClusterSlots().Build()))
	if err == nil {
		t.known.Store(known)
	}
	return err
}

var errReply = errors.New("unexpected reply to CLUSTER SLOTS")

// parse reads the reply to CLUSTER SLOTS. A slot in no range is assigned to the node of its
// neighbors.
func parse(reply rueidis.RedisResult) (*nodes, error) {
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
		parts, _ := answer[i].ToArray() // from, to, master, replicas
		if len(parts) < 3 {
			return nil, errReply
		}
		master, _ := parts[2].ToArray() // address, port, id
		if len(master) < 3 {
			return nil, errReply
		}
		from, err1 := parts[0].ToInt64()
		to, err2 := parts[1].ToInt64()
		id, err3 := master[2].ToString()
		if errors.Join(err1, err2, err3) != nil || from < 0 || to >= count {
			return nil, errReply
		}
		spans[i] = span{from, to, id}
	}
	slices.SortFunc(spans, func(a, b span) int { return int(a.from - b.from) })
	n := *guess
	lowest := make(map[string]uint16)
	for _, sp := range spans {
		if _, known := lowest[sp.node]; !known {
			lowest[sp.node] = uint16(sp.from)
		}
		for slot := sp.from; slot <= sp.to; slot++ {
			n[slot] = lowest[sp.node]
		}
	}
	return &n, nil
}
