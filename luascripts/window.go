package luascripts

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var (
	windowTake    = load("window_take")
	windowRefund  = load("window_refund")
	windowInit    = load("window_init")
	windowInspect = load("window_inspect")
	windowDelete  = load("window_delete")
)

// The verdicts of a window's scripts in addition to Done, Free and Foreign.
const (
	Uninitialized Verdict = -3 // the window has no rate
	PerClient     Verdict = -5 // each client of Redisson has its own rate
)

// WindowKeys are the keys of a window, all in one slot.
type WindowKeys struct{ Config, Value, Permits, Never string }

func (k WindowKeys) list() []string { return []string{k.Config, k.Value, k.Permits, k.Never} }

// WindowReply is the reply of a window.
type WindowReply struct {
	Verdict   Verdict // Done: the other fields are set
	Taken     int64
	Remaining int64
	Retry     time.Duration // not taken: the time until the next attempt, 0 for immediately; or Never
	Reset     time.Duration
	Next      time.Duration // the time until the first permits are refilled; 0 if none is taken
	Rate      int64
	Per       time.Duration
}

// TakeWindow takes up to units permits, but not fewer than least. If units is 0, it only reads the
// state. The argument id has 16 bytes that no other call has. A repeated call with the same id
// changes nothing. The argument ago is the time since the first copy was sent, or 0 for the first
// copy.
func TakeWindow(ctx context.Context, rdb rueidis.Client, k WindowKeys, units, least int64, id string, ago time.Duration) (WindowReply, error) {
	msg, err := windowTake.exec(ctx, rdb, k.list(), []string{strconv.FormatInt(units, 10), strconv.FormatInt(least, 10), id, ms(ago)}).ToMessage()
	if err != nil {
		return WindowReply{}, err
	}
	if n, err := msg.ToInt64(); err == nil {
		switch v := Verdict(n); v {
		case Uninitialized, Foreign, PerClient:
			return WindowReply{Verdict: v}, nil
		}
	}
	n, err := msg.AsIntSlice()
	if err != nil || len(n) != 7 || n[0] < 0 || n[0] > units || n[1] < 0 || n[2] < -1 || n[3] < 0 || n[4] < 1 || n[5] < 1 || n[6] < 0 {
		return WindowReply{}, &ReplyError{windowTake.name, msg.String()}
	}
	r := WindowReply{Verdict: Done, Taken: n[0], Remaining: n[1], Retry: remaining(n[2]), Reset: remaining(n[3]), Rate: n[4], Per: remaining(n[5]), Next: remaining(n[6])}
	if n[2] == -1 {
		r.Retry = Never
	}
	return r, nil
}

// RefundWindow refunds the permits that a call took. It returns Done, Free if Redis no longer
// counts them, Uninitialized, Foreign or PerClient.
func RefundWindow(ctx context.Context, rdb rueidis.Client, k WindowKeys, units int64, id string) (Verdict, error) {
	return verdict(windowRefund, windowRefund.exec(ctx, rdb, k.list(), []string{strconv.FormatInt(units, 10), id}), Done, Free, Uninitialized, Foreign, PerClient)
}

// DeleteWindow deletes a window, and returns Done, Foreign or PerClient. It does so only while the
// server's time in ms is less than before. After that it does nothing, and returns the server's
// time.
func DeleteWindow(ctx context.Context, rdb rueidis.Client, k WindowKeys, before int64) (v Verdict, now int64, err error) {
	return dated(windowDelete, windowDelete.exec(ctx, rdb, k.list(), []string{strconv.FormatInt(before, 10)}), before, Done, Foreign, PerClient)
}

// Rated is the result of setting the rate of a window.
type Rated struct {
	Verdict Verdict       // Done: the rate was set; Free: it already had this rate; Other; Foreign or PerClient
	Rate    int64         // of Other
	Per     time.Duration // of Other
}

// InitWindow sets the rate of a window. If the window has a different rate, InitWindow replaces it
// with replace, and otherwise returns Other. It sets a rate only while the server's time in ms is
// less than before. After that, InitWindow does nothing and returns the server's time. Otherwise now
// is 0.
func InitWindow(ctx context.Context, rdb rueidis.Client, k WindowKeys, rate int64, per time.Duration, replace bool, before int64) (r Rated, now int64, err error) {
	reply := windowInit.exec(ctx, rdb, k.list(), []string{strconv.FormatInt(rate, 10), ms(per), bit(replace), strconv.FormatInt(before, 10)})
	if n, err := reply.AsIntSlice(); err == nil && len(n) == 2 && slices.Min(n) > 0 && !replace {
		return Rated{Other, n[0], Millis(n[1])}, 0, nil
	}
	r.Verdict, now, err = dated(windowInit, reply, before, Done, Free, Foreign, PerClient)
	return r, now, err
}

// Other is the verdict when the parameters in Redis differ from those of the caller.
const Other Verdict = 2

// WindowState is the state of a window.
type WindowState struct {
	Verdict Verdict // Done: the other fields are set
	Left    int64
	Next    time.Duration // the time until a permit is available, 0 if one is
	Reset   time.Duration // the time until no permit counts as taken
	Rate    int64
	Per     time.Duration
	Used    bool // callers have taken permits
}

// InspectWindow reads a window, and changes nothing. Its verdict is Done, Uninitialized, Foreign or PerClient.
func InspectWindow(ctx context.Context, rdb rueidis.Client, k WindowKeys) (WindowState, error) {
	msg, err := windowInspect.exec(ctx, rdb, k.list(), nil).ToMessage()
	if err != nil {
		return WindowState{}, err
	}
	if n, err := msg.ToInt64(); err == nil {
		switch v := Verdict(n); v {
		case Uninitialized, Foreign, PerClient:
			return WindowState{Verdict: v}, nil
		}
	}
	n, err := msg.AsIntSlice()
	if err != nil || len(n) != 6 || slices.Min(n) < 0 {
		return WindowState{}, &ReplyError{windowInspect.name, msg.String()}
	}
	return WindowState{Verdict: Done, Left: n[0], Next: remaining(n[1]), Reset: remaining(n[2]), Rate: n[3], Per: remaining(n[4]), Used: n[5] == 1}, nil
}
