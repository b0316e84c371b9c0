package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress shows the progress of a long operation on a terminal.
type progress struct {
	w     io.Writer // nil if there is no terminal
	began time.Time
	said  time.Time
}

// An operation that takes less than quietFor shows no progress.
const (
	quietFor = 2 * time.Second
	sayEvery = 200 * time.Millisecond
)

func newProgress(w io.Writer) *progress {
	p := &progress{began: time.Now()}
	if f, ok := w.(*os.File); ok && isTerminal(f) {
		p.w = w
	}
	return p
}

// show shows text, unless it is too early.
func (p *progress) show(text string) {
	if now := time.Now(); p.w != nil && now.Sub(p.began) >= quietFor && now.Sub(p.said) >= sayEvery {
		fmt.Fprintf(p.w, "\r%s%s", text, eraseRight)
		p.said = now
	}
}

// follow shows the current text repeatedly until end is called. end removes it.
func (p *progress) follow(text func() string) (end func()) {
	if p.w == nil {
		return func() {}
	}
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(sayEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.show(text())
			case <-stop:
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-over
		p.erase()
	}
}

// erase removes the text.
func (p *progress) erase() {
	if !p.said.IsZero() {
		fmt.Fprint(p.w, "\r"+eraseRight)
		p.said = time.Time{}
	}
}

// scannedText describes how much of a list has been read.
func scannedText(scanned float64) string {
	return fmt.Sprintf("%.0f %% of the keys scanned", 100*scanned)
}
