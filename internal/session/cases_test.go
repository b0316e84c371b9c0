package session

import (
	"context"
	"errors"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// rival returns a kind that excludes k: readers exclude only writers.
func rival(k *Kind) *Kind {
	if k.Sibling != nil {
		return writing
	}
	return k
}

// wantEmpty fails the test if Redis has a key.
func (w *world) wantEmpty() {
	w.Helper()
	if keys := w.mini.Keys(); len(keys) != 0 {
		w.Errorf("left: %q", keys)
	}
}

// wantErr fails the test unless err matches all of these errors, and not both ErrNotAcquired and ErrUnavailable. Without any,
// every error will do.
func (w *world) wantErr(err error, match ...error) {
	w.Helper()
	if err == nil || errors.Is(err, lock.ErrNotAcquired) && errors.Is(err, lock.ErrUnavailable) {
		w.Errorf("got the error %v", err)
	}
	for _, target := range match {
		if !errors.Is(err, target) {
			w.Errorf("got the error %v, want one that matches %q", err, target)
		}
	}
}

// lockCall is Session.Lock or Session.TryLock.
type lockCall func(context.Context, *Spec) (lock.Hold, error)

// lockOrTry is Lock or TryLock of session a.
func (w *world) lockOrTry(tries bool) lockCall {
	if tries {
		return w.a.TryLock
	}
	return w.a.Lock
}

// wantFail fails the test unless call returns an error that matches all of these errors.
func (w *world) wantFail(call lockCall, ctx context.Context, spec *Spec, match ...error) {
	w.Helper()
	_, err := call(ctx, spec)
	w.wantErr(err, match...)
}

// lockNamed locks a plain lock of session a with this name.
func (w *world) lockNamed(name string) lock.Hold {
	w.Helper()
	return w.mustLock(w.Context(), w.a.NewSpec(plain, name, nil))
}

// force force-unlocks the lock, which has a holder.
func (w *world) force(s *Session, k *Kind) {
	w.Helper()
	script := luascripts.ForceReentrant
	switch {
	case k.Sibling != nil:
		script = luascripts.ForceRW
	case k.Keep != nil:
		script = luascripts.ForceFair
	}
	if done, err := s.Force(w.Context(), s.NewSpec(k, "orders", nil), script); err != nil || !done {
		w.Fatal(done, err)
	}
}
