package session

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// identity is the client in the owner strings of its holds.
type identity struct {
	id     string        // set once: the uuid in every owner string
	number atomic.Uint64 // the latest number that no later owner has
}

// newOwner returns an owner string that never was before, for an acquisition that is asked for
// from now on. A command that is still under way for an earlier acquisition cannot touch it.
//
// Its number is the clock in µs and ten random bits, so the string shows since when the owner asks, and cannot be
// guessed. The mark comes before the number: it tells a plain lock from a fair one, whose hashes are
// alike otherwise (luascripts.FairOwner). An owner of a semaphore
// that wants so many permits has so many numbers, of which the string has the first, and
// how many they are. No owner has the number after these: so the permits tell where one owner ends.
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

// askedSince returns since when an owner asks, as its string tells; the zero time if the
// string is not one of ours.
func askedSince(owner string) time.Time {
	client, number, _ := strings.Cut(owner, ":")
	number, _, _ = strings.Cut(number, ":") // behind it are the permits
	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil || len(client) < 15 || client[14] != '7' { // Redisson's have a uuid of version 4
		return time.Time{}
	}
	return time.UnixMicro(int64(n >> 10))
}
