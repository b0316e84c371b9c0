package command

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
)

// Dated sends the copies of a call that overwrites a value, so that no copy undoes a newer call. Each
// copy carries a server time after which it has no effect. When Over has returned, no copy can still
// take effect: it has a reply, or its time has passed. Dated stores nothing in Redis. It requires
// that the server's clock is not moved backward.
type Dated struct {
	began        time.Time       // set once
	within       time.Duration   // set once
	closing      <-chan struct{} // set once: closed when the client closes
	pendingUntil atomic.Int64    // until when a copy without a reply may be executed, as a duration since began
}

// Dated returns a Dated for a call that begins now. It stops sending after the timeout, or when the
// sender is shut.
func (s *Sender) Dated() *Dated {
	return &Dated{began: time.Now(), within: s.Timeout, closing: s.closing}
}

// copyLives is how long a copy can be executed after it is sent. A repeated call returns later by up
// to this time.
const copyLives = time.Second

// errOutdated is returned when every copy took longer than copyLives to reach the server.
var errOutdated = errors.New("command arrived too late and was not executed")

// Send calls f, which sends a copy that may be executed before the given server time, in ms. f
// returns 0 if the copy was executed. Otherwise it returns the server's time, and Send calls f again.
// The first copy has time 0, so it only queries the time. Send stops when ctx is canceled or the
// client closes. Calls of Send must not overlap.
func (d *Dated) Send(ctx context.Context, f func(before int64) (now int64, err error)) error {
	pendingUntil := d.pendingUntil.Load()
	for before := int64(0); ; {
		now, err := f(before)
		if err == nil || !retry.FaultOf(err).MayHaveRun() {
			d.pendingUntil.Store(pendingUntil)
		}
		if err != nil || now == 0 { // mutant: operand 1: an error has no time
			return err
		}
		passed := time.Since(d.began)
		life := min(copyLives, d.within-passed)
		select {
		case <-ctx.Done():
			return Ended(ctx, 0)
		case <-d.closing:
			return lock.ErrClosed
		default:
		}
		if life <= 0 {
			return errOutdated
		}
		before = now + life.Milliseconds()*99/100 // allow for 1 % of clock drift
		d.pendingUntil.Store(int64(passed + life))
	}
}

// Over waits until no copy of the call can still take effect, or ctx is canceled.
func (d *Dated) Over(ctx context.Context) {
	if left := time.Duration(d.pendingUntil.Load()) - time.Since(d.began); left > 0 { // mutant: always, border: a sleep of no time
		Sleep(ctx, left)
	}
}
