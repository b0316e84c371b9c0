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

// gate has clients whose scripts get an error reply while the gate is shut.
type gate struct {
	retry.Row
	execute bool // the server executes them anyway
	name    string
	client  *client.Client   // of the first server
	clients []*client.Client // one of each server

	refused atomic.Int64
	left    []atomic.Int64 // number of scripts that each affected server still rejects
}

// sent has the commands that gates reject, which are all commands of the calls except subscriptions.
var sent = []string{"EVALSHA", "EVAL", "BITCOUNT", "BITFIELD", "BITFIELD_RO", "GETBIT", "GETRANGE", "HMGET", "SETBIT"}

// replies has the replies of servers, and one of a proxy, because all other replies of proxies are equivalent to one of these.
// The reply for an unknown command is omitted, because a filter works without that command.
var replies = slices.DeleteFunc(append(slices.Clone(retry.Replies), retry.ProxyReplies[0]), func(r retry.Row) bool { return r.Match == "unknown command" })

// oneOfEach returns one row for each fault, and the reply that a TryLock does not retry. On several servers, all rows
// are too many for a busy machine, and locks made of several locks only depend on the fault.
func oneOfEach() (rows []retry.Row) {
	for _, r := range replies {
		if r.Match == "READONLY" || !slices.ContainsFunc(rows, func(other retry.Row) bool { return other.Fault == r.Fault }) {
			rows = append(rows, r)
		}
	}
	return rows
}

// gates returns a gate for each of these rows, or two if it is unknown whether the script was executed.
// The first n of the servers send the reply.
func gates(t *testing.T, rows []retry.Row, n int, servers ...*redistest.Server) (all []*gate) {
	for i, r := range rows {
		for _, execute := range []bool{false, true} {
			if execute && r.Executed != retry.Unknown {
				continue
			}
			g := &gate{Row: r, execute: execute, name: fmt.Sprintf("orders%d%t", i, execute), left: make([]atomic.Int64, n)}
			for j, s := range servers {
				p := redistest.NewProxy(t, s.Addr())
				if j < n {
					p.OnRequest(func(req [][]byte) redistest.Action {
						if !slices.Contains(sent, strings.ToUpper(string(req[0]))) || g.left[j].Add(-1) < 0 {
							return redistest.Action{}
						}
						g.refused.Add(1)
						return redistest.Action{Refuse: g.Reply, Execute: g.execute}
					})
				}
				g.clients = append(g.clients, NewClient(t, s.Client(t, redistest.Via(p)), client.WithWatchdogTimeout(GateLease), client.WithOpTimeout(GateLease/4)))
			}
			g.client = g.clients[0]
			all = append(all, g)
		}
	}
	return all
}

// GateLease is the watchdog timeout of the clients of gates. There are many of them, possibly on a busy machine.
const GateLease = 20 * time.Second

// shut rejects the next n scripts of each server, and open stops that.
func (g *gate) shut(n int64) { g.refused.Store(0); g.lets(n) }
func (g *gate) open()        { g.lets(0) }

func (g *gate) lets(n int64) {
	for i := range g.left {
		g.left[i].Store(n)
	}
}

const always = 1 << 30

// turnedAway waits until n scripts were rejected since shut.
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

// wants returns an error unless err is what the table lists for a single attempt.
func (g *gate) wants(what string, err error) error {
	text := strings.TrimPrefix(g.Reply, "ERR ")
	var fine bool
	switch {
	case err == nil || errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, lock.ErrUnavailable) != g.Temporary:
	case errors.Is(g.Is, lock.ErrWrongType):
		fine = errors.Is(err, lock.ErrWrongType)
	default:
		fine = strings.Contains(err.Error(), text)
	}
	if !fine {
		return fmt.Errorf("%s: %v", what, err)
	}
	return nil
}

// retries reports whether a single attempt retries after the reply. A TryLock does not retry on a replica.
func (g *gate) retries() bool { return g.Retries() && g.Match != "READONLY" }

// each calls play for all gates concurrently.
func each(t *testing.T, rows []retry.Row, n int, servers []*redistest.Server, play func(g *gate) error) {
	var wg sync.WaitGroup
	for _, g := range gates(t, rows, n, servers...) {
		wg.Go(func() {
			if err := play(g); err != nil {
				t.Errorf("%q, executed %t: %v", g.Reply, g.execute, err)
			}
			g.open()
		})
	}
	wg.Wait()
}

// LockReplies plays each error reply for a while: to a call that starts in that time, to one that waits throughout, to one whose
// turn comes, to renewals and to releases. In a short run, only plain locks get every reply, and other types get one for each
// fault. With all of them, a busy machine does not reply within the operation timeout, and the meaning of a reply does not depend
// on the type.
func LockReplies(t *testing.T, k Kind) {
	rows := replies
	if plain := k.Mode == lock.Exclusive && k.Queue == nil; testing.Short() && !plain {
		rows = oneOfEach()
	}
	lockReplies(t, table{
		rows:    rows,
		servers: []*redistest.Server{redistest.Start(t)},
		of:      func(cs []*client.Client, name string) lock.Locker { return k.New(cs[0], name) },
		rival:   func(cs []*client.Client, name string) lock.Locker { return k.rival().New(cs[0], name) },
		channel: k.Channel,
	})
}

// table defines which replies are played, where, and to which locks.
type table struct {
	rows      []retry.Row
	servers   []*redistest.Server
	of, rival func(cs []*client.Client, name string) lock.Locker // cs has a client of each server
	channel   func(name string) string
}

// several returns the table for locks made of plain locks, one of which has that name.
func several(t *testing.T, servers int, of func(cs []*client.Client, name string) lock.Locker) table {
	tb := table{rows: oneOfEach(), of: of, rival: of, channel: func(name string) string { return "*{" + name + "}*" }}
	for range servers {
		tb.servers = append(tb.servers, redistest.Start(t))
	}
	return tb
}

// SeveralReplies plays a reply for each fault, as LockReplies does, to the locks that of creates from locks on this number of
// servers. All servers send the reply.
func SeveralReplies(t *testing.T, servers int, of func(cs []*client.Client, name string) lock.Locker) {
	lockReplies(t, several(t, servers, of))
}

// sees returns functions that acquire the lock, and that wait until it is free, with clients that are not affected.
func (tb table) sees(t *testing.T) (take func(name string) (lock.Hold, error), free func(name string) error) {
	var sees []*client.Client
	for _, s := range tb.servers {
		sees = append(sees, NewClient(t, s.Client(t)))
	}
	take = func(name string) (lock.Hold, error) { return tb.rival(sees, name).Lock(t.Context()) }
	free = func(name string) error {
		return soon("the lock is free", func() bool {
			h, err := tb.rival(sees, name).TryLock(t.Context())
			return err == nil && h.Unlock(t.Context()) == nil
		})
	}
	return take, free
}

// listens waits until a waiter for the lock is subscribed on one of the servers.
func (tb table) listens(t *testing.T, name string) error {
	return soon("it listens", func() bool {
		return slices.ContainsFunc(tb.servers, func(s *redistest.Server) bool { return len(Channels(t, s, tb.channel(name)+"*")) > 0 })
	})
}

func lockReplies(t *testing.T, tb table) {
	take, free := tb.sees(t)
	each(t, tb.rows, len(tb.servers), tb.servers, func(g *gate) error {
		l := tb.of(g.clients, g.name)
		for what, f := range map[string]func() error{
			"begins": func() error {
				g.shut(always)
				w := Go(t.Context(), l)
				return g.ends(w)
			},
			"TryLock": func() error {
				g.shut(always)
				if g.retries() {
					g.shut(2)
				}
				h, err := l.TryLock(t.Context())
				g.open()
				if !g.retries() {
					return g.wants("TryLock", err)
				} else if err != nil {
					return fmt.Errorf("TryLock: %w", err)
				}
				g.shut(always)
				if _, err := tb.of(g.clients, g.name+"other").TryLock(t.Context()); g.wants("a TryLock that is refused all the time", err) != nil {
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
				if err := tb.listens(t, g.name); err != nil {
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
				if g.Temporary {
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

// MinorityReplies plays an error reply for each fault on the first of three servers to the locks that of creates from locks on
// all three. They do not need that server: they are granted, renewed and released as if it had not sent the reply.
func MinorityReplies(t *testing.T, of func(cs []*client.Client, name string) lock.Locker) {
	tb := several(t, 3, of)
	take, free := tb.sees(t)
	each(t, tb.rows, 1, tb.servers, func(g *gate) error {
		l := of(g.clients, g.name)
		for what, f := range map[string]func() error{
			"TryLock, renewals and Unlock": func() error {
				g.shut(always)
				h, err := l.TryLock(t.Context())
				if err != nil {
					return err
				}
				first := h.Until()
				if err := errors.Join(g.turnedAway(1), soon("it is renewed", func() bool { return h.Err() != nil || h.Until().After(first) })); err != nil || h.Err() != nil {
					return fmt.Errorf("%v, %v", err, h.Err())
				}
				return h.Unlock(t.Context())
			},
			"begins": func() error {
				g.shut(always)
				w := Go(t.Context(), l)
				return errors.Join(g.turnedAway(1), granted(w))
			},
			"waits": func() error {
				h, err := take(g.name)
				if err != nil {
					return err
				}
				w := Go(t.Context(), l)
				if err := tb.listens(t, g.name); err != nil {
					return err
				}
				g.shut(always)
				if err := g.turnedAway(1); err != nil {
					return err
				}
				if !w.Waits() {
					return fmt.Errorf("the wait ended: %v", w.err)
				}
				if err := h.Unlock(t.Context()); err != nil { // its turn comes
					return err
				}
				return granted(w)
			},
		} {
			err := f()
			g.open()
			if err := errors.Join(err, free(g.name), tb.gone(t, g.name)); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		return nil
	})
}

// gone waits until no server has the lock. A lock on three servers counts as free when two have released it, and the release on
// the third continues in the background.
func (tb table) gone(t *testing.T, name string) error {
	return soon("the lock is free on each server", func() bool {
		return !slices.ContainsFunc(tb.servers, func(s *redistest.Server) bool { return Number(s.Do(t, "EXISTS", name)) > 0 })
	})
}

// LaterReplies plays an error reply for each fault on the first of two servers to the locks that of creates from a lock on each.
// They acquire the lock on the other server first, which is released when the call fails.
func LaterReplies(t *testing.T, of func(cs []*client.Client, name string) lock.Locker) {
	tb := several(t, 2, of)
	_, free := tb.sees(t)
	each(t, tb.rows, 1, tb.servers, func(g *gate) error {
		l := of(g.clients, g.name)
		g.shut(always)
		_, err := l.TryLock(t.Context())
		if err := errors.Join(g.wants("TryLock", err), soon("the first lock is given back", func() bool {
			return Number(tb.servers[1].Do(t, "EXISTS", g.name)) == 0
		})); err != nil {
			return err
		}
		g.shut(always)
		return errors.Join(g.ends(Go(t.Context(), l)), free(g.name))
	})
}

// ends handles a waiter that was rejected. After a temporary reply, it opens the gate and returns an error unless the waiter then
// acquires the lock. After any other reply, it returns an error unless the waiter has failed.
func (g *gate) ends(w *Waiter) error {
	if g.Temporary {
		if err := g.turnedAway(2); err != nil {
			return err
		}
		if !w.Waits() {
			return fmt.Errorf("the wait ended: %v", w.err)
		}
		g.open()
		return granted(w)
	}
	if err := soon("Lock returns", func() bool { return !w.Waits() }); err != nil {
		return err
	}
	g.open()
	return g.wants("Lock", w.err)
}

// granted waits until Lock has returned a hold, and releases it.
func granted(w *Waiter) error {
	if err := soon("Lock returns", func() bool { return !w.Waits() }); err != nil || w.err != nil {
		return errors.Join(err, w.err)
	}
	return w.hold.Unlock(context.Background())
}

// Wait is a waiting call other than Lock.
type Wait struct {
	Do func(ctx context.Context) error

	// Over makes it return nil; nil if nothing keeps it waiting.
	Over func() error

	// Once reports that it sends nothing again if its command may have been executed.
	Once bool
}

// Waits plays each error reply to waiting calls. of returns one that uses c and name, and that sees can end.
func Waits(t *testing.T, of func(t *testing.T, c, sees *client.Client, name string) Wait) {
	s := redistest.Start(t)
	sees := NewClient(t, s.Client(t))
	each(t, replies, 1, []*redistest.Server{s}, func(g *gate) error {
		for _, what := range []string{"begins", "waits"} {
			w := of(t, g.client, sees, g.name+what)
			goesOn := g.Temporary && !(w.Once && g.MayHaveRun())
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
				if err := w.Over(); err != nil { // while the gate is shut
					return fmt.Errorf("%s: %w", what, err)
				}
			}
			if goesOn {
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
			if !goesOn {
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

// Replies plays each error reply to calls, which of returns as for [Calls].
func Replies(t *testing.T, of func(t *testing.T, c *client.Client, name string) []Call) {
	s := redistest.Start(t)
	for _, g := range gates(t, replies, 1, s) {
		for i, call := range of(t, g.client, g.name) {
			waits, fails := call.Waits && g.Temporary, !g.Retries() || call.Once
			if fails && !waits {
				g.shut(always) // cleanup of the previous call may be rejected, too
			} else {
				g.shut(2)
			}
			err := call.Do(t.Context())
			g.open()
			switch {
			case waits:
			case fails:
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
