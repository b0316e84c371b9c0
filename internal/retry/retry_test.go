package retry

import (
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	b := Backoff{Most: time.Second}
	if !b.Fresh() || b.Grown() {
		t.Error("it begins grown")
	}
	var sum time.Duration
	for i := range 20 {
		d := b.Next()
		if d < 5*time.Millisecond || d > time.Second {
			t.Errorf("pause %d is %v", i, d)
		}
		sum += d
	}
	if sum < 5*time.Second || b.Fresh() || !b.Grown() {
		t.Errorf("20 pauses take %v: they do not grow", sum)
	}
	b.Reset()
	if d := b.Next(); d > 10*time.Millisecond {
		t.Errorf("the first pause after Reset is %v", d)
	}
}
