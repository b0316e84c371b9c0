package command

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
)

// Dated sends the copies of a call that sets something anew, so that none of them undoes a newer call. Each copy says before which
// time of the server it may be executed, and does nothing after that. So no copy takes effect when Over has returned: the server
// has replied to it, or its time has passed. It adds nothing to Redis, and takes it that the server's clock is not set back.
type Dated struct {
	began   time.Time       // set once
	within  time.Duration   // set once
	closing <-chan struct{} // set once: closed when the client closes
	doubt   atomic.Int64    // until when a copy without a reply may be executed, counted from began
}

// NewDated returns a Dated for a call that begins now, and gives up after within or when closing is closed.
func NewDated(within time.Duration, closing <-chan struct{}) *Dated {
	return &Dated{began: time.Now(), within: within, closing: closing}
}

// copyLives is for how long a copy can be executed, at most. A call that was repeated returns so much later.
const copyLives = time.Second

// errOutdated is the error of a call whose copies took longer to the server than copyLives, again and again.
var errOutdated = errors.New("command arrived too late and was not executed")

// Send calls f, which sends a copy that may be executed before a time of the server, in ms. f returns 0 if the copy was
// executed, and else the server's time; then Send calls f again. The first copy says 0, so it only asks for the time. When
// ctx ends, which is that of the caller, or the client closes, Send calls f no more. No two Sends run at once.
func (d *Dated) Send(ctx context.Context, f func(before int64) (now int64, err error)) error {
	doubt := d.doubt.Load()
	for before := int64(0); ; {
		now, err := f(before)
		if err == nil || !retry.FaultOf(err).MayHaveRun() {
			d.doubt.Store(doubt)
		}
		if err != nil || now == 0 {
			return err
		}
		passed := time.Since(d.began)
		life := min(copyLives, d.within-passed)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.closing:
			return lock.ErrClosed
		default:
		}
		if life <= 0 {
			return errOutdated
		}
		before = now + life.Milliseconds()*99/100 // the clocks run within 1 % of each other
		d.doubt.Store(int64(passed + life))
	}
}

// Over waits until no copy of the call can take effect any more. It ends with ctx.
func (d *Dated) Over(ctx context.Context) {
	if left := time.Duration(d.doubt.Load()) - time.Since(d.began); left > 0 {
		Sleep(ctx, left)
	}
}
