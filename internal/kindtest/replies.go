package kindtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
)

// gate is a client whose scripts get an error reply while the gate is shut.
type gate struct {
	retry.Row
	execute bool // the server executes them nevertheless
	name    string
	client  *client.Client

	refused atomic.Int64
	left    atomic.Int64 // how many more are refused
}

// sent are the commands that gates refuse: all that calls send, except those for subscriptions.
var sent = []string{"EVALSHA", "EVAL", "BITCOUNT", "BITFIELD", "BITFIELD_RO", "GETBIT", "GETRANGE", "HMGET", "SETBIT"}

// gates returns a gate for each row of the table of error replies; where nobody knows whether the script was executed, two.
func gates(t *testing.T, s *redistest.Server) (all []*gate) {
	for i, r := range retry.Replies {
		for _, execute := range []bool{false, true} {
			if execute && r.Executed != retry.Unknown {
				continue
			}
			g := &gate{Row: r, execute: execute, name: fmt.Sprintf("orders%d%t", i, execute)}
			p := redistest.NewProxy(t, s.Addr())
			p.OnRequest(func(req [][]byte) redistest.Action {
				if !slices.Contains(sent, strings.ToUpper(string(req[0]))) || g.left.Add(-1) < 0 {
					return redistest.Action{}
				}
				g.refused.Add(1)
				return redistest.Action{Refuse: g.Reply, Execute: g.execute}
			})
			g.client = NewClient(t, s.Client(t, redistest.Via(p)), Fast...)
			all = append(all, g)
		}
	}
	return all
}

// shut refuses the next n scripts, and open no more.
func (g *gate) shut(n int64) { g.refused.Store(0); g.left.Store(n) }
func (g *gate) open()        { g.left.Store(0) }

const always = 1 << 30

// turnedAway waits until n scripts were refused since shut.
func (g *gate) turnedAway(n int64) error {
	return soon(fmt.Sprintf("%d scripts are refused", n), func() bool { return g.refused.Load() >= n })
}

// soon waits until done returns true.
func soon(what string, done func() bool) error {
	for end := time.Now().Add(2 * patience); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("waited in vain until %s", what)
		}
	}
	return nil
}

// wants returns an error unless err is what the table says of a single attempt.
func (g *gate) wants(what string, err error) error {
	text := strings.TrimPrefix(g.Reply, "ERR ")
	var fine bool
	switch {
	case err == nil || errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, lock.ErrUnavailable) != g.Passes:
	case errors.Is(g.Is, lock.ErrForeignKey):
		fine = errors.Is(err, lock.ErrForeignKey)
	default:
		fine = strings.Contains(err.Error(), text)
	}
	if !fine {
		return fmt.Errorf("%s: %v", what, err)
	}
	return nil
}

// retries reports whether a single attempt retries after the reply; a TryLock does not ask a replica again.
func (g *gate) retries() bool { return g.Retries() && g.Match != "READONLY" }

// each calls play for all gates at once.
func each(t *testing.T, s *redistest.Server, play func(g *gate) error) {
	var wg sync.WaitGroup
	for _, g := range gates(t, s) {
		wg.Go(func() {
			if err := play(g); err != nil {
				t.Errorf("%q, executed %t: %v", g.Reply, g.execute, err)
			}
			g.open()
		})
	}
	wg.Wait()
}

// LockReplies plays each error reply, for a time, to a call that begins in that time, to one that waits through it, to one whose turn comes in it,
// to renewals and to releases.
func LockReplies(t *testing.T, k Kind) {
	s := redistest.Start(t)
	sees := NewClient(t, s.Client(t))
	// take takes the lock by a client that is refused nothing.
	take := func(name string) (h lock.Hold, err error) {
		return k.rival().New(sees, name).Lock(t.Context())
	}
	// free waits until the lock is free.
	free := func(name string) error {
		return soon("the lock is free", func() bool {
			h, err := k.rival().New(sees, name).TryLock(t.Context())
			return err == nil && h.Unlock(t.Context()) == nil
		})
	}
	each(t, s, func(g *gate) error {
		l := k.New(g.client, g.name)
		for what, f := range map[string]func() error{
			"begins": func() error {
				g.shut(always)
				w := Go(t.Context(), l)
				return g.ends(w)
			},
			"TryLock": func() error {
				g.shut(2)
				h, err := l.TryLock(t.Context())
				g.open()
				if !g.retries() {
					return g.wants("TryLock", err)
				} else if err != nil {
					return fmt.Errorf("TryLock: %w", err)
				}
				g.shut(always)
				if _, err := k.New(g.client, g.name+"other").TryLock(t.Context()); g.wants("a TryLock that is refused all the time", err) != nil {
					return g.wants("a TryLock that is refused all the time", err)
				}
				g.open()
				return errors.Join(h.Unlock(t.Context()), free(g.name+"other"))
			},
			"renewals and Unlock": func() error {
				h, err := l.Lock(t.Context())
				if err != nil {
					return err
				}
				first := h.Until()
				g.shut(always)
				if err := g.turnedAway(1); err != nil {
					return err
				}
				g.open()
				if err := soon("it is renewed", func() bool { return h.Err() != nil || h.Until().After(first) }); err != nil || h.Err() != nil {
					return fmt.Errorf("%v, %v", err, h.Err())
				}
				g.shut(always)
				err = h.Unlock(t.Context())
				g.open()
				return errors.Join(g.wants("Unlock", err), free(g.name))
			},
			"waits": func() error {
				h, err := take(g.name)
				if err != nil {
					return err
				}
				w := Go(t.Context(), l)
				if err := soon("it listens", func() bool { return k.listeners(t, s, g.name) > 0 }); err != nil {
					return err
				}
				g.shut(always)
				if err := g.turnedAway(1); err != nil {
					return err
				}
				n := g.refused.Load()
				if err := h.Unlock(t.Context()); err != nil { // its turn comes
					return err
				}
				if g.Passes {
					if err := g.turnedAway(n + 1); err != nil {
						return err
					}
				}
				return g.ends(w)
			},
		} {
			if err := errors.Join(f(), free(g.name)); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		return nil
	})
}

// ends opens the gate of a waiter that was refused, and returns an error unless the waiter then gets the lock, or has failed if the reply does not pass.
func (g *gate) ends(w *Waiter) error {
	if g.Passes {
		if err := g.turnedAway(2); err != nil {
			return err
		}
		if !w.Waits() {
			return fmt.Errorf("the wait ended: %v", w.err)
		}
		g.open()
	}
	if err := soon("Lock returns", func() bool { return !w.Waits() }); err != nil {
		return err
	}
	g.open()
	if !g.Passes {
		return g.wants("Lock", w.err)
	}
	if w.err != nil {
		return w.err
	}
	return w.hold.Unlock(context.Background())
}

// Wait is a call that waits, other than Lock.
type Wait struct {
	Do func(ctx context.Context) error

	// Over lets it return nil; nil if nothing keeps it waiting.
	Over func() error
}

// Waits plays each error reply to calls that wait: of makes one by c, of that name, which sees can end.
func Waits(t *testing.T, of func(t *testing.T, c, sees *client.Client, name string) Wait) {
	s := redistest.Start(t)
	sees := NewClient(t, s.Client(t))
	each(t, s, func(g *gate) error {
		for _, what := range []string{"begins", "waits"} {
			w := of(t, g.client, sees, g.name+what)
			done := make(chan error, 1)
			if what == "begins" {
				g.shut(always)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { done <- w.Do(ctx) }()
			if what == "waits" {
				if w.Over == nil {
					continue
				}
				if err := soon("it waits", func() bool { return len(Channels(t, s, "*"+g.name+what+"*")) > 0 }); err != nil {
					return fmt.Errorf("%w; %d have returned", err, len(done))
				}
				g.shut(always)
			}
			if err := g.turnedAway(1); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			n := g.refused.Load()
			if w.Over != nil {
				if err := w.Over(); err != nil { // in the window
					return fmt.Errorf("%s: %w", what, err)
				}
			}
			if g.Passes {
				if err := g.turnedAway(n + 1); err != nil {
					return fmt.Errorf("%s: %w", what, err)
				}
				if len(done) > 0 {
					return fmt.Errorf("%s: the wait ended: %v", what, <-done)
				}
				g.open()
			}
			if err := soon("it returns", func() bool { return len(done) > 0 }); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			g.open()
			err := <-done
			if !g.Passes {
				if err := g.wants(what, err); err != nil {
					return err
				}
			} else if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		return nil
	})
}

// Replies plays each error reply to calls, which of makes as for [Calls].
func Replies(t *testing.T, of func(t *testing.T, c *client.Client, name string) []Call) {
	s := redistest.Start(t)
	for _, g := range gates(t, s) {
		for i, call := range of(t, g.client, g.name) {
			g.shut(2)
			err := call.Do(t.Context())
			g.open()
			switch {
			case call.Waits && g.Passes:
			case !g.Retries() || call.Once:
				err = g.wants(call.Op, err)
			case err == nil && call.After != nil && i == 0:
				call.After(t)
			}
			if err != nil {
				t.Errorf("%q, executed %t: %s: %v", g.Reply, g.execute, call.Op, err)
			}
		}
	}
}
