// Package retry says what an error means for a command and for the call that sent it, and after
// which pause to try again.
package retry

import (
	"math/rand/v2"
	"time"
)

// Backoff is the pause before the next try. It doubles from 10 ms to Most, and a
// random part keeps clients from coming back together. Its user guards it.
type Backoff struct {
	Most time.Duration // set once

	last time.Duration // zero before the first pause
}

// Next returns the pause before the next try.
func (b *Backoff) Next() time.Duration {
	b.last = min(max(2*b.last, 10*time.Millisecond), b.Most)
	return b.last/2 + rand.N(b.last/2+1)
}

// Reset makes the pauses short again.
func (b *Backoff) Reset() { b.last = 0 }

// Fresh reports whether there was no pause yet since the start or the last Reset.
func (b *Backoff) Fresh() bool { return b.last == 0 }

// Grown reports whether the pauses have reached Most.
func (b *Backoff) Grown() bool { return b.last >= b.Most }
