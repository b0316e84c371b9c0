package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/registry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A Query selects the locks to list.
type Query struct {
	// Match is a Redis pattern for the names, such as "orders:*". In it * matches any text, ? any
	// character, [ab] one of these, and \ makes the next character literal. "" selects all.
	Match string

	// Kind is the type of the locks to list. "" selects all that have holders. Latches, which have
	// none, and wait groups that have only lost workers are listed if Kind is Latch or WaitGroup,
	// or with Idle. Rate limiters and filters are listed only if Kind names them, because a limiter
	// can have a key for each user of an application.
	Kind Kind

	// Idle also lists locks without holders if Kind is "". They are latches that are not released,
	// and wait groups that have only lost workers.
	Idle bool
}

// lists reports whether q selects locks of type k even if they have no holders.
func (q Query) lists(k Kind) bool { return q.Kind == k || q.Kind == "" && q.Idle }

// Prefix returns the pattern of all names that begin with prefix.
func Prefix(prefix string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(prefix) + "*"
}

// A Page is a part of a list of locks.
type Page struct {
	Locks   []Lock    // in no order; can be empty before the last page
	Next    string    // cursor of the next page; "" on the last page
	Scanned float64   // the share of the keys that have been scanned after this page: from 0 to 1
	Missing []Missing // the primaries of a cluster that do not respond: the list lacks what they store
}

// The bounds of a page. A step of SCAN blocks the server for less than a millisecond. Between the commands of a pipeline, the server
// executes commands of other clients.
const (
	scanCount = 500
	pageScans = 20  // maximum number of SCAN steps for a page
	pageLocks = 200 // a page ends when it has this number of locks
	atOnce    = 100 // keys in one pipeline
	maxReads  = 32  // concurrent reads of locks that a pipeline cannot read
	someHolds = 16  // COUNT of HSCAN, which returns a small hash whole
)

// ErrBadCursor is returned when the cursor does not come from a page, or the cluster has changed
// since. Start with the first page.
var ErrBadCursor = errors.New("invalid or outdated cursor: start over with an empty one")

// Page lists some locks. It starts at the beginning if cursor is "", and otherwise at cursor, the
// Next of the previous page with the same q. It stops after about 10,000 keys or 200 locks,
// whichever comes first. The time of a call therefore does not grow with the number of keys.
//
// Page uses SCAN. A lock that exists from the first page to the last is on at least one of them,
// unless its slot is migrated in the meantime, and can be on two. For a lock with many readers,
// Holders has only some of them, and Holding can count readers whose lease has expired. Page counts
// the waiters and does not list them (see Inspect).
func (a *Admin) Page(ctx context.Context, q Query, cursor string) (Page, error) {
	page, err := a.page(ctx, q, cursor)
	if err != nil {
		return Page{}, a.failed(ctx, "list", "", err)
	}
	return page, nil
}

// Locks lists each lock that matches q once, page by page. It ends after an error. If primaries of
// a cluster do not respond, it lists what the others store, and the error then matches
// [*IncompleteError].
func (a *Admin) Locks(ctx context.Context, q Query) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		seen := make(map[string]bool)
		var lacks IncompleteError
		for cursor, first := "", true; first || cursor != ""; first = false {
			page, err := a.Page(ctx, q, cursor)
			if err != nil {
				yield(Lock{}, err)
				return
			}
			lacks.add(page.Missing)
			if a.progress != nil {
				a.progress(page.Scanned)
			}
			for _, l := range page.Locks {
				if seen[l.key()] {
					continue
				}
				seen[l.key()] = true
				if !yield(l, nil) {
					return
				}
			}
			cursor = page.Next
		}
		if len(lacks.Missing) > 0 {
			yield(Lock{}, a.failed(ctx, "list", "", &lacks))
		}
	}
}

// key returns a string that identifies the lock: a wait group can have the same name as a lock.
func (l *Lock) key() string {
	if l.Kind == WaitGroup {
		return keys.WaitGroup(l.Name).Lock
	}
	return l.Name
}

func (a *Admin) page(ctx context.Context, q Query, cursor string) (page Page, err error) {
	scans, err := a.scans(q)
	if err != nil {
		return Page{}, err
	}
	page.Next, page.Scanned, err = a.walk(ctx, scans, cursor, func(found []Lock) (more bool) {
		page.Locks = append(page.Locks, found...)
		return len(page.Locks) < pageLocks
	})
	if err != nil {
		if missing := a.missing(); len(missing) > 0 { // they explain why the cluster is down
			err = fmt.Errorf("%w; %v", err, &IncompleteError{missing})
		}
		return Page{}, err
	}
	a.name(ctx, page.Locks)
	page.Missing = a.missing()
	return page, nil
}

// Kinds returns the kinds that a Query can have.
func Kinds() []Kind {
	return []Kind{Plain, Fair, ReadWrite, Semaphore, WaitGroup, Latch, Election, RateLimit, RedissonRateLimit, Bloom}
}

// scan selects keys by a pattern and a type, and finds the locks that they belong to.
type scan struct {
	match, kind string
	find        func(ctx context.Context, names []string) ([]Lock, error)
}

// braced matches every zset of a semaphore or a wait group. For SCAN, a match by name costs a fraction of a type lookup.
const braced = "*{*"

// scans returns the scans for q. Each scan is one pass over all keys, and walk interleaves the passes. Locks that can be held need two
// scans: one over the hashes and one over the zsets.
func (a *Admin) scans(q Query) ([]scan, error) {
	pattern := q.pattern()
	zsets := func(ctx context.Context, names []string) ([]Lock, error) { return a.zsets(ctx, names, q, pattern) }
	latches := scan{keys.Latches, "hash", func(ctx context.Context, names []string) ([]Lock, error) { return a.latches(ctx, names, pattern) }}
	hashes := scan{pattern, "hash", func(ctx context.Context, names []string) ([]Lock, error) { return a.hashes(ctx, names, q) }}
	switch q.Kind {
	case "":
		scans := []scan{hashes, {braced, "zset", zsets}}
		switch {
		case q.Idle && q.Match == "":
			scans[0].find = func(ctx context.Context, names []string) ([]Lock, error) {
				locks, err := hashes.find(ctx, names)
				if err != nil {
					return nil, err
				}
				closed, err := latches.find(ctx, names)
				return append(locks, closed...), err
			}
		case q.Idle:
			scans = append(scans, latches)
		}
		return scans, nil
	case Plain, Fair, ReadWrite:
		return []scan{hashes}, nil
	case Semaphore:
		return []scan{{"*" + held, "zset", zsets}}, nil
	case WaitGroup:
		return []scan{{keys.WaitGroups, "zset", zsets}}, nil
	case Latch:
		return []scan{latches}, nil
	case Election:
		return []scan{{keys.Leaders, "hash", func(ctx context.Context, boards []string) ([]Lock, error) { return a.elections(ctx, boards, pattern) }}}, nil
	case RateLimit:
		return []scan{{pattern, "string", a.limits}}, nil
	case RedissonRateLimit:
		return []scan{{pattern, "hash", a.windows}}, nil
	case Bloom:
		return []scan{{keys.Filters, "hash", func(ctx context.Context, configs []string) ([]Lock, error) { return a.filters(ctx, configs, pattern) }}}, nil
	}
	return nil, fmt.Errorf("unknown kind %q: want one of %q", q.Kind, Kinds())
}

// pattern returns the pattern of the names that q selects.
func (q Query) pattern() string { return cmp.Or(q.Match, "*") }

// hashes returns the locks that q selects among the hashes called names. Without a Match, it skips hashes that the user is not allowed
// to read, because SCAN lists all keys.
func (a *Admin) hashes(ctx context.Context, names []string, q Query) (found []Lock, err error) {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return keys.Check("", name) != nil })
	for part := range slices.Chunk(names, atOnce) {
		likely, err := a.sift(ctx, part, q.Match == "")
		if err != nil {
			return nil, err
		}
		locks, err := a.look(ctx, likely, q.Match == "")
		if err != nil {
			return nil, err
		}
		for _, l := range locks {
			if q.Kind == "" || l.Kind == q.Kind {
				found = append(found, l)
			}
		}
	}
	return found, nil
}

// sift returns the hashes that may be locks, judging by one random field of each. This rules out nearly all other hashes at a third of
// the cost of reading them. If skipDenied is true, sift skips hashes that the user is not allowed to read.
func (a *Admin) sift(ctx context.Context, names []string, skipDenied bool) (likely []string, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	ctx, cancel := a.within(ctx)
	defer cancel()
	questions := make(rueidis.Commands, len(names))
	for i, name := range names {
		questions[i] = a.rdb.B().Hrandfield().Key(name).Build()
	}
	for i, reply := range a.rdb.DoMulti(ctx, questions...) {
		field, err := reply.ToString()
		_, refused := rueidis.IsRedisErr(err)
		switch {
		case rueidis.IsRedisNil(err) || wrongType(err): // it has expired
		case command.RefusedKey(err):
			if !skipDenied {
				return nil, err
			}
		case refused || err == nil && plausible(field): // HRANDFIELD is not supported or is denied: look reads the hash
			likely = append(likely, names[i])
		case err != nil:
			return nil, err
		}
	}
	return likely, nil
}

// end replaces the cursor of a scan that has passed all keys of a node.
const end = "-"

// walk interleaves the passes of scans over all keys, starting at cursor. Each step covers the same part of the keys for all scans, while
// the server has that part in its caches. After each step, walk calls found. It stops when found returns false or a page of keys has been
// scanned. It returns the cursor of the next page ("" at the end) and the share of the keys that have been scanned.
func (a *Admin) walk(ctx context.Context, scans []scan, cursor string, found func([]Lock) (more bool)) (next string, scanned float64, err error) {
	nodes, err := a.masters(ctx)
	if err != nil {
		return "", 0, err
	}
	begin := slices.Repeat([]string{"0"}, len(scans))
	at, from := 0, slices.Clone(begin)
	if cursor != "" {
		words := strings.SplitN(cursor, " ", 3)
		if len(words) != 3 {
			return "", 0, ErrBadCursor
		}
		addr := words[0]
		slot, err := strconv.ParseInt(words[1], 10, 64)
		at, from = slices.IndexFunc(nodes, func(n node) bool { return n.compare(slot, addr) == 0 }), strings.Split(words[2], ",")
		if err != nil || len(from) != len(scans) || slices.ContainsFunc(from, func(c string) bool {
			_, err := strconv.ParseUint(c, 10, 64)
			return err != nil && c != end
		}) {
			return "", 0, ErrBadCursor
		}
		if at < 0 { // it no longer responds
			if !slices.ContainsFunc(a.missing(), func(m Missing) bool { return m.Server == addr }) {
				return "", 0, ErrBadCursor
			}
			if at, from = slices.IndexFunc(nodes, func(n node) bool { return n.compare(slot, addr) > 0 }), slices.Clone(begin); at < 0 {
				return "", 1, nil
			}
		}
	}
	for steps, more := 0, true; at < len(nodes); at, from = at+1, slices.Clone(begin) {
		for slices.ContainsFunc(from, func(c string) bool { return c != end }) {
			if steps == pageScans || !more {
				return fmt.Sprint(nodes[at].addr, " ", nodes[at].first(), " ", strings.Join(from, ",")), (float64(at) + behind(from)) / float64(len(nodes)), nil
			}
			steps++
			names, err := a.step(ctx, nodes[at], scans, from)
			var locks []Lock
			for i := 0; err == nil && i < len(scans); i++ {
				var some []Lock
				some, err = scans[i].find(ctx, names[i])
				locks = append(locks, some...)
			}
			if err != nil && len(nodes) > 1 && !command.Over(ctx) && !command.Refused(err) { // the others may respond
				a.lose(nodes[at], err)
				break
			}
			if err != nil {
				return "", 0, err
			}
			more = found(locks)
		}
	}
	return "", 1, nil
}

// behind returns the share of a node's keys that its scans have passed. SCAN increments its cursor from the highest bit to the lowest,
// so the reversed bits are the progress. On a cluster node, the lowest bits can be a slot, and the share is then an estimate.
func behind(from []string) float64 {
	share := 0.0
	for _, c := range from {
		part := 1.0
		if n, err := strconv.ParseUint(c, 10, 64); err == nil {
			part = float64(bits.Reverse64(n)) / (1 << 64)
		}
		share += part / float64(len(from))
	}
	return share
}

// step calls SCAN once for each scan that has keys of the node left, advances its cursor, and returns the names for each scan.
func (a *Admin) step(ctx context.Context, n node, scans []scan, from []string) (names [][]string, err error) {
	ctx, cancel := a.within(ctx)
	defer cancel()
	var questions rueidis.Commands
	for i, s := range scans {
		if at, err := strconv.ParseUint(from[i], 10, 64); err == nil {
			questions = append(questions, n.B().Scan().Cursor(at).Match(s.match).Count(scanCount).Type(s.kind).Build())
		}
	}
	replies := n.DoMulti(ctx, questions...)
	names = make([][]string, len(scans))
	for i := range scans {
		if from[i] == end {
			continue
		}
		entry, err := replies[0].AsScanEntry()
		replies = replies[1:]
		if err != nil {
			return nil, err
		}
		names[i], from[i] = entry.Elements, end
		if entry.Cursor != 0 {
			from[i] = strconv.FormatUint(entry.Cursor, 10)
		}
	}
	return names, nil
}

// look returns the locks among names, without their clients. It reads each hash, and the keys next to it only if the hash may be a lock.
// If skipDenied is true, look skips hashes that the user is not allowed to read.
func (a *Admin) look(ctx context.Context, names []string, skipDenied bool) ([]Lock, error) {
	if len(names) == 0 {
		return nil, nil
	}
	parts, err := a.parts(ctx, names, skipDenied)
	if err != nil {
		return nil, err
	}
	parts = slices.DeleteFunc(parts, func(p part) bool { return !p.plausible() })
	if len(parts) == 0 {
		return nil, nil
	}
	within, cancel := a.within(ctx)
	defer cancel()
	var questions rueidis.Commands
	for _, p := range parts {
		questions = append(questions, a.rdb.B().Pttl().Key(p.name).Build(), a.board(p.name), a.beside(p))
		if !p.whole {
			questions = append(questions, a.rdb.B().Hget().Key(p.name).Field("mode").Build(), a.rdb.B().Hlen().Key(p.name).Build())
		}
	}
	replies := a.rdb.DoMulti(within, questions...)
	var locks []Lock
	for _, p := range parts {
		l, ok, err := p.lock(replies)
		replies = replies[p.questions():]
		if err != nil {
			return nil, err
		}
		if ok {
			locks = append(locks, l)
		}
	}
	return a.living(ctx, locks)
}

// living removes the dead readers of locks whose holders are all known, and the locks that have only dead readers. The lease of a reader
// is a separate key, so the hash keeps the field of a dead reader while others read.
func (a *Admin) living(ctx context.Context, locks []Lock) ([]Lock, error) {
	var asked []*Lock
	for i := range locks {
		if l := &locks[i]; l.Mode == lock.Read && l.Holding <= len(l.Holders) { // mutant: operand 1: speed
			asked = append(asked, l)
		}
	}
	if err := a.readLeases(ctx, asked); err != nil {
		return nil, err
	}
	for _, l := range asked {
		if !slices.ContainsFunc(l.Holders, func(h lock.Holder) bool { left, known := l.leases[side{h.Owner, h.Mode}]; return !known || left == 0 }) {
			continue
		}
		// A reader is dead, its number of holds has changed since, or the user is not allowed to read its lease.
		now, err := a.ask(ctx, l.Name, ReadWrite)
		if err != nil {
			if unanswered(err) {
				return nil, err
			}
			continue // the script is denied: the list shows what was read
		}
		l.Mode, l.Holders, l.Holding = now.Mode, now.Holders, len(now.Holders)
	}
	return slices.DeleteFunc(locks, func(l Lock) bool { return len(l.Holders) == 0 }), nil
}

// readLeases records the remaining lease time of each reader of locks: 0 if the lease has expired, nothing if the read is denied.
func (a *Admin) readLeases(ctx context.Context, locks []*Lock) error {
	var questions rueidis.Commands
	var note []func(time.Duration) // called with each reply
	for _, l := range locks {
		for _, h := range l.Holders {
			if h.Mode != lock.Read {
				continue
			}
			for _, key := range keys.ReadLeases(l.Name, h.Owner, h.Count) {
				questions = append(questions, a.rdb.B().Pttl().Key(key).Build())
				note = append(note, func(left time.Duration) { l.lease(h, left) })
			}
		}
	}
	for some := range slices.Chunk(questions, atOnce) {
		within, cancel := a.within(ctx)
		replies := a.rdb.DoMulti(within, some...)
		cancel()
		for _, reply := range replies {
			left, err := reply.AsInt64()
			if _, refused := rueidis.IsRedisErr(err); err != nil && !refused {
				return err
			}
			switch {
			case err == nil && left == -1:
				note[0](lock.NoExpiry)
			case err == nil: // -2: it has expired since the lock was read
				note[0](ms(max(left, 0)))
			}
			note = note[1:]
		}
	}
	return nil
}

// beside returns the command that counts the waiters stored outside the hash: the writer intent of a read/write lock, or the queue of a
// fair lock.
func (a *Admin) beside(p part) rueidis.Completed {
	if !p.whole || p.has("mode") {
		return a.rdb.B().Exists().Key(keys.ReadWrite(p.name).Intent).Build()
	}
	return a.rdb.B().Llen().Key(keys.Fair(p.name).Queue).Build()
}

// parts returns the first fields of each of names that is a hash. If skipDenied is true, it skips hashes that the user is not allowed to
// read.
func (a *Admin) parts(ctx context.Context, names []string, skipDenied bool) (parts []part, err error) {
	ctx, cancel := a.within(ctx)
	defer cancel()
	questions := make(rueidis.Commands, len(names))
	for i, name := range names {
		questions[i] = a.rdb.B().Hscan().Key(name).Cursor(0).Count(someHolds).Build()
	}
	for i, reply := range a.rdb.DoMulti(ctx, questions...) {
		entry, err := reply.AsScanEntry()
		if wrongType(err) || skipDenied && command.RefusedKey(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		p := part{name: names[i], whole: entry.Cursor == 0}
		for j := 0; j+1 < len(entry.Elements); j += 2 {
			p.fields = append(p.fields, luascripts.Field{Name: entry.Elements[j], Value: entry.Elements[j+1]})
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// part is a part of a hash.
type part struct {
	name   string
	fields []luascripts.Field
	whole  bool // the part has all fields of the hash
}

// plausible reports whether the hash may be a lock.
func (p *part) plausible() bool {
	return !slices.ContainsFunc(p.fields, func(f luascripts.Field) bool { return !plausible(f.Name) })
}

// plausible reports whether a lock can have this field.
func plausible(field string) bool {
	return field == "mode" || field == luascripts.QueueField || owners.MatchString(strings.TrimSuffix(field, luascripts.Writing))
}

// has reports whether the part has a field.
func (p *part) has(field string) bool {
	return slices.ContainsFunc(p.fields, func(f luascripts.Field) bool { return f.Name == field })
}

// questions returns the number of commands that look sends about the part.
func (p *part) questions() int {
	if p.whole {
		return 3
	}
	return 5
}

// lock reads the replies to the commands that look sent about the part. ok reports whether the hash is a lock.
func (p *part) lock(replies []rueidis.RedisResult) (l Lock, ok bool, err error) {
	left, err := replies[0].AsInt64()
	if err != nil {
		return Lock{}, false, err
	}
	size := int64(0)
	if !p.whole {
		mode, err1 := replies[3].ToString() // it may be in another part
		if rueidis.IsRedisNil(err1) {
			err1 = nil
		}
		var err2 error
		size, err2 = replies[4].AsInt64()
		for _, err := range []error{err1, err2} {
			if wrongType(err) {
				return Lock{}, false, nil
			}
			if err != nil {
				return Lock{}, false, err
			}
		}
		if mode != "" {
			p.fields = append(p.fields, luascripts.Field{Name: "mode", Value: mode})
		}
	}
	s := shapeOf(p.fields, p.whole)
	if s.kind == "" || left == -2 {
		return Lock{}, false, nil
	}
	state, err := s.state(p.name)
	if err != nil || len(state.Holders) == 0 {
		return Lock{}, false, nil
	}
	state.Lease = lock.NoExpiry
	if left >= 0 {
		state.Lease = ms(left)
	}
	l = Lock{State: state, Kind: s.kind, Holding: len(state.Holders), Waiting: len(s.line), line: s.line}
	if !p.whole {
		l.Holding = int(size) - 1 // the mode is one of the fields
	}
	waiting, err := replies[2].AsInt64()
	if _, refused := rueidis.IsRedisErr(err); err != nil && !refused { // refused: a key of the wrong type, or no permission
		return Lock{}, false, err
	}
	if l.Kind == Plain {
		if kind, known := kindOf(state); known {
			l.Kind = kind
		} else if waiting > 0 {
			l.Kind = Fair
		}
	}
	l.Waiting += int(waiting)
	l.Leader, err = said(replies[1])
	return l, err == nil, err
}

// each calls read for every item, for up to maxReads of them at once, and returns the locks that it finds in the order of the items. It
// skips locks that the user is not allowed to read, because SCAN lists all keys. It stops after any other error.
func each[T any](items []T, read func(item T) (l Lock, ok bool, err error)) (found []Lock, err error) {
	var (
		reads  sync.WaitGroup
		failed atomic.Bool
	)
	locks, oks, errs := make([]Lock, len(items)), make([]bool, len(items)), make([]error, len(items))
	free := make(chan struct{}, maxReads)
	for i, item := range items {
		if free <- struct{}{}; failed.Load() {
			break
		}
		reads.Go(func() {
			defer func() { <-free }()
			if locks[i], oks[i], errs[i] = read(item); command.Refused(errs[i]) {
				oks[i], errs[i] = false, nil
			}
			if errs[i] != nil {
				failed.Store(true)
			}
		})
	}
	reads.Wait()
	for i, ok := range oks {
		if errs[i] != nil {
			return nil, errs[i]
		}
		if ok {
			found = append(found, locks[i])
		}
	}
	return found, nil
}

// wrongType reports whether err is a WRONGTYPE reply.
func wrongType(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && strings.Contains(reply.Error(), "WRONGTYPE")
}

// name adds the clients of holders and waiters to locks, if Redis has entries for them.
func (a *Admin) name(ctx context.Context, locks []Lock) {
	var ids []string
	for i := range locks {
		ids = append(ids, registry.Name(&locks[i].State, nil)...)
		ids = append(ids, registry.Name(&lock.State{Holders: locks[i].Lost}, nil)...)
		ids = append(ids, locks[i].line...)
	}
	slices.Sort(ids)
	ids = slices.DeleteFunc(slices.Compact(ids), func(id string) bool { return a.lacks(keys.Client(id)) })
	clients, err := a.entries(ctx, ids)
	nowhere := make(map[string]bool)
	if err == nil {
		for _, id := range ids {
			nowhere[id] = leaseholds(id) && !clients[id].Known()
		}
	}
	for i := range locks {
		l := &locks[i]
		registry.Name(&l.State, clients)
		registry.Name(&lock.State{Holders: l.Lost}, clients)
		l.nowhere, l.Gone = nowhere, 0
		for _, id := range l.line {
			if nowhere[id] {
				l.Gone++
			}
		}
		for _, w := range l.Waiters {
			if l.IsGone(w) {
				l.Gone++
			}
		}
	}
}
