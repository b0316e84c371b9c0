// Package gocronlock makes gocron v2 run each job in one of several processes.
//
//	locker := gocronlock.NewLocker(func(job string) lock.Locker {
//		return c.NewLock("cron:"+job, lock.WithMinHold(50*time.Second))
//	})
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//
// With [NewLocker], each run of a job belongs to the process that is first. With [NewElector], one
// process runs all jobs. gocron needs a name for each job (gocron.WithName), the same in all
// processes.
package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/leasehold-go/leasehold/lock"
)

// releaseTime limits a release. gocron's context is canceled when it shuts down.
const releaseTime = 5 * time.Second

// NewLocker returns a Locker that calls lockOf for the lock of a job, with the name of the job. It
// makes one attempt. If another process has the lock, or Redis is unavailable, gocron skips the
// run. A listener of gocron.AfterLockError can distinguish the two, because its error matches
// lock.ErrNotAcquired only if another process has the lock.
//
// Create the lock with lock.WithMinHold and a little less than the interval of the job. Otherwise a
// process with a slow clock runs a short job a second time. The lock is held until the job returns,
// however long that takes. Use lock.WithMaxHold, because a job that hangs keeps the lock until its
// process ends. gocron does not pass the context of the hold to the job. A job that must stop when
// the lock is lost acquires the lock itself, with lock.TryDo.
func NewLocker(lockOf func(job string) lock.Locker) gocron.Locker { return locker{lockOf} }

type locker struct{ lockOf func(string) lock.Locker }

// Lock makes one attempt. The runs of a job share ctx, which can carry an owner (gocron.WithContext), but they must exclude each
// other.
func (l locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	h, err := lock.UntilUnlock(l.lockOf(job)).TryLock(lock.ContextWithNewOwner(ctx)) // ctx may be canceled while the job still runs
	if err != nil {
		return nil, err
	}
	return hold{h}, nil
}

type hold struct{ lock.Hold }

// Unlock releases the lock, even after ctx is canceled.
func (h hold) Unlock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	return h.Hold.Unlock(ctx)
}

// ErrNotLeader is returned by an Elector in a process that is not the leader.
var ErrNotLeader = errors.New("gocronlock: this process is not the leader")

// Elector is a gocron.Elector. The process that holds a lock is the leader, until it closes the
// Elector or loses the lock.
type Elector struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	hold   lock.Hold // nil while another process is the leader
	failed error     // of the latest attempt that failed; nil after a success
	at     time.Time // when it failed
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector returns an Elector that campaigns for l in the background, until Close. With a fair
// lock, the process that has waited longest is the next leader.
func NewElector(l lock.Locker) *Elector {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Elector{cancel: cancel, done: make(chan struct{})}
	go e.campaign(ctx, l)
	return e
}

// campaign waits for the lock, holds it, and starts over when it is lost.
func (e *Elector) campaign(ctx context.Context, l lock.Locker) {
	defer close(e.done)
	for ctx.Err() == nil {
		h, err := l.Lock(ctx)
		if err != nil { // a permanent error; retry later
			e.fail(err)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			continue
		}
		e.set(h)
		select {
		case <-h.Context().Done():
		case <-ctx.Done(): // which does not cancel a hold of lock.UntilUnlock
		}
		e.set(nil)
		within, cancel := context.WithTimeout(context.Background(), releaseTime)
		_ = h.Unlock(within)
		cancel()
	}
}

func (e *Elector) set(h lock.Hold) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hold, e.failed = h, nil
}

func (e *Elector) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failed, e.at = err, time.Now()
}

// IsLeader returns nil if this process is the leader, and otherwise an error that matches
// ErrNotLeader. If the latest attempt to become the leader failed, for example because of a missing
// permission, the error also matches the error of that attempt. IsLeader sends no command. It
// compares the clocks, so a process that was paused does not act as the leader.
func (e *Elector) IsLeader(context.Context) error {
	e.mu.Lock()
	h, failed, at := e.hold, e.failed, e.at
	e.mu.Unlock()
	switch {
	case h != nil && h.Err() == nil:
		return nil
	case failed != nil:
		return fmt.Errorf("%w; an attempt failed %v ago: %w", ErrNotLeader, time.Since(at).Round(time.Second), failed)
	}
	return ErrNotLeader
}

// Close ends the campaign and releases the lock, and waits for that for at most 5 s. It does not
// wait for jobs that are still running. Shut the scheduler down first. Otherwise another process
// can run the same jobs at the same time.
func (e *Elector) Close() {
	e.cancel()
	<-e.done
}
