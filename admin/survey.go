package admin

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/lock"
)

// MaxSurveyed is the maximum number of locks that a Survey keeps.
const MaxSurveyed = 20000

// A Survey keeps a list of locks up to date for a display. On a server with many keys, a list takes
// long. A Survey returns what it has found so far after each call of Look. The next call continues.
// It is not safe for concurrent use.
type Survey struct {
	admin   *Admin
	query   Query
	cursor  string
	pass    int                  // number of complete passes over all keys
	locks   map[string]*surveyed // by key
	clients map[string]int       // the pass in which each entry was found, by client
}

// surveyed is a lock that a Survey has found.
type surveyed struct {
	Lock
	pass int // the last pass in which it was held
}

// Surveyed is what a Survey has found.
type Surveyed struct {
	Locks    []Lock        // by name, as they were read during the call
	Clients  []lock.Client // those with an entry in Redis, unless the Query has a Match or a Kind
	Missing  []Missing     // as in a Page
	More     bool          // there are more than MaxSurveyed locks
	Complete bool          // all keys have been scanned at least once
	Scanned  float64       // share of the keys that the current pass has scanned, from 0 to 1
}

// Survey returns a survey of the locks that q selects. It sends no command.
func (a *Admin) Survey(q Query) *Survey {
	return &Survey{admin: a, query: q, locks: make(map[string]*surveyed), clients: make(map[string]int)}
}

// Look scans keys for about limit, or to the end of the pass. It also rereads the locks that it
// found earlier. Without an error, the locks are as of this call. A lock that appears after the
// scan has passed its key is found in the next pass. Rate limiters and filters are as of the pass
// that found them.
func (s *Survey) Look(ctx context.Context, limit time.Duration) (Surveyed, error) {
	seen, err := s.look(ctx, limit)
	if err != nil {
		return Surveyed{}, s.admin.failed(ctx, "survey", "", err)
	}
	return seen, nil
}

func (s *Survey) look(ctx context.Context, limit time.Duration) (seen Surveyed, err error) {
	scans, err := s.scans()
	if err != nil {
		return Surveyed{}, err
	}
	fresh := make(map[string]bool)
	for began := time.Now(); ; {
		next, scanned, err := s.admin.walk(ctx, scans, s.cursor, func(found []Lock) bool {
			s.put(found, fresh)
			return time.Since(began) < limit
		})
		if errors.Is(err, ErrBadCursor) { // the cluster has changed
			s.cursor = ""
			continue
		}
		if err != nil {
			return Surveyed{}, err
		}
		if s.cursor, seen.Scanned = next, scanned; next == "" {
			s.endPass()
			break
		}
		if time.Since(began) >= limit {
			break
		}
	}
	if err := s.refresh(ctx, fresh); err != nil {
		return Surveyed{}, err
	}
	for key := range fresh {
		seen.Locks = append(seen.Locks, s.locks[key].Lock)
	}
	slices.SortFunc(seen.Locks, func(a, b Lock) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind)) })
	s.admin.name(ctx, seen.Locks)
	if seen.Clients, err = s.living(ctx); err != nil {
		return Surveyed{}, err
	}
	seen.Missing, seen.More, seen.Complete = s.admin.missing(), len(s.locks) >= MaxSurveyed, s.pass > 0
	return seen, nil
}

// scans returns the scans of the query. If the first one scans all hashes, it also finds the entries of clients.
func (s *Survey) scans() ([]scan, error) {
	scans, err := s.admin.scans(s.query)
	if err == nil && s.query.Kind == "" && s.query.Match == "" {
		find := scans[0].find
		scans[0].find = func(ctx context.Context, names []string) ([]Lock, error) {
			for _, name := range names {
				if id, ok := keys.ClientID(name); ok {
					s.clients[id] = s.pass
				}
			}
			return find(ctx, names)
		}
	}
	return scans, err
}

// put adds locks that were read just now.
func (s *Survey) put(found []Lock, fresh map[string]bool) {
	for _, l := range found {
		if s.locks[l.key()] == nil && len(s.locks) >= MaxSurveyed {
			continue
		}
		s.locks[l.key()] = &surveyed{Lock: l, pass: s.pass}
		fresh[l.key()] = true
	}
}

// endPass removes what the pass has not found, unless its server did not respond during the pass: the lock may still be held when the
// server is back.
func (s *Survey) endPass() {
	maps.DeleteFunc(s.locks, func(key string, l *surveyed) bool { return l.pass < s.pass && !s.admin.lacks(key) })
	maps.DeleteFunc(s.clients, func(id string, pass int) bool { return pass < s.pass && !s.admin.lacks(keys.Client(id)) })
	s.pass++
}

// refresh rereads the locks that are not fresh. It keeps a free lock until the end of the pass, because it may soon be held again.
func (s *Survey) refresh(ctx context.Context, fresh map[string]bool) error {
	var hashes, zsets, rounds, boards, limits, windows []string
	for key, l := range s.locks {
		switch name := l.Name; {
		case fresh[key]:
		case s.admin.lacks(name):
			l.pass = s.pass // the server may be back before the pass ends, but the pass does not scan it then
		case s.query.Kind == Election:
			boards = append(boards, keys.Leader(name).Lock)
		case l.Kind == Semaphore:
			zsets = append(zsets, keys.Semaphore(name).Leases)
		case l.Kind == WaitGroup:
			zsets = append(zsets, keys.WaitGroup(name).Lock)
		case l.Kind == Latch:
			rounds = append(rounds, keys.Latch(name).Rounds)
		case l.Kind == RateLimit:
			limits = append(limits, name)
		case l.Kind == RedissonRateLimit:
			windows = append(windows, name)
		case l.Kind == Bloom:
			fresh[key] = true
		default:
			hashes = append(hashes, name)
		}
	}
	read := func(found []Lock, err error) error {
		found = slices.DeleteFunc(found, func(l Lock) bool {
			return s.locks[l.key()] == nil || s.query.Kind != "" && s.query.Kind != Election && s.query.Kind != l.Kind
		})
		s.put(found, fresh)
		return err
	}
	for part := range slices.Chunk(hashes, atOnce) {
		if err := read(s.admin.look(ctx, part, false)); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(limits, atOnce) {
		if err := read(s.admin.limitsOf(ctx, part)); err != nil {
			return err
		}
	}
	if err := read(s.admin.windows(ctx, windows)); err != nil {
		return err
	}
	return cmp.Or(read(s.admin.zsets(ctx, zsets, s.query, "*")), read(s.admin.latches(ctx, rounds, "*")), read(s.admin.elections(ctx, boards, "*")))
}

// living returns the clients that still have an entry.
func (s *Survey) living(ctx context.Context) ([]lock.Client, error) {
	var ids []string
	for id := range s.clients {
		if s.admin.lacks(keys.Client(id)) {
			s.clients[id] = s.pass // for the same reason as the locks in refresh
		} else {
			ids = append(ids, id)
		}
	}
	entries, err := s.admin.entries(ctx, ids)
	if err != nil && len(entries) == 0 {
		return nil, err
	}
	return slices.Collect(maps.Values(entries)), nil
}
