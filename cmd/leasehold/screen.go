package main

import (
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

// screen is where the demo writes: lines for everyone, and on a terminal also
// colours and a line at the bottom that changes in place. It is safe for
// concurrent use.
type screen struct {
	terminal bool // that wants colours

	mu     sync.Mutex
	w      io.Writer
	status string // the bottom line
	err    error  // the first of writing lines
}

func newScreen(w io.Writer) *screen {
	f, ok := w.(*os.File)
	return &screen{
		w:        w,
		terminal: ok && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "",
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

// progress changes the bottom line of a terminal. The next line takes its place.
func (s *screen) progress(format string, args ...any) {
	if !s.terminal {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if status := fmt.Sprintf("  … "+format, args...); status != s.status {
		io.WriteString(s.w, eraseLine+status)
		s.status = status
	}
}

func (s *screen) print(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status != "" {
		io.WriteString(s.w, eraseLine)
		s.status = ""
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
	if !s.terminal {
		return text
	}
	return colour + text + plain
}
