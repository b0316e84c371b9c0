package keys

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// slotPart returns the part of a key that determines its cluster slot, by the cluster
// specification: the text between the first { and the first } after it, unless that is empty.
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

// keysOf returns the keys of a type as NewSpec does.
func keysOf(make func(string) luascripts.Keys, prefix, name string) (luascripts.Keys, error) {
	return make(prefix + name), Check(prefix, name)
}

func TestKeys(t *testing.T) {
	for name, want := range map[string]luascripts.Keys{
		"orders":      {Channel: "redisson_lock__channel:{orders}", Queue: "redisson_lock_queue:{orders}", Timeouts: "redisson_lock_timeout:{orders}", Never: "redisson_lock_queue:{orders}::never"},
		"orders:42":   {Channel: "redisson_lock__channel:{orders:42}", Queue: "redisson_lock_queue:{orders:42}", Timeouts: "redisson_lock_timeout:{orders:42}", Never: "redisson_lock_queue:{orders:42}::never"},
		"{shop}:1":    {Channel: "redisson_lock__channel:{shop}:1", Queue: "redisson_lock_queue:{shop}:1", Timeouts: "redisson_lock_timeout:{shop}:1", Never: "redisson_lock_queue:{shop}:1::never"},
		"a{b}c{d}":    {Channel: "redisson_lock__channel:a{b}c{d}", Queue: "redisson_lock_queue:a{b}c{d}", Timeouts: "redisson_lock_timeout:a{b}c{d}", Never: "redisson_lock_queue:a{b}c{d}::never"},
		"ä\x00\xff\n": {Channel: "redisson_lock__channel:{ä\x00\xff\n}", Queue: "redisson_lock_queue:{ä\x00\xff\n}", Timeouts: "redisson_lock_timeout:{ä\x00\xff\n}", Never: "redisson_lock_queue:{ä\x00\xff\n}::never"},
	} {
		want.Lock, want.Publish = name, "PUBLISH"
		if k, err := keysOf(Fair, "", name); err != nil || k != want {
			t.Errorf("%q: %+v, %v, want %+v", name, k, err, want)
		}
		want.Queue, want.Timeouts, want.Never = "", "", ""
		want.QueueChannel = map[bool]string{false: "leasehold_channel:{" + name + "}", true: "leasehold_channel:" + name + ":"}[strings.Contains(name, "{")]
		if k, err := keysOf(Plain, "", name); err != nil || k != want {
			t.Errorf("%q: %+v, %v, want %+v", name, k, err, want)
		}
	}
	for name, want := range map[string]luascripts.Keys{
		"orders":   {Channel: "redisson_rwlock:{orders}", ReadWriteKeys: luascripts.ReadWriteKeys{Intent: "leasehold_rwlock_wish:{orders}", Reservation: "leasehold_rwlock_turn:{orders}", LeasePrefix: "{orders}"}, Never: "{orders}::rwlock_timeout:0"},
		"{shop}:1": {Channel: "redisson_rwlock:{shop}:1", ReadWriteKeys: luascripts.ReadWriteKeys{Intent: "leasehold_rwlock_wish:{shop}:1:", Reservation: "leasehold_rwlock_turn:{shop}:1:", LeasePrefix: "{shop}:1"}, Never: "{shop}:1::rwlock_timeout:0"},
	} {
		want.Lock, want.Publish = name, "PUBLISH"
		if k, err := keysOf(ReadWrite, "", name); err != nil || k != want {
			t.Errorf("%q: %+v, %v, want %+v", name, k, err, want)
		}
	}
	for _, name := range []string{"", "a{b", "a}b", "{}", "{}{a}", "a{}b", strings.Repeat("x", maxName+1), "redisson_lock_queue:{a}", "leasehold_rwlock_wish:{a}", "leasehold_rwlock_turn:{a}", "leasehold_fence:{a}", "leasehold_client:a", "leasehold_forced:{a}"} {
		if k, err := keysOf(Plain, "", name); !errors.Is(err, lock.ErrBadName) {
			t.Errorf("%.40q: %+v, %v, want ErrBadName", name, k, err)
		}
	}
	if err := CheckPrefix("a{"); !errors.Is(err, lock.ErrBadName) {
		t.Errorf("a prefix with half a brace: %v", err)
	}
	if err := CheckPrefix("shop:"); err != nil {
		t.Error(err)
	}
}

func TestLatch(t *testing.T) {
	want := luascripts.Keys{Lock: "done", Channel: "redisson_countdownlatch__channel__{done}", Publish: "PUBLISH", LatchKeys: luascripts.LatchKeys{Rounds: "leasehold_latch:{done}", Calls: "leasehold_latch_calls:{done}"}, Never: "leasehold_latch:{done}:never"}
	k := Latch("done")
	if k != want {
		t.Errorf("%+v, want %+v", k, want)
	}
	for _, key := range []string{k.Rounds, k.Calls, k.Never} {
		if slotPart(key) != slotPart(k.Lock) {
			t.Errorf("%s has another slot", key)
		}
	}
	if name, ok := LatchOf(k.Rounds); name != "done" || !ok {
		t.Error(name, ok)
	}
	for _, key := range []string{k.Calls, "leasehold_latch:done", "done"} {
		if name, ok := LatchOf(key); ok {
			t.Errorf("%s shows a latch %s", key, name)
		}
	}
	for _, name := range []string{"{done}", "la{t}ch", "a{", "a}", "", "leasehold_latch:x", "leasehold_latch_calls:x"} {
		if err := CheckLatch("", name); !errors.Is(err, lock.ErrBadName) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := CheckLatch("{shop}:", "done"); !errors.Is(err, lock.ErrBadName) {
		t.Errorf("a prefix with braces: %v", err)
	}
}

func TestWaitGroup(t *testing.T) {
	for _, name := range []string{"import", "{shop}:import", "a{b}", "{x}", "a:"} {
		if got, ok := WaitGroupOf(WaitGroup(name).Lock); got != name || !ok {
			t.Errorf("%q: %q, %v", name, got, ok)
		}
		if got, ok := LeaderOf(Leader(name).Lock); got != name || !ok {
			t.Errorf("%q: %q, %v", name, got, ok)
		}
		if slotPart(WaitGroup(name).Lock) != slotPart(name) {
			t.Errorf("%q has another slot", name)
		}
	}
	for _, key := range []string{"leasehold_crew:x", "leasehold_crews:{x}", "x", "leasehold_latch:{x}"} {
		if name, ok := WaitGroupOf(key); ok {
			t.Errorf("%s shows a wait group %s", key, name)
		}
	}
}

func TestClient(t *testing.T) {
	if key := Client("uuid"); key != "leasehold_client:uuid" {
		t.Error(key)
	}
	if id, ok := ClientID(Client("uuid")); id != "uuid" || !ok {
		t.Error(id, ok)
	}
	if id, ok := ClientID("leasehold_fence:{a}"); ok {
		t.Error(id)
	}
}

// Every name is either rejected, or all its keys and channels share a slot and no other name has
// the same key.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"", "orders", "{a}", "a{b", "a}b", "{}x", "}a{b}", "a{b}c", "{{a}}", "\x00\xff", "redisson_lock_token:{a}"} {
		f.Add("", s, "orders")
		f.Add("shop:", s, "{a}")
		f.Add("", s, "{"+s+"}")
	}
	f.Fuzz(func(t *testing.T, prefix, a, b string) {
		fair, err := keysOf(Fair, prefix, a)
		if err != nil {
			if !errors.Is(err, lock.ErrBadName) {
				t.Errorf("%q: %v", a, err)
			}
			return
		}
		rw := ReadWrite(prefix + a)
		plain := Plain(prefix + a)
		all := []string{plain.QueueChannel, OfClient(plain.QueueChannel, "uuid"), fair.Channel, fair.Queue, fair.Timeouts, rw.Channel, rw.Intent, rw.Reservation, rw.LeasePrefix + ":1:rwlock_timeout:1", Tokens(fair.Lock), Forced(fair.Lock)}
		for _, key := range all {
			if slotPart(key) != slotPart(fair.Lock) {
				t.Errorf("%q and %q do not share a slot", fair.Lock, key)
			}
			if key == fair.Lock {
				t.Errorf("%q lies on its own lock", key)
			}
		}
		other, err := keysOf(Fair, prefix, b)
		if err == nil && (fair.Lock == other.Lock || plain.QueueChannel == Plain(prefix+b).QueueChannel || rw.Intent == ReadWrite(prefix+b).Intent || rw.Reservation == ReadWrite(prefix+b).Reservation) != (a == b) {
			t.Errorf("%q and %q share what is ours: %+v, %+v", a, b, plain, rw)
		}
		if fair.Lock == "{"+other.Lock+"}" || other.Lock == "{"+fair.Lock+"}" {
			return // Redisson's keys are the same
		}
		if err == nil && (fair.Channel == other.Channel || fair.Queue == other.Queue) != (a == b) {
			t.Errorf("%q and %q have keys %+v and %+v", a, b, fair, other)
		}
		if err == nil {
			for _, key := range []string{fair.Queue, fair.Timeouts, rw.Intent, rw.Reservation, Tokens(fair.Lock), Forced(fair.Lock)} {
				if other.Lock == key {
					t.Errorf("the lock %q lies on a key of the lock %q", b, a)
				}
			}
		}
	})
}

// No name has a channel of ours that is also a channel of another name, even if one of them looks
// like such a channel.
func TestChannels_areNotShared(t *testing.T) {
	const client = "0190b5a2-7e2f-7abc-8def-0123456789ab"
	names := []string{"x", "x:", "x::"}
	for range 3 { // names composed of other names, and of their channels
		for _, name := range names[:min(len(names), 12)] {
			line := Plain(name).QueueChannel
			names = append(names, "{"+name+"}", name+":"+client, name+":leasehold", name+":", strings.TrimPrefix(line, queueChannelPrefix+":"), strings.TrimPrefix(OfClient(line, client), queueChannelPrefix+":"))
		}
	}
	whose := map[string]string{}
	seen := map[string]bool{}
	for _, name := range names {
		if Check("", name) != nil || seen[name] {
			continue
		}
		seen[name] = true
		k := Plain(name)
		for _, channel := range []string{k.QueueChannel, OfClient(k.QueueChannel, client)} {
			if other, taken := whose[channel]; taken {
				t.Errorf("%q is a channel of %q and of %q", channel, other, name)
			}
			whose[channel] = name
		}
	}
	if len(whose) < 40 {
		t.Errorf("only %d channels were compared", len(whose))
	}
}

// The keys of rate limiters, windows and filters are in one slot, and no lock can have their names.
func TestOthers(t *testing.T) {
	for name, want := range map[string]string{"a": "{a}", "a{b}c": "a{b}c"} {
		w := Window(name)
		bits, config := Bloom(name)
		if w.Config != name || w.Value != want+":value" || w.Permits != want+":permits" || bits != name || config != want+":config" {
			t.Errorf("%q: %+v, %q, %q", name, w, bits, config)
		}
		for _, key := range []string{w.Value, w.Permits, w.Never, config} {
			if Tag(key) != Tag(name) {
				t.Errorf("%q and %q are in two slots", name, key)
			}
		}
	}
	for _, name := range []string{"{a}:value", "{a}:permits", "{a}:config", "{a}:timeout"} {
		if err := Check("", name); !errors.Is(err, lock.ErrBadName) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"{a}:values", "a:value", "{a}{b}:value"} {
		if err := Check("", name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for name, ok := range map[string]bool{"api": true, "": false, "a:b": false, "redisson_lock_queue": true} {
		if err := CheckLimiter("p-", name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := Limiter("", "redisson_lock_queue", "x"); !errors.Is(err, lock.ErrBadName) {
		t.Errorf("a key of locks: %v", err)
	}
	// The keys of a window, a filter or a semaphore cannot collide with keys of a limiter, which
	// may be untrusted.
	for _, c := range []struct{ prefix, name, key, of string }{{"", "{x}", "value", "{x}"}, {"{shop}:", "api", "permits", "{shop}:api"}, {"", "a{b}", "config", "a{b}"}, {"", "api", "{b}:timeout", "api:{b}"}, {"", "{x}", "value:permits", "{x}"}} {
		_, config := Bloom(c.of)
		w := Window(c.of)
		if theirs := []string{w.Value, w.Permits, w.Never, config, Semaphore(c.of).Leases}; !slices.Contains(theirs, c.prefix+c.name+":"+c.key) {
			t.Errorf("%q are not where the limiter %q keeps %q", theirs, c.name, c.key)
		}
		if full, err := Limiter(c.prefix, c.name, c.key); !errors.Is(err, lock.ErrBadName) {
			t.Errorf("%+v: %q, %v", c, full, err)
		}
	}
	for _, key := range []string{"value", "a:value", "{b}", "{b}:values"} {
		if _, err := Limiter("p:", "api", key); err != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
	if full, err := Limiter("p:", "api", "}{"); err != nil || full != "p:api:}{" {
		t.Errorf("%q, %v", full, err)
	}
}
