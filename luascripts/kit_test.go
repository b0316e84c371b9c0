package luascripts_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Helpers for the tests of all types of locks.

// onBoth runs a test on a real server and on an in-memory one. The scripts must behave the same on
// both.
func onBoth(t *testing.T, f func(t *testing.T, rdb rueidis.Client)) {
	t.Run("redis", func(t *testing.T) { f(t, redistest.Start(t).Client(t)) })
	t.Run("memory", func(t *testing.T) { f(t, redistest.NewMini(t).Client(t)) })
}

func do(t testing.TB, rdb rueidis.Client, args ...string) rueidis.RedisMessage {
	t.Helper()
	m, err := rdb.Do(t.Context(), rdb.B().Arbitrary(args...).Build()).ToMessage()
	if err != nil && !rueidis.IsRedisNil(err) {
		t.Fatalf("%v: %v", args, err)
	}
	return m
}

func number(t testing.TB, rdb rueidis.Client, args ...string) int64 {
	t.Helper()
	m := do(t, rdb, args...)
	n, err := m.ToInt64()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return n
}

func list(t testing.TB, rdb rueidis.Client, args ...string) []string {
	t.Helper()
	m := do(t, rdb, args...)
	all, err := m.AsStrSlice()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return all
}

// now returns the server's time in ms.
func now(t testing.TB, rdb rueidis.Client) int64 {
	t.Helper()
	parts := list(t, rdb, "TIME")
	s, err1 := strconv.ParseInt(parts[0], 10, 64)
	us, err2 := strconv.ParseInt(parts[1], 10, 64)
	if err1 != nil || err2 != nil {
		t.Fatalf("TIME: %q", parts)
	}
	return s*1000 + us/1000
}

// contents returns everything stored on the server, except TTLs and scores, which are times. It has
// one line per key, with a * if the key has no expiry.
func contents(t *testing.T, rdb rueidis.Client) string {
	t.Helper()
	names := list(t, rdb, "KEYS", "*")
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		m := do(t, rdb, "TYPE", name)
		kind, _ := m.ToString()
		read := map[string][]string{"string": {"MGET", name}, "list": {"LRANGE", name, "0", "-1"}, "hash": {"HGETALL", name}, "zset": {"ZRANGE", name, "0", "-1"}}[kind]
		if read == nil {
			t.Fatalf("%s is a %s", name, kind)
		}
		m = do(t, rdb, read...)
		var inside []string
		if fields, err := m.AsStrMap(); kind == "hash" && err == nil {
			for f, v := range fields {
				inside = append(inside, f+"="+v)
			}
		} else {
			inside, _ = m.AsStrSlice()
		}
		if kind == "hash" || kind == "zset" { // members with equal scores are sorted by name
			slices.Sort(inside)
		}
		end := ""
		if number(t, rdb, "PTTL", name) == -1 {
			end = "*"
		}
		fmt.Fprintf(&b, "%s%s %s %q\n", name, end, kind, inside)
	}
	return b.String()
}

func check(t *testing.T, what string, got, want luascripts.Verdict, err error) {
	t.Helper()
	if err != nil || got != want {
		t.Errorf("%s: %d, %v, want %d", what, got, err, want)
	}
}

// about fails the test unless a duration, which shrinks while the test runs, is close to want.
func about(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if want > 0 && (got > want || got < want-slow) || want <= 0 && got != want {
		t.Errorf("%s: %v, want about %v", what, got, want)
	}
}

// slow is the maximum time that a test may take between two of its lines. Leases and waiter
// timeouts in these tests are long enough for it.
const slow = 15 * time.Second

func pttl(t *testing.T, rdb rueidis.Client, key string) time.Duration {
	t.Helper()
	return time.Duration(number(t, rdb, "PTTL", key)) * time.Millisecond
}

// ears receive every message that the server publishes.
type ears struct {
	t    *testing.T
	rdb  rueidis.Client
	said chan string
}

const endOfTalk = "end of talk"

// listen returns ears that receive all messages from now on.
func listen(t *testing.T, rdb rueidis.Client) *ears {
	t.Helper()
	e := &ears{t, rdb, make(chan string, 1000)}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		listening := rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) { close(ready) })
		rdb.Receive(listening, rdb.B().Psubscribe().Pattern("*").Build(), func(m rueidis.PubSubMessage) { e.said <- m.Channel + " " + m.Message })
	}()
	select {
	case <-ready:
	case <-done:
		t.Fatal("cannot listen")
	}
	t.Cleanup(func() { cancel(); <-done })
	e.heard() // discards messages that arrived late for other ears on the connection
	return e
}

// heard returns the messages since its last call, as "<channel> <message>".
func (e *ears) heard() (all []string) {
	e.t.Helper()
	do(e.t, e.rdb, "PUBLISH", endOfTalk, "")
	for {
		select {
		case m := <-e.said:
			if m == endOfTalk+" " {
				return all
			}
			all = append(all, m)
		case <-time.After(time.Minute):
			e.t.Fatal("the server does not deliver messages")
		}
	}
}

func (e *ears) expect(want ...string) {
	e.t.Helper()
	if got := e.heard(); !slices.Equal(got, want) {
		e.t.Errorf("published %q, want %q", got, want)
	}
}

// denied returns a client that is allowed to run all commands except one.
func denied(t *testing.T, s *redistest.Server, command string) rueidis.Client {
	t.Helper()
	return user(t, s, "no-"+command, "~*", "&*", "+@all", "-"+command)
}

// user returns a client of a new user with these permissions.
func user(t *testing.T, s *redistest.Server, name string, rights ...string) rueidis.Client {
	t.Helper()
	s.Do(t, append([]string{"ACL", "SETUSER", name, "reset", "on", "nopass"}, rights...)...)
	return s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = name, "x" })
}

// full makes the server reject writes that may need memory.
func full(t *testing.T, s *redistest.Server) {
	t.Helper()
	s.Do(t, "CONFIG", "SET", "maxmemory", "100kb")
}

var (
	loads   = regexp.MustCompile(`\bload\(([^)]*)\)`)
	listing = regexp.MustCompile(`(?m)^-- include: (.+)$`)
	late    = regexp.MustCompile(`(?m)^-- later: (.+)$`)
)

// loaded returns the names of the scripts that the package loads.
func loaded(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || file == "script.go" {
			continue
		}
		for _, m := range loads.FindAllStringSubmatch(read(t, file), -1) {
			names = append(names, strings.Trim(m[1], `"`))
		}
	}
	return names
}

// including returns the files that the header of a text includes, immediately or later.
func including(text string) (files []string) {
	return append(listedBy(listing, text), listedBy(late, text)...)
}

// listedBy returns the files in a line of the header of a text.
func listedBy(line *regexp.Regexp, text string) (files []string) {
	for _, m := range line.FindAllStringSubmatch(header(text), -1) {
		for name := range strings.SplitSeq(m[1], ",") {
			files = append(files, "include_"+strings.TrimSpace(name))
		}
	}
	return files
}

// header returns the first lines of a text, up to the first line that is not a comment.
func header(text string) string {
	end := 0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "--") {
			break
		}
		end += len(line)
	}
	return text[:end]
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// eval runs a script as redis-cli would.
func eval(t *testing.T, rdb rueidis.Client, text string, keys []string, args ...string) rueidis.RedisMessage {
	t.Helper()
	m, err := rdb.Do(t.Context(), rdb.B().Eval().Script(text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).ToMessage()
	if err != nil && !rueidis.IsRedisNil(err) {
		t.Fatalf("a script: %v", err)
	}
	return m
}

var calls = regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`)

// commands returns the commands that a script can call, except those that publish.
func commands(script string) []string {
	var all []string
	for _, m := range calls.FindAllStringSubmatch(luascripts.Text(script), -1) {
		all = append(all, strings.ToLower(m[1]))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
