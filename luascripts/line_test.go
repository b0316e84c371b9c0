package luascripts_test

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A plain and a fair lock of one name are one hash. The line of who waits for the
// plain one must not look like a holder to the fair one.
func TestLine_besideAFairLock(t *testing.T) {
	fair, next := luascripts.Question{Owner: ours, Lease: lease, Want: 1}, luascripts.Question{Owner: ours + "2", Lease: lease, Want: 1}
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		take := func(want luascripts.Verdict, q luascripts.Question) {
			t.Helper()
			if got, err := luascripts.AcquireFair(t.Context(), rdb, fairKeys, q); err != nil || got.Verdict != want {
				t.Fatalf("%v, %v, want %v", got, err, want)
			}
		}
		stand := func() {
			t.Helper()
			got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Question{Owner: other, Lease: lease, Want: 1, Offer: time.Second, Patience: time.Minute, Ask: 1})
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
			t.Error("what is left is held by nobody")
		}
		take(luascripts.Done, fair)
		stand()
		if got, err := luascripts.ForceFair(t.Context(), rdb, fairKeys); err != nil || got != luascripts.Done {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// The lock is free, and its next holder's register is spoilt. The release says that the
// lock is free, and others hear of it; who needs the register will be told.
func TestRelease_toAnHeirWithASpoiltRegister(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		seed(t, rdb, ours, 1, 30000)
		k := keys
		k.Register = "redisson_lock_token:{orders}"
		do(t, rdb, "SADD", k.Register, "no number")
		got, err := luascripts.PassReentrant(t.Context(), rdb, k, ours, luascripts.Pass{Heir: other, Offer: time.Second, Patience: time.Minute, Fenced: true, Spare: 64, Ask: 1})
		if err != nil || got.Verdict != luascripts.Done || got.Token != 0 {
			t.Errorf("%v, %v", got, err)
		}
		if n := number(t, rdb, "EXISTS", keys.Lock); n != 0 {
			t.Error("the lock is still there")
		}
	})
}
