package retry

import (
	"testing"
	"time"
)

// Each pause is at least half of its maximum, which doubles from 10 ms to Most. Clients have
// different pauses.
func TestNext(t *testing.T) {
	longest := []time.Duration{10, 20, 40, 80, 160, 250, 250, 250} // in ms
	different := make(map[time.Duration]bool)
	for range 200 {
		b := Backoff{Most: 250 * time.Millisecond}
		if !b.Fresh() {
			t.Fatal("there was a pause")
		}
		for i, most := range longest {
			most *= time.Millisecond
			d := b.Next()
			if d < most/2 || d > most {
				t.Fatalf("pause %d is %v, want %v to %v", i, d, most/2, most)
			}
			if b.Fresh() {
				t.Fatalf("after pause %d there was none", i)
			}
			if i == 0 {
				different[d] = true
			}
		}
		if b.Reset(); !b.Fresh() {
			t.Fatal("Reset does not make the pauses short")
		}
	}
	if len(different) < 100 {
		t.Errorf("200 clients come back after %d different pauses", len(different))
	}
}

// Most may be less than 10 ms.
func TestNext_short(t *testing.T) {
	b := Backoff{Most: time.Millisecond}
	for range 100 {
		if d := b.Next(); d > b.Most {
			t.Fatalf("%v", d)
		}
	}
}
