package admin

import (
	"cmp"
	"context"
	"iter"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/registry"
	"github.com/leasehold-go/leasehold/lock"
)

// A ClientPage is a part of a list of clients.
type ClientPage struct {
	Clients []lock.Client // in no order; can be empty before the last page
	Next    string        // the cursor of the next page; empty on the last page
}

// ClientPage lists some of the clients that have an entry in Redis (client.WithName), as Page
// lists locks.
func (a *Admin) ClientPage(ctx context.Context, cursor string) (ClientPage, error) {
	page, err := a.clientPage(ctx, cursor)
	if err != nil {
		return ClientPage{}, a.failed(ctx, "list clients", "", err)
	}
	return page, nil
}

// Clients lists each client that has an entry in Redis, once. It ends after an error.
func (a *Admin) Clients(ctx context.Context) iter.Seq2[lock.Client, error] {
	return func(yield func(lock.Client, error) bool) {
		seen := make(map[string]bool)
		for cursor, first := "", true; first || cursor != ""; first = false {
			page, err := a.ClientPage(ctx, cursor)
			if err != nil {
				yield(lock.Client{}, err)
				return
			}
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
	}
}

func (a *Admin) clientPage(ctx context.Context, cursor string) (page ClientPage, err error) {
	page.Next, err = a.scan(ctx, Prefix(keys.Client("")), "hash", cursor, func(names []string) (bool, error) {
		var ids []string
		for _, name := range names {
			if id, ok := keys.ClientID(name); ok {
				ids = append(ids, id)
			}
		}
		for len(ids) > 0 {
			part := ids[:min(len(ids), registry.MostRead)]
			ids = ids[len(part):]
			ctx, cancel := a.within(ctx)
			clients, err := registry.Read(ctx, a.rdb, part)
			cancel()
			if err != nil && len(clients) == 0 {
				return false, cmp.Or(context.Cause(ctx), err)
			}
			for _, c := range clients {
				page.Clients = append(page.Clients, c)
			}
		}
		return len(page.Clients) < pageLocks, nil
	})
	return page, err
}
