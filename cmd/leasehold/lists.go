package main

import (
	"fmt"
	"io"
	"strconv"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
)

// lockHeads returns the heads of a list of locks.
func lockHeads(wide bool) []string {
	heads := []string{"NAME", "KIND", "HOLDER", "REQUESTED", "LEASE", "WAITING"}
	if wide {
		heads = append(heads, "COUNT", "PID", "LABEL", "OWNER")
	}
	return heads
}

// lockCells returns the cells of a lock in such a list.
func lockCells(l admin.Lock, lease string, wide bool) []string {
	h, holder := holderOf(l)
	kind := kindOf(l)
	if l.Mode == lock.Read || l.Mode == lock.Write {
		kind += " " + string(l.Mode)
	}
	if len(l.Holders) > 0 && l.Holders[0].Lingers {
		kind += " (lingers)"
	}
	cells := []string{shown(l.Name), kind, holder, ago(h.Since), lease, waitingOf(l)}
	if wide {
		owner := "-"
		if h.Owner != "" {
			owner = shown(h.Owner)
		}
		cells = append(cells, strconv.Itoa(h.Count), pid(h.Client), label(h.Client), owner)
	}
	return cells
}

// waitingOf returns the number of waiters of a lock, and how many of them are gone. Redis may not store all waiters.
func waitingOf(l admin.Lock) string {
	text := strconv.Itoa(l.Waiting)
	if l.IsFull() {
		text += "+"
	}
	if l.Gone > 0 {
		text += fmt.Sprintf(", %d gone", l.Gone)
	}
	return text
}

// listLocks writes a line for each lock.
func listLocks(w io.Writer, columns int, locks []admin.Lock, wide bool) error {
	t := table{lockHeads(wide)}
	for _, l := range locks {
		t = append(t, lockCells(l, leaseOf(l), wide))
	}
	return t.write(w, columns)
}

// kindOf returns the type of a lock for a list.
func kindOf(l admin.Lock) string {
	if leads(l) {
		return string(admin.Election)
	}
	return string(l.Kind)
}

// leads reports whether the lock is held and has a leader value.
func leads(l admin.Lock) bool { return l.Locked() && l.Leader != nil }

// mostSaid is the maximum length of a leader value in a list.
const mostSaid = 40

// holderOf returns the first holder of a lock, and a description of its holders for a list. A latch has no holder, and
// neither does a wait group that has only lost workers.
func holderOf(l admin.Lock) (first lock.Holder, says string) {
	if len(l.Holders) > 0 {
		first = l.Holders[0]
	}
	switch {
	case l.Kind == admin.Latch:
		return first, fmt.Sprintf("count %d", l.Left)
	case len(l.Lost) > 0:
		return first, fmt.Sprintf("%d active, %d lost", l.Holding, len(l.Lost))
	case l.Holding > 1:
		return first, fmt.Sprintf("%s +%d", brief(first.Client), l.Holding-1)
	case leads(l):
		said := []rune(shown(l.Leader.Value))
		if len(said) > mostSaid {
			said = append(said[:mostSaid-1], '…')
		}
		return first, fmt.Sprintf("%s, value %s", brief(first.Client), string(said))
	}
	return first, brief(first.Client)
}

// leaseOf returns the remaining lease of a lock, or "-" if it is not held.
func leaseOf(l admin.Lock) string {
	if !l.Locked() {
		return "-"
	}
	return left(l.Lease)
}

func pid(c lock.Client) string {
	if c.PID == 0 {
		return "-"
	}
	return fmt.Sprint(c.PID)
}

func label(c lock.Client) string {
	if c.Label == "" {
		return "-"
	}
	return shown(c.Label)
}
