package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/registry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A Query selects the locks to list.
type Query struct {
	// Match is a Redis pattern for the names, such as "orders:*": * stands for any text, ? for any
	// character, [ab] for one of these, and \ makes the next character literal. Empty selects all.
	Match string

	// Kind is the kind of the locks to list. Empty selects all that have holders: latches, which have none, and wait groups
	// of which only lost workers are left, are listed if Kind says Latch or WaitGroup, or by Idle. Rate limiters and filters are listed
	// only if Kind names them: of a limiter there can be a key for each user of an application.
	Kind Kind

	// Idle lists what has no holders, too, if Kind is empty: latches that are closed, and wait groups of which only lost workers are left.
	Idle bool
}

// lists reports whether q asks for the locks of a kind that can have no holders.
func (q Query) lists(k Kind) bool { return q.Kind == k || q.Kind == "" && q.Idle }

// Prefix returns the pattern of all names that begin with prefix.
func Prefix(prefix string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(prefix) + "*"
}

// A Page is a part of a list of locks.
type Page struct {
	Locks []Lock // in no order; can be empty before the last page
	Next  string // the cursor of the next page; empty on the last page
}

// The bounds of a page. Pipelines and the steps of SCAN are short, as a server answers no other
// client meanwhile.
const (
	scanCount = 100
	pageScans = 100 // calls of SCAN for a page
	pageLocks = 200 // a page ends when it has this number of locks
	atOnce    = 25  // hashes in one pipeline
	someHolds = 16  // the least number of fields to ask for; small hashes come as a whole
)

// ErrBadCursor: no page can begin at the cursor. Either the cursor comes from no page, or the cluster
// has changed since then.
var ErrBadCursor = errors.New("the list cannot go on there; begin anew")

// Page lists some locks. It begins anew if cursor is empty, and otherwise at cursor, the Next of the
// page before. It looks at some 10,000 keys or finds some 200 locks, whichever comes first, so the
// time of a call does not grow with the number of keys.
//
// Page uses SCAN. A lock that exists from the first page to the last is on at least one of them,
// and can be on two. Of a lock with many readers, Holders has only some. Page counts the waiters and
// does not list them: see Inspect.
func (a *Admin) Page(ctx context.Context, q Query, cursor string) (Page, error) {
	page, err := a.page(ctx, q, cursor)
	if err != nil {
		return Page{}, a.failed(ctx, "list", "", err)
	}
	return page, nil
}

// Locks lists each lock that matches q, page by page and once. It ends after an error.
func (a *Admin) Locks(ctx context.Context, q Query) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		seen := make(map[string]bool)
		for cursor, first := "", true; first || cursor != ""; first = false {
			page, err := a.Page(ctx, q, cursor)
			if err != nil {
				yield(Lock{}, err)
				return
			}
			for _, l := range page.Locks {
				if seen[l.Name] {
					continue
				}
				seen[l.Name] = true
				if !yield(l, nil) {
					return
				}
			}
			cursor = page.Next
		}
	}
}

func (a *Admin) page(ctx context.Context, q Query, cursor string) (Page, error) {
	if q.Kind != "" && !slices.Contains(Kinds(), q.Kind) {
		return Page{}, fmt.Errorf("there is no kind called %q; there are %q", q.Kind, Kinds())
	}
	var page Page
	at, from := 0, cursor
	for i, p := range parts {
		if rest, ok := strings.CutPrefix(cursor, p.cursor); ok && p.cursor != "" {
			at, from = i, rest
		}
	}
	for ; at < len(parts); at, from = at+1, "" {
		p := parts[at]
		if !slices.ContainsFunc(p.kinds, func(k Kind) bool { return q.Kind == k || q.Kind == "" && (!p.idle || q.Idle) && !p.named }) {
			continue
		}
		if len(page.Locks) >= pageLocks {
			page.Next = p.cursor
			break
		}
		next, err := p.list(a, ctx, q, from, &page)
		if err != nil {
			return Page{}, err
		}
		if next != "" {
			page.Next = p.cursor + next
			break
		}
	}
	a.name(ctx, page.Locks)
	return page, nil
}

// Kinds returns the kinds that a Query can have.
func Kinds() (all []Kind) {
	for _, p := range parts {
		all = append(all, p.kinds...)
	}
	return all
}

// listed is a part of a list: what keys of one type show.
type listed struct {
	cursor string // how its cursors begin
	kinds  []Kind
	idle   bool // only if the query asks for what has no holders
	named  bool // only if the query names the kind
	list   func(a *Admin, ctx context.Context, q Query, cursor string, page *Page) (next string, err error)
}

// parts are the parts of a list, in order.
var parts = []listed{
	{kinds: []Kind{Plain, Fair, ReadWrite}, list: (*Admin).hashes},
	{cursor: "zsets ", kinds: []Kind{Semaphore, WaitGroup}, list: func(a *Admin, ctx context.Context, q Query, cursor string, page *Page) (string, error) {
		match := map[Kind]string{Semaphore: "*" + held, WaitGroup: keys.WaitGroups}[q.Kind]
		return a.each(ctx, cmp.Or(match, "*"), "zset", cursor, page, func(zsets []string) ([]Lock, error) {
			return a.zsets(ctx, zsets, q, q.pattern())
		})
	}},
	{cursor: "latches ", kinds: []Kind{Latch}, idle: true, list: func(a *Admin, ctx context.Context, q Query, cursor string, page *Page) (string, error) {
		return a.each(ctx, keys.Latches, "hash", cursor, page, func(rounds []string) ([]Lock, error) {
			return a.latches(ctx, rounds, q.pattern())
		})
	}},
	{cursor: "leaders ", kinds: []Kind{Election}, named: true, list: func(a *Admin, ctx context.Context, q Query, cursor string, page *Page) (string, error) {
		return a.each(ctx, keys.Leaders, "hash", cursor, page, func(boards []string) ([]Lock, error) {
			return a.elections(ctx, boards, q.pattern())
		})
	}},
	{cursor: "limits ", kinds: []Kind{RateLimit}, named: true, list: func(a *Admin, ctx context.Context, q Query, cursor string, page *Page) (string, error) {
		return a.each(ctx, q.pattern(), "string", cursor, page, func(names []string) ([]Lock, error) { return a.limits(ctx, names) })
	}},
	{cursor: "windows ", kinds: []Kind{RedissonRateLimit}, named: true, list: func(a *Admin, ctx context.Context, q Query, cursor string, page *Page) (string, error) {
		return a.each(ctx, q.pattern(), "hash", cursor, page, func(names []string) ([]Lock, error) { return a.windows(ctx, names) })
	}},
	{cursor: "filters ", kinds: []Kind{Bloom}, named: true, list: func(a *Admin, ctx context.Context, q Query, cursor string, page *Page) (string, error) {
		return a.each(ctx, keys.Filters, "hash", cursor, page, func(configs []string) ([]Lock, error) {
			return a.filters(ctx, configs, q.pattern())
		})
	}},
}

// pattern returns the pattern of the names that q selects.
func (q Query) pattern() string { return cmp.Or(q.Match, "*") }

// each adds to page what find finds among keys of this type, and returns the cursor of the next page.
func (a *Admin) each(ctx context.Context, match, kind, cursor string, page *Page, find func(names []string) ([]Lock, error)) (next string, err error) {
	return a.scan(ctx, match, kind, cursor, func(names []string) (bool, error) {
		found, err := find(names)
		page.Locks = append(page.Locks, found...)
		return len(page.Locks) < pageLocks, err
	})
}

// hashes adds the locks that are hashes to page, and returns the cursor of the next page of them.
func (a *Admin) hashes(ctx context.Context, q Query, cursor string, page *Page) (next string, err error) {
	return a.scan(ctx, cmp.Or(q.Match, "*"), "hash", cursor, func(names []string) (bool, error) {
		names = slices.DeleteFunc(names, func(name string) bool { return keys.Check("", name) != nil })
		for part := range slices.Chunk(names, atOnce) {
			locks, err := a.look(ctx, part)
			if err != nil {
				return false, err
			}
			for _, l := range locks {
				if q.Kind == "" || l.Kind == q.Kind {
					page.Locks = append(page.Locks, l)
				}
			}
		}
		return len(page.Locks) < pageLocks, nil
	})
}

// scan calls f with names of keys of this type, from cursor on, until f returns false or
// scan has looked at a page of keys. It returns the cursor of the next page, empty at the end.
func (a *Admin) scan(ctx context.Context, match, kind, cursor string, f func(names []string) (more bool, err error)) (next string, err error) {
	nodes, err := a.masters(ctx)
	if err != nil {
		return "", err
	}
	at, from := 0, uint64(0)
	if cursor != "" {
		addr, number, ok := strings.Cut(cursor, " ")
		at = slices.IndexFunc(nodes, func(n node) bool { return n.addr == addr })
		if _, err := fmt.Sscanf(number, "%d", &from); err != nil || !ok || at < 0 {
			return "", ErrBadCursor
		}
	}
	for scans := 0; at < len(nodes); at, from = at+1, 0 {
		for {
			if scans == pageScans {
				return fmt.Sprintf("%s %d", nodes[at].addr, from), nil
			}
			scans++
			entry, err := a.step(ctx, nodes[at], match, kind, from)
			if err != nil {
				return "", err
			}
			more, err := f(entry.Elements)
			if err != nil {
				return "", err
			}
			from = entry.Cursor
			if from == 0 {
				if at+1 == len(nodes) {
					return "", nil
				}
				if !more {
					return nodes[at+1].addr + " 0", nil
				}
				break
			}
			if !more {
				return fmt.Sprintf("%s %d", nodes[at].addr, from), nil
			}
		}
	}
	return "", nil
}

// step makes one call of SCAN.
func (a *Admin) step(ctx context.Context, n node, match, kind string, from uint64) (rueidis.ScanEntry, error) {
	ctx, cancel := a.within(ctx)
	defer cancel()
	return n.Do(ctx, n.B().Scan().Cursor(from).Match(match).Count(scanCount).Type(kind).Build()).AsScanEntry()
}

// node is a server that has keys of its own: a master.
type node struct {
	rueidis.Client
	addr string
}

// masters returns the servers that have keys of their own, always in the same order.
func (a *Admin) masters(ctx context.Context) ([]node, error) {
	if a.rdb.Mode() != rueidis.ClientModeCluster {
		return []node{{a.rdb, "-"}}, nil
	}
	ctx, cancel := a.within(ctx)
	defer cancel()
	var nodes []node
	for addr, c := range a.rdb.Nodes() {
		role, err := c.Do(ctx, c.B().Role().Build()).ToArray()
		if err != nil {
			return nil, fmt.Errorf("the node at %s: %w", addr, err)
		}
		if len(role) > 0 {
			if name, _ := role[0].ToString(); name == "master" {
				nodes = append(nodes, node{c, addr})
			}
		}
	}
	slices.SortFunc(nodes, func(a, b node) int { return cmp.Compare(a.addr, b.addr) })
	return nodes, nil
}

// look returns the locks among names, without their clients. It asks one question about
// each key, and more only about a key that may be a lock.
func (a *Admin) look(ctx context.Context, names []string) ([]Lock, error) {
	parts, err := a.parts(ctx, names)
	if err != nil {
		return nil, err
	}
	parts = slices.DeleteFunc(parts, func(p part) bool { return !p.plausible() })
	if len(parts) == 0 {
		return nil, nil
	}
	ctx, cancel := a.within(ctx)
	defer cancel()
	const each = 6
	questions := make(rueidis.Commands, 0, each*len(parts))
	for _, p := range parts {
		questions = append(questions,
			a.rdb.B().Pttl().Key(p.name).Build(),
			a.rdb.B().Hlen().Key(p.name).Build(),
			a.rdb.B().Hget().Key(p.name).Field("mode").Build(),
			a.rdb.B().Llen().Key(keys.Fair(p.name).Queue).Build(),
			a.rdb.B().Exists().Key(keys.ReadWrite(p.name).Wish).Build(),
			a.board(p.name))
	}
	replies := a.rdb.DoMulti(ctx, questions...)
	var locks []Lock
	for i, p := range parts {
		l, ok, err := p.lock(replies[each*i:])
		if err != nil {
			return nil, err
		}
		if ok {
			locks = append(locks, l)
		}
	}
	return locks, nil
}

// parts returns the first fields of those of the names that are hashes.
func (a *Admin) parts(ctx context.Context, names []string) (parts []part, err error) {
	ctx, cancel := a.within(ctx)
	defer cancel()
	questions := make(rueidis.Commands, len(names))
	for i, name := range names {
		questions[i] = a.rdb.B().Hscan().Key(name).Cursor(0).Count(someHolds).Build()
	}
	for i, reply := range a.rdb.DoMulti(ctx, questions...) {
		entry, err := reply.AsScanEntry()
		if wrongType(err) {
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
	return !slices.ContainsFunc(p.fields, func(f luascripts.Field) bool {
		return f.Name != "mode" && f.Name != luascripts.LineField && !owners.MatchString(strings.TrimSuffix(f.Name, luascripts.Writing))
	})
}

// lock reads the answers to the second questions of look. ok reports whether the hash is a lock.
func (p *part) lock(replies []rueidis.RedisResult) (l Lock, ok bool, err error) {
	left, err1 := replies[0].AsInt64()
	size, err2 := replies[1].AsInt64()
	mode, err3 := replies[2].ToString()
	if rueidis.IsRedisNil(err3) {
		err3 = nil
	}
	for _, err := range []error{err1, err2, err3} {
		if wrongType(err) {
			return Lock{}, false, nil
		}
		if err != nil {
			return Lock{}, false, err
		}
	}
	if !p.whole && mode != "" { // the mode may be in another part
		p.fields = append(p.fields, luascripts.Field{Name: "mode", Value: mode})
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
	l = Lock{State: state, Kind: s.kind, Holding: len(state.Holders), Waiting: s.waiting}
	if !p.whole {
		l.Holding = int(size) - 1 // the mode is one of the fields
	}
	beside := replies[3]
	if l.Kind == ReadWrite {
		beside = replies[4]
	}
	waiting, err := beside.AsInt64()
	if _, refused := rueidis.IsRedisErr(err); err != nil && !refused { // refused: a foreign key, or no right to such a kind
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
	l.Leader, err = said(replies[5])
	return l, err == nil, err
}

// wrongType reports whether err says that a key is no hash.
func wrongType(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && strings.Contains(reply.Error(), "WRONGTYPE")
}

// name adds the clients of holders and waiters to locks, as far as Redis has entries of them.
func (a *Admin) name(ctx context.Context, locks []Lock) {
	var ids []string
	for i := range locks {
		ids = append(ids, registry.Name(&locks[i].State, nil)...)
		ids = append(ids, registry.Name(&lock.State{Holders: locks[i].Lost}, nil)...)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	clients := make(map[string]lock.Client)
	for part := range slices.Chunk(ids, registry.MostRead) {
		ctx, cancel := a.within(ctx)
		some, err := registry.Read(ctx, a.rdb, part)
		cancel()
		for id, c := range some {
			clients[id] = c
		}
		if err != nil {
			break
		}
	}
	for i := range locks {
		registry.Name(&locks[i].State, clients)
		registry.Name(&lock.State{Holders: locks[i].Lost}, clients)
	}
}
