package registry

import (
	"context"
	"strconv"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// MostRead is the maximum number of entries that one Read returns.
const MostRead = 256

// fields are the fields of an entry, in the order that parse expects.
var fields = []string{"host", "pid", "name", "label", "version", "started"}

// Read returns the entries of the first MostRead of these clients. Clients without an entry are missing. If Read returns
// an error, other entries may be missing, too.
func Read(ctx context.Context, rdb rueidis.Client, ids []string) (map[string]lock.Client, error) {
	ids = ids[:min(len(ids), MostRead)]
	if len(ids) == 0 { // mutant: never: speed
		return nil, nil
	}
	questions := make(rueidis.Commands, len(ids))
	for i, id := range ids {
		questions[i] = retry.Once(rdb, "HMGET", keys.Client(id), fields...)
	}
	clients := make(map[string]lock.Client, len(ids))
	var failed error
	for i, reply := range rdb.DoMulti(ctx, questions...) {
		values, err := reply.ToArray()
		if err != nil {
			failed = err
			continue
		}
		if c := parse(ids[i], values); c.Known() {
			clients[c.ID] = c
		}
	}
	return clients, failed
}

// parse decodes an entry. Invalid fields stay empty.
func parse(id string, values []rueidis.RedisMessage) lock.Client {
	text := func(i int) string {
		if i >= len(values) {
			return ""
		}
		s, _ := values[i].ToString()
		return bounded(s)
	}
	c := lock.Client{ID: id, Host: text(0), Name: text(2), Label: text(3), Version: text(4)}
	c.PID, _ = strconv.Atoi(text(1))
	if t, err := time.Parse(time.RFC3339Nano, text(5)); err == nil && t.UTC().Year() > 0 && t.UTC().Year() < 10000 { // mutant: operand 2: after an error t has the year 1. JSON has no other years
		c.Started = t
	}
	return c
}

// Name sets the clients of the holders and waiters of s to their entries in clients. A client without an entry gets only
// its ID. Name returns the ID of each client, once.
func Name(s *lock.State, clients map[string]lock.Client) (ids []string) {
	seen := make(map[string]bool)
	name := func(owner string) lock.Client {
		id := lock.ClientID(owner)
		if id != "" && !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
		if c, ok := clients[id]; ok {
			return c
		}
		return lock.Client{ID: id}
	}
	for i := range s.Holders {
		s.Holders[i].Client = name(s.Holders[i].Owner)
	}
	for i := range s.Waiters {
		s.Waiters[i].Client = name(s.Waiters[i].Owner)
	}
	return ids
}
