package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// fixedNodes is a client with these nodes. It sends nothing.
type fixedNodes struct {
	rueidis.Client
	mode  rueidis.ClientMode
	addrs []string
}

func (k fixedNodes) Mode() rueidis.ClientMode { return k.mode }

func (k fixedNodes) Nodes() map[string]rueidis.Client {
	nodes := make(map[string]rueidis.Client)
	for _, addr := range k.addrs {
		nodes[addr] = k
	}
	return nodes
}

// one is a client of one server.
var one = fixedNodes{mode: rueidis.ClientModeStandalone, addrs: []string{"a:1"}}

// countingClient counts the commands sent with a client.
type countingClient struct {
	rueidis.Client
	times atomic.Int64
}

func (c *countingClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	c.times.Add(1)
	return c.Client.Do(ctx, cmd)
}

// The address of the server is reported only if there is a single server: a cluster with one node may
// have more later.
func TestAddress(t *testing.T) {
	for _, c := range []struct {
		rdb  fixedNodes
		want string
	}{
		{one, "a:1"},
		{fixedNodes{mode: rueidis.ClientModeSentinel, addrs: []string{"a:1"}}, "a:1"},
		{fixedNodes{mode: rueidis.ClientModeStandalone, addrs: []string{"a:1", "b:1"}}, ""},
		{fixedNodes{mode: rueidis.ClientModeStandalone}, ""},
		{fixedNodes{mode: rueidis.ClientModeCluster, addrs: []string{"a:1"}}, ""},
	} {
		if got := New(c.rdb, Config{}).Address(); got != c.want {
			t.Errorf("%+v: %q, and not %q", c.rdb, got, c.want)
		}
	}
}

// Callers get the sentinel for what is wrong, together with the original error. A temporary or
// unknown error is ErrUnavailable. An explained error stays unchanged.
func TestExplain(t *testing.T) {
	s := New(one, Config{Timeout: timeout, User: "me"})
	earlier := fmt.Errorf("earlier: %w", lock.ErrUnavailable)
	sentinels := []error{lock.ErrUnavailable, lock.ErrWrongType, lock.ErrReplicas, lock.ErrClosed}
	for _, c := range []struct {
		err  error
		want error // of sentinels; nil if none
		text string
	}{
		{refusal(t, "WRONGTYPE Operation against a key"), lock.ErrWrongType, "WRONGTYPE"},
		{&luascripts.WaitError{Reply: "no"}, lock.ErrReplicas, "WAIT"},
		{refusal(t, "NOPERM User me has no permissions"), nil, `"Permissions"`},
		{refusal(t, "WRONGPASS invalid username-password pair"), nil, "check the user"},
		{refusal(t, "NOAUTH Authentication required."), nil, "requires a password"},
		{refusal(t, "ERR invalid password"), nil, "check the user"},
		{Final{fmt.Errorf("%w: a list", lock.ErrWrongType)}, lock.ErrWrongType, "a list"},
		{refusal(t, "ERR Error running script: -READONLY You can't write"), lock.ErrUnavailable, "read-only replica"},
		{refusal(t, "LOADING Redis is loading the dataset"), lock.ErrUnavailable, "LOADING"},
		{refusal(t, "OOM command not allowed"), lock.ErrUnavailable, "OOM"},
		{refusal(t, "NOREPLICAS Not enough good replicas"), lock.ErrUnavailable, "NOREPLICAS"},
		{retry.Closed{Err: rueidis.ErrClosing}, lock.ErrClosed, "closing"},
		{&luascripts.WaitError{Reply: "UNBLOCKED force unblock"}, lock.ErrUnavailable, "UNBLOCKED"},
		{refusal(t, "ERR no"), nil, "no"},
		{io.EOF, lock.ErrUnavailable, "EOF"},
		{NoReply{After: timeout}, lock.ErrUnavailable, "has not responded for 3s"},
		{lock.ErrClosed, lock.ErrClosed, ""},
		{Final{io.EOF}, nil, "EOF"},
	} {
		got := s.Explain(c.err)
		for _, sentinel := range sentinels {
			if errors.Is(got, sentinel) != (sentinel == c.want) {
				t.Errorf("%v is %q: %t", got, sentinel, errors.Is(got, sentinel))
			}
		}
		if !errors.Is(got, c.err) || !strings.Contains(got.Error(), c.text) {
			t.Errorf("%v becomes %v, without %q", c.err, got, c.text)
		}
	}
	for _, err := range []error{nil, earlier} {
		if got := s.Explain(err); got != err {
			t.Errorf("%v becomes %v", err, got)
		}
	}
}

// A call whose context is canceled reports the cancellation once, and the error before it.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ahead := fmt.Errorf("%w: another call is ahead", lock.ErrNotAcquired)
	unavailable := New(one, Config{}).Unavailable(0, io.EOF)
	sent := Canceled{context.DeadlineExceeded, time.Second}
	for _, c := range []struct {
		last error
		want string
	}{
		{ctx.Err(), "context canceled"},
		{lock.ErrNotAcquired, "not acquired: context canceled"},
		{ahead, "not acquired: another call is ahead: context canceled"},
		{Interrupted(ctx, ahead), "not acquired: context canceled"},
		{unavailable, "context canceled: Redis at a:1 does not respond: EOF"},
		{Interrupted(ctx, unavailable), "context canceled: Redis at a:1 does not respond: EOF"},
		{sent, "context canceled: no reply from Redis after 1s"},
	} {
		err := Interrupted(ctx, c.last)
		if err.Error() != c.want || !errors.Is(err, context.Canceled) ||
			errors.Is(err, lock.ErrNotAcquired) != errors.Is(c.last, lock.ErrNotAcquired) ||
			errors.Is(err, lock.ErrUnavailable) != errors.Is(c.last, lock.ErrUnavailable) {
			t.Errorf("after %v: %v", c.last, err)
		}
		if err := Interrupted(t.Context(), c.last); err != c.last {
			t.Errorf("without a cancellation, %v becomes %v", c.last, err)
		}
	}
	// The loss of a hold has its own cause, which can be the error of a canceled call.
	for _, last := range []error{nil, lock.ErrClosed, fmt.Errorf("%w: %w: %w", lock.ErrNotHeld, lock.ErrAbandoned, Ended(ctx, 0))} {
		if err := Interrupted(ctx, last); err != last {
			t.Errorf("%v, which is final, becomes %v", last, err)
		}
	}
}

// The cause of a context can be the error of another call, as with errgroup. ErrNotAcquired and ErrUnavailable in it do
// not apply to this call.
func TestInterrupted_cause(t *testing.T) {
	other := &os.PathError{Op: "open", Path: "x", Err: errors.Join(lock.ErrUnavailable, lock.ErrNotAcquired, lock.ErrLost)}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(other)
	var path *os.PathError
	for last, matches := range map[error][]error{
		ctx.Err():                                             {},
		lock.ErrNotAcquired:                                   {lock.ErrNotAcquired},
		New(one, Config{}).Explain(io.EOF):                    {lock.ErrUnavailable},
		Canceled{ctx.Err(), time.Second}:                      {},
		Interrupted(ctx, context.Canceled):                    {},
		New(one, Config{}).Failed(ctx, time.Now(), ctx.Err()): {},
	} {
		err := Interrupted(ctx, last)
		for _, target := range []error{lock.ErrNotAcquired, lock.ErrUnavailable} {
			if errors.Is(err, target) != slices.Contains(matches, target) {
				t.Errorf("after %v: %v; does it match %v?", last, err, target)
			}
		}
		if !errors.Is(err, context.Canceled) || !errors.Is(err, lock.ErrLost) || !errors.As(err, &path) || strings.Count(err.Error(), other.Error()) != 1 {
			t.Errorf("%v does not match the cause", err)
		}
	}
}

// overdue is a context whose deadline has passed, by a clock that was set forward since.
type overdue struct{ context.Context }

func (overdue) Deadline() (time.Time, bool) { return time.Now().Add(-time.Hour), true }

// A context whose deadline has passed is awaited until it is canceled, but for at most a second. Any other is not awaited.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(3*time.Second/2, cancel)
		for _, c := range []struct {
			ctx  context.Context
			want time.Duration
		}{{ctx, 0}, {overdue{ctx}, time.Second}, {overdue{ctx}, time.Second / 2}} {
			start := time.Now()
			if Settle(c.ctx); time.Since(start) != c.want {
				t.Errorf("waited %v, want %v", time.Since(start), c.want)
			}
		}
	})
}

// A caller's context is canceled before a reply arrives. The error is the context's, not
// ErrUnavailable.
func TestFailed_canceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(one, Config{Timeout: timeout})
		const text = "no reply from Redis after 2s"
		for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
			ctx, cancel := context.WithCancel(t.Context())
			if cause == context.DeadlineExceeded {
				ctx, cancel = context.WithTimeout(t.Context(), time.Second)
			}
			sent := time.Now()
			if err := s.Failed(ctx, sent, nil); err != nil {
				t.Errorf("without an error: %v", err)
			}
			time.Sleep(2 * time.Second)
			cancel()
			err := s.Failed(ctx, sent, ctx.Err())
			if errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, cause) || err.Error() != cause.Error()+": "+text {
				t.Errorf("%v, and the call ended by %v", err, cause)
			}
			if again := s.Explain(err); again != err {
				t.Errorf("%v becomes %v", err, again)
			}
			if err := s.Failed(ctx, time.Now(), ctx.Err()); err == nil || !strings.HasSuffix(err.Error(), "after 1ns") {
				t.Errorf("%v, and it was sent just now", err)
			}
			if err := s.Failed(ctx, sent, Final{io.EOF}); errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, io.EOF) {
				t.Errorf("got %v, although the server replied", err)
			}
		}
		if err := s.Failed(t.Context(), time.Now(), NoReply{After: timeout}); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("%v, and the command was overdue", err)
		}
	})
}

// The error of an unavailable server reports whether the server replied, the longest known duration,
// and the last error once, however often it is wrapped. A context error is not included.
func TestUnavailable(t *testing.T) {
	s := New(one, Config{Timeout: timeout})
	behindSentinel := New(fixedNodes{mode: rueidis.ClientModeSentinel, addrs: one.addrs}, Config{Timeout: timeout}) // it finds the new primary itself
	for d, want := range map[time.Duration]string{
		2345 * time.Millisecond: "2.3s", time.Second: "1s", 999_940 * time.Microsecond: "999.9ms", time.Millisecond: "1ms", 1500 * time.Nanosecond: "1.5µs",
	} {
		if got := Brief(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
	if err := New(fixedNodes{mode: rueidis.ClientModeCluster}, Config{}).Unavailable(0, nil); err.Error() != "Redis does not respond" {
		t.Errorf("of a cluster: %v", err)
	}
	if !errors.Is(NoReply{}, os.ErrDeadlineExceeded) || errors.Is(NoReply{}, context.DeadlineExceeded) {
		t.Error("NoReply is not a time-out of a connection")
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{s.Unavailable(0, NoReply{After: timeout, before: refusal(t, "BUSY x")}), " has not responded for 3s: BUSY x"},
		{s.Unavailable(0, nil), " does not respond"},
		{s.Unavailable(time.Second, nil), " has not responded for 1s"},
		{s.Unavailable(time.Second, context.Canceled), " has not responded for 1s"},
		{s.Unavailable(time.Second, context.DeadlineExceeded), " has not responded for 1s"},
		{s.Unavailable(0, NoReply{After: timeout}), " has not responded for 3s"},
		{s.Unavailable(4*time.Second, NoReply{After: timeout}), " has not responded for 4s"},
		{s.Unavailable(0, io.EOF), " does not respond: EOF"},
		{s.Unavailable(time.Second, fmt.Errorf("wrapped: %w", s.Unavailable(0, io.EOF))), " has not responded for 1s: EOF"},
		{s.Unavailable(0, NoReply{After: timeout, before: io.EOF}), " has not responded for 3s: EOF"},
		{s.Explain(refusal(t, "NOREPLICAS Not enough")), " cannot serve this now: NOREPLICAS Not enough"},
		{s.Explain(refusal(t, "READONLY You can't write")), " cannot serve this now: server is a read-only replica; connect to the primary, or via Sentinel (?master_set=NAME): READONLY You can't write"},
		{behindSentinel.Explain(refusal(t, "READONLY You can't write")), " cannot serve this now: server is a read-only replica: READONLY You can't write"},
		{s.Unavailable(time.Second, refusal(t, "LOADING Redis is loading")), " has been unable to serve this for 1s: LOADING Redis is loading"},
		{s.Unavailable(0, NoReply{After: timeout, before: refusal(t, "LOADING Redis is loading")}), " has not responded for 3s: LOADING Redis is loading"},
	} {
		if want := "Redis at a:1" + c.want; c.err.Error() != want {
			t.Errorf("%q, and not %q", c.err, want)
		}
		for _, err := range c.err.(interface{ Unwrap() []error }).Unwrap() {
			if err == nil || err == context.Canceled || err == context.DeadlineExceeded {
				t.Errorf("%q has %v inside", c.err, err)
			}
		}
		if !errors.Is(c.err, lock.ErrUnavailable) {
			t.Errorf("%v is not ErrUnavailable", c.err)
		}
	}
}

// A call with little time retries if that may help. A replica stays read-only unless Sentinel or a
// cluster names the new master.
func TestMayPass(t *testing.T) {
	readOnly, loading, full := refusal(t, "READONLY You can't write"), refusal(t, "LOADING Redis is loading"), refusal(t, "OOM command not allowed")
	for _, mode := range []rueidis.ClientMode{rueidis.ClientModeStandalone, rueidis.ClientModeSentinel, rueidis.ClientModeCluster} {
		s := New(fixedNodes{mode: mode}, Config{})
		if s.MayPass(readOnly) == (mode == rueidis.ClientModeStandalone) || !s.MayPass(loading) || !s.MayPass(io.EOF) || s.MayPass(full) {
			t.Errorf("mode %v: a replica %t, loading %t, a break %t, a full server %t", mode, s.MayPass(readOnly), s.MayPass(loading), s.MayPass(io.EOF), s.MayPass(full))
		}
	}
	for err, want := range map[error]bool{readOnly: true, loading: false, io.EOF: false} {
		if IsReadOnly(err) != want {
			t.Errorf("%v: of a replica: %t", err, !want)
		}
	}
}

// The verdict Foreign becomes a final error. Other verdicts do not, and an existing error stays
// unchanged.
func TestForeign_verdict(t *testing.T) {
	for _, c := range []struct {
		verdict luascripts.Verdict
		err     error
		want    error
	}{
		{luascripts.Done, nil, nil},
		{luascripts.Foreign, nil, Final{lock.ErrWrongType}},
		{luascripts.Foreign, io.EOF, io.EOF},
		{luascripts.Done, io.EOF, io.EOF},
	} {
		if got := Foreign(c.verdict, c.err); got != c.want {
			t.Errorf("%v, %v: %v, and not %v", c.verdict, c.err, got, c.want)
		}
	}
}

// The error for a key of the wrong type describes what the key holds. If the key is gone, the
// server denies the query, or the caller has left, the error is unchanged.
func TestForeign_namesTheContent(t *testing.T) {
	m := redistest.NewMini(t)
	_, _ = m.Lpush("list", "x")
	_ = m.Set("string", "x")
	_ = m.Set("number", "-3")
	for key, field := range map[string]string{
		"fair":     "0191b6c0-1234-7abc-8def-0123456789ab:01800000000000000001",
		"plain":    "0191b6c0-1234-7abc-8def-0123456789ab:001800000000000000002",
		"redisson": "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1",
		"rw":       "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1:write",
		"hash":     "secret",
	} {
		m.HSet(key, field, "1")
	}
	m.HSet("plain", luascripts.QueueField, "0 0|")
	m.HSet("rw", "mode", "write")
	m.HSet("reads", "mode", "read")
	m.HSet("odd mode", "mode", "x")
	m.HSet("only mode read", "x", "read")
	m.HSet("no count", "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1", "x")
	m.HSet("queue", luascripts.QueueField, "0 0|")
	_, _ = m.SetAdd("set", "x")
	_, _ = m.ZAdd("zset", 1, "x")
	rdb := m.Client(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	foreign := Final{lock.ErrWrongType}
	for _, c := range []struct {
		ctx     context.Context
		key     string
		err     error
		refuses string
		want    string // "" if the error is unchanged
	}{
		{t.Context(), "list", foreign, "", "a list"},
		{t.Context(), "string", foreign, "", "redislock"},
		{t.Context(), "number", foreign, "", "a number, as semaphores"},
		{t.Context(), "fair", foreign, "", ": a fair lock"},
		{t.Context(), "plain", foreign, "", ": a plain lock"},
		{t.Context(), "redisson", foreign, "", "a plain or a fair lock"},
		{t.Context(), "rw", foreign, "", "a read/write lock"},
		{t.Context(), "hash", foreign, "", "a hash that is not a lock"},
		{t.Context(), "reads", foreign, "", "a read/write lock"},
		{t.Context(), "odd mode", foreign, "", "a hash that is not a lock"},
		{t.Context(), "only mode read", foreign, "", "a hash that is not a lock"},
		{t.Context(), "no count", foreign, "", "a hash that is not a lock"},
		{t.Context(), "queue", foreign, "", "a hash that is not a lock"},
		{t.Context(), "set", foreign, "", "a set"},
		{t.Context(), "zset", foreign, "", "a sorted set"},
		{t.Context(), "gone", foreign, "", ""},
		{t.Context(), "list", foreign, "NOPERM no", ""},
		{t.Context(), "list", io.EOF, "", ""},
		{t.Context(), "list", nil, "", ""},
		{ended, "list", foreign, "", ""},
	} {
		m.SetError(c.refuses)
		counting := &countingClient{Client: rdb}
		s := New(counting, Config{Timeout: time.Minute})
		err := s.Foreign(c.ctx, c.err, Key{Name: c.key})
		s.Shut()
		s.Wait()
		if c.want == "" && err != c.err || c.want != "" && (!errors.Is(err, lock.ErrWrongType) || retry.FaultOf(err).Temporary || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q, %v: %v", c.key, c.err, err)
		}
		if queried := c.err == foreign && c.ctx != ended; counting.times.Load() > 0 != queried {
			t.Errorf("%q, %v: got %d queries", c.key, c.err, counting.times.Load())
		}
	}
}

// Of several keys, the error names the first one with an unexpected type. If the types are as expected,
// it names the first key that exists.
func TestForeign_namesTheKey(t *testing.T) {
	m := redistest.NewMini(t)
	_, _ = m.Lpush("list", "x")
	_ = m.Set("string", "x")
	s := New(m.Client(t), Config{Timeout: time.Minute})
	defer s.Wait()
	defer s.Shut()
	for _, c := range []struct {
		keys []Key
		want string
	}{
		{[]Key{{"gone", "hash"}, {"string", "string"}, {"list", "zset"}}, `: "list" is a list`},
		{[]Key{{"list", "hash"}, {"string", "list"}}, `: "list" is a list`},
		{[]Key{{"gone", "hash"}, {"string", "string"}, {"list", "list"}}, `: "string" is a string, as the locks of redsync and redislock are`},
		{[]Key{{"gone", "hash"}, {"nor this", "string"}}, ""},
	} {
		if err := s.Foreign(t.Context(), Final{lock.ErrWrongType}, c.keys...); err.Error() != lock.ErrWrongType.Error()+c.want {
			t.Errorf("%q: %v, want %q", c.keys, err, c.want)
		}
	}
}

// Only an error of a client that may be closed sends another command.
func TestDetectClosed_onePing(t *testing.T) {
	for _, c := range []struct {
		err   error
		pings int64
	}{{nil, 0}, {io.EOF, 0}, {rueidis.ErrClosing, 1}} {
		rdb := &countingClient{Client: redistest.NewMini(t).Client(t)}
		if got := DetectClosed(t.Context(), rdb, c.err); got != c.err {
			t.Errorf("%v becomes %v", c.err, got)
		}
		if pings := rdb.times.Load(); pings != c.pings {
			t.Errorf("%v: got %d PINGs", c.err, pings)
		}
	}
}

// A server repeats the arguments of an unknown command. The owner string among them is in no error
// that callers get.
func TestExplain_hidesOwners(t *testing.T) {
	err := New(one, Config{}).Explain(refusal(t, "ERR unknown command 'EVALSHA', with args beginning with: 'owner'"))
	if strings.Contains(err.Error(), "owner") || !strings.Contains(err.Error(), "unknown command 'EVALSHA'") || retry.FaultOf(err).Temporary {
		t.Errorf("%v is %+v", err, retry.FaultOf(err))
	}
}

// A script calls a command that its user lacks the permission for. Whatever the server's version
// replies, the error contains advice.
func TestExplain_deniedInAScript(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	if err := admin.Do(t.Context(), admin.B().Arbitrary("ACL", "SETUSER", "default", "-hset").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	rdb := s.Client(t)
	err := rdb.Do(t.Context(), rdb.B().Eval().Script("return redis.call('HSET', KEYS[1], 'a', 1)").Numkeys(1).Key("k").Build()).Error()
	if !Refused(err) {
		t.Fatalf("%v", err)
	}
	if err := New(rdb, Config{Timeout: time.Second}).Explain(err); !strings.Contains(err.Error(), "docs/operate/security.md") {
		t.Errorf("no advice: %v", err)
	}
}

// failoverClient is a client whose connections rueidis closes until a command has failed, as a Sentinel
// client's when another server was promoted.
type failoverClient struct {
	rueidis.Client
	old rueidis.Client // nil once a command has failed
}

func (s *failoverClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if old := s.old; old != nil {
		s.old = nil
		return old.Do(ctx, cmd)
	}
	return s.Client.Do(ctx, cmd)
}

// rueidis closes a connection when another server was promoted, with the same error as for a closed
// client. Only a closed client ends a call.
func TestDetectClosed(t *testing.T) {
	m := redistest.NewMini(t)
	closed := m.Client(t)
	closed.Close()
	for _, what := range []string{"alone", "together"} {
		for _, rdb := range []rueidis.Client{&failoverClient{m.Client(t), closed}, closed} {
			get := func(ctx context.Context) (string, error) {
				return rdb.Do(ctx, rdb.B().Get().Key("k").Build()).ToString()
			}
			s := New(rdb, Config{Timeout: timeout})
			s.change = func(_ context.Context, _ rueidis.CoreClient, changes []*luascripts.Change, _ int) {
				_, changes[0].Err = get(context.Background())
			}
			var err error
			if what == "together" {
				_, _, err = sendCounted(t.Context(), s, timeout, step{})
			} else {
				err = Send[string](t.Context(), s, timeout, Func[string](get)).Err
			}
			want := retry.Fault{Temporary: true, Is: lock.ErrUnavailable}
			if rdb == closed {
				want = retry.Fault{Is: lock.ErrClosed}
			}
			if !errors.Is(err, rueidis.ErrClosing) || retry.FaultOf(err) != want {
				t.Errorf("%s: %v is %+v, want %+v", what, err, retry.FaultOf(err), want)
			}
			s.Shut()
			s.Wait()
		}
	}
}

// pingCounter counts the commands sent with a closed client.
type pingCounter struct {
	rueidis.Client
	times int
}

func (a *pingCounter) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	a.times++
	if _, ok := ctx.Deadline(); !ok {
		panic("the whole batch waits for this without a timeout")
	}
	return a.Client.Do(ctx, cmd)
}

// For a batch the sender sends one PING, with a timeout. Changes with a reply keep it.
func TestDetectClosed_batch(t *testing.T) {
	rdb := &pingCounter{Client: redistest.NewMini(t).Client(t)}
	rdb.Close()
	s := New(rdb, Config{Timeout: timeout})
	changes := []*luascripts.Change{{}, {Err: rueidis.ErrClosing}, {Err: io.EOF}, {Err: rueidis.ErrClosing}}
	s.change = func(context.Context, rueidis.CoreClient, []*luascripts.Change, int) {}
	s.exec(changes)
	for i, want := range []bool{false, true, false, true} {
		if got := errors.As(changes[i].Err, new(retry.Closed)); got != want {
			t.Errorf("change %d: %v", i, changes[i].Err)
		}
	}
	if rdb.times != 1 {
		t.Errorf("got %d PINGs, want 1", rdb.times)
	}
}

// Errors that need an operator are refusals: the server does not accept the user, or the user lacks
// a permission. No other error is one.
func TestRefused(t *testing.T) {
	denied := refusal(t, "NOPERM no")
	for _, c := range []struct{ addr, user, want string }{
		{"", "", "Redis: NOPERM no ("}, {"a:1", "", "Redis at a:1: NOPERM no ("}, {"a:1", "me", `Redis at a:1, user "me": NOPERM no (`},
	} {
		if err := Refusal(c.addr, c.user, denied); !errors.Is(err, denied) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	for text, want := range map[string]bool{
		"NOAUTH Authentication required.":                                                     true,
		"WRONGPASS invalid username-password pair":                                            true,
		"NOPERM User x has no permissions to run the 'hset' command":                          true,
		"ERR The user executing the script can't run this command or subcommand script: 14fa": true,
		"LOADING Redis is loading the dataset in memory":                                      false,
		"OOM command not allowed when used memory > 'maxmemory'.":                             false,
		"ERR syntax error": false,
	} {
		if got := Refused(refusal(t, text)); got != want {
			t.Errorf("%q: refused %t", text, got)
		}
	}
	for text, want := range map[string]bool{
		"NOPERM No permissions to access a key":                                               true,
		"NOPERM this user has no permissions to access one of the keys used as arguments":     true,
		"NOPERM User a key has no permissions to run the 'hset' command":                      false,
		"NOPERM No permissions to access a channel":                                           false,
		"NOPERM this user has no permissions to access one of the channels used, the keys ok": false,
		"ERR a key": false,
	} {
		if got := RefusedKey(refusal(t, text)); got != want {
			t.Errorf("%q: refused the key %t", text, got)
		}
	}
	if Refused(nil) || Refused(io.EOF) || RefusedKey(nil) {
		t.Error("got a refusal without an error")
	}
}

// due is a context that is not canceled, with its own deadline.
type due struct {
	context.Context
	deadline time.Time
}

func (d due) Deadline() (time.Time, bool) { return d.deadline, true }

// rueidis can report that the deadline of a context has passed before the context's own timer fires.
func TestOver(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		want bool
	}{
		{"no deadline", context.Background(), false},
		{"canceled", canceled, true},
		{"before the deadline", due{context.Background(), time.Now().Add(time.Hour)}, false},
		{"deadline passed, timer late", due{context.Background(), time.Now().Add(-time.Hour)}, true},
	} {
		if got := Over(c.ctx); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}
