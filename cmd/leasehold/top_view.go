package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/terminal"
	"github.com/leasehold-go/leasehold/lock"
)

// topView is top on a terminal with a keyboard. The program calls its methods one at a time. The commands that they return run
// concurrently, so they read only fields that never change.
type topView struct {
	ctx    context.Context // set once, like the next four
	admin  *admin.Admin
	query  admin.Query
	survey *survey
	wide   bool

	width, height int
	sort          string
	filter        string
	typing        bool // the user is typing the filter
	paused        bool
	chosen        string     // the name of the lock that the cursor is on
	chosenKind    admin.Kind // and its type: a wait group can have the same name as a lock
	first         int        // the row at the top

	seen     looked       // the latest look
	found    []admin.Lock // the rows of the list
	foundFor order
	full     map[string]time.Duration // the longest lease observed, by name
	open     string                   // the lock whose details are shown; empty if there is none
	text     string                   // its details
	line     int                      // the line of the details at the top
	below    int                      // number of its lines below the screen
	unlock   *unlocking               // the open confirmation; nil if there is none
	says     string                   // result of a force-unlock, until the next key
	stop     error                    // why the program ends
}

// unlocking is the confirmation of a force-unlock.
type unlocking struct {
	name   string
	owners []string // when u was pressed; no other owner loses the lock. nil until the server has replied
	noun   string   // the noun for them
	reason string
	sure   bool // the reason is complete, and the next key confirms or cancels
}

// looked is the result of a look.
type looked struct {
	admin.Surveyed
	at   time.Time
	rest time.Duration // until the next look
	err  error
	open string // the lock that text is about
	text string
}

// tick is the message to update the times on the screen.
type tick time.Time

// due is the message to make the next look.
type due time.Time

// topOrder has the sort orders, in the sequence in which the s key selects them.
var topOrder = []string{"since", "waiting", "lease", "name"}

// follow shows the locks until the user quits, or ctx is canceled.
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

// look reads the locks, and the details of the one that is open now.
func (t *topView) look() tea.Cmd {
	open := t.open
	return func() tea.Msg {
		l := looked{open: open}
		l.Surveyed, l.rest, l.err = t.survey.look(t.ctx)
		if l.err == nil && open != "" {
			l.text = t.detail(open)
		}
		l.at = time.Now()
		return l
	}
}

// detail reads the details of a lock.
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

// again schedules the next look after rest.
func (t *topView) again(rest time.Duration) tea.Cmd {
	return tea.Tick(rest, func(now time.Time) tea.Msg { return due(now) })
}

// Update handles a message, such as a key, the result of a look, or a new size.
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
		return t, t.again(m.rest)
	case inspected:
		if m.open == t.open && t.unlock == nil {
			t.text = m.text
		}
	case found:
		if t.unlock != nil && t.unlock.name == m.name {
			t.unlock.owners, t.unlock.noun, t.text = m.owners, m.noun, m.text
		}
	case unlocked:
		t.unlock, t.says = nil, string(m)
		return t, t.inspect(t.open)
	case tea.PasteMsg:
		t.insert(m.Content)
	case tea.KeyPressMsg:
		return t, t.key(m)
	}
	return t, nil
}

// insert adds text to what is being typed, without control characters, which pasted text can contain.
func (t *topView) insert(text string) {
	text = strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return -1
	}, text)
	switch {
	case t.typing:
		t.filter += text
	case t.unlock != nil && !t.unlock.sure:
		t.unlock.reason += text
	}
}

// erase removes the last character of a text.
func erase(text string) string {
	letters := []rune(text)
	return string(letters[:max(len(letters)-1, 0)])
}

// take makes l the displayed look.
func (t *topView) take(l looked) {
	if l.err != nil && !incomplete(l.err) {
		t.seen.err = l.err
		return
	}
	t.seen = l
	full := make(map[string]time.Duration, len(l.Locks))
	for _, k := range l.Locks {
		full[k.Name] = max(t.full[k.Name], k.Lease)
	}
	t.full = full
	if l.open != "" && l.open == t.open && t.unlock == nil {
		t.text = l.text
	}
}

// inspected is the result of reading the lock whose details are shown.
type inspected struct{ open, text string }

// key handles a key.
func (t *topView) key(m tea.KeyPressMsg) tea.Cmd {
	name := m.String()
	t.says = ""
	switch {
	case name == "ctrl+c":
		t.stop = &exitError{exitInterrupted, errors.New("interrupted")}
		return tea.Quit
	case name == "ctrl+z":
		return tea.Exec(stopped{}, nil)
	case t.unlock != nil:
		return t.decide(m)
	case t.typing:
		switch name {
		case "enter":
			t.typing = false
		case "esc":
			t.typing, t.filter = false, ""
		case "backspace":
			t.filter = erase(t.filter)
		case "up", "down", "pgup", "pgdown":
			t.move(t.step(name))
		default:
			t.insert(m.Text)
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
	case "u":
		if t.open == "" {
			t.show(t.chosen)
		}
		if t.open != "" {
			t.unlock = &unlocking{name: t.open}
			return t.find(t.open)
		}
	case "s":
		if t.open == "" {
			t.sort = topOrder[(slices.Index(topOrder, t.sort)+1)%len(topOrder)]
		}
	case "/":
		t.typing = t.open == ""
	case "enter", "right":
		if t.open == "" && t.chosen != "" {
			t.show(t.chosen)
			return t.inspect(t.chosen)
		}
	default:
		if by := t.step(name); t.open == "" {
			t.move(by)
		} else {
			t.line = max(t.line+by, 0) // View limits it to the last line
		}
	}
	return nil
}

// step returns the number of lines by which a key moves.
func (t *topView) step(name string) int {
	switch name {
	case "up", "k":
		return -1
	case "down", "j":
		return 1
	case "pgup":
		return -t.room()
	case "pgdown":
		return t.room()
	case "home", "g":
		return -1 << 30
	case "end", "G":
		return 1 << 30
	}
	return 0
}

// show opens the details of a lock.
func (t *topView) show(name string) { t.open, t.text, t.line = name, "…", 0 }

// found has the owners that would lose a lock, and the details that show them. The details do not change while the confirmation is open,
// so that the user agrees to what is displayed.
type found struct {
	name   string
	owners []string
	noun   string
	text   string
}

// find reads which owners would lose a lock.
func (t *topView) find(name string) tea.Cmd {
	return func() tea.Msg {
		l, err := t.admin.Inspect(t.ctx, name)
		if err != nil {
			return unlocked(oneLine(explain(noLock(name, err))))
		}
		owners, err := ownersOf(l, "")
		if err != nil {
			return unlocked(err.Error())
		}
		var b bytes.Buffer
		_ = detail(l).table(&b) // writing to a Buffer never fails
		return found{name, owners, nounOf(l.Holders), b.String()}
	}
}

// unlocked is the result of a force-unlock.
type unlocked string

// decide handles a key while the confirmation is open: first the reason, and then y or any other key.
func (t *topView) decide(m tea.KeyPressMsg) tea.Cmd {
	u := t.unlock
	switch name := m.String(); {
	case u.sure && u.owners == nil && name == "y": // the owners are not known yet
	case u.sure && name == "y":
		t.unlock = nil
		return func() tea.Msg {
			r, err := t.admin.ForceUnlockOwners(t.ctx, u.name, u.owners, u.reason)
			text, err := outcomeOf(u.name, u.owners, r, err)
			if err != nil {
				text = strings.TrimPrefix(text+"\n"+oneLine(explain(err)), "\n")
			}
			return unlocked(text)
		}
	case u.sure || name == "esc":
		t.unlock, t.says = nil, shown(u.name)+": nothing was changed"
	case name == "enter":
		u.sure = true
	case name == "backspace":
		u.reason = erase(u.reason)
	default:
		t.insert(m.Text)
	}
	return nil
}

// stopped is what runs while the shell has the terminal: this process is stopped until the shell continues its job.
type stopped struct{}

// Run stops this process.
func (stopped) Run() error { return suspend() }

// SetStdin does nothing: a stopped process does not read.
func (stopped) SetStdin(io.Reader) {}

// SetStdout does nothing.
func (stopped) SetStdout(io.Writer) {}

// SetStderr does nothing.
func (stopped) SetStderr(io.Writer) {}

// inspect reads the details of a lock immediately.
func (t *topView) inspect(name string) tea.Cmd {
	return func() tea.Msg { return inspected{name, t.detail(name)} }
}

// rows returns the locks to show, in order.
func (t *topView) rows() []admin.Lock {
	if of := (order{t.seen.at, t.filter, t.sort}); of != t.foundFor { // sorting thousands of locks for each frame would be most of the work of top
		t.found, t.foundFor = nil, of
		for _, l := range t.seen.Locks {
			if matches(l, t.filter) {
				t.found = append(t.found, l)
			}
		}
		slices.SortStableFunc(t.found, byWhat[t.sort])
	}
	return t.found
}

// order is what the rows of the list depend on.
type order struct {
	at           time.Time // of the look
	filter, sort string
}

// matches reports whether text occurs in the name of a lock, or in the name, host, label or ID of the client of a holder.
func matches(l admin.Lock, text string) bool {
	text = strings.ToLower(text)
	has := func(part string) bool { return strings.Contains(strings.ToLower(part), text) }
	return has(l.Name) || slices.ContainsFunc(l.Holders, func(h lock.Holder) bool {
		return has(h.Client.Name) || has(h.Client.Host) || has(h.Client.Label) || has(h.Client.ID)
	})
}

// move moves the cursor by this number of rows.
func (t *topView) move(by int) {
	found := t.rows()
	if len(found) == 0 {
		return
	}
	t.choose(found[min(max(t.cursor()+by, 0), len(found)-1)])
}

// choose moves the cursor to a lock.
func (t *topView) choose(l admin.Lock) { t.chosen, t.chosenKind = l.Name, l.Kind }

// cursor returns the row that the cursor is on, or -1 if there is none. A look can find that a lock is of another type.
func (t *topView) cursor() int {
	found := t.rows()
	at := slices.IndexFunc(found, func(l admin.Lock) bool { return l.Name == t.chosen && l.Kind == t.chosenKind })
	if at < 0 {
		at = slices.IndexFunc(found, func(l admin.Lock) bool { return l.Name == t.chosen })
	}
	return at
}

// room returns the number of rows of the list, or lines of the details, that fit on the screen.
func (t *topView) room() int {
	if t.open != "" {
		return max(t.height-2-len(t.foot()), 1)
	}
	return max(t.height-3-len(t.foot()), 1)
}

// The colors of the view, from a palette of 256.
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
		lines = append(lines, t.details()...)
	} else {
		lines = append(lines, t.list()...)
	}
	foot := t.foot()
	above := max(t.height-len(foot), 1)
	lines = lines[:min(len(lines), above)]
	for len(lines) < above {
		lines = append(lines, "")
	}
	lines = append(lines, foot...)
	for i, line := range lines {
		lines[i] = ansi.Truncate(line, t.width, "")
	}
	v := tea.NewView(strings.Join(lines, "\n"))
	v.AltScreen = true
	v.WindowTitle = "leasehold top"
	return v
}

// firstCell matches the first column of the details.
var firstCell = regexp.MustCompile(`^\S* {2,}`)

// wrapped returns the lines of a text on the terminal. A long line continues on the next one, in the same column. It is broken only between words,
// so that a host can be copied, unless a word is wider than the terminal.
func (t *topView) wrapped(text string) (lines []string) {
	width := max(t.width, 8)
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		first := firstCell.FindString(line)
		indent := strings.Repeat(" ", min(len(first), width/2))
		now := first
		for i, word := range strings.Split(line[len(first):], " ") {
			if i > 0 && ansi.StringWidth(now+" "+word) > width {
				lines, now = append(lines, now), indent
			} else if i > 0 {
				now += " "
			}
			now += word
			for ansi.StringWidth(now) > width {
				part := ansi.Truncate(now, width, "")
				lines, now = append(lines, part), indent+now[len(part):]
			}
		}
		lines = append(lines, now)
	}
	return lines
}

// details returns the lines of the details that fit on the screen.
func (t *topView) details() []string {
	lines := t.wrapped(t.text)
	t.line = min(t.line, max(len(lines)-t.room(), 0))
	end := min(len(lines), t.line+t.room())
	t.below = len(lines) - end
	return lines[t.line:end]
}

// foot returns the lines at the bottom: the result of a force-unlock, the open confirmation, and the keys.
func (t *topView) foot() (lines []string) {
	for _, line := range t.wrapped(t.says) {
		lines = append(lines, topHead+line+terminal.Plain)
	}
	if u := t.unlock; u != nil {
		question := takeOf(u.name, len(u.owners), len(u.owners), cmp.Or(u.noun, "holder"))
		text := question + "? Reason (optional): " + u.reason + "▏"
		if u.sure {
			text = question + "? [y/N]"
		}
		for _, line := range t.wrapped(text) {
			lines = append(lines, topLate+line+terminal.Plain)
		}
	}
	for _, line := range t.wrapped(t.keys()) {
		lines = append(lines, topQuiet+line+terminal.Plain)
	}
	return lines
}

func (t *topView) keys() string {
	switch {
	case t.unlock != nil && t.unlock.sure:
		return "y force-unlock · any other key cancel"
	case t.unlock != nil:
		return "Enter continue · Esc cancel"
	case t.typing:
		return "type part of a name, holder, host or label · Enter apply · Esc clear"
	case t.open != "" && t.below > 0:
		return fmt.Sprintf("↑↓ scroll, %d lines below · u force-unlock · Esc back · p pause · q quit", t.below)
	case t.open != "":
		return "↑↓ scroll · u force-unlock · Esc back · p pause · q quit"
	}
	return "↑↓ select · Enter details · / filter · s sort · u force-unlock · p pause · q quit"
}

// head describes the number of locks, or the error.
func (t *topView) head() string {
	if t.seen.err != nil {
		return topLow + time.Now().Format(time.TimeOnly) + "  " + oneLine(explain(t.seen.err)) + terminal.Plain
	}
	if t.seen.at.IsZero() {
		return topQuiet + "connecting" + terminal.Plain
	}
	text := topHead + time.Now().Format(time.TimeOnly) + "  " + sum(t.query.Kind, t.seen.Surveyed) + terminal.Plain
	text += topQuiet + "  by " + t.sort
	if t.filter != "" || t.typing {
		text += ", filter " + shown(t.filter)
	}
	if t.paused {
		text += ", paused as of " + short(time.Since(t.seen.at)) + " ago"
	}
	return text + terminal.Plain
}

// list returns a line for each lock that fits on the screen.
func (t *topView) list() []string {
	found := t.rows()
	at := t.cursor()
	if at < 0 {
		at, t.chosen = 0, ""
		if len(found) > 0 {
			t.choose(found[0])
		}
	}
	t.first = min(max(t.first, at-t.room()+1, 0), max(at, 0))
	list := table{lockHeads(t.wide)}
	if unheld(t.query.Kind) {
		list = table{stateHeads}
	}
	levels := []string{topQuiet}
	for _, l := range found[t.first:min(len(found), t.first+t.room())] {
		if unheld(l.Kind) {
			list, levels = append(list, []string{shown(l.Name), string(l.Kind), stateOf(l)}), append(levels, "")
			continue
		}
		bar, level := t.bar(l)
		list, levels = append(list, lockCells(l, bar, t.wide)), append(levels, level)
	}
	list, widths := list.fit(t.width)
	lease := slices.Index(list[0], "LEASE")
	var lines []string
	for i, row := range list {
		switch {
		case i == 0:
			lines = append(lines, topQuiet+line(row, widths)+terminal.Plain)
		case t.first+i-1 == at:
			lines = append(lines, topChosen+line(row, widths)+terminal.Plain)
		case lease < 0:
			lines = append(lines, line(row, widths))
		default:
			n := lease + 1
			lines = append(lines, line(row[:lease], widths)+levels[i]+line(row[lease:n], widths[lease:])+terminal.Plain+line(row[n:], widths[n:]))
		}
	}
	return lines
}

// bar returns the remaining lease as a bar, and its color.
func (t *topView) bar(l admin.Lock) (text, color string) {
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
	cells := 10
	if t.width < 100 {
		cells = 4
	}
	part := 0.0
	if full := t.full[l.Name]; full > 0 {
		part = float64(now) / float64(full)
	}
	color = topGood
	switch {
	case part < .25:
		color = topLow
	case part < .55:
		color = topLate
	}
	n := min(int(part*float64(cells)+.999), cells)
	return strings.Repeat("━", n) + strings.Repeat("·", cells-n) + " " + short(now), color
}
