// Package board keeps in Redis what leaders say of themselves.
package board

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/leader"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

var kind = &session.Kind{
	Name:        "leader",
	DisplayName: "the board of a leader",
	Scripts:     session.Scripts{Keys: keys.Leader},
}

// Board is the leader.Store of one name.
type Board struct {
	session *session.Session // set once
	spec    *session.Spec    // set once
	by      string           // set once: no other board has it, so it tells leaders apart that have no tokens

	mu    sync.Mutex
	token uint64 // of the latest holder in whose name something was said; guarded by mu
	stop  func() // Close need not take that back any more; nil if nothing was said; guarded by mu
}

var _ leader.Store = (*Board)(nil)

// New returns the board of name.
func New(s *session.Session, name string) *Board {
	return &Board{session: s, spec: s.NewSpec(kind, name, nil), by: s.ID() + ":" + strconv.FormatUint(boards.Add(1), 10)}
}

// boards counts the boards of this process.
var boards atomic.Uint64

// said counts what the holders of this process have said.
var said atomic.Uint64

// says is the script that says something in the name of a holder, or takes it back. Its copies have one number, so that a late one
// does not bring back what the same holder said before.
func (b *Board) says(h lock.Hold, value string, end time.Time, over bool) func(context.Context, rueidis.Client, luascripts.Keys) (luascripts.Verdict, error) {
	number := said.Add(1)
	return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (luascripts.Verdict, error) {
		v, err := luascripts.PostLeader(ctx, rdb, k, h.Token(), value, time.Until(end), over, number, b.by)
		return v, command.Foreign(v, err)
	}
}

// Publish says value in the name of the holder of h, for d at most.
func (b *Board) Publish(ctx context.Context, h lock.Hold, value string, d time.Duration) error {
	const op = "publish"
	end := time.Now().Add(d)
	if err := b.until(h); err != nil {
		return &lock.Error{Op: op, Name: b.spec.Name, Err: err}
	}
	v, err := session.Ask(ctx, b.session, b.spec, op, b.says(h, value, end, false))
	if err == nil && v == luascripts.Free {
		err = &lock.Error{Op: op, Name: b.spec.Name, Err: leader.ErrNotLeading}
	}
	return err
}

// until has the client take back at its Close what is said in the name of the holder of h, unless Clear comes first.
func (b *Board) until(h lock.Hold) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spec.Err != nil || b.stop != nil && b.token == h.Token() {
		return nil
	}
	stop, err := b.session.AtClose(func(ctx context.Context) {
		_, _ = session.AskLast(ctx, b.session, b.spec, b.says(h, "", time.Now().Add(clearedStay), true)) // it ends with the lease
	})
	if err != nil {
		return err
	}
	if b.stop != nil {
		b.stop()
	}
	b.token, b.stop = h.Token(), stop
	return nil
}

// clearedStay is for how long a leader that is done leaves its token, so that a late copy of its words does nothing.
const clearedStay = time.Minute

// Clear takes back what was said in the name of the holder of h.
func (b *Board) Clear(ctx context.Context, h lock.Hold) error {
	_, err := session.Ask(ctx, b.session, b.spec, "resign", b.says(h, "", time.Now().Add(clearedStay), true))
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil && b.stop != nil && b.token == h.Token() {
		b.stop()
		b.stop = nil
	}
	return err
}

// Read returns what the leader says.
func (b *Board) Read(ctx context.Context) (l leader.Leader, leads bool, err error) {
	l, err = session.Ask(ctx, b.session, b.spec, "leader", func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (leader.Leader, error) {
		said, v, err := luascripts.ReadLeader(ctx, rdb, k)
		if err != nil || v != luascripts.Done {
			return leader.Leader{}, command.Foreign(v, err)
		}
		return leader.Leader{Value: said.Value, Since: said.Since, Token: said.Token, Left: said.Left}, nil
	})
	return l, err == nil && !l.Since.IsZero(), err
}

// Watch calls look when there may be something new, until stop is called.
func (b *Board) Watch(look func()) (stop func(), err error) {
	err = b.spec.Err
	if err == nil {
		err = b.session.Enter()
	}
	if err != nil {
		return nil, &lock.Error{Op: "observe", Name: b.spec.Name, Err: err}
	}
	defer b.session.Leave()
	return b.session.Subscribe(b.spec.Keys.Channel, look).CloseSoon, nil
}
