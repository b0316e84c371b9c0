package demo

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/rwlock"
)

const (
	readers  = 12
	branches = 3 // number of clients that they use
	editions = 3

	betweenTime = 300 * time.Millisecond // before each edition
)

var (
	pageTime       = 40 * time.Millisecond  // minimum time between the two pages
	joinTime       = 500 * time.Millisecond // maximum time for readers to join; without a notification, they would retry within a second
	tieTime        = 30 * time.Millisecond  // readers of a process admit each other for 10 ms, and a message notifies them of the librarian
	librarianWaits = 5 * time.Second        // maximum wait for the write lock
)

// library has a catalog of two pages, which must be of the same edition. The readers
// share the lock. The librarian, which revises the catalog, holds it alone.
func library(ctx context.Context, s *stage) error {
	s.out.line("A catalog of two pages that must match, %d readers that keep arriving, and a librarian: a read/write lock.", readers)
	s.out.line("To read: page 1, pause, page 2. To revise: write page 1, pause, write page 2, downgrade to a read lock, and read.")
	clients, err := s.openMany(ctx, branches)
	if err != nil {
		return err
	}
	report, err := visitLibrary(ctx, s, func(reader int) lock.Locker {
		return clients[reader%branches].NewRWLock("catalog").Read()
	})
	if err != nil {
		return err
	}
	s.check(checkLibrary(report)...)
	return nil
}

// libraryReport is the result of the scene.
type libraryReport struct {
	readings  []reading
	revisions []revision
	most      int // maximum number of concurrent readers
	met       int // number of readers that read while the librarian wrote
}

// reading is one visit of a reader.
type reading struct {
	asked, entered time.Time
	pages          [2]int
}

// revision is one visit of the librarian.
type revision struct {
	waits   time.Time // since when Redis has its writer intent; zero if it did not wait
	entered time.Time
	joined  int // number of readers that joined after the downgrade
}

// catalog is the data that the lock protects, and the number of its holders.
type catalog struct {
	s      *stage
	lock   *rwlock.Lock   // of the librarian
	waits  chan time.Time // when the librarian begins to wait
	closed atomic.Bool    // no more readers arrive

	mu      sync.Mutex
	report  libraryReport
	inside  int  // number of readers
	writing bool // the librarian writes
}

// visitLibrary lets the readers arrive until the librarian has finished. A reader acquires
// the lock that lockOf returns.
func visitLibrary(ctx context.Context, s *stage, lockOf func(reader int) lock.Locker) (libraryReport, error) {
	c := &catalog{s: s, waits: make(chan time.Time, 1)}
	librarian, err := s.open(ctx, client.WithObserver(lock.Observer{
		Waiting: func(context.Context, lock.Event) { c.waits <- time.Now() },
	}))
	if err != nil {
		return libraryReport{}, err
	}
	c.lock = librarian.NewRWLock("catalog", lock.WithWait(librarianWaits))

	err = each(ctx, readers+1, func(ctx context.Context, i int) error {
		if i == readers {
			return c.reviseAll(ctx)
		}
		for !c.closed.Load() {
			if err := c.read(ctx, lockOf(i)); err != nil {
				return err
			}
		}
		return nil
	})
	return c.report, err
}

// read is one visit of a reader.
func (c *catalog) read(ctx context.Context, l lock.Locker) error {
	r := reading{asked: time.Now()}
	err := lock.Do(ctx, l, func(ctx context.Context) (err error) {
		r.entered = time.Now()
		r.pages, err = c.pages(ctx)
		return err
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.readings = append(c.report.readings, r)
	return err
}

// pages reads the catalog. The result is consistent only if there is no write at the same time.
func (c *catalog) pages(ctx context.Context) (pages [2]int, err error) {
	defer c.enter(false)()
	if pages[0], err = c.s.data.number(ctx, "page 1"); err != nil {
		return pages, err
	}
	if err = sleep(ctx, pageTime+rand.N(pageTime)); err != nil {
		return pages, err
	}
	pages[1], err = c.s.data.number(ctx, "page 2")
	return pages, err
}

// reviseAll is the work of the librarian. The library closes when it returns.
func (c *catalog) reviseAll(ctx context.Context) error {
	defer c.closed.Store(true)
	for edition := 1; edition <= editions; edition++ {
		if err := sleep(ctx, betweenTime); err != nil {
			return err
		}
		r, err := c.revise(ctx, edition)
		switch {
		case errors.Is(err, lock.ErrNotAcquired) && ctx.Err() == nil:
			c.s.out.line("edition %d: the librarian timed out: %v", edition, err)
			return nil
		case err != nil:
			return err
		}
		c.report.revisions = append(c.report.revisions, r)
		c.s.out.line("edition %d: the librarian waited %d ms, wrote, and downgraded; %d readers joined",
			edition, r.waited().Milliseconds(), r.joined)
	}
	return nil
}

// revise writes an edition, and then downgrades to a read lock, so that there is no other write in between.
func (c *catalog) revise(ctx context.Context, edition int) (r revision, err error) {
	ctx = lock.ContextWithNewOwner(ctx) // the two holds have one owner, and the first is released first
	writing, err := c.lock.Write().Lock(ctx)
	if err != nil {
		return r, err
	}
	r.entered = time.Now()
	select {
	case r.waits = <-c.waits:
	default:
	}
	if err := c.write(writing.Context(), edition); err != nil {
		return r, err
	}
	reading, err := c.lock.Read().Lock(ctx)
	if err != nil {
		return r, err
	}
	if err := writing.Unlock(ctx); err != nil {
		return r, err
	}
	if r.joined, err = c.joined(reading.Context(), reading.Owner()); err != nil {
		return r, err
	}
	return r, reading.Unlock(ctx)
}

// write writes the catalog. That is safe only if there is no other holder.
func (c *catalog) write(ctx context.Context, edition int) error {
	defer c.enter(true)()
	if err := c.s.data.setNumber(ctx, "page 1", edition); err != nil {
		return err
	}
	if err := sleep(ctx, 2*pageTime); err != nil {
		return err
	}
	return c.s.data.setNumber(ctx, "page 2", edition)
}

// joined returns the maximum number of readers that join while owner reads. It waits some
// time for them.
func (c *catalog) joined(ctx context.Context, owner string) (most int, err error) {
	for start := time.Now(); ; {
		state, err := c.lock.Inspect(ctx) // a snapshot: all of them hold the lock at the same time
		if err != nil {
			return most, err
		}
		if state.Mode == lock.Read && state.HoldCount(owner) == 1 {
			most = max(most, len(state.Holders)-1)
		}
		took := time.Since(start)
		if most == readers || most > 1 && took > pageTime || took > joinTime {
			return most, nil
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return most, err
		}
	}
}

// enter records another holder.
func (c *catalog) enter(writes bool) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if writes {
		c.writing = true
		c.report.met += c.inside
		c.s.out.progress("librarian writing")
		return func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.writing = false
		}
	}
	c.inside++
	c.report.most = max(c.report.most, c.inside)
	if c.writing {
		c.report.met++
	}
	c.s.out.progress("%d reading", c.inside)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.inside--
	}
}

// waited returns for how long the librarian waited.
func (r revision) waited() time.Duration {
	if r.waits.IsZero() {
		return 0
	}
	return r.entered.Sub(r.waits)
}

// behind returns the number of readers that arrived while the librarian waited, and how
// many of them were admitted before it.
func (r libraryReport) behind() (came, past int) {
	for _, revision := range r.revisions {
		for _, reading := range r.readings {
			if revision.waits.IsZero() || reading.asked.Before(revision.waits.Add(tieTime)) || reading.asked.After(revision.entered) {
				continue
			}
			came++
			if reading.entered.Before(revision.entered) {
				past++
			}
		}
	}
	return came, past
}

func checkLibrary(r libraryReport) []claim {
	mixed := 0
	for _, reading := range r.readings {
		if reading.pages[0] != reading.pages[1] {
			mixed++
		}
	}
	came, past := r.behind()
	longest, fewest := time.Duration(0), 0
	for i, revision := range r.revisions {
		longest = max(longest, revision.waited())
		if i == 0 || revision.joined < fewest {
			fewest = revision.joined
		}
	}
	return []claim{
		claimf(r.most > 1, "%d reads, up to %d at the same time", len(r.readings), r.most),
		claimf(r.met == 0, "%d readers read during a write", r.met),
		claimf(mixed == 0, "%d readers saw pages of different editions", mixed),
		claimf(len(r.revisions) == editions, "the librarian acquired the write lock %d of %d times, each time within %d ms, while readers kept arriving",
			len(r.revisions), editions, longest.Milliseconds()),
		claimf(came > 0 && past == 0, "%d readers arrived while it waited, and %d of them read before it", came, past),
		claimf(fewest > 1, "after each downgrade, at least %d readers read together with it", fewest),
	}
}
