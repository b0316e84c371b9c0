package watchdog_test

import (
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/watchdog"
)

// A lease is transferred to another subject if it is watched, is renewed, and has enough time left.
func TestHand(t *testing.T) {
	for name, c := range map[string]struct {
		alive, over bool
		atLeast     time.Duration
		want        bool
	}{
		"renewed":         {alive: true, atLeast: lease / 2, want: true},
		"not renewed":     {atLeast: lease / 2},
		"over":            {alive: true, over: true},
		"too little left": {alive: true, atLeast: lease},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
				_, l := s.watch(w, lease, c.alive)
				next := &subject{}
				if c.over {
					l.Lose(watchdog.ErrGone)
				}
				if got := l.Hand(next, c.atLeast); got != c.want {
					t.Errorf("%v, want %v", got, c.want)
				}
				l.Lose(watchdog.ErrGone)
				if _, cause := next.lost(); errors.Is(cause, watchdog.ErrGone) != c.want {
					t.Errorf("the next subject got the cause %v", cause)
				}
			})
		})
	}
}
