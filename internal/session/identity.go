package session

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/luascripts"
)

// identity generates the owner strings of one client.
type identity struct {
	id     string        // set once: the UUID in every owner string
	number atomic.Uint64 // later owners have larger numbers
}

// newOwner returns a unique owner string for an acquisition that begins at now. A command still in flight for an
// earlier acquisition cannot affect it.
//
// The number is the time in µs and ten random bits. The string therefore shows when the owner began to wait, and is hard
// to guess. The mark before the number distinguishes a plain lock from a fair lock (luascripts.FairOwner).
//
// A semaphore owner reserves one number per permit. The string has the first number and the count. The number after
// the last one stays unused, so that adjacent permit numbers always belong to the same owner.
func (i *identity) newOwner(now time.Time, permits int, mark string) string {
	n := uint64(now.UnixMicro())<<10 | rand.Uint64N(1<<10)
	for {
		last := i.number.Load()
		if n = max(n, last+1); i.number.CompareAndSwap(last, n+uint64(permits)) {
			break
		}
	}
	var b [64]byte
	text := strconv.AppendUint(append(append(append(b[:0], i.id...), ':'), mark...), n, 10)
	if permits > 0 {
		text = strconv.AppendInt(append(text, ':'), int64(permits), 10)
	}
	return string(text)
}

// askedSince returns the time in an owner string at which the owner began to wait. It returns the zero time for
// owner strings of other libraries.
func askedSince(owner string) time.Time {
	client, number, _ := strings.Cut(owner, ":")
	number, _, _ = strings.Cut(number, ":") // cuts off the permit count
	if unmarked, lingers := luascripts.Lingers(owner); lingers {
		_, number, _ = strings.Cut(unmarked, ":")
	}
	n, err := strconv.ParseUint(number, 10, 63)
	// mutant: border: no UUID is that short
	if err != nil || len(client) < 15 || client[14] != '7' { // Redisson uses version 4 UUIDs
		return time.Time{}
	}
	return time.UnixMicro(int64(n >> 10))
}
