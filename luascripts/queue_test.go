package luascripts_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A plain and a fair lock with the same name share a hash. The queue of the plain one must not look
// like a holder to the fair one.
func TestQueue_besideAFairLock(t *testing.T) {
	fair, next := luascripts.Request{Owner: ours, Lease: lease, Want: 1}, luascripts.Request{Owner: ours + "2", Lease: lease, Want: 1}
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		take := func(want luascripts.Verdict, q luascripts.Request) {
			t.Helper()
			if got, err := luascripts.AcquireFair(t.Context(), rdb, fairKeys, q); err != nil || got.Verdict != want {
				t.Fatalf("%v, %v, want %v", got, err, want)
			}
		}
		stand := func() {
			t.Helper()
			got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Request{Owner: other, Lease: lease, Want: 1, Offer: offer, WaiterTimeout: time.Minute, RetryAfter: time.Second})
			if err != nil || got.Verdict != luascripts.Held {
				t.Fatalf("%v, %v", got, err)
			}
		}
		take(luascripts.Done, fair)
		stand()
		take(luascripts.Held, next)
		again := fair
		again.Want = 2
		take(luascripts.Done, again)
		if s, err := luascripts.InspectFair(t.Context(), rdb, fairKeys); err != nil || len(s.Fields) != 1 || s.Fields[0].Value != "2" {
			t.Errorf("%v, %v", s, err)
		}
		if got, err := luascripts.ReleaseFair(t.Context(), rdb, fairKeys, ours, 0); err != nil || got != luascripts.Done {
			t.Errorf("%v, %v", got, err)
		}
		if n := number(t, rdb, "EXISTS", keys.Lock); n != 0 {
			t.Error("what is left has no holder")
		}
		take(luascripts.Done, fair)
		stand()
		if got, err := luascripts.ForceFair(t.Context(), rdb, fairKeys); err != nil || got != luascripts.Done {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// The lock is released, and the token counter of its next holder is damaged. The release reports that the
// lock is free, and publishes it. A waiter that needs the token counter gets the error.
func TestRelease_toANextOwnerWithABadTokenCounter(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		seed(t, rdb, ours, 1, 30000)
		k := keys
		k.TokenCounter = "redisson_lock_token:{orders}"
		do(t, rdb, "SADD", k.TokenCounter, "no number")
		got, err := luascripts.HandOffReentrant(t.Context(), rdb, k, ours, luascripts.Release{NextOwner: other, Offer: offer, WaiterTimeout: time.Minute, Spare: 64})
		if err != nil || got.Verdict != luascripts.Done || got.Token != 0 {
			t.Errorf("%v, %v", got, err)
		}
		if n := number(t, rdb, "EXISTS", keys.Lock); n != 0 {
			t.Error("the lock is still there")
		}
	})
}

// offer is the lease of a lock that is granted to a waiter. It has the maximum length, so that a test on a busy machine still
// finds the lock held.
const offer = 10 * time.Second

// cpu returns the CPU time that the server has used, in seconds.
func cpu(t *testing.T, rdb rueidis.Client) float64 {
	t.Helper()
	_, after, _ := strings.Cut(text(do(t, rdb, "INFO", "cpu")), "used_cpu_user:")
	used, _, _ := strings.Cut(after, "\r\n")
	seconds, err := strconv.ParseFloat(used, 64)
	if err != nil {
		t.Fatal(err)
	}
	return seconds
}

// stand puts an owner into the queue.
func stand(t *testing.T, rdb rueidis.Client, k luascripts.Keys, owner string, offer time.Duration) {
	t.Helper()
	if got := ask(t, rdb, k, owner, offer); got.Verdict != luascripts.Held {
		t.Fatalf("%+v", got)
	}
}

// ask sends the first request of an owner that is queued if it is rejected, and retries in a second.
func ask(t *testing.T, rdb rueidis.Client, k luascripts.Keys, owner string, offer time.Duration) luascripts.Acquired {
	t.Helper()
	got, err := luascripts.AcquireReentrant(t.Context(), rdb, k, luascripts.Request{Owner: owner, Lease: lease, Want: 1, Offer: offer, RetryAfter: time.Second, WaiterTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// pass releases the lock of an owner that has no waiter in its process.
func pass(t *testing.T, rdb rueidis.Client, k luascripts.Keys, owner string) {
	t.Helper()
	if got, err := luascripts.HandOffReentrant(t.Context(), rdb, k, owner, luascripts.Release{}); err != nil || got.Verdict != luascripts.Done {
		t.Fatalf("%+v, %v", got, err)
	}
}

func text(m rueidis.RedisMessage) string {
	s, _ := m.ToString()
	return s
}

// queue returns the owners in the queue, in order.
func queue(t *testing.T, rdb rueidis.Client) (owners []string) {
	t.Helper()
	_, entries, _ := strings.Cut(text(do(t, rdb, "HGET", keys.Lock, luascripts.QueueField)), "|")
	for entry := range strings.SplitSeq(strings.TrimSuffix(entries, ";"), ";") {
		if owner, _, _ := strings.Cut(entry, " "); owner != "" {
			owners = append(owners, owner)
		}
	}
	return owners
}

// listening subscribes to the channels that our processes would subscribe to, for each of these
// owners. It returns the messages there, except those on the channel that all of them share.
func listening(t *testing.T, s *redistest.Server, owners ...string) (said chan string) {
	t.Helper()
	said = make(chan string, 100)
	for _, owner := range owners {
		subscribe(t, s, keys.Channel, nil)
		subscribe(t, s, keys.QueueChannel, said)
		subscribe(t, s, process(owner), said)
	}
	return said
}

// process returns the channel of the process of an owner.
func process(owner string) string {
	return keys.QueueChannel + ":" + owner[:strings.LastIndexByte(owner, ':')]
}

// subscribe subscribes to a channel on a separate connection, and sends its messages to said.
func subscribe(t *testing.T, s *redistest.Server, channel string, said chan string) {
	t.Helper()
	conn, release := s.Client(t).Dedicate()
	t.Cleanup(release)
	receive(t, conn, channel, said)
}

// until returns the messages that a subscriber of a channel has received so far. Its connection stays subscribed.
func until(t *testing.T, rdb rueidis.Client, channel string, said chan string) (all []string) {
	t.Helper()
	do(t, rdb, "PUBLISH", channel, endOfTalk)
	for m := range said {
		if m == endOfTalk {
			break
		}
		all = append(all, m)
	}
	return all
}

// listener subscribes to a channel until leave is called.
func listener(t *testing.T, s *redistest.Server, channel string) (leave func()) {
	t.Helper()
	rdb := s.Client(t)
	conn, release := rdb.Dedicate()
	t.Cleanup(release)
	receive(t, conn, channel, nil)
	return func() {
		t.Helper()
		if err := conn.Do(t.Context(), conn.B().Unsubscribe().Channel(channel).Build()).Error(); err != nil {
			t.Fatal(err)
		}
		for listeners(t, rdb, channel) > 0 {
		}
	}
}

// listeners returns the number of subscribers that the server counts on a channel.
func listeners(t *testing.T, rdb rueidis.Client, channel string) int64 {
	t.Helper()
	reply := do(t, rdb, "PUBSUB", "NUMSUB", channel)
	counts, err := reply.ToArray()
	if err != nil {
		t.Fatal(err)
	}
	n, err := counts[1].ToInt64()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func receive(t *testing.T, conn rueidis.DedicatedClient, channel string, said chan string) {
	t.Helper()
	confirmed := make(chan struct{})
	confirm := sync.OnceFunc(func() { close(confirmed) })
	conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) {
			if said != nil {
				said <- m.Message
			}
		},
		OnSubscription: func(rueidis.PubSubSubscription) { confirm() },
	})
	if err := conn.Do(t.Context(), conn.B().Subscribe().Channel(channel).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	<-confirmed
}

const (
	holder = "00000000-0000-7000-8000-000000000000:1"
	first  = "11111111-1111-7111-8111-111111111111:5"
	second = "22222222-2222-7222-8222-222222222222:6"
)

// hold makes holder the holder of the lock, and puts others into the queue.
func hold(t *testing.T, rdb rueidis.Client, waiting ...string) {
	t.Helper()
	do(t, rdb, "DEL", keys.Lock)
	seed(t, rdb, holder, 1, 30_000)
	for _, owner := range waiting {
		stand(t, rdb, keys, owner, offer)
	}
}

// The release grants the lock to the first process in the queue, for its offer, and notifies it.
// The others move up, and the waiter of the releasing process is behind them.
func TestQueue_firstComeFirstServed(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	said := listening(t, s, first, second)
	hold(t, rdb, first, second)
	stand(t, rdb, keys, first, offer) // it retries, and keeps its position
	const nextOwner = "00000000-0000-7000-8000-000000000000:2"
	p := luascripts.Release{Last: 1 << 52, NextOwner: nextOwner, Offer: offer, WaiterTimeout: time.Minute, RetryAfter: time.Second}
	got, err := luascripts.HandOffReentrant(t.Context(), rdb, keys, holder, p)
	if err != nil || got != (luascripts.Released{Verdict: luascripts.Done}) {
		t.Fatalf("%+v, %v", got, err)
	}
	if got := until(t, rdb, process(first), said); !slices.Equal(got, []string{"0"}) {
		t.Errorf("told %q", got)
	}
	if after, want := queue(t, rdb), []string{second, nextOwner}; !slices.Equal(after, want) {
		t.Errorf("in the queue are %q, want %q", after, want)
	}
	if m := do(t, rdb, "HGET", keys.Lock, first); text(m) != "1" || number(t, rdb, "HLEN", keys.Lock) != 2 {
		t.Errorf("its count is %q", text(m))
	}
	about(t, "the lease", pttl(t, rdb, keys.Lock), offer)

	// Its request finds that it holds the lock, and extends the lease.
	if a := ask(t, rdb, keys, first, offer); a.Verdict != luascripts.Done || a.Token == 0 {
		t.Errorf("%+v", a)
	}
	about(t, "the lease", pttl(t, rdb, keys.Lock), lease)

	// A delayed duplicate of the release changes nothing.
	before := contents(t, rdb)
	if got, err := luascripts.HandOffReentrant(t.Context(), rdb, keys, holder, luascripts.Release{}); err != nil || got.Verdict != luascripts.Gone || contents(t, rdb) != before {
		t.Errorf("%+v, %v", got, err)
	}

	// A waiter that stops waiting leaves the queue.
	if v, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, second, 0); err != nil || v != luascripts.Gone {
		t.Errorf("%v, %v", v, err)
	}
	if v, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, nextOwner, 0); err != nil || v != luascripts.Gone || queue(t, rdb) != nil {
		t.Errorf("%v, %v, %q are left in the queue", v, err, queue(t, rdb))
	}

	// Without other processes in the queue, the reply grants the lock to the next owner.
	p.NextOwner, p.Last = second, 1<<52+1
	got, err = luascripts.HandOffReentrant(t.Context(), rdb, keys, first, p)
	if err != nil || got.Token != 1<<52+2 {
		t.Errorf("%+v, %v", got, err)
	}
	if v, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, second, 0); err != nil || v != luascripts.Done || number(t, rdb, "EXISTS", keys.Lock) != 0 {
		t.Errorf("%v, %v", v, err)
	}
	if len(said) > 0 {
		t.Errorf("told %q", <-said)
	}
}

// The next owner of a release has the queue position that its process had before.
func TestQueue_theNextOwnerKeepsItsPosition(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	listening(t, s, first, second)
	hold(t, rdb, first, second)
	const nextOwner = first + "9" // of the process that is first in the queue
	got, err := luascripts.HandOffReentrant(t.Context(), rdb, keys, holder, luascripts.Release{NextOwner: nextOwner, Offer: offer, WaiterTimeout: time.Minute})
	if err != nil || got.Token == 0 || number(t, rdb, "HEXISTS", keys.Lock, nextOwner) != 1 {
		t.Errorf("%+v, %v, %q", got, err, contents(t, rdb))
	}
	if after, want := queue(t, rdb), []string{second}; !slices.Equal(after, want) {
		t.Errorf("in the queue are %q, want %q", after, want)
	}
}

// While nothing changes, a request of a waiter writes nothing. Its entry stays the same while the
// server counts it as a subscriber, and on a cluster for half of its lifetime.
func TestQueue_writesOnlyWhatIsNew(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	listening(t, s, first)
	scattered := keys
	scattered.Scattered = true
	for name, k := range map[string]luascripts.Keys{"counted": keys, "a cluster": scattered} {
		t.Run(name, func(t *testing.T) {
			hold(t, rdb)
			stand(t, rdb, k, first, time.Second)
			dirty := func() int64 { return info(t, rdb, "persistence", "rdb_changes_since_last_save:") }
			before := dirty()
			for range 10 {
				stand(t, rdb, k, first, time.Second)
			}
			if n := dirty() - before; n != 0 {
				t.Errorf("%d changes in ten requests", n)
			}
			stand(t, rdb, k, first, 2*time.Second) // the offer is new
			if n := dirty() - before; n != 1 {
				t.Errorf("%d changes for a new offer, want 1", n)
			}
			stand(t, rdb, k, first+"9", 2*time.Second) // another owner of the same process
			if after := queue(t, rdb); !slices.Equal(after, []string{first + "9"}) {
				t.Errorf("in the queue are %q", after)
			}
		})
	}
}

// A process that no message reaches is skipped, even if a client is subscribed to all channels with a
// pattern. A process whose deadline has passed is skipped if the server cannot count subscribers.
func TestQueue_skipsTheDead(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	said := listening(t, s, second)
	monitor, release := s.Client(t).Dedicate()
	t.Cleanup(release)
	if err := monitor.Do(t.Context(), monitor.B().Psubscribe().Pattern("*").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	scattered := keys
	scattered.Scattered = true
	for name, c := range map[string]struct {
		k             luascripts.Keys
		waiterTimeout time.Duration
		want          string
	}{
		"gone":                {keys, time.Minute, second},
		"nobody can tell":     {scattered, time.Minute, first},
		"cluster, not heard ": {scattered, time.Millisecond, second},
	} {
		t.Run(name, func(t *testing.T) {
			hold(t, rdb)
			leave := listener(t, s, process(first))
			q := luascripts.Request{Owner: first, Lease: lease, Want: 1, Offer: offer, WaiterTimeout: c.waiterTimeout}
			if _, err := luascripts.AcquireReentrant(t.Context(), rdb, c.k, q); err != nil {
				t.Fatal(err)
			}
			leave()
			stand(t, rdb, c.k, second, offer)
			for start := now(t, rdb); now(t, rdb) < start+2; { // the deadline uses the server's clock
			}
			pass(t, rdb, c.k, holder)
			if n := number(t, rdb, "HEXISTS", keys.Lock, c.want); n != 1 {
				t.Errorf("%q", contents(t, rdb))
			}
			if c.want == second {
				<-said
			} else if after := queue(t, rdb); !slices.Equal(after, []string{second}) {
				t.Errorf("in the queue are %q", after)
			}
		})
	}
}

// A grant is not revoked, whether or not the message reaches a subscriber, because there may be a
// subscriber that the server does not count.
func TestQueue_takesNothingBack(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	scattered := keys
	scattered.Scattered = true
	hold(t, rdb)
	stand(t, rdb, scattered, first, offer)
	pass(t, rdb, keys, holder) // it counts subscribers, and reaches none
	if n := number(t, rdb, "HEXISTS", keys.Lock, first); n != 1 {
		t.Errorf("%q", contents(t, rdb))
	}
}

// A process that no message reaches is informed of that. It is granted the lock shortly before it
// retries, and sooner the longer it has waited. Until then others are granted the lock, and it
// keeps its position.
func TestQueue_withoutSubscribers(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	listening(t, s, second)
	for name, c := range map[string]struct {
		waited, again time.Duration
		want          string
	}{
		"asks soon":      {0, 15 * time.Millisecond, first},
		"asks later":     {0, 30 * time.Second, second},
		"waited briefly": {5 * time.Second, 30 * time.Second, second},
		"waited long":    {11 * time.Second, time.Second, first},
	} {
		t.Run(name, func(t *testing.T) {
			hold(t, rdb)
			q := luascripts.Request{Owner: first, Lease: lease, Want: 1, Offer: 3 * time.Second, WaiterTimeout: time.Minute, Waited: c.waited, RetryAfter: c.again}
			got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, q)
			if err != nil || got.Verdict != luascripts.Held || !got.NoPubSub {
				t.Fatalf("%+v, %v", got, err)
			}
			if got := ask(t, rdb, keys, second, offer); got.Verdict != luascripts.Held || got.NoPubSub {
				t.Fatalf("%+v", got)
			}
			pass(t, rdb, keys, holder)
			if n := number(t, rdb, "HEXISTS", keys.Lock, c.want); n != 1 {
				t.Errorf("%q", contents(t, rdb))
			}
			left := []string{first}
			if c.want == first {
				left = []string{second}
			}
			if after := queue(t, rdb); !slices.Equal(after, left) {
				t.Errorf("in the queue are %q, want %q", after, left)
			}
		})
	}
}

// Each process that is not subscribed can delay the others, so a queue has at most eight of them.
func TestQueue_fewWithoutSubscribers(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	hold(t, rdb)
	for i := range 10 {
		q := luascripts.Request{Owner: fmt.Sprintf("%08x-1111-7111-8111-111111111111:5", i), Lease: lease, Want: 1, Offer: offer, WaiterTimeout: time.Minute, RetryAfter: time.Second}
		got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, q)
		if err != nil || got.Verdict != luascripts.Held || !got.NoPubSub {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if line := text(do(t, rdb, "HGET", keys.Lock, luascripts.QueueField)); len(queue(t, rdb)) != 8 || !strings.HasPrefix(line, "0 0") {
		t.Errorf("the queue is %q, want 8 processes and the mark", line)
	}
}

// A waiter that leaves removes only itself from the queue.
func TestQueue_oneLeaves(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	listening(t, s, first, second)
	hold(t, rdb, first, second)
	v, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, first, 0)
	check(t, "the first leaves", v, luascripts.Gone, err)
	if after := queue(t, rdb); !slices.Equal(after, []string{second}) {
		t.Errorf("in the queue are %q", after)
	}
}

// A queue has at most 64 entries. A new process finds a position if the queue is full of dead ones.
func TestQueue_isBounded(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	var all []string
	for i := range 70 {
		all = append(all, fmt.Sprintf("%08x-1111-7111-8111-111111111111:5", i))
	}
	listener(t, s, process(all[3]))
	hold(t, rdb)
	var leave []func()
	for i, owner := range all {
		if i != 3 {
			leave = append(leave, listener(t, s, process(owner)))
		}
		stand(t, rdb, keys, owner, offer)
	}
	if after := queue(t, rdb); !slices.Equal(after, all[:64]) {
		t.Errorf("in the queue are %d, %q", len(after), after)
	}
	for _, f := range leave {
		f()
	}
	for range 1000 { // the script checks for dead processes only occasionally
		stand(t, rdb, keys, all[69], offer)
		if len(queue(t, rdb)) < 64 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if after, want := queue(t, rdb), []string{all[3], all[69]}; !slices.Equal(after, want) {
		t.Errorf("in the queue are %q, want %q", after, want)
	}

	// A long text of another program is not read to its end.
	var long strings.Builder
	long.WriteString("1 0|")
	for i := range 10_000 {
		fmt.Fprintf(&long, "%08x-1111-7111-8111-111111111111:5 1000 0 0 0;", i+100)
	}
	do(t, rdb, "HSET", keys.Lock, luascripts.QueueField, long.String())
	before := cpu(t, rdb)
	pass(t, rdb, keys, holder)
	if took := cpu(t, rdb) - before; took > 0.1 || number(t, rdb, "EXISTS", keys.Lock) != 0 {
		t.Errorf("it took %.3f s of CPU, or is not free", took)
	}
}

// A process that finds the queue full marks it. The lock becomes free after a turn of each process in the queue, even if
// each of them immediately queues again.
func TestQueue_full(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	owners := []string{holder}
	for i := range luascripts.MaxQueued {
		owners = append(owners, fmt.Sprintf("%08x-1111-7111-8111-111111111111:5", i))
	}
	defer crowd(t, s, append(owners, second))()
	hold(t, rdb, owners[1:]...)
	_, entries, _ := strings.Cut(text(do(t, rdb, "HGET", keys.Lock, luascripts.QueueField)), "|")
	do(t, rdb, "HSET", keys.Lock, luascripts.QueueField, fmt.Sprintf("0 %d|%s", now(t, rdb)-1000, entries))
	for i := range 200 {
		owner := owners[i%len(owners)]
		stand(t, rdb, keys, second, offer)
		got, err := luascripts.HandOffReentrant(t.Context(), rdb, keys, owner, luascripts.Release{})
		if err != nil || got.Verdict != luascripts.Done {
			t.Fatalf("%+v, %v", got, err)
		}
		if got.Aside {
			if i != 64 || number(t, rdb, "EXISTS", keys.Lock) != 0 {
				t.Errorf("freed after %d grants, left %q", i, contents(t, rdb))
			}
			return
		}
		stand(t, rdb, keys, owner, offer)
	}
	t.Errorf("it was never freed: %q", contents(t, rdb))
}

// If there are subscribers that do not use the queue, the lock occasionally becomes free for them, and
// ours are notified to retry later. This happens after four grants, or after 16 if the server cannot
// count such subscribers. If there are none, the lock is freed for callers of TryLock: after four grants
// and a second if one has left its mark, and otherwise after 640 grants and ten seconds.
func TestQueue_yieldsToOthers(t *testing.T) {
	scattered := keys
	scattered.Scattered = true
	for name, c := range map[string]struct {
		k            luascripts.Keys
		tried        bool
		others, want int
		since        time.Duration // time since the lock was free
		not          time.Duration // the minimum of since for freeing it
	}{
		"none":               {keys, false, 0, 640, 10 * time.Second, 0},
		"none, a moment ago": {keys, false, 0, 700, 0, 10 * time.Second},
		"tried":              {keys, true, 0, 4, time.Second, 0},
		"tried, served":      {keys, true, 0, 700, 0, time.Second},
		"one":                {keys, false, 1, 4, 0, 0},
		"a cluster":          {scattered, false, 0, 16, 0, 0},
		"a cluster, tried":   {scattered, true, 0, 16, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			rdb := s.Client(t)
			said := listening(t, s, holder, first) // first is not in the queue
			free := make(chan string, 100)
			subscribe(t, s, keys.QueueChannel, nil) // a subscriber there is ours
			subscribe(t, s, keys.Channel, free)
			for range c.others {
				subscribe(t, s, keys.Channel, nil)
			}
			hold(t, rdb)
			wasFree := now(t, rdb) - c.since.Milliseconds()
			do(t, rdb, "HSET", keys.Lock, luascripts.QueueField, fmt.Sprintf("0 %d|", wasFree))
			if c.tried {
				try(t, rdb)
			}
			owner := holder
			for i := range 700 {
				nextOwner := fmt.Sprintf("00000000-0000-7000-8000-000000000000:%d", i+2)
				got, err := luascripts.HandOffReentrant(t.Context(), rdb, c.k, owner, luascripts.Release{NextOwner: nextOwner, Offer: offer, WaiterTimeout: time.Minute})
				if err != nil || got.Verdict != luascripts.Done {
					t.Fatalf("%+v, %v", got, err)
				}
				if owner = nextOwner; got.Token != 0 {
					continue
				}
				if passed := time.Duration(now(t, rdb)-wasFree) * time.Millisecond; c.not > 0 && passed >= c.not {
					return // the machine is slow
				}
				if i != c.want || !got.Aside || number(t, rdb, "EXISTS", keys.Lock) != 0 {
					t.Errorf("freed after %d grants, want %d; %+v, left %q", i, c.want, got, contents(t, rdb))
				}
				if got := until(t, rdb, keys.Channel, free); !slices.Equal(got, []string{"0"}) {
					t.Errorf("told %q", got)
				}
				if got := until(t, rdb, keys.QueueChannel, said); len(got) == 0 || got[0] != luascripts.Aside {
					t.Errorf("told %q", got)
				}
				return
			}
			if c.want < 700 {
				t.Error("it was never freed")
			}
		})
	}
}

// A process that leaves the queue does not reset the number of grants after which the lock becomes free for others.
func TestQueue_grantsAreCountedOn(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	listening(t, s, holder, first)
	subscribe(t, s, keys.QueueChannel, nil) // a subscriber there is ours
	for range 2 {
		subscribe(t, s, keys.Channel, nil)
	}
	hold(t, rdb)
	owner := holder
	for i := range 20 {
		stand(t, rdb, keys, first, offer)
		v, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, first, 0)
		check(t, "it leaves", v, luascripts.Gone, err)
		nextOwner := fmt.Sprintf("00000000-0000-7000-8000-000000000000:%d", i+2)
		got, err := luascripts.HandOffReentrant(t.Context(), rdb, keys, owner, luascripts.Release{NextOwner: nextOwner, Offer: offer, WaiterTimeout: time.Minute})
		if err != nil || got.Verdict != luascripts.Done {
			t.Fatalf("%+v, %v", got, err)
		}
		if owner = nextOwner; got.Token != 0 {
			continue
		}
		if i != 4 || !got.Aside || number(t, rdb, "EXISTS", keys.Lock) != 0 {
			t.Errorf("freed after %d grants: %+v, left %q", i, got, contents(t, rdb))
		}
		return
	}
	t.Error("it was never freed")
}

// A waiter with a token counter may be queued behind a holder without one, and vice versa. The
// waiter's token comes from its own request.
func TestQueue_needsTheTokenCounter(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	said := listening(t, s, first, second)
	fenced := keys
	fenced.TokenCounter = "redisson_lock_token:{orders}"
	do(t, rdb, "SET", fenced.TokenCounter, "4000000000000000")
	hold(t, rdb)
	stand(t, rdb, fenced, first, offer)
	stand(t, rdb, keys, second, offer)
	pass(t, rdb, keys, holder)
	<-said
	if got := ask(t, rdb, fenced, first, offer); got.Verdict != luascripts.Done || got.Token != 4000000000000001 {
		t.Errorf("%+v", got)
	}
	if r := text(do(t, rdb, "GET", fenced.TokenCounter)); r != "4000000000000001" {
		t.Errorf("the token counter is at %s", r)
	}
	pass(t, rdb, fenced, first)
	<-said
	if got := ask(t, rdb, keys, second, offer); got.Verdict != luascripts.Done || got.Token == 0 {
		t.Errorf("%+v", got)
	}
}

// A grant that would not expire in time is not made. The lock is free, and its waiters send requests.
func TestQueue_withoutTheRightToPEXPIRE(t *testing.T) {
	s := redistest.Start(t)
	said := listening(t, s, first)
	hold(t, s.Client(t), first)
	rdb := denied(t, s, "pexpire")
	pass(t, rdb, keys, holder)
	if n := number(t, rdb, "EXISTS", keys.Lock); n != 0 || len(said) > 0 {
		t.Errorf("told %d, left %q", len(said), contents(t, rdb))
	}
}

// An application's hash is not a lock, whatever its values are. It does not change, and keeps its expiry.
func TestPlain_isKnownByItsFields(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for name, hash := range map[string][]string{
			"one counter":            {"visits", "12"},
			"several":                {"visits", "12", "42", "1", "7", "3"},
			"a number":               {"42", "1"},
			"a mode":                 {"mode", "read"},
			"a uuid":                 {"6f1c4c5e-7f5c-4c84-9a53-1f3a7a1b2c3d", "1"},
			"half a uuid":            {"6f1c4c5e:1", "1"},
			"more than a uuid":       {"a" + ours, "1"},
			"no number":              {ours[:37], "1"},
			"more than a count":      {ours, "1x"},
			"two owners and a queue": {ours, "1", other + "1", "1", luascripts.QueueField, "0 0|"},
			"a writer":               {ours + ":write", "1"},
			"beside an owner":        {ours, "1", "visits", "12"},
			"beside a queue":         {luascripts.QueueField, "0 0|", "visits", "12"},
			"beside owner and line":  {ours, "1", luascripts.QueueField, "0 0|", "visits", "12"},
		} {
			t.Run(name, func(t *testing.T) {
				do(t, rdb, "DEL", keys.Lock)
				do(t, rdb, append([]string{"HSET", keys.Lock}, hash...)...)
				do(t, rdb, "PEXPIRE", keys.Lock, "50000")
				before := contents(t, rdb)
				q := luascripts.Request{Owner: other, Lease: time.Hour, Want: 1, Offer: offer, WaiterTimeout: time.Minute}
				if got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, q); err != nil || got.Verdict != luascripts.Foreign {
					t.Errorf("acquire: %+v, %v", got, err)
				}
				if got, err := luascripts.ForceReentrant(t.Context(), rdb, keys); err != nil || got != luascripts.Foreign {
					t.Errorf("force: %+v, %v", got, err)
				}
				if got, err := luascripts.InspectReentrant(t.Context(), rdb, keys); err != nil || !got.Foreign || len(got.Fields) > 0 {
					t.Errorf("inspect: %+v, %v", got, err)
				}
				if contents(t, rdb) != before {
					t.Errorf("%q, want %q", contents(t, rdb), before)
				}
				if left := number(t, rdb, "PTTL", keys.Lock); left > 50_000 || left < 20_000 {
					t.Errorf("its expiry is %d ms", left)
				}
			})
		}
	})
}

// A waiter that is queued and reachable retries without the checks for a new waiter.
func TestQueue_aRetryIsCheap(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	listening(t, s, first)
	hold(t, rdb)
	stand(t, rdb, keys, first, offer)
	for _, command := range []string{"hlen", "time"} {
		before := s.CommandCalls(t, command)
		stand(t, rdb, keys, first, offer)
		if n := s.CommandCalls(t, command) - before; n != 0 {
			t.Errorf("%s: %d calls", command, n)
		}
	}
}

// A waiter in a queue without a holder acquires the lock when it retries.
func TestQueue_aloneIsFreeForItsFirst(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	listening(t, s, first)
	hold(t, rdb)
	stand(t, rdb, keys, first, offer)
	do(t, rdb, "HDEL", keys.Lock, holder)
	if got := ask(t, rdb, keys, first, offer); got.Verdict != luascripts.Done {
		t.Errorf("%+v", got)
	}
}

// A queue alone holds nothing. It remains when an operator deletes the owner's field.
func TestQueue_aloneIsFree(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		hold(t, rdb, first)
		do(t, rdb, "HDEL", keys.Lock, holder)
		if got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Request{Owner: second, Lease: lease, Want: 1}); err != nil || got.Verdict != luascripts.Done {
			t.Errorf("%+v, %v", got, err)
		}
		if after := queue(t, rdb); !slices.Equal(after, []string{first}) {
			t.Errorf("in the queue are %q", after)
		}

		hold(t, rdb, first, other)
		do(t, rdb, "HDEL", keys.Lock, holder)
		if v, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, first, 0); err != nil || v != luascripts.Gone || number(t, rdb, "EXISTS", keys.Lock) != 0 {
			t.Errorf("%v, %v, left %q", v, err, contents(t, rdb))
		}
	})
}

// When it changes how a process is known to be alive, its next request corrects the entry: messages
// reach it again, or the server can no longer count subscribers.
func TestQueue_entriesFollowTheirProcess(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	scattered := keys
	scattered.Scattered = true

	hold(t, rdb)
	if got := ask(t, rdb, keys, first, offer); !got.NoPubSub { // retries in a second
		t.Fatalf("%+v", got)
	}
	listening(t, s, first)
	stand(t, rdb, keys, first, offer)
	pass(t, rdb, keys, holder) // now messages reach it
	if n := number(t, rdb, "HEXISTS", keys.Lock, first); n != 1 {
		t.Errorf("reached again, and passed over: %q", contents(t, rdb))
	}

	hold(t, rdb)
	leave := listener(t, s, process(other))
	stand(t, rdb, keys, other, offer)
	if got := ask(t, rdb, scattered, other, offer); got.Verdict != luascripts.Held || got.NoPubSub { // unknown who receives messages
		t.Errorf("%+v", got)
	}
	stand(t, rdb, keys, other, offer)
	leave()
	if got := ask(t, rdb, keys, other, offer); !got.NoPubSub {
		t.Errorf("no message reaches it any more: %+v", got)
	}

	hold(t, rdb)
	if got := ask(t, rdb, keys, second, offer); !got.NoPubSub {
		t.Fatalf("%+v", got)
	}
	if got := ask(t, rdb, scattered, second, offer); got.NoPubSub {
		t.Fatalf("%+v", got)
	}
	pass(t, rdb, scattered, holder) // now the server cannot report that no message reaches it
	if n := number(t, rdb, "HEXISTS", keys.Lock, second); n != 1 {
		t.Errorf("the server cannot count, and passed it over: %q", contents(t, rdb))
	}
}

// If the server cannot count subscribers, a process is alive for `keep` after its latest request.
// Its entry is rewritten when half of that time has passed.
func TestQueue_isKeptAliveByRequests(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	scattered := keys
	scattered.Scattered = true
	hold(t, rdb)
	start := now(t, rdb)
	do(t, rdb, "HSET", keys.Lock, luascripts.QueueField, fmt.Sprintf("0 %d|%s 1000 0 0 %d;", start, first, start+29_000))
	if got := ask(t, rdb, scattered, first, offer); got.Verdict != luascripts.Held { // kept for a minute
		t.Fatalf("%+v", got)
	}
	entry := strings.Fields(strings.TrimSuffix(text(do(t, rdb, "HGET", keys.Lock, luascripts.QueueField)), ";"))
	if deadline, err := strconv.ParseInt(entry[len(entry)-1], 10, 64); err != nil || deadline < start+60_000 {
		t.Errorf("it is kept until %d ms after the request, %v", deadline-start, err)
	}
}

// The next owner of a release is granted the lock for its own offer, not for the offer of the waiter
// whose position it takes.
func TestQueue_theNextOwnersOffer(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	listening(t, s, first)
	hold(t, rdb)
	stand(t, rdb, keys, first, time.Minute)
	got, err := luascripts.HandOffReentrant(t.Context(), rdb, keys, holder, luascripts.Release{NextOwner: first + "9", Offer: 20 * time.Second, WaiterTimeout: time.Minute})
	if err != nil || got.Token == 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	about(t, "the lease", pttl(t, rdb, keys.Lock), 20*time.Second)
}

// A dead process that the release skips is removed from the queue. A process that no message reaches
// is alive until its deadline, even if its requests are rare.
func TestQueue_forgetsTheDead(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	const third = "33333333-3333-7333-8333-333333333333:7"
	hold(t, rdb)
	leave := listener(t, s, process(first))
	stand(t, rdb, keys, first, offer)
	leave()
	listening(t, s, third)
	if got := ask(t, rdb, keys, second, offer); !got.NoPubSub { // retries in a second, and is kept for a minute
		t.Fatalf("%+v", got)
	}
	stand(t, rdb, keys, third, offer)
	pass(t, rdb, keys, holder)
	if after, want := queue(t, rdb), []string{second}; !slices.Equal(after, want) || number(t, rdb, "HEXISTS", keys.Lock, third) != 1 {
		t.Errorf("in the queue are %q, want %q; %q", after, want, contents(t, rdb))
	}
}

// If the field of the queue contains text of another program, it does not grow, nothing is granted
// to it, and it keeps no owner from acquiring the lock.
func TestQueue_ofAnotherProgram(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	nines := strings.Repeat("9", 400)
	for _, text := range []string{
		"garbage ", strings.Repeat("x ", 50), "1 2|x y;", "1 2|" + strings.Repeat("a", 1000) + ";", strings.Repeat(" ", 5<<20),
		"1 2|" + strings.Repeat(second+" 1000 0 0 0;", 100_000), nines + " " + nines + "|", "0 0|" + second + " 1000 " + nines + " " + nines + " " + nines + ";",
		"0 0|mode 5000 0 0 " + nines + ";", "0 0|x 5000 0 0 " + nines + ";", "0 0|%s%d 1 1 1 " + nines + ";", "-1 -1|", "0 0|" + second + " 99999999999999999999 0 0 " + nines + ";",
	} {
		hold(t, rdb)
		do(t, rdb, "HSET", keys.Lock, luascripts.QueueField, text)
		for range 20 {
			if got := ask(t, rdb, keys, first, offer); got.Verdict != luascripts.Held {
				t.Fatalf("%.40q: %+v", text, got)
			}
		}
		if n := number(t, rdb, "HSTRLEN", keys.Lock, luascripts.QueueField); n > 2000 {
			t.Errorf("%.40q: the queue has %d bytes after 20 requests of one process", text, n)
		}
		const nextOwner = "33333333-3333-7333-8333-333333333333:1"
		got, err := luascripts.HandOffReentrant(t.Context(), rdb, keys, holder, luascripts.Release{NextOwner: nextOwner, Offer: offer, RetryAfter: time.Second, WaiterTimeout: time.Minute})
		if err != nil || got.Verdict != luascripts.Done {
			t.Errorf("%.40q: %+v, %v", text, got, err)
		}
		if left := pttl(t, rdb, keys.Lock); left > 10*time.Second {
			t.Errorf("%.40q: granted for %v", text, left)
		}
		if a, err := luascripts.InspectReentrant(t.Context(), rdb, keys); err != nil || a.Foreign {
			t.Errorf("%.40q: %+v, %v", text, a, err)
		}
	}
}

// Redisson's owners have the numbers of threads, which can be any integer.
func TestPlain_anyThread(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		seed(t, rdb, ours[:37]+"-5", 1, 30_000)
		if got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Request{Owner: other, Lease: lease, Want: 1}); err != nil || got.Verdict != luascripts.Held {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// A rejected TryLock is not queued. It leaves its mark in the queue once, and nothing else. For a lock without a queue, it leaves
// nothing.
func TestQueue_singleAttemptsLeaveAMark(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		hold(t, rdb)
		before := contents(t, rdb)
		if try(t, rdb); contents(t, rdb) != before {
			t.Errorf("left %q, want %q", contents(t, rdb), before)
		}
		stand(t, rdb, keys, first, offer)
		text := func() string { return text(do(t, rdb, "HGET", keys.Lock, luascripts.QueueField)) }
		marked := strings.Replace(text(), "0 ", "0 0", 1)
		for range 2 {
			if try(t, rdb); text() != marked {
				t.Errorf("the queue is %q, want %q", text(), marked)
			}
		}
		stand(t, rdb, keys, second, offer) // the process that arrives next keeps the mark
		if after, want := queue(t, rdb), []string{first, second}; !slices.Equal(after, want) || !strings.HasPrefix(text(), marked) {
			t.Errorf("the queue is %q, want %q and %q", text(), marked, second)
		}
		if is, err := luascripts.InspectReentrant(t.Context(), rdb, keys); err != nil || len(is.Waiters) != 2 || len(is.Fields) != 1 {
			t.Errorf("%+v, %v", is, err)
		}
	})
}

// try sends the request of a TryLock, which is rejected.
func try(t *testing.T, rdb rueidis.Client) {
	t.Helper()
	if got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Request{Owner: other, Lease: lease, Want: 1}); err != nil || got.Verdict != luascripts.Held || got.NoPubSub {
		t.Errorf("%+v, %v", got, err)
	}
}

// When the last process leaves the queue, the queue is removed.
func TestQueue_goesWithTheLast(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		hold(t, rdb, first)
		if v, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, first, 0); err != nil || v != luascripts.Gone {
			t.Errorf("%v, %v", v, err)
		}
		if n := number(t, rdb, "HEXISTS", keys.Lock, luascripts.QueueField); n != 0 {
			t.Errorf("left %q", contents(t, rdb))
		}
	})
}

// With full memory no process enters the queue, and a request returns the remaining lease. A process that is
// already in the queue is granted the lock.
func TestQueue_fullMemory(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	listening(t, s, first)
	hold(t, rdb, first)
	full(t, s)
	stand(t, rdb, keys, second, offer)
	try(t, rdb)
	pass(t, rdb, keys, holder)
	if n := number(t, rdb, "HEXISTS", keys.Lock, first); n != 1 || len(queue(t, rdb)) != 0 {
		t.Errorf("left %q", contents(t, rdb))
	}
}

// Missing permissions do not undo a release, and do not stop the steps that do not need them. They
// are the permissions to count subscribers, to publish, and to write an equal value.
func TestQueue_deniedCommands(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	listening(t, s, first)
	for _, deny := range []string{"pubsub", "publish"} {
		hold(t, rdb, first)
		pass(t, denied(t, s, deny), keys, holder)
		if n := number(t, rdb, "HEXISTS", keys.Lock, first); n != 1 {
			t.Errorf("without %s: %q", deny, contents(t, rdb))
		}
	}
	hold(t, rdb)
	stand(t, denied(t, s, "pubsub"), keys, second, offer)
	if after := queue(t, rdb); !slices.Equal(after, []string{second}) {
		t.Errorf("in the queue are %q", after)
	}
	do(t, rdb, "HSET", keys.Lock, luascripts.QueueField, fmt.Sprintf("17 %d|%s 1000 0 0 0;", now(t, rdb), first)) // the release is due to free it
	scattered := keys
	scattered.Scattered = true
	if got, err := luascripts.HandOffReentrant(t.Context(), denied(t, s, "publish"), scattered, holder, luascripts.Release{}); err != nil || number(t, rdb, "EXISTS", keys.Lock) != 0 {
		t.Errorf("%+v, %v, left %q", got, err, contents(t, rdb))
	}

	hold(t, rdb)
	if v, err := luascripts.ReleaseReentrant(t.Context(), denied(t, s, "hset"), keys, holder, 1); err != nil || v != luascripts.Done {
		t.Errorf("a count that is right: %v, %v", v, err)
	}
	for _, deny := range []string{"hdel", "hmget"} {
		if v, err := luascripts.ReleaseReentrant(t.Context(), denied(t, s, deny), keys, first, 0); err == nil {
			t.Errorf("without %s: a denial is no verdict: %v", deny, v)
		}
	}
}

// A text of another program in place of the queue has no positions. It is removed with the lock,
// and does not stop any owner.
func TestQueue_foreignEntries(t *testing.T) {
	scattered := keys
	scattered.Scattered = true
	for name, text := range map[string]string{
		"no process":     "0 1|somebody 1000 0 0 0;",
		"no head":        strings.Repeat(";", 64),
		"no head, owner": first + " 1000 0 0 1;",
		"no head, alive": first + " 1000 0 0 9999999999999;",
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, rdb rueidis.Client) {
				for _, k := range []luascripts.Keys{keys, scattered} {
					hold(t, rdb)
					do(t, rdb, "HSET", keys.Lock, luascripts.QueueField, text)
					for range 32 { // the script checks for dead processes in one ms of 16
						stand(t, rdb, k, second, offer)
						time.Sleep(time.Millisecond)
					}
					do(t, rdb, "HSET", keys.Lock, luascripts.QueueField, text)
					pass(t, rdb, k, holder)
					if n := number(t, rdb, "EXISTS", keys.Lock); n != 0 {
						t.Errorf("it is not free: %q", contents(t, rdb))
					}
				}
			})
		})
	}
}

// A release does not read more positions than a queue can have.
func TestQueue_longerThanItCanBe(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	listening(t, s, first)
	hold(t, rdb)
	var long strings.Builder
	long.WriteString("1 0|")
	for i := range 64 {
		fmt.Fprintf(&long, "%08x-1111-7111-8111-111111111111:5 1000 0 0 0;", i+100)
	}
	do(t, rdb, "HSET", keys.Lock, luascripts.QueueField, long.String()+first+" 1000 0 0 0;")
	pass(t, rdb, keys, holder)
	if n := number(t, rdb, "EXISTS", keys.Lock); n != 0 {
		t.Errorf("left %q", contents(t, rdb))
	}
}

// The server can no longer count subscribers. Processes that messages reached stay in the queue and
// are granted the lock, even if the queue is full. Those whose deadline has passed are not queued, and
// those that no message reaches keep their position until the deadline.
func TestQueue_aliveOrNot(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	scattered := keys
	scattered.Scattered = true
	seat := func(i int) string { return fmt.Sprintf("%08x-1111-7111-8111-111111111111:5", i+100) }
	for name, c := range map[string]struct {
		entry string // without the ms relative to now
		till  int64
		k     luascripts.Keys
		stays bool
	}{
		"heard before":               {"0 0 ", 0, scattered, true},
		"unheard before":             {"0 0 ", 60_000, keys, true},
		"unheard for too long":       {"0 0 ", -1, scattered, false},
		"hears nothing":              {"1 1 ", 60_000, keys, true},
		"hears nothing for too long": {"1 1 ", -1, scattered, false},
	} {
		t.Run(name, func(t *testing.T) {
			hold(t, rdb)
			till := c.till
			if till != 0 {
				till += now(t, rdb)
			}
			var full strings.Builder
			full.WriteString("0 0|")
			for i := range 64 {
				fmt.Fprintf(&full, "%s 1000 %s%d;", seat(i), c.entry, till)
			}
			do(t, rdb, "HSET", keys.Lock, luascripts.QueueField, full.String())
			tries := 100
			if !c.stays {
				tries = 1000
			}
			for range tries { // the script checks for dead processes in one ms of 16
				stand(t, rdb, c.k, second, offer)
				if len(queue(t, rdb)) < 64 {
					break
				}
				time.Sleep(time.Millisecond)
			}
			if after := queue(t, rdb); c.stays != (len(after) == 64) || !c.stays && !slices.Equal(after, []string{second}) {
				t.Errorf("in the queue are %q", after)
			}
		})
	}

	listening(t, s, first)
	hold(t, rdb, first)
	pass(t, rdb, scattered, holder)
	if n := number(t, rdb, "HEXISTS", keys.Lock, first); n != 1 {
		t.Errorf("reached before, and passed over: %q", contents(t, rdb))
	}
}

// A process that sends a request replaces a queue that does not end as our scripts write it, because no script would read an
// entry behind it. It leaves an unreadable entry of its own process.
func TestQueue_replacesWhatIsNoQueue(t *testing.T) {
	process, _, _ := strings.Cut(second, ":")
	for text, stands := range map[string]bool{"0 1|garbage": true, "0 1|" + process + ":x 1;": false} {
		s := redistest.Start(t)
		rdb := s.Client(t)
		hold(t, rdb)
		do(t, rdb, "HSET", keys.Lock, luascripts.QueueField, text)
		stand(t, rdb, keys, second, offer)
		is, err := luascripts.InspectReentrant(t.Context(), rdb, keys)
		if err != nil || (len(is.Waiters) == 1) != stands {
			t.Errorf("behind %q: %+v, %v", text, is, err)
		}
	}
}

// All waiters of a lock are notified of a force-unlock.
func TestForceReentrant_publishes(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		hold(t, rdb)
		e := listen(t, rdb)
		if got, err := luascripts.ForceReentrant(t.Context(), rdb, keys); err != nil || got != luascripts.Done {
			t.Errorf("%d, %v", got, err)
		}
		e.expect(keys.Channel + " 0")
	})
}

// An inspection reports how long each waiter counts as alive: 0 if that time has passed, and no limit while messages reach it.
func TestInspectReentrant_waiters(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		hold(t, rdb)
		do(t, rdb, "HSET", keys.Lock, luascripts.QueueField, "0 1|"+first+" 1000 0 0 1;"+second+" 1000 0 0 0;"+other+" 1000 0 0 9999999999999;")
		is, err := luascripts.InspectReentrant(t.Context(), rdb, keys)
		if err != nil || len(is.Waiters) != 3 || is.Waiters[0].WaiterTimeout != 0 || is.Waiters[1].WaiterTimeout != luascripts.NoExpiry || is.Waiters[2].WaiterTimeout < time.Hour {
			t.Errorf("%+v, %v", is, err)
		}
	})
}

// Transcript of the scripts for the queue of a plain lock, at the exact end of a deadline, at the size limits of its text, and
// with different subscribers.
func TestQueue_transcript(t *testing.T) {
	play(t, `
		# the lock goes to the first in line, with the lease that it offered, up to ten seconds
		listeners leasehold_channel:{l} 2 redisson_lock__channel:{l} 2 leasehold_channel:{l}:$b 1
		HSET l $a:001 1 leasehold_line 3~5|$b:001~1000~0~0~0;$c:001~20000~0~0~0;
		reentrant_release [l] $a:001 PUBLISH 1 = 1
		HGETALL l = [$b:001 1 leasehold_line 4~5|$c:001~20000~0~0~0;]
		PTTL l = 1000
		published = [leasehold_channel:{l}:$b~0]
		listeners leasehold_channel:{l} 2 redisson_lock__channel:{l} 2 leasehold_channel:{l}:$c 1
		reentrant_release [l] $b:001 PUBLISH 1 = 1
		HGETALL l = [$c:001 1 leasehold_line 5~5|]
		PTTL l = 10000

		# where listeners cannot be counted, or the permission is missing, the deadline says who is alive
		without PUBSUB
		HSET l leasehold_line 3~5|$b:001~1000~0~0~0;
		reentrant_release [l] $c:001 PUBLISH 1 = 1
		HGETALL l = [$b:001 1 leasehold_line 4~5|]
		DEL l
		HSET l $a:001 1 leasehold_line 3~@0|$b:001~1000~0~0~@0;$c:001~1000~0~@0~@0;$d:001~1000~0~0~@1;
		reentrant_release [l] $a:001 PUBLISH 0 = 1
		HGETALL l = [$d:001 1 leasehold_line 4~@0|]

		# the lock is not handed off where its holder could lose it
		without PEXPIRE
		HSET l leasehold_line 3~5|$b:001~1000~0~0~0;
		reentrant_release [l] $d:001 PUBLISH 0 = 1
		HGETALL l = []
		published = [leasehold_channel:{l}:$c~0 leasehold_channel:{l}:$b~0 leasehold_channel:{l}:$d~0 redisson_lock__channel:{l}~0]
		without
		listeners leasehold_channel:{l} 2 redisson_lock__channel:{l} 2 leasehold_channel:{l}:$b 1
		HSET l $a:001 1 leasehold_line 3~5|$b:001~1000~0~0~0;
		without PEXPIRE
		reentrant_release [l] $a:001 PUBLISH 1 = 1
		HGETALL l = []
		published = [redisson_lock__channel:{l}~0]
		without

		# a name with braces has none added
		listeners leasehold_channel:{l}x: 1 redisson_lock__channel:{l}x 1 leasehold_channel:{l}x::$b 1
		HSET {l}x $a:001 1 leasehold_line 3~5|$b:001~1000~0~0~0;
		reentrant_release [{l}x] $a:001 PUBLISH 1 = 1
		published = [leasehold_channel:{l}x::$b~0]
		reentrant_release [{l}x] $b:001 PUBLISH 1 = 1
		published = [redisson_lock__channel:{l}x~0]
		listeners

		# a text that is too long is not read, and neither is one that the scripts did not write
		HSET l $a:001 1 leasehold_line 3~5|$b:001~1000~0~0~60000000000001;^32768
		reentrant_release [l] $a:001 PUBLISH 0 = 1
		HSET l $b:001 1 leasehold_line 3~5|$c:001~1000~0~0~60000000000001;^32769
		reentrant_release [l] $b:001 PUBLISH 0 = 1
		EXISTS l = 0
		HSET l $a:001 1 leasehold_line x|$b:001~1000~0~0~60000000000001;
		reentrant_release [l] $a:001 PUBLISH 0 = 1
		EXISTS l = 0
		listeners leasehold_channel:{l}:$b 1 leasehold_channel:{l}:$c 1
		HSET l $a:001 1 leasehold_line 3~5|$b:001~1000~0~0~0;^32768
		reentrant_release [l] $a:001 PUBLISH 1 = 1
		HDEL l leasehold_line
		HSET l leasehold_line 3~5|$c:001~1000~0~0~0;^32769
		reentrant_release [l] $b:001 PUBLISH 1 = 1
		EXISTS l = 0
		listeners
		published = [leasehold_channel:{l}:$b~0 redisson_lock__channel:{l}~0 redisson_lock__channel:{l}~0 leasehold_channel:{l}:$b~0 redisson_lock__channel:{l}~0]

		# a lock that was handed off often is freed now and then: first to whom never stands in the queue
		listeners leasehold_channel:{l} 1 redisson_lock__channel:{l} 2
		HSET l $c:001 1 leasehold_line 5~@0|$a:001~1000~0~0~@5;<5x$b:001~1000~0~0~@5;>
		reentrant_release [l] $c:001 PUBLISH 1 = 1
		HDEL l leasehold_line
		HSET l leasehold_line 3~@0|$b:001~1000~0~0~@5;
		reentrant_release [l] $a:001 PUBLISH 1 = 1
		HDEL l leasehold_line
		HSET l leasehold_line 4~@0|$c:001~1000~0~0~@5;
		reentrant_release [l] $b:001 PUBLISH 1 = 2
		EXISTS l = 0
		published = [leasehold_channel:{l}:$a~0 leasehold_channel:{l}:$b~0 leasehold_channel:{l}~aside redisson_lock__channel:{l}~0]
		listeners
		wait 1000
		HSET l $a:001 1 leasehold_line 639~@-9000|$b:001~1000~0~0~@2000;
		reentrant_release [l] $a:001 PUBLISH 1 = 1
		HDEL l leasehold_line
		HSET l leasehold_line 640~@-8999|$c:001~1000~0~0~@2000;
		reentrant_release [l] $b:001 PUBLISH 1 = 1
		HDEL l leasehold_line
		HSET l leasehold_line 640~@-9000|$d:001~1000~0~0~@2000;
		reentrant_release [l] $c:001 PUBLISH 1 = 2
		EXISTS l = 0

		# a refused caller that never stands in the queue leaves a mark; a second later the lock is freed, and the mark goes with the queue
		HSET l $a:001 1 leasehold_line 3~@0|$b:001~1000~0~0~@2000;
		reentrant_acquire [l] $d:001 1000 '' 1 2 = -2
		HGET l leasehold_line = 3~@0|$b:001~1000~0~0~@2000;
		reentrant_acquire [l] $d:001 1000 '' 1 = -1
		HGET l leasehold_line = 3~0@0|$b:001~1000~0~0~@2000;
		reentrant_acquire [l] $d:001 1000 '' 1 = -1
		HGET l leasehold_line = 3~0@0|$b:001~1000~0~0~@2000;
		reentrant_release [l] $a:001 PUBLISH 1 = 1
		HGET l leasehold_line = 4~0@0|
		reentrant_acquire [l] $c:001 1000 1000~0~500~4000 0 = 1000
		HGET l leasehold_line = 4~0@0|$c:001~1000~0~0~@5000;
		reentrant_release [l] $b:001 PUBLISH 1 = 2
		EXISTS l = 0
		HSET l $a:001 1 leasehold_line 4~0@1|$b:001~1000~0~0~@2000;
		reentrant_release [l] $a:001 PUBLISH 1 = 1
		HGET l leasehold_line = 5~0@1|
		DEL l

		# dead processes get nothing, and the lock is free
		HSET l $a:001 1 leasehold_line 3~5|$b:001~1000~0~0~@1000;
		reentrant_release [l] $a:001 PUBLISH 0 = 1
		EXISTS l = 0

		# a process that no message reaches is granted the lock shortly before it asks
		HSET l $a:001 1 leasehold_line 3~5|$b:001~100~@0~@1051~@2000;
		reentrant_release [l] $a:001 PUBLISH 0 = 1
		EXISTS l = 0
		HSET l $a:001 1 leasehold_line 3~5|$b:001~100~@0~@1050~@2000;
		reentrant_release [l] $a:001 PUBLISH 0 = 1
		HGETALL l = [$b:001 1 leasehold_line 4~5|]
		DEL l

		# the release of an owner that holds nothing leaves a queue without it as it is
		HSET l $a:001 1 leasehold_line 3~5|
		reentrant_release [l] $b:001 PUBLISH 0 = -2
		HGETALL l = [$a:001 1 leasehold_line 3~5|]

		# who comes next counts the grants on
		reentrant_acquire [l] $b:001 1000 1000~0~500~4000 0 = -1
		HGETALL l = [$a:001 1 leasehold_line 3~5|$b:001~1000~0~0~@5000;]

		# a place is written again when half of its time is over, or when messages reach the process from now on
		wait 1999
		reentrant_acquire [l] $b:001 1000 1000~0~500~4000 0 = -1
		HGET l leasehold_line = 3~5|$b:001~1000~0~0~@5000;
		wait 1
		reentrant_acquire [l] $b:001 1000 1000~0~500~4000 0 = -1
		HGET l leasehold_line = 3~5|$b:001~1000~0~0~@7000;
		listeners leasehold_channel:{l}:$b 1
		reentrant_acquire [l] $b:001 1000 1000~0~500~4000 1 = -1
		HGET l leasehold_line = 3~5|$b:001~1000~0~0~0;

		# the token counter is raised only for a next owner
		DEL l
		HSET l $a:001 1 leasehold_line 3~5|$b:001~1000~0~0~0;
		reentrant_release [l r] $a:001 PUBLISH 0 0 = 1
		EXISTS r = 0
		reentrant_release [l r] $b:001 PUBLISH 0 0 $b:002 1000 500 4000 0 0 = @3000000us
		GET r = @3000000us
		reentrant_release [l] $b:002 PUBLISH 0 0 $b:003 1000 500 4000 @5000000us 0 = @5000001us

		# in a full queue, the dead are looked for every 16 ms, up to the ms of their deadlines
		wait 1000
		DEL l
		HSET l $a:001 1 leasehold_line 3~5|<62x$b:001~1000~0~0~@4001;>$d:001~1000~0~0~@4000;$e:001~1000~0~0~@4000;
		HSTRLEN l leasehold_line = 4036
		reentrant_acquire [l] $c:001 1000 1000~0~500~4000 0 = -1
		HSTRLEN l leasehold_line = 3973
		HSET l leasehold_line 3~5|<64x$b:001~1000~0~0~@4001;>
		reentrant_acquire [l] $c:001 1000 1000~0~500~4000 0 = -1
		HSTRLEN l leasehold_line = 4037
	`)
}
