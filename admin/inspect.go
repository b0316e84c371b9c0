package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Inspect returns everything that Redis stores about the lock called name. That is its holders and
// waiters, when each sent its first request, and the remaining lease. For a rate limiter or a
// filter, Inspect returns the state of its key. A free lock has no holders, but it can have waiters
// for a moment. The error matches lock.ErrWrongType if the key has the wrong type, and
// lock.ErrBadName if name cannot be the name of a lock.
//
// Inspect counts the bits of a filter with commands of 64 KB each. If the filter is larger than 4
// MB, it counts a sample of 4 MB. Large numbers of holders, waiters, or calls of a
// Redisson-compatible rate limiter take longer. Otherwise the time does not depend on the size of a
// key.
//
// One script reads the lock. Inspect then reads its clients, its tokens and the audit record of a
// force-unlock, which can be a moment newer.
func (a *Admin) Inspect(ctx context.Context, name string) (Lock, error) {
	l, err := a.inspect(ctx, name)
	if !unanswered(err) && (err != nil || l.Kind == "") {
		other, ok, unread := a.unheld(ctx, name, err)
		if ok && other.Kind == Semaphore {
			unread = a.besides(ctx, &other)
			ok = unread == nil
		}
		if ok {
			return other, nil
		}
		if unread != nil {
			err = unread
		}
	}
	if err == nil {
		err = a.readLeases(ctx, []*Lock{&l})
	}
	if err != nil {
		return Lock{}, a.failed(ctx, "inspect", name, err)
	}
	return l, nil
}

// unheld reads name as a rate limiter, a filter or an idle semaphore, which have no holders. failed is the error of the attempt to
// read it as a lock.
func (a *Admin) unheld(ctx context.Context, name string, failed error) (l Lock, ok bool, unread error) {
	reads := []func(context.Context, string) (Lock, bool, error){a.limit, a.window, a.filter, a.idleSemaphore}
	switch {
	case failed == nil: // there is no such key, but a split filter has no key of this name
		reads = reads[2:3]
	case errors.Is(failed, lock.ErrBadName): // the key of a limiter can be any text
		reads = reads[:1]
	}
	var denied error
	for _, read := range reads {
		l, ok, err := read(ctx, name)
		if _, refused := rueidis.IsRedisErr(err); err != nil && !refused {
			return Lock{}, false, err
		}
		if ok && err == nil {
			return l, true, nil
		}
		if command.Refused(err) {
			denied = err
		}
	}
	return Lock{}, false, hidden(failed, denied)
}

func (a *Admin) inspect(ctx context.Context, name string) (Lock, error) {
	if err := keys.Check("", name); err != nil {
		return Lock{}, err
	}
	l, err := a.stateOf(ctx, name)
	if err != nil {
		return Lock{}, err
	}
	l.Holding, l.Waiting = len(l.Holders), len(l.Waiters)
	locks := []Lock{l}
	a.name(ctx, locks)
	l = locks[0]
	return l, a.besides(ctx, &l)
}

// stateOf reads the lock with the script for its type.
func (a *Admin) stateOf(ctx context.Context, name string) (Lock, error) {
	found, err := a.look(ctx, []string{name}, false)
	if err != nil {
		return Lock{}, err
	}
	var denied error
	if len(found) == 0 {
		for _, read := range []func(context.Context, string) (Lock, bool, error){a.semaphore, a.latch, a.waitGroup} {
			l, ok, err := read(ctx, name)
			if unanswered(err) {
				return Lock{}, err
			}
			if ok && err == nil { // after any other error, the scripts below report what is wrong
				return l, nil
			}
			if command.Refused(err) {
				denied = err
			}
		}
	}
	if len(found) == 0 || found[0].Kind == ReadWrite {
		l, err := a.ask(ctx, name, ReadWrite)
		if len(found) > 0 || unanswered(err) || err == nil && (l.Locked() || len(l.Waiters) > 0) {
			return l, err
		}
	}
	// The hashes of plain and fair locks look alike, and a lock can be released and change its type between two reads. So both
	// scripts read it. An owner string of leasehold shows the type. For an owner of Redisson, the queue decides.
	plain, err := a.ask(ctx, name, Plain)
	if errors.Is(err, lock.ErrWrongType) {
		if rw, failed := a.ask(ctx, name, ReadWrite); failed == nil && rw.Kind == ReadWrite {
			return rw, nil // it was acquired after the first read
		}
		err = hidden(err, denied)
	}
	if err != nil {
		return Lock{}, err
	}
	fair, err := a.ask(ctx, name, Fair)
	kind, known := kindOf(plain.State)
	if errors.Is(err, lock.ErrWrongType) || retry.FaultOf(err).Is == lock.ErrWrongType || command.Refused(err) && !(known && kind == Fair) {
		return plain, nil // the queue is not that of a fair lock, or the user is not allowed to read fair locks
	}
	if err != nil {
		return Lock{}, err
	}
	if kind, known = kindOf(fair.State); known && kind == Fair || !known && len(fair.Waiters) > 0 {
		return fair, nil
	}
	return plain, nil
}

// hidden returns err. If err is lock.ErrWrongType and the user is not allowed to read some types, it returns an error that wraps denied.
func hidden(err, denied error) error {
	if denied == nil || !errors.Is(err, lock.ErrWrongType) {
		return err
	}
	return fmt.Errorf("the key is not a lock that this user may read: %w", denied)
}

// kindOf returns Plain or Fair if the owner string of a holder shows which one an exclusive lock is.
func kindOf(state lock.State) (k Kind, known bool) {
	for _, h := range state.Holders {
		if fair, known := luascripts.FairOwner(h.Owner); known {
			return map[bool]Kind{true: Fair, false: Plain}[fair], true
		}
	}
	return "", false
}

// unanswered reports whether err means that Redis is unavailable, so that the type of the key remains unknown.
func unanswered(err error) bool {
	if errors.Is(err, lock.ErrWrongType) || errors.Is(err, lock.ErrBadName) {
		return false
	}
	return err != nil && retry.FaultOf(err).Temporary
}

// ask reads the lock with the script for kind.
func (a *Admin) ask(ctx context.Context, name string, kind Kind) (Lock, error) {
	ctx, cancel := a.within(ctx)
	defer cancel()
	var s luascripts.Snapshot
	var err error
	switch kind {
	case ReadWrite:
		s, err = luascripts.InspectRW(ctx, a.rdb, keys.ReadWrite(name))
	case Fair:
		s, err = luascripts.InspectFair(ctx, a.rdb, keys.Fair(name))
	default:
		s, err = luascripts.InspectReentrant(ctx, a.rdb, keys.Plain(name))
	}
	if err != nil {
		return Lock{}, err
	}
	state, err := session.StateOf(name, kind == ReadWrite, s)
	if err != nil {
		return Lock{}, err
	}
	if !state.Locked() && len(state.Waiters) == 0 {
		kind = ""
	}
	return Lock{State: state, Kind: kind}, nil
}

// besides reads the token counter, the audit record and the leader value of the lock. It omits what the user is not allowed to read.
func (a *Admin) besides(ctx context.Context, l *Lock) error {
	ctx, cancel := a.within(ctx)
	defer cancel()
	replies := a.rdb.DoMulti(ctx, a.rdb.B().Get().Key(keys.Tokens(l.Name)).Build(), a.rdb.B().Get().Key(keys.Forced(l.Name)).Build(),
		a.board(l.Name), a.rdb.B().Pttl().Key(keys.Leader(l.Name).Lock).Build())
	var err error
	if l.Leader, err = said(replies[2]); err != nil {
		return err
	}
	if left, err := replies[3].AsInt64(); err == nil && l.Leader != nil {
		l.Leader.Left = ms(max(left, 0))
	}
	for i, reply := range replies[:2] {
		text, err := reply.ToString()
		if err != nil {
			if _, refused := rueidis.IsRedisErr(err); !refused && !rueidis.IsRedisNil(err) {
				return err
			}
			continue
		}
		var note ForceUnlockRecord
		switch {
		case i == 0:
			l.HighestToken, _ = strconv.ParseUint(text, 10, 64)
			l.Token = tokenOf(l)
		case json.Unmarshal([]byte(text), &note) == nil:
			l.ForceUnlock = &note
		}
	}
	return nil
}

// tokenOf returns the token with which the holder acquired the lock. A grant leaves the counter ahead of that token: for a plain or a
// fair lock by the tokens for hand-offs inside the process, and for a writer by one token for the readers that follow.
func tokenOf(l *Lock) uint64 {
	var ahead uint64
	switch {
	case !l.Locked() || len(l.Holders) == 0:
		return 0
	case l.Mode == lock.Write:
		ahead = 1
	case l.Mode == lock.Exclusive && !l.Holders[0].Since.IsZero(): // Redisson's RFencedLock increments it by one
		ahead = session.MaxSpare
	}
	return l.HighestToken - min(ahead, l.HighestToken)
}

// operator returns the name of the user of this program and its machine.
func operator() string {
	name := strconv.Itoa(os.Getuid())
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	if who := name + "@" + host; legible(who) == nil {
		return who
	}
	return "unknown"
}

// ms converts a reply of PTTL to a duration.
func ms(left int64) time.Duration { return luascripts.Millis(left) }
