package kindtest

import (
	"os"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// Rights tries whether the rights that the README asks for are enough for all
// that play does with two clients, and whether every command among them is needed
// for it. Play must therefore do all that can be done with the kind.
//
// heads are the words under which the README lists what the kind and its options
// need beside the rights that every kind needs, such as "NewLock".
func Rights(t *testing.T, heads []string, play func(t *testing.T, s *redistest.Server, a, b *client.Client)) {
	rights := readRights(t, "every")
	for _, head := range heads {
		rights = append(rights, readRights(t, head)...)
	}
	s := redistest.Start(t)
	s.Do(t, append([]string{"ACL", "SETUSER", "locks", "on", ">secret", "resetchannels", "-@all"}, rights...)...)
	as := func(o *rueidis.ClientOption) { o.Username, o.Password = "locks", "secret" }
	// The README lists the rights for names that begin with "orders:".
	options := append([]client.Option{client.WithKeyPrefix("orders:")}, Fast...)
	a, b := NewClient(t, s.Client(t, as), options...), NewClient(t, s.Client(t, as), options...)

	t.Run("on Redis", func(t *testing.T) { play(t, s, a, b) })
	denied := s.Do(t, "ACL", "LOG")
	if entries, _ := denied.ToArray(); len(entries) != 0 {
		t.Errorf("the README's rights do not cover: %s", denied.String())
	}
	for _, right := range rights {
		if command, ok := strings.CutPrefix(right, "+"); ok && s.CommandCalls(t, command) == 0 {
			t.Errorf("the README asks for %s, and nothing needed it", right)
		}
	}
}

// readRights returns the list in the README's paragraph "A user needs" that begins
// with head.
func readRights(t *testing.T, head string) (rights []string) {
	t.Helper()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "A user needs")
	_, rest, _ = strings.Cut(rest, "```\n")
	block, _, _ := strings.Cut(rest, "```")
	mine := false
	for line := range strings.Lines(block) {
		words := strings.Fields(line)
		if len(words) > 0 && !strings.HasPrefix(line, " ") {
			mine = words[0] == head
			words = words[1:]
		}
		if mine {
			rights = append(rights, words...)
		}
	}
	if len(rights) == 0 {
		t.Fatalf("the README does not say which rights a user of %q needs", head)
	}
	return rights
}
