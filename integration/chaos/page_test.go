//go:build linux

package chaos_test

import (
	"bytes"
	"cmp"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// page is the content of the page: the history of one lock around a finding.
type page struct {
	Title, Text string
	Width       int
	Height      int
	Lanes       []lane
	Bands       []band
	Ticks       []tick
	Rows        []row
}

// lane is the row of a goroutine.
type lane struct {
	Name string
	Y    int
	Bars []bar
}

// bar is a wait, a hold, or an Unlock.
type bar struct {
	X, W  float64
	Class string
	Title string
}

// band is a fault.
type band struct {
	X, W float64
	Name string
	Y    int // of its name
}

type tick struct {
	X    float64
	Text string
}

// row is a hold of a finding. Times are relative to the finding.
type row struct{ Who, Asked, Granted, Believed, Unlocked, Token, Outcome string }

var outcomes = []string{outcomeNone: "not unlocked", outcomeOK: "given back", outcomeExpired: "lost: lease expired", outcomeGone: "lost: the server did not have it", outcomeUnknown: "not confirmed"}

const (
	pageWidth = 1200
	pageLeft  = 90
	laneStep  = 22
)

// newPage draws the history of p around w.
func newPage(p *past, w wrong) page {
	from, to := w.At, w.At
	for _, h := range w.Holds {
		from, to = min(from, h.Granted), max(to, h.End, h.Release)
	}
	around := max(int64(20*time.Millisecond), (to-from)/2)
	from, to = from-around, to+around
	scale := float64(pageWidth-pageLeft-10) / float64(to-from)
	x := func(at int64) float64 { return pageLeft + float64(max(from, min(at, to))-from)*scale }
	span := func(class string, a, b int64, title string) bar { return bar{x(a), max(1, x(b)-x(a)), class, title} }
	since := func(at int64) string {
		if at == 0 {
			return "–"
		}
		return time.Duration(at - w.At).Round(time.Microsecond).String()
	}

	out := page{Title: w.Place + ": " + w.What, Width: pageWidth}
	lanes := map[string]*lane{}
	var names []string
	for _, h := range p.holds {
		end := max(h.End, h.Released, h.Granted)
		if h.Call > to || end < from || h.Granted > to {
			continue
		}
		name := fmt.Sprintf("%s/%d", h.Process, h.Goroutine)
		if lanes[name] == nil {
			lanes[name] = &lane{Name: name}
			names = append(names, name)
		}
		class := "hold"
		if h.Side == 'r' {
			class = "read"
		}
		if slices.ContainsFunc(w.Holds, func(o hold) bool { return o.record == h.record && o.Process == h.Process }) {
			class += " wrong"
		}
		title := fmt.Sprintf("%s: asked %s, granted %s, believed until %s, unlocked %s, token %d, owner %d: %s",
			name, since(h.Call), since(h.Granted), since(h.End), since(h.Release), h.Token, h.Owner, outcomes[h.Outcome])
		l := lanes[name]
		if h.Call < h.Granted {
			l.Bars = append(l.Bars, span("wait", h.Call, h.Granted, title))
		}
		l.Bars = append(l.Bars, span(class, h.Granted, max(h.End, h.Granted), title))
		if h.Release != 0 {
			l.Bars = append(l.Bars, span("unlock", h.Release, max(h.Released, h.Release), title))
		}
	}
	slices.Sort(names)
	top := 30
	for i, e := range p.events {
		until := e.To
		if until == 0 {
			until = to
		}
		if e.From > to || until < from {
			continue
		}
		out.Bands = append(out.Bands, band{x(e.From), max(2, x(until)-x(e.From)), e.What, 14 + 12*(i%2)})
	}
	for i, name := range names {
		l := lanes[name]
		l.Y = top + 10 + i*laneStep
		slices.SortFunc(l.Bars, func(a, b bar) int { return cmp.Compare(a.X, b.X) })
		out.Lanes = append(out.Lanes, *l)
	}
	out.Height = top + 40 + len(names)*laneStep
	for i := range 11 {
		at := from + (to-from)*int64(i)/10
		out.Ticks = append(out.Ticks, tick{x(at), since(at)})
	}
	for _, h := range w.Holds {
		out.Rows = append(out.Rows, row{
			fmt.Sprintf("%s/%d", h.Process, h.Goroutine), since(h.Call), since(h.Granted), since(h.End), since(h.Release), fmt.Sprint(h.Token), outcomes[h.Outcome],
		})
	}
	return out
}

var pageTemplate = template.Must(template.New("").Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{.Title}}</title>
<style>
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }
svg { border: 1px solid #ccc; max-width: 100% }
svg text { font: 11px system-ui, sans-serif; fill: #333 }
.wait { fill: #ccc } .hold { fill: #3572b0 } .read { fill: #5aa469 } .unlock { fill: #e0a84e } .wrong { fill: #c62828 }
.band { fill: #f4d9d9; opacity: .6 } .tick { stroke: #eee }
table { border-collapse: collapse; margin-top: 1em } td, th { border: 1px solid #ccc; padding: .2em .6em; text-align: left }
i { display: inline-block; width: 1em; height: .8em; margin: 0 .3em 0 1em }
</style></head><body>
<h1>{{.Title}}</h1>
<p>{{.Text}} Times count from the instant of the finding. Point at a bar for its figures.</p>
<p><i style="background:#ccc"></i>waits <i style="background:#3572b0"></i>believes that it holds <i style="background:#5aa469"></i>reads
<i style="background:#e0a84e"></i>Unlock <i style="background:#c62828"></i>wrong <i style="background:#f4d9d9"></i>a fault</p>
<svg viewBox="0 0 {{.Width}} {{.Height}}" width="{{.Width}}" height="{{.Height}}" role="img" aria-label="history">
{{range .Bands}}<rect class="band" x="{{.X}}" y="0" width="{{.W}}" height="{{$.Height}}"><title>{{.Name}}</title></rect><text x="{{.X}}" y="{{.Y}}">{{.Name}}</text>
{{end}}{{range .Ticks}}<line class="tick" x1="{{.X}}" x2="{{.X}}" y1="30" y2="{{$.Height}}"/><text x="{{.X}}" y="{{$.Height}}" dy="-4" text-anchor="middle">{{.Text}}</text>
{{end}}{{range .Lanes}}<g transform="translate(0 {{.Y}})"><text x="4" y="12">{{.Name}}</text>
{{range .Bars}}<rect class="{{.Class}}" x="{{.X}}" y="{{if eq .Class "wait"}}6{{else}}1{{end}}" width="{{.W}}" height="{{if eq .Class "wait"}}4{{else}}14{{end}}"><title>{{.Title}}</title></rect>
{{end}}</g>
{{end}}</svg>
<table><tr><th>who</th><th>asked</th><th>granted</th><th>believed until</th><th>unlocked</th><th>token</th><th>outcome</th></tr>
{{range .Rows}}<tr><td>{{.Who}}</td><td>{{.Asked}}</td><td>{{.Granted}}</td><td>{{.Believed}}</td><td>{{.Unlocked}}</td><td>{{.Token}}</td><td>{{.Outcome}}</td></tr>
{{end}}</table></body></html>
`))

// draw writes pages that show the history around each finding, and the full history.
func (s *scene) draw(p *past, found []wrong) {
	for i, w := range found {
		page := newPage(p, w)
		page.Text = fmt.Sprintf("Round %d of seed %d: %s, %s, commit %s.", s.plan.Round, s.plan.Seed, s.plan.Topology, s.plan.Temper, commit())
		var text bytes.Buffer
		err := pageTemplate.Execute(&text, page)
		if err == nil {
			err = os.WriteFile(filepath.Join(s.dir, fmt.Sprintf("wrong-%s-%d.html", p.place.Name, i)), text.Bytes(), 0o644)
		}
		if err != nil {
			s.Errorf("drawing the history: %v", err)
		}
	}
}

// The page shows the finding, the other owners, and the fault.
func TestPage(t *testing.T) {
	ms := int64(time.Millisecond)
	holds := []hold{
		{Process: "go0.0", End: 50 * ms, record: record{Call: ms, Granted: 10 * ms, Look: 50 * ms, Release: 50 * ms, Released: 51 * ms, Token: 7, Outcome: outcomeOK}},
		{Process: "go1.0", End: 60 * ms, record: record{Call: 2 * ms, Granted: 40 * ms, Look: 60 * ms, Token: 8, Goroutine: 3}},
		{Process: "go2.0", End: 62 * ms, record: record{Call: 2 * ms, Granted: 61 * ms, Look: 62 * ms, Token: 9}},
		{Process: "go9.9", End: 9000 * ms, record: record{Call: 8000 * ms, Granted: 8001 * ms, Token: 10}},
	}
	p := &past{place: place{Name: "a<b"}, holds: holds, events: []event{{From: 20 * ms, To: 30 * ms, What: "freeze on 1"}, {From: 9000 * ms, To: 9001 * ms, What: "far away"}}}
	var text bytes.Buffer
	if err := pageTemplate.Execute(&text, newPage(p, wrong{What: saysTwo, Place: "a<b", At: 40 * ms, Holds: holds[:2]})); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a&lt;b: two held it at once", "go0.0/0", "go1.0/3", "go2.0/0", "freeze on 1", "given back", "hold wrong"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
	for _, far := range []string{"go9.9", "far away"} {
		if strings.Contains(text.String(), far) {
			t.Errorf("%q is there, and was long after", far)
		}
	}
	if n := strings.Count(text.String(), `class="hold wrong"`); n != 2 {
		t.Errorf("%d holds are marked, want 2", n)
	}
}
