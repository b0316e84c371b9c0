package admin_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// Keys lists exactly the keys that exist, with their remaining time.
func TestKeys(t *testing.T) {
	everywhere(t, func(s *scene) {
		const name = "orders:1"
		h := s.lock(s.c.NewFairLock(name, lock.WithFencing()))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = s.c.NewFairLock(name).Lock(ctx)
		}()
		want := []string{name, "redisson_lock_queue:{orders:1}", "redisson_lock_timeout:{orders:1}", "redisson_lock_token:{orders:1}", "leasehold_client:" + s.c.ID()}
		var names []string
		for end := time.Now().Add(patience); !slices.Equal(names, want); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the keys are %q, want %q", names, want)
			}
			l, err := s.admin.Inspect(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			keys, err := s.admin.Keys(t.Context(), l)
			if err != nil {
				t.Fatal(err)
			}
			names = nil
			for _, k := range keys {
				names = append(names, k.Name)
				if lives := k.Left != lock.NoExpiry; lives == (k.Type == "string") || k.Left == 0 || k.Role == "" {
					t.Errorf("%+v", k)
				}
			}
		}
		cancel()
		<-done
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		// The keys of the waiter in Redis are removed after its Lock has returned.
		var l admin.Lock
		var keys []admin.Key
		for end := time.Now().Add(patience); len(keys) != 1 || keys[0].Name != "redisson_lock_token:{orders:1}"; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("of a free lock: %+v", keys)
			}
			var err error
			if l, err = s.admin.Inspect(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			if keys, err = s.admin.Keys(t.Context(), l); err != nil {
				t.Fatal(err)
			}
		}
		l.Name = "leasehold_client:x"
		if keys, err := s.admin.Keys(t.Context(), l); err == nil {
			t.Errorf("of a name that no lock has: %+v", keys)
		}
	})
}

// Keys omits what the user is not allowed to read.
func TestKeys_rights(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, err := admin.New(s.Client(t, s.AddUser(t, "ops", "~orders:*", "+@all")))
	if err != nil {
		t.Fatal(err)
	}
	s.Do(t, "HSET", "orders:1", redissons+":1", "1")
	keys, err := a.Keys(t.Context(), admin.Lock{State: lock.State{Name: "orders:1"}, Kind: admin.Fair})
	if err != nil || len(keys) != 1 || keys[0].Left != lock.NoExpiry {
		t.Errorf("%+v, %v", keys, err)
	}
}
