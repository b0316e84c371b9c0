package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
)

// notes writes the messages of run to standard error: trouble, and with --verbose also
// events. Standard output belongs to the command, so notes never writes to it.
//
// A terminal (Ctrl-S) or a full pipe can block standard error. That must delay neither the
// signal to the command when the lock is lost nor a renewal, which logs here, so one
// goroutine writes, and messages that find the queue full are dropped.
type notes struct {
	quiet, verbose bool

	w     io.Writer
	queue chan func() // for that goroutine
}

// begin starts the goroutine that writes the messages to w until this process ends.
func (n *notes) begin(w io.Writer) {
	n.w, n.queue = w, make(chan func(), 100)
	go func() {
		for write := range n.queue {
			write()
		}
	}()
}

// trouble writes a message that the user should see.
func (n *notes) trouble(format string, args ...any) {
	if n.quiet {
		return
	}
	line := oneLine(fmt.Sprintf(format, args...))
	select {
	case n.queue <- func() { fmt.Fprintln(n.w, "leasehold:", line) }:
	default:
	}
}

// flush waits until the messages so far are written, for at most closeLimit.
func (n *notes) flush() {
	written, limit := make(chan struct{}), time.After(closeLimit)
	select {
	case n.queue <- func() { close(written) }:
		select {
		case <-written:
		case <-limit:
		}
	case <-limit:
	}
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

// WithGroup returns h, because a line has no groups.
func (h warnings) WithGroup(string) slog.Handler { return h }
