// Package retry says when to try again: after which refusals, and after which pause.
package retry

import (
	"math/rand/v2"
	"strings"
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

// passing are the codes of the error replies of a server that will accept the same
// command later. Our scripts give them before their first write or not at all.
var passing = map[string]bool{
	"LOADING": true, "TRYAGAIN": true, "CLUSTERDOWN": true, "MASTERDOWN": true,
	"READONLY": true, "BUSY": true, "MOVED": true, "ASK": true, "REDIRECT": true,
}

// Passes reports whether an error reply has one of those codes. The code need not be
// the first word: some servers put their own before an error inside a script, and
// those before Redis 7 keep the dash by which the protocol marks an error.
func Passes(reply string) bool {
	for word := range strings.FieldsSeq(reply) {
		if passing[strings.TrimPrefix(word, "-")] {
			return true
		}
	}
	return false
}
