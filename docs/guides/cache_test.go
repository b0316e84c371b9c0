package guides

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/locktest"
)

// cache is a directory of pages that several machines share. Many machines read a page at once.
// Building a page is slow, and one machine does it.
type cache struct {
	locks *client.Client
	read  func(name string) (page string, found bool)
	build func(ctx context.Context, name string) error
}

func (c *cache) page(ctx context.Context, name string) (string, error) {
	l := c.locks.NewRWLock("pages:" + name)

	r, err := l.Read().Lock(ctx)
	if err != nil {
		return "", err
	}
	page, found := c.read(name)
	if err := r.Unlock(ctx); err != nil || found {
		return page, err // on a loss, another machine may have written in the meantime
	}

	w, err := l.Write().Lock(ctx) // after releasing the read lock: it cannot be upgraded
	if err != nil {
		return "", err
	}
	if _, found := c.read(name); !found { // another machine may have built it in the meantime
		if err := c.build(w.Context(), name); err != nil {
			w.Unlock(ctx)
			return "", err
		}
	}

	r, err = l.Downgrade(ctx, w) // admits readers, and no writer in between
	if err != nil {
		w.Unlock(ctx)
		return "", err
	}
	page, _ = c.read(name)
	return page, r.Unlock(ctx)
}

func TestCache(t *testing.T) {
	var builds atomic.Int32
	var disk sync.Map
	s := locktest.NewServer(t)
	var machines []*cache
	for range 3 {
		machines = append(machines, &cache{
			locks: s.Client(t),
			read: func(name string) (string, bool) {
				page, found := disk.Load(name)
				if !found {
					return "", false
				}
				return page.(string), true
			},
			build: func(ctx context.Context, name string) error {
				builds.Add(1)
				disk.Store(name, "the page "+name)
				return ctx.Err()
			},
		})
	}
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			name := fmt.Sprint(i % 2)
			if page, err := machines[i%3].page(t.Context(), name); err != nil || page != "the page "+name {
				t.Errorf("%q, %v", page, err)
			}
		})
	}
	wg.Wait()
	if n := builds.Load(); n != 2 {
		t.Errorf("two pages were built %d times", n)
	}
}
