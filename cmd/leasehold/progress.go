package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress shows on a terminal how much of a long list has been read.
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

// show shows the share of the keys that have been scanned.
func (p *progress) show(scanned float64) {
	if now := time.Now(); p.w != nil && now.Sub(p.began) >= quietFor && now.Sub(p.said) >= sayEvery {
		fmt.Fprintf(p.w, "\r%s%s", scannedText(scanned), eraseRight)
		p.said = now
	}
}

// end removes what show has written.
func (p *progress) end() {
	if !p.said.IsZero() {
		fmt.Fprint(p.w, "\r"+eraseRight)
	}
}

// scannedText says how much of a list has been read.
func scannedText(scanned float64) string {
	return fmt.Sprintf("%.0f %% of the keys scanned", 100*scanned)
}
