package doctor

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// documented returns the lists of docs/operate/security.md, without the patterns for names that
// contain braces.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	doc, err := os.ReadFile("../../../../docs/operate/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, first, _ := strings.Cut(string(doc), "\n## Permissions")
	_, first, _ = strings.Cut(first, "```\n")
	first, rest, _ := strings.Cut(first, "```")
	_, second, _ := strings.Cut(rest, "\n### Without locks")
	_, second, _ = strings.Cut(second, "```\n")
	second, _, _ = strings.Cut(second, "```")
	lists, head := map[string][]string{}, ""
	for line := range strings.Lines(first + second) {
		words := strings.Fields(line)
		if len(words) > 0 && !strings.HasPrefix(line, " ") {
			head, words = words[0], words[1:]
		}
		for _, w := range words {
			if w[0] == '+' || w == "~orders:*" || strings.HasSuffix(w, "leasehold_client:*") || strings.Contains(w, "{orders:") {
				lists[head] = append(lists[head], w)
			}
		}
	}
	return lists
}

// The doctor has exactly the permissions that the documentation lists.
func TestNeeds_asDocumented(t *testing.T) {
	t.Parallel()
	lists := documented(t)
	if len(lists) != len(needs) {
		t.Errorf("docs/operate/security.md has %d lists, and the doctor %d", len(lists), len(needs))
	}
	for _, n := range needs {
		want, got := lists[n.head], strings.Fields(n.rights)
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the doctor looks for\n%q, and docs/operate/security.md says\n%q", n.head, got, want)
		}
	}
}

// all returns the permissions of all lists, without duplicates.
func all() (rights []string) {
	for _, n := range needs {
		for right := range strings.FieldsSeq(n.rights) {
			if !slices.Contains(rights, right) {
				rights = append(rights, right)
			}
		}
	}
	return rights
}

// ourPrefix is the prefix of the names that the users of these tests may access.
const ourPrefix = "orders:"

// asUser returns an examination of a user with these permissions.
func asUser(t *testing.T, s *redistest.Server, user string, rights []string) (*exam, *node) {
	t.Helper()
	rdb := s.Client(t, s.AddUser(t, user, rights...), func(o *rueidis.ClientOption) { o.ForceSingleClient = true })
	e := &exam{Options: Options{Prefix: ourPrefix, User: user, Kinds: Kinds()}, rdb: rdb, name: ourPrefix + "leasehold-doctor:" + user}
	n := &node{Client: rdb}
	e.nodes = []*node{n}
	return e, n
}

// A user with all permissions lacks none, and the doctor finds each single permission that a user lacks.
func TestRights_eachOne(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	e, n := asUser(t, s, "full", all())
	if lacks := e.ask(t.Context(), n, needs); len(lacks) > 0 {
		t.Errorf("a user with all rights is said to lack %q", lacks)
	}
	for _, right := range all() {
		t.Run(right, func(t *testing.T) {
			t.Parallel()
			switch right {
			case "+unsubscribe", "+sunsubscribe":
				t.Skip("it cannot be tested by itself")
			case "~orders:*":
				t.Skip("it covers the others") // see the next test
			}
			user := "no" + strings.NewReplacer("+", "-", "~", "-key-", "&", "-channel-", "*", "-", "|", "-", "{", "-", ":", "-").Replace(right)
			rest := slices.DeleteFunc(all(), func(r string) bool { return r == right })
			e, n := asUser(t, s, user, rest)
			if lacks := e.ask(t.Context(), n, needs); !slices.Equal(lacks, []string{right}) {
				t.Errorf("a user without %s is said to lack %q", right, lacks)
			}
		})
	}
}

// A user without permissions lacks everything that can be tested, and the doctor writes nothing.
func TestRights_none(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	e, n := asUser(t, s, "nobody", []string{"+ping"})
	want := slices.DeleteFunc(all(), func(r string) bool {
		switch r {
		case "+ping", "+unsubscribe", "+sunsubscribe", "+rpush", "+hsetnx":
			return true
		}
		// Without the command, keys and channels cannot be tested.
		return r[0] != '+'
	})
	got := e.ask(t.Context(), n, needs)
	if !slices.Equal(got, want) {
		t.Errorf("it is said to lack\n%q, want\n%q", got, want)
	}

	e, n = asUser(t, s, "elsewhere", append(all()[1:], "~elsewhere:*"))
	if got := e.ask(t.Context(), n, needs); !slices.Equal(got, []string{"~orders:*"}) {
		t.Errorf("a user of other names is said to lack %q", got)
	}
	keys := s.Do(t, "KEYS", "*")
	if left, err := keys.AsStrSlice(); err != nil || len(left) > 0 {
		t.Errorf("keys left: %q, %v", left, err)
	}
}

// Since Redis 7.2, a denial contains the name of the user, which can contain the words of another denial.
func TestRights_nameOfTheUser(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	proxy.OnRequest(redistest.Once("HRANDFIELD", redistest.Action{Refuse: "NOPERM User channels has no permissions to run the 'hrandfield' command"}))
	verify(t, examine(t, s.Client(t, redistest.Via(proxy)), Options{Role: "operator"}), map[string]want{"permissions admin": {Failure, "1 missing", "+hrandfield"}})
}

// A pattern that allows only reading is not enough for the scripts.
func TestRights_readOnly(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	if !s.KnowsSharded(t) {
		t.Skip("before Redis 7, all patterns allow writing")
	}
	for _, test := range []struct {
		role, right string
		lacks       bool
	}{
		{"", "~orders:*", true}, {"operator", "~orders:*", true}, {"page", "~orders:*", true},
		{"operator", "~leasehold_forced:{orders:*", true}, {"page", "~leasehold_forced:{orders:*", false}, {"operator", "~leasehold_client:*", false},
	} {
		rights := append(slices.DeleteFunc(all(), func(r string) bool { return r == test.right || r == "~orders:*" }), "%R"+test.right)
		if test.right != "~orders:*" {
			rights = append(rights, "~orders:*")
		}
		e, n := asUser(t, s, "reads", rights)
		lists := needs
		if e.Kinds, e.Role = nil, test.role; e.Role != "" {
			lists = e.lists()
		}
		if lacks := e.ask(t.Context(), n, lists); slices.Contains(lacks, test.right) != test.lacks {
			t.Errorf("%q with %%R%s is said to lack %q", test.role, test.right, lacks)
		}
	}
}

// A check that had no reply is not passed.
func TestRights_noReply(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	proxy.OnRequest(redistest.Once("HRANDFIELD", redistest.Action{DropRequest: true}))
	rdb := s.Client(t, redistest.Via(proxy), func(o *rueidis.ClientOption) { o.DisableRetry = true })
	verify(t, examine(t, rdb, Options{Role: "operator"}), map[string]want{"permissions": {Failure, "not all checked: ", "again"}})
}

// For a user with the list of one type that needs no locks, nothing is missing, and the doctor acquires no lock. If one
// permission of the list is missing, the doctor names it.
func TestRights_withoutLocks(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, n := range needs {
		if !n.alone {
			continue
		}
		examineAs := func(t *testing.T, user string, rights []string) (found, missing []string) {
			t.Helper()
			rdb := s.Client(t, s.AddUser(t, user, append(rights, "+info", "+hello", "+ping")...), func(o *rueidis.ClientOption) { o.ForceSingleClient = true })
			for _, c := range examine(t, rdb, Options{Prefix: ourPrefix, User: user, Kinds: []string{n.kind}}).Checks {
				found = append(found, c.Name)
				if c.Name == "permissions "+n.kind && c.Status == Failure {
					missing = strings.Fields(c.Advice)[3:]
				} else if c.Status == Failure || c.Status == Warning && c.Name != "clock" && c.Name != "replicas" && c.Name != "pubsub" {
					t.Errorf("%s, %s: %+v", user, n.kind, c)
				}
			}
			return found, missing
		}
		rights := strings.Fields(n.rights)
		found, missing := examineAs(t, n.kind, rights)
		if len(missing) > 0 || !slices.Contains(found, "permissions "+n.kind) || slices.Contains(found, "lock") || slices.Contains(found, "pubsub") != slices.Contains(strings.Fields(n.rights), "+subscribe") {
			t.Errorf("%s: %q are missing; examined: %q", n.kind, missing, found)
		}
		for i, right := range rights {
			switch right {
			case "+unsubscribe", "+ping", "+eval", "+evalsha", "+time": // the first cannot be tested; without the others, other checks fail
				continue
			}
			less := slices.Delete(slices.Clone(rights), i, i+1)
			if _, missing := examineAs(t, n.kind+"less"+string(rune('a'+i)), less); !slices.Contains(missing, right) {
				t.Errorf("%s without %s: %q are said to be missing", n.kind, right, missing)
			}
		}
	}
	noKeys(t, s)
}
