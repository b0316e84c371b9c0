package luascripts_test

import (
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A holder raises the register, and never lowers it. A client that does not hold the lock does not change it.
func TestRaiseToken(t *testing.T) {
	k := luascripts.Keys{Lock: "orders", Register: "redisson_lock_token:{orders}"}
	const above = "1795225388576201"
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for name, test := range map[string]struct {
			lock, register string // commands that are run before
			want           luascripts.Verdict
			left           string // in the register
		}{
			"held":        {"HSET orders me 1", "SET " + k.Register + " 7", luascripts.Done, "1795225388576200"},
			"first":       {"HSET orders me 2", "", luascripts.Done, "1795225388576200"},
			"equal":       {"HSET orders me 1", "SET " + k.Register + " 1795225388576200", luascripts.Done, "1795225388576200"},
			"above":       {"HSET orders me 1", "SET " + k.Register + " " + above, luascripts.Done, above},
			"free":        {"", "SET " + k.Register + " 7", luascripts.Gone, "7"},
			"another's":   {"HSET orders other 1", "SET " + k.Register + " 7", luascripts.Gone, "7"},
			"foreign key": {"SET orders me", "SET " + k.Register + " 7", luascripts.Foreign, "7"},
		} {
			do(t, rdb, "FLUSHALL")
			for _, command := range []string{test.lock, test.register} {
				if command != "" {
					do(t, rdb, strings.Split(command, " ")...)
				}
			}
			for range 2 { // the call is safe to repeat
				got, err := luascripts.RaiseToken(t.Context(), rdb, k, "me", younger)
				if err != nil || got != test.want {
					t.Errorf("%s: %v, %v, want %v", name, got, err, test.want)
				}
			}
			left, err := rdb.Do(t.Context(), rdb.B().Get().Key(k.Register).Build()).ToString()
			if err != nil || left != test.left {
				t.Errorf("%s: the register is at %q, %v, want %q", name, left, err, test.left)
			}
		}
		do(t, rdb, "FLUSHALL")
		do(t, rdb, "HSET", "orders", "me", "1")
		do(t, rdb, "RPUSH", k.Register, "7")
		if _, err := luascripts.RaiseToken(t.Context(), rdb, k, "me", younger); err == nil {
			t.Error("a register that is a list")
		}
	})
}
