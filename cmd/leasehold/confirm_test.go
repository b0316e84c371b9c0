package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// The message after an unanswered question (Ctrl-D, Ctrl-C) begins on a new line. The user's Enter ends the line of an answer.
func TestAgreed_endsTheLine(t *testing.T) {
	t.Parallel()
	no, interrupt := errors.New("no"), errors.New("interrupted")
	canceled, cancel := context.WithCancelCause(t.Context())
	cancel(interrupt)
	open, w := io.Pipe()
	defer w.Close()
	for name, test := range map[string]struct {
		ctx  context.Context
		in   io.Reader
		want string
		err  error
	}{
		"an answer": {t.Context(), strings.NewReader("y\n"), "Go on? [y/N] ", nil},
		"Ctrl-D":    {t.Context(), strings.NewReader(""), "Go on? [y/N] \n", no},
		"Ctrl-C":    {canceled, open, "Go on? [y/N] \n", interrupt},
	} {
		var out strings.Builder
		if err := agreed(test.ctx, test.in, &out, "Go on", no); !errors.Is(err, test.err) || out.String() != test.want {
			t.Errorf("%s: %v, %q", name, err, &out)
		}
	}
}
