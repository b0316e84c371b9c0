package luascripts_test

import (
	"reflect"
	"testing"
	"time"

	keynames "github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/luascripts"
)

// What a broken peer answers to the scripts of the other kinds is read or is an error; an error comes with nothing beside it.
func FuzzOtherReplies(f *testing.F) {
	for _, s := range []string{
		"+OK\r\n", ":5\r\n", ":-9\r\n", "$-1\r\n", "*0\r\n", "_\r\n", "-ERR x\r\n", "-PERMITS 5\r\n", "-STALE 5\r\n", "*2\r\n:1\r\n$1\r\n1\r\n", "*3\r\n:1\r\n:2\r\n:3\r\n", "*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n",
		"*4\r\n:1\r\n$1\r\n5\r\n*2\r\n$1\r\na\r\n:7\r\n*0\r\n", "*7\r\n:1795000000000000\r\n:1\r\n:0\r\n:9\r\n:0\r\n:0\r\n:1\r\n", "*2\r\n*2\r\n$1\r\na\r\n:1\r\n*0\r\n", ":9223372036854775807\r\n", "*2\r\n:1\r\n*3\r\n$1\r\na\r\n:-1\r\n$-1\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, reply []byte) {
		rdb, ok := answering(t, reply)
		if !ok {
			return
		}
		alone := func(what string, err error, results ...any) {
			t.Helper()
			for _, r := range results {
				if err != nil && !reflect.ValueOf(r).IsZero() {
					t.Errorf("%s: %+v beside %v, by %q", what, r, err, reply)
				}
			}
		}
		ctx, permits := t.Context(), taker(1, 2)

		sem := semaphoreKeys(3)
		a, err := luascripts.AcquireSemaphore(ctx, rdb, sem, luascripts.Question{Owner: permits, Lease: lease, Want: 1})
		alone("acquire", err, a)
		v, err := luascripts.ReleaseSemaphore(ctx, rdb, sem, permits, 0)
		alone("release", err, v)
		v, at, err := luascripts.ResizeSemaphore(ctx, rdb, sem, 3, 1000)
		alone("resize", err, v, at)
		v, slots, err := luascripts.SlotsOfPermits(ctx, rdb, sem, permits)
		alone("slots", err, v, slots)
		stock, err := luascripts.InspectSemaphore(ctx, rdb, sem)
		alone("inspect", err, stock)

		latch := keynames.Latch("done")
		s, v, err := luascripts.CountDownLatch(ctx, rdb, latch, latchCall("a"))
		alone("count down", err, s, v)
		s, v, err = luascripts.LookAtLatch(ctx, rdb, latch, time.Hour)
		alone("look at a latch", err, s, v)

		crew := keynames.Crew("team")
		a, err = luascripts.JoinCrew(ctx, rdb, crew, luascripts.Question{Owner: ours, Lease: lease})
		alone("join", err, a)
		c, v, err := luascripts.LookAtCrew(ctx, rdb, crew)
		alone("look at a crew", err, c, v)
		members, v, err := luascripts.InspectCrew(ctx, rdb, crew)
		alone("members", err, members, v)
		n, v, err := luascripts.DismissFromCrew(ctx, rdb, crew, []string{ours})
		alone("dismiss", err, n, v)

		said, v, err := luascripts.ReadLeader(ctx, rdb, keynames.Leader("chief"))
		alone("leader", err, said, v)

		w, err := luascripts.TakeWindow(ctx, rdb, keynames.Window("w"), 1, 1, "id", 0)
		alone("window", err, w)
		is, err := luascripts.InspectWindow(ctx, rdb, keynames.Window("w"))
		alone("look at a window", err, is)
		rated, err := luascripts.InitWindow(ctx, rdb, keynames.Window("w"), 1, time.Second, 1000)
		alone("make a window", err, rated)
		v, at, err = luascripts.DeleteWindow(ctx, rdb, keynames.Window("w"), 1000)
		alone("delete a window", err, at, v)
		v, at, err = luascripts.DeleteBloom(ctx, rdb, "{b}:config", "b", 1000)
		alone("delete a filter", err, at, v)
		when, replies, v, err := askLimit(ctx, rdb, "k", luascripts.NewLimitRules(hourly), []luascripts.LimitQuestion{want(1)})
		alone("limit", err, when, replies, v)
	})
}
