package registry

import (
	"strings"
	"testing"
	"unicode"

	"github.com/leasehold-go/leasehold/internal/keys"
)

// The operator in a message takes one line of a log, whatever was published, and ParseTaken parses the messages of
// Taken.
func FuzzTaken(f *testing.F) {
	for _, m := range []string{"", "taken", "taken ", "taken 1", "taken 1 alice", "taken 1 a\nb\x7f\u0085", "taken 1 " + strings.Repeat("é", 200), "taken 1 \xff", "took 1 alice"} {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, message := range []string{text, "taken " + text, "taken 7 " + text} {
			number, by, ok := ParseTaken(message)
			switch {
			case !ok:
			case number == "" || strings.Contains(number, " ") || !strings.HasPrefix(message, "taken "+number):
				t.Errorf("%q: the number is %q", message, number)
			case by == "" || len(by) > MostText || strings.ContainsFunc(by, unicode.IsControl):
				t.Errorf("%q: the operator is %q", message, by)
			}
		}
		channel, message := Taken(id+":7", text)
		if number, _, ok := ParseTaken(message); channel != keys.Client(id) || !ok || number != "7" {
			t.Errorf("%q at %q is read as %q, %v", message, channel, number, ok)
		}
	})
}

// The operator and the number that a client parses from a message.
func TestParseTaken(t *testing.T) {
	for message, want := range map[string]struct {
		number, by string
		ok         bool
	}{
		"taken 7 alice":                               {"7", "alice", true},
		"taken 7 Åse at the console":                  {"7", "Åse at the console", true},
		"taken 7 a\nb\x7f\u0080\u009fc\u00a0\u00ff d": {"7", "a b   c\u00a0\u00ff d", true},
		"taken 7 \x1b[2J":                             {"7", " [2J", true},
		"taken 7 ":                                    {"7", "an operator", true},
		"taken 7":                                     {"7", "an operator", true},
		"taken 7 " + strings.Repeat("x", 1000):        {"7", strings.Repeat("x", MostText), true},
		"taken  alice":                                {"", "alice", false},
		"taken":                                       {"", "", false},
		"took 7 alice":                                {"", "", false},
		"":                                            {"", "", false},
	} {
		if number, by, ok := ParseTaken(message); number != want.number || by != want.by || ok != want.ok {
			t.Errorf("%q: %q, %q, %v", message, number, by, ok)
		}
	}
	if _, message := Taken(id+":7", strings.Repeat("x", 1000)); message != "taken 7 "+strings.Repeat("x", MostText) {
		t.Errorf("the message has %d bytes", len(message))
	}
}
