package admin

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/registry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// A ClientPage is a part of a list of clients.
type ClientPage struct {
	Clients []lock.Client // in no order; can be empty before the last page
	Next    string        // cursor of the next page; "" on the last page
	Missing []Missing     // as in a Page
}

// ClientPage lists some of the clients that have an entry in Redis (client.WithName), as Page lists
// locks.
func (a *Admin) ClientPage(ctx context.Context, cursor string) (ClientPage, error) {
	page, err := a.clientPage(ctx, cursor)
	if err != nil {
		return ClientPage{}, a.failed(ctx, "list clients", "", err)
	}
	return page, nil
}

// Clients lists each client that has an entry in Redis, once. It ends after an error. If primaries
// of a cluster do not respond, the error matches [*IncompleteError], as in Locks.
func (a *Admin) Clients(ctx context.Context) iter.Seq2[lock.Client, error] {
	return func(yield func(lock.Client, error) bool) {
		seen := make(map[string]bool)
		var lacks IncompleteError
		for cursor, first := "", true; first || cursor != ""; first = false {
			page, err := a.ClientPage(ctx, cursor)
			if err != nil {
				yield(lock.Client{}, err)
				return
			}
			lacks.add(page.Missing)
			for _, c := range page.Clients {
				if seen[c.ID] {
					continue
				}
				seen[c.ID] = true
				if !yield(c, nil) {
					return
				}
			}
			cursor = page.Next
		}
		if len(lacks.Missing) > 0 {
			yield(lock.Client{}, a.failed(ctx, "list clients", "", &lacks))
		}
	}
}

func (a *Admin) clientPage(ctx context.Context, cursor string) (page ClientPage, err error) {
	entries := scan{Prefix(keys.Client("")), "hash", func(ctx context.Context, names []string) ([]Lock, error) {
		var ids []string
		for _, name := range names {
			if id, ok := keys.ClientID(name); ok {
				ids = append(ids, id)
			}
		}
		some, err := a.entries(ctx, ids)
		if err != nil && len(some) == 0 {
			return nil, err
		}
		page.Clients = slices.AppendSeq(page.Clients, maps.Values(some))
		return nil, nil
	}}
	page.Next, _, err = a.walk(ctx, []scan{entries}, cursor, func([]Lock) bool { return len(page.Clients) < pageLocks })
	page.Missing = a.missing()
	return page, err
}

// entries returns the entries of clients. Clients without an entry are missing. After an error some entries could not be read.
func (a *Admin) entries(ctx context.Context, ids []string) (all map[string]lock.Client, err error) {
	all = make(map[string]lock.Client)
	for part := range slices.Chunk(ids, registry.MostRead) {
		limit, cancel := a.within(ctx)
		some, failed := registry.Read(limit, a.rdb, part)
		failed = cmp.Or(context.Cause(limit), failed)
		cancel()
		maps.Copy(all, some)
		err = cmp.Or(err, failed)
	}
	return all, err
}

// IsGone reports whether the client of w, a waiter of the plain lock l, has no entry in Redis
// although clients of leasehold keep one. The process of that client was killed, unless it uses
// client.WithoutRegistry or is not allowed to write an entry. The next release skips a waiter that
// was killed.
func (l *Lock) IsGone(w lock.Waiter) bool {
	return l.Kind == Plain && l.nowhere[lock.ClientID(w.Owner)]
}

// IsFull reports whether the queue of the plain lock l has no more room. Then more processes can
// wait than Waiting counts.
func (l *Lock) IsFull() bool { return l.Kind == Plain && l.Waiting >= luascripts.MaxQueued }

// leaseholds reports whether id is that of a leasehold client, whose UUIDs have version 7, and not of Redisson.
func leaseholds(id string) bool { return len(id) > 14 && id[14] == '7' }
