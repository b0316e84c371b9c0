package terminal

import (
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// Progress is shown only on a terminal, and only for long operations.
func TestProgress(t *testing.T) {
	var text strings.Builder
	p := &Progress{w: &text, began: time.Now()}
	p.Show("at once")
	p.Erase()
	if text.Len() > 0 {
		t.Errorf("at once: %q", &text)
	}
	p.began = p.began.Add(-quietFor)
	p.Show("34 %")
	p.Show("35 %")
	p.Erase()
	p.Erase()
	if want := "\r34 %\x1b[K\r\x1b[K"; text.String() != want {
		t.Errorf("%q, want %q", &text, want)
	}
	p = NewProgress(&text)
	p.began = p.began.Add(-quietFor)
	p.Show("off a terminal")
	if p.Erase(); p.w != nil {
		t.Error("off a terminal")
	}
}
