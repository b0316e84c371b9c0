package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Any arguments are either accepted, or rejected with a message and the exit code for wrong arguments. The commands
// themselves do not run: they connect to nothing, and start nothing.
func FuzzArguments(f *testing.F) {
	for _, args := range []string{
		"", "ls", "ls -o json a*", "run --wait 5s -E 75 orders -- make all", "run a", "run -- a", "unlock a --yes --operator alice --reason x", "inspect", "watch a b c", "top --interval -1s", "--help", "version -o yaml",
		"bench --time 1e9s", "doctor --for plain,fair --slow x", "serve --host a,b --listen :0", "completion bash", "ls -u redis://:x@h -u", "help run", "run --permits=99999999999999999999 a -- b", "-- -- --", "ls --no-such",
	} {
		f.Add(strings.ReplaceAll(args, " ", "\n"))
	}
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, "\n")
		if strings.HasPrefix(args[0], "__") {
			return // completions for a shell, which may connect
		}
		root, ran := leasehold(), false
		for _, c := range root.Commands() {
			c.RunE = func(*cobra.Command, []string) error { ran = true; return nil }
		}
		var stdout, stderr bytes.Buffer
		code := execute(t.Context(), root, args, &stdout, &stderr)
		switch {
		case ran && (code != exitOK || stderr.Len() > 0):
			t.Errorf("%q: exit code %d, and %q", args, code, &stderr)
		case !ran && code == exitOK && stdout.Len() == 0:
			t.Errorf("%q: exit code 0, and no word", args)
		case code != exitOK && (code != exitUsage || stderr.Len() == 0):
			t.Errorf("%q: exit code %d with %q, want %d and words", args, code, &stderr, exitUsage)
		}
	})
}
