package session

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/owner"
)

// Goroutines create owners concurrently. Each owner has a unique number, even if the clock was moved backward, so that
// only the numbers differ.
func TestNewOwner_concurrent(t *testing.T) {
	const many, each, before = 4, 1_000_000, 1 << 62
	i := &identity{id: owner.NewClient()}
	i.number.Store(before)
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			for range each {
				i.newOwner(time.Unix(0, 0), 0, "")
			}
		})
	}
	all.Wait()
	if numbers := i.number.Load() - before; numbers != many*each {
		t.Errorf("%d owners have %d numbers", many*each, numbers)
	}
}

// Knowing when an owner was created does not suffice to guess its string: it has ten random bits.
func TestNewOwner_random(t *testing.T) {
	different := make(map[string]bool)
	now := time.Unix(1_800_000_000, 0)
	for range 200 {
		i := &identity{id: "01a202b8-4bbe-7c35-bc27-051edccf1eeb"}
		o := i.newOwner(now, 0, "")
		different[o] = true
		if since := askedSince(o); !since.Equal(now) {
			t.Fatalf("%s: got the time %v, want %v", o, since, now)
		}
	}
	if len(different) < 100 {
		t.Errorf("200 clients have %d different owners of the same instant", len(different))
	}
}

// The permit count follows the number of an owner, and the string still shows when the owner was created. An owner
// without permits has no count.
func TestNewOwner_text(t *testing.T) {
	i := &identity{id: owner.NewClient()}
	now := time.Unix(1_800_000_000, 0)
	for permits, parts := range map[int]int{0: 2, 1: 3, 1000: 3} {
		o := i.newOwner(now, permits, "")
		args := strings.Split(o, ":")
		if len(args) != parts || args[0] != i.id || permits > 0 && args[2] != strconv.Itoa(permits) {
			t.Errorf("%d permits: %s", permits, o)
		}
		if late := askedSince(o).Sub(now); late < 0 || late > 10*time.Microsecond {
			t.Errorf("%s is %v late", o, late)
		}
	}
}

// Owner strings of other libraries have no time, whatever their numbers are.
func TestOwners_ofOtherLibraries(t *testing.T) {
	ours := owner.NewClient()
	for _, o := range []string{
		"short:1800000000000000", "01a202b8-4bbe-:1800000000000000", "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1800000000000000",
		ours + ":18446744073709551615", ours + ":9223372036854775808", ours + ":many", ours + "::3",
	} {
		if since := askedSince(o); !since.IsZero() {
			t.Errorf("%q: got the time %v", o, since)
		}
	}
}
