package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress shows on a terminal what takes long, and how far it is.
type progress struct {
	w     io.Writer // nil if there is no terminal
	began time.Time
	said  time.Time
}

// What takes less than quietFor shows no progress.
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

// show shows how far it is.
func (p *progress) show(text string) {
	if now := time.Now(); p.w != nil && now.Sub(p.began) >= quietFor && now.Sub(p.said) >= sayEvery {
		fmt.Fprintf(p.w, "\r%s%s", text, eraseRight)
		p.said = now
	}
}

// follow shows text until end is called, also while nothing happens. end removes it.
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

// erase removes what is shown.
func (p *progress) erase() {
	if !p.said.IsZero() {
		fmt.Fprint(p.w, "\r"+eraseRight)
		p.said = time.Time{}
	}
}

// scannedText says how much of a list has been read.
func scannedText(scanned float64) string {
	return fmt.Sprintf("%.0f %% of the keys scanned", 100*scanned)
}
