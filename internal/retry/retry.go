// Package retry classifies the errors of commands, and computes the pauses between attempts.
package retry

import (
	"math/rand/v2"
	"time"

	"github.com/redis/rueidis"
)

// Backoff is the pause before the next attempt. It doubles from 10 ms to Most, with jitter so that
// clients do not retry at the same time. Its user must guard it.
type Backoff struct {
	Most time.Duration // the longest pause

	last time.Duration // zero before the first pause
}

// Next returns the pause before the next attempt.
func (b *Backoff) Next() time.Duration {
	b.last = min(max(2*b.last, 10*time.Millisecond), b.Most)
	return b.last/2 + rand.N(b.last/2+1)
}

// Reset restarts with short pauses.
func (b *Backoff) Reset() { b.last = 0 }

// Fresh reports whether there was no pause since the start or the last Reset.
func (b *Backoff) Fresh() bool { return b.last == 0 }

// Once returns a command about key that is sent once. rueidis would repeat a command that it recognizes as a read
// until the server replies, even after its caller has left, and closing the client would wait for it.
func Once(rdb rueidis.CoreClient, command, key string, args ...string) rueidis.Completed {
	return rdb.B().Arbitrary(command).Keys(key).Args(args...).Build()
}
