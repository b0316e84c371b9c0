package admin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// addr is the address of a server in memory, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }

// patience limits the wait for something that happens immediately, even on a busy machine.
const patience = 20 * time.Second

// watchdog is the lease of the locks. With a shorter one, the operation timeout would be too short for a busy machine.
const watchdog = 20 * time.Second

// redissons is the UUID of a Redisson client.
const redissons = "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b"

// scene is a server or a cluster, with an admin and a client.
type scene struct {
	*testing.T
	connect func() rueidis.Client
	rdb     rueidis.Client
	admin   *admin.Admin
	c       *client.Client
	plain   bool // a cluster without sharded Pub/Sub, where a message counts only the subscribers of one node
}

// everywhere runs f on one server, and on the cluster that all tests share.
func everywhere(t *testing.T, f func(s *scene)) {
	t.Parallel()
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		f(newScene(t, func() rueidis.Client { return server.Client(t) }))
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		cluster := redistest.SharedCluster(t)
		s := newScene(t, func() rueidis.Client { return cluster.Client(t) })
		s.plain = !cluster.Nodes[0].KnowsSharded(t)
		f(s)
	})
}

func newScene(t *testing.T, connect func() rueidis.Client) *scene {
	s := &scene{T: t, connect: connect, rdb: connect()}
	var err error
	if s.admin, err = admin.New(s.rdb, admin.WithOperator("alice@desk")); err != nil {
		t.Fatal(err)
	}
	s.c = s.client("billing")
	return s
}

// client returns a client with this name.
func (s *scene) client(name string, opts ...client.Option) *client.Client {
	s.Helper()
	c, err := client.New(s.connect(), append(opts, client.WithName(name), client.WithWatchdogTimeout(watchdog))...)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			s.Error(err)
		}
	})
	return c
}

// do sends a command whose second word is a key.
func (s *scene) do(words ...string) {
	s.Helper()
	cmd := s.rdb.B().Arbitrary(words[0]).Keys(words[1]).Args(words[2:]...).Build()
	if err := s.rdb.Do(s.Context(), cmd).Error(); err != nil {
		s.Fatalf("%q: %v", words, err)
	}
}

func (s *scene) lock(l lock.Locker) lock.Hold {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	s.Cleanup(cancel)
	h, err := l.Lock(ctx)
	if err != nil {
		s.Fatal(err)
	}
	return h
}

// list returns "name kind holding waiting" of each lock that matches q, sorted.
func (s *scene) list(q admin.Query) (all []string) {
	s.Helper()
	for l, err := range s.admin.Locks(s.Context(), q) {
		if err != nil {
			s.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%s %s %d %d", l.Name, l.Kind, l.Holding, l.Waiting))
	}
	slices.Sort(all)
	return all
}

func (s *scene) inspect(name string) admin.Lock {
	s.Helper()
	l, err := s.admin.Inspect(s.Context(), name)
	if err != nil {
		s.Fatal(err)
	}
	return l
}

// A key of the application that has the name of a fair lock's queue does not hide a plain lock.
func TestInspect_foreignQueue(t *testing.T) {
	everywhere(t, func(s *scene) {
		h := s.lock(s.c.NewLock("orders"))
		s.do("SET", "redisson_lock_queue:{orders}", "x")
		if l := s.inspect("orders"); l.Kind != admin.Plain || l.Holders[0].Owner != h.Owner() {
			s.Errorf("%+v", l)
		}
		if _, err := s.admin.ForceUnlock(s.Context(), "orders", "", ""); err != nil {
			s.Error(err)
		}
		s.do("DEL", "redisson_lock_queue:{orders}")
	})
}

// A lock and a wait group with the same name have different keys, and a list has both.
func TestLocks_waitGroupWithTheNameOfALock(t *testing.T) {
	everywhere(t, func(s *scene) {
		s.lock(s.c.NewLock("import"))
		_, err := s.c.NewWaitGroup("import").Add(s.Context())
		s.must(err)
		if got := strings.Join(s.list(admin.Query{}), "|"); got != "import plain 1 0|import waitgroup 1 0" {
			s.Errorf("the list has %s", got)
		}
		survey := s.admin.Survey(admin.Query{})
		for range 2 { // the second time, it rereads what it has found
			seen, err := survey.Look(s.Context(), time.Minute)
			s.must(err)
			var got []string
			for _, l := range seen.Locks {
				got = append(got, fmt.Sprint(l.Name, " ", l.Kind))
			}
			if all := strings.Join(got, "|"); all != "import plain|import waitgroup" {
				s.Errorf("the survey has %s", all)
			}
		}
	})
}

// A user with permissions for one prefix can list its locks on a server that has other locks, even if HRANDFIELD is not available. With a
// pattern, a denied key is an error, because the list would otherwise look empty.
func TestLocks_prefixOfAUser(t *testing.T) {
	t.Parallel()
	for _, more := range []string{"+@all", "-hrandfield"} {
		s := redistest.Start(t)
		sc := newScene(t, func() rueidis.Client { return s.Client(t) })
		sc.lock(sc.c.NewLock("orders:1"))
		sc.lock(sc.c.NewLock("other"))
		sc.do("HSET", "leasehold_leader:{other}", "token", "1")
		for _, filter := range []string{"other:seen", "orders:seen"} {
			if _, err := sc.c.NewBloomFilter(filter).Init(t.Context(), 100, .01); err != nil {
				t.Fatal(err)
			}
		}
		user := s.AddUser(t, "orders", "+@all", more, "~orders:*", "~leasehold_*", "~{orders:*", "~redisson_lock_queue:*")
		a, err := admin.New(s.Client(t, user))
		if err != nil {
			t.Fatal(err)
		}
		for q, want := range map[admin.Query]string{{}: "orders:1", {Kind: admin.Election}: "", {Kind: admin.RateLimit}: "", {Kind: admin.RedissonRateLimit}: "", {Kind: admin.Bloom}: "orders:seen"} {
			var got []string
			for l, err := range a.Locks(t.Context(), q) {
				if err != nil {
					t.Errorf("%s, %+v: %v", more, q, err)
				}
				got = append(got, l.Name)
			}
			if all := strings.Join(got, " "); all != want {
				t.Errorf("%s, %+v: %q, want %q", more, q, all, want)
			}
		}
		for _, err := range a.Locks(t.Context(), admin.Query{Match: "oth*"}) {
			if err == nil || !strings.Contains(err.Error(), "NOPERM") {
				t.Errorf("%s: what is denied: %v", more, err)
			}
		}
	}
}

// until waits until ok is true.
func (s *scene) until(what string, ok func() bool) {
	s.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("waited in vain until %s", what)
		}
	}
}

// waits waits for l in the background. It returns when s shows n waiters of l.
func (s *scene) waits(l lock.Locker, n int) (got chan lock.Hold, cancel func()) {
	s.Helper()
	ctx, stop := context.WithCancel(s.Context())
	got = make(chan lock.Hold, 1)
	go func() {
		defer close(got)
		if h, err := l.Lock(ctx); err == nil {
			got <- h
		}
	}()
	s.until("it waits", func() bool { return s.inspect(l.Name()).Waiting == n })
	return got, func() {
		stop()
		for range got {
		}
	}
}

// others writes keys to Redis that are not locks, although some of them look like one.
func (s *scene) others() (names []string) {
	s.Helper()
	for name, words := range map[string][]string{
		"string":                        {"SET", "a value"},
		"digits":                        {"HSET", "1", "1", "2", "2"},
		"counters":                      {"HSET", "visits", "1"},
		"uuids":                         {"HSET", redissons, "1"},
		"text":                          {"HSET", redissons + ":1", "one"},
		"negative":                      {"HSET", redissons + ":1", "-1"},
		"a mode":                        {"HSET", "mode", "read"},
		"mode of op":                    {"HSET", "mode", "fast", redissons + ":1", "1"},
		"mixed":                         {"HSET", "mode", "read", "visits", "1"},
		"writes":                        {"HSET", redissons + ":1:write", "1"},
		"a list":                        {"RPUSH", redissons + ":1"},
		"a set":                         {"SADD", redissons + ":1"},
		"a line":                        {"HSET", "leasehold_line", "0 0|"},
		"leasehold_client:" + redissons: {"HSET", "host", "host-9", "pid", "7", "name", "java"},
	} {
		s.do(append([]string{words[0], name}, words[1:]...)...)
		names = append(names, name)
	}
	return names
}

func TestLocks(t *testing.T) {
	everywhere(t, func(s *scene) {
		for _, name := range []string{"orders:1", "orders:2", "{orders}:3"} {
			s.lock(s.c.NewLock(name))
		}
		s.lock(s.c.NewRWLock("rw:read").Read())
		s.lock(s.client("other").NewRWLock("rw:read").Read())
		s.lock(s.c.NewRWLock("rw:write").Write())
		s.lock(s.c.NewFairLock("fair:alone"))
		s.lock(s.c.NewFairLock("fair:wanted"))
		s.do("HSET", "java:plain", redissons+":84", "2")
		s.do("HSET", "java:write", "mode", "write", redissons+":84:write", "1")
		words := []string{"HSET", "crowd", "mode", "read"}
		for i := range 1000 {
			words = append(words, fmt.Sprintf("%s:%d", redissons, i), "1")
		}
		s.do(words...)
		s.others()
		_, cancel := s.waits(s.client("second").NewFairLock("fair:wanted"), 1)
		defer cancel()
		_, cancel2 := s.waits(s.client("third").NewLock("orders:2"), 1)
		defer cancel2()
		_, cancel3 := s.waits(s.client("fourth").NewRWLock("rw:read").Write(), 1)
		defer cancel3()

		for _, test := range []struct {
			query admin.Query
			want  string
		}{
			{admin.Query{}, "crowd rw 1000 0|fair:alone fair 1 0|fair:wanted fair 1 1|java:plain plain 1 0|java:write rw 1 0|orders:1 plain 1 0|orders:2 plain 1 1|rw:read rw 2 1|rw:write rw 1 0|{orders}:3 plain 1 0"},
			{admin.Query{Match: "orders:*"}, "orders:1 plain 1 0|orders:2 plain 1 1"},
			{admin.Query{Match: admin.Prefix("orders:")}, "orders:1 plain 1 0|orders:2 plain 1 1"},
			{admin.Query{Match: admin.Prefix("[o]rders")}, ""},
			{admin.Query{Kind: admin.ReadWrite, Match: "rw*"}, "rw:read rw 2 1|rw:write rw 1 0"},
			{admin.Query{Kind: admin.Fair}, "fair:alone fair 1 0|fair:wanted fair 1 1"},
			{admin.Query{Match: "nothing"}, ""},
		} {
			if got := strings.Join(s.list(test.query), "|"); got != test.want {
				s.Errorf("%+v: %s, want %s", test.query, got, test.want)
			}
		}
		for l, err := range s.admin.Locks(s.Context(), admin.Query{}) {
			switch h := l.Holders[0]; {
			case err != nil:
				s.Fatal(err)
			case strings.HasPrefix(l.Name, "java:"):
				if h.Client.Name != "java" || h.Client.PID != 7 || !h.Since.IsZero() || l.Lease != lock.NoExpiry {
					s.Errorf("%+v", l)
				}
			case l.Name == "orders:1":
				if h.Client.ID != s.c.ID() || h.Client.Name != "billing" || h.Count != 1 || time.Since(h.Since).Abs() > time.Minute || l.Lease <= 0 || l.Lease > watchdog {
					s.Errorf("%+v", l)
				}
			}
		}
		if _, err := s.admin.Page(s.Context(), admin.Query{Kind: "turnstile"}, ""); err == nil || !strings.Contains(err.Error(), "turnstile") {
			s.Errorf("an unknown kind: %v", err)
		}
	})
}

// The hash of a read/write lock keeps the field of a dead reader while others read. A list omits it, as Inspect does.
func TestLocks_deadReaders(t *testing.T) {
	everywhere(t, func(s *scene) {
		s.lock(s.c.NewRWLock("rw").Read())
		rw := s.client("second").NewRWLock("rw").Read()
		ctx := lock.ContextWithNewOwner(s.Context())
		for range 2 {
			if _, err := rw.Lock(ctx); err != nil {
				s.Fatal(err)
			}
		}
		reader := func(name, owner string, holds int, leases ...int) {
			s.do("HSET", name, "mode", "read", redissons+":"+owner, fmt.Sprint(holds))
			for _, n := range leases {
				s.do("SET", keys.ReadLeases(name, redissons+":"+owner, n)[0], "1", "PX", "60000")
			}
		}
		reader("rw", "1", 1, 1)    // alive
		reader("rw", "2", 3, 1)    // alive: the leases of its later holds have expired
		reader("rw", "3", 1)       // dead
		reader("dead", "1", 2)     // without live readers
		reader("alone", "1", 2, 2) // alive
		for _, survey := range []bool{false, true} {
			var got []string
			if survey {
				seen, err := s.admin.Survey(admin.Query{}).Look(s.Context(), time.Minute)
				if err != nil {
					s.Fatal(err)
				}
				for _, l := range seen.Locks {
					got = append(got, fmt.Sprint(l.Name, " ", l.Kind, " ", l.Holding, " ", len(l.Holders)))
				}
			} else {
				got = s.list(admin.Query{})
			}
			want := map[bool]string{false: "alone rw 1 0|rw rw 4 0", true: "alone rw 1 1|rw rw 4 4"}[survey]
			if strings.Join(got, "|") != want {
				s.Errorf("survey %v: %q, want %s", survey, got, want)
			}
		}
	})
}

// For a user without permission to read the leases of readers, or to run the script, the list shows all fields of the hash.
func TestLocks_deadReadersDenied(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := newScene(t, func() rueidis.Client { return server.Client(t) })
	s.do("HSET", "rw", "mode", "read", redissons+":1", "1", redissons+":2", "1")
	s.do("SET", keys.ReadLeases("rw", redissons+":1", 1)[0], "1", "PX", "60000")
	for name, rights := range map[string][]string{
		"leases": {"+@all", "&*", "~rw", "~leasehold_*", "~redisson_*"},
		"script": {"+@all", "-eval", "-evalsha", "&*", "~*"},
	} {
		a, err := admin.New(server.Client(t, server.AddUser(t, name, rights...)))
		if err != nil {
			t.Fatal(err)
		}
		page, err := a.Page(t.Context(), admin.Query{Match: "rw"}, "")
		if err != nil || len(page.Locks) != 1 || page.Locks[0].Holding != 2 {
			t.Errorf("without rights for the %s: %+v, %v", name, page.Locks, err)
		}
	}
}

// If a server does not respond, the error says so, and not only that a deadline was exceeded.
func TestInspect_noReply(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, err := admin.New(server.Client(t), admin.WithOpTimeout(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	server.Freeze(t)
	_, err = a.Inspect(t.Context(), "orders")
	why := errors.New("shutting down")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, why)
	defer cancel()
	_, own := a.Inspect(ctx, "orders")
	server.Thaw(t)
	if want := `leasehold: inspect "orders": Redis at ` + server.Addr() + " has not responded for 200ms"; err == nil || err.Error() != want || !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want %s", err, want)
	}
	if !errors.Is(own, context.DeadlineExceeded) || !errors.Is(own, why) || errors.Is(own, lock.ErrUnavailable) || own.Error() != `leasehold: inspect "orders": context deadline exceeded: shutting down` {
		t.Errorf("after the deadline of the caller: %v", own)
	}
}

// The errors match the same values as those of locks. An error of the arguments does not match them.
func TestErrors(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	a, err := admin.New(s.Client(t, redistest.Via(proxy), func(o *rueidis.ClientOption) { o.DisableRetry = true }))
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]func() error{
		"inspect": func() error { _, err := a.Inspect(t.Context(), "orders"); return err },
		"list":    func() error { _, err := a.Page(t.Context(), admin.Query{}, ""); return err },
		"clients": func() error { _, err := a.ClientPage(t.Context(), ""); return err },
		"unlock":  func() error { _, err := a.ForceUnlock(t.Context(), "orders", "", ""); return err },
		"survey":  func() error { _, err := a.Survey(admin.Query{}).Look(t.Context(), time.Second); return err },
	}
	check := func(what, text string, want error) {
		for name, call := range calls {
			err := call()
			for _, target := range []error{lock.ErrUnavailable, lock.ErrWrongType, lock.ErrClosed, lock.ErrNotHeld} {
				if errors.Is(err, target) != (target == want) {
					t.Errorf("%s, %s: %v matches %v: %t", what, name, err, target, target != want)
				}
			}
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s, %s: %v, without %q", what, name, err, text)
			}
		}
	}
	for reply, want := range map[string]error{"LOADING Redis is loading": lock.ErrUnavailable, "CLUSTERDOWN The cluster is down": lock.ErrUnavailable, "NOPERM no": nil, "ERR no": nil} {
		proxy.OnRequest(func([][]byte) redistest.Action { return redistest.Action{Refuse: reply} })
		text := strings.TrimPrefix(reply, "ERR ")
		if want != nil {
			text = "Redis at " + proxy.Addr() + " cannot serve this now: " + text
		}
		check(reply, text, want)
	}
	proxy.OnRequest(func([][]byte) redistest.Action { return redistest.Action{DropRequest: true} })
	check("a broken connection", "Redis at "+proxy.Addr()+" does not respond: ", lock.ErrUnavailable)
	proxy.OnRequest(nil)
	for _, bad := range []func() error{
		func() error { _, err := a.Inspect(t.Context(), "a{"); return err },
		func() error { _, err := a.Page(t.Context(), admin.Query{}, "nonsense"); return err },
		func() error { _, err := a.ForceUnlock(t.Context(), "orders", "", "two\nlines"); return err },
	} {
		if err := bad(); err == nil || errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("an error of the arguments: %v", err)
		}
	}
	rdb := s.Client(t)
	if a, err = admin.New(rdb); err != nil {
		t.Fatal(err)
	}
	rdb.Close()
	check("a closed client", "client closed", lock.ErrClosed)
}

// A page is bounded, and the next page begins where it ended.
func TestPage(t *testing.T) {
	everywhere(t, func(s *scene) {
		want := make(map[string]bool)
		for i := range 1000 {
			name := fmt.Sprint("mine:", i)
			want[name] = true
			s.do("HSET", name, fmt.Sprintf("%s:%d", redissons, i), "1")
		}
		var noise rueidis.Commands
		for i := range 30000 {
			noise = append(noise, s.rdb.B().Set().Key(fmt.Sprint("noise", i)).Value("x").Build())
		}
		for _, r := range s.rdb.DoMulti(s.Context(), noise...) {
			if err := r.Error(); err != nil {
				s.Fatal(err)
			}
		}
		pages := 0
		for cursor, first := "", true; first || cursor != ""; first = false {
			page, err := s.admin.Page(s.Context(), admin.Query{}, cursor)
			if err != nil {
				s.Fatal(err)
			}
			if len(page.Locks) > 1000 {
				s.Errorf("a page of %d", len(page.Locks))
			}
			for _, l := range page.Locks {
				delete(want, l.Name)
			}
			cursor = page.Next
			pages++
		}
		if len(want) > 0 || pages < 4 {
			s.Errorf("%d locks are missing on %d pages", len(want), pages)
		}
		if page, err := s.admin.Page(s.Context(), admin.Query{Match: "nothing"}, ""); err != nil || len(page.Locks) > 0 || page.Next == "" {
			s.Errorf("a page that finds nothing looks at all keys: %+v, %v", page, err)
		}
		for _, bad := range []string{"nonsense", "127.0.0.1:1 7", "127.0.0.1:1 7 0,0", "- x 0,0", "- 16384 0", "- 16384 x,0", "-"} {
			if _, err := s.admin.Page(s.Context(), admin.Query{}, bad); !errors.Is(err, admin.ErrBadCursor) {
				s.Errorf("from %q: %v", bad, err)
			}
		}
		n := 0
		for range s.admin.Locks(s.Context(), admin.Query{}) { // the caller may stop early
			if n++; n == 3 {
				break
			}
		}
		why := errors.New("shutting down")
		ctx, cancel := context.WithCancelCause(s.Context())
		cancel(why)
		for _, err := range s.admin.Locks(ctx, admin.Query{}) {
			if !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
				s.Errorf("after the end of its context: %v", err)
			}
		}
	})
}

// A list makes its passes over the keys together, in large steps. It reads no hash whose fields are not those of a lock.
func TestLocks_cost(t *testing.T) {
	s := redistest.Start(t)
	sc := newScene(t, func() rueidis.Client { return s.Client(t) })
	var noise rueidis.Commands
	for i := range 2000 {
		b := sc.rdb.B()
		noise = append(noise, b.Set().Key(fmt.Sprint("session:", i)).Value("x").Build(),
			b.Hset().Key(fmt.Sprint("user:", i)).FieldValue().FieldValue("name", "x").FieldValue("mail", "y").Build())
	}
	for _, r := range sc.rdb.DoMulti(t.Context(), noise...) {
		sc.must(r.Error())
	}
	const locks = 50
	for i := range locks {
		sc.do("HSET", fmt.Sprint("orders:", i), fmt.Sprintf("%s:%d", redissons, i), "1")
	}
	s.Do(t, "CONFIG", "RESETSTAT")
	if n := len(sc.list(admin.Query{Idle: true})); n != locks {
		t.Errorf("%d locks", n)
	}
	reply := s.Do(t, "INFO", "commandstats")
	stats, err := reply.ToString()
	sc.must(err)
	for command, most := range map[string]int{"scan": 30, "hrandfield": 2000 + locks + 1, "hscan": locks, "type": 0, "hlen": 0} {
		calls := 0
		if _, after, ok := strings.Cut(stats, "cmdstat_"+command+":calls="); ok {
			_, err := fmt.Sscanf(after, "%d", &calls)
			sc.must(err)
		}
		if calls > most {
			t.Errorf("%d calls of %s, want at most %d", calls, command, most)
		}
	}
}

// A list of many keys reports its progress.
func TestWithProgress(t *testing.T) {
	everywhere(t, func(s *scene) {
		var noise rueidis.Commands
		for i := range 30000 {
			noise = append(noise, s.rdb.B().Set().Key(fmt.Sprint("noise", i)).Value("x").Build())
		}
		for _, r := range s.rdb.DoMulti(s.Context(), noise...) {
			s.must(r.Error())
		}
		var told []float64
		a, err := admin.New(s.rdb, admin.WithProgress(func(scanned float64) { told = append(told, scanned) }))
		s.must(err)
		for _, err := range a.Locks(s.Context(), admin.Query{Idle: true}) {
			s.must(err)
		}
		if len(told) < 3 || !slices.IsSorted(told) || told[0] <= 0 || told[0] > .6 || told[len(told)-1] != 1 {
			s.Errorf("%v", told)
		}
	})
}

func TestClients(t *testing.T) {
	everywhere(t, func(s *scene) {
		s.client("idle")
		s.client("cron", client.WithLabel("zone=a")).NewLock("x")
		s.c.NewLock("x")
		s.others()
		var names []string
		s.until("all are there", func() bool {
			names = nil
			for c, err := range s.admin.Clients(s.Context()) {
				if err != nil {
					s.Fatal(err)
				}
				names = append(names, strings.TrimSpace(c.Name+" "+c.Label))
			}
			slices.Sort(names)
			return len(names) == 3
		})
		if got := strings.Join(names, "|"); got != "billing|cron zone=a|java" {
			s.Errorf("%s", got)
		}
	})
}

func TestInspect(t *testing.T) {
	everywhere(t, func(s *scene) {
		for name, of := range map[string]func(c *client.Client, name string, opts ...lock.Option) lock.Locker{
			"plain": func(c *client.Client, name string, opts ...lock.Option) lock.Locker { return c.NewLock(name, opts...) },
			"fair": func(c *client.Client, name string, opts ...lock.Option) lock.Locker {
				return c.NewFairLock(name, opts...)
			},
			"rw": func(c *client.Client, name string, opts ...lock.Option) lock.Locker {
				return c.NewRWLock(name, opts...).Write()
			},
		} {
			if l := s.inspect(name); l.Kind != "" || l.Locked() || l.Name != name || l.Token != 0 || l.HighestToken != 0 || l.ForceUnlock != nil {
				s.Errorf("free: %+v", l)
			}
			h := s.lock(of(s.c, name, lock.WithFencing()))
			_, cancel := s.waits(of(s.client("second"), name), 1)
			var l admin.Lock
			s.until("all are known", func() bool {
				l = s.inspect(name)
				return len(l.Holders) == 1 && l.Holders[0].Client.Known() && len(l.Waiters) == 1 && l.Waiters[0].Client.Known()
			})
			if string(l.Kind) != name || l.Holders[0].Owner != h.Owner() || l.Holders[0].Client.Name != "billing" || l.Waiters[0].Client.Name != "second" ||
				l.Holders[0].Since.After(l.Waiters[0].Since) || l.Token != h.Token() || l.HighestToken <= h.Token() || l.Lease <= 0 || l.Holding != 1 {
				s.Errorf("%s: %+v", name, l)
			}
			cancel()
			if err := h.Unlock(s.Context()); err != nil {
				s.Error(err)
			}
			s.until("the lock is free", func() bool { // the waiter may have acquired it before it was canceled
				l = s.inspect(name)
				return !l.Locked()
			})
			if l.Token != 0 || l.HighestToken <= h.Token() {
				s.Errorf("%s, free after token %d: %+v", name, h.Token(), l)
			}
		}
		reader := s.lock(s.c.NewRWLock("rw", lock.WithFencing()).Read())
		if l := s.inspect("rw"); l.Mode != lock.Read || l.Token != reader.Token() || l.HighestToken != reader.Token() {
			s.Errorf("a reader with token %d: %+v", reader.Token(), l)
		}
		if err := reader.Unlock(s.Context()); err != nil {
			s.Error(err)
		}
		// Redisson's RFencedLock increments the counter by one.
		s.do("HSET", "java", redissons+":84", "1")
		s.do("SET", "redisson_lock_token:{java}", "17")
		if l := s.inspect("java"); l.Token != 17 || l.HighestToken != 17 {
			s.Errorf("a holder of Redisson with token 17: %+v", l)
		}
		s.do("DEL", "java", "redisson_lock_token:{java}")
		for _, name := range s.others() {
			want := lock.ErrWrongType
			if strings.HasPrefix(name, "leasehold_client:") {
				want = lock.ErrBadName
			}
			if name == "a line" { // the key is the queue of a plain lock, which is free
				continue
			}
			if l, err := s.admin.Inspect(s.Context(), name); !errors.Is(err, want) {
				s.Errorf("%q: %+v, %v, want %v", name, l, err, want)
			}
			if _, err := s.admin.ForceUnlock(s.Context(), name, "", ""); !errors.Is(err, want) {
				s.Errorf("%q, unlocked: %v, want %v", name, err, want)
			}
		}
	})
}

// A waiter of a plain lock whose client has no entry counts as gone, in lists and for Inspect. A waiter of Redisson, or one whose entry the user is not
// allowed to read, does not.
func TestLock_IsGone(t *testing.T) {
	s := redistest.Start(t)
	sc := newScene(t, func() rueidis.Client { return s.Client(t) })
	sc.lock(sc.c.NewLock("orders"))
	killed := sc.client("killed")
	_, cancel := sc.waits(sc.client("living").NewLock("orders"), 1)
	defer cancel()
	_, cancel2 := sc.waits(killed.NewLock("orders"), 2)
	defer cancel2()
	look := func(a *admin.Admin) (gone, listed int) {
		for l, err := range a.Locks(t.Context(), admin.Query{}) {
			sc.must(err)
			listed = l.Gone
		}
		l, err := a.Inspect(t.Context(), "orders")
		sc.must(err)
		for _, w := range l.Waiters {
			if l.IsGone(w) && w.Client.ID == killed.ID() {
				gone++
			}
		}
		if gone != l.Gone {
			t.Errorf("%d waiters are gone, of %d", gone, l.Gone)
		}
		return gone, listed
	}
	sc.until("all have an entry", func() bool {
		gone, listed := look(sc.admin)
		return gone+listed == 0
	})
	s.Do(t, "DEL", "leasehold_client:"+killed.ID()) // its client writes the entry again within 10 s
	if gone, listed := look(sc.admin); gone != 1 || listed != 1 {
		t.Errorf("%d are gone, and %d by the list", gone, listed)
	}
	blind, err := admin.New(s.Client(t, s.AddUser(t, "blind", "~orders*", "&*", "+@all", "~leasehold_leader:*", "~redisson_*")))
	sc.must(err)
	if gone, listed := look(blind); gone+listed != 0 {
		t.Errorf("%d are gone, and %d by the list, for a user that may not read entries", gone, listed)
	}
}

func TestNew(t *testing.T) {
	rdb := redistest.NewMini(t).Client(t)
	for name, opts := range map[string][]admin.Option{
		"nil option":  {nil},
		"no time":     {admin.WithOpTimeout(0)},
		"nobody":      {admin.WithOperator("")},
		"two lines":   {admin.WithOperator("a\nb")},
		"a long name": {admin.WithOperator(strings.Repeat("x", 257))},
	} {
		if _, err := admin.New(rdb, opts...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := admin.New(nil); err == nil {
		t.Error("no client: no error")
	}
	if _, err := admin.New(rdb, admin.WithOpTimeout(time.Second), admin.WithOperator("alice")); err != nil {
		t.Error(err)
	}
}
