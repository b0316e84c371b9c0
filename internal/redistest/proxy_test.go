package redistest_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// oneConn makes a client use one connection, so that its commands are executed in order.
func oneConn(o *rueidis.ClientOption) {
	o.PipelineMultiplex = -1
	o.AlwaysPipelining = true
}

func incr(ctx context.Context, c rueidis.Client) (int64, error) {
	return c.Do(ctx, c.B().Incr().Key("n").Build()).AsInt64()
}

// showsIncr makes a client send to sent when it writes an INCR.
func showsIncr(sent chan<- struct{}) func(*rueidis.ClientOption) {
	return func(o *rueidis.ClientOption) {
		o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := d.DialContext(ctx, "tcp", addr)
			return &redistest.Written{Conn: conn, See: func(req [][]byte) {
				if string(req[0]) == "INCR" {
					select {
					case sent <- struct{}{}:
					default:
					}
				}
			}}, err
		}
	}
}

// incrCanceled cancels an INCR that was written, and returns its error.
func incrCanceled(t *testing.T, c rueidis.Client, sent <-chan struct{}) error {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := incr(ctx, c)
		failed <- err
	}()
	<-sent
	cancel()
	return <-failed
}

// executed returns how many INCRs the server has executed.
func executed(t *testing.T, s *redistest.Server) int64 {
	t.Helper()
	msg := s.Do(t, "GET", "n")
	if msg.IsNil() {
		return 0
	}
	n, err := msg.AsInt64()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestProxy_dropReply(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	c := s.Client(t, redistest.Via(p))
	p.OnRequest(redistest.Once("INCR", redistest.Action{DropReply: true}))

	if n, err := incr(t.Context(), c); err == nil {
		t.Errorf("INCR whose reply was dropped: %d, want an error", n)
	}
	if got := executed(t, s); got != 1 {
		t.Errorf("executed %d times, want 1: only the reply is lost", got)
	}
	if n, err := incr(t.Context(), c); err != nil || n != 2 {
		t.Errorf("next INCR: %d, %v, want 2", n, err)
	}
}

func TestProxy_dropRequest(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	c := s.Client(t, redistest.Via(p))
	p.OnRequest(redistest.Once("INCR", redistest.Action{DropRequest: true}))

	if n, err := incr(t.Context(), c); err == nil {
		t.Errorf("INCR that was dropped: %d, want an error", n)
	}
	if got := executed(t, s); got != 0 {
		t.Errorf("executed %d times, want 0", got)
	}
	if n, err := incr(t.Context(), c); err != nil || n != 1 {
		t.Errorf("next INCR: %d, %v, want 1", n, err)
	}
}

// 1: an INCR is held on its way to the server. 2: the server has not received it. 3: it is released. 4: the reply to
// the next one is held. 5: the server has executed it; the client has no reply.
func TestProxy_hold(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	c := s.Client(t, redistest.Via(p))

	there, back := make(chan struct{}), make(chan struct{})
	seen := make(chan struct{}, 1)
	holdAll := func(a redistest.Action) func([][]byte) redistest.Action {
		return func(req [][]byte) redistest.Action {
			if string(req[0]) != "INCR" {
				return redistest.Action{}
			}
			seen <- struct{}{}
			return a
		}
	}
	replies := make(chan int64, 1)
	send := func() {
		n, err := incr(context.Background(), c)
		if err != nil {
			t.Errorf("INCR: %v", err)
		}
		replies <- n
	}

	p.OnRequest(holdAll(redistest.Action{HoldRequest: there})) // 1
	go send()
	<-seen
	if got := executed(t, s); got != 0 { // 2
		t.Errorf("executed %d times while held, want 0", got)
	}
	close(there) // 3
	if got := <-replies; got != 1 {
		t.Errorf("INCR: %d, want 1", got)
	}

	p.OnRequest(holdAll(redistest.Action{HoldReply: back})) // 4
	go send()
	<-seen
	for executed(t, s) != 2 { // 5; the test's own timeout ends it
		time.Sleep(time.Millisecond)
	}
	select {
	case n := <-replies:
		t.Errorf("INCR returned %d, but its reply is held", n)
	default:
	}
	close(back)
	if got := <-replies; got != 2 {
		t.Errorf("INCR: %d, want 2", got)
	}
}

func TestProxy_delay(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	c := s.Client(t, redistest.Via(p))
	const d = 20 * time.Millisecond
	for _, a := range []redistest.Action{{DelayRequest: d}, {DelayReply: d}} {
		p.OnRequest(redistest.Once("INCR", a))
		start := time.Now()
		if _, err := incr(t.Context(), c); err != nil {
			t.Errorf("%+v: %v", a, err)
		}
		if took := time.Since(start); took < d {
			t.Errorf("%+v: took %v", a, took)
		}
	}
	if got := executed(t, s); got != 2 {
		t.Errorf("executed %d times, want 2", got)
	}
}

func TestProxy_cutAndRefuse(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	// Without retries, so that every failure is visible.
	c := s.Client(t, redistest.Via(p), oneConn, func(o *rueidis.ClientOption) { o.DisableRetry = true })
	if n, err := incr(t.Context(), c); err != nil || n != 1 {
		t.Fatalf("INCR: %d, %v, want 1", n, err)
	}

	// A waiting call fails when its connection is cut permanently.
	p.OnRequest(redistest.Once("INCR", redistest.Action{HoldRequest: make(chan struct{})}))
	failed := make(chan error)
	go func() {
		_, err := incr(context.Background(), c)
		failed <- err
	}()
	p.Refuse(true)
	p.CutAll()
	if err := <-failed; err == nil {
		t.Error("INCR over a cut wire: no error")
	}
	if _, err := incr(t.Context(), c); err == nil {
		t.Error("INCR while the proxy refuses: no error")
	}
	p.OnRequest(nil)
	p.Refuse(false)
	// The client may detect only now that the old connection is gone.
	n, err := incr(t.Context(), c)
	if err != nil {
		n, err = incr(t.Context(), c)
	}
	if err != nil || n != 2 {
		t.Errorf("INCR after Refuse(false): %d, %v, want 2: none of the failed ones was executed", n, err)
	}
}

// A frozen connection transfers nothing in either direction, not even that a side was closed.
func TestProxy_freeze(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	sent := make(chan struct{}, 1)
	c := s.Client(t, redistest.Via(p), oneConn, showsIncr(sent))
	if n, err := incr(t.Context(), c); err != nil || n != 1 {
		t.Fatalf("INCR: %d, %v, want 1", n, err)
	}
	<-sent

	p.Freeze(true)
	p.Freeze(true) // a second call does nothing
	if err := incrCanceled(t, c, sent); !errors.Is(err, context.Canceled) {
		t.Errorf("INCR over a frozen wire: %v, want %v", err, context.Canceled)
	}
	if got := executed(t, s); got != 1 {
		t.Errorf("executed %d times, want 1: the second is on the wire", got)
	}
	p.Freeze(false)
	if n, err := incr(t.Context(), c); err != nil || n != 3 {
		t.Errorf("INCR: %d, %v, want 3: the second one arrives late", n, err)
	}
}

func TestProxy_freezeHidesTheEnd(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	w := dialWire(t, p)
	w.send("PING")
	w.want("+PONG\r\n")

	p.Freeze(true)
	s.Kill(t)
	if err := w.SetReadDeadline(time.Now().Add(30 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.r.ReadByte(); !isTimeout(err) {
		t.Errorf("read from a frozen wire to a killed server: %v, want a timeout", err)
	}
	if err := w.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	p.Freeze(false)
	if _, err := w.r.ReadByte(); err == nil || isTimeout(err) {
		t.Errorf("read after the thaw: %v, want the end of the connection", err)
	}
}

// Replies are matched to their requests among push frames and confirmations, with both versions of the protocol:
// otherwise the reply of a command other than the INCR would be dropped, and the bytes before the end would differ.
func TestProxy_matchesReplies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		send []string // one line, one request
		want string   // all that arrives before the connection ends
	}{
		{
			name: "plain",
			send: []string{"SET k v", "GET k", "GET none", "INCR n", "GET k"},
			want: "+OK\r\n$1\r\nv\r\n$-1\r\n",
		},
		{
			name: "RESP3 subscriptions",
			send: []string{"HELLO 3", "SUBSCRIBE a b", "PING", "PSUBSCRIBE c", "UNSUBSCRIBE", "PING", "UNSUBSCRIBE", "INCR n", "PING"},
			want: "HELLO" +
				">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n" +
				">3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n" +
				"+PONG\r\n" +
				">3\r\n$10\r\npsubscribe\r\n$1\r\nc\r\n:3\r\n" +
				">3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:2\r\n" +
				">3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:1\r\n" +
				"+PONG\r\n" +
				">3\r\n$11\r\nunsubscribe\r\n_\r\n:1\r\n",
		},
		{
			name: "RESP2 subscriptions",
			send: []string{"SUBSCRIBE a b", "PING", "UNSUBSCRIBE", "RPUSH l message x y", "LRANGE l 0 -1", "INCR n", "PING"},
			want: "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n" +
				"*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n" +
				"*2\r\n$4\r\npong\r\n$0\r\n\r\n" +
				"*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:1\r\n" +
				"*3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:0\r\n" +
				":3\r\n*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\ny\r\n",
		},
		{
			name: "a refused subscription",
			send: []string{"ACL SETUSER u on nopass +@all ~* resetchannels", "AUTH u p", "SUBSCRIBE a b", "INCR n", "PING"},
			want: "+OK\r\n+OK\r\n-NOPERM\r\n",
		},
		{
			name: "nested replies",
			send: []string{"EVAL return{1,{'two',{3}},false,'message'} 0", "MULTI", "GET k", "EXEC", "INCR n", "PING"},
			want: "*4\r\n:1\r\n*2\r\n$3\r\ntwo\r\n*1\r\n:3\r\n$-1\r\n$7\r\nmessage\r\n+OK\r\n+QUEUED\r\n*1\r\n$-1\r\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			p := redistest.NewProxy(t, s.Addr())
			p.OnRequest(redistest.Once("INCR", redistest.Action{DropReply: true}))
			w := dialWire(t, p)
			w.send(tt.send...)
			got, err := io.ReadAll(w.r)
			if err != nil {
				t.Errorf("read: %v", err)
			}
			want := tt.want
			if after, ok := strings.CutPrefix(want, "HELLO"); ok { // it differs between versions
				got, want = got[max(0, bytes.Index(got, []byte(">3\r\n"))):], after
			}
			got = regexp.MustCompile(`-NOPERM[^\r]*`).ReplaceAll(got, []byte("-NOPERM")) // its text differs, too
			// UNSUBSCRIBE processes the channels in any order.
			anyOrder := strings.NewReplacer("\r\nb\r\n:", "\r\na\r\n:")
			if anyOrder.Replace(string(got)) != anyOrder.Replace(want) {
				t.Errorf("before the dropped reply arrived\n%q\nwant\n%q", got, want)
			}
			if got := executed(t, s); got != 1 {
				t.Errorf("executed %d times, want 1", got)
			}
		})
	}
}

// With RESP2, a message looks like a reply. A message that arrives while a reply is held must not be mistaken for the
// reply.
func TestProxy_messageIsNotAReply(t *testing.T) {
	t.Parallel()
	for _, proto := range []string{"2", "3"} {
		t.Run("RESP"+proto, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			p := redistest.NewProxy(t, s.Addr())
			p.OnRequest(redistest.Once("PING", redistest.Action{DropReply: true}))
			w := dialWire(t, p)
			w.send("HELLO "+proto, "SUBSCRIBE a")
			for w.frame()[1] != '3' { // HELLO's own reply, and then "*3" or ">3"
			}
			s.Do(t, "PUBLISH", "a", "x")
			if got := w.frame(); !strings.Contains(got, "message") {
				t.Errorf("got %q, want the message", got)
			}
			w.send("PING")
			if rest, err := io.ReadAll(w.r); len(rest) > 0 || err != nil {
				t.Errorf("after the message: %q, %v, want the end: PING's reply was to be dropped", rest, err)
			}
		})
	}
}

// Lost messages do not affect the connection, its replies or its other messages.
func TestProxy_loseMessages(t *testing.T) {
	t.Parallel()
	for _, proto := range []string{"2", "3"} {
		t.Run("RESP"+proto, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			p := redistest.NewProxy(t, s.Addr())
			var seen atomic.Int64
			p.OnMessage(func() bool { return seen.Add(1) == 2 })
			w := dialWire(t, p)
			w.send("HELLO "+proto, "SUBSCRIBE a")
			for w.frame()[1] != '3' { // HELLO's own reply, and then "*3" or ">3"
			}
			for _, text := range []string{"one", "two", "three"} {
				s.Do(t, "PUBLISH", "a", text)
			}
			w.send("PING")
			for _, want := range []string{"one", "three"} {
				if got := w.frame(); !strings.Contains(got, want) {
					t.Errorf("got %q, want the message %s", got, want)
				}
			}
			if got := w.frame(); !strings.Contains(strings.ToUpper(got), "PONG") {
				t.Errorf("got %q, want the reply to PING", got)
			}
			if n := seen.Load(); n != 3 {
				t.Errorf("%d messages were seen, want 3", n)
			}
		})
	}
}

// The proxy leaves all RESP types unchanged, and counts one reply as one.
func TestProxy_frames(t *testing.T) {
	t.Parallel()
	frames := []string{
		"+OK\r\n", "-ERR no\r\n", ":-7\r\n", "$0\r\n\r\n", "$-1\r\n", "$4\r\n\r\n\r\n\r\n", "*0\r\n", "*-1\r\n",
		"*2\r\n*2\r\n:1\r\n$1\r\na\r\n+b\r\n",
		"_\r\n", ",1.5\r\n", ",inf\r\n", "#t\r\n", "(3492890328409238509324850943850943825024385\r\n",
		"!5\r\nERR a\r\n", "=8\r\ntxt:a\r\nb\r\n",
		"%2\r\n+a\r\n:1\r\n+b\r\n%1\r\n+c\r\n_\r\n", "~2\r\n:1\r\n:2\r\n",
		"|1\r\n+ttl\r\n:3600\r\n:1\r\n", "*1\r\n|1\r\n+ttl\r\n:3600\r\n:1\r\n",
		"$70000\r\n" + strings.Repeat("x", 70000) + "\r\n",
		"+" + strings.Repeat("x", 70000) + "\r\n",
	}
	push := ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"

	upstream := fakeServer(t, func(c net.Conn, r *bufio.Reader) {
		for _, f := range frames {
			var req bytes.Buffer
			if err := redistest.ReadFrame(r, &req); err != nil {
				t.Errorf("upstream: %v", err)
				return
			}
			if _, err := io.WriteString(c, push+f); err != nil {
				t.Errorf("upstream: %v", err)
				return
			}
		}
		_, _ = r.ReadByte() // until the proxy hangs up
	})
	p := redistest.NewProxy(t, upstream)
	calls := 0 // only one connection is used
	p.OnRequest(func([][]byte) redistest.Action {
		calls++
		return redistest.Action{DropReply: calls == len(frames)}
	})
	w := dialWire(t, p)
	for range frames {
		w.send("PING")
	}
	got, err := io.ReadAll(w.r)
	if err != nil {
		t.Errorf("read: %v", err)
	}
	want := push + strings.Join(frames[:len(frames)-1], push) + push // the last one is dropped
	if string(got) != want {
		t.Errorf("arrived\n%.2000q\nwant\n%.2000q", got, want)
	}
}

// Invalid RESP ends the connection and nothing else.
func TestProxy_notRESP(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	for _, in := range []string{"PING\r\n", "*0\r\n", "*1\r\n:1\r\n", "*1\r\n$-1\r\n", "$4\r\nPING\r\n", "\n", "*x\r\n"} {
		w := dialWire(t, p)
		if _, err := io.WriteString(w, in); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(w.r); len(got) > 0 || isTimeout(err) {
			t.Errorf("%q: %q, %v, want the end of the connection", in, got, err)
		}
	}
	w := dialWire(t, p)
	w.send("PING")
	w.want("+PONG\r\n")
}

func TestProxy_noUpstream(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Kill(t)
	w := dialWire(t, redistest.NewProxy(t, s.Addr()))
	if _, err := w.r.ReadByte(); err == nil || isTimeout(err) {
		t.Errorf("a proxy to a killed server: %v, want the end of the connection", err)
	}
}

// FuzzReadFrame checks that a frame is exactly a prefix of the input.
func FuzzReadFrame(f *testing.F) {
	for _, s := range []string{"+OK\r\n", "$3\r\nabc\r\n:1\r\n", "*2\r\n:1\r\n$-1\r\n", "|1\r\n+a\r\n:1\r\n_\r\n", ">1\r\n+a\r\n", "%1\r\n+a\r\n#t\r\n", "$536870912\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		src := bytes.NewReader(in)
		r := bufio.NewReader(src)
		var raw bytes.Buffer
		if err := redistest.ReadFrame(r, &raw); err != nil {
			return
		}
		rest, _ := io.ReadAll(r)
		if got := slices.Concat(raw.Bytes(), rest); !bytes.Equal(got, in) {
			t.Errorf("frame %q and rest %q, of %q", raw.Bytes(), rest, in)
		}
	})
}

// wire is a connection that sends and receives bytes.
type wire struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func dialWire(t *testing.T, p *redistest.Proxy) *wire {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return &wire{Conn: c, t: t, r: bufio.NewReader(c)}
}

// send sends one request per line, in a single write.
func (w *wire) send(lines ...string) {
	w.t.Helper()
	var b strings.Builder
	for _, line := range lines {
		parts := strings.Split(line, " ")
		b.WriteString("*" + strconv.Itoa(len(parts)) + "\r\n")
		for _, part := range parts {
			b.WriteString("$" + strconv.Itoa(len(part)) + "\r\n" + part + "\r\n")
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) frame() string {
	w.t.Helper()
	var b bytes.Buffer
	if err := redistest.ReadFrame(w.r, &b); err != nil {
		w.t.Fatal(err)
	}
	return b.String()
}

func (w *wire) want(frame string) {
	w.t.Helper()
	if got := w.frame(); got != frame {
		w.t.Fatalf("got %q, want %q", got, frame)
	}
}

// fakeServer listens for one connection, and returns its address.
func fakeServer(t *testing.T, serve func(net.Conn, *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		serve(c, bufio.NewReader(c))
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String()
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// The replies of refused requests come in the right order among those of others, and refused requests are executed only
// if Execute is set.
func TestProxy_refuse(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	c := s.Client(t, redistest.Via(p), oneConn)
	const refusal = "LOADING Redis is loading"
	for execute, want := range map[bool]string{false: "", true: "refused"} {
		p.OnRequest(func(req [][]byte) redistest.Action {
			if string(req[len(req)-1]) != "refused" {
				return redistest.Action{}
			}
			return redistest.Action{Refuse: refusal, Execute: execute}
		})
		s.Do(t, "DEL", "a", "b", "c")
		replies := c.DoMulti(t.Context(),
			c.B().Set().Key("a").Value("first").Build(),
			c.B().Set().Key("b").Value("refused").Build(),
			c.B().Set().Key("c").Value("last").Build())
		for i, want := range []string{"", refusal, ""} {
			err := replies[i].Error()
			if (err == nil) != (want == "") || err != nil && err.Error() != want {
				t.Errorf("execute %t: reply %d: %v, want %q", execute, i, err, want)
			}
		}
		msg := s.Do(t, "GET", "b")
		got, _ := msg.ToString()
		if got != want {
			t.Errorf("execute %t: b is %q, want %q", execute, got, want)
		}
	}
}
