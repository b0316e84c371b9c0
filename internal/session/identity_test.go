package session

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/owner"
)

// Goroutines make owners at the same time. Each of these has a number of its own, though the clock was set back, and so only the numbers
// tell them apart.
func TestNewOwner_atOnce(t *testing.T) {
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

// No one who knows when an owner asked can guess its string: it has ten random bits.
func TestNewOwner_random(t *testing.T) {
	different := make(map[string]bool)
	now := time.Unix(1_800_000_000, 0)
	for range 200 {
		i := &identity{id: "01a202b8-4bbe-7c35-bc27-051edccf1eeb"}
		o := i.newOwner(now, 0, "")
		different[o] = true
		if since := askedSince(o); !since.Equal(now) {
			t.Fatalf("%s asks since %v, want %v", o, since, now)
		}
	}
	if len(different) < 100 {
		t.Errorf("200 clients have %d different owners of the same instant", len(different))
	}
}

// An owner has its permits behind its number, and says since when it asks all the same. One without permits has none.
func TestNewOwner_text(t *testing.T) {
	i := &identity{id: owner.NewClient()}
	now := time.Unix(1_800_000_000, 0)
	for permits, parts := range map[int]int{0: 2, 1: 3, 1000: 3} {
		o := i.newOwner(now, permits, "")
		words := strings.Split(o, ":")
		if len(words) != parts || words[0] != i.id || permits > 0 && words[2] != strconv.Itoa(permits) {
			t.Errorf("%d permits: %s", permits, o)
		}
		if late := askedSince(o).Sub(now); late < 0 || late > 10*time.Microsecond {
			t.Errorf("%s is %v late", o, late)
		}
	}
}

// A string that is none of ours tells no time, whatever its number is.
func TestOwners_strange(t *testing.T) {
	ours := owner.NewClient()
	for _, o := range []string{
		"short:1800000000000000", "01a202b8-4bbe-:1800000000000000", "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1800000000000000",
		ours + ":18446744073709551615", ours + ":9223372036854775808", ours + ":many", ours + "::3",
	} {
		if since := askedSince(o); !since.IsZero() {
			t.Errorf("%q asks since %v", o, since)
		}
	}
}
