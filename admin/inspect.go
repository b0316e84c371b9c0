package admin

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Inspect tells all that Redis knows of the lock called name: who holds it and who waits, since when, and
// for how much longer. A lock that is free has no holders; it can have waiters for a moment. The
// error matches lock.ErrForeignKey if the key holds something that is no lock, and lock.ErrName
// if nothing of that name can be one.
//
// It reads the lock by one script. What belongs to it besides, such as its clients and its tokens, is
// read after that.
func (a *Admin) Inspect(ctx context.Context, name string) (Lock, error) {
	l, err := a.inspect(ctx, name)
	if err != nil {
		return Lock{}, a.failed(ctx, "inspect", name, err)
	}
	return l, nil
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
	found, err := a.look(ctx, []string{name})
	if err != nil {
		return Lock{}, err
	}
	if len(found) == 0 || found[0].Kind == ReadWrite {
		l, err := a.ask(ctx, name, ReadWrite)
		if len(found) > 0 || err == nil && (l.Locked() || len(l.Waiters) > 0) {
			return l, err
		}
	}
	// The two are the same as long as nobody waits, and a plain lock can become free between two
	// questions, and be taken by the other side's rules. So both are asked, and the queue decides.
	plain, err := a.ask(ctx, name, Plain)
	if err != nil {
		return Lock{}, err
	}
	fair, err := a.ask(ctx, name, Fair)
	if errors.Is(err, lock.ErrForeignKey) || refused(err) {
		return plain, nil // its queue is none, or nobody here may use fair locks
	}
	if err != nil {
		return Lock{}, err
	}
	if len(fair.Waiters) > 0 {
		return fair, nil
	}
	return plain, nil
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

// besides reads what belongs to a lock and is not in it. What may not be read is left out.
func (a *Admin) besides(ctx context.Context, l *Lock) error {
	ctx, cancel := a.within(ctx)
	defer cancel()
	for i, reply := range a.rdb.DoMulti(ctx, a.rdb.B().Get().Key(keys.Tokens(l.Name)).Build(), a.rdb.B().Get().Key(keys.Forced(l.Name)).Build()) {
		text, err := reply.ToString()
		if err != nil {
			if _, refused := rueidis.IsRedisErr(err); !refused && !rueidis.IsRedisNil(err) {
				return err
			}
			continue
		}
		var note Forced
		switch {
		case i == 0:
			l.Token, _ = strconv.ParseUint(text, 10, 64)
		case json.Unmarshal([]byte(text), &note) == nil:
			l.Forced = &note
		}
	}
	return nil
}

// refused reports whether err is an answer of Redis that no later question would change.
func refused(err error) bool {
	var reply *rueidis.RedisError
	return errors.As(err, &reply) && command.Refused(reply)
}

// operator is who uses this program.
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
	return "somebody"
}

// ms is what PTTL says.
func ms(left int64) time.Duration { return time.Duration(left) * time.Millisecond }
