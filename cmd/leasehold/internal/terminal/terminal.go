// Package terminal writes to a terminal: colors, and the progress of a long operation.
package terminal

import (
	"os"

	"golang.org/x/term"
)

// The colors and styles of text.
const (
	Bold  = "\x1b[1m"
	Dim   = "\x1b[2m"
	Red   = "\x1b[31m"
	Green = "\x1b[32m"
	Plain = "\x1b[0m" // ends all others
)

// EraseRight erases the line from the cursor on.
const EraseRight = "\x1b[K"

// Is reports whether f, a reader or a writer, is a terminal.
func Is(f any) bool {
	file, ok := f.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// Paint colors text if it is true.
type Paint bool

// PaintFor returns the Paint for w: colors are for a terminal, unless NO_COLOR is set.
func PaintFor(w any) Paint { return Paint(Is(w) && os.Getenv("NO_COLOR") == "") }

// In returns text in this color.
func (p Paint) In(color, text string) string {
	if !p {
		return text
	}
	return color + text + Plain
}
