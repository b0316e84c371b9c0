//go:build linux

package integration_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// A writer never holds the lock together with another owner. 100 readers and 4 writers in 8 processes acquire
// read/write locks in all possible ways. Half of the time they all contend for one name, otherwise for one of many.
// The checks:
//
//	inside:<name>   the number of writers: 1 in a writer's section, 0 in a reader's
//	reading:<name>  the number of readers: 0 in a writer's section
//	written:<name>  as for other locks; it does not change in a reader's section
//	the history     as for other locks
func TestExclusion_readWrite(t *testing.T) {
	states := make(map[string]rwClaims)
	sum := contest(t, 20_000, plan{RW: true, Goroutines: 13, Names: 1 + rwNames}, func(name string, history []op) {
		states[name] = check(t, name, states[name], history)
	})
	if sum.Reentries == 0 || sum.Refused == 0 || sum.Cancelled == 0 || sum.RanOut == 0 || sum.Upgrades == 0 || sum.Downgrades == 0 ||
		sum.Together < sum.Readings/10 || sum.Sections == 0 {
		t.Error("the mix lacks something that it should have")
	}
}

const (
	rwNames = 25 // names with little contention
	rwEach  = 26 // one in this many goroutines is a writer
)

// onceRW acquires one read/write lock in one of the ways, and releases it.
func (c *contender) onceRW(ctx context.Context) {
	name := contended(0)
	if c.random.IntN(2) == 0 {
		name = contended(1 + c.random.IntN(rwNames))
	}
	k := read
	if c.number%rwEach == 0 {
		k = write
	}
	var options []lock.Option
	if c.random.IntN(10) == 0 {
		options = append(options, lock.WithReaderPreference())
	}
	switch dice := c.random.IntN(1000); {
	case dice < 600:
		c.hold(ctx, k, name, exclusionLong, true, options...)
	case dice < 680: // with a short timeout
		c.hold(ctx, k, name, time.Duration(c.random.IntN(int(8*time.Millisecond))), true, options...)
	case dice < 870:
		c.hold(ctx, k, name, exclusionLong, false, options...)
	case dice < 990:
		c.hold(ctx, k, name, exclusionLong, true, append(options, lock.WithFixedLease(2*exclusionLong))...)
	default:
		c.runOut(ctx, k, name, time.Duration(20+c.random.IntN(30))*time.Millisecond)
	}
}

// upgrade requests the write lock under ctx, whose owner holds a read lock.
func (c *contender) upgrade(ctx context.Context, name string) {
	c.Upgrades++
	h, err := write.lock(c.process.client, name).Lock(ctx)
	if err == nil {
		c.wrong("a reader of %s may write: %v", name, h.Unlock(context.Background()))
	} else if !errors.Is(err, lock.ErrUpgrade) && ctx.Err() == nil {
		c.wrong("a reader of %s that asks to write: %v", name, err)
	}
}

// reading is the section of a reader.
func (c *contender) reading(name string) {
	c.Readings++
	ctx, rdb := context.Background(), c.process.side
	var written [2]int64
	for i, step := range []int64{1, -1} {
		all := rdb.DoMulti(ctx,
			rdb.B().Incrby().Key("reading:"+name).Increment(step).Build(),
			rdb.B().Get().Key("inside:"+name).Build(),
			rdb.B().Get().Key("written:"+name).Build())
		readers, err1 := all[0].AsInt64()
		inside, err2 := orNil(all[1].AsInt64())
		var err3 error
		written[i], err3 = orNil(all[2].AsInt64())
		if err := errors.Join(err1, err2, err3); err != nil {
			c.wrong("the section itself failed: %v", err)
		}
		if inside != 0 {
			c.wrong("%d were writing %s while it was read", inside, name)
		}
		if i == 0 && readers > 1 {
			c.Together++
		}
	}
	if written[0] != written[1] {
		c.wrong("%s was written while it was read", name)
	}
}
