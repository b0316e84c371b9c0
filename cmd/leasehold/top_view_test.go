package main

import (
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// The commands of the view run concurrently with it, while it handles the next keys. What a command reads was decided when the view returned it.
func TestTopView_commandsReadNothingThatKeysChange(t *testing.T) {
	a, err := admin.New(redistest.Start(t).Client(t))
	if err != nil {
		t.Fatal(err)
	}
	v := &topView{ctx: t.Context(), admin: a, survey: newSurvey(a, admin.Query{}, time.Millisecond), chosen: "orders"}
	looks := v.Init()().(tea.BatchMsg)[0]
	v.Update(tea.KeyPressMsg{Code: tea.KeyEnter})
	if v.open != "orders" {
		t.Fatalf("Enter opened %q", v.open)
	}
	first, ok := looks().(looked)
	if !ok || first.err != nil || first.open != "" {
		t.Errorf("the look from before Enter asked for %q, %v", first.open, first.err)
	}
	_, wait := v.Update(first)
	_, look := v.Update(wait())
	second, ok := look().(looked)
	if !ok || second.err != nil || second.open != "orders" || second.text == "" {
		t.Errorf("the look after Enter asked for %q, %v", second.open, second.err)
	}
}

// Until the holders of a lock are known, y has no effect, and any other key cancels the force-unlock.
func TestTopView_unlockBeforeTheHoldersAreKnown(t *testing.T) {
	v := &topView{unlock: &unlocking{name: "orders", sure: true}}
	if cmd := v.decide(tea.KeyPressMsg{Code: 'y', Text: "y"}); cmd != nil || v.unlock == nil {
		t.Error("y has an effect")
	}
	if v.decide(tea.KeyPressMsg{Code: tea.KeyEnter}); v.unlock != nil || v.says != "orders: nothing was changed" {
		t.Errorf("Enter does not cancel: %q", v.says)
	}
}

// While the confirmation is open, the details show the holders that y removes, regardless of later looks.
func TestTopView_unlockRemovesWhatIsDisplayed(t *testing.T) {
	s := redistest.Start(t)
	a, err := admin.New(s.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	const first, second = "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1", "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:2"
	s.Do(t, "HSET", "orders", first, "1")
	v := &topView{ctx: t.Context(), admin: a, chosen: "orders"}
	v.key(tea.KeyPressMsg{Code: tea.KeyEnter})
	_, find := v.Update(tea.KeyPressMsg{Code: 'u', Text: "u"})
	v.Update(find())
	s.Do(t, "DEL", "orders")
	s.Do(t, "HSET", "orders", second, "1")
	v.Update(v.inspect("orders")())
	v.Update(looked{open: "orders", text: v.detail("orders")})
	if v.unlock == nil || len(v.unlock.owners) != 1 || v.unlock.owners[0] != first || !strings.Contains(v.text, first) {
		t.Errorf("the question is about %+v, and the details show %s", v.unlock, v.text)
	}
}

// Rows that share a name, as a lock and a wait group can, do not stop the cursor.
func TestTopView_rowsWithOneName(t *testing.T) {
	locks := make([]admin.Lock, 3)
	for i, kind := range []admin.Kind{admin.Plain, admin.WaitGroup, admin.Plain} {
		locks[i].Name, locks[i].Kind = "job", kind
	}
	locks[2].Name = "next"
	v := &topView{width: 80, height: 24, sort: "name", seen: looked{Surveyed: admin.Surveyed{Locks: locks, Complete: true}, at: time.Now()}, full: map[string]time.Duration{}}
	v.View()
	for range 2 {
		v.Update(tea.KeyPressMsg{Code: tea.KeyDown})
	}
	if v.chosen != "next" {
		t.Errorf("after two keys, the cursor is on %q", v.chosen)
	}
	v.Update(tea.KeyPressMsg{Code: tea.KeyUp})
	if rows := strings.Split(v.View().Content, "\n")[3:5]; strings.Contains(rows[0], topChosen) || !strings.Contains(rows[1], topChosen) {
		t.Errorf("the cursor is not on the wait group: %q", rows)
	}
}

// The head says if there may be more locks than top shows, because those that it omits may be the oldest ones.
func TestTopView_more(t *testing.T) {
	seen := looked{Surveyed: admin.Surveyed{Locks: make([]admin.Lock, 3), Complete: true}, at: time.Now()}
	const note = "; shows at most 20,000: pass a PATTERN"
	v := &topView{seen: seen}
	if head := v.head(); strings.Contains(head, note) {
		t.Errorf("with all locks: %s", head)
	}
	v.seen.More = true
	if head := v.head(); !strings.Contains(head, note) {
		t.Errorf("with some of the locks: %s", head)
	}
}

// In any width, the list has LEASE and WAITING of each lock, and no line is wider than the terminal.
func TestTopView_fits(t *testing.T) {
	const uuid = "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b"
	locks := []admin.Lock{
		{Holding: 3, Waiting: 12, State: lock.State{Lease: 1234 * time.Hour, Mode: lock.Read, Holders: []lock.Holder{{Since: time.Now().Add(-47 * time.Minute), Client: lock.Client{ID: uuid, Name: "payments-reconciliation-worker", Host: "payments-reconciliation-worker-7d9f8b6c5d-x2x9k"}}}}},
		{Holding: 1, State: lock.State{Lease: -1, Mode: lock.Exclusive, Holders: []lock.Holder{{Client: lock.Client{ID: uuid}}}}},
	}
	locks[0].Name, locks[0].Kind = "production:payments:reconciliation:batch:2026-11-26:倉庫", admin.ReadWrite
	locks[1].Name, locks[1].Kind = "x", admin.Semaphore
	for width := 46; width < 250; width++ {
		v := &topView{width: width, height: 24, sort: "name", seen: looked{Surveyed: admin.Surveyed{Locks: locks, Complete: true}, at: time.Now()}, full: map[string]time.Duration{}}
		lines := strings.Split(ansi.Strip(v.View().Content), "\n")
		for _, line := range lines {
			if n := ansi.StringWidth(line); n > width {
				t.Fatalf("%d columns on a terminal of %d: %q", n, width, line)
			}
		}
		for i, want := range []string{"LEASE", "m", "no expiry"} {
			if !strings.Contains(lines[2+i], want) {
				t.Fatalf("%d columns: no %q in %q", width, want, lines[2+i])
			}
		}
		for i, want := range []string{"WAITING", "12", "0"} {
			if fields := strings.Fields(lines[2+i]); fields[len(fields)-1] != want {
				t.Fatalf("%d columns: no %q in %q", width, want, lines[2+i])
			}
		}
	}
}

// Both ends of a text stay, whatever its characters are.
func TestMiddle(t *testing.T) {
	for text, want := range map[string]string{
		"orders:42":         "orders:42",
		"orders:42:invoice": "order…oice",
		"倉庫倉庫倉庫倉庫":          "倉庫…倉庫",
	} {
		if got := middle(text, 10); got != want {
			t.Errorf("%q is shortened to %q, want %q", text, got, want)
		}
	}
}
