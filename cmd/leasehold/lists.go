package main

import (
	"fmt"
	"io"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
)

// listLocks writes a line for each lock.
func listLocks(w io.Writer, locks []admin.Lock, wide bool) error {
	head := "NAME\tKIND\tMODE\tHOLDER\tASKED\tLEASE\tWAITING"
	if wide {
		head += "\tCOUNT\tPID\tLABEL\tOWNER"
	}
	var lines []string
	for _, l := range locks {
		h, holder := holderOf(l)
		line := fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%d", shown(l.Name), kindOf(l), l.Mode, holder, ago(h.Since), leaseOf(l), l.Waiting)
		if wide {
			line += fmt.Sprintf("\t%d\t%s\t%s\t%s", h.Count, pid(h.Client), label(h.Client), h.Owner)
		}
		lines = append(lines, line)
	}
	return rows(w, head, lines)
}

// kindOf returns what a list calls the kind of a lock.
func kindOf(l admin.Lock) string {
	if leads(l) {
		return string(admin.Election)
	}
	return string(l.Kind)
}

// leads reports whether somebody holds the lock and says something as a leader.
func leads(l admin.Lock) bool { return l.Locked() && l.Leader != nil }

// mostSaid is the number of letters of the word of a leader in a list.
const mostSaid = 40

// holderOf returns the first holder of a lock, and what a list says of its holders. A latch has none, and neither has a
// wait group of which only lost workers are left.
func holderOf(l admin.Lock) (first lock.Holder, says string) {
	if len(l.Holders) > 0 {
		first = l.Holders[0]
	}
	switch {
	case l.Kind == admin.Latch:
		return first, fmt.Sprintf("%d to count down", l.Left)
	case len(l.Lost) > 0:
		return first, fmt.Sprintf("%d at work, %d lost", l.Holding, len(l.Lost))
	case l.Holding > 1:
		return first, fmt.Sprintf("%s +%d", brief(first.Client), l.Holding-1)
	case leads(l):
		said := []rune(shown(l.Leader.Value))
		if len(said) > mostSaid {
			said = append(said[:mostSaid-1], '…')
		}
		return first, fmt.Sprintf("%s, says %s", brief(first.Client), string(said))
	}
	return first, brief(first.Client)
}

// leaseOf returns what is left of the lease of a lock, if anybody holds it.
func leaseOf(l admin.Lock) string {
	if !l.Locked() {
		return "-"
	}
	return left(l.Lease)
}

// listClients writes a line for each client.
func listClients(w io.Writer, clients []lock.Client, wide bool) error {
	head := "NAME\tHOST\tPID\tLABEL\tUP"
	if wide {
		head += "\tVERSION\tID"
	}
	var lines []string
	for _, c := range clients {
		line := fmt.Sprintf("%s\t%s\t%s\t%s\t%s", shown(c.Name), shown(c.Host), pid(c), label(c), ago(c.Started))
		if wide {
			line += fmt.Sprintf("\t%s\t%s", shown(c.Version), shown(c.ID))
		}
		lines = append(lines, line)
	}
	return rows(w, head, lines)
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
