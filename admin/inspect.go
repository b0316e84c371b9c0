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

// unheld reads name as what nobody ever holds, or as a semaphore that nobody holds. failed is the error of a look for a lock.
func (a *Admin) unheld(ctx context.Context, name string, failed error) (l Lock, ok bool, unread error) {
	reads := []func(context.Context, string) (Lock, bool, error){a.limit, a.window, a.filter, a.idleSemaphore}
	switch {
	case failed == nil: // there is no such key, but a filter can have none of its own
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

// stateOf reads the lock by the script of its kind.
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
			if ok && err == nil { // after another error the other scripts say what is wrong
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
	// A plain lock and a fair lock have hashes that are alike. The lock can also become free between two
	// questions, and change its kind. So both scripts look at it. An owner of ours says which it is; of Redisson's, the queue decides.
	plain, err := a.ask(ctx, name, Plain)
	if errors.Is(err, lock.ErrWrongType) {
		if rw, failed := a.ask(ctx, name, ReadWrite); failed == nil && rw.Kind == ReadWrite {
			return rw, nil // it was acquired since the first question
		}
		err = hidden(err, denied)
	}
	if err != nil {
		return Lock{}, err
	}
	fair, err := a.ask(ctx, name, Fair)
	kind, known := kindOf(plain.State)
	if errors.Is(err, lock.ErrWrongType) || retry.FaultOf(err).Is == lock.ErrWrongType || command.Refused(err) && !(known && kind == Fair) {
		return plain, nil // the queue belongs to no fair lock, or this user may not read fair locks
	}
	if err != nil {
		return Lock{}, err
	}
	if kind, known = kindOf(fair.State); known && kind == Fair || !known && len(fair.Waiters) > 0 {
		return fair, nil
	}
	return plain, nil
}

// hidden returns err, which says that a key is of none of the types that were read, or denied if the user may not read some of them.
func hidden(err, denied error) error {
	if denied == nil || !errors.Is(err, lock.ErrWrongType) {
		return err
	}
	return fmt.Errorf("the key is not a lock that this user may read: %w", denied)
}

// kindOf returns whether a lock without sides is Plain or Fair, if its holder says it.
func kindOf(state lock.State) (k Kind, known bool) {
	for _, h := range state.Holders {
		if fair, known := luascripts.FairOwner(h.Owner); known {
			return map[bool]Kind{true: Fair, false: Plain}[fair], true
		}
	}
	return "", false
}

// unanswered reports whether err says that Redis has not answered. It is not known then what the key holds.
func unanswered(err error) bool {
	if errors.Is(err, lock.ErrWrongType) || errors.Is(err, lock.ErrBadName) {
		return false
	}
	return err != nil && retry.FaultOf(err).Temporary
}

// ask reads the lock by the script of a kind.
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

// besides reads what belongs to the lock under other keys. It leaves out what the user may not read.
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

// tokenOf returns the token with which the holder of a lock acquired it. A grant leaves the counter ahead of that token: by those
// that a process gives out when it hands a plain or a fair lock off, and for a writer by the one of the readers that follow.
func tokenOf(l *Lock) uint64 {
	var ahead uint64
	switch {
	case !l.Locked() || len(l.Holders) == 0:
		return 0
	case l.Mode == lock.Write:
		ahead = 1
	case l.Mode == lock.Exclusive && !l.Holders[0].Since.IsZero(): // Redisson's RFencedLock counts one by one
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

// ms returns the duration that an answer of PTTL means.
func ms(left int64) time.Duration { return luascripts.Millis(left) }
