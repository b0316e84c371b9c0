package demo

import (
	"context"
	"strconv"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/redis/rueidis"
)

// dataLife is the time after which the data expires if the demo is killed.
const dataLife = 10 * time.Minute

// data is what the locks of the demo protect: some numbers and lists in Redis,
// read and written by single commands that do not check locks.
type data struct {
	rdb    rueidis.Client
	prefix string // of all keys of the demo
}

func openData(address, prefix string) (*data, error) {
	option, err := client.ParseURL(address)
	if err != nil {
		return nil, err
	}
	rdb, err := rueidis.NewClient(option)
	if err != nil {
		return nil, err
	}
	return &data{rdb, prefix}, nil
}

func (d *data) close() { d.rdb.Close() }

// key returns the key of data, which is different from that of any lock.
func (d *data) key(name string) string { return d.prefix + "data:" + name }

// number returns the number called name, or 0 if there is none.
func (d *data) number(ctx context.Context, name string) (int, error) {
	n, err := d.rdb.Do(ctx, d.rdb.B().Get().Key(d.key(name)).Build()).AsInt64()
	if rueidis.IsRedisNil(err) {
		return 0, nil
	}
	return int(n), err
}

func (d *data) setNumber(ctx context.Context, name string, n int) error {
	cmd := d.rdb.B().Set().Key(d.key(name)).Value(strconv.Itoa(n)).Ex(dataLife).Build()
	return d.rdb.Do(ctx, cmd).Error()
}

// setGuarded sets a number, unless a larger token has already set it. The check and the
// write are atomic.
func (d *data) setGuarded(ctx context.Context, token uint64, name string, n int) error {
	guard, err := fence.NewRedis(d.rdb, fence.WithHighestTokenExpiry(dataLife))
	if err != nil {
		return err
	}
	if err := guard.Set(ctx, token, d.key(name), strconv.Itoa(n)); err != nil {
		return err
	}
	return d.rdb.Do(ctx, d.rdb.B().Expire().Key(d.key(name)).Seconds(int64(dataLife.Seconds())).Build()).Error()
}

func (d *data) list(ctx context.Context, name string) ([]string, error) {
	return d.rdb.Do(ctx, d.rdb.B().Lrange().Key(d.key(name)).Start(0).Stop(-1).Build()).AsStrSlice()
}

// add puts a line at the end of a list.
func (d *data) add(ctx context.Context, name, line string) error {
	for _, reply := range d.rdb.DoMulti(ctx,
		d.rdb.B().Rpush().Key(d.key(name)).Element(line).Build(),
		d.rdb.B().Expire().Key(d.key(name)).Seconds(int64(dataLife.Seconds())).Build(),
	) {
		if err := reply.Error(); err != nil {
			return err
		}
	}
	return nil
}

// steal deletes the key of a lock, as an operator might by hand.
func (d *data) steal(ctx context.Context, lock string) error {
	return d.rdb.Do(ctx, d.rdb.B().Del().Key(d.prefix+lock).Build()).Error()
}

// removeAll removes all numbers and lists with the token counters of their guards, but no locks. It also removes the settings
// of the semaphore, the limiters, the filter, the latch and the wait group, which never expire.
func (d *data) removeAll(ctx context.Context) error {
	patterns := []string{d.key("*"), "leasehold_fence:{" + d.key("*") + "}"}
	for _, name := range []string{"gpus", "calls", "seen", "parts", "never made", "team", "election"} {
		patterns = append(patterns, "*"+d.prefix+name+"*")
	}
	for _, pattern := range patterns {
		keys, err := d.find(ctx, pattern)
		if err != nil {
			return err
		}
		for _, key := range keys {
			if err := d.rdb.Do(ctx, d.rdb.B().Del().Key(key).Build()).Error(); err != nil {
				return err
			}
		}
	}
	return nil
}

// left returns all keys of the demo, with any text before its prefix.
func (d *data) left(ctx context.Context) ([]string, error) {
	return d.find(ctx, "*"+d.prefix+"*")
}

// find returns the keys that match pattern, on all nodes if it is a cluster.
func (d *data) find(ctx context.Context, pattern string) ([]string, error) {
	var keys []string
	for _, node := range d.rdb.Nodes() {
		for cursor := uint64(0); ; {
			page, err := node.Do(ctx, node.B().Scan().Cursor(cursor).Match(pattern).Count(1000).Build()).AsScanEntry()
			if err != nil {
				return nil, err
			}
			keys = append(keys, page.Elements...)
			if cursor = page.Cursor; cursor == 0 {
				break
			}
		}
	}
	return keys, nil
}
