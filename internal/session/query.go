package session

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/pubsub"
	"github.com/leasehold-go/leasehold/internal/registry"
	"github.com/leasehold-go/leasehold/internal/slots"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// inquiry runs a script about a lock that needs no owner.
type inquiry[T any] = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (T, error)

// Ask runs an idempotent script, and retries it within the operation timeout while a retry may help. It never has two
// copies in flight.
func Ask[T any](ctx context.Context, s *Session, spec *Spec, op string, q inquiry[T]) (T, error) {
	return once(ctx, s, spec, op, func() (T, error) { return AskLast(ctx, s, spec, q) })
}

// Dated returns a sender for a call that begins now, for use in Ask. It ensures that a delayed duplicate of an earlier
// call does not undo this call.
func (s *Session) Dated() *command.Dated { return s.sender.Dated() }

// AskLast is Ask for functions registered with AtClose. It works while the session closes.
func AskLast[T any](ctx context.Context, s *Session, spec *Spec, q inquiry[T]) (T, error) {
	o := command.SendFuncWithRetry(ctx, s.sender, s.OpTimeout, func(ctx context.Context) (T, error) { return q(ctx, s.rdb, spec.Keys) })
	return o.Value, o.Err
}

// Elsewhere returns the first of keys that is in a different cluster slot than the keys of spec.
func (s *Session) Elsewhere(spec *Spec, keys []string) (key string, is bool) {
	return slots.Elsewhere(s.rdb, spec.Keys.Lock, keys)
}

// AskOnce runs a script once, within the operation timeout. If there is no reply, it may have been executed.
func AskOnce[T any](ctx context.Context, s *Session, spec *Spec, op string, q inquiry[T]) (T, error) {
	return once(ctx, s, spec, op, func() (T, error) {
		o := command.SendFunc(ctx, s.sender, s.OpTimeout, func(ctx context.Context) (T, error) { return q(ctx, s.rdb, spec.Keys) })
		return o.Value, o.Err
	})
}

// Server returns information about the server that stores spec's key.
func (s *Session) Server(ctx context.Context, spec *Spec) (lockimpl.Server, error) {
	info, err := Ask(ctx, s, spec, "server", luascripts.ServerInfo)
	if err != nil {
		return lockimpl.Server{}, err
	}
	// Uptime is the difference of two times truncated to seconds, so it can be up to a second too long.
	uptime := max(info.Uptime-time.Second, 0)
	return lockimpl.Server{ID: info.RunID, Since: time.Now().Add(-uptime), Primary: info.Role == "master"}, nil
}

// Inspect returns the state of spec as read by the script q.
func Inspect(ctx context.Context, s *Session, spec *Spec, q inquiry[luascripts.Snapshot]) (lock.State, error) {
	snapshot, err := Ask(ctx, s, spec, "inspect", q)
	if err != nil {
		return lock.State{}, err
	}
	state, err := StateOf(spec.Name, spec.Sibling != nil, snapshot)
	if err != nil {
		return lock.State{}, &lock.Error{Op: "inspect", Name: spec.Name, Err: s.foreign(ctx, spec, err)}
	}
	for _, h := range state.Holders { // the scripts of plain and fair locks do not check the mark
		if fair, known := luascripts.FairOwner(h.Owner); known && fair != (spec.Mark == luascripts.FairMark) {
			return lock.State{}, &lock.Error{Op: "inspect", Name: spec.Name, Err: s.foreign(ctx, spec, lock.ErrWrongType)}
		}
	}
	s.Clients(ctx, &state)
	return state, nil
}

// Clients adds the clients of the holders and waiters to state, if Redis replies in time.
func (s *Session) Clients(ctx context.Context, state *lock.State) {
	ids := registry.Name(state, nil)
	if len(ids) == 0 || s.sender.Enter() != nil { // mutant: operand 1: speed
		return
	}
	defer s.sender.Done()
	o := command.SendFunc(ctx, s.sender, s.OpTimeout, func(ctx context.Context) (map[string]lock.Client, error) {
		return registry.Read(ctx, s.rdb, ids)
	})
	registry.Name(state, o.Value) // without a reply, they keep their IDs
}

// ID returns the UUID in the owner strings of the session.
func (s *Session) ID() string { return s.id }

// StateOf decodes a snapshot of the lock with this name. sided is true if it is a read/write lock.
func StateOf(name string, sided bool, s luascripts.Snapshot) (lock.State, error) {
	state := lock.State{Name: name}
	if s.Foreign {
		return state, lock.ErrWrongType
	}
	for _, w := range s.Waiters {
		state.Waiters = append(state.Waiters, lock.Waiter{Owner: w.Owner, WaiterTimeout: w.WaiterTimeout, Since: AskedSince(w.Owner)})
	}
	for _, f := range s.Fields {
		count, err := strconv.Atoi(f.Value)
		if err != nil {
			return lock.State{}, lock.ErrWrongType // do not reveal fields and values of a key that is not a lock
		}
		h := lock.Holder{Owner: f.Name, Count: count, Mode: lock.Exclusive}
		if sided {
			h.Mode = lock.Read
			if owner, writes := strings.CutSuffix(f.Name, luascripts.Writing); writes {
				h.Owner, h.Mode = owner, lock.Write
			}
		}
		h.Since = AskedSince(h.Owner)
		_, h.Lingers = luascripts.Lingers(h.Owner)
		state.Holders = append(state.Holders, h)
	}
	if len(state.Holders) == 0 { // even if the key exists: its readers have expired, or it has only a queue
		return state, nil
	}
	state.Mode, state.Lease = lock.Exclusive, s.Left
	if sided {
		state.Mode = lock.Mode(s.Mode)
	}
	slices.SortFunc(state.Holders, func(a, b lock.Holder) int {
		return cmp.Or(strings.Compare(string(b.Mode), string(a.Mode)), strings.Compare(a.Owner, b.Owner)) // the writer first
	})
	return state, nil
}

// AskedSince returns the time in an owner string at which the owner began to wait. It returns the zero time for
// owner strings of other libraries.
func AskedSince(owner string) time.Time {
	client, number, _ := strings.Cut(owner, ":")
	number, _, _ = strings.Cut(number, ":") // cuts off the permit count
	if unmarked, lingers := luascripts.Lingers(owner); lingers {
		_, number, _ = strings.Cut(unmarked, ":")
	}
	n, err := strconv.ParseUint(number, 10, 63)
	// mutant: border: no UUID is that short
	if err != nil || len(client) < 15 || client[14] != '7' { // Redisson uses version 4 UUIDs
		return time.Time{}
	}
	return time.UnixMicro(int64(n >> 10))
}

// foreign returns err. If a key of spec has the wrong type, it adds the type.
func (s *Session) foreign(ctx context.Context, spec *Spec, err error) error {
	if spec.Keys.Leases != "" { // a semaphore
		return s.sender.Foreign(ctx, err, command.Key{Name: spec.Keys.Lock, Type: "string"}, command.Key{Name: spec.Keys.Leases, Type: "zset"})
	}
	return s.sender.Foreign(ctx, err, command.Key{Name: spec.Keys.Lock})
}

// once runs a call that needs no owner. It checks spec and ctx, registers the call, and adds the name of the lock to the
// error.
func once[T any](ctx context.Context, s *Session, spec *Spec, op string, run func() (T, error)) (value T, err error) {
	defer func() {
		if err != nil {
			err = &lock.Error{Op: op, Name: spec.Name, Err: s.foreign(ctx, spec, err)}
		}
	}()
	if spec.Err != nil {
		return value, spec.Err
	}
	if ctx.Err() != nil {
		return value, command.Ended(ctx, 0)
	}
	if err := s.sender.Enter(); err != nil {
		return value, err
	}
	defer s.sender.Done()
	began := time.Now()
	value, err = run()
	return value, s.sender.Failed(ctx, began, err)
}

// The methods below are for kinds whose callers wait without an owner, such as latches.

// Enter registers a call or a goroutine. Close waits for its Leave. Enter fails after Close.
func (s *Session) Enter() error { return s.sender.Enter() }

// Leave unregisters a call that Enter registered.
func (s *Session) Leave() { s.sender.Done() }

// Closing returns a channel that is closed when Close begins.
func (s *Session) Closing() <-chan struct{} { return s.sender.Closing() }

// Subscribe calls notify when a message is published to channel, and when a message may have been missed. notify must not
// block. The caller closes the subscription.
func (s *Session) Subscribe(channel string, notify func()) *pubsub.Subscription {
	sub, already := s.hub.Subscribe(channel, func(string) { notify() }, notify)
	if already {
		notify()
	}
	return sub
}

// Share calls f with the connection of the subscriptions, for a command about key. It reports false, and does not call f,
// if that connection is to a different node.
func (s *Session) Share(ctx context.Context, key string, f func(rueidis.DedicatedClient) error) (bool, error) {
	return s.hub.Share(ctx, key, f)
}

// MayLive returns how long a command that was sent for h, a hold of s, can keep it in Redis.
func (s *Session) MayLive(h lock.Hold) time.Duration {
	t := h.(*hold).acquisition()
	return locked(t.at, t.MayLive)
}
