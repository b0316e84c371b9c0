package luascripts_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
)

// Evicts reports how the server behaves when its memory is full, if a script can find out without a denial in the ACL
// log.
func TestEvicts(t *testing.T) {
	s := redistest.Start(t)
	admin, less := s.Client(t), denied(t, s, "info")
	tells := number(t, admin, "EVAL", "return redis.acl_check_cmd and 1 or 0", "0") == 1 // as of Redis 7.0
	for _, c := range []struct{ max, policy, want string }{
		{"0", "allkeys-lru", ""},
		{"100mb", "allkeys-lru", "allkeys-lru"},
		{"100mb", "noeviction", ""},
	} {
		s.Do(t, "CONFIG", "SET", "maxmemory", c.max)
		s.Do(t, "CONFIG", "SET", "maxmemory-policy", c.policy)
		if got, err := luascripts.Evicts(t.Context(), admin); err != nil || got != c.want && (tells || got != "") {
			t.Errorf("%s of %s: %q, %v, want %q", c.policy, c.max, got, err, c.want)
		}
		if got, err := luascripts.Evicts(t.Context(), less); err != nil || got != "" {
			t.Errorf("%s of %s, without INFO: %q, %v", c.policy, c.max, got, err)
		}
	}
	if log := s.Denied(t, "no-info"); len(log) > 0 {
		t.Errorf("denied: %q", log)
	}
	if got, err := luascripts.Evicts(t.Context(), redistest.NewMini(t).Client(t)); err != nil || got != "" {
		t.Errorf("a server that does not tell: %q, %v", got, err)
	}
}
