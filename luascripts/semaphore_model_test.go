package luascripts_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"pgregory.net/rapid"
)

// semaphoreOwner is the expected state of an owner.
type semaphoreOwner struct {
	name     string
	permits  int64
	patience time.Duration
	until    time.Time // end of its lease; zero if it holds nothing
	stays    time.Time // until when it counts as alive in the queue
	notified bool      // it was notified to retry since its latest request
}

// Whatever owners, Java and the clock do, no permit is lost or created. Living waiters are served in order of arrival, no owner
// is rejected that can acquire its permits, and each script notifies the waiters whose turn it makes possible.
func TestSemaphore_model(t *testing.T) {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	e := listen(t, rdb)
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	rapid.Check(t, func(rt *rapid.T) {
		words := func(args ...string) string { return text(do(t, rdb, args...)) }
		const lease = 5 * time.Second
		do(t, rdb, "FLUSHALL")
		total := rapid.Int64Range(1, 6).Draw(rt, "total")
		k := semaphoreKeys(0)
		all := make(map[string]*semaphoreOwner)
		var queue []*semaphoreOwner // in order of arrival, including dead waiters that no script has removed
		java := 0                   // permits that Java has
		free := func() int64 {
			n, err := strconv.ParseInt(words("GET", k.Lock), 10, 64)
			if err != nil {
				rt.Fatal(err)
			}
			return n
		}
		living := func() (alive []*semaphoreOwner) {
			for _, o := range queue {
				if o.stays.After(now) {
					alive = append(alive, o)
				}
			}
			return alive
		}
		// turns returns the waiters that can acquire their permits if this number is free.
		turns := func(free int64) (who []*semaphoreOwner) {
			for _, o := range living() {
				if free -= o.permits; free < 0 {
					break
				}
				who = append(who, o)
			}
			return who
		}
		expired := func() (n int64) {
			for _, o := range all {
				if !o.until.IsZero() && !o.until.After(now) {
					n += o.permits
				}
			}
			return n
		}
		late := make(map[*semaphoreOwner]bool) // their turn came with the passing of time; the next heartbeat notifies them
		hears := func() {
			for _, said := range e.heard() {
				channel, number, _ := strings.Cut(said, " ")
				for _, o := range all {
					if client, n, _ := strings.Cut(o.name, ":"); strings.HasPrefix(channel, k.Channel+":"+client) && n == number {
						o.notified = true
					}
				}
			}
		}
		check := func(rt *rapid.T) {
			hears()
			if got := free() + number(t, rdb, "ZCARD", k.Leases); got != total {
				rt.Fatalf("%d permits in all, want %d", got, total)
			}
			for _, o := range turns(free()) {
				if !o.notified && !late[o] {
					rt.Fatalf("it is the turn of %s, of %d, with %d free, and nobody told it", o.name, len(living()), free())
				}
			}
		}
		// reclaim records which permits Redis has reclaimed.
		reclaim := func() {
			for _, o := range all {
				if !o.until.IsZero() && !o.until.After(now) && words("ZSCORE", k.Leases, luascripts.Permits(o.name)[0]) == "" {
					o.until = time.Time{}
				}
			}
		}
		unqueue := func(o *semaphoreOwner) {
			if i := slices.Index(queue, o); i >= 0 {
				queue = slices.Delete(queue, i, i+1)
			}
		}
		// drop removes the dead waiters that Redis has removed.
		drop := func() {
			queue = slices.DeleteFunc(queue, func(o *semaphoreOwner) bool {
				return !o.stays.After(now) && words("ZSCORE", k.Timeouts, o.name) == ""
			})
		}
		n := 0
		ask := func(rt *rapid.T, o *semaphoreOwner, waits time.Duration) {
			before, have := living(), free()
			i := slices.Index(before, o)
			ahead, wanted := before, o.permits
			if i >= 0 {
				ahead = before[:i]
			}
			for _, w := range ahead {
				wanted += w.permits
			}
			could := have >= wanted || have < o.permits && have+expired() >= wanted
			o.notified = false
			delete(late, o)
			a, err := luascripts.AcquireSemaphore(t.Context(), rdb, k, luascripts.Request{Owner: o.name, Lease: lease, Want: 1, WaiterTimeout: waits})
			if err != nil {
				rt.Fatal(err)
			}
			if got := a.Verdict == luascripts.Done; got != could {
				rt.Fatalf("%s got its permits: %v, want %v; %d free, %d over, %d wanted with those before it", o.name, got, could, have, expired(), wanted)
			}
			reclaim()
			if a.Verdict == luascripts.Done {
				o.until = now.Add(lease)
				unqueue(o)
			} else if waits > 0 {
				if o.stays = now.Add(waits); i < 0 {
					unqueue(o)
					queue = append(queue, o)
				}
			}
			drop()
			check(rt)
		}
		pick := func(rt *rapid.T, what string, of func(o *semaphoreOwner) bool) *semaphoreOwner {
			var some []string
			for name, o := range all {
				if of(o) {
					some = append(some, name)
				}
			}
			if len(some) == 0 {
				rt.Skip("nobody ", what)
			}
			slices.Sort(some)
			return all[rapid.SampledFrom(some).Draw(rt, what)]
		}
		waits := func(o *semaphoreOwner) bool { return slices.Contains(living(), o) }
		holds := func(o *semaphoreOwner) bool { return o.until.After(now) }
		m.SetTime(now)
		if v, _, err := luascripts.ResizeSemaphore(t.Context(), rdb, k, int(total), someday); v != luascripts.Done || err != nil {
			rt.Fatal(v, err)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"comes": func(rt *rapid.T) {
				n++
				permits := rapid.Int64Range(1, total).Draw(rt, "permits")
				o := &semaphoreOwner{patience: rapid.SampledFrom([]time.Duration{3 * time.Second, 30 * time.Second}).Draw(rt, "patience"), name: fmt.Sprintf("018f5c4e-0000-7000-8000-%012d:%d:%d", n%3, 1800000000000000000+1000*n, permits), permits: permits}
				all[o.name] = o
				ask(rt, o, rapid.SampledFrom([]time.Duration{0, o.patience, o.patience}).Draw(rt, "waits"))
			},
			"asks again": func(rt *rapid.T) { o := pick(rt, "waits", waits); ask(rt, o, o.patience) },
			"leaves": func(rt *rapid.T) {
				o := pick(rt, "is there", func(o *semaphoreOwner) bool { return waits(o) || holds(o) })
				had := holds(o)
				v, err := luascripts.ReleaseSemaphore(t.Context(), rdb, k, o.name, 0)
				if err != nil || had != (v == luascripts.Done) {
					rt.Fatalf("%s leaves: %d, %v", o.name, v, err)
				}
				o.until = time.Time{}
				unqueue(o)
				drop()
				check(rt)
			},
			"beats": func(rt *rapid.T) {
				client := fmt.Sprintf("018f5c4e-0000-7000-8000-%012d:", rapid.IntRange(0, 2).Draw(rt, "client"))
				var beats []luascripts.Waiter
				var who []*semaphoreOwner
				for _, o := range queue {
					if strings.HasPrefix(o.name, client) {
						beats, who = append(beats, luascripts.Waiter{Owner: o.name, WaiterTimeout: o.patience}), append(who, o)
					}
				}
				if len(who) == 0 {
					rt.Skip("no client")
				}
				kept, err := luascripts.KeepSemaphore(t.Context(), rdb, k, beats)
				if err != nil {
					rt.Fatal(err)
				}
				for i, o := range who {
					o.notified = o.notified || kept.MustRetry[i]
					o.stays = now.Add(o.patience)
				}
				reclaim()
				drop()
				clear(late)
				check(rt)
			},
			"is renewed": func(rt *rapid.T) {
				o := pick(rt, "holds", holds)
				if r := luascripts.RenewSemaphore(t.Context(), rdb, []luascripts.Renewal{{Keys: &k, Owner: o.name}}, lease, 1)[0]; r.Err != nil || r.Verdict != luascripts.Done {
					rt.Fatalf("%+v", r)
				}
				o.until = now.Add(lease)
				check(rt)
			},
			"Java takes": func(rt *rapid.T) {
				if free() < 1 {
					rt.Skip("none is free")
				}
				java++
				do(t, rdb, "DECRBY", k.Lock, "1")
				do(t, rdb, "ZADD", k.Leases, "922337203685477", fmt.Sprintf("java%012d", java))
				check(rt)
			},
			"time goes by": func(rt *rapid.T) {
				now = now.Add(rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, 3 * time.Second, 6 * time.Second}).Draw(rt, "for"))
				m.SetTime(now)
				for _, o := range turns(free()) {
					late[o] = late[o] || !o.notified
				}
			},
		})
	})
}
