package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/leasehold-go/leasehold/admin"
)

// topView is top on a terminal with a keyboard. The program calls its methods one at a time. The commands that they return run beside
// them, so these read only what never changes.
type topView struct {
	ctx   context.Context // set once, as the next four
	admin *admin.Admin
	query admin.Query
	every time.Duration
	wide  bool

	width, height int
	sort          string
	filter        string
	typing        bool // the filter
	paused        bool
	chosen        string // the name of the lock that the cursor is on
	first         int    // the row at the top

	seen looked                   // the latest look
	full map[string]time.Duration // the longest lease that was seen, by name
	open string                   // the lock whose details are shown; empty if there is none
	text string                   // its details
	stop error                    // why the program ends
}

// looked is the outcome of a look.
type looked struct {
	at    time.Time
	locks []admin.Lock
	err   error
	open  string // the lock that text is about
	text  string
}

// tick is when the times on the screen are counted on.
type tick time.Time

// due is when the next look is to be made.
type due time.Time

// topOrder has the orders, in which s leads from one to the next.
var topOrder = []string{"since", "waiting", "lease", "name"}

// follow shows the locks until the user quits, or ctx ends.
func (t *topView) follow(in, out *os.File) error {
	t.full = make(map[string]time.Duration)
	t.width, t.height = 80, 24
	_, err := tea.NewProgram(t, tea.WithContext(t.ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler()).Run()
	switch {
	case t.ctx.Err() != nil:
		return context.Cause(t.ctx)
	case t.stop != nil:
		return t.stop
	}
	return err
}

// Init begins with a look.
func (t *topView) Init() tea.Cmd { return tea.Batch(t.look(), beat()) }

func beat() tea.Cmd {
	return tea.Tick(250*time.Millisecond, func(now time.Time) tea.Msg { return tick(now) })
}

// look asks Redis for the locks, and for the details of the one that is open now.
func (t *topView) look() tea.Cmd {
	open := t.open
	return func() tea.Msg {
		l := looked{open: open}
		l.locks, l.err = all(t.ctx, t.admin, t.query)
		if l.err == nil && open != "" {
			l.text = t.detail(open)
		}
		l.at = time.Now()
		return l
	}
}

// detail asks Redis for the details of a lock.
func (t *topView) detail(name string) string {
	found, err := t.admin.Inspect(t.ctx, name)
	var b bytes.Buffer
	if err == nil {
		err = detail(found).table(&b)
	}
	if err != nil {
		return oneLine(explain(noLock(name, err)))
	}
	return b.String()
}

// again makes the next look in a while.
func (t *topView) again() tea.Cmd {
	return tea.Tick(t.every, func(now time.Time) tea.Msg { return due(now) })
}

// Update takes what happened: a key, a look, another size.
func (t *topView) Update(m tea.Msg) (tea.Model, tea.Cmd) {
	switch m := m.(type) {
	case tea.WindowSizeMsg:
		t.width, t.height = m.Width, m.Height
	case tick:
		return t, beat()
	case due:
		return t, t.look()
	case looked:
		if !t.paused {
			t.take(m)
		}
		return t, t.again()
	case inspected:
		if m.open == t.open {
			t.text = m.text
		}
	case tea.KeyPressMsg:
		return t, t.key(m)
	}
	return t, nil
}

// take shows a look from now on.
func (t *topView) take(l looked) {
	if l.err != nil && !incomplete(l.err) {
		t.seen.err = l.err
		return
	}
	t.seen = l
	full := make(map[string]time.Duration, len(l.locks))
	for _, k := range l.locks {
		full[k.Name] = max(t.full[k.Name], k.Lease)
	}
	t.full = full
	if l.open != "" && l.open == t.open {
		t.text = l.text
	}
}

// inspected is what is known of the lock whose details are shown.
type inspected struct{ open, text string }

// key does what a key says.
func (t *topView) key(m tea.KeyPressMsg) tea.Cmd {
	name := m.String()
	if name == "ctrl+c" {
		t.stop = &exitError{exitInterrupted, errors.New("interrupted")}
		return tea.Quit
	}
	if t.typing {
		switch name {
		case "enter":
			t.typing = false
		case "esc":
			t.typing, t.filter = false, ""
		case "backspace":
			if letters := []rune(t.filter); len(letters) > 0 {
				t.filter = string(letters[:len(letters)-1])
			}
		default:
			t.filter += m.Text
		}
		return nil
	}
	switch name {
	case "q":
		return tea.Quit
	case "esc", "backspace", "left":
		if t.open == "" {
			t.filter = ""
		}
		t.open, t.text = "", ""
	case "p", "space":
		t.paused = !t.paused
	}
	if t.open != "" {
		return nil
	}
	switch name {
	case "s":
		t.sort = topOrder[(slices.Index(topOrder, t.sort)+1)%len(topOrder)]
	case "/":
		t.typing = true
	case "up", "k":
		t.move(-1)
	case "down", "j":
		t.move(1)
	case "pgup":
		t.move(-t.room())
	case "pgdown":
		t.move(t.room())
	case "home", "g":
		t.move(-1 << 30)
	case "end", "G":
		t.move(1 << 30)
	case "enter", "right":
		if t.chosen != "" {
			t.open, t.text = t.chosen, "…"
			return t.inspect(t.chosen)
		}
	}
	return nil
}

// inspect asks for the details of a lock at once.
func (t *topView) inspect(name string) tea.Cmd {
	return func() tea.Msg { return inspected{name, t.detail(name)} }
}

// rows returns the locks to show, in order.
func (t *topView) rows() (found []admin.Lock) {
	text := strings.ToLower(t.filter)
	for _, l := range t.seen.locks {
		if strings.Contains(strings.ToLower(l.Name), text) {
			found = append(found, l)
		}
	}
	slices.SortStableFunc(found, byWhat[t.sort])
	return found
}

// move moves the cursor by so many rows.
func (t *topView) move(by int) {
	found := t.rows()
	if len(found) == 0 {
		return
	}
	at := slices.IndexFunc(found, func(l admin.Lock) bool { return l.Name == t.chosen })
	t.chosen = found[min(max(at+by, 0), len(found)-1)].Name
}

// room is how many rows there is room for.
func (t *topView) room() int { return max(t.height-5, 1) }

// The colours of the view, of 256.
const (
	topHead   = "\x1b[1m"
	topQuiet  = "\x1b[38;5;245m"
	topChosen = "\x1b[7m"
	topGood   = "\x1b[38;5;36m"
	topLate   = "\x1b[38;5;172m"
	topLow    = "\x1b[38;5;203m"
)

// View returns the screen.
func (t *topView) View() tea.View {
	lines := []string{t.head(), ""}
	if t.open != "" {
		lines = append(lines, strings.Split(strings.TrimSuffix(t.text, "\n"), "\n")...)
	} else {
		lines = append(lines, t.list()...)
	}
	lines = lines[:min(len(lines), max(t.height-1, 1))]
	for len(lines) < t.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines, topQuiet+t.keys()+plain)
	for i, line := range lines {
		lines[i] = ansi.Truncate(line, t.width, "")
	}
	v := tea.NewView(strings.Join(lines, "\n"))
	v.AltScreen = true
	v.WindowTitle = "leasehold top"
	return v
}

func (t *topView) keys() string {
	switch {
	case t.typing:
		return "type a part of the name · Enter keeps it · Esc drops it"
	case t.open != "":
		return "Esc back · p pause · q quit"
	}
	return "↑↓ choose · Enter details · s sort · / filter · p pause · q quit"
}

// head says how many locks there are, or what is wrong.
func (t *topView) head() string {
	if t.seen.err != nil {
		return topLow + time.Now().Format(time.TimeOnly) + "  " + oneLine(explain(t.seen.err)) + plain
	}
	if t.seen.at.IsZero() {
		return topQuiet + "asking" + plain
	}
	text := topHead + time.Now().Format(time.TimeOnly) + "  " + sum(t.query.Kind, t.seen.locks) + plain
	text += topQuiet + "  by " + t.sort
	if t.filter != "" || t.typing {
		text += ", with " + shown(t.filter)
	}
	if t.paused {
		text += ", paused as of " + short(time.Since(t.seen.at)) + " ago"
	}
	return text + plain
}

// list returns a line for each lock that there is room for.
func (t *topView) list() []string {
	found := t.rows()
	at := slices.IndexFunc(found, func(l admin.Lock) bool { return l.Name == t.chosen })
	if at < 0 {
		at, t.chosen = 0, ""
		if len(found) > 0 {
			t.chosen = found[0].Name
		}
	}
	t.first = min(max(t.first, at-t.room()+1, 0), max(at, 0))
	heads := []string{"NAME", "KIND", "HOLDER", "ASKED", "LEASE", "WAITING"}
	if unheld(t.query.Kind) {
		heads = []string{"NAME", "KIND", "STATE"}
	} else if t.wide {
		heads = append(heads, "COUNT", "PID", "LABEL", "OWNER")
	}
	table := [][]string{heads}
	levels := []string{topQuiet}
	for _, l := range found[t.first:min(len(found), t.first+t.room())] {
		if unheld(l.Kind) {
			table, levels = append(table, []string{shown(l.Name), string(l.Kind), stateOf(l)}), append(levels, "")
			continue
		}
		h, holder := holderOf(l)
		bar, level := t.bar(l)
		row := []string{shown(l.Name), kindOf(l), holder, ago(h.Since), bar, fmt.Sprint(l.Waiting)}
		if t.wide {
			row = append(row, fmt.Sprint(h.Count), pid(h.Client), label(h.Client), h.Owner)
		}
		table, levels = append(table, row), append(levels, level)
	}
	widths := make([]int, len(heads))
	for _, row := range table {
		for i, cell := range row {
			widths[i] = max(widths[i], ansi.StringWidth(cell))
		}
	}
	var lines []string
	for i, row := range table {
		colour := ""
		switch {
		case i == 0:
			colour = topQuiet
		case t.first+i-1 == at:
			colour = topChosen
		}
		line := colour
		for j, cell := range row {
			padded := cell + strings.Repeat(" ", widths[j]-ansi.StringWidth(cell)+2)
			if j == 4 && i > 0 && colour == "" {
				padded = levels[i] + padded + plain
			}
			line += padded
		}
		lines = append(lines, line+plain)
	}
	return lines
}

// bar shows what is left of a lease, and in which colour.
func (t *topView) bar(l admin.Lock) (text, colour string) {
	switch {
	case !l.Locked():
		return leaseOf(l), topQuiet
	case l.Lease < 0:
		return left(l.Lease), topLow
	}
	now := max(l.Lease-time.Since(t.seen.at), 0)
	if t.paused {
		now = l.Lease
	}
	const cells = 10
	part := 0.0
	if full := t.full[l.Name]; full > 0 {
		part = float64(now) / float64(full)
	}
	colour = topGood
	switch {
	case part < .25:
		colour = topLow
	case part < .55:
		colour = topLate
	}
	n := min(int(part*cells+.999), cells)
	return strings.Repeat("━", n) + strings.Repeat("·", cells-n) + " " + short(now), colour
}
