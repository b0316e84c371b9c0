package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/terminal"
	"golang.org/x/term"
)

// table is a list for people. The first row has the heads. All rows have the same number of cells.
type table [][]string

// The columns that make room on a narrow terminal, by their heads. Cells of the columns in soft are shortened. If that is not enough,
// the columns in spare are omitted, in this order, because the details of a lock have their content.
var (
	soft  = []string{"NAME", "HOLDER", "HOST", "LABEL", "STATE"}
	spare = []string{"OWNER", "KIND", "REQUESTED"}
)

// leastCell is the minimum width of a shortened cell. If there is less room, a column is omitted.
const leastCell = 12

// gap is the space between two columns.
const gap = 2

// columnsOf returns the maximum width of a list on w. It is 0, for no limit, off a terminal: a program that reads the list needs all of it.
func columnsOf(w io.Writer, wide bool) int {
	if f, ok := w.(*os.File); ok && !wide {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil { // fails if f is not a terminal
			return width
		}
	}
	return 0
}

// fit fits the table to this number of terminal columns (0 for no limit). It returns the table and the width of each of its columns.
func (t table) fit(columns int) (table, []int) {
	widths, fits := t.widths(columns)
	for _, head := range spare {
		if fits {
			break
		}
		if i := slices.Index(t[0], head); i >= 0 {
			t = t.without(i)
			widths, fits = t.widths(columns)
		}
	}
	if columns <= 0 {
		return t, widths
	}
	short := make(table, len(t))
	for r, row := range t {
		for i, cell := range row {
			short[r] = append(short[r], middle(cell, widths[i]))
		}
	}
	return short, widths
}

// widths returns the width of each column of the table for this number of terminal columns, and whether each has its minimum width.
func (t table) widths(columns int) (widths []int, fits bool) {
	widths = make([]int, len(t[0]))
	for _, row := range t {
		for i, cell := range row {
			widths[i] = max(widths[i], ansi.StringWidth(cell))
		}
	}
	if columns <= 0 {
		return widths, true
	}
	room := columns - gap*(len(widths)-1)
	var yield []int
	for i, head := range t[0] {
		if slices.Contains(soft, head) {
			yield = append(yield, i)
		} else {
			room -= widths[i]
		}
	}
	slices.SortFunc(yield, func(a, b int) int { return widths[a] - widths[b] }) // wide columns get the room that narrow ones leave
	fits = true
	for n, i := range yield {
		share := max(room/(len(yield)-n), 1)
		fits = fits && share >= min(widths[i], leastCell)
		widths[i] = min(widths[i], share)
		room -= widths[i]
	}
	return widths, fits && room >= 0
}

// without returns the table without a column.
func (t table) without(column int) table {
	rest := make(table, len(t))
	for r, row := range t {
		rest[r] = slices.Delete(slices.Clone(row), column, column+1)
	}
	return rest
}

// write writes the table, fitted to this number of terminal columns.
func (t table) write(w io.Writer, columns int) error {
	t, widths := t.fit(columns)
	var b strings.Builder
	for _, row := range t {
		b.WriteString(strings.TrimRight(line(row, widths), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// line returns a row, each cell as wide as its column.
func line(row []string, widths []int) string {
	var b strings.Builder
	for i, cell := range row {
		b.WriteString(padded(cell, widths[i]+gap))
	}
	return b.String()
}

func padded(text string, width int) string {
	return text + strings.Repeat(" ", max(width-ansi.StringWidth(text), 0))
}

// middle removes the middle of a text that is wider than this number of columns. The end stays: the names of Kubernetes pods differ there.
func middle(text string, columns int) string {
	whole := ansi.StringWidth(text)
	if whole <= columns {
		return text
	}
	end := (columns - 1) / 2
	return ansi.Truncate(text, columns-1-end, "") + "…" + ansi.TruncateLeft(text, whole-end, "")
}

// titled writes the name of a lock, what it is, and its details.
func titled(w io.Writer, name, what, details string) error {
	_, err := fmt.Fprintf(w, "%s: %s\n%s", terminal.PaintFor(w).In(terminal.Bold, shown(name)), what, details)
	return err
}
