package luascripts_test

import (
	"testing"
	"time"

	keynames "github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// The scripts mean the same on a real server and on one in memory. What an earlier leader says is refused, and what was taken back stays so.
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
		says := func(token uint64, value string) (s luascripts.Said) {
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
		post(5, "late", false, luascripts.Free)
		post(5, "", true, luascripts.Done)
		says(0, "")
		post(6, "", false, luascripts.Done) // it may say nothing
		e.expect(channel)
		says(6, "")
		do(t, rdb, "DEL", k.Lock)

		// Leaders without tokens are told apart by their names, and each takes back its own word only.
		unnumbered := func(want string) {
			t.Helper()
			if s, v, err := luascripts.ReadLeader(t.Context(), rdb, k); err != nil || (v == luascripts.Done) != (want != "") || s.Value != want {
				t.Errorf("%+v, %d, %v, want %q", s, v, err, want)
			}
		}
		post(0, "of one", false, luascripts.Done)
		by, number = "two", 1 // each counts by itself
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

// Whichever command is denied, a leader whose call fails says what it said before.
func TestLeader_denied(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := keynames.Leader("billing")
	for what, c := range map[string]struct {
		before, token uint64 // who spoke before, and who speaks now
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
