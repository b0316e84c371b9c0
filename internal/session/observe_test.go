package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// witness is an observer of session a that checks the guarantees of lock.Observer.
type witness struct {
	*testing.T

	mu     sync.Mutex
	calls  map[uint64]*callState
	events []string // the events in order
	all    []lock.Event
}

// callState is the state of a call and its hold in a witness.
type callState struct {
	ctx       context.Context
	name      string
	waits     bool
	ended     bool // the call
	granted   bool // and Acquired has returned
	drains    bool // the hold: Draining was reported
	holdEnded bool // the hold
}

func newWitness(t *testing.T) *witness {
	return &witness{T: t, calls: make(map[uint64]*callState)}
}

// observer returns an observer that reports to the witness.
func (w *witness) observer() *lock.Observer {
	function := func(what string) func(context.Context, lock.Event) {
		return func(ctx context.Context, e lock.Event) { w.receive(ctx, what, e) }
	}
	return &lock.Observer{
		Waiting: function("waiting"), Acquired: function("granted"), NotAcquired: function("refused"), TimedOut: function("timed out"), Canceled: function("canceled"),
		Unavailable: function("unavailable"), Failed: function("failed"), Renewed: function("renewed"), RenewalFailed: function("renewal failed"),
		Draining: function("draining"), StillRunning: function("still running"), Abandoned: function("abandoned"), HandedOff: function("handed off"), Released: function("released"), Lost: function("lost"),
	}
}

func (w *witness) receive(ctx context.Context, what string, e lock.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events, w.all = append(w.events, what), append(w.all, e)
	c := w.calls[e.ID]
	if c == nil {
		c = &callState{ctx: ctx, name: e.Name}
		w.calls[e.ID] = c
	}
	wrong := func(why string) { w.Errorf("observer event %q, %s: %+v", what, why, e) }
	switch {
	case e.ID == 0:
		wrong("of no call")
	case c.ctx != ctx:
		wrong("with the context of another call")
	case c.name != e.Name:
		wrong("of the call for " + c.name)
	}
	switch what {
	case "waiting":
		if c.waits || c.ended {
			wrong("late, or twice")
		}
		c.waits = true
	case "granted", "refused", "timed out", "canceled", "unavailable", "failed":
		switch {
		case c.ended:
			wrong("and the call had ended")
		case c.waits != (e.Waited > 0) || e.Waited > max(e.Took, 1):
			wrong("with a wait that was not reported")
		case (what == "granted") != (e.Err == nil):
			wrong("with the wrong error")
		case what == "granted" && (e.Owner == "" || e.Token == 0 && e.Mode != lock.Read && e.Mode != lock.Permit):
			wrong("without the data of the hold")
		}
		c.ended, c.granted = true, what == "granted"
	default:
		switch {
		case !c.granted:
			wrong("before the grant")
		case c.holdEnded && what != "renewed" && what != "renewal failed" && what != "draining": // events of a renewal, possibly while the hold ends
			wrong("after the end of the hold")
		case e.Owner == "" || e.Held < 0:
			wrong("without the data of the hold")
		case (e.Err == nil) && (what == "lost" || what == "renewal failed" || what == "draining" || what == "still running" || what == "abandoned"):
			wrong("without a cause")
		case what == "draining" && c.drains:
			wrong("twice")
		case (what == "released" || what == "lost") && c.drains && e.Draining == 0:
			wrong("and not since when it is draining")
		}
		c.drains = c.drains || what == "draining"
		c.holdEnded = c.holdEnded || what == "released" || what == "lost"
	}
}

// check fails the test unless all calls and all holds have ended.
func (w *witness) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, c := range w.calls {
		if !c.ended || c.granted && !c.holdEnded {
			w.Errorf("call %d for %q: the observer got no end: %+v", id, c.name, *c)
		}
	}
}

// take returns the events in order, and clears them.
func (w *witness) take() (events []string, all []lock.Event) {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	events, all = w.events, w.all
	w.events, w.all = nil, nil
	return events, all
}

// observer returns an observer of session a with functions set by the test, instead of the witness.
func (w *world) observer() *lock.Observer {
	if w.a.Observer == w.witnesses {
		w.a.Observer = new(lock.Observer)
	}
	return w.a.Observer
}

// wantEvents fails the test unless exactly these events were reported since the last call, and returns them.
func (w *world) wantEvents(want ...string) []lock.Event {
	w.Helper()
	events, all := w.witness.take()
	if !slices.Equal(events, want) {
		w.Errorf("observer events: got %q, want %q", events, want)
	}
	for len(all) < len(want) {
		all = append(all, lock.Event{})
	}
	return all
}

// wantEnds fails the test unless exactly these events about the ends of holds were reported since the last call, and
// returns them. They are in the order of their names, whenever they were reported.
func (w *world) wantEnds(want ...string) (ends []lock.Event) {
	w.Helper()
	events, all := w.witness.take()
	var names []string
	for _, name := range []string{"abandoned", "draining", "lost", "released", "still running"} {
		for i, event := range events {
			if event == name {
				names, ends = append(names, name), append(ends, all[i])
			}
		}
	}
	if !slices.Equal(names, want) {
		w.Errorf("observer events: got %q, want %q", names, want)
	}
	for len(ends) < len(want) {
		ends = append(ends, lock.Event{})
	}
	return ends
}

func TestObserver_callsThatFail(t *testing.T) {
	timesOut := func(after time.Duration) func(w *world) context.Context {
		return func(w *world) context.Context { return w.within(after) }
	}
	canceled := func(after time.Duration, cause error) func(w *world) context.Context {
		return func(w *world) context.Context {
			ctx, cancel := context.WithCancelCause(w.Context())
			time.AfterFunc(after, func() { cancel(cause) })
			time.Sleep(time.Nanosecond) // until after has passed, if it is 0
			return ctx
		}
	}
	timesOutByACancellation := func(w *world) context.Context {
		ctx, cancel := context.WithTimeoutCause(w.Context(), time.Second, context.Canceled)
		w.Cleanup(cancel)
		return ctx
	}
	type test struct {
		kind     *Kind  // plain by default
		name     string // "orders" by default
		nameless bool
		ctx      func(w *world) context.Context
		opts     []lock.Option
		tries    bool
		frozen   bool
		want     string
		err      error
	}
	oneSecond := []lock.Option{lock.WithWait(time.Second)}
	forEach(t, map[string]test{
		"refused":                     {tries: true, want: "refused", err: lock.ErrNotAcquired},
		"WithWait":                    {opts: oneSecond, want: "waiting, timed out", err: lock.ErrNotAcquired},
		"deadline":                    {kind: fair, ctx: timesOut(time.Second), want: "waiting, timed out", err: context.DeadlineExceeded},
		"canceled":                    {ctx: canceled(time.Second, nil), want: "waiting, canceled", err: context.Canceled},
		"canceled before":             {ctx: canceled(0, nil), want: "canceled", err: context.Canceled},
		"canceled by a timeout":       {ctx: canceled(time.Second, os.ErrDeadlineExceeded), want: "waiting, canceled", err: os.ErrDeadlineExceeded},
		"timed out by a cancellation": {ctx: timesOutByACancellation, want: "waiting, timed out", err: context.Canceled},
		"no reply to TryLock":         {frozen: true, tries: true, want: "unavailable", err: lock.ErrUnavailable},
		"no reply to Lock":            {frozen: true, ctx: timesOut(time.Minute), want: "unavailable", err: lock.ErrUnavailable},
		"other key":                   {name: "customers", want: "failed", err: lock.ErrWrongType},
		"bad name":                    {nameless: true, want: "failed", err: lock.ErrBadName},
		"bad name, canceled before":   {nameless: true, ctx: canceled(0, nil), want: "failed", err: lock.ErrBadName},
	}, func(w *world, c test) {
		kind, name := cmp.Or(c.kind, plain), cmp.Or(c.name, "orders")
		if c.nameless {
			name = ""
		}
		h := w.take(w.b, kind, w.Context())
		_ = w.mini.Set("customers", "many")
		w.wire.Freeze(c.frozen)
		call, ctx := w.a.Lock, w.Context()
		if c.tries {
			call = w.a.TryLock
		}
		if c.ctx != nil {
			ctx = c.ctx(w)
		}
		_, err := call(ctx, w.a.NewSpec(kind, name, c.opts))
		if c.frozen {
			w.resume()
		}
		all := w.wantEvents(strings.Split(c.want, ", ")...)
		if last := all[len(all)-1]; last.Err != err || !errors.Is(err, c.err) {
			w.Errorf("the call returned %v, the observer got %v, want %v", err, last.Err, c.err)
		}
		w.unlock(h)
		w.mini.Del("customers")
	})
}

// resume makes the server reply again.
func (w *world) resume() {
	w.wire.Freeze(false)
	w.wire.CutAll()
	time.Sleep(time.Minute) // the reconciler is done
}

// The events of a hold, with their times.
func TestObserver_aHold(t *testing.T) {
	forEach(t, allKinds, func(w *world, kind *Kind) {
		h := w.take(w.a, kind, w.Context())
		e := w.wantEvents("granted")[0]
		if e.Name != "orders" || e.Mode != kind.Mode || e.Owner != h.Owner() || e.Token != h.Token() || e.Waited != 0 {
			w.Errorf("granted: %+v", e)
		}
		granted := time.Now()
		until := h.Until()
		time.Sleep(leaseTime/3 + time.Second)
		e = w.wantEvents("renewed")[0]
		if want := until.Sub(granted) - leaseTime/3; (e.Left-want).Abs() > time.Second || !e.Until.Equal(h.Until()) || e.Owner != h.Owner() {
			w.Errorf("renewed: %+v, want %v left", e, want)
		}
		w.cut()
		time.Sleep(leaseTime/3 + opTime)
		w.wire.Refuse(false)
		events, all := w.witness.take()
		if len(events) == 0 || events[0] != "renewal failed" || all[0].Left <= 0 || all[0].Left > leaseTime*2/3 {
			w.Errorf("%q: %+v", events, all)
		}
		time.Sleep(5 * time.Second)
		w.witness.take()
		w.unlock(h)
		e = w.wantEvents("released")[0]
		if want := time.Since(granted); e.Held != want || e.Err != nil || e.Draining != 0 {
			w.Errorf("released: %+v, want held for %v", e, want)
		}
	})
}

func TestObserver_howAHoldEnds(t *testing.T) {
	type test struct {
		opts  []lock.Option
		end   func(w *world, h lock.Hold, cancel func())
		want  string
		cause error
	}
	twoSeconds := func(*world, lock.Hold, func()) { time.Sleep(2 * time.Second) }
	forEach(t, map[string]test{
		"by force": {nil, func(w *world, _ lock.Hold, _ func()) { w.force(w.a, plain) }, "lost", lock.ErrForceUnlocked},
		"gone at Unlock": {nil, func(w *world, h lock.Hold, _ func()) {
			w.mini.Del("orders")
			_ = h.Unlock(w.Context()) // it is lost
		}, "lost", lock.ErrLost},
		"gone at Close": {nil, func(w *world, h lock.Hold, _ func()) {
			w.mini.Del("orders")
			w.close(w.a)
		}, "lost", lock.ErrGone},
		"expired":       {[]lock.Option{lock.WithFixedLease(time.Second)}, twoSeconds, "lost", lock.ErrExpired},
		"held too long": {[]lock.Option{lock.WithMaxHold(time.Second)}, twoSeconds, "lost", lock.ErrMaxHold},
		"abandoned": {[]lock.Option{lock.WithGrace(time.Second)}, func(w *world, _ lock.Hold, cancel func()) {
			cancel()
			time.Sleep(leaseTime)
		}, "draining, renewed, abandoned, lost", lock.ErrAbandoned},
		"not confirmed": {nil, func(w *world, h lock.Hold, _ func()) {
			w.wire.Freeze(true)
			_ = h.Unlock(w.Context()) // no reply
			w.resume()
		}, "released", lock.ErrUnavailable},
		"closed": {nil, func(w *world, _ lock.Hold, _ func()) { w.close(w.a) }, "released", nil},
	}, func(w *world, c test) {
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		h := w.take(w.a, plain, ctx, c.opts...)
		w.wantEvents("granted")
		c.end(w, h, cancel)
		all := w.wantEvents(strings.Split(c.want, ", ")...)
		last := all[len(all)-1]
		if !errors.Is(last.Err, c.cause) || errors.Is(last.Err, lock.ErrUnavailable) != (c.cause == lock.ErrUnavailable) || last.Held < 0 {
			w.Errorf("%+v, want %v", last, c.cause)
		}
		if c.cause == lock.ErrExpired && (last.Held < 900*time.Millisecond || last.Held > time.Second) {
			w.Errorf("%+v, want held for a second", last)
		}
	})
}

// A lock is handed off inside the process: the next call waited behind the holder, even if it never sent a request.
func TestObserver_handOff(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		next := w.waiting(w.a, w.Context())
		first, second := w.wantEvents("granted", "waiting"), time.Now()
		time.Sleep(5 * time.Millisecond)
		w.unlock(h)
		h = w.next(next)
		events, all := w.witness.take()
		slices.Sort(events)
		if fmt.Sprint(events) != "[granted handed off released]" {
			t.Errorf("got events %q", events)
		}
		for _, e := range all {
			if e.ID == first[1].ID && (e.Waited != time.Since(second) || e.Took != e.Waited) {
				t.Errorf("granted to the next: %+v", e)
			}
		}
		w.unlock(h)
	})
}

// Each reentry is a separate hold, and their lease is renewed once for all.
func TestObserver_reentry(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, ctx), w.lock(w.a, ctx)
		time.Sleep(leaseTime/3 + time.Second)
		w.wantEvents("granted", "granted", "renewed")
		w.mini.Del("orders")
		<-outer.Context().Done()
		<-inner.Context().Done()
		all := w.wantEvents("lost", "lost")
		if all[0].ID == all[1].ID {
			t.Error("the two events are of one hold")
		}
	})
}

// A writer that is downgraded has one more hold for a moment.
func TestObserver_downgrade(t *testing.T) {
	inBubble(t, func(w *world) {
		write := w.take(w.a, writing, w.Context())
		w.wantEvents("granted")
		read := w.downgrade(w.a, w.Context(), write)
		all := w.wantEvents("granted", "released")
		if all[0].Mode != lock.Read || all[1].Mode != lock.Write {
			t.Errorf("%+v", all)
		}
		w.unlock(read)
	})
}

// The lock is lost after an Unlock has ended the hold, and before it removed the hold. The Unlock reports the end, and
// the loss does not.
func TestObserver_lossDuringUnlock(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context()).(*hold)
		w.wantEvents("granted")
		h.end(lock.ErrUnlocked) // the first step of Unlock
		w.loseLock(h.acquisition())
		w.wantEvents()
		err := w.a.unlockEnded(w.Context(), h, time.Now(), true)
		if e := w.wantEvents("lost")[0]; !errors.Is(err, lock.ErrLost) || e.Err != err {
			t.Errorf("Unlock: %v; the observer got %v", err, e.Err)
		}
	})
}

// A client without an observer creates no call, and allocates nothing for it.
func TestObserver_noneNoCost(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.Observer = nil
		h := w.lock(w.a, w.Context()).(*hold)
		if n := testing.AllocsPerRun(100, func() {
			var c *call
			c.tellFailed(lock.ErrNotAcquired)
			w.a.tellEnd(h, nil)
			w.a.tellEnded(h.acquisition().Holds(), nil)
			h.acquisition().Renewed(time.Time{}, 0)
			h.acquisition().Unrenewed(nil, 0)
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
		if h.call != nil {
			t.Error("the hold has a call")
		}
		w.unlock(h)
	})
}

// The observer is notified of the grant first, however early the hold ends.
func TestObserver_grantComesFirst(t *testing.T) {
	inBubble(t, func(w *world) {
		var events []string
		var mu sync.Mutex
		notify := func(what string) func(context.Context, lock.Event) {
			return func(context.Context, lock.Event) { mu.Lock(); events = append(events, what); mu.Unlock() }
		}
		slow := make(chan struct{})
		w.a.Observer = &lock.Observer{Acquired: func(context.Context, lock.Event) { <-slow; notify("granted")(nil, lock.Event{}) }, Lost: notify("lost"), Released: notify("released")}
		got := w.goLock(w.a, plain, w.Context())
		synctest.Wait()
		w.mini.Del("orders")
		time.Sleep(leaseTime) // the renewal finds the lock gone
		if len(events) != 0 {
			t.Errorf("events before the grant: %q", events)
		}
		close(slow)
		_ = (<-got).Unlock(w.Context()) // it is lost
		synctest.Wait()
		if fmt.Sprint(events) != "[granted lost]" {
			t.Errorf("got events %q", events)
		}
	})
}

// endGoroutine runs call; the observer ends its goroutine before it returns.
func (w *world) endGoroutine(call func()) {
	w.Helper()
	returned, done := false, make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }()
		call()
		returned = true
	}()
	<-done
	if returned {
		w.Error("the call returned")
	}
}

// An observer that panics or ends the goroutine leaves nothing behind: the call releases its holds, the owner's turn
// and its queue position, and a loss is reconciled.
func TestObserver_doesNotReturn(t *testing.T) {
	type end = func(context.Context, lock.Event)
	downgrades := func(w *world, h lock.Hold) {
		w.endGoroutine(func() { _, _ = w.a.Downgrade(w.Context(), w.a.NewSpec(reading, "orders", nil), h) })
	}
	for name, f := range map[string]func(w *world, o *lock.Observer, end end){
		"granted": func(w *world, o *lock.Observer, end end) {
			for _, kind := range allKinds {
				o.Acquired = end
				w.endGoroutine(func() { _, _ = w.a.Lock(w.Context(), w.a.NewSpec(kind, "orders", nil)) })
				w.noLease()
			}
		},
		"a reentry": func(w *world, o *lock.Observer, end end) {
			h := w.lock(w.a, w.Context())
			o.Acquired = end
			w.endGoroutine(func() { _, _ = w.a.Lock(h.Context(), w.a.NewSpec(plain, "orders", nil)) })
			w.wantCount(h, 1)
			w.unlock(h)
			w.noLease()
		},
		"a downgrade": func(w *world, o *lock.Observer, end end) {
			h := w.take(w.a, writing, w.Context())
			o.Acquired = end
			downgrades(w, h)
			w.wantHeld(h)
			w.unlock(h)
			w.noLease()
		},
		"a downgrade that releases": func(w *world, o *lock.Observer, end end) {
			h := w.take(w.a, writing, w.Context())
			o.Released = end
			downgrades(w, h)
			w.noLease()
		},
		"a downgrade that loses": func(w *world, o *lock.Observer, end end) {
			h := w.take(w.a, writing, w.Context())
			o.Acquired = func(context.Context, lock.Event) { w.mini.FlushAll() }
			o.Lost = end
			downgrades(w, h)
			w.noLease()
		},
		"waiting": func(w *world, o *lock.Observer, end end) {
			for _, kind := range allKinds {
				h, ctx := w.take(w.b, rival(kind), w.Context()), lock.ContextWithNewOwner(w.Context())
				o.Waiting = end
				w.endGoroutine(func() { _, _ = w.a.Lock(ctx, w.a.NewSpec(kind, "orders", nil)) })
				o.Waiting = nil
				w.unlock(h)
				w.unlock(w.take(w.b, rival(kind), w.within(time.Millisecond))) // no call is ahead
				w.unlock(w.take(w.a, kind, ctx))
			}
		},
		"lost": func(w *world, o *lock.Observer, end end) {
			ctx := lock.ContextWithNewOwner(w.Context())
			h := w.lock(w.a, ctx)
			w.mini.Del("orders")
			o.Lost = end
			w.endGoroutine(func() { _, _ = w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil)) })
			w.noLease()
			w.wantErr(h.Unlock(w.Context()), lock.ErrLost)
			w.unlock(w.lock(w.a, ctx))
		},
	} {
		for how, end := range map[string]end{
			"panics": func(context.Context, lock.Event) { panic("observer") },
			"exits":  func(context.Context, lock.Event) { runtime.Goexit() },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				inBubble(t, func(w *world) { f(w, w.observer(), end) })
			})
		}
	}
}

// noLease fails the test if session a watches a lease, or if Redis has the lock.
func (w *world) noLease() {
	w.Helper()
	if n := w.a.dog.Len(); n != 0 {
		w.Errorf("%d leases are watched without a hold", n)
	}
	w.wantFree()
}

// A failed downgrade is reported like a failed TryLock, with the error that the caller gets.
func TestObserver_downgradeThatFails(t *testing.T) {
	type test struct {
		noReply bool // otherwise another process has the lock, and its loss is not detected here yet
		waits   bool // another goroutine of the owner has the turn of the read side, and waits for that writer
		ctx     func(context.Context, time.Duration) (context.Context, context.CancelFunc)
		want    []string
	}
	forEach(t, map[string]test{
		"no reply": {noReply: true, want: []string{"unavailable"}},
		"lost":     {want: []string{"lost", "failed"}},
		"ahead":    {waits: true, want: []string{"waiting", "refused"}},
		"deadline": {waits: true, ctx: ends["deadline"].ctx, want: []string{"waiting", "timed out"}},
		"canceled": {waits: true, ctx: ends["cancel"].ctx, want: []string{"waiting", "canceled"}},
	}, func(w *world, c test) {
		owner := lock.ContextWithNewOwner(w.Context())
		h := w.take(w.a, writing, owner)
		w.wantEvents("granted")
		if c.noReply {
			w.onNext(redistest.Action{DelayReply: 2 * opTime})
		} else {
			w.mini.Del("orders")
			h := w.take(w.b, writing, w.Context())
			defer func() { w.unlock(h) }()
		}
		if c.waits {
			ctx, cancel := context.WithCancel(owner)
			left := w.beginLock(w.a, reading, ctx)
			defer func() { cancel(); <-left }()
		}
		ctx := w.Context()
		if c.ctx != nil {
			limited, cancel := c.ctx(ctx, time.Second/2)
			defer cancel()
			ctx = limited
		}
		_, err := w.a.Downgrade(ctx, w.a.NewSpec(reading, "orders", nil), h)
		all := w.wantEvents(c.want...)
		if got := all[len(all)-1].Err; err == nil || got != err {
			w.Errorf("the caller got %v, and the observer got %v", err, got)
		}
		_ = h.Unlock(w.Context())
		time.Sleep(2 * opTime)
	})
}

// Each test here fails without one guard of the observer events.

// permits is a semaphore kind: each waiter sends a request immediately, which queues it in Redis.
var permits = &Kind{
	WaitPolicy:       lockstate.RedisQueue,
	Mode:             lock.Permit,
	HasWaiterTimeout: true,
	NonReentrant:     true,
	Scripts: Scripts{
		Keys:    keys.Semaphore,
		Acquire: luascripts.AcquireSemaphore,
		Release: luascripts.ReleaseSemaphore,
		Renew:   luascripts.RenewSemaphore,
		Keep:    luascripts.KeepSemaphore,
	},
}

// ofOne returns a spec of "orders" as kind. A semaphore has one permit.
func (w *world) ofOne(s *Session, kind *Kind) *Spec {
	spec := s.NewSpec(kind, "orders", nil)
	if kind == permits {
		spec.Keys.Total, spec.Keys.Permits = 1, 1
	}
	return spec
}

// Redis refused a call that waits under its own owner string. The event has the owner string of the later hold.
func TestObserver_waitingHasTheOwner(t *testing.T) {
	forEach(t, allKinds, func(w *world, kind *Kind) {
		h := w.take(w.b, rival(kind), w.Context())
		got := w.goLock(w.a, kind, w.Context())
		waiting := w.wantEvents("waiting")[0]
		w.unlock(h)
		h = <-got
		if waiting.Owner != h.Owner() {
			w.Errorf("%q waits, and %q has the lock", waiting.Owner, h.Owner())
		}
		w.unlock(h)
	})
}

// A call comes behind another one of its process, and Redis replies to neither its request nor its queue entry. It
// waits for Redis, so the observer is notified of a wait only when it has a queue position, and then immediately.
func TestObserver_waitingOnlyWhenQueued(t *testing.T) {
	forEach(t, map[string]*Kind{"fair": fair, "semaphore": permits}, func(w *world, kind *Kind) {
		h := w.must(w.b.Lock(w.Context(), w.ofOne(w.b, kind)))
		first := w.waitingFor(w.a, w.Context(), w.ofOne(w.a, kind))
		w.wantEvents("waiting")
		w.mini.SetError(loading)
		second := w.waitingFor(w.a, w.Context(), w.ofOne(w.a, kind))
		time.Sleep(3 * pollTime)
		w.wantEvents()
		w.mini.SetError("")
		time.Sleep(pollTime)
		w.wantEvents("waiting")
		third := w.waitingFor(w.a, w.Context(), w.ofOne(w.a, kind))
		time.Sleep(lockstate.EntryPause)
		w.wantEvents("waiting")
		w.unlock(h)
		w.unlockEach(first, second, third)
		w.mini.FlushAll() // deletes the number of permits
	})
}

// A reader waits for the reply to the request of another reader. No other owner has the lock, so neither reports a wait.
func TestObserver_readersShareARequest(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		w.witness.take()
		w.slowScripts(pollTime)
		first, second := w.goRead(w.a, w.Context()), w.goRead(w.a, w.Context())
		a, b := <-first, <-second
		w.unlockAll(a, b)
		w.wantEvents("granted", "granted", "released", "released")
	})
}

// A lock is renewed and lost before the observer is notified of the grant. Only the grant and the loss are reported, and it
// was held for no time.
func TestObserver_endsBeforeTheGrant(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.a.NewSpec(plain, "orders", nil)
		c := w.a.observe(w.Context(), spec)
		h, err := w.a.acquire(w.Context(), w.Context(), spec, true, c)
		if err != nil {
			w.Fatal(err)
		}
		h.acquisition().Renewed(h.Until(), leaseTime/2)
		w.loseLock(h.acquisition())
		time.Sleep(time.Second)
		w.wantEvents()
		c.tellGranted(h)
		if e := w.wantEvents("granted", "lost")[1]; e.Held != 0 || !errors.Is(e.Err, lock.ErrGone) {
			w.Errorf("lost: %+v", e)
		}
	})
}

// The context of a holder is canceled, and a renewal detects that just before the Unlock, or too late.
func TestObserver_drainsAsItEnds(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, late := range []bool{false, true} {
			ctx, cancel := context.WithCancel(w.Context())
			h := w.lock(w.a, ctx).(*hold)
			cancel()
			want, draining := []string{"granted", "draining", "released"}, time.Duration(1)
			if late {
				want, draining = []string{"granted", "released"}, 0
				w.unlock(h)
				h.tellDraining()
			} else {
				w.a.callerCanceled(h)
				w.unlock(h)
			}
			if all := w.wantEvents(want...); all[len(want)-1].Draining != draining {
				w.Errorf("late: %t: released: %+v", late, all[len(want)-1])
			}
		}
	})
}

// The context of a holder is canceled, and a renewal detects that while the observer handles the grant. It is not reported, not
// even by the event of the release.
func TestObserver_drainsBeforeTheGrant(t *testing.T) {
	inBubble(t, func(w *world) {
		var released []lock.Event
		ctx, cancel := context.WithCancel(w.Context())
		w.observer().Acquired = func(context.Context, lock.Event) { cancel(); time.Sleep(leaseTime / 2) }
		w.observer().Draining = func(context.Context, lock.Event) { w.Error("drains") }
		w.observer().Released = func(_ context.Context, e lock.Event) { released = append(released, e) }
		w.unlock(w.lock(w.a, ctx))
		if len(released) != 1 || released[0].Draining != 0 {
			w.Errorf("released: %+v", released)
		}
	})
}

// Redis does not confirm in time the release of Close. The lock is not lost, and the log does not say so.
func TestObserver_closeIsNoLoss(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *logLines) {
		w.lock(w.a, w.Context())
		w.slowScripts(2 * opTime)
		w.wantErr(w.a.Close(w.Context()), lock.ErrUnavailable)
		log.want(w, 0, "lock lost")
	})
}

// The observer is slow to handle the grant, and the lease is renewed in the meantime. The observer is notified of the
// grant first, and of the next renewal.
func TestObserver_noRenewalBeforeTheGrant(t *testing.T) {
	inBubble(t, func(w *world) {
		var events []string
		w.observer().Acquired = func(context.Context, lock.Event) {
			time.Sleep(leaseTime / 2)
			events = append(events, "granted")
		}
		w.observer().Renewed = func(context.Context, lock.Event) { events = append(events, "renewed") }
		h := w.lock(w.a, w.Context())
		time.Sleep(leaseTime / 3)
		w.unlock(h)
		if !slices.Equal(events, []string{"granted", "renewed"}) {
			w.Errorf("the observer got %q", events)
		}
	})
}

// A renewal skips a lock that no waiter has claimed, and a waiter claims it before the watchdog reports that. For the
// observer of that hold, no renewal has failed.
func TestObserver_claimedAfterTheRenewal(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.wantEvents("granted")
		h.(*hold).acquisition().Unrenewed(errUntaken, leaseTime/2)
		w.wantEvents()
		w.unlock(h)
		synctest.Wait()
	})
}
