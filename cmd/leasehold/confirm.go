package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/terminal"
)

// confirm asks the user to confirm a change of the lock called name.
func confirm(ctx context.Context, in io.Reader, out io.Writer, name, question string) error {
	if !terminal.Is(in) {
		return usagef("%s: not a terminal, nothing was changed; use --yes", shown(name))
	}
	return agreed(ctx, in, out, question, fmt.Errorf("%s: nothing was changed", shown(name)))
}

// agreed asks the user a question, and returns no unless the answer is yes.
func agreed(ctx context.Context, in io.Reader, out io.Writer, question string, no error) error {
	fmt.Fprintf(out, "%s? [y/N] ", question)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n') // without a line the answer is empty
		answer <- line
	}()
	select {
	case line := <-answer:
		if !strings.HasSuffix(line, "\n") { // Ctrl-D
			fmt.Fprintln(out)
		}
		if s := strings.ToLower(strings.TrimSpace(line)); s == "y" || s == "yes" {
			return nil
		}
		return no
	case <-ctx.Done():
		fmt.Fprintln(out)
		return context.Cause(ctx)
	}
}
