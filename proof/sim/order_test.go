package sim

import (
	"testing"
	"time"
)

func TestOutOfOrder(t *testing.T) {
	began := time.Now()
	ms := func(n int) time.Time { return began.Add(time.Duration(n) * time.Millisecond) }
	waited := func(asked, queued int, token uint64) turn {
		return turn{asked: ms(asked), queued: ms(queued), token: token, waits: true}
	}
	for _, test := range []struct {
		name  string
		turns []turn
		want  int
	}{
		{"in order", []turn{waited(1, 2, 7), waited(3, 4, 8)}, 0},
		{"one that asked later is served first", []turn{waited(1, 2, 8), waited(3, 4, 7)}, 1},
		{"one that asked later finds the lock free", []turn{waited(1, 2, 8), {asked: ms(3), token: 7}}, 1},
		{"one asked later, when the other may not have waited yet", []turn{waited(1, 4, 8), waited(3, 5, 7)}, 0},
		{"at the same instant", []turn{waited(1, 3, 8), waited(3, 5, 7)}, 0},
		{"one that did not wait has no turn", []turn{{asked: ms(1), token: 8}, waited(3, 4, 7)}, 0},
		{"two are served before a third", []turn{waited(1, 2, 9), waited(3, 4, 7), waited(3, 5, 8)}, 2},
	} {
		if got := outOfOrder(test.turns); len(got) != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}
