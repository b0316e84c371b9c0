package admin_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// found is the content of the lists of locks and clients, and what they lack.
type found struct {
	locks, clients []string
	missing        []string // the addresses of servers
	why            string
}

// lists lists all locks and clients.
func (s *scene) lists(a *admin.Admin) (f found) {
	s.Helper()
	lacks := func(err error) {
		var part *admin.IncompleteError
		if !errors.As(err, &part) {
			s.Fatal(err)
		}
		f.why = err.Error()
		f.missing = nil
		for _, m := range part.Missing {
			f.missing = append(f.missing, m.Server)
		}
	}
	for l, err := range a.Locks(s.Context(), admin.Query{}) {
		if err != nil {
			lacks(err)
			break
		}
		f.locks = append(f.locks, l.Name)
	}
	for c, err := range a.Clients(s.Context()) {
		if err != nil {
			lacks(err)
			break
		}
		f.clients = append(f.clients, c.ID)
	}
	slices.Sort(f.locks)
	slices.Sort(f.clients)
	return f
}

// 1: A replica that does not respond is not missing. 2: If a primary is dead, lists have what the others store, and name it. 3: The same after the cluster
// has marked it as failed, when a new client does not learn of it. 4: When it is back, nothing is missing. 5: A primary that a script keeps busy is missing, too.
func TestLocks_deadPrimary(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-replica-no-failover", "yes")
	s := &scene{T: t, connect: func() rueidis.Client { return cluster.Client(t) }}
	s.rdb = s.connect()
	newAdmin := func() *admin.Admin {
		a, err := admin.New(s.connect(), admin.WithOpTimeout(3*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	dead := cluster.Masters(t)[1]
	var whole, part found
	for i := range 24 {
		id := "01a20376-5c32-7c6b-b43e-0000000000" + strconv.Itoa(10+i)
		name, entry := "orders:"+strconv.Itoa(i), "leasehold_client:"+id
		s.do("HSET", name, id+":1", "1")
		s.do("HSET", entry, "host", "host-7", "name", "billing")
		whole.locks, whole.clients = append(whole.locks, name), append(whole.clients, id)
		if cluster.Master(t, name) != dead {
			part.locks = append(part.locks, name)
		}
		if cluster.Master(t, entry) != dead {
			part.clients = append(part.clients, id)
		}
	}
	slices.Sort(whole.locks)
	slices.Sort(part.locks)
	is := func(got, want found) bool {
		return slices.Equal(got.locks, want.locks) && slices.Equal(got.clients, want.clients)
	}

	living := cluster.Masters(t)[0]
	cluster.WaitForReplica(t, living)
	replica := cluster.Replica(t, living)
	a := newAdmin()
	replica.Freeze(t)
	if got := s.lists(a); !is(got, whole) || got.missing != nil { // 1
		t.Errorf("without a replica: %+v", got)
	}
	replica.Thaw(t)

	dead.Do(t, "CONFIG", "SET", "lua-time-limit", "1") // 5
	busy := make(chan error, 1)
	only := func(o *rueidis.ClientOption) { o.ForceSingleClient = true }
	direct, asks := dead.Client(t, only), dead.Client(t, only)
	go func() {
		busy <- direct.Do(context.WithoutCancel(t.Context()), direct.B().Eval().Script("while true do end").Numkeys(0).Build()).Error()
	}()
	s.until("it is busy", func() bool {
		err := asks.Do(t.Context(), asks.B().Ping().Build()).Error()
		return err != nil && strings.HasPrefix(err.Error(), "BUSY")
	})
	if got := s.lists(a); !is(got, part) || !slices.Equal(got.missing, []string{dead.Addr()}) || !strings.Contains(got.why, "BUSY") {
		t.Errorf("with a busy primary: %+v, want %+v", got, part)
	}
	s.must(asks.Do(t.Context(), asks.B().ScriptKill().Build()).Error())
	<-busy

	dead.Kill(t)
	for _, step := range []string{"2", "3"} {
		got := s.lists(a)
		if !is(got, part) || !slices.Equal(got.missing, []string{dead.Addr()}) || !strings.Contains(got.why, "incomplete: "+dead.Addr()+" does not respond (") {
			t.Errorf("%s: %+v, want %+v without %s", step, got, part, dead.Addr())
		}
		if step == "2" {
			cluster.FindTheDead(t)
			cluster.WaitUntilFailed(t, dead)
			a = newAdmin()
		}
	}

	dead.Restart(t)
	cluster.WaitUntilWell(t)
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) { // 4
		got := s.lists(a)
		if got.missing == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("with the primary back: %+v", got)
		}
	}
}

// A primary stops responding between the steps of a list: after SCAN, and before the locks are read. The list has what the others store.
func TestLocks_primaryDiesInBetween(t *testing.T) {
	t.Parallel()
	cluster := redistest.SharedCluster(t)
	s := &scene{T: t, connect: func() rueidis.Client { return cluster.Client(t) }}
	s.rdb = s.connect()
	dead := cluster.Masters(t)[1]
	var want []string
	for i := range 24 {
		name := "orders:" + strconv.Itoa(i)
		s.do("HSET", name, "01a20376-5c32-7c6b-b43e-000000000010:1", "1")
		if cluster.Master(t, name) != dead {
			want = append(want, name)
		}
	}
	slices.Sort(want)
	wire, never := redistest.NewProxy(t, dead.Addr()), make(chan struct{})
	t.Cleanup(func() { close(never) })
	wire.OnRequest(func(req [][]byte) (act redistest.Action) {
		if command := string(req[0]); command == "HRANDFIELD" || command == "HSCAN" { // the first command after SCAN, on servers with and without HRANDFIELD
			act.HoldRequest = never
		}
		return act
	})
	a, err := admin.New(cluster.Client(t, func(o *rueidis.ClientOption) {
		o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			if addr == dead.Addr() {
				addr = wire.Addr()
			}
			return d.DialContext(ctx, "tcp", addr)
		}
	}), admin.WithOpTimeout(3*time.Second))
	s.must(err)
	if got := s.lists(a); !slices.Equal(got.locks, want) || !slices.Equal(got.missing, []string{dead.Addr()}) {
		t.Errorf("%+v, want %q without %s", got, want, dead.Addr())
	}
}

// Between two pages, a primary that is still to be listed fails over to a replica, whose address sorts before that of the page's primary.
func TestPage_failover(t *testing.T) {
	t.Parallel()
	var (
		cluster            *redistest.Cluster
		now, lower, higher *redistest.Server // the primary of the page, and the two nodes of the other shard
	)
	for now == nil { // in about one of fifteen clusters, no address is between those of another shard
		cluster = redistest.StartCluster(t)
		masters := cluster.Masters(t)
		for _, m := range masters {
			shard := []*redistest.Server{m, cluster.Replica(t, m)}
			slices.SortFunc(shard, func(a, b *redistest.Server) int { return strings.Compare(a.Addr(), b.Addr()) })
			for _, s := range cluster.Nodes {
				if shard[0].Addr() < s.Addr() && s.Addr() < shard[1].Addr() {
					now, lower, higher = s, shard[0], shard[1]
				}
			}
		}
	}
	for _, s := range []*redistest.Server{now, higher} {
		if !slices.Contains(cluster.Masters(t), s) {
			cluster.TakeOver(t, s)
		}
	}
	s := &scene{T: t, connect: func() rueidis.Client { return cluster.Client(t) }}
	s.rdb = s.connect()
	tag := func(of *redistest.Server) string {
		for i := 0; ; i++ {
			if tag := "{" + strconv.Itoa(i) + "}"; cluster.Master(t, tag) == of {
				return tag
			}
		}
	}
	const many, owner = 2000, "01a20376-5c32-7c6b-b43e-000000000010:1" // enough for a page to end before the last
	here, there := tag(now), tag(higher)
	for i := range many {
		s.do("HSET", here+strconv.Itoa(i), owner, "1")
	}
	s.do("HSET", there, owner, "1")
	cluster.WaitForReplica(t, higher)
	s.until("a client that connects knows the replica", func() bool {
		s.rdb = s.connect()
		return s.rdb.Nodes()[lower.Addr()] != nil
	})
	a, err := admin.New(s.rdb)
	s.must(err)
	listed := make(map[string]bool)
	found := 0
	for cursor, first, over := "", true, false; first || cursor != ""; first = false {
		page, err := a.Page(t.Context(), admin.Query{}, cursor)
		s.must(err)
		for _, l := range page.Locks {
			if listed[l.Name] = true; strings.HasPrefix(l.Name, here) {
				found++
			}
		}
		cursor = page.Next
		if found > 0 && !over {
			over = true
			if found >= many {
				t.Fatal("the page has all locks of its primary")
			}
			cluster.TakeOver(t, lower)
		}
	}
	if len(listed) != many+1 {
		t.Errorf("%d locks are listed, want %d", len(listed), many+1)
	}
}

// A survey has the locks of a primary that did not respond as soon as the primary is back, and not only when the scan reaches it. Otherwise they
// would look released in the meantime.
func TestSurvey_primaryBack(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-replica-no-failover", "yes")
	s := &scene{T: t, connect: func() rueidis.Client { return cluster.Client(t) }}
	s.rdb = s.connect()
	const opTimeout = 3 * time.Second
	a, err := admin.New(s.rdb, admin.WithOpTimeout(opTimeout))
	s.must(err)
	const owner = "01a20376-5c32-7c6b-b43e-000000000010:1"
	var noise rueidis.Commands
	for i := range 6000 {
		noise = append(noise, s.rdb.B().Set().Key("noise"+strconv.Itoa(i)).Value("x").Build())
	}
	for _, r := range s.rdb.DoMulti(t.Context(), noise...) {
		s.must(r.Error())
	}
	var names []string
	for i := range 24 {
		names = append(names, "orders:"+strconv.Itoa(i))
		s.do("HSET", names[i], owner, "1")
		s.do("HSET", fmt.Sprintf("leasehold_client:01a20376-5c32-7c6b-b43e-0000000000%02d", i), "host", "host-9", "pid", "7")
	}
	first := cluster.Master(t, slices.MinFunc(names, func(a, b string) int { return cluster.Slot(t, a) - cluster.Slot(t, b) })) // the scan reaches it first
	survey, other := a.Survey(admin.Query{}), a.Survey(admin.Query{})
	whole, known := s.look(survey, time.Minute)
	first.Freeze(t)
	for asked := 0; asked < 2; { // each look between the first and the second attempt lacks it, too
		began := time.Now()
		if part, seen := s.look(survey, time.Minute); part == whole || len(seen.Missing) != 1 {
			t.Fatalf("without %s: %s, %+v", first.Addr(), part, seen.Missing)
		}
		if time.Since(began) >= opTimeout {
			asked++
		}
	}
	s.look(survey, 0) // the pass has reached the next primary
	first.Thaw(t)
	s.until("the primary is not missing", func() bool {
		_, seen := s.look(other, 0)
		return seen.Missing == nil
	})
	for _, limit := range []time.Duration{time.Minute, 0} { // at the end of the pass, and at the beginning of the next one
		got, seen := s.look(survey, limit)
		if got != whole || len(seen.Clients) != len(known.Clients) || seen.Missing != nil {
			t.Errorf("the primary is back: %s and %d clients, want %s and %d; %+v", got, len(seen.Clients), whole, len(known.Clients), seen.Missing)
		}
	}
}
