package luascripts_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	keynames "github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A holder raises the token counter, and never lowers it. A client that does not hold the lock does not change it.
func TestRaiseToken(t *testing.T) {
	k := luascripts.Keys{Lock: "orders", TokenCounter: "redisson_lock_token:{orders}"}
	const above = "1795225388576201"
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for name, test := range map[string]struct {
			lock, tokenCounter string // commands that are run first
			want               luascripts.Verdict
			left               string // the token counter afterward
		}{
			"held":        {"HSET orders me 1", "SET " + k.TokenCounter + " 7", luascripts.Done, "1795225388576200"},
			"first":       {"HSET orders me 2", "", luascripts.Done, "1795225388576200"},
			"equal":       {"HSET orders me 1", "SET " + k.TokenCounter + " 1795225388576200", luascripts.Done, "1795225388576200"},
			"above":       {"HSET orders me 1", "SET " + k.TokenCounter + " " + above, luascripts.Done, above},
			"free":        {"", "SET " + k.TokenCounter + " 7", luascripts.Gone, "7"},
			"another's":   {"HSET orders other 1", "SET " + k.TokenCounter + " 7", luascripts.Gone, "7"},
			"no number":   {"HSET orders me 1", "SET " + k.TokenCounter + " 12.5", luascripts.Foreign, "12.5"},
			"foreign key": {"SET orders me", "SET " + k.TokenCounter + " 7", luascripts.Foreign, "7"},
		} {
			do(t, rdb, "FLUSHALL")
			for _, command := range []string{test.lock, test.tokenCounter} {
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
			left, err := rdb.Do(t.Context(), rdb.B().Get().Key(k.TokenCounter).Build()).ToString()
			if err != nil || left != test.left {
				t.Errorf("%s: the register is at %q, %v, want %q", name, left, err, test.left)
			}
		}
		do(t, rdb, "FLUSHALL")
		do(t, rdb, "HSET", "orders", "me", "1")
		do(t, rdb, "RPUSH", k.TokenCounter, "7")
		if _, err := luascripts.RaiseToken(t.Context(), rdb, k, "me", younger); err == nil {
			t.Error("a register that is a list")
		}
	})
}

// If the token counter does not contain a token, the call fails, and neither it nor the lock changes.
func TestToken_noNumber(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for _, text := range []string{"abc", "12.5", "-3", "", " 7", "0x10", "1e3", strings.Repeat("9", 20)} {
			for what, acquire := range map[string]struct {
				keys luascripts.Keys
				call func(context.Context, rueidis.Client, luascripts.Keys, luascripts.Request) (luascripts.Acquired, error)
			}{
				"plain": {keynames.Plain("orders"), luascripts.AcquireReentrant},
				"fair":  {keynames.Fair("orders"), luascripts.AcquireFair},
				"read":  {keynames.ReadWrite("orders"), luascripts.AcquireRead},
				"write": {keynames.ReadWrite("orders"), luascripts.AcquireWrite},
			} {
				k := acquire.keys
				k.TokenCounter = keynames.Tokens("orders")
				do(t, rdb, "FLUSHALL")
				do(t, rdb, "SET", k.TokenCounter, text)
				before := contents(t, rdb)
				a, err := acquire.call(t.Context(), rdb, k, luascripts.Request{Owner: ours, Lease: time.Hour, Want: 1})
				if after := contents(t, rdb); err == nil || after != before {
					t.Errorf("%s, %q: %+v, %v: %s", what, text, a, err, after)
				}
			}
		}
	})
}

// The token of a new holder is the clock, or the token counter plus one if that is larger. The token counter is then increased
// by the number of tokens that the holder may hand off.
func TestToken_andItsCounter(t *testing.T) {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	noon := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	m.SetTime(noon)
	clock := uint64(noon.UnixMicro())
	k := fairKeys
	k.TokenCounter = "redisson_lock_token:{orders}"
	for name, c := range map[string]struct {
		tokenCounter string
		want         uint64
	}{
		"there is none":    {"", clock},
		"before the clock": {"7", clock},
		"at the clock":     {strconv.FormatUint(clock, 10), clock + 1},
		"after the clock":  {strconv.FormatUint(clock+100, 10), clock + 101},
	} {
		do(t, rdb, "FLUSHALL")
		if c.tokenCounter != "" {
			do(t, rdb, "SET", k.TokenCounter, c.tokenCounter)
		}
		got, err := luascripts.AcquireFair(t.Context(), rdb, k, luascripts.Request{Owner: owner("G1"), Lease: lease, Want: 1, Spare: 10})
		if err != nil || got.Token != c.want {
			t.Errorf("%s: token %d, %v, want %d", name, got.Token, err, c.want)
		}
		m := do(t, rdb, "GET", k.TokenCounter)
		if left, err := m.AsUint64(); err != nil || left != c.want+10 {
			t.Errorf("%s: the register is at %d, %v, want %d", name, left, err, c.want+10)
		}
	}
}

// The token counter never decreases, and only a holder raises it.
func TestToken_transcript(t *testing.T) {
	play(t, `
		HSET l $a:1 1
		token_raise [l r] $a:1 5 = 1
		GET r = 5
		token_raise [l r] $a:1 5 = 1
		sent SET = 0
		token_raise [l r] $a:1 4 = 1
		GET r = 5
		token_raise [l r] $a:1 6 = 1
		GET r = 6
		token_raise [l r] $b:1 9 = -2
		SET r x
		token_raise [l r] $a:1 9 = -4
		GET r = x
		SET s 1
		token_raise [s r] $a:1 9 = -4
		without HEXISTS
		token_raise [l r] $a:1 9 = !NOPERM
		without HDEL
		token_raise [l r] $b:1 9 = !NOPERM
	`)
}
