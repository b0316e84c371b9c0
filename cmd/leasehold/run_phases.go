package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/child"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
)

// closeLimit limits the time of the clean-up in Redis. A shorter lease limits it further, as nothing of
// this process is left in Redis when the lease is over.
const closeLimit = 5 * time.Second

// closing returns the context of the clean-up.
func (r *runner) closing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(r.lease, closeLimit))
}

// keepRunning is the value of --on-lost that leaves the command alone when the lock is lost.
const keepRunning = "ignore"

// onLostWords returns the values of --on-lost.
func onLostWords() []string {
	return append(slices.Sorted(maps.Keys(child.ByName)), keepRunning)
}

// run goes through the phases: wait for the lock, run the command, give the lock back.
// A signal has another meaning in each phase. Each phase ends by a return below.
func (r *runner) run(ctx context.Context) error {
	signals := child.Catch()
	if ctx.Err() != nil {
		return r.failed(context.Cause(ctx)) // a signal has come before
	}
	ctx = context.WithoutCancel(ctx)

	addresses, err := r.addresses()
	if err == nil {
		err = r.check(len(addresses))
	}
	if err == nil {
		err = r.checkOwn()
	}
	if err != nil {
		return err
	}
	if _, err := child.Find(r.argv[0]); err != nil { // fail now rather than after an hour of waiting
		return r.failed(&exitError{child.StartCode(err), err})
	}

	o, hold, err := r.acquire(ctx, signals, addresses)
	if err != nil {
		return r.failed(err)
	}
	taken := time.Now()
	r.happens("holding %q", r.name)

	status, err := r.attend(hold, signals)
	if err == nil {
		r.keep(hold, signals, taken.Add(r.minHold))
	}
	lost := r.release(ctx, o, hold)
	switch {
	case err != nil:
		return r.failed(err)
	case lost && r.onLost.value != keepRunning:
		return &exitError{code: exitLost}
	}
	return &exitError{code: status.ExitCode()}
}

// checkOwn returns an error if the flags that are about the command are not valid.
func (r *runner) checkOwn() error {
	switch {
	case r.killAfter < 0:
		return usagef("--kill-after %v: it must not be less than 0", r.killAfter)
	case r.minHold < 0:
		return usagef("--min-hold %v: it must not be less than 0", r.minHold)
	case r.conflictCode < 0 || r.conflictCode > 255:
		return usagef("--conflict-exit-code %d: it must be from 0 to 255", r.conflictCode)
	}
	return nil
}

// failed returns err with its exit code.
func (r *runner) failed(err error) error {
	var e *exitError
	var i interrupted
	switch {
	case errors.As(err, &e):
	case errors.As(err, &i):
		e = &exitError{i.code(), fmt.Errorf("%w before the command was started", i)}
	case errors.Is(err, lock.ErrBadName):
		e = &exitError{exitUsage, err}
	default:
		e = &exitError{exitBroken, err}
	}
	if r.quiet {
		return &exitError{code: e.code}
	}
	return e
}

// acquire waits for the lock. A signal that asks to end ends the wait. acquire ignores other signals:
// they are for the command, which does not run yet.
func (r *runner) acquire(ctx context.Context, signals <-chan os.Signal, addresses []string) (*opened, lock.Hold, error) {
	waiting, listened := untilSignal(ctx, signals)
	o, err := r.open(waiting, addresses)
	if err != nil {
		listened()
		return nil, nil, err
	}
	hold, err := o.take(waiting, &r.locking)
	listened()
	switch {
	case waiting.Err() != nil: // perhaps just after the grant: Close gives the lock back
		err = context.Cause(waiting)
	case errors.Is(err, lock.ErrNotAcquired):
		err = &exitError{r.conflictCode, fmt.Errorf("%w; another owner has it", err)}
	}
	if err != nil {
		ctx, cancel := r.closing(ctx)
		defer cancel()
		o.close(ctx)
		return nil, nil, err
	}
	return o, hold, nil
}

// untilSignal returns a context that ends with the first signal that asks to end.
// When listened returns, signals are the caller's again.
func untilSignal(ctx context.Context, signals <-chan os.Signal) (_ context.Context, listened func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	var listening sync.WaitGroup
	listening.Go(func() {
		for {
			select {
			case s := <-signals:
				if child.Ends(s) {
					cancel(interrupted{s})
					return
				}
			case <-done:
				return
			}
		}
	})
	return ctx, func() {
		close(done)
		listening.Wait()
	}
}

const (
	groupPoll = 10 * time.Millisecond // the time between two looks whether the command's process group is empty
	killLimit = 2 * time.Second       // the longest wait for an empty process group after SIGKILL
)

// attend runs the command, and returns when its process group is empty. It returns an
// error if the command did not start.
//
//	a signal                  the command gets it
//	the lock is lost          the command gets the signal of --on-lost, and later SIGKILL
//	the command is over       the rest of its group gets SIGTERM, and later SIGKILL
//	the group is empty        attend returns
func (r *runner) attend(hold lock.Hold, signals <-chan os.Signal) (status child.Status, err error) {
	sayLost := child.ByName[r.onLost.value] // 0 for keepRunning
	p, err := child.Start(r.argv, child.Options{Env: r.environment(hold), Orphaned: sayLost})
	if err != nil {
		return status, &exitError{child.StartCode(err), err}
	}
	lost, exited := hold.Context().Done(), p.Exited()
	var kill, look, giveUp <-chan time.Time
	for {
		select {
		case s := <-signals:
			r.send(p.Signal(s))
		case <-lost:
			lost = nil
			if sayLost == 0 {
				r.trouble("%v; the command goes on", hold.Err())
				break
			}
			r.trouble("%v; the command is told to stop (%v)", hold.Err(), sayLost)
			r.send(p.Signal(sayLost))
			kill = time.After(r.killAfter)
		case status = <-exited:
			exited = nil
			if !p.Alive() {
				return status, nil
			}
			_ = p.Signal(syscall.SIGTERM)
			look = time.Tick(groupPoll)
			if kill == nil {
				kill = time.After(r.killAfter)
			}
		case <-look:
			if !p.Alive() {
				return status, nil
			}
		case <-kill:
			r.send(p.Signal(syscall.SIGKILL))
			if kill = nil; exited == nil {
				giveUp = time.After(killLimit)
			}
		case <-giveUp:
			r.trouble("what the command has left behind cannot be ended")
			return status, nil
		}
	}
}

// send writes a message if a signal could not be sent. An empty process group is no trouble.
func (r *runner) send(err error) {
	if err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, os.ErrProcessDone) {
		r.trouble("the command cannot be sent a signal: %v", err)
	}
}

// environment returns the environment of the command.
func (r *runner) environment(hold lock.Hold) []string {
	var owners []string
	for _, h := range multilock.Holds(hold) {
		owners = append(owners, h.Owner())
	}
	token := ""
	if t := hold.Token(); t > 0 {
		token = strconv.FormatUint(t, 10)
	}
	owner := strings.Join(owners, " ")
	return append(os.Environ(), // the last variable of a name counts
		"LEASEHOLD_LOCK_NAME="+r.name,
		"LEASEHOLD_OWNER="+owner,
		"LEASEHOLD_LOCK_ID="+owner, // its name before v1, for one release
		"LEASEHOLD_FENCING_TOKEN="+token,
		"LEASEHOLD_LEASE_MS="+strconv.FormatInt(r.lease.Milliseconds(), 10))
}

// keep keeps the lock until the given time. A signal that asks to end makes keep return early, and
// so does the loss of the lock.
func (r *runner) keep(hold lock.Hold, signals <-chan os.Signal, until time.Time) {
	left := time.Until(until)
	if left <= 0 {
		return
	}
	r.happens("the command is over; keeping %q for another %v", r.name, left.Round(time.Millisecond))
	timer := time.NewTimer(left)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return
		case <-hold.Context().Done():
			return
		case s := <-signals:
			if child.Ends(s) {
				return
			}
		}
	}
}

// release gives the lock back and closes the connections. It ignores signals, as it is short and
// has a limit. It reports whether the lock was lost before.
func (r *runner) release(ctx context.Context, o *opened, hold lock.Hold) (lost bool) {
	ctx, cancel := r.closing(ctx)
	defer cancel()
	known := hold.Err() != nil
	err := hold.Unlock(ctx)
	lost = known || errors.Is(err, lock.ErrLost)
	switch {
	case lost && !known:
		r.trouble("%v; it was no longer held when the command was over", err)
	case err != nil && !lost:
		r.trouble("%v; Redis lets it go when its lease of %v ends", err, r.lease)
	case err == nil:
		r.happens("gave %q back", r.name)
	}
	o.close(ctx)
	return lost
}
