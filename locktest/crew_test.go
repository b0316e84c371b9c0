package locktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/latch"
	"github.com/leasehold-go/leasehold/lock"
)

type crewMaker = func(name string, opts ...lock.Option) Crew

// crews is a harness of crews, each of them changed by wrap.
func crews(wrap func(crewMaker) crewMaker) func(a, b *client.Client) (Harness, RWHarness) {
	of := func(c *client.Client) crewMaker {
		return wrap(func(name string, opts ...lock.Option) Crew { return c.NewCrew(name, opts...) })
	}
	return func(a, b *client.Client) (Harness, RWHarness) {
		return Harness{crew: &CrewHarness{New: of(a), Other: of(b), Watchdog: watchdog}, Watchdog: watchdog}, RWHarness{}
	}
}

func TestCrewRules(t *testing.T) {
	t.Parallel()
	keeps(t, crewRules, crews(func(mk crewMaker) crewMaker { return mk }))
}

// wrongCrew is a crew some of whose calls do something else.
type wrongCrew struct {
	Crew
	join    func(ctx context.Context, c Crew) (*latch.Member, error)
	wait    func(ctx context.Context, c Crew) error
	do      func(ctx context.Context, c Crew, fn func(context.Context) error) error
	dismiss func(ctx context.Context, c Crew, members []lock.Holder) (int, error)
	delete  func(ctx context.Context, c Crew) error
}

func (w wrongCrew) Join(ctx context.Context) (*latch.Member, error) {
	if w.join != nil {
		return w.join(ctx, w.Crew)
	}
	return w.Crew.Join(ctx)
}

func (w wrongCrew) Wait(ctx context.Context) error {
	if w.wait != nil {
		return w.wait(ctx, w.Crew)
	}
	return w.Crew.Wait(ctx)
}

func (w wrongCrew) Do(ctx context.Context, fn func(context.Context) error) error {
	if w.do != nil {
		return w.do(ctx, w.Crew, fn)
	}
	return w.Crew.Do(ctx, fn)
}

func (w wrongCrew) Dismiss(ctx context.Context, members ...lock.Holder) (int, error) {
	if w.dismiss != nil {
		return w.dismiss(ctx, w.Crew, members)
	}
	return w.Crew.Dismiss(ctx, members...)
}

func (w wrongCrew) Delete(ctx context.Context) error {
	if w.delete != nil {
		return w.delete(ctx, w.Crew)
	}
	return w.Crew.Delete(ctx)
}

func TestCrewRules_canBeBroken(t *testing.T) {
	t.Parallel()
	with := func(w wrongCrew) func(a, b *client.Client) (Harness, RWHarness) {
		return crews(func(mk crewMaker) crewMaker {
			return func(name string, opts ...lock.Option) Crew {
				w := w
				w.Crew = mk(name, opts...)
				return w
			}
		})
	}
	held := func(unlock func(context.Context, lock.Hold) error) wrongCrew {
		return wrongCrew{join: func(ctx context.Context, c Crew) (*latch.Member, error) {
			m, err := c.Join(ctx)
			if err == nil {
				h := m.Hold
				m.Hold = changedHold{h, func(ctx context.Context) error { return unlock(ctx, h) }}
			}
			return m, err
		}}
	}
	testBroken(t, crewRules, []wrong{
		{"every handle has a crew of its own", crews(func(mk crewMaker) crewMaker {
			return func(_ string, opts ...lock.Option) Crew { return mk(fmt.Sprint("own:", rand.Uint64()), opts...) }
		}), map[string]string{
			"all are done":    "wait 1 ended",
			"a member each":   "0 are done, 0 alive",
			"renewed members": "0 are done, 0 alive",
		}},
		{"Wait does not wait", with(wrongCrew{
			wait: func(context.Context, Crew) error { return nil },
		}), map[string]string{
			"nobody has joined":      "error <nil>",
			"all are done":           "wait 0 ended: <nil>",
			"lease of a member ends": "error <nil>",
			"failed members":         "error <nil>",
			"dismissed members":      "error <nil>",
			"deleted crew":           "error <nil>",
			"cancelled in a crew":    "error <nil>",
			"many members":           "wait 0 ended: <nil>",
		}},
		{"leases are short", crews(func(mk crewMaker) crewMaker {
			return func(name string, opts ...lock.Option) Crew {
				return mk(name, append(opts, lock.WithFixedLease(100*time.Millisecond))...)
			}
		}), map[string]string{
			"renewed members": "the hold is over",
		}},
		{"leases do not end", crews(func(mk crewMaker) crewMaker {
			return func(name string, _ ...lock.Option) Crew { return mk(name) }
		}), map[string]string{
			"lease of a member ends": "the context of a member that is lost does not end",
		}},
		{"all of a crew are one member", crews(func(mk crewMaker) crewMaker {
			all := make(map[string]*latch.Member)
			return func(name string, opts ...lock.Option) Crew {
				return wrongCrew{Crew: mk(name, opts...), join: func(ctx context.Context, c Crew) (*latch.Member, error) {
					var err error
					if all[name] == nil {
						all[name], err = c.Join(ctx)
					}
					return all[name], err
				}}
			}
		}), map[string]string{
			"a member each": "both members are",
			"all are done":  "2 alive",
		}},
		{"the end of a member says nothing", with(held(func(context.Context, lock.Hold) error { return nil })), map[string]string{
			"all are done":   "0 are done, 3 alive",
			"done once":      "error <nil>",
			"failed members": "context deadline exceeded",
		}},
		{"Do says that all is done", with(wrongCrew{
			do: func(ctx context.Context, c Crew, fn func(context.Context) error) error {
				m, err := c.Join(ctx)
				if err != nil {
					return err
				}
				defer func() { _ = m.Unlock(ctx) }()
				return fn(m.Context())
			},
		}), map[string]string{
			"Do of a crew": "2 are done, 0 alive, 0 lost",
		}},
		{"Dismiss does nothing", with(wrongCrew{
			dismiss: func(context.Context, Crew, []lock.Holder) (int, error) { return 1, nil },
		}), map[string]string{
			"dismissed members": "wait 0 ended",
		}},
		{"Delete waits until all are done", with(wrongCrew{
			delete: func(ctx context.Context, c Crew) error {
				ctx, cancel := context.WithTimeout(ctx, watchdog)
				defer cancel()
				return errors.Join(c.Wait(ctx), c.Delete(context.WithoutCancel(ctx)))
			},
		}), map[string]string{
			"deleted crew": "delete: ",
		}},
		{"Join does not look at its context", with(wrongCrew{
			join: func(ctx context.Context, c Crew) (*latch.Member, error) { return c.Join(context.WithoutCancel(ctx)) },
		}), map[string]string{
			"cancelled in a crew": "error <nil>",
		}},
	})
}
