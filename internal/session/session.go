package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/leasehold-go/leasehold/internal/hint"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/slots"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
	"github.com/redis/rueidis"
)

// Config is what a session needs to know. Package client fills and checks it.
type Config struct {
	Lease     time.Duration // of a lock without a fixed lease; renewed every third of it
	OpTimeout time.Duration // how long one command may stay unanswered
	Poll      time.Duration // how long a waiter relies on hints alone
	KeyPrefix string
	User      string       // as whom the client connects, for errors; "" if that is not known
	Sharded   bool         // hints go by sharded Pub/Sub; only on a cluster
	Logger    *slog.Logger // nil is slog.Default, and warnings only
	Look      bool         // ask a server once whether it evicts keys
	Observer  lock.Observer
}

// Session is one client's identity, and what all its locks share: the claims of
// its owners, the lines of its waiters, the watchdog and the subscriptions.
type Session struct {
	Config                      // set once
	rdb      rueidis.Client     // set once
	id       string             // set once: the uuid in every owner
	dog      *watchdog.Watchdog // set once
	hub      *hint.Hub          // set once
	sliced   bool               // set once: it is a cluster, and keys have slots
	slots    slots.Table        // of a cluster
	settlers settlers           // what is in doubt
	number   atomic.Uint64      // the number in the latest owner

	report reporter  // of what goes wrong behind the callers' backs
	looked sync.Once // see LookOnce

	jobs    chan func()           // to a goroutine that waits for something to do
	idle    atomic.Int32          // how many of them wait
	answers atomic.Bool           // the latest command was answered
	inlines atomic.Int32          // how many commands run in goroutines of their callers
	asides  atomic.Int32          // and in others
	end     atomic.Pointer[endOf] // the context that they have

	closing   chan struct{}  // closed when Close begins
	givenBack chan struct{}  // closed when Close has ended all holds and tried to release them
	givenUp   chan struct{}  // closed when Close could not wait any longer
	giveUp    sync.Once      // closes it
	work      sync.WaitGroup // calls, and what goes on behind them

	mu     sync.Mutex
	closed bool
	claims map[claimID]*claim
	lines  map[place]*line
	spare  []*line             // empty ones
	letGo  map[place]time.Time // until when others come first, for locks of which there is no line
	shares map[place]*shared   // what its readers have in common
	held   map[place]*tenure   // who has the lock in this process, for kinds with a Pass
}

// New returns a session on rdb, which it borrows.
func New(rdb rueidis.Client, c Config) *Session {
	s := &Session{
		Config:    c,
		rdb:       rdb,
		id:        uuid.Must(uuid.NewV7()).String(), // version 7 tells the fair lock's scripts that we send heartbeats
		sliced:    rdb.Mode() == rueidis.ClientModeCluster,
		jobs:      make(chan func()),
		closing:   make(chan struct{}),
		givenBack: make(chan struct{}),
		givenUp:   make(chan struct{}),
		claims:    make(map[claimID]*claim),
		lines:     make(map[place]*line),
		shares:    make(map[place]*shared),
		held:      make(map[place]*tenure),
		letGo:     make(map[place]time.Time),
	}
	s.dog = watchdog.New(c.Lease, batchSize, s.renew)
	s.report.given = c.Logger
	s.hub = hint.New(rdb, hint.Config{Timeout: c.OpTimeout, Look: c.Poll, Sharded: c.Sharded, Denied: s.unhinted})
	return s
}

// Kind is what a kind of lock adds to the session: its scripts, and how its
// waiters wait. The two sides of a read/write lock are a kind each.
type Kind struct {
	Keys    func(name string) luascripts.Keys
	Acquire func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error)
	Release func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, leave int) (luascripts.Verdict, error)
	Renew   func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed

	// Pass is the Release of a kind whose locks go from one holder to the next without
	// becoming free in between, inside a process and from one to another
	// (handover.go). It is nil for the others.
	Pass func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Pass) (luascripts.Passed, error)

	// Queues says that waiting leaves a trace in Redis, which Release with
	// nothing left takes back.
	Queues bool

	// Keep is the heartbeat of a kind whose waiters stand in line in Redis, each
	// for itself and with a channel of its own. It is nil for the others: their
	// waiters stand in line in this process, and only the first asks.
	Keep func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, waiting []luascripts.Waiter) (luascripts.Kept, error)

	// Mode says how an owner holds the lock. Several owners can hold it for
	// reading at once.
	Mode lock.Mode

	// Beside is the other side of a read/write lock, nil for other kinds.
	Beside *Kind
}

func (k *Kind) shared() bool { return k.Mode == lock.Read }

// Spec is one lock: a kind, a name and its options. It never changes.
type Spec struct {
	*Kind
	Name     string          // as the caller gave it
	Keys     luascripts.Keys // as it stands in Redis
	Fixed    time.Duration   // the fixed lease, or 0
	Wait     time.Duration   // how long Lock waits at most, or 0
	Patience time.Duration   // how long the trace of a waiter lives unheard, or 0: waiting leaves none
	MaxHold  time.Duration   // how long a hold lasts at most, or 0
	Grace    time.Duration   // how long a hold is renewed after the end of its context, or 0 for one lease
	Yield    bool            // readers wait behind a writer who came before
	Config   lock.Config     // what the options say
	Err      error           // what is wrong with the name or the options
	slot     uint16          // on a cluster

	Replicas       int // how many must confirm a first hold
	ReplicaTimeout time.Duration
}

// NewSpec makes the spec of a lock. What is wrong shows as Spec.Err.
func (s *Session) NewSpec(k *Kind, name string, opts []lock.Option) *Spec {
	mapped := s.KeyPrefix + name
	config, err := lock.NewConfig(opts...)
	spec := &Spec{Kind: k, Name: name, Config: config, Fixed: config.Lease, Wait: config.Wait, MaxHold: config.MaxHold, Grace: config.Grace, Err: errors.Join(keys.Check(s.KeyPrefix, name), err)}
	spec.Replicas, spec.ReplicaTimeout = config.Replicas, config.ReplicaTimeout
	if lease := s.lease(spec); spec.Err == nil && spec.ReplicaTimeout > lease/2 {
		spec.Err = fmt.Errorf("WithReplicas(%d, %v): the timeout must not be more than half of the lease, which is %v", spec.Replicas, spec.ReplicaTimeout, lease)
	}
	if spec.Err != nil {
		return spec
	}
	spec.Keys = k.Keys(mapped)
	if s.Sharded {
		spec.Keys.Publish = "SPUBLISH"
	}
	if s.sliced {
		spec.Keys.Scattered = true // its listeners can be at a replica
		spec.slot = slots.OfKey(s.rdb, spec.Keys.Lock)
	}
	if config.Fencing {
		spec.Keys.Register = keys.Tokens(mapped)
	}
	if k.Queues && !(k.Beside != nil && !k.shared() && config.ReadersFirst) {
		spec.Patience = config.Patience
	}
	spec.Yield = !config.ReadersFirst
	return spec
}

// place is one side of one lock, for which this process has owners and lines.
type place struct {
	kind *Kind
	key  string

	// Of a line alone: which of several lines it is. Waiters of a read/write lock stand
	// behind those only whose question is as good as their own.
	apart apart
}

// apart says what sets a line apart from others of the same place.
type apart uint8

const (
	// WithReadersFirst: Redis lets such a reader in where it refuses others, and such a
	// writer leaves no wish for those behind it.
	readersFirst apart = 1 << iota

	// A reader with replicas, who waits for them while others may read already.
	replicated

	allApart = iota // so many bits there are
)

func (spec *Spec) place() place { return place{kind: spec.Kind, key: spec.Keys.Lock} }

// line is the place of the line in which waiters with this spec stand.
func (spec *Spec) line() place {
	p := spec.place()
	if spec.Beside != nil && !spec.Yield {
		p.apart |= readersFirst
	}
	if spec.shared() && spec.Replicas > 0 {
		p.apart |= replicated
	}
	return p
}

// lease is how long a grant of spec lives without a renewal.
func (s *Session) lease(spec *Spec) time.Duration {
	if spec.Fixed != 0 {
		return spec.Fixed
	}
	return s.Lease
}

// newOwner returns an owner that never was before, for a tenure that is asked for from now
// on. A claim takes a new one for each tenure, so that nothing that is still under way for
// an earlier tenure can touch a later one.
//
// Its number is the clock in µs, and ten bits by chance. So it shows since when the owner
// asks, to everybody who looks at the lock, and nobody can guess it.
func (s *Session) newOwner(now time.Time) string {
	n := uint64(now.UnixMicro())<<10 | rand.Uint64N(1<<10)
	for {
		last := s.number.Load()
		if n = max(n, last+1); s.number.CompareAndSwap(last, n) {
			break
		}
	}
	var b [64]byte
	return string(strconv.AppendUint(append(append(b[:0], s.id...), ':'), n, 10))
}

// askedSince returns since when an owner asks, as its string tells; zero if that is not one
// of ours.
func askedSince(owner string) time.Time {
	client, number, _ := strings.Cut(owner, ":")
	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil || len(client) < 15 || client[14] != '7' { // Redisson's have a uuid of version 4
		return time.Time{}
	}
	return time.UnixMicro(int64(n >> 10))
}

// begin enters a call, unless the session is closed; s.work.Done leaves it.
func (s *Session) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return lock.ErrClosed
	}
	s.work.Add(1)
	return nil
}

// Close gives back every lock still held, ends the waiters with ErrClosed, and
// waits for all goroutines, for as long as ctx lasts.
//
// The error names how many locks Redis did not confirm to be free; they end
// with their leases. It matches ctx's error when ctx ended first. A ctx that is
// over already, as it often is when a program ends, is given two operation
// time-outs. A second Close waits as well, and returns nil when there is nothing
// left.
func (s *Session) Close(ctx context.Context) error {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), 2*s.OpTimeout)
		defer cancel()
	}
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	held := make(map[*tenure]bool) // some are of several claims
	for _, c := range s.claims {
		if t := c.tenure; first && t != nil {
			held[t] = true
		}
	}
	s.mu.Unlock()

	// Only the first gives back. Until it has, nothing may be stopped that its
	// holders rely on, and nobody may find that there is no work.
	failed := 0
	if first {
		close(s.closing)
		failed = s.giveBack(ctx, held)
		close(s.givenBack)
	}
	select {
	case <-s.givenBack:
	case <-ctx.Done():
		return ctx.Err()
	}
	idle := make(chan struct{})
	go func() {
		s.hub.Close()
		s.dog.Close()
		s.work.Wait()
		if end := s.end.Load(); end != nil {
			end.cancel()
		}
		close(idle)
	}()
	var late error
	select {
	case <-idle:
	case <-ctx.Done():
		late = fmt.Errorf("%w, and commands are still unanswered", ctx.Err())
		s.giveUp.Do(func() { close(s.givenUp) })
	}
	if failed > 0 {
		late = errors.Join(late, fmt.Errorf("%d of %d locks were not confirmed as released", failed, len(held)))
	}
	return late
}

// GaveBack reports whether a Close has come so far that nothing is sent any more
// but what settles.
func (s *Session) GaveBack() bool {
	select {
	case <-s.givenBack:
		return true
	default:
		return false
	}
}

// giveBack ends the holds of all tenures and releases them, many at a time. It
// returns how many Redis did not confirm.
func (s *Session) giveBack(ctx context.Context, held map[*tenure]bool) (failed int) {
	const atOnce = 64
	var wg sync.WaitGroup
	var unconfirmed atomic.Int64
	places := make(chan struct{}, atOnce)
	for t := range held {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			owners, before, _ := t.end(closed, t.wrap(lock.ErrClosed))
			if before == released {
				return // by an Unlock, which sees to it
			}
			// One that was lost just now may still be in Redis as ours.
			if err := s.release(ctx, t, owners); err != nil && !errors.Is(err, lock.ErrLost) {
				unconfirmed.Add(1)
			}
		})
	}
	wg.Wait()
	return int(unconfirmed.Load())
}

// batchSize is how many locks one renewal takes along: few enough that a server is
// back for others within a fraction of a millisecond.
const batchSize = 100

// node returns the node of a slot, which does not block. Once in each interval between
// renewals it asks the cluster in the background.
func (s *Session) node(slot uint16) uint16 {
	if s.slots.Due(s.Lease / 3) {
		s.work.Go(func() {
			_, _, _ = await(context.Background(), s, s.OpTimeout, func(ctx context.Context) (struct{}, error) {
				return struct{}{}, s.slots.Refresh(ctx, s.rdb)
			}, nil)
		})
	}
	return s.slots.Of(slot)
}

// renewals are what one renewal takes along. They are used again.
type renewals struct {
	order   []int // in the batch
	tenures []*tenure
	locks   []luascripts.Renewal
	holds   []*hold
}

var unusedRenewals = sync.Pool{New: func() any { return &renewals{} }}

// renew is what the watchdog renews with. All of a batch are of one kind, and on a
// cluster at one node, as far as is known.
//
// It never runs in the goroutine of the watchdog, as that would leave with the operation
// time-out: an answer that comes later still counts.
func (s *Session) renew(_ context.Context, batch []watchdog.Subject) []error {
	r := unusedRenewals.Get().(*renewals)
	r.order = r.order[:0]
	var errs []error // nil while there is none
	for i := range batch {
		if batch[i].(*tenure).isGift() {
			errs = withError(errs, len(batch), i, errUntaken)
		} else {
			r.order = append(r.order, i)
		}
	}
	if len(r.order) == 0 {
		unusedRenewals.Put(r)
		return errs
	}
	if s.sliced { // the locks of a slot share a script
		slices.SortFunc(r.order, func(i, j int) int {
			return int(batch[i].(*tenure).spec.slot) - int(batch[j].(*tenure).spec.slot)
		})
	}
	k := batch[r.order[0]].(*tenure).spec.Kind
	for _, i := range r.order {
		t := batch[i].(*tenure)
		l := luascripts.Renewal{Keys: &t.spec.Keys, Owner: t.owner}
		if s.sliced {
			l.Slot = t.spec.slot
		}
		if k.shared() {
			holds, _ := t.state()
			l.Holds = max(holds, 1)
		}
		r.tenures, r.locks = append(r.tenures, t), append(r.locks, l)
	}
	r.holds = s.abandon(r.tenures, r.holds)
	sent := time.Now()
	replies, answered, err := aside(context.Background(), s, s.OpTimeout, func(ctx context.Context) ([]luascripts.Renewed, error) {
		renewed := k.Renew(ctx, s.rdb, r.locks, s.Lease, batchSize)
		if !slices.ContainsFunc(renewed, func(r luascripts.Renewed) bool { return isAnswer(r.Err) }) {
			return nil, renewed[0].Err // so that it does not count as an answer
		}
		return renewed, nil
	}, func(replies []luascripts.Renewed, err error) {
		for j, t := range r.tenures {
			if err == nil {
				t.watch().Answered(sent, s.errorOf(replies[j]))
			}
		}
	})
	if s.Look {
		s.LookOnce()
	}
	failed, first := 0, error(nil)
	var of *tenure
	for j, i := range r.order {
		e := s.told(err)
		if err == nil {
			e = s.errorOf(replies[j])
		}
		if e != nil {
			errs = withError(errs, len(batch), i, e)
		}
		if e != nil && !errors.Is(e, watchdog.ErrGone) {
			if failed++; failed == 1 {
				of, first = batch[i].(*tenure), e
			}
		}
	}
	if failed == 1 || failed > 0 && errors.Is(first, lock.ErrUnavailable) { // refused together, they are asked for one by one
		s.unrenewed(of, failed, first)
	}
	if answered { // else they may be on their way yet
		clear(r.tenures)
		clear(r.locks)
		r.tenures, r.locks = r.tenures[:0], r.locks[:0]
		unusedRenewals.Put(r)
	}
	return errs
}

// errUntaken is the answer to the renewal of a lock that was passed on to this process and
// that no waiter has taken yet: it is renewed for nobody.
var errUntaken = errors.New("nobody has taken it yet")

// withError returns errs, of n, with err at i.
func withError(errs []error, n, i int, err error) []error {
	if errs == nil {
		errs = make([]error, n)
	}
	errs[i] = err
	return errs
}

// errorOf is the answer to a renewal as the watchdog wants it.
func (s *Session) errorOf(r luascripts.Renewed) error {
	switch {
	case r.Err != nil:
		return s.told(r.Err)
	case r.Verdict == luascripts.Foreign:
		return fmt.Errorf("%w: %w", watchdog.ErrGone, lock.ErrForeignKey)
	case r.Verdict == luascripts.Gone:
		return watchdog.ErrGone
	default:
		return nil
	}
}
