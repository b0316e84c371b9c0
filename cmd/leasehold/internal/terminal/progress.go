package terminal

import (
	"fmt"
	"io"
	"time"
)

// Progress shows the progress of a long operation on a terminal.
type Progress struct {
	w     io.Writer // nil if there is no terminal
	began time.Time
	said  time.Time
}

// An operation that takes less than quietFor shows no progress.
const (
	quietFor = 2 * time.Second
	sayEvery = 200 * time.Millisecond
)

// NewProgress returns the progress that is shown on w, or nowhere if w is no terminal.
func NewProgress(w io.Writer) *Progress {
	p := &Progress{began: time.Now()}
	if Is(w) {
		p.w = w
	}
	return p
}

// Show shows text, unless it is too early.
func (p *Progress) Show(text string) {
	if now := time.Now(); p.w != nil && now.Sub(p.began) >= quietFor && now.Sub(p.said) >= sayEvery {
		fmt.Fprintf(p.w, "\r%s%s", text, EraseRight)
		p.said = now
	}
}

// Follow shows the current text repeatedly until end is called. end removes it.
func (p *Progress) Follow(text func() string) (end func()) {
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
				p.Show(text())
			case <-stop:
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-over
		p.Erase()
	}
}

// Erase removes the text.
func (p *Progress) Erase() {
	if !p.said.IsZero() {
		fmt.Fprint(p.w, "\r"+EraseRight)
		p.said = time.Time{}
	}
}
