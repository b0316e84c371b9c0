package redistest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/redis/rueidis"
)

// Rights returns the ACL rules that docs/operate/security.md lists for a user, as arguments of ACL SETUSER: the
// list for every type, and the lists that begin with one of the heads, such as "NewLock". They are for names that
// begin with "orders:".
//
// It works in packages whose directory is next to docs.
func Rights(tb testing.TB, heads ...string) (rights []string) {
	tb.Helper()
	doc, err := os.ReadFile("../docs/operate/security.md")
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "\n## Permissions")
	lists := listed(rest)
	for _, head := range append([]string{"every"}, heads...) {
		if len(lists[head]) == 0 {
			tb.Fatalf("docs/operate/security.md does not say which rights %q needs", head)
		}
		rights = append(rights, lists[head]...)
	}
	return rights
}

// RightsWithoutLocks returns the ACL rules that docs/operate/security.md lists for objects that are not locks, by
// their head, such as "NewRateLimiter".
func RightsWithoutLocks(tb testing.TB, head string) []string {
	tb.Helper()
	doc, err := os.ReadFile("../docs/operate/security.md")
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "\n### Without locks")
	rights := listed(rest)[head]
	if len(rights) == 0 {
		tb.Fatalf("docs/operate/security.md does not say which rights %q needs", head)
	}
	return rights
}

// listed parses the lists in the first code block of text, keyed by their first words.
func listed(text string) map[string][]string {
	_, rest, _ := strings.Cut(text, "```\n")
	block, _, _ := strings.Cut(rest, "```")
	lists, head := map[string][]string{}, ""
	for line := range strings.Lines(block) {
		words := strings.Fields(line)
		if len(words) > 0 && !strings.HasPrefix(line, " ") {
			head, words = words[0], words[1:]
		}
		lists[head] = append(lists[head], words...)
	}
	return lists
}

// AddUser creates a user on the server with these rules and no others, and returns an edit for Client that
// connects as that user.
func (s *Server) AddUser(tb testing.TB, user string, rights ...string) func(*rueidis.ClientOption) {
	tb.Helper()
	s.Do(tb, append([]string{"ACL", "SETUSER", user, "reset", "on", ">secret", "resetchannels", "-@all"}, rights...)...)
	return func(o *rueidis.ClientOption) {
		o.Username, o.Password = user, "secret"
		o.ClientSetInfo = rueidis.DisableClientSetInfo // it works without the permission, but leaves a denial in the log
	}
}

// Denied returns the server's denials for the user since it started, each with the type of the missing
// permission.
//
// It leaves out denials of rueidis' cleanup of a dedicated connection that is returned while busy: rueidis then
// sends UNSUBSCRIBE, PUNSUBSCRIBE, SUNSUBSCRIBE and DISCARD, and ignores the replies. That is rare, and happens
// on busy machines.
func (s *Server) Denied(tb testing.TB, user string) (denied []string) {
	tb.Helper()
	log := s.Do(tb, "ACL", "LOG", "1000") // the server keeps 128
	entries, err := log.ToArray()
	if err != nil {
		tb.Fatal(err)
	}
	for _, entry := range entries {
		if facts := pairs(entry); facts["username"] == user {
			denied = append(denied, facts["reason"]+" "+facts["object"])
		}
	}
	if slices.Contains(denied, "command discard") { // only rueidis sends it
		denied = slices.DeleteFunc(denied, func(d string) bool {
			return d == "command discard" || d == "command punsubscribe" || d == "command sunsubscribe"
		})
	}
	return denied
}
