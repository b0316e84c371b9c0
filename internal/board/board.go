// Package board keeps in Redis what leaders say of themselves.
package board

import (
	"context"
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
	Name:    "leader",
	Called:  "the board of a leader",
	Scripts: session.Scripts{Keys: keys.Leader},
}

// Board is the leader.Board of one name.
type Board struct {
	session *session.Session // set once
	spec    *session.Spec    // set once
}

var _ leader.Board = (*Board)(nil)

// New returns the board of name.
func New(s *session.Session, name string) *Board {
	return &Board{session: s, spec: s.NewSpec(kind, name, nil)}
}

func (b *Board) post(ctx context.Context, op string, h lock.Hold, value string, d time.Duration, over bool) (luascripts.Verdict, error) {
	end := time.Now().Add(d)
	return session.Ask(ctx, b.session, b.spec, op, func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (luascripts.Verdict, error) {
		v, err := luascripts.PostLeader(ctx, rdb, k, h.Token(), value, time.Until(end), over)
		return v, command.Foreign(v, err)
	})
}

// Post says value in the name of the holder of h, for d at most.
func (b *Board) Post(ctx context.Context, h lock.Hold, value string, d time.Duration) error {
	const op = "proclaim"
	v, err := b.post(ctx, op, h, value, d, false)
	if err == nil && v == luascripts.Free {
		err = &lock.Error{Op: op, Name: b.spec.Name, Err: leader.ErrNotLeading}
	}
	return err
}

// clearedStay is for how long a leader that is done leaves its token, so that a late copy of its words does nothing.
const clearedStay = time.Minute

// Clear takes back what was said in the name of the holder of h.
func (b *Board) Clear(ctx context.Context, h lock.Hold) error {
	_, err := b.post(ctx, "resign", h, "", clearedStay, true)
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
