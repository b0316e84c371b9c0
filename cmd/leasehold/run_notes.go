package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
)

// notes are what run says on standard error: trouble, and with --verbose what
// happens. It never writes to standard output, which is the command's.
type notes struct {
	quiet, verbose bool

	mu sync.Mutex
	w  io.Writer
}

// trouble says something that the user should know.
func (n *notes) trouble(format string, args ...any) {
	if n.quiet {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintln(n.w, "leasehold:", oneLine(fmt.Sprintf(format, args...)))
}

// happens says what is only for those who asked.
func (n *notes) happens(format string, args ...any) {
	if n.verbose {
		n.trouble(format, args...)
	}
}

// logger returns a logger whose warnings are trouble.
func (n *notes) logger() *slog.Logger { return slog.New(warnings{n, ""}) }

// warnings is the handler of that logger.
type warnings struct {
	notes *notes
	attrs string
}

// Enabled reports true for warnings and errors.
func (h warnings) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle says the message and its attributes.
func (h warnings) Handle(_ context.Context, r slog.Record) error {
	attrs := h.attrs
	r.Attrs(func(a slog.Attr) bool {
		attrs += ", " + a.String()
		return true
	})
	if attrs != "" {
		attrs = " (" + strings.TrimPrefix(attrs, ", ") + ")"
	}
	h.notes.trouble("%s%s", r.Message, attrs)
	return nil
}

// WithAttrs returns a handler that says attrs too.
func (h warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		h.attrs += ", " + a.String()
	}
	return h
}

// WithGroup returns h: there are no groups in a line.
func (h warnings) WithGroup(string) slog.Handler { return h }
