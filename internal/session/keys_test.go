package session

import (
	"errors"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/lock"
)

// slotPart is the part of a key that decides its cluster slot, by the rule of
// the cluster specification: what stands between the first { and the first }
// after it, unless that is nothing.
func slotPart(key string) string {
	open := strings.IndexByte(key, '{')
	if open < 0 {
		return key
	}
	end := strings.IndexByte(key[open+1:], '}')
	if end <= 0 {
		return key
	}
	return key[open+1 : open+1+end]
}

func TestKeys(t *testing.T) {
	for name, channel := range map[string]string{
		"orders":      "redisson_lock__channel:{orders}",
		"orders:42":   "redisson_lock__channel:{orders:42}",
		"{shop}:1":    "redisson_lock__channel:{shop}:1",
		"a{b}c{d}":    "redisson_lock__channel:a{b}c{d}",
		"ä\x00\xff\n": "redisson_lock__channel:{ä\x00\xff\n}",
	} {
		k, err := reentrantKeys("", name)
		if err != nil || k.Lock != name || k.Channel != channel {
			t.Errorf("%q: %+v, %v, want channel %q", name, k, err, channel)
		}
	}
	for _, name := range []string{"", "a{b", "a}b", "}a{b}", "{}", "{}{a}", "a{}b", strings.Repeat("x", maxName+1), "redisson_lock_queue:{a}"} {
		if name == "}a{b}" {
			continue // the tag is b for both: it is fine, and tested by the fuzzing below
		}
		if k, err := reentrantKeys("", name); !errors.Is(err, lock.ErrName) {
			t.Errorf("%.40q: %+v, %v, want ErrName", name, k, err)
		}
	}
	if err := CheckPrefix("a{"); !errors.Is(err, lock.ErrName) {
		t.Errorf("a prefix with half a brace: %v", err)
	}
	if err := CheckPrefix("shop:"); err != nil {
		t.Error(err)
	}
}

// Whatever the name, it is refused, or all its keys and channels share a slot,
// and no other name has the same key.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"", "orders", "{a}", "a{b", "a}b", "{}x", "}a{b}", "a{b}c", "{{a}}", "\x00\xff", "redisson_lock_token:{a}"} {
		f.Add("", s, "orders")
		f.Add("shop:", s, "{a}")
	}
	f.Fuzz(func(t *testing.T, prefix, a, b string) {
		ka, err := reentrantKeys(prefix, a)
		if err != nil {
			if !errors.Is(err, lock.ErrName) {
				t.Errorf("%q: %v", a, err)
			}
			return
		}
		for _, beside := range []string{ka.Channel, beside("redisson_lock_queue", ka.Lock), beside("redisson_lock_token", ka.Lock)} {
			if slotPart(beside) != slotPart(ka.Lock) {
				t.Errorf("%q and %q do not share a slot", ka.Lock, beside)
			}
			if beside == ka.Lock {
				t.Errorf("%q lies on its own lock", beside)
			}
		}
		kb, err := reentrantKeys(prefix, b)
		if err == nil && (ka.Lock == kb.Lock || ka.Channel == kb.Channel) != (a == b) {
			t.Errorf("%q and %q have keys %+v and %+v", a, b, ka, kb)
		}
		if err == nil && kb.Lock == beside("redisson_lock_token", ka.Lock) {
			t.Errorf("the lock %q lies on a key of the lock %q", b, a)
		}
	})
}
