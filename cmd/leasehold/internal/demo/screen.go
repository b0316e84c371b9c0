package demo

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/terminal"
)

const eraseLine = "\r" + terminal.EraseRight

// screen is the output of the demo: lines, and on a terminal also colors and a
// line at the bottom that changes in place. It is safe for concurrent use.
type screen struct {
	terminal bool
	paint    terminal.Paint
	away     *terminal.Progress // shows the bottom line elsewhere if w is not a terminal; nil if it is not shown

	mu     sync.Mutex
	w      io.Writer
	held   *bytes.Buffer // what is written before reveal; nil if everything is shown immediately
	status string        // the bottom line
}

func newScreen(w io.Writer) *screen {
	return &screen{w: w, terminal: terminal.Is(w), paint: terminal.PaintFor(w)}
}

// behind returns a screen on the same writer that shows nothing before reveal.
func (s *screen) behind() *screen {
	return &screen{w: s.w, terminal: s.terminal, paint: s.paint, away: s.away, held: &bytes.Buffer{}}
}

// reveal shows what was written so far. From then on, everything is shown immediately.
func (s *screen) reveal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held != nil {
		_, _ = s.held.WriteTo(s.w)
		s.held = nil
	}
}

func (s *screen) title(text string) { s.print("\n%s\n", s.paint.In(terminal.Bold, text)) }

func (s *screen) line(format string, args ...any) {
	s.print("  %s\n", s.paint.In(terminal.Dim, fmt.Sprintf(format, args...)))
}

func (s *screen) claim(c claim) {
	if c.ok {
		s.print("  %s %s\n", s.paint.In(terminal.Green, "✓"), c.text)
	} else {
		s.print("  %s %s\n", s.paint.In(terminal.Red, "✗"), c.text)
	}
}

// progress changes the bottom line of a terminal. The next line replaces it.
func (s *screen) progress(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := fmt.Sprintf("  … "+format, args...)
	switch {
	case s.held != nil || status == s.status:
	case s.terminal:
		io.WriteString(s.w, eraseLine+status)
		s.status = status
	case s.away != nil:
		s.away.Show(status)
	}
}

func (s *screen) print(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held != nil {
		fmt.Fprintf(s.held, format, args...)
		return
	}
	if s.status != "" {
		io.WriteString(s.w, eraseLine)
		s.status = ""
	}
	if s.away != nil {
		s.away.Erase()
	}
	fmt.Fprintf(s.w, format, args...)
}
