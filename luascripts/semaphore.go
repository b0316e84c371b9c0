package luascripts

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

var (
	semaphoreAcquire = load("semaphore_acquire")
	semaphoreRelease = load("semaphore_release")
	semaphoreKeep    = load("semaphore_keep")
	semaphoreResize  = load("semaphore_resize")
	semaphoreInspect = load("semaphore_inspect")
	semaphoreSlots   = load("semaphore_slots")
	semaphoreBody    = load("include_semaphore_body") // a user's script follows it
	semaphoreRenew   = renewer{
		script: load("semaphore_renew"),
		keyOf:  func(k *Keys) string { return k.Leases },
		argsOf: func(args []string, r *Renewal) []string {
			n := len(args)
			args = appendPermits(append(args, ""), r.Owner)
			args[n] = strconv.Itoa(len(args) - n - 1)
			return args
		},
	}
)

// MaxPermitsPerHold is the maximum number of permits of one owner, so that each script is short.
const MaxPermitsPerHold = 1000

// permitSize is the size of a permit's ID in bytes.
const permitSize = 16

// Permits returns the IDs of an owner's permits. The owner is "<client uuid>:<number>:<permits>".
// An ID is the second half of the uuid, and the number plus the index of the permit, with the
// highest byte first. An ID therefore identifies its owner, and when the owner sent its first
// request. The owner of a permit of Redisson is the ID itself, in hexadecimal digits.
func Permits(owner string) []string { return appendPermits(nil, owner) }

// appendPermits appends the IDs of an owner's permits to ids.
func appendPermits(ids []string, owner string) []string {
	client, rest, ours := strings.Cut(owner, ":")
	var id [permitSize]byte
	if !ours { // Redisson's
		if n, err := hex.Decode(id[:], []byte(owner)[:min(len(owner), 2*permitSize)]); err != nil || n != permitSize || len(owner) != 2*permitSize {
			return ids
		}
		return append(ids, string(id[:]))
	}
	number, count, _ := strings.Cut(rest, ":")
	first, err := strconv.ParseUint(number, 10, 64)
	n, err2 := strconv.Atoi(count)
	if err != nil || err2 != nil || n < 0 || n > MaxPermitsPerHold || !half(&id, client) {
		return ids
	}
	ids = slices.Grow(ids, n)
	for i := range n {
		binary.BigEndian.PutUint64(id[permitSize/2:], first+uint64(i))
		ids = append(ids, string(id[:]))
	}
	return ids
}

// half puts the second half of a UUID into id, and reports whether uuid is valid.
func half(id *[permitSize]byte, uuid string) bool {
	var digits [permitSize]byte
	n := 0
	for _, c := range []byte(uuid[min(len(uuid), 19):]) {
		if c == '-' {
			continue
		}
		if n == len(digits) {
			return false
		}
		digits[n] = c
		n++
	}
	decoded, err := hex.Decode(id[:permitSize/2], digits[:n])
	return err == nil && decoded == permitSize/2
}

func (k Keys) semaphore() []string { return []string{k.Lock, k.Leases, k.Queue, k.Timeouts, k.Never} }

// semaphore adds the keys of a semaphore.
func (w *words) semaphore(k *Keys) {
	w.keys = append(w.keys, k.Lock, k.Leases, k.Queue, k.Timeouts, k.Never)
}

// TotalError is the reply to an owner that can never acquire its permits. The semaphore's total
// differs from the one that the handle is configured with, or is smaller than what the owner wants.
// Or there is no semaphore, and the handle is not configured with a total.
type TotalError struct {
	Absent bool
	Stored int64 // the total number of permits
}

// Error names the total number of permits.
func (e *TotalError) Error() string {
	if e.Absent {
		return "no semaphore of that name"
	}
	return fmt.Sprintf("semaphore has %d", e.Stored)
}

// Final marks the error as one for which a retry would not help.
func (e *TotalError) Final() {}

// totalOf returns err as a TotalError if it is one.
func totalOf(err error) error {
	e, ok := rueidis.IsRedisErr(err)
	if !ok {
		return err
	}
	rest, ok := strings.CutPrefix(e.Error(), "PERMITS ")
	if !ok {
		return err
	}
	if rest == "absent" {
		return &TotalError{Absent: true}
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	if err != nil {
		return &ReplyError{semaphoreAcquire.name, strconv.Quote(e.Error())}
	}
	return &TotalError{Stored: n}
}

// AcquireSemaphore grants an owner its permits, if it is the owner's turn. Otherwise the owner
// enters the queue, unless its waiter timeout is 0. Left is the time after which to retry if no
// message arrives before. The error is a *TotalError if the owner can never acquire its permits.
func AcquireSemaphore(ctx context.Context, rdb rueidis.Client, k Keys, q Request) (Acquired, error) {
	w := unusedWords.Get().(*words)
	defer w.done()
	w.semaphore(&k)
	w.add(q.Owner, settingMs(q.Lease), settingMs(q.WaiterTimeout), strconv.Itoa(k.Total), k.Channel, k.Change, k.Publish)
	w.args = appendPermits(w.args, q.Owner)
	a, err := acquire(ctx, rdb, semaphoreAcquire, w.keys, w.args, q)
	return a, totalOf(err)
}

// ReleaseSemaphore releases an owner's permits and its queue position, if leave is 0. Otherwise it
// changes nothing. It returns Done if the owner had them all, Gone if not, or Foreign.
func ReleaseSemaphore(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int) (Verdict, error) {
	w := unusedWords.Get().(*words)
	defer w.done()
	w.semaphore(&k)
	w.add(owner, bit(leave > 0), k.Channel, k.Change, k.Publish)
	settings := len(w.args)
	if w.args = appendPermits(w.args, owner); len(w.args) == settings {
		return Gone, nil // no owner of a semaphore has such a string
	}
	return verdict(semaphoreRelease, semaphoreRelease.exec(ctx, rdb, w.keys, w.args), Done, Gone, Foreign)
}

// RenewSemaphore extends the leases of the permits of all owners of batch. A script call has up to
// perCall owners, or fewer if they have many permits. They must be neighbors in batch and in one
// slot.
func RenewSemaphore(ctx context.Context, rdb rueidis.Client, batch []Renewal, lease time.Duration, perCall int) []Renewed {
	most := 1
	for i := range batch {
		most = max(most, batch[i].Keys.Permits)
	}
	return semaphoreRenew.renew(ctx, rdb, batch, lease, max(min(perCall, MaxPermitsPerHold/most), 1))
}

// KeepSemaphore is the heartbeat of the waiting owners of one process. Each keeps its queue
// position for its waiter timeout from now on. If there are many, or they require different totals,
// several scripts in one pipeline keep them. Only the last script reclaims permits and removes dead
// waiters.
func KeepSemaphore(ctx context.Context, rdb rueidis.Client, k Keys, waiting []Waiter) (Kept, error) {
	return semaphoreKeep.keep(ctx, rdb, k.semaphore(), waiting, func(part []Waiter, last bool) []string {
		total := 0
		if len(part) > 0 {
			total = part[0].Total
		}
		return []string{k.Channel, k.Change, k.Publish, strconv.Itoa(total), bit(last)}
	})
}

// ResizeSemaphore sets the total number of permits, and returns Done or Foreign. It does so only
// while the server's time in ms is less than before. After that, ResizeSemaphore does nothing and
// returns the server's time. Otherwise now is 0.
func ResizeSemaphore(ctx context.Context, rdb rueidis.Client, k Keys, total int, before int64) (v Verdict, now int64, err error) {
	args := []string{strconv.Itoa(total), k.Channel, k.Change, k.Publish, strconv.FormatInt(before, 10)}
	return dated(semaphoreResize, semaphoreResize.exec(ctx, rdb, k.semaphore(), args), before, Done, Foreign)
}

// Slot is the unique number of a permit, from 0 on, and its fencing token.
type Slot struct {
	Number int
	Token  uint64
}

// SlotsOfPermits returns a slot for each permit of an owner. The verdict is Done, Foreign, or Gone
// if the owner does not have all of its permits.
func SlotsOfPermits(ctx context.Context, rdb rueidis.Client, k Keys, owner string) (Verdict, []Slot, error) {
	ids := Permits(owner)
	if len(ids) == 0 {
		return Gone, nil, nil // no owner of a semaphore has such a string
	}
	msg, err := semaphoreSlots.exec(ctx, rdb, []string{k.Leases, k.Slots}, ids).ToMessage()
	if err != nil {
		return 0, nil, err
	}
	if n, err := msg.ToInt64(); err == nil && (n == int64(Gone) || n == int64(Foreign)) {
		return Verdict(n), nil, nil
	}
	words, err := msg.AsStrSlice()
	if err != nil || len(words) != 2*len(ids) {
		return 0, nil, &ReplyError{semaphoreSlots.name, msg.String()}
	}
	slots := make([]Slot, len(ids))
	for i := range slots {
		number, err1 := strconv.Atoi(words[2*i])
		token, err2 := strconv.ParseUint(words[2*i+1], 10, 64)
		if err1 != nil || err2 != nil || number < 0 || token == 0 {
			return 0, nil, &ReplyError{semaphoreSlots.name, strconv.Quote(strings.Join(words, " "))}
		}
		slots[i] = Slot{number, token}
	}
	return Done, slots, nil
}

// SemaphoreState is the state of a semaphore in Redis.
type SemaphoreState struct {
	Exists  bool
	Foreign bool  // the key has the wrong type
	Free    int64 // as stored, without permits whose leases have expired
	Held    []Permit
	Waiters []Waiter // in first-come, first-served order
}

// Permit is one permit that is held.
type Permit struct {
	ID   string        // 16 bytes
	Left time.Duration // remaining lease time: 0 if it has expired, NoExpiry if it has no expiry
}

// permitsAtOnce is the maximum number of permits and waiters that semaphore_inspect returns.
const permitsAtOnce = 1000

// InspectSemaphore reads the semaphore and its queue. It reads more than a thousand permits or waiters in parts,
// one after the other.
func InspectSemaphore(ctx context.Context, rdb rueidis.Client, k Keys) (s SemaphoreState, err error) {
	seen := make(map[string]bool)
	for from, after, first := 0, 0, true; ; first = false {
		part, err := inspectSemaphore(ctx, rdb, k, from, after)
		if err != nil {
			return SemaphoreState{}, err
		}
		if first {
			s = SemaphoreState{Exists: part.Exists, Foreign: part.Foreign, Free: part.Free}
		}
		for _, p := range part.Held {
			if !seen[p.ID] {
				seen[p.ID] = true
				s.Held = append(s.Held, p)
			}
		}
		for _, w := range part.Waiters {
			if !seen[w.Owner] {
				seen[w.Owner] = true
				s.Waiters = append(s.Waiters, w)
			}
		}
		from, after = from+len(part.Held), after+len(part.Waiters)
		if len(part.Held) < permitsAtOnce && len(part.Waiters) < permitsAtOnce {
			return s, nil
		}
	}
}

func inspectSemaphore(ctx context.Context, rdb rueidis.Client, k Keys, from, after int) (SemaphoreState, error) {
	msg, err := semaphoreInspect.exec(ctx, rdb, k.semaphore(), []string{strconv.Itoa(from), strconv.Itoa(after)}).ToMessage()
	if err != nil {
		return SemaphoreState{}, err
	}
	if n, err := msg.ToInt64(); err == nil && n == int64(Foreign) {
		return SemaphoreState{Foreign: true}, nil
	}
	reply, err := msg.ToArray()
	bad := &ReplyError{Script: semaphoreInspect.name, Reply: fmt.Sprintf("list of %d", len(reply))} // the reply has IDs, which must not be in an error
	if err != nil || len(reply) != 4 {
		return SemaphoreState{}, bad
	}
	free, err1 := reply[0].ToString()
	permits, err2 := reply[2].ToArray()
	queue, err3 := reply[3].ToArray()
	held, ok1 := waiters(permits)
	waiting, ok2 := waiters(queue)
	if err1 != nil || err2 != nil || err3 != nil || !ok1 || !ok2 {
		return SemaphoreState{}, bad
	}
	s := SemaphoreState{Exists: free != "", Waiters: waiting}
	if s.Exists {
		if s.Free, err = strconv.ParseInt(free, 10, 64); err != nil {
			return SemaphoreState{}, bad
		}
	}
	for _, p := range held {
		s.Held = append(s.Held, Permit{ID: p.Owner, Left: p.WaiterTimeout})
	}
	return s, nil
}

// Permitted is a user's script that runs only while an owner has its permits.
type Permitted struct{ s *script }

// NewPermitted returns a script with this body. The body is code. The author of the program must
// write it, and it must never be built from input.
func NewPermitted(body string) *Permitted {
	return &Permitted{newScript("of the user's own", semaphoreBody.text+body)}
}

// Exec runs the script, and reports whether the owner had its permits then. If not, nothing was
// done. The reply is the script's, and may be nil.
func (p *Permitted) Exec(ctx context.Context, rdb rueidis.Client, k Keys, owner string, keys, args []string) (msg rueidis.RedisMessage, had bool, err error) {
	ids := Permits(owner)
	words := append(append(slices.Clone(args), ids...), strconv.Itoa(len(ids)))
	reply := p.s.exec(ctx, rdb, append(slices.Clone(keys), k.Leases), words)
	err = reply.Error()
	if e, ok := rueidis.IsRedisErr(err); ok && strings.HasPrefix(e.Error(), "NOPERMIT ") {
		return msg, false, nil
	}
	if err != nil && !rueidis.IsRedisNil(err) {
		return msg, false, err
	}
	msg, _ = reply.ToMessage() // the only possible error is that it is nil
	return msg, true, nil
}
