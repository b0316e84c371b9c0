package admin_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// An operator needs exactly the permissions that docs/operate/security.md lists for the types of locks and for admin.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	kinds := redistest.Rights(t, "NewLock", "NewFairLock", "NewRWLock")
	for i, less := range append([]string{""}, redistest.Rights(t, "admin")[len(redistest.Rights(t)):]...) {
		user := "ops" + strconv.Itoa(i)
		rights := append(slices.Clone(kinds), redistest.Rights(t, "admin")...)
		rights = slices.DeleteFunc(rights, func(r string) bool { return r == less })
		as := s.AddUser(t, user, rights...)
		sc := newScene(t, func() rueidis.Client { return s.Client(t) })
		a, err := admin.New(s.Client(t, as))
		if err != nil {
			t.Fatal(err)
		}
		var holds []lock.Hold
		for _, name := range []string{"orders:1", "orders:{1}"} {
			holds = append(holds, sc.lock(sc.c.NewLock(name)), sc.lock(sc.c.NewRWLock(name+":rw").Write()), sc.lock(sc.c.NewFairLock(name+":fair")))
		}
		sc.do("SET", "orders:api:alice", "gcra 1 0 5")
		for range a.Locks(t.Context(), admin.Query{}) {
		}
		for range a.Locks(t.Context(), admin.Query{Kind: admin.RateLimit, Match: "orders:*"}) {
		}
		for range a.Clients(t.Context()) {
		}
		for _, h := range holds {
			_, err := a.ForceUnlock(t.Context(), nameOf(t, sc, h), "", "")
			if less == "" && err != nil {
				t.Error(err)
			}
		}
		switch denied := s.Denied(t, user); {
		case less == "" && len(denied) > 0:
			t.Errorf("docs/operate/security.md does not cover %q", denied)
		case less != "" && len(denied) == 0:
			t.Errorf("docs/operate/security.md asks for %s, and nothing is denied without it", less)
		}
		if err := sc.c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// nameOf returns the name of the lock that h holds.
func nameOf(t *testing.T, sc *scene, h lock.Hold) string {
	t.Helper()
	for l, err := range sc.admin.Locks(t.Context(), admin.Query{}) {
		if err == nil && len(l.Holders) > 0 && l.Holders[0].Owner == h.Owner() {
			return l.Name
		}
	}
	return "orders:gone"
}

// Without permission to read the readers' own leases, a list reports them as unknown, and not as the lease of the lock.
func TestHolderLease_denied(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	sc := newScene(t, func() rueidis.Client { return s.Client(t) })
	sc.lock(sc.c.NewRWLock("orders:rw").Read())
	sc.lock(sc.client("ledger").NewRWLock("orders:rw").Read())
	rights := append(redistest.Rights(t, "NewRWLock"), redistest.Rights(t, "admin")...)
	const leases = "~{orders:*:rwlock_timeout:*"
	for user, denied := range map[string]string{"all": "", "most": leases} {
		as := s.AddUser(t, user, slices.DeleteFunc(slices.Clone(rights), func(r string) bool { return r == denied })...)
		a, err := admin.New(s.Client(t, as))
		if err != nil {
			t.Fatal(err)
		}
		for l, err := range a.Locks(t.Context(), admin.Query{}) {
			if err != nil || len(l.Holders) != 2 || l.Lease <= 0 {
				t.Fatalf("%s: %+v, %v", user, l, err)
			}
			for _, h := range l.Holders {
				if left := l.HolderLease(h); (left == admin.UnknownLease) != (user == "most") {
					t.Errorf("%s: %v", user, left)
				}
			}
		}
	}
}

// For a user without permission to read the other keys of a lock, the error names the missing permission, and not a wrong type.
func TestInspect_denied(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	sc := newScene(t, func() rueidis.Client { return s.Client(t) })
	a, err := admin.New(s.Client(t, s.AddUser(t, "narrow", "+@all", "&*", "~o:*")))
	if err != nil {
		t.Fatal(err)
	}
	sc.lock(sc.c.NewLock("o:plain"))
	sc.lock(sc.c.NewFairLock("o:fair"))
	sc.lock(sc.c.NewRWLock("o:rw").Read())
	sc.lock(sc.c.NewSemaphore("o:semaphore", 2))
	if _, err := sc.c.NewLatch("o:latch").TrySetCount(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	sc.do("SET", "o:number", "5") // an idle semaphore, perhaps
	sc.do("HSET", "o:limiter", "rate", "5", "interval", "1000", "type", "0")
	for _, name := range []string{"o:fair", "o:rw", "o:semaphore", "o:latch", "o:number", "o:limiter"} {
		if l, err := a.Inspect(t.Context(), name); err == nil || errors.Is(err, lock.ErrWrongType) || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
	if _, err := a.ForceUnlock(t.Context(), "o:semaphore", "", ""); err == nil || errors.Is(err, lock.ErrWrongType) || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("%v", err)
	}
	// A user who may not read the leases of readers must not see the lease of the lock in their place.
	for user, want := range map[string][]string{"NOPERM": {"~o:*", "~leasehold_*"}, "": {"~o:*", "~leasehold_*", "~{o:rw}:*:rwlock_timeout:*"}} {
		a, err := admin.New(s.Client(t, s.AddUser(t, "leases"+user, append(want, "+@all", "&*")...)))
		if err != nil {
			t.Fatal(err)
		}
		if l, err := a.Inspect(t.Context(), "o:rw"); (err == nil) != (user == "") || err != nil && !strings.Contains(err.Error(), user) {
			t.Errorf("%q: %+v, %v", user, l, err)
		}
	}
	if l, err := a.Inspect(t.Context(), "o:plain"); err != nil || l.Kind != admin.Plain {
		t.Errorf("%+v, %v", l, err)
	}
	if l, err := a.Inspect(t.Context(), "o:free"); err != nil || l.Kind != "" {
		t.Errorf("%+v, %v", l, err)
	}
}
