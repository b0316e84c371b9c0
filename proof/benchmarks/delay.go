//go:build linux

package main

import (
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// delay is a proxy that delays data by half a round trip in each direction. It does not throttle:
// bytes sent close together arrive close together.
type delay struct {
	listener net.Listener
	target   string
	oneWay   time.Duration
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // guarded by mu; nil once closed
}

func newDelay(target string, roundTrip time.Duration) (*delay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &delay{listener: l, target: target, oneWay: roundTrip / 2, conns: map[net.Conn]struct{}{}}
	d.wg.Go(d.accept)
	return d, nil
}

func (d *delay) addr() string { return d.listener.Addr().String() }

func (d *delay) accept() {
	for {
		near, err := d.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", d.target)
		if err != nil {
			near.Close()
			continue
		}
		if !d.keep(near, far) {
			return
		}
		d.wg.Go(func() { d.carry(near, far) })
		d.wg.Go(func() { d.carry(far, near) })
	}
}

// keep records the connections for close, unless close was called.
func (d *delay) keep(conns ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range conns {
		if d.conns == nil {
			c.Close()
			continue
		}
		d.conns[c] = struct{}{}
	}
	return d.conns != nil
}

type piece struct {
	bytes []byte
	due   int64 // by monotonic
}

// carry copies from one connection to the other, delayed, until either ends.
func (d *delay) carry(from, to net.Conn) {
	pieces := make(chan piece, 1<<14)
	d.wg.Go(func() {
		for p := range pieces {
			wait(p.due)
			if _, err := to.Write(p.bytes); err != nil {
				from.Close()
			}
		}
		to.Close()
	})
	defer close(pieces)
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			pieces <- piece{append([]byte(nil), buffer[:n]...), monotonic() + int64(d.oneWay)}
		}
		if err != nil {
			return
		}
	}
}

// wait sleeps in the kernel, because time.Sleep can be a millisecond late in an idle process.
func wait(until int64) {
	ts := unix.NsecToTimespec(until)
	for unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &ts, nil) == unix.EINTR {
	}
}

func (d *delay) close() {
	d.listener.Close()
	d.mu.Lock()
	for c := range d.conns {
		c.Close()
	}
	d.conns = nil
	d.mu.Unlock()
	d.wg.Wait()
}
