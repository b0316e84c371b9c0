package registry

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
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

// A record names the clients of the first holders, and its age comes from the TTL of its key. A key without a TTL, because it
// was changed manually, has the maximum age.
func TestNote(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.Mini, _ *redistest.Proxy, _ *Entry, _ *record) {
		const key = "record"
		rdb := m.Client(t)
		if _, err := ReadNote(t.Context(), rdb, key); !rueidis.IsRedisNil(err) {
			t.Errorf("no record: %v", err)
		}
		for _, holders := range []int{1, MostNoted + 1} {
			if err := rdb.Do(t.Context(), SetNote(rdb, key, "alice", slices.Repeat([]string{id + ":7"}, holders))).Error(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			n, err := ReadNote(t.Context(), rdb, key)
			if err != nil || n.By != "alice" || !slices.Equal(n.From, slices.Repeat([]string{id}, min(holders, MostNoted))) || n.Age != time.Hour || time.Since(n.At) != time.Hour {
				t.Errorf("%+v, %v", n, err)
			}
		}
		if err := rdb.Do(t.Context(), rdb.B().Persist().Key(key).Build()).Error(); err != nil {
			t.Fatal(err)
		}
		if n, err := ReadNote(t.Context(), rdb, key); err != nil || n.Age != NoteKept {
			t.Errorf("%+v, %v", n, err)
		}
		if err := m.Set(key, "alice"); err != nil {
			t.Fatal(err)
		}
		if n, err := ReadNote(t.Context(), rdb, key); err == nil {
			t.Errorf("text that is no record: %+v", n)
		}
		m.Del(key)
	})
}

// A record is about the clients that it names by their ID or name. If it is full, it may be about any client.
func TestNote_about(t *testing.T) {
	for name, test := range map[string]struct {
		from  []string
		about bool
	}{
		"its ID":      {[]string{"other", id}, true},
		"its name":    {[]string{"other", "billing"}, true},
		"another one": {[]string{"other"}, false},
		"no name":     {[]string{""}, false},
		"not full":    {slices.Repeat([]string{"other"}, MostNoted-1), false},
		"full":        {slices.Repeat([]string{"other"}, MostNoted), true},
	} {
		called := "billing"
		if name == "no name" {
			called = ""
		}
		if about := (Note{From: test.from}).About(id, called); about != test.about {
			t.Errorf("%s: %t", name, about)
		}
	}
}

func TestNote_operator(t *testing.T) {
	for want, n := range map[string]Note{
		"alice":                       {By: "alice"},
		"alice: a deploy":             {By: "alice", Reason: "a deploy"},
		"a b: c d":                    {By: "a\nb", Reason: "c\x7fd"},
		"an operator":                 {},
		strings.Repeat("x", MostText): {By: strings.Repeat("x", 1000)},
	} {
		if by := n.Operator(); by != want {
			t.Errorf("%+v: %q", n, by)
		}
	}
}
