package demo

import (
	"bytes"
	"testing"

	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/terminal"
)

func TestScreen(t *testing.T) {
	t.Parallel()
	show := func(s *screen) {
		s.title("Title")
		s.line("a %s", "line")
		s.progress("%d of 2", 1)
		s.progress("%d of 2", 1)
		s.progress("%d of 2", 2)
		s.claim(claimf(true, "100 %% yes"))
		s.claim(claimf(false, "no"))
	}
	for _, test := range []struct {
		name     string
		terminal bool
		want     string
	}{
		{"a pipe", false, "\nTitle\n  a line\n  ✓ 100 % yes\n  ✗ no\n"},
		{"a terminal", true, "\n\x1b[1mTitle\x1b[0m\n" +
			"  \x1b[2ma line\x1b[0m\n" +
			"\r\x1b[K  … 1 of 2" +
			"\r\x1b[K  … 2 of 2" +
			"\r\x1b[K  \x1b[32m✓\x1b[0m 100 % yes\n" +
			"  \x1b[31m✗\x1b[0m no\n"},
	} {
		var b bytes.Buffer
		show(&screen{w: &b, terminal: test.terminal, paint: terminal.Paint(test.terminal)})
		if b.String() != test.want {
			t.Errorf("%s: %q, want %q", test.name, &b, test.want)
		}
	}
	var b bytes.Buffer
	held := (&screen{w: &b, terminal: true, paint: true}).behind()
	show(held)
	if b.Len() > 0 {
		t.Errorf("before reveal: %q", &b)
	}
	held.reveal()
	held.progress("%d of 2", 2)
	held.line("more")
	if want := "\n\x1b[1mTitle\x1b[0m\n  \x1b[2ma line\x1b[0m\n  \x1b[32m✓\x1b[0m 100 % yes\n  \x1b[31m✗\x1b[0m no\n\r\x1b[K  … 2 of 2\r\x1b[K  \x1b[2mmore\x1b[0m\n"; b.String() != want {
		t.Errorf("revealed: %q, want %q", &b, want)
	}
}
