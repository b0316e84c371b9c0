package sim

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// port is a client's network: all its connections to the server.
type port struct {
	w      *world
	client int

	// Guarded by w.mu.
	dialed   int // connections so far
	scripts  int // scripts that the client has sent
	messages int // messages sent to it
	links    map[*link]bool
	dead     bool      // the client was killed
	refused  time.Time // until then its connection attempts fail
	stopped  time.Time // until then nothing is delivered
}

// link is one connection. Each direction is delivered in order.
type link struct {
	p      *port
	number int
	client net.Conn // the network's end of the client's connection
	server net.Conn // the network's end of the server's connection
	up     *queue   // requests
	down   *queue   // replies and messages
	asked  chan fate
	broken bool // guarded by w.mu: the client's end is closed
}

// fate is what happens to a reply.
type fate struct {
	delay time.Duration
	drop  bool
}

// packet is data in transit.
type packet struct {
	raw  []byte
	due  time.Time
	end  bool // the connection breaks instead
	what string
}

// queue is the data in transit in one direction.
type queue struct {
	mu    sync.Mutex
	items []packet
	last  time.Time
	more  chan struct{} // cap 1
	ended chan struct{} // closed when nothing will follow
	once  sync.Once
}

func newQueue() *queue { return &queue{more: make(chan struct{}, 1), ended: make(chan struct{})} }

// put appends p. It is never delivered before earlier packets.
func (q *queue) put(p packet) {
	q.mu.Lock()
	if p.due.Before(q.last) {
		p.due = q.last
	}
	q.last = p.due
	q.items = append(q.items, p)
	q.mu.Unlock()
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// end marks the end of the data.
func (q *queue) end() { q.once.Do(func() { close(q.ended) }) }

// take waits for the first packet of q and returns it; false at the end of the data.
func (q *queue) take() (packet, bool) {
	for {
		q.mu.Lock()
		if len(q.items) > 0 {
			p := q.items[0]
			q.items = q.items[1:]
			q.mu.Unlock()
			return p, true
		}
		q.mu.Unlock()
		select {
		case <-q.more:
		case <-q.ended:
			q.mu.Lock()
			left := len(q.items)
			q.mu.Unlock()
			if left == 0 {
				return packet{}, false
			}
		}
	}
}

var errRefused = &net.OpError{Op: "dial", Net: "sim", Err: errors.New("refused")}

// dial makes a connection.
func (p *port) dial(ctx context.Context) (net.Conn, error) {
	if !p.w.rest(ctx, p.way(p.w.hash(1, p.client, p.dialed, 0))) {
		return nil, &net.OpError{Op: "dial", Net: "sim", Err: ctx.Err()}
	}
	p.w.mu.Lock()
	if p.dead || time.Now().Before(p.refused) {
		p.w.mu.Unlock()
		return nil, errRefused
	}
	server, err := p.w.mini.Dial()
	if err != nil {
		p.w.mu.Unlock()
		return nil, err
	}
	p.dialed++
	near, far := net.Pipe()
	l := &link{p: p, number: p.dialed, client: far, server: server, up: newQueue(), down: newQueue(), asked: make(chan fate, 1<<8)}
	p.links[l] = true
	p.w.mu.Unlock()
	p.w.wg.Go(l.requests)
	p.w.wg.Go(l.toServer)
	p.w.wg.Go(l.replies)
	p.w.wg.Go(l.toClient)
	return near, nil
}

// way returns the transit time of a packet.
func (p *port) way(random uint64) time.Duration {
	d := p.w.plan.Far - p.w.plan.Near
	return p.w.plan.Near + time.Duration(random%uint64(d))
}

// breakOff closes the client's end. Requests in transit still reach the server.
func (l *link) breakOff() {
	l.p.w.mu.Lock()
	l.broken = true
	delete(l.p.links, l)
	l.p.w.mu.Unlock()
	l.client.Close()
	l.up.end()
}

// requests reads the client's requests, and applies faults to them.
func (l *link) requests() {
	defer l.breakOff()
	r := bufio.NewReader(l.client)
	for n := 1; ; n++ {
		var raw bytes.Buffer
		if err := readFrame(r, &raw); err != nil {
			return
		}
		words := wordsOf(raw.Bytes())
		req := packet{raw: raw.Bytes(), due: time.Now().Add(l.p.way(l.p.w.hash(2, l.p.client, l.number, n))), what: strings.Join(words, " ")}
		reply := fate{delay: l.p.way(l.p.w.hash(3, l.p.client, l.number, n))}
		late := time.Duration(-1)
		if len(words) > 0 && (words[0] == "EVAL" || words[0] == "EVALSHA") {
			for _, f := range l.p.script() {
				l.p.w.trace("fault: %v, on link %d", f, l.number)
				switch f.What {
				case DropRequest:
					req.end = true
				case DropReply:
					reply.drop = true
				case Copy:
					late = f.For
				case DelayRequest:
					req.due = req.due.Add(f.For)
				case DelayReply:
					reply.delay += f.For
				}
			}
		}
		if late >= 0 {
			req.due = req.due.Add(late)
			l.up.put(req)
			return
		}
		if len(words) == 0 || !strings.HasSuffix(strings.ToUpper(words[0]), "SUBSCRIBE") {
			l.asked <- reply
		}
		l.up.put(req)
	}
}

// script counts a script that the client sends, and returns its faults.
func (p *port) script() (all []Fault) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.scripts++
	for _, f := range p.w.plan.Faults {
		if f.Client == p.client && f.Nth == p.scripts && !f.ofMessage() {
			all = append(all, f)
		}
	}
	return all
}

// message counts a message to the client, and returns its faults.
func (p *port) message() (all []Fault) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.messages++
	for _, f := range p.w.plan.Faults {
		if f.Client == p.client && f.Nth == p.messages && f.ofMessage() {
			all = append(all, f)
		}
	}
	return all
}

// toServer delivers requests to the server.
func (l *link) toServer() {
	defer l.server.Close()
	for {
		p, ok := l.up.take()
		if !ok {
			return
		}
		l.p.await(p.due)
		if p.end {
			l.breakOff()
			return
		}
		l.p.w.trace("%d.%d > %s", l.p.client, l.number, p.what)
		if _, err := l.server.Write(p.raw); err != nil {
			return
		}
	}
}

// await waits until due, and while the client is paused or the server is frozen.
func (p *port) await(due time.Time) {
	for {
		p.w.mu.Lock()
		for _, t := range []time.Time{p.stopped, p.w.frozen} {
			if t.After(due) {
				due = t
			}
		}
		p.w.mu.Unlock()
		d := time.Until(due)
		if d <= 0 {
			return
		}
		time.Sleep(d)
	}
}

// replies reads what the server sends. It never blocks: the in-memory server would block on a slow reader.
func (l *link) replies() {
	defer l.down.end()
	r := bufio.NewReader(l.server)
	for n := 1; ; n++ {
		var raw bytes.Buffer
		if err := readFrame(r, &raw); err != nil {
			return
		}
		p := packet{raw: raw.Bytes(), what: strings.Join(wordsOf(raw.Bytes()), " ")}
		if word, _, _ := strings.Cut(p.what, " "); word == "message" || strings.HasSuffix(word, "subscribe") {
			p.due = time.Now().Add(l.p.way(l.p.w.hash(4, l.p.client, l.number, n)))
			lost := false
			if word == "message" {
				for _, f := range l.p.message() {
					l.p.w.trace("fault: %v, on link %d", f, l.number)
					switch f.What {
					case DropMessage:
						lost = true
					case DelayMessage:
						p.due = p.due.Add(f.For)
					case DoubleMessage:
						l.again(p, f.For)
					}
				}
			}
			if !lost {
				l.down.put(p)
			}
			continue
		}
		select {
		case f := <-l.asked:
			p.due, p.end = time.Now().Add(f.delay), f.drop
			l.down.put(p)
		default: // the request was a delayed duplicate: no call waits for the reply
		}
	}
}

// again delivers p again after a delay, out of order.
func (l *link) again(p packet, late time.Duration) {
	l.p.w.wg.Go(func() {
		select {
		case <-time.After(time.Until(p.due) + late):
			p.due = time.Now()
			l.down.put(p)
		case <-l.down.ended:
		}
	})
}

// toClient delivers replies and messages to the client.
func (l *link) toClient() {
	for {
		p, ok := l.down.take()
		if !ok {
			// The server closed the connection, or the request that broke it has been executed.
			l.breakOff()
			return
		}
		l.p.w.mu.Lock()
		broken := l.broken
		l.p.w.mu.Unlock()
		if broken {
			continue
		}
		l.p.await(p.due)
		if p.end {
			l.breakOff()
			continue
		}
		l.p.w.trace("%d.%d < %s", l.p.client, l.number, p.what)
		if _, err := l.client.Write(p.raw); err != nil {
			l.breakOff()
		}
	}
}

// cut breaks all connections of the client. Requests in transit reach the server after the delay late, or
// never if late is 0.
func (p *port) cut(late time.Duration) {
	p.w.mu.Lock()
	var links []*link
	for l := range p.links {
		links = append(links, l)
	}
	p.w.mu.Unlock()
	for n := range p.dialed { // in a deterministic order
		for _, l := range links {
			if l.number != n+1 {
				continue
			}
			l.up.mu.Lock()
			if late == 0 {
				l.up.items = nil
			}
			for i := range l.up.items {
				l.up.items[i].due = l.up.items[i].due.Add(late)
			}
			l.up.mu.Unlock()
			l.breakOff()
		}
	}
}

// readFrame appends one frame of RESP2 to raw.
func readFrame(r *bufio.Reader, raw *bytes.Buffer) error {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	raw.Write(line)
	if len(line) < 3 {
		return fmt.Errorf("not RESP: %q", line)
	}
	n, err := strconv.Atoi(string(line[1 : len(line)-2]))
	switch line[0] {
	case '$':
		if n >= 0 && err == nil {
			_, err = io.CopyN(raw, r, int64(n)+2)
		}
		return err
	case '*':
		for range max(n, 0) {
			if err == nil {
				err = readFrame(r, raw)
			}
		}
		return err
	}
	return nil
}

// wordsOf returns the strings and numbers of a frame, for the trace and to identify it.
func wordsOf(raw []byte) (words []string) {
	for len(raw) > 0 {
		line, rest, _ := bytes.Cut(raw, []byte("\r\n"))
		raw = rest
		switch {
		case len(line) == 0:
		case line[0] == '$':
			if n, err := strconv.Atoi(string(line[1:])); err == nil && n >= 0 {
				word := string(raw[:n])
				if n > 300 {
					word = word[:60] + "…"
				}
				words, raw = append(words, word), raw[n+2:]
			} else {
				words = append(words, "nil")
			}
		case line[0] != '*':
			words = append(words, string(line))
		}
	}
	return words
}
