// Package board implements leader.Store in Redis.
package board

import (
	"context"
	"fmt"
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
	by      string           // set once: unique per board, so that it distinguishes leaders without tokens

	mu    sync.Mutex
	token uint64 // of the holder that published last; guarded by mu
	stop  func() // cancels the removal of its value at Close; nil if there is none; guarded by mu
}

var _ leader.Store = (*Board)(nil)

// New returns the board of name.
func New(s *session.Session, name string) *Board {
	return &Board{session: s, spec: s.NewSpec(kind, name, nil), by: s.ID() + ":" + strconv.FormatUint(boards.Add(1), 10)}
}

// boards is the number of boards created in this process. It generates Board.by.
var boards atomic.Uint64

// said is the number of Publish and Clear calls in this process.
var said atomic.Uint64

// says returns a script call that publishes the value of the holder of h, or clears it. All copies of a call have the
// same number, so a delayed duplicate does not restore an earlier value of this holder.
func (b *Board) says(h lock.Hold, value string, end time.Time, over bool) func(context.Context, rueidis.Client, luascripts.Keys) (luascripts.Verdict, error) {
	number := said.Add(1)
	return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (luascripts.Verdict, error) {
		v, err := luascripts.PostLeader(ctx, rdb, k, h.Token(), value, time.Until(end), over, number, b.by)
		return v, command.Foreign(v, err)
	}
}

// Publish implements leader.Store.
func (b *Board) Publish(ctx context.Context, h lock.Hold, value string, d time.Duration) error {
	const op = "publish"
	end := time.Now().Add(d)
	if err := b.until(h); err != nil {
		return &lock.Error{Op: op, Name: b.spec.Name, Err: err}
	}
	v, err := session.Ask(ctx, b.session, b.spec, op, b.says(h, value, end, false))
	if err == nil && v == luascripts.Free {
		err = leader.ErrNotLeading
		if h.Err() == nil {
			err = fmt.Errorf("%w: a holder with a higher token has published: the lock was lost just now, or the server's clock moved backward; use WithFencing", err)
		}
		err = &lock.Error{Op: op, Name: b.spec.Name, Err: err}
	}
	return err
}

// until makes Close of the client clear the value of the holder of h, unless Clear is called first.
func (b *Board) until(h lock.Hold) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spec.Err != nil || b.stop != nil && b.token == h.Token() {
		return nil
	}
	stop, err := b.session.AtClose(func(ctx context.Context) {
		_, _ = session.AskLast(ctx, b.session, b.spec, b.says(h, "", time.Now().Add(clearedStay), true)) // if it fails, the value expires with the lease
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

// clearedStay is how long the token of a cleared value is kept, so that a delayed duplicate of Publish has no effect.
const clearedStay = time.Minute

// Clear implements leader.Store.
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

// Read implements leader.Store.
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

// Watch implements leader.Store.
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
