package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
)

// The exit codes of the tool. docs/operate/tool.md lists them.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitInterrupted = 130 // as a shell reports a command that SIGINT ended

	// Only for run. All other exit codes of run are the command's own.
	exitNotObtained = 75 // EX_TEMPFAIL of sysexits.h: another owner has the lock
	exitLost        = 123
	exitMaxHold     = 124 // as with timeout(1)
	exitBroken      = 125 // leasehold itself failed, as with timeout(1) and env(1)
	exitCannotRun   = 126
	exitNotFound    = 127
)

// exitError is an error with an exit code. Without err, it was reported already, or
// there is nothing to report.
type exitError struct {
	code int
	err  error
}

// Error returns the text of err.
func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

// Unwrap returns err.
func (e *exitError) Unwrap() error { return e.err }

// usage marks err as a usage error.
func usage(err error) error { return &exitError{exitUsage, err} }

// usagef returns a usage error.
func usagef(format string, args ...any) error { return usage(fmt.Errorf(format, args...)) }

// report writes err to stderr in one line, and returns the exit code.
func report(ctx context.Context, stderr io.Writer, cmd *cobra.Command, err error) int {
	if err == nil {
		return exitOK
	}
	var e *exitError
	if !errors.As(err, &e) {
		e = &exitError{exitFailure, err}
		if ctx.Err() != nil {
			e = &exitError{codeOf(context.Cause(ctx)), errors.New("interrupted")}
		}
	}
	if e.err == nil {
		return e.code
	}
	fmt.Fprintln(stderr, "leasehold:", oneLine(explain(e.err)))
	if e.code == exitUsage {
		fmt.Fprintf(stderr, "See %s --help.\n", cmd.CommandPath())
	}
	return e.code
}

// warn writes a message to stderr that is not the error of the command.
func warn(stderr io.Writer, format string, args ...any) {
	fmt.Fprintf(stderr, "leasehold: "+format+"\n", args...)
}

// codeOf returns the exit code of a command whose context was canceled with this cause.
func codeOf(cause error) int {
	if i := (interrupted{}); errors.As(cause, &i) {
		return i.code()
	}
	return exitInterrupted
}

// credentials matches the user and password of a URL.
var credentials = regexp.MustCompile(`://[^\s"]*@`)

// oneLine joins text into one line, and removes possible passwords and control characters. Errors of the library
// have no passwords, but a user can pass a URL where something else is expected. The placeholders that advice
// contains remain.
func oneLine(text string) string {
	text = strings.TrimPrefix(text, "leasehold: ")
	text = credentials.ReplaceAllStringFunc(text, func(part string) string {
		if part == "://user:password@" || part == "://:password@" {
			return part
		}
		return "://***@"
	})
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}
