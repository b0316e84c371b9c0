package redistest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// Action is what to do with one request. The zero Action forwards it and delivers its reply. The order on a connection
// is kept, so a request or reply that is held or delayed also delays everything behind it in the same direction.
type Action struct {
	// DropRequest closes the connection instead of forwarding: the server never receives the request. Replies in
	// transit can be lost with it.
	DropRequest bool
	// DropReply forwards, waits for the reply and closes the connection instead of delivering it: the request has been
	// executed by then. Earlier replies are delivered, later ones are lost as well.
	DropReply bool
	// Refuse is an error reply, such as "LOADING x", that the client receives instead of the server's reply. The
	// request is not executed, unless Execute is set.
	Refuse  string
	Execute bool

	DelayRequest time.Duration   // before it is forwarded
	DelayReply   time.Duration   // before it is delivered or dropped
	HoldRequest  <-chan struct{} // not forwarded before this is closed
	HoldReply    <-chan struct{} // not delivered or dropped before this is closed
}

// Once returns a hook for [Proxy.OnRequest] that does a to the first request
// of the command, such as "EVALSHA", and forwards everything else.
func Once(command string, a Action) func(req [][]byte) Action {
	var once sync.Once
	return func(req [][]byte) (act Action) {
		if strings.EqualFold(string(req[0]), command) {
			once.Do(func() { act = a })
		}
		return act
	}
}

// LoseDated makes p apply act to the script calls that have a deadline by the server's clock, which is their last
// argument: to all of them, or to the first. It leaves calls alone that only read the time, which pass 0. words returns
// the words of the first call, for [Server.Do], or nil.
func (p *Proxy) LoseDated(act Action, all bool) (words func() []string) {
	var mu sync.Mutex
	var first []string // guarded by mu
	p.OnRequest(func(req [][]byte) Action {
		mu.Lock()
		defer mu.Unlock()
		if !strings.EqualFold(string(req[0]), "EVALSHA") || string(req[len(req)-1]) == "0" || first != nil && !all {
			return Action{}
		}
		if first == nil {
			for _, word := range req {
				first = append(first, string(word))
			}
		}
		return act
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return first
	}
}

// Via makes a client connect through p to p's server.
func Via(p *Proxy) func(*rueidis.ClientOption) {
	return func(opt *rueidis.ClientOption) {
		if p.listener != nil {
			opt.InitAddress = []string{p.Addr()}
			return
		}
		opt.DialCtxFn = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			return p.Dial()
		}
	}
}

// Proxy is a connection between clients and a server that can fail like a network. It parses RESP2 and RESP3, and
// matches replies to requests. It does not support CLIENT REPLY, MONITOR and replication. It is safe for concurrent
// use.
type Proxy struct {
	dial     func() (net.Conn, error) // set once: connects to the server
	listener net.Listener             // set once; nil if only Dial is used
	wg       sync.WaitGroup           // all goroutines

	// passing is read-locked while bytes are forwarded, so that nothing is in transit when Freeze returns.
	passing sync.RWMutex
	thawed  chan struct{} // guarded by passing: nil unless frozen; closed when thawed

	mu       sync.Mutex
	hook     func(req [][]byte) Action // guarded by mu
	loses    func() bool               // guarded by mu: whether to lose a message; nil loses none
	links    map[*link]struct{}        // guarded by mu
	refuse   bool                      // guarded by mu
	upstream string                    // guarded by mu: the server of a listening proxy
}

// NewProxy listens on a free port of 127.0.0.1 and forwards to upstream, a "host:port". The proxy is closed when tb
// ends.
func NewProxy(tb testing.TB, upstream string) *Proxy {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("redistest: proxy: %v", err)
	}
	p := newProxy(tb, nil)
	p.dial = func() (net.Conn, error) {
		p.mu.Lock()
		upstream := p.upstream
		p.mu.Unlock()
		return net.DialTimeout("tcp", upstream, patience)
	}
	p.upstream, p.listener = upstream, listener
	tb.Cleanup(func() { listener.Close() }) // runs before the Cleanup that waits
	p.wg.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			p.serve(c)
		}
	})
	return p
}

func newProxy(tb testing.TB, dial func() (net.Conn, error)) *Proxy {
	p := &Proxy{dial: dial, links: make(map[*link]struct{})}
	tb.Cleanup(func() {
		p.Refuse(true)
		p.CutAll()
		p.wg.Wait()
	})
	return p
}

// Addr returns the address for clients, "127.0.0.1:port".
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Dial makes a connection through the proxy without a socket.
func (p *Proxy) Dial() (net.Conn, error) {
	near, far := net.Pipe()
	if !p.serve(far) {
		return nil, syscall.ECONNREFUSED
	}
	return near, nil
}

// OnRequest makes f decide about every request from now on; nil forwards all. f receives the words of the request,
// including the connection's own requests: HELLO, CLIENT, PING. It is called on many goroutines, and must not block;
// use [Action.HoldRequest] for that.
func (p *Proxy) OnRequest(f func(req [][]byte) Action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hook = f
}

// OnMessage makes f decide about every Pub/Sub message from now on: messages for which f returns true are silently
// lost, and the connection stays open. If f is nil, all are delivered. f is called on many goroutines.
func (p *Proxy) OnMessage(f func() (lost bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loses = f
}

// decide asks the hook what to do with req. A request from a connection that has been cut in the meantime must not be
// passed to a newly set hook, so decide reads the hook before it checks the connection. It reports whether the
// connection is still there.
func (l *link) decide(req [][]byte) (act Action, ok bool) {
	l.proxy.mu.Lock()
	hook := l.proxy.hook
	l.proxy.mu.Unlock()
	l.mu.Lock()
	isCut := l.isCut
	l.mu.Unlock()
	if isCut || hook == nil {
		return Action{}, !isCut
	}
	return hook(req), true
}

// CutAll closes all current connections, including frozen ones.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Refuse sets whether new connections are closed immediately.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// Redirect makes new connections lead to upstream, a "host:port", like an address that moves to another server.
// Existing connections are unaffected.
func (p *Proxy) Redirect(upstream string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upstream = upstream
}

// Freeze sets whether the proxy holds back everything, in both directions, without closing a connection: neither side
// detects that the other one is gone, or has closed it. After Freeze(true) returns, no data is forwarded; Freeze(false)
// delivers what is waiting. Closing a rueidis client with a frozen connection takes a second.
func (p *Proxy) Freeze(frozen bool) {
	p.passing.Lock()
	defer p.passing.Unlock()
	switch {
	case frozen && p.thawed == nil:
		p.thawed = make(chan struct{})
	case !frozen && p.thawed != nil:
		close(p.thawed)
		p.thawed = nil
	}
}

// serve starts a link for the client's connection, unless connections are refused.
func (p *Proxy) serve(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		c.Close()
		return false
	}
	l := &link{proxy: p, client: c, done: make(chan struct{})}
	p.links[l] = struct{}{}
	p.wg.Go(func() {
		l.run()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
	})
	return true
}

// link is one connection of a client and its counterpart to the server.
type link struct {
	proxy  *Proxy
	client net.Conn
	done   chan struct{} // closed by cut

	mu      sync.Mutex
	server  net.Conn // guarded by mu until run has set it
	isCut   bool     // guarded by mu
	waiting []ask    // guarded by mu: requests forwarded but not answered yet, in order
	resp2   bool     // guarded by mu: subscribed with RESP2, where pushes look like replies
}

// ask is a request without a reply yet.
type ask struct {
	act Action
	// SUBSCRIBE and similar commands have no reply. The server confirms each channel with a push frame that begins with
	// the command's name.
	confirm string
	left    int // confirmations outstanding
}

func (l *link) run() {
	defer l.cut()
	server, err := l.proxy.dial()
	if err != nil {
		return
	}
	l.mu.Lock()
	l.server = server
	if l.isCut {
		server.Close()
	}
	l.mu.Unlock()

	var wg sync.WaitGroup
	wg.Go(l.requests)
	wg.Go(l.replies)
	wg.Wait()
}

// cut closes both sides at once.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut {
		return
	}
	l.isCut = true
	close(l.done)
	l.client.Close()
	if l.server != nil {
		l.server.Close()
	}
}

func (l *link) requests() {
	defer l.hangUp()
	r := bufio.NewReader(l.client)
	for {
		raw, req, err := readRequest(r)
		if err != nil || !l.pass(nil, nil) { // do not call the hook while frozen
			return
		}
		act, ok := l.decide(req)
		if !ok || !l.pause(act.DelayRequest, act.HoldRequest) {
			return
		}
		if act.DropRequest {
			l.cut()
			return
		}
		l.expect(req, act)
		if act.Refuse != "" && !act.Execute {
			raw = ping // its reply marks the position of the refusal among the other replies
		}
		if !l.pass(l.server, raw) {
			return
		}
	}
}

func (l *link) replies() {
	defer l.hangUp()
	r := bufio.NewReader(l.server)
	for {
		var raw bytes.Buffer
		if err := readFrame(r, &raw); err != nil {
			return
		}
		act := l.answered(raw.Bytes())
		if !l.pause(act.DelayReply, act.HoldReply) {
			return
		}
		if act.DropReply {
			l.cut()
			return
		}
		frame := raw.Bytes()
		if l.loses(frame) {
			continue
		}
		if act.Refuse != "" {
			frame = []byte("-" + act.Refuse + "\r\n")
		}
		if !l.pass(l.client, frame) {
			return
		}
	}
}

// hangUp closes both sides, once the proxy is not frozen.
func (l *link) hangUp() {
	l.pass(nil, nil)
	l.cut()
}

// pass writes b to c once the proxy is not frozen. If c is nil, it only waits. It reports whether the link can
// continue.
func (l *link) pass(c net.Conn, b []byte) bool {
	p := l.proxy
	for {
		p.passing.RLock()
		thawed := p.thawed
		if thawed == nil {
			defer p.passing.RUnlock()
			if c == nil {
				return true
			}
			_, err := c.Write(b)
			return err == nil
		}
		p.passing.RUnlock()
		select {
		case <-thawed:
		case <-l.done:
			return false
		}
	}
}

// pause waits for d and then for hold. It reports whether the link is still intact.
func (l *link) pause(d time.Duration, hold <-chan struct{}) bool {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.done:
			return false
		}
	}
	if hold != nil {
		select {
		case <-hold:
		case <-l.done:
			return false
		}
	}
	return true
}

// expect records that the server will reply to req.
func (l *link) expect(req [][]byte, act Action) {
	a := ask{act: act}
	switch name := strings.ToLower(string(req[0])); name {
	case "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe":
		a.confirm = name
		a.left = max(1, len(req)-1) // "unsubscribe" alone: one for each channel, but at least one
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, a)
}

// loses reports whether the frame is a message that the hook for messages loses.
func (l *link) loses(frame []byte) bool {
	l.proxy.mu.Lock()
	loses := l.proxy.loses
	l.proxy.mu.Unlock()
	if loses == nil || !strings.HasSuffix(pubsubWord(frame), "message") {
		return false
	}
	l.mu.Lock()
	push := frame[0] == '>' || l.resp2 // and not a reply that looks like one
	l.mu.Unlock()
	return push && loses()
}

// answered finds the request that the frame is a reply to, and returns its action. Any other frame is delivered.
func (l *link) answered(frame []byte) Action {
	l.mu.Lock()
	defer l.mu.Unlock()
	word := pubsubWord(frame)
	confirms := word != "" && len(l.waiting) > 0 && l.waiting[0].confirm == word
	push := frame[0] == '>' || l.resp2 && word != ""
	if frame[0] == '*' && (confirms || push) && strings.HasSuffix(word, "subscribe") {
		l.resp2 = !bytes.HasSuffix(frame, []byte(":0\r\n")) // remaining channels
	}
	switch {
	case confirms:
		head := &l.waiting[0]
		act := head.act
		head.act = Action{} // the first confirmation represents all
		if head.left--; head.left == 0 {
			l.waiting = l.waiting[1:]
		}
		return act
	case push, len(l.waiting) == 0: // "max number of clients reached" is unsolicited
		return Action{}
	default: // also the error reply of a SUBSCRIBE, one for all its channels
		act := l.waiting[0].act
		l.waiting = l.waiting[1:]
		return act
	}
}
