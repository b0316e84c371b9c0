package luascripts

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var (
	windowTake   = load("window_take")
	windowRefund = load("window_refund")
	windowInit   = load("window_init")
	windowLook   = load("window_inspect")
	windowDelete = load("window_delete")
)

// The verdicts of a window's scripts beside Done, Free and Foreign.
const (
	Uninitialized Verdict = -3 // the window has no rate
	PerClient     Verdict = -5 // each client of Redisson has a rate of its own
)

// WindowKeys are the keys of a window, all in one slot.
type WindowKeys struct{ Config, Value, Permits, Never string }

func (k WindowKeys) list() []string { return []string{k.Config, k.Value, k.Permits, k.Never} }

// WindowReply is the answer of a window.
type WindowReply struct {
	Verdict   Verdict // Done: the other fields are set
	Taken     int64
	Remaining int64
	Retry     time.Duration // not taken: the time until the next question, 0 for at once; or Never
	Reset     time.Duration
	Next      time.Duration // the time until the first units come back; 0 if none is taken
	Rate      int64
	Per       time.Duration
}

// TakeWindow takes units, or at least the least number of them, and only asks for the state if units is 0. id
// is 16 bytes that no other call has. A repeated call with the same id changes nothing; ago is how long ago the
// first copy was sent, 0 for the first copy.
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

// RefundWindow gives back the units that a call took. It returns Done, Free if they are not there any more,
// Uninitialized, Foreign or PerClient.
func RefundWindow(ctx context.Context, rdb rueidis.Client, k WindowKeys, units int64, id string) (Verdict, error) {
	return verdict(windowRefund, windowRefund.exec(ctx, rdb, k.list(), []string{strconv.FormatInt(units, 10), id}), Done, Free, Uninitialized, Foreign, PerClient)
}

// DeleteWindow deletes a window before a time of the server, in ms: Done, Foreign or PerClient. After that time it returns the server's
// time, and does nothing.
func DeleteWindow(ctx context.Context, rdb rueidis.Client, k WindowKeys, before int64) (v Verdict, now int64, err error) {
	return dated(windowDelete, windowDelete.exec(ctx, rdb, k.list(), []string{strconv.FormatInt(before, 10)}), before, Done, Foreign, PerClient)
}

// Rated is what became of a window that was to get a rate.
type Rated struct {
	Verdict Verdict       // Done: it got the rate; Free: it has this rate already; Other; Foreign or PerClient
	Rate    int64         // of Other
	Per     time.Duration // of Other
	Now     int64         // of Other: the server's time in ms
}

// InitWindow sets the rate of a window. If the window has another rate, InitWindow replaces it before a time of the server, in ms, and
// returns Other after that; 0 replaces none.
func InitWindow(ctx context.Context, rdb rueidis.Client, k WindowKeys, rate int64, per time.Duration, before int64) (r Rated, err error) {
	reply := windowInit.exec(ctx, rdb, k.list(), []string{strconv.FormatInt(rate, 10), ms(per), strconv.FormatInt(before, 10)})
	if n, err := reply.AsIntSlice(); err == nil && len(n) == 3 && n[2] > 0 && n[2] >= before {
		return Rated{Other, n[0], time.Duration(n[1]) * time.Millisecond, n[2]}, nil
	}
	r.Verdict, err = verdict(windowInit, reply, Done, Free, Foreign, PerClient)
	return r, err
}

// Other is the verdict when the parameters in Redis differ from those of the caller.
const Other Verdict = 2

// WindowState is how a window stands.
type WindowState struct {
	Verdict Verdict // Done: the other fields are set
	Left    int64
	Next    time.Duration // the time until a unit is there, 0 if one is
	Reset   time.Duration // the time until no unit counts as taken
	Rate    int64
	Per     time.Duration
	Used    bool // callers have taken units
}

// InspectWindow reads a window, and changes nothing. Its verdict is Done, Uninitialized, Foreign or PerClient.
func InspectWindow(ctx context.Context, rdb rueidis.Client, k WindowKeys) (WindowState, error) {
	msg, err := windowLook.exec(ctx, rdb, k.list(), nil).ToMessage()
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
		return WindowState{}, &ReplyError{windowLook.name, msg.String()}
	}
	return WindowState{Verdict: Done, Left: n[0], Next: remaining(n[1]), Reset: remaining(n[2]), Rate: n[3], Per: remaining(n[4]), Used: n[5] == 1}, nil
}
