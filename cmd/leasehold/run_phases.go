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

// closeLimit is the maximum time of the clean-up in Redis. A shorter lease limits it further, because
// the keys of this process expire with the lease.
const closeLimit = 5 * time.Second

// closing returns the context of the clean-up.
func (r *runner) closing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(r.lease, closeLimit))
}

// keepRunning is the value of --on-lost that lets the command continue when the lock is lost.
const keepRunning = "ignore"

// onLostWords returns the values of --on-lost.
func onLostWords() []string {
	return append(slices.Sorted(maps.Keys(child.ByName)), keepRunning)
}

// run goes through the phases: wait for the lock, run the command, release the lock.
// A signal has a different meaning in each phase. A phase ends when its function returns.
func (r *runner) run(ctx context.Context) error {
	signals := child.Catch()
	if ctx.Err() != nil {
		return r.failed(context.Cause(ctx)) // a signal arrived earlier
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
	r.above = ancestors()

	o, h, err := r.acquire(ctx, signals, addresses)
	if err != nil {
		return r.failed(err)
	}
	taken := time.Now()
	r.happens("holding %q", r.name)

	status, ended, err := r.attend(h, signals)
	if err == nil {
		r.keep(h, signals, taken.Add(r.minHold))
	}
	lost := r.release(ctx, o, h)
	switch {
	case err != nil:
		return r.failed(err)
	case lost && r.onLost.value != keepRunning:
		return &exitError{code: exitLost}
	case ended:
		return &exitError{code: exitMaxHold}
	}
	return &exitError{code: status.ExitCode()}
}

// checkOwn returns an error if the flags about the command are not valid.
func (r *runner) checkOwn() error {
	switch {
	case r.killAfter < 0:
		return usagef("--kill-after %v: must not be negative", r.killAfter)
	case r.minHold < 0:
		return usagef("--min-hold %v: must not be negative", r.minHold)
	case r.maxHold > 0 && r.onLost.value == keepRunning:
		return usagef("--max-hold requires a signal to stop the command: --on-lost is %s", keepRunning)
	case 0 < r.maxHold && r.maxHold < r.minHold:
		return usagef("--min-hold %v: must be at most --max-hold %v", r.minHold, r.maxHold)
	case r.conflictCode < 0 || r.conflictCode > 255:
		return usagef("--conflict-exit-code %d: must be at least 0 and at most 255", r.conflictCode)
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

// hold is what the command runs under: a [lock.Hold], or the hold of an outer run.
type hold interface {
	Context() context.Context
	Err() error
	Until() time.Time
	Unlock(ctx context.Context) error
}

// under is a hold with its description for the environment of the command.
type under struct {
	hold
	ancestor
}

// acquire waits for the lock. A termination signal ends the wait. acquire ignores other signals,
// because they are for the command, which does not run yet.
func (r *runner) acquire(ctx context.Context, signals <-chan os.Signal, addresses []string) (o *opened, h *under, err error) {
	waiting, listened := r.untilSignal(ctx, signals)
	waiting, end := context.WithCancelCause(waiting) // not canceled after the grant: the hold derives from it
	w := &wait{runner: r, end: end, began: make(chan struct{})}
	wanted, granted := context.WithCancel(waiting)
	var reporting sync.WaitGroup
	reporting.Go(func() { w.report(wanted) })
	o, err = w.open(waiting, addresses, time.Now().Add(r.wait))
	if err == nil {
		h, err = r.take(waiting, o)
	}
	granted()
	reporting.Wait()
	listened()
	cause := context.Cause(waiting)
	switch {
	case cause != nil: // perhaps just after the grant: Close releases the lock
		err = cause
	case errors.Is(err, lock.ErrNotAcquired):
		err = r.refused(ctx, o, err)
	}
	if err == nil {
		return o, h, nil
	}
	if o != nil {
		ctx, cancel := r.closing(ctx)
		defer cancel()
		o.close(ctx)
	}
	return nil, nil, err
}

// take acquires the lock, as set by the flags.
func (r *runner) take(ctx context.Context, o *opened) (*under, error) {
	if r.reenters && len(r.above) > 0 {
		h, err := r.reenter(ctx, o)
		if err != nil {
			return nil, err
		}
		if h != nil {
			return &under{h, h.ancestor}, nil
		}
	}
	lockIt := o.Lock
	if r.tries() {
		lockIt = o.TryLock
	}
	h, err := lockIt(ctx)
	if err != nil {
		return nil, err
	}
	a := ancestor{token: h.Token()}
	for _, one := range multilock.Holds(h) {
		a.owners = append(a.owners, one.Owner())
	}
	for _, v := range o.voters {
		if v.absent == nil && !a.has(v.client) {
			a.clients = append(a.clients, v.client)
		}
	}
	return &under{h, a}, nil
}

// untilSignal returns a context that is canceled by the first signal that ends run.
// After listened returns, signals go to the caller.
func (r *runner) untilSignal(ctx context.Context, signals <-chan os.Signal) (_ context.Context, listened func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	receive := func(s os.Signal) {
		if child.Ends(s) {
			cancel(interrupted{s})
			return
		}
		r.happens("ignored a signal (%v): the command has not started", s)
	}
	done := make(chan struct{})
	var listening sync.WaitGroup
	listening.Go(func() {
		for {
			select {
			case s := <-signals:
				receive(s)
			case <-done:
				return
			}
		}
	})
	return ctx, func() {
		close(done)
		listening.Wait()
		for len(signals) > 0 { // otherwise they would reach the command that starts now
			receive(<-signals)
		}
	}
}

const (
	groupPoll = 10 * time.Millisecond // interval of checks whether the command's process group is empty
	killLimit = 2 * time.Second       // maximum wait for an empty process group after SIGKILL
)

// attend runs the command, and returns when its process group is empty. It returns an
// error if the command did not start, and ended if it was stopped because of --max-hold.
//
//	a signal                  the command receives it
//	the lock is lost          the command receives the signal of --on-lost, and later SIGKILL
//	--max-hold is reached     the same
//	the command ends          the rest of its group receives SIGTERM, and later SIGKILL
//	the group is empty        attend returns
func (r *runner) attend(h *under, signals <-chan os.Signal) (status child.Status, ended bool, err error) {
	sayLost := child.ByName[r.onLost.value] // 0 for keepRunning
	var most <-chan time.Time
	latest := time.Now().Add(r.maxHold)
	if r.maxHold > 0 {
		most = time.After(r.maxHold)
	}
	r.flush() // before anything that the command writes
	p, err := child.Start(r.argv, child.Options{
		Env:       r.environment(h),
		Orphaned:  sayLost,
		Stopped:   func(sig syscall.Signal, together bool) { r.stopped(h, sig, together, latest) },
		Continued: func() { r.trouble("the command continues") },
	})
	if err != nil {
		return status, false, &exitError{child.StartCode(err), err}
	}
	lost, exited := h.Context().Done(), p.Exited()
	var kill, look, giveUp <-chan time.Time
	for {
		select {
		case s := <-signals:
			r.send(p.Signal(s))
		case <-lost:
			lost, most = nil, nil
			if sayLost == 0 {
				r.trouble("%v; the command continues (--on-lost ignore)", h.Err())
				break
			}
			r.trouble("%v; stopping the command (%v)", h.Err(), sayLost)
			r.send(p.Signal(sayLost))
			kill = time.After(r.killAfter)
		case <-most:
			most, ended = nil, true
			r.trouble("%q: maximum hold of %v reached; stopping the command (%v)", r.name, r.maxHold, sayLost)
			r.send(p.Signal(sayLost))
			kill = time.After(r.killAfter)
		case status = <-exited:
			exited, most = nil, nil
			if !p.Alive() {
				return status, ended, nil
			}
			_ = p.Signal(syscall.SIGTERM)
			look = time.Tick(groupPoll)
			if kill == nil {
				kill = time.After(r.killAfter)
			}
		case <-look:
			if !p.Alive() {
				return status, ended, nil
			}
		case <-kill:
			r.send(p.Signal(syscall.SIGKILL))
			if kill = nil; exited == nil {
				giveUp = time.After(killLimit)
			}
		case <-giveUp:
			r.trouble("processes left by the command do not end")
			return status, ended, nil
		}
	}
}

// stopped reports that the command is stopped, and for how long it keeps the lock. latest is the end of --max-hold.
func (r *runner) stopped(h *under, sig syscall.Signal, together bool, latest time.Time) {
	words := fmt.Sprintf("the command is %v", sig) // "stopped (tty input)"
	const clock = "15:04:05"
	switch {
	case together:
		r.trouble("%s, and so is leasehold: %q is lost unless both continue before %s (fg or bg)", words, r.name, h.Until().Local().Format(clock))
		r.flush() // while this process runs
	case r.maxHold > 0:
		r.trouble("%s; %q stays held until it continues, or until %s because of --max-hold", words, r.name, latest.Local().Format(clock))
	default:
		r.trouble("%s; %q stays held until it continues", words, r.name)
	}
}

// send writes a message if a signal could not be sent, unless the process group is empty.
func (r *runner) send(err error) {
	if err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, os.ErrProcessDone) {
		r.trouble("cannot send a signal to the command: %v", err)
	}
}

// environment returns the environment of the command.
func (r *runner) environment(h *under) []string {
	token := ""
	if h.token > 0 {
		token = strconv.FormatUint(h.token, 10)
	}
	var held []string
	for _, a := range r.above {
		held = append(held, a.String())
	}
	if _, again := h.hold.(*reentered); !again { // the hold of an outer run is already in held
		held = append(held, h.ancestor.String())
	}
	owner := strings.Join(h.owners, " ")
	return append(os.Environ(), // the last variable with a name counts
		"LEASEHOLD_LOCK_NAME="+r.name,
		"LEASEHOLD_OWNER="+owner,
		"LEASEHOLD_LOCK_ID="+owner, // its name before v1, for one release
		"LEASEHOLD_FENCING_TOKEN="+token,
		"LEASEHOLD_LEASE_MS="+strconv.FormatInt(r.lease.Milliseconds(), 10),
		heldVariable+"="+strings.Join(held, " "))
}

// keep keeps the lock until the given time. It returns early after a termination signal or the loss
// of the lock.
func (r *runner) keep(h *under, signals <-chan os.Signal, until time.Time) {
	left := time.Until(until)
	if left <= 0 {
		return
	}
	r.happens("the command ended; holding %q for another %v", r.name, left.Round(time.Millisecond))
	timer := time.NewTimer(left)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return
		case <-h.Context().Done():
			return
		case s := <-signals:
			if child.Ends(s) {
				return
			}
		}
	}
}

// release releases the lock and closes the connections. It ignores signals, because it is short and
// has a limit. It reports whether the lock was lost before.
func (r *runner) release(ctx context.Context, o *opened, h *under) (lost bool) {
	ctx, cancel := r.closing(ctx)
	defer cancel()
	known := h.Err() != nil
	err := h.Unlock(ctx)
	lost = known || errors.Is(err, lock.ErrLost)
	switch {
	case lost && !known:
		r.trouble("%v; the lock was lost before its release", err)
	case err != nil && !lost:
		r.trouble("%v; the lock becomes free when its lease of %v expires", err, r.lease)
	case err == nil:
		r.happens("released %q", r.name)
	}
	o.close(ctx)
	return lost
}
