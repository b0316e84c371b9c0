package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/term"
)

const (
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	red   = "\x1b[31m"
	green = "\x1b[32m"
	plain = "\x1b[0m"

	eraseLine = "\r\x1b[K"
)

// screen is the output of the demo: lines, and on a terminal also colors and a
// line at the bottom that changes in place. It is safe for concurrent use.
type screen struct {
	terminal bool
	colours  bool      // a terminal, and NO_COLOR is not set
	away     *progress // shows the bottom line elsewhere if w is not a terminal; nil if it is not shown

	mu     sync.Mutex
	w      io.Writer
	held   *bytes.Buffer // what is written before reveal; nil if everything is shown immediately
	status string        // the bottom line
	err    error         // the first error of writing lines
}

func newScreen(w io.Writer) *screen {
	f, ok := w.(*os.File)
	terminal := ok && term.IsTerminal(int(f.Fd()))
	return &screen{w: w, terminal: terminal, colours: terminal && os.Getenv("NO_COLOR") == ""}
}

// behind returns a screen on the same writer that shows nothing before reveal.
func (s *screen) behind() *screen {
	return &screen{w: s.w, terminal: s.terminal, colours: s.colours, away: s.away, held: &bytes.Buffer{}}
}

// reveal shows what was written so far. From then on, everything is shown immediately.
func (s *screen) reveal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held != nil {
		_, s.err = s.held.WriteTo(s.w)
		s.held = nil
	}
}

func (s *screen) title(text string) { s.print("\n%s\n", s.in(bold, text)) }

func (s *screen) line(format string, args ...any) {
	s.print("  %s\n", s.in(dim, fmt.Sprintf(format, args...)))
}

func (s *screen) claim(c claim) {
	if c.ok {
		s.print("  %s %s\n", s.in(green, "✓"), c.text)
	} else {
		s.print("  %s %s\n", s.in(red, "✗"), c.text)
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
		s.away.show(status)
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
		s.away.erase()
	}
	if _, err := fmt.Fprintf(s.w, format, args...); s.err == nil {
		s.err = err
	}
}

// failed returns the first error of writing lines.
func (s *screen) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *screen) in(colour, text string) string {
	if !s.colours {
		return text
	}
	return colour + text + plain
}
