package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
)

// notes writes the messages of run to standard error: trouble, and with --verbose also
// events. Standard output belongs to the command, so notes never writes to it.
type notes struct {
	quiet, verbose bool

	mu sync.Mutex
	w  io.Writer
}

// trouble writes a message that the user should see.
func (n *notes) trouble(format string, args ...any) {
	if n.quiet {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintln(n.w, "leasehold:", oneLine(fmt.Sprintf(format, args...)))
}

// happens writes a message only with --verbose.
func (n *notes) happens(format string, args ...any) {
	if n.verbose {
		n.trouble(format, args...)
	}
}

// logger returns a logger that writes its warnings and errors as trouble.
func (n *notes) logger() *slog.Logger { return slog.New(warnings{n, ""}) }

// warnings is the handler of that logger.
type warnings struct {
	notes *notes
	attrs string
}

// Enabled reports true for warnings and errors.
func (h warnings) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle writes the message and its attributes.
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

// WithAttrs returns a handler that also writes attrs.
func (h warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		h.attrs += ", " + a.String()
	}
	return h
}

// WithGroup returns h, as a line has no groups.
func (h warnings) WithGroup(string) slog.Handler { return h }
