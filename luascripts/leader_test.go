package luascripts_test

import (
	"testing"
	"time"

	keynames "github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// The scripts behave the same on a real server and on an in-memory one. The value of an earlier leader is rejected, and a removed
// value stays removed.
func TestLeader(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Leader("billing")
		const channel = "leasehold_leader:{billing} "
		number, by := uint64(9), "one"
		post := func(token uint64, value string, over bool, want luascripts.Verdict) {
			t.Helper()
			number++
			if v, err := luascripts.PostLeader(t.Context(), rdb, k, token, value, time.Hour, over, number, by); err != nil || v != want {
				t.Errorf("%d says %q, %v: %d, %v, want %d", token, value, over, v, err, want)
			}
		}
		says := func(token uint64, value string) (s luascripts.LeaderValue) {
			t.Helper()
			s, v, err := luascripts.ReadLeader(t.Context(), rdb, k)
			if err != nil || (v == luascripts.Done) != (token > 0) || s.Token != token || s.Value != value {
				t.Errorf("%+v, %d, %v, want %q of %d", s, v, err, value, token)
			}
			return s
		}
		e := listen(t, rdb)
		says(0, "")
		post(5, "a", false, luascripts.Done)
		post(5, "a", false, luascripts.Done)
		e.expect(channel)
		first := says(5, "a")
		about(t, "what is left", first.Left, time.Hour)
		post(4, "late", false, luascripts.Free)
		post(4, "", true, luascripts.Free)
		post(5, "b", false, luascripts.Done)
		e.expect(channel)
		if s := says(5, "b"); !s.Since.Equal(first.Since) {
			t.Errorf("it leads since %v, and since %v", first.Since, s.Since)
		}
		if v, err := luascripts.PostLeader(t.Context(), rdb, k, 5, "a", time.Minute, false, 10, by); err != nil || v != luascripts.Done {
			t.Errorf("a late copy: %d, %v", v, err)
		}
		e.expect()
		about(t, "what is left after a late copy", says(5, "b").Left, time.Hour)
		post(5, "", true, luascripts.Done)
		e.expect(channel)
		says(0, "")
		number -= 2
		post(5, "late", false, luascripts.Free)
		number += 2
		says(0, "")
		post(5, "again", false, luascripts.Done) // its hold re-enters an outer one, and has the same token
		e.expect(channel)
		says(5, "again")
		post(5, "", true, luascripts.Done)
		e.expect(channel)
		says(0, "")
		post(6, "", false, luascripts.Done) // an empty value is allowed
		e.expect(channel)
		says(6, "")
		do(t, rdb, "DEL", k.Lock)

		// Leaders without tokens are distinguished by their names, and each removes only its own value.
		unnumbered := func(want string) {
			t.Helper()
			if s, v, err := luascripts.ReadLeader(t.Context(), rdb, k); err != nil || (v == luascripts.Done) != (want != "") || s.Value != want {
				t.Errorf("%+v, %d, %v, want %q", s, v, err, want)
			}
		}
		post(0, "of one", false, luascripts.Done)
		by, number = "two", 1 // each has its own number
		post(0, "of two", false, luascripts.Done)
		by = "one"
		post(0, "", true, luascripts.Free)
		unnumbered("of two")
		by = "two"
		number -= 3
		post(0, "late", false, luascripts.Done)
		unnumbered("of two")
		number += 2
		post(0, "", true, luascripts.Done)
		unnumbered("")
		number -= 2
		post(0, "late", false, luascripts.Free)
		unnumbered("")
		number += 2
		post(0, "of two again", false, luascripts.Done)
		unnumbered("of two again")
		number -= 2
		post(0, "", true, luascripts.Done)
		unnumbered("of two again")
		do(t, rdb, "DEL", k.Lock)

		do(t, rdb, "SET", k.Lock, "x")
		post(7, "c", false, luascripts.Foreign)
		if _, v, err := luascripts.ReadLeader(t.Context(), rdb, k); v != luascripts.Foreign || err != nil {
			t.Errorf("%d, %v", v, err)
		}
	})
}

// Whichever command is denied, the value is unchanged after a leader's call failed.
func TestLeader_denied(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := keynames.Leader("billing")
	for what, c := range map[string]struct {
		before, token uint64 // tokens of the previous and the current leader
		over          bool
	}{"the first": {0, 7, false}, "the next": {6, 7, false}, "once more": {7, 7, false}, "the end": {7, 7, true}} {
		for _, command := range commands("leader_post") {
			do(t, admin, "FLUSHALL")
			if c.before > 0 {
				if _, err := luascripts.PostLeader(t.Context(), admin, k, c.before, "old", time.Hour, false, 1, "a"); err != nil {
					t.Fatal(err)
				}
			}
			before := contents(t, admin)
			_, err := luascripts.PostLeader(t.Context(), denied(t, s, command), k, c.token, "new", time.Hour, c.over, 2, "a")
			if after := contents(t, admin); err != nil && after != before {
				t.Errorf("%s without %s: %v: %s, was %s", what, command, err, after, before)
			}
		}
	}
}

// A leader value lives for the given time. Only a later call of the same leader, or a larger token, replaces it.
func TestLeader_transcript(t *testing.T) {
	play(t, `
		leader_read [b] = 0
		leader_post [b] 5 hello 1000 0 ch PUBLISH 1 a = 1
		leader_read [b] = [5 hello @0 1000]
		HGETALL b = [by a number 1 since @0 token 5 value hello]
		published = [ch~]
		wait 10
		leader_post [b] 5 hello 2000 0 ch PUBLISH 1 a = 1
		leader_read [b] = [5 hello @0 2000]
		published = []
		leader_post [b] 5 bye 2000 0 ch PUBLISH 3 a = 1
		leader_read [b] = [5 bye @0 2000]
		published = [ch~]
		leader_post [b] 5 late 9000 0 ch PUBLISH 2 a = 1
		leader_post [b] 5 '' 9000 1 ch PUBLISH 2 a = 1
		leader_post [b] 4 late 9000 0 ch PUBLISH 9 b = 0
		leader_read [b] = [5 bye @0 2000]
		leader_post [b] 5 '' 3000 1 ch PUBLISH 4 a = 1
		leader_read [b] = 0
		HGETALL b = [by a number 4 over 1 token 5]
		PTTL b = 3000
		published = [ch~]
		leader_post [b] 5 late 9000 0 ch PUBLISH 3 a = 0
		leader_post [b] 5 '' 9000 1 ch PUBLISH 3 a = 1
		leader_read [b] = 0
		PTTL b = 3000
		published = []
		leader_post [b] 5 again 9000 0 ch PUBLISH 5 a = 1
		leader_read [b] = [5 again @10 9000]
		published = [ch~]
		leader_post [b] 5 '' 9000 1 ch PUBLISH 6 a = 1
		leader_read [b] = 0
		published = [ch~]
		leader_post [b] 6 next 1000 0 ch PUBLISH 1 b = 1
		leader_read [b] = [6 next @10 1000]
		HGETALL b = [by b number 1 since @10 token 6 value next]
		published = [ch~]

		# observers are notified when another leader publishes an equal value, and when an empty one is taken back
		leader_post [b] 7 next 1000 0 ch PUBLISH 1 c = 1
		published = [ch~]
		leader_post [b] 7 '' 1000 0 ch PUBLISH 2 c = 1
		published = [ch~]
		leader_post [b] 7 '' 1000 1 ch PUBLISH 3 c = 1
		published = [ch~]
		leader_read [b] = 0

		# a token decides, whatever the name of the leader
		leader_post [b] 8 one 1000 0 ch PUBLISH 5 a = 1
		leader_post [b] 8 late 1000 0 ch PUBLISH 4 b = 1
		leader_read [b] = [8 one @10 1000]
		DEL b
		leader_post [b] 0 one 1000 0 ch PUBLISH 5 a = 1
		leader_post [b] 9 '' 1000 1 ch PUBLISH 1 b = 1
		leader_read [b] = 0
		leader_post [b] 0 late 1000 0 ch PUBLISH 6 a = 0

		# without tokens, the latest call counts, and no leader takes back what another one has said
		DEL b
		leader_post [b] 0 one 1000 0 ch PUBLISH 5 a = 1
		wait 5
		leader_post [b] 0 two 1000 0 ch PUBLISH 1 b = 1
		leader_read [b] = [0 two @15 1000]
		leader_post [b] 0 '' 1000 1 ch PUBLISH 9 a = 0
		leader_read [b] = [0 two @15 1000]
		leader_post [b] 0 '' 1000 1 ch PUBLISH 2 b = 1
		leader_post [b] 0 late 1000 0 ch PUBLISH 1 b = 0
		leader_post [b] 0 '' 1000 1 ch PUBLISH 1 b = 1
		leader_read [b] = 0
		wait 5
		leader_post [b] 0 three 1000 0 ch PUBLISH 3 b = 1
		leader_read [b] = [0 three @20 1000]
		HGETALL b = [by b number 3 since @20 token 0 value three]
		HDEL b number
		leader_post [b] 0 four 1000 0 ch PUBLISH 0 b = 1
		HGETALL b = [by b number 0 since @20 token 0 value four]

		# another key, and denied commands
		SET s 1
		leader_post [s] 0 one 1000 0 ch PUBLISH 5 a = -4
		leader_read [s] = -4
		without HMGET
		leader_post [b] 9 one 1000 0 ch PUBLISH 5 a = !NOPERM
		leader_read [b] = !NOPERM
		without HDEL
		leader_post [b] 0 one 1000 0 ch PUBLISH 0 a = !NOPERM
		without PEXPIRE
		leader_post [c] 9 one 1000 0 ch PUBLISH 5 a = !NOPERM
		leader_post [b] 9 one 1000 0 ch PUBLISH 5 a = !NOPERM
		without
		EXISTS c = 0
		HGETALL b = [by b number 0 since @20 token 0 value four]

		# an entry that is not whole is none
		HSET d token 1 value v
		leader_read [d] = 0
		HSET e token 1 since 5
		leader_read [e] = 0
		HSET f value v since 5
		leader_read [f] = 0
		HSET f token 1
		leader_read [f] = [1 v 5 -1]
	`)
}
