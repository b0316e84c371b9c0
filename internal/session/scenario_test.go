package session

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Steps and checks of a scenario.

// forEach runs a subtest in a bubble for each of the cases.
func forEach[C any](t *testing.T, cases map[string]C, test func(w *world, c C)) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { inBubble(t, func(w *world) { test(w, c) }) })
	}
}

// processes are the process of session a, and another one.
var processes = map[string]func(w *world) *Session{
	"the same process": func(w *world) *Session { return w.a },
	"another process":  func(w *world) *Session { return w.b },
}

// waiting starts a call for the lock and returns when it waits. The hold is received later; the channel is closed if the
// call fails.
func (w *world) waiting(s *Session, ctx context.Context, opts ...lock.Option) <-chan lock.Hold {
	w.Helper()
	return w.goLock(s, plain, ctx, opts...)
}

// waiters starts n calls of session a, one after the other.
func (w *world) waiters(n int) (all []<-chan lock.Hold) {
	w.Helper()
	for range n {
		all = append(all, w.waiting(w.a, w.Context()))
	}
	return all
}

// goLock is waiting for any kind.
func (w *world) goLock(s *Session, k *Kind, ctx context.Context, opts ...lock.Option) <-chan lock.Hold {
	w.Helper()
	return w.waitingFor(s, ctx, s.NewSpec(k, "orders", opts))
}

// leaving is goLock of session a. leave cancels the context of the call, and waits until the call has returned.
func (w *world) leaving(k *Kind, opts ...lock.Option) (leave func()) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	holds := w.goLock(w.a, k, ctx, opts...)
	return func() {
		w.Helper()
		cancel()
		if h := <-holds; h != nil {
			w.Fatal("it has the lock")
		}
	}
}

// waitingFor fails the test if the call fails, unless ctx is canceled.
func (w *world) waitingFor(s *Session, ctx context.Context, spec *Spec) <-chan lock.Hold {
	w.Helper()
	holds := make(chan lock.Hold, 1)
	go func() {
		defer close(holds)
		h, err := s.Lock(ctx, spec)
		if err != nil {
			if ctx.Err() == nil {
				w.Errorf("lock: %v", err)
			}
			return
		}
		holds <- h
	}()
	synctest.Wait()
	return holds
}

// next returns the hold that the waiter has received by now.
func (w *world) next(holds <-chan lock.Hold) lock.Hold {
	w.Helper()
	synctest.Wait()
	select {
	case h := <-holds:
		if h == nil {
			w.Fatal("the wait ended")
		}
		return h
	default:
		w.Fatal("it still waits")
		return nil
	}
}

// waitsOn fails the test if the waiter has received anything.
func (w *world) waitsOn(holds <-chan lock.Hold) {
	w.Helper()
	synctest.Wait()
	select {
	case h := <-holds:
		w.Errorf("it does not wait any more: %v", h)
	default:
	}
}

// begin runs call in a separate goroutine and returns when it waits. Its error is received later.
func (w *world) begin(call func() error) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- call() }()
	synctest.Wait()
	return ended
}

// beginFail is begin for a call that is expected to fail.
func (w *world) beginFail(call lockCall, ctx context.Context, spec *Spec) <-chan error {
	return w.begin(func() error {
		_, err := call(ctx, spec)
		return err
	})
}

// beginLock is beginFail for a Lock of s.
func (w *world) beginLock(s *Session, k *Kind, ctx context.Context, opts ...lock.Option) <-chan error {
	return w.beginFail(s.Lock, ctx, s.NewSpec(k, "orders", opts))
}

func (w *world) beginUnlock(h lock.Hold) <-chan error {
	return w.begin(func() error { return h.Unlock(w.Context()) })
}

// unlockAll unlocks the holds one after the other.
func (w *world) unlockAll(holds ...lock.Hold) {
	w.Helper()
	for _, h := range holds {
		w.unlock(h)
	}
}

// unlockEach unlocks the hold of each of the waiters, one after the other, as soon as it is received.
func (w *world) unlockEach(waiters ...<-chan lock.Hold) {
	w.Helper()
	for _, waiter := range waiters {
		w.unlock(<-waiter)
	}
}

// unlockLost fails the test unless Unlock reports that the hold was lost.
func (w *world) unlockLost(h lock.Hold) {
	w.Helper()
	w.wantErr(h.Unlock(w.Context()), lock.ErrNotHeld, lock.ErrLost)
}

// refused fails the test unless a TryLock of s is refused because others have the lock.
func (w *world) refused(s *Session, k *Kind, opts ...lock.Option) {
	w.Helper()
	start := time.Now()
	h, err := s.TryLock(w.Context(), s.NewSpec(k, "orders", opts))
	if err == nil {
		w.unlock(h)
	}
	if took := time.Since(start); !errors.Is(err, lock.ErrNotAcquired) || took > opTime/2 {
		w.Errorf("want a refusal, got %v after %v", err, took)
	}
}

// ours fails the test unless Redis has exactly one hold for the owner of h.
func (w *world) ours(h lock.Hold) {
	w.Helper()
	synctest.Wait()
	if w.count(h) != 1 || h.Err() != nil {
		w.Errorf("Redis has %d holds of the owner; the hold: %v", w.count(h), h.Err())
	}
	if other, err := w.b.TryLock(w.Context(), w.b.NewSpec(plain, "orders", nil)); err == nil {
		w.Errorf("another has it too: %v", other.Unlock(w.Context()))
	}
}

// wantTook fails the test unless exactly this time has passed since start.
func (w *world) wantTook(start time.Time, want time.Duration) {
	w.Helper()
	if took := time.Since(start); took != want {
		w.Errorf("it took %v, want %v", took, want)
	}
}

// wantWithin fails the test if more time has passed since start.
func (w *world) wantWithin(start time.Time, most time.Duration) {
	w.Helper()
	if took := time.Since(start); took > most {
		w.Errorf("it took %v, want at most %v", took, most)
	}
}

func (w *world) wantNoErr(err error) {
	w.Helper()
	if err != nil {
		w.Error(err)
	}
}

// wantNotErrs fails the test unless err is an error that matches none of these.
func (w *world) wantNotErrs(err error, none ...error) {
	w.Helper()
	if err == nil {
		w.Error("got no error")
	}
	for _, target := range none {
		if errors.Is(err, target) {
			w.Errorf("%v matches %q", err, target)
		}
	}
}

// wantHeld fails the test if any of the holds has ended.
func (w *world) wantHeld(holds ...lock.Hold) {
	w.Helper()
	for _, h := range holds {
		if err := h.Err(); err != nil {
			w.Errorf("the hold of %s: %v", h.Owner(), err)
		}
	}
}

// wantCount fails the test unless Redis counts n holds for the owner of h.
func (w *world) wantCount(h lock.Hold, n int) {
	w.Helper()
	if got := w.count(h); got != n {
		w.Errorf("Redis counts %d holds, want %d", got, n)
	}
}

// wantSent fails the test unless this number of commands was sent.
func (w *world) wantSent(sent *atomic.Int64, want int64) {
	w.Helper()
	if got := sent.Load(); got != want {
		w.Errorf("%d commands were sent, want %d", got, want)
	}
}

// wantLaterToken fails the test unless the token of h is larger than the token of an earlier hold.
func (w *world) wantLaterToken(h, earlier lock.Hold) {
	w.Helper()
	if h.Token() <= earlier.Token() {
		w.Errorf("token %d after %d", h.Token(), earlier.Token())
	}
}

// wantChannels fails the test unless session a is subscribed to n channels.
func (w *world) wantChannels(n int) {
	w.Helper()
	if got := w.a.hub.Channels(); got != n {
		w.Errorf("%d channels are subscribed, want %d", got, n)
	}
}

// wantQueued fails the test unless n waiters are in the queue of the fair lock.
func (w *world) wantQueued(n int) {
	w.Helper()
	if queue := w.inQueue(); len(queue) != n {
		w.Errorf("got %q queued, want %d", queue, n)
	}
}

// wantServed fails the test unless n waiters were served, in the order in which they came.
func (w *world) wantServed(order []int, n int) {
	w.Helper()
	if !slices.IsSorted(order) || len(order) != n {
		w.Errorf("served in the order %v, want %d in the order in which they came", order, n)
	}
}

// onNext lets this happen to the next script that session a sends.
func (w *world) onNext(act redistest.Action) { w.wire.OnRequest(redistest.Once("EVALSHA", act)) }

// withoutPubSub makes session a receive no messages.
func (w *world) withoutPubSub() {
	w.wire.OnRequest(func(req [][]byte) redistest.Action {
		return redistest.Action{DropRequest: string(req[0]) == "SUBSCRIBE"}
	})
}

// cut disconnects session a until its wire accepts connections again.
func (w *world) cut() {
	w.wire.Refuse(true)
	w.wire.CutAll()
}

func (w *world) publish(channel, message string) {
	w.rdb.Do(w.Context(), w.rdb.B().Publish().Channel(channel).Message(message).Build())
}

// use makes n goroutines of each session acquire the lock, call inside, and release the lock, for this number of rounds
// or until ctx is canceled. wait returns when all are done.
func (w *world) use(ctx context.Context, k *Kind, sessions []*Session, n, rounds int, inside func(s *Session)) (wait func()) {
	var wg sync.WaitGroup
	for _, s := range sessions {
		for range n {
			wg.Go(func() {
				for i := 0; i < rounds && ctx.Err() == nil; i++ {
					h := w.take(s, k, w.Context())
					inside(s)
					w.unlock(h)
				}
			})
		}
	}
	return wg.Wait
}

// outsider is a client that cannot queue. It receives from published after a notification of the lock. enter acquires
// and releases the lock, which must be free.
func (w *world) outsider(ctx context.Context) (published <-chan struct{}, enter func()) {
	const channel = "redisson_lock__channel:{orders}"
	notified := make(chan struct{}, 1)
	go func() {
		_ = w.rdb.Receive(ctx, w.rdb.B().Subscribe().Channel(channel).Build(), func(rueidis.PubSubMessage) {
			select {
			case notified <- struct{}{}:
			default:
			}
		})
	}()
	synctest.Wait()
	return notified, func() {
		w.mini.HSet("orders", "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1", "1")
		time.Sleep(time.Millisecond)
		w.mini.Del("orders")
		w.publish(channel, "0")
		<-notified // that
	}
}

// request is a request that a test intercepts. n is 1 for the first request of its kind.
type request struct {
	luascripts.Request
	n       int
	ctx     context.Context
	rdb     rueidis.Client
	keys    luascripts.Keys
	acquire func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error)
}

func (r request) send() (luascripts.Acquired, error) {
	return r.acquire(r.ctx, r.rdb, r.keys, r.Request)
}

// onRequest is k with a hook for its requests.
func onRequest(k *Kind, hook func(r request) (luascripts.Acquired, error)) *Kind {
	c, acquire := *k, k.Acquire
	c.Batches = false
	var requests atomic.Int32
	c.Acquire = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
		return hook(request{q, int(requests.Add(1)), ctx, rdb, keys, acquire})
	}
	return &c
}

// release is a release that a test intercepts. n is 1 for the first release of its kind.
type release struct {
	luascripts.Release
	n       int
	ctx     context.Context
	rdb     rueidis.Client
	keys    luascripts.Keys
	owner   string
	handOff func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Release) (luascripts.Released, error)
}

func (r release) send() (luascripts.Released, error) {
	return r.handOff(r.ctx, r.rdb, r.keys, r.owner, r.Release)
}

// onRelease is k with a hook for its releases, including those of the reconciler.
func onRelease(k *Kind, hook func(r release) (luascripts.Released, error)) *Kind {
	c, handOff := *k, k.HandOff
	c.Batches = false
	var releases atomic.Int32
	c.HandOff = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, owner string, p luascripts.Release) (luascripts.Released, error) {
		return hook(release{p, int(releases.Add(1)), ctx, rdb, keys, owner, handOff})
	}
	return &c
}

// renews is a batch of renewals or extensions that a test intercepts. n is 1 for the first batch of its kind.
type renews struct {
	n       int
	ctx     context.Context
	rdb     rueidis.Client
	batch   []luascripts.Renewal
	lease   time.Duration
	perCall int
}

func (r renews) send() []luascripts.Renewed {
	return plain.Renew(r.ctx, r.rdb, r.batch, r.lease, r.perCall)
}

// onRenewal makes the plain kind k call the hook for its renewals and extensions.
func onRenewal(k *Kind, hook func(r renews) []luascripts.Renewed) *Kind {
	c := *k
	var n atomic.Int32
	c.Renew = func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed {
		return hook(renews{int(n.Add(1)), ctx, rdb, slices.Clone(batch), lease, perCall})
	}
	return &c
}

// duplicate executes a copy of r, which must be granted.
func (w *world) duplicate(r request) {
	w.Helper()
	r.ctx, r.rdb = w.Context(), w.rdb
	if a, err := r.send(); err != nil || a.Verdict != luascripts.Done {
		w.Errorf("%+v, %v", a, err)
	}
}

// sides are both sides of a read/write lock. The requests for the read side have a hook.
func sides(hook func(r request) (luascripts.Acquired, error)) (read, write *Kind) {
	c := *writing
	read, write = onRequest(reading, hook), &c
	read.Sibling, write.Sibling = write, read
	return read, write
}

// errGarbled is the error of a command with an unknown outcome, which is not repeated immediately.
var errGarbled = &luascripts.ReplyError{Script: "a garbled reply"}

// garbledReentries is the plain kind. Reentries are not executed, and get a garbled reply.
func garbledReentries() *Kind {
	return onRequest(plain, func(r request) (luascripts.Acquired, error) {
		if r.Want > 1 {
			return luascripts.Acquired{}, errGarbled
		}
		return r.send()
	})
}

// breakOff fails the test unless a reentry of h gets no valid reply.
func (w *world) breakOff(k *Kind, h lock.Hold) {
	w.Helper()
	if _, err := w.a.Lock(h.Context(), w.a.NewSpec(k, "orders", nil)); err == nil {
		w.Fatal("the reentry did not break off")
	}
}

// confirmingReplicas makes the in-memory server, which has no replicas, confirm each grant after this time.
func confirmingReplicas(k *Kind, after time.Duration) (c *Kind, confirmed *atomic.Int64) {
	confirmed = new(atomic.Int64)
	return onRequest(k, func(r request) (luascripts.Acquired, error) {
		replicas := r.Replicas
		r.Replicas = 0
		a, err := r.send()
		if replicas > 0 && a.Verdict == luascripts.Done {
			time.Sleep(after)
			a.Confirmed = replicas
			confirmed.Add(1)
		}
		return a, err
	}), confirmed
}

// delayNthRequest is the plain kind. The nth request for "orders" waits until goes is closed, either before it is sent or
// before its reply.
func delayNthRequest(nth int32, before bool, goes <-chan struct{}) *Kind {
	var requests atomic.Int32
	return onRequest(plain, func(r request) (luascripts.Acquired, error) {
		waits := r.keys.Lock == "orders" && requests.Add(1) == nth
		if waits && before {
			<-goes
		}
		a, err := r.send()
		if waits && !before {
			<-goes
		}
		return a, err
	})
}

// failOnce is the plain kind whose first request fails without a reply; execute makes the server execute it.
func (w *world) failOnce() (k *Kind, execute func()) {
	k = onRequest(plain, func(r request) (luascripts.Acquired, error) {
		if r.n > 1 {
			return r.send()
		}
		execute = func() { w.Helper(); w.duplicate(r) }
		return luascripts.Acquired{}, io.EOF
	})
	return k, func() { w.Helper(); execute() }
}

// untilTheClock returns a hold that has just ended by opt, a lease or a limit of a second, before the watchdog's timer has
// run: as if the process had been paused.
func (w *world) untilTheClock(opt lock.Option) lock.Hold {
	w.Helper()
	for range 100 { // at the same virtual time, the timer may run first
		h := w.lock(w.a, w.Context(), opt)
		ended := h.Context().Done()
		time.Sleep(time.Until(h.Until()))
		select {
		case <-ended:
			time.Sleep(time.Second)
		default:
			return h
		}
	}
	w.Fatal("the timer was first a hundred times")
	return nil
}

// errOnly is a context whose cancellation is visible only through Err.
type errOnly struct {
	context.Context
	canceled atomic.Bool
}

func (c *errOnly) Done() <-chan struct{} { return nil }

func (c *errOnly) Err() error {
	if c.canceled.Load() {
		return context.Canceled
	}
	return nil
}

// errFunc is a context with another Err.
type errFunc struct {
	context.Context
	err func() error
}

func (c *errFunc) Err() error { return c.err() }

// errHook is a context. The first call of Err runs f.
type errHook struct {
	context.Context
	once sync.Once
	f    func()
}

func (c *errHook) Err() error {
	c.once.Do(c.f)
	return c.Context.Err()
}
