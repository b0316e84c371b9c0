package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/adaptertest"
	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
	"github.com/redis/rueidis"
)

// subject is a limiter or a RedissonLimiter with ten permits per day, of which five are taken, and one call of it.
type subject struct {
	call  func(ctx context.Context) error
	left  func() int64
	alone string // the name in the errors
}

// calls has each call of a Limiter and a RedissonLimiter, and the permits left after it. Before it, five are left.
var calls = []struct {
	op     string
	after  int64 // when it was executed once
	undone int64 // when its caller left before the reply
	make   func(t *testing.T, s, sees *command.Sender, key string) subject
}{
	{"take", 2, 5, ofLimiter(func(ctx context.Context, l *ratelimit.Limiter, key string, _ ratelimit.Decision, _ *ratelimit.Reservation) error {
		return granted(l.Take(ctx, key, 3))
	})},
	{"take up to", 0, 5, ofLimiter(func(ctx context.Context, l *ratelimit.Limiter, key string, _ ratelimit.Decision, _ *ratelimit.Reservation) error {
		return granted(l.TakeUpTo(ctx, key, 9))
	})},
	{"peek", 5, 5, ofLimiter(func(ctx context.Context, l *ratelimit.Limiter, key string, _ ratelimit.Decision, _ *ratelimit.Reservation) error {
		return granted(l.Peek(ctx, key))
	})},
	{"reserve", 2, 5, ofLimiter(func(ctx context.Context, l *ratelimit.Limiter, key string, _ ratelimit.Decision, _ *ratelimit.Reservation) error {
		return second(l.Reserve(ctx, key, 3))
	})},
	{"wait", 2, 5, ofLimiter(func(ctx context.Context, l *ratelimit.Limiter, key string, _ ratelimit.Decision, _ *ratelimit.Reservation) error {
		return l.Wait(ctx, key, 3)
	})},
	{"refund", 7, 7, ofLimiter(func(ctx context.Context, l *ratelimit.Limiter, key string, d ratelimit.Decision, _ *ratelimit.Reservation) error {
		return l.Refund(ctx, key, d)
	})},
	{"reset", 10, 10, ofLimiter(func(ctx context.Context, l *ratelimit.Limiter, key string, _ ratelimit.Decision, _ *ratelimit.Reservation) error {
		return l.Reset(ctx, key)
	})},
	{"cancel", 8, 8, ofLimiter(func(ctx context.Context, _ *ratelimit.Limiter, _ string, _ ratelimit.Decision, r *ratelimit.Reservation) error {
		return r.Cancel(ctx)
	})},

	{"init", 5, 5, ofWindow(func(ctx context.Context, w *ratelimit.RedissonLimiter, _ ratelimit.Decision) error {
		return second(w.Init(ctx, 10, 24*time.Hour))
	})},
	{"set rate", 10, 5, ofWindow(func(ctx context.Context, w *ratelimit.RedissonLimiter, _ ratelimit.Decision) error {
		return w.SetRate(ctx, 15, 24*time.Hour)
	})},
	{"take", 2, 5, ofWindow(func(ctx context.Context, w *ratelimit.RedissonLimiter, _ ratelimit.Decision) error {
		return granted(w.Take(ctx, 3))
	})},
	{"take up to", 0, 5, ofWindow(func(ctx context.Context, w *ratelimit.RedissonLimiter, _ ratelimit.Decision) error {
		return granted(w.TakeUpTo(ctx, 9))
	})},
	{"peek", 5, 5, ofWindow(func(ctx context.Context, w *ratelimit.RedissonLimiter, _ ratelimit.Decision) error {
		return granted(w.Peek(ctx))
	})},
	{"wait", 2, 5, ofWindow(func(ctx context.Context, w *ratelimit.RedissonLimiter, _ ratelimit.Decision) error {
		return w.Wait(ctx, 3)
	})},
	{"delete", notThere, 5, ofWindow(func(ctx context.Context, w *ratelimit.RedissonLimiter, _ ratelimit.Decision) error {
		return w.Delete(ctx)
	})},
	{"refund", 7, 7, ofWindow(func(ctx context.Context, w *ratelimit.RedissonLimiter, d ratelimit.Decision) error {
		return w.Refund(ctx, d)
	})},
}

// granted returns err, or an error if d is a rejection.
func granted(d ratelimit.Decision, err error) error {
	if err == nil && !d.OK {
		err = fmt.Errorf("refused: %+v", d)
	}
	return err
}

// windowed is the index of the first call of a RedissonLimiter. These calls repeat a command after a lost reply.
const windowed = 8

// notThere stands for the permits left in a deleted RedissonLimiter.
const notThere = -1

// ofLimiter creates the subject for a call of a Limiter. Of the five permits taken, two belong to d and three to r.
func ofLimiter(call func(ctx context.Context, l *ratelimit.Limiter, key string, d ratelimit.Decision, r *ratelimit.Reservation) error) func(t *testing.T, s, sees *command.Sender, key string) subject {
	return func(t *testing.T, s, sees *command.Sender, key string) subject {
		policy := ratelimit.FailClosed().After(s.Timeout)
		l, other := ratelimit.On(s, "api", policy, daily), ratelimit.On(sees, "api", closed, daily)
		if err := l.Refund(t.Context(), key, take(t, l, key, 1)); err != nil { // loads the script on the server
			t.Fatal(err)
		}
		d := take(t, l, key, 2)
		r, err := l.Reserve(t.Context(), key, 3)
		if err != nil {
			t.Fatal(err)
		}
		return subject{
			call:  func(ctx context.Context) error { return call(ctx, l, key, d, r) },
			left:  func() int64 { return peek(t, other, key).Remaining },
			alone: "api:" + key,
		}
	}
}

// ofWindow creates the subject for a call of a RedissonLimiter. Of the five permits taken, two belong to d.
func ofWindow(call func(ctx context.Context, w *ratelimit.RedissonLimiter, d ratelimit.Decision) error) func(t *testing.T, s, sees *command.Sender, key string) subject {
	return func(t *testing.T, s, sees *command.Sender, key string) subject {
		w, other := ratelimit.RedissonLimiterOn(s, key), ratelimit.RedissonLimiterOn(sees, key)
		if _, err := w.Init(t.Context(), 10, 24*time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := w.Refund(t.Context(), takeOf(t, w, 1)); err != nil { // loads the script on the server
			t.Fatal(err)
		}
		d := takeOf(t, w, 2)
		takeOf(t, w, 3)
		return subject{
			call: func(ctx context.Context) error { return call(ctx, w, d) },
			left: func() int64 {
				if d, err := other.Peek(t.Context()); !errors.Is(err, ratelimit.ErrNotInitialized) {
					return d.Remaining
				}
				return notThere
			},
			alone: key,
		}
	}
}

// wants fails the test unless err names the operation and its object, and matches want.
func (s subject) wants(t *testing.T, what, op string, err, want error) {
	t.Helper()
	var e *lock.Error
	if !errors.Is(err, want) || !errors.As(err, &e) || e.Op != op || e.Name != s.alone {
		t.Errorf("%s, %s of %s: %v", what, op, s.alone, err)
	}
}

// soonLeft waits until the given number of permits is left.
func (s subject) soonLeft(t *testing.T, what string, want int64) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		got := s.left()
		if got == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s of %s: %d are left, want %d", what, s.alone, got, want)
		}
	}
}

// A request or a reply is lost, for each command. A call of a Limiter fails, and took or returned its permits at most once. A
// call of a RedissonLimiter succeeds anyway.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	sender, sees := command.New(s.Client(t, redistest.Via(p)), command.Config{Timeout: time.Minute}), command.New(s.Client(t), command.Config{Timeout: time.Minute})
	for i, c := range calls {
		for what, act := range map[string]redistest.Action{"request": {DropRequest: true}, "reply": {DropReply: true}} {
			sub := c.make(t, sender, sees, fmt.Sprint(what, i))
			p.OnRequest(redistest.Once("EVALSHA", act))
			err := sub.call(t.Context())
			p.OnRequest(nil)
			want := c.after
			if i < windowed {
				sub.wants(t, "a lost "+what, c.op, err, lock.ErrUnavailable)
				if what == "request" {
					want = 5
				}
			} else if err != nil {
				t.Errorf("%s, a lost %s: %v", c.op, what, err)
			}
			if got := sub.left(); got != want {
				t.Errorf("%s of %s, a lost %s: %d are left, want %d", c.op, sub.alone, what, got, want)
			}
			if c.op == "cancel" { // the first call counts
				sub.wants(t, "again", c.op, sub.call(t.Context()), lock.ErrUnavailable)
			}
		}
	}
	for name, policy := range map[string]ratelimit.Policy{"open": ratelimit.FailOpen().After(time.Minute), "local": ratelimit.FailLocal(1).After(time.Minute)} {
		l := ratelimit.On(sender, "api", policy, daily)
		p.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
		if d, err := l.Take(t.Context(), name, 3); err != nil || !d.OK || d.Taken != 3 || !errors.Is(d.Err, lock.ErrUnavailable) {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
}

// A caller that leaves while its command is in flight gets its error immediately, and its permits are returned.
func TestCancelled(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	sender, sees := command.New(s.Client(t, redistest.Via(p)), command.Config{Timeout: time.Minute}), command.New(s.Client(t), command.Config{Timeout: time.Minute})
	for i, c := range calls {
		for _, phase := range []string{"request", "reply", "reply, with a reused context"} {
			sub := c.make(t, sender, sees, fmt.Sprint(phase, i))
			ctx, cancel := context.WithCancelCause(t.Context())
			phase, reused := strings.CutSuffix(phase, ", with a reused context")
			if reused {
				ctx = redistest.Reused{Context: ctx}
			}
			asked, release := hold(p, phase)
			done := make(chan error, 1)
			go func() { done <- sub.call(ctx) }()
			<-asked
			cancel(kindtest.Why)
			err := <-done
			sub.wants(t, "left while the "+phase+" is on its way", c.op, err, context.Canceled)
			if !reused && !errors.Is(err, kindtest.Why) || errors.Is(err, lock.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), ": no reply from Redis after ") {
				t.Errorf("%s: %v does not say that there was no reply, and why the caller left", c.op, err)
			}
			if c.op != "refund" && c.op != "cancel" && !reused { // they work with any context
				sub.wants(t, "after its context was canceled", c.op, sub.call(ctx), kindtest.Why)
			}
			close(release)
			sub.soonLeft(t, c.op+", left while its "+phase+" is on its way", c.undone)
		}
	}
}

// hold blocks the next script, or its reply, until release is closed. asked is closed when one is blocked.
func hold(p *redistest.Proxy, phase string) (asked, release chan struct{}) {
	asked, release = make(chan struct{}), make(chan struct{})
	act := redistest.Action{HoldRequest: release}
	if phase == "reply" {
		act = redistest.Action{HoldReply: release}
	}
	once := redistest.Once("EVALSHA", act)
	p.OnRequest(func(req [][]byte) redistest.Action {
		a := once(req)
		if a != (redistest.Action{}) {
			close(asked)
		}
		return a
	})
	return asked, release
}

// Without replies each call ends after its timeout. When the server responds again, permits whose callers did not get a reply are
// returned.
func TestFrozenServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t, func(o *rueidis.ClientOption) { o.ConnWriteTimeout = time.Minute }) // the connection outlives the pause
	quick, slow := command.New(rdb, command.Config{Timeout: 5 * time.Second}), command.New(rdb, command.Config{Timeout: time.Minute})
	var subjects []subject
	for i, c := range calls {
		subjects = append(subjects, c.make(t, quick, slow, fmt.Sprint(i)))
	}
	s.Freeze(t)
	var wg sync.WaitGroup
	for i, c := range calls {
		wg.Go(func() {
			ctx, cancel := context.WithTimeoutCause(t.Context(), 15*time.Second, kindtest.Why) // waiting calls continue until it ends
			defer cancel()
			err := subjects[i].call(ctx)
			if subjects[i].wants(t, "a frozen server", c.op, err, lock.ErrUnavailable); errors.Is(err, context.DeadlineExceeded) != errors.Is(err, kindtest.Why) {
				t.Errorf("%v does not have the cause", err)
			}
		})
	}
	wg.Wait()
	s.Thaw(t)
	for i, c := range calls {
		subjects[i].soonLeft(t, c.op, c.undone)
	}
}

// Close ends the calls that wait for a reply, and waits for their commands. Their permits are returned.
func TestClose_underWay(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for i, c := range calls {
		p := redistest.NewProxy(t, s.Addr())
		sender, sees := command.New(s.Client(t, redistest.Via(p)), command.Config{Timeout: time.Minute}), command.New(s.Client(t), command.Config{Timeout: time.Minute})
		sub := c.make(t, sender, sees, fmt.Sprint(i))
		asked, release := hold(p, "reply")
		done, closed := make(chan error, 1), make(chan error, 1)
		go func() { done <- sub.call(t.Context()) }()
		<-asked
		go func() { closed <- sender.Close(t.Context()) }()
		sub.wants(t, "under way", c.op, <-done, lock.ErrClosed)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if err := sender.Close(over); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: Close without time: %v", c.op, err)
		}
		if len(closed) > 0 {
			t.Errorf("%s: Close did not wait: %v", c.op, <-closed)
		}
		close(release)
		if err := <-closed; err != nil {
			t.Errorf("%s: %v", c.op, err)
		}
		if got := sub.left(); got != c.undone {
			t.Errorf("%s of %s: %d are left, want %d", c.op, sub.alone, got, c.undone)
		}
		if c.op != "cancel" {
			sub.wants(t, "afterwards", c.op, sub.call(t.Context()), lock.ErrClosed)
		}
	}
}

// After Close no call is decided without a command: not by a cached rejection, not because a command is overdue, and not from the
// prefetched stock.
func TestClose_decidesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		sender := command.New(m.Client(t, redistest.Via(wire)), command.Config{Timeout: time.Minute})
		l := ratelimit.On(sender, "api", ratelimit.FailOpen(), daily)
		stock := l.Prefetch(3, time.Hour)
		take(t, stock, "stock", 1)
		take(t, l, "refused", 10)
		if d := take(t, l, "refused", 1); d.OK {
			t.Errorf("%+v", d)
		}
		wire.Freeze(true)
		if d := take(t, l, "overdue", 1); !d.OK || d.Err == nil {
			t.Errorf("%+v", d)
		}
		sender.Shut()
		for key, l := range map[string]*ratelimit.Limiter{"refused": l, "overdue": l, "stock": stock} {
			if d, err := l.Take(t.Context(), key, 1); !errors.Is(err, lock.ErrClosed) {
				t.Errorf("%s: %+v, %v", key, d, err)
			}
		}
		thaw(wire)
	})
}

// A prefetch whose reply is lost, or whose caller leaves, adds nothing to the stock. Callers that wait for it send their own
// requests.
func TestPrefetch_faults(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	sender := command.New(s.Client(t, redistest.Via(p)), command.Config{Timeout: time.Minute})
	plain := ratelimit.On(sender, "api", closed, daily)
	l := plain.Prefetch(3, time.Minute)
	take(t, l, "first", 1) // loads the script on the server
	p.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
	if d, err := l.Take(t.Context(), "lost", 1); !errors.Is(err, lock.ErrUnavailable) || d.OK {
		t.Errorf("a lost answer: %+v, %v", d, err)
	}
	p.OnRequest(nil)
	if d := take(t, l, "lost", 1); !d.OK || peek(t, plain, "lost").Remaining != 2 {
		t.Errorf("after a lost answer: %+v", d)
	}

	asked, release := hold(p, "reply")
	ctx, cancel := context.WithCancel(t.Context())
	done, next := make(chan error, 1), make(chan ratelimit.Decision, 1)
	go func() { done <- second(l.Take(ctx, "left", 1)) }()
	<-asked
	go func() {
		d, err := l.Take(t.Context(), "left", 1)
		if err != nil {
			t.Error(err)
		}
		next <- d
	}()
	reused := make(chan error, 1)
	go func() { reused <- second(l.Take(redistest.Reused{Context: ctx}, "left", 1)) }()
	cancel()
	for _, err := range []error{<-done, <-reused} {
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	close(release)
	if d := <-next; !d.OK {
		t.Errorf("the next one: %+v", d)
	}
	(subject{left: func() int64 { return peek(t, plain, "left").Remaining }, alone: "api:left"}).soonLeft(t, "left", 6)
	if err := sender.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := l.Take(t.Context(), "left", 1); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A call for 0 permits takes nothing and is never rejected.
func TestTake_none(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l, w := ratelimit.New(s.Client(t), "api", closed, daily), newWindow(t, s.Client(t), "w", 10, time.Hour)
	take(t, l, "k", 10)
	takeOf(t, w, 10)
	r, err := l.Reserve(t.Context(), "k", 0)
	if d := take(t, l, "k", 0); !d.OK || d.Taken != 0 || d.Remaining != 0 || err != nil || r.Delay() != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	if d := takeOf(t, w, 0); !d.OK || d.Taken != 0 || d.Remaining != 0 {
		t.Errorf("%+v", d)
	}
	if err := errors.Join(l.Wait(t.Context(), "k", 0), w.Wait(t.Context(), 0)); err != nil {
		t.Error(err)
	}
}

// Each call of a Limiter and a RedissonLimiter handles error replies as listed in the table. Take of a Limiter does not retry,
// because its policy decides.
func TestReplies(t *testing.T) {
	t.Parallel()
	kindtest.Replies(t, func(t *testing.T, c *client.Client, name string) []kindtest.Call {
		l, w := c.NewRateLimiter(name, closed, daily), c.NewRedissonRateLimiter(name+"w")
		if _, err := w.Init(t.Context(), 100, time.Hour); err != nil {
			t.Fatal(err)
		}
		d := takeOf(t, w, 2)
		full := name + ":k"
		return []kindtest.Call{
			{Op: "take", Name: full, Once: true, Do: func(ctx context.Context) error { return second(l.Take(ctx, "k", 1)) }},
			{Op: "take up to", Name: full, Once: true, Do: func(ctx context.Context) error { return second(l.TakeUpTo(ctx, "k", 2)) }},
			{Op: "peek", Name: full, Once: true, Do: func(ctx context.Context) error { return second(l.Peek(ctx, "k")) }},
			{Op: "reserve", Name: full, Once: true, Do: func(ctx context.Context) error { return second(l.Reserve(ctx, "k", 1)) }},
			{Op: "init", Name: name + "w", Do: func(ctx context.Context) error { return second(w.Init(ctx, 100, time.Hour)) }},
			{Op: "take", Name: name + "w", Do: func(ctx context.Context) error { return second(w.Take(ctx, 1)) }},
			{Op: "peek", Name: name + "w", Do: func(ctx context.Context) error { return second(w.Peek(ctx)) }},
			{Op: "refund", Name: name + "w", Do: func(ctx context.Context) error { return w.Refund(ctx, d) }},
		}
	})
}

// A Wait continues while Redis is unavailable. The Wait of a Limiter fails if the permits may have been taken.
func TestWait_replies(t *testing.T) {
	t.Parallel()
	t.Run("limiter", func(t *testing.T) {
		t.Parallel()
		kindtest.Waits(t, func(t *testing.T, c, _ *client.Client, name string) kindtest.Wait {
			l := c.NewRateLimiter(name, closed, daily)
			return kindtest.Wait{Do: func(ctx context.Context) error { return l.Wait(ctx, "k", 1) }, Once: true}
		})
	})
	t.Run("window", func(t *testing.T) {
		t.Parallel()
		kindtest.Waits(t, func(t *testing.T, c, sees *client.Client, name string) kindtest.Wait {
			if _, err := sees.NewRedissonRateLimiter(name).Init(t.Context(), 10, time.Hour); err != nil {
				t.Error(err)
			}
			w := c.NewRedissonRateLimiter(name)
			return kindtest.Wait{Do: func(ctx context.Context) error { return w.Wait(ctx, 1) }}
		})
	})
}

// answered describes the response of a handler: its status, the headers of the limiter, and the errors passed to failed.
func answered(t *testing.T, r *http.Response, told []error, served int) string {
	t.Helper()
	if len(told) > 1 || served > 1 || (served == 1) != (r.StatusCode == http.StatusOK) {
		t.Errorf("status %d: next was called %d times, failed with %v", r.StatusCode, served, told)
	}
	seen := fmt.Sprint(r.StatusCode)
	for _, header := range []string{"Retry-After", "RateLimit-Policy", "RateLimit"} {
		if r.Header.Get(header) != "" {
			seen += ", " + header
		}
	}
	for _, err := range told {
		seen += ", told" + adaptertest.Matches(err)
		if errors.Is(err, ratelimit.ErrLimited) {
			seen += ": ErrLimited"
		}
	}
	return seen
}

// policies has each policy. The share of FailLocal is a single permit of daily.
var policies = map[string]ratelimit.Policy{"Closed": ratelimit.FailClosed(), "Open": ratelimit.FailOpen(), "Local": ratelimit.FailLocal(10)}

// Expected responses of a handler while Redis is unavailable, under FailClosed and under the policies that admit the request.
const (
	rejectedWithoutRedis = "503, Retry-After, told: ErrUnavailable"
	passedWithoutRedis   = "200, RateLimit-Policy"
)

// For each fault and each policy: the response that a client of a server with [ratelimit.Handler] receives, and the error passed
// to failed.
func TestHandler_faults(t *testing.T) {
	t.Parallel()
	for name, policy := range policies {
		want := map[string]string{
			adaptertest.Free:         "200, RateLimit-Policy, RateLimit",
			adaptertest.Busy:         "429, Retry-After, RateLimit-Policy, RateLimit",
			adaptertest.Refused:      passedWithoutRedis,
			adaptertest.Unresponsive: passedWithoutRedis,
			adaptertest.ReadOnly:     passedWithoutRedis,
			adaptertest.Denied:       "503, told",
			adaptertest.WrongType:    "503, told: ErrWrongType",
			adaptertest.BadName:      "400, told: ErrBadName",
			adaptertest.Closed:       "503, told: ErrClosed",
			adaptertest.Canceled:     "503, Retry-After",
			adaptertest.Deadline:     "503, told: DeadlineExceeded",
		}
		if name == "Closed" {
			maps.Copy(want, map[string]string{
				adaptertest.Refused:      rejectedWithoutRedis,
				adaptertest.Unresponsive: rejectedWithoutRedis,
				adaptertest.ReadOnly:     rejectedWithoutRedis,
			})
		}
		t.Run(name, func(t *testing.T) {
			adaptertest.Walk(t, want, func(t *testing.T, c adaptertest.Call) string {
				key, patience := c.Lock.Name(), 30*time.Second
				if c.Fault == adaptertest.Unresponsive {
					patience = time.Second
				}
				l := c.Client.NewRateLimiter("api", policy.After(patience), daily)
				switch c.Fault {
				case adaptertest.Busy:
					take(t, l, key, 10)
				case adaptertest.WrongType:
					if _, err := c.Client.NewLock("api:" + key).Lock(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				h, told, served := handler(l, "p", 11, nil)
				if seen := answered(t, request(c.Ctx, h, key), *told, *served); seen != "413, RateLimit-Policy, told: ErrLimited" {
					t.Errorf("%s: a request above the burst: %q", c.Fault, seen)
				}
				h, told, served = handler(l, "p", 1, nil)
				return answered(t, request(c.Ctx, h, key), *told, *served)
			})
		})
	}
}

// The same for each error reply. The policy decides only after replies that mean that the server is unavailable.
func TestHandler_replies(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p))
	limiters := make(map[string]*ratelimit.Limiter)
	for name, policy := range policies {
		limiters[name] = ratelimit.New(rdb, name, policy.After(30*time.Second), daily)
		take(t, limiters[name], "k", 0)
	}
	for i, row := range slices.Concat(retry.Replies, retry.ProxyReplies) {
		for name, l := range limiters {
			h, told, served := handler(l, "p", 1, nil)
			see := func() string {
				*told, *served = nil, 0
				return answered(t, request(t.Context(), h, fmt.Sprint(i)), *told, *served)
			}
			want := []string{"503, told", "503, told"}
			switch {
			case row.Temporary && name == "Closed":
				want = []string{rejectedWithoutRedis, rejectedWithoutRedis}
			case row.Temporary && name == "Open":
				want = []string{passedWithoutRedis, passedWithoutRedis}
			case row.Temporary:
				want = []string{passedWithoutRedis, "429, Retry-After, RateLimit-Policy"} // its share is used
			case errors.Is(row.Is, lock.ErrWrongType):
				want = []string{"503, told: ErrWrongType", "503, told: ErrWrongType"}
			}
			p.OnRequest(func(req [][]byte) (none redistest.Action) {
				if isScript(req) {
					return redistest.Action{Refuse: row.Reply}
				}
				return none
			})
			if got := []string{see(), see()}; !slices.Equal(got, want) {
				t.Errorf("%q, policy %s: %q, want %q", row.Reply, name, got, want)
			}
			p.OnRequest(nil)
			if got := see(); got != "200, RateLimit-Policy, RateLimit" {
				t.Errorf("after %q, policy %s: %q", row.Reply, name, got)
			}
		}
	}
}
