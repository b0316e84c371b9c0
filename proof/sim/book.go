package sim

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// book tracks the holders of each lock from the clients' point of view, and detects violations.
type book struct {
	w *world

	mu    sync.Mutex
	locks []*record
	calls map[string]time.Time // when each waiting call began
	dead  map[int]bool         // killed clients, whose holds no longer count
}

// record is the history of one lock.
type record struct {
	inside  []*holder
	token   uint64    // the largest token of an exclusive holder
	read    uint64    // the largest token of a reader
	freed   time.Time // when it was last released
	grants  int
	permits int
	turns   []turn // for a fair lock
}

// holder is a caller that holds locks.
type holder struct {
	b      *book
	who    string
	client int
	locks  []int
	hold   lock.Hold
	reads  bool
}

func newBook(w *world) *book {
	b := &book{w: w, calls: make(map[string]time.Time), dead: make(map[int]bool)}
	for _, l := range w.plan.Locks {
		b.locks = append(b.locks, &record{permits: l.Permits})
	}
	return b
}

func (b *book) waits(who string, since time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[who] = since
}

func (b *book) waitsNoMore(who string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.calls, who)
}

// waiting returns the calls that have not returned.
func (b *book) waiting() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	for who, since := range b.calls {
		all = append(all, fmt.Sprintf("%s since %v", who, since.Sub(b.w.began)))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// enter records that a call acquired a hold. From now on no other caller may hold the same locks. The call
// began at since, and was told at queued that it has to wait.
func (b *book) enter(who string, client int, o Op, locks []int, h lock.Hold, since, queued time.Time) *holder {
	e := &holder{b: b, who: who, client: client, locks: locks, hold: h, reads: o.Reads}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.w.trace("%s: holds, token %d, %s, until %v", who, h.Token(), h.Owner(), h.Until().Sub(b.w.began))
	b.w.mu.Lock()
	for _, i := range locks {
		b.w.result.Grants[b.w.plan.Locks[i].Kind]++
	}
	b.w.mu.Unlock()
	if r := b.locks[o.Lock]; o.Do != "all" && b.w.plan.Locks[o.Lock].Kind == "fair" {
		// A reply can take as long as a short lease; the caller then retries, at the end of the queue.
		r.turns = append(r.turns, turn{who, since, queued, h.Token(), !queued.IsZero() && o.Fixed == 0})
	}
	if b.dead[client] || h.Err() != nil {
		return e
	}
	for _, i := range locks {
		r := b.locks[i]
		b.alone(i, r, e)
		if len(locks) == 1 {
			b.grows(i, r, e)
		}
		b.soon(i, r, e, o, since)
		r.inside = append(r.inside, e)
		r.grants++
	}
	return e
}

// alone checks that no other caller holds the lock.
func (b *book) alone(i int, r *record, e *holder) {
	shares := b.w.plan.Locks[i].Kind == "rw" && e.reads
	n := 1
	for _, other := range r.inside {
		if b.dead[other.client] || other.hold.Err() != nil || e.hold.Err() != nil {
			continue
		}
		n++
		if shares && other.reads || n <= r.permits {
			continue
		}
		b.w.wrong("%s and %s hold %s", e.who, other.who, b.w.name(i))
	}
}

// grows checks that the token is larger than all earlier ones.
func (b *book) grows(i int, r *record, e *holder) {
	kind, token := b.w.plan.Locks[i].Kind, e.hold.Token()
	switch {
	case kind == "semaphore", token == 0:
	case kind == "rw" && e.reads:
		if token <= r.token {
			b.w.wrong("%s: read token %d after write token %d", e.who, token, r.token)
		}
		r.read = max(r.read, token)
	default:
		if last := max(r.token, r.read); token <= last {
			b.w.wrong("%s: token %d after token %d", e.who, token, last)
		}
		r.token = max(r.token, token)
	}
}

// soon checks that the lock was not free for too long while a call waited. A call for several locks
// already holds some of them while it waits for the others, and the book does not know which.
func (b *book) soon(i int, r *record, e *holder, o Op, since time.Time) {
	most, known := b.w.plan.mostFree()
	if !known || len(r.inside) > 0 || r.grants == 0 || b.w.plan.takesAll() {
		return
	}
	if since.Before(r.freed) {
		since = r.freed
	}
	if took := time.Since(since); took > most {
		b.w.wrong("%s: %s was free for %v while the call waited, longer than %v", e.who, b.w.name(i), took, most)
	}
}

// goesOn records that e, which was a writer, continues as a reader with another hold.
func (e *holder) goesOn(h lock.Hold) {
	e.b.mu.Lock()
	defer e.b.mu.Unlock()
	e.hold, e.reads = h, true
}

// leave records that e no longer relies on its locks.
func (e *holder) leave() {
	e.b.mu.Lock()
	defer e.b.mu.Unlock()
	if e.hold.Err() != nil {
		e.b.w.mu.Lock()
		e.b.w.result.Losses++
		e.b.w.mu.Unlock()
	}
	for _, i := range e.locks {
		r := e.b.locks[i]
		r.inside = slices.DeleteFunc(r.inside, func(other *holder) bool { return other == e })
		r.freed = time.Now()
	}
}

// left records that locks were released just now.
func (b *book) left(locks []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, i := range locks {
		b.locks[i].freed = time.Now()
	}
}

// dies records that a client was killed.
func (b *book) dies(client int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dead[client] = true
}

func (b *book) isDead(client int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dead[client]
}
