//go:build linux

package main

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// charts are the charts that a run draws, by file name. Each needs the outcomes of all cells that it names.
var charts = map[string]chart{
	"performance.svg": bars{
		about: "Bar chart of locks per second, leasehold compared with other libraries, under contention, with 64 locks and with one free lock",
		panels: []panel{
			{"hot-4", "switches/s", "One contended lock, four processes of 25 goroutines: changes of holder per second"},
			{"keys-64", "locks/s", "One lock for each of 64 goroutines: Lock and Unlock pairs per second"},
			{"free", "locks/s", "One free lock, one goroutine: Lock and Unlock pairs per second"},
		},
	},
	"performance-distance.svg": lines{
		about:  "Line chart of the duration of a pair of Lock and Unlock, by round trip to Redis",
		title:  "One free lock, one goroutine: time for a pair of Lock and Unlock, p50",
		x:      "round trip to Redis, in ms",
		y:      "µs",
		metric: "p50 us",
		cells:  distances,
	},
	"performance-waiters.svg": lines{
		about:  "Line chart of commands per second, by number of waiting goroutines",
		title:  "Goroutines of one process wait for a held lock: commands per second",
		x:      "waiting goroutines",
		y:      "commands per second; the lowest line is 0.1 or less",
		digits: 1,
		least:  0.1,
		metric: "sent/s",
		cells:  crowds,
	},
}

// at is a cell and its position on the horizontal axis of a chart.
type at struct {
	cell string
	x    float64
}

type chart interface {
	needs() []string
	draw(map[string]outcome) string
}

// drawn writes into dir the charts whose cells were all measured.
func drawn(dir string, all []outcome) error {
	measured := map[string]outcome{}
	for _, o := range all {
		measured[o.cell.name] = o
	}
	for name, c := range charts {
		if slices.ContainsFunc(c.needs(), func(cell string) bool { return measured[cell].cell == nil }) {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(c.draw(measured)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// brands are the contenders that charts show, with their display names and colors. If several belong to one library,
// the best represents it.
var brands = []struct {
	name, color string
	contenders  []string
}{
	{"leasehold", "#18896b", []string{"leasehold"}},
	{"async unlock", "#3aa1a8", []string{"async"}},
	{"redsync", "#c2701c", []string{"redsync-rueidis", "redsync-goredis"}},
	{"redislock", "#7a6ff0", []string{"redislock"}},
	{"rueidislock", "#c2418c", []string{"rueidislock", "rueidislock-loop"}},
	{"Redisson", "#3b82c4", []string{"redisson"}},
}

// of returns the value of the best of the named contenders in a cell, and false if none was measured.
func (o outcome) of(names []string, metric string, less bool) (best float64, ok bool) {
	for _, name := range names {
		if v := o.value(name, metric); !math.IsNaN(v) && (!ok || v < best == less) {
			best, ok = v, true
		}
	}
	return best, ok
}

const (
	chartWidth = 700
	// Pictures follow the reader's color scheme, as the page around them does.
	chartStyle = `<style>.paper{fill:#fff}.ink{fill:#111827}.pale{fill:#5b6b73}.grid{stroke:#e2e8e6}.other{fill:#a9b8b4}.ours{fill:#18896b}
@media (prefers-color-scheme:dark){.paper{fill:#0d1117}.ink{fill:#e6edf3}.pale{fill:#9aa7ae}.grid{stroke:#2a3238}.other{fill:#56666b}.ours{fill:#3fb98f}}</style>`
)

func svg(about string, height int, body string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s" font-family="system-ui, sans-serif" font-size="14">
%s
<rect width="100%%" height="100%%" rx="8" class="paper"/>
%s</svg>
`, chartWidth, height, html.EscapeString(about), chartStyle, body)
}

// bars is a chart of panels below each other, each with a bar for each library.
type bars struct {
	about  string
	panels []panel
}

type panel struct{ cell, metric, title string }

func (b bars) needs() (cells []string) {
	for _, p := range b.panels {
		cells = append(cells, p.cell)
	}
	return cells
}

func (b bars) draw(all map[string]outcome) string {
	const start, longest = 120, 480
	var body strings.Builder
	y := 30
	for _, p := range b.panels {
		type row struct {
			name string
			v    float64
		}
		var rows []row
		for _, brand := range brands {
			if v, ok := all[p.cell].of(brand.contenders, p.metric, false); ok {
				rows = append(rows, row{brand.name, v})
			}
		}
		slices.SortFunc(rows, func(a, b row) int { return int(b.v - a.v) })
		fmt.Fprintf(&body, "<text x=\"20\" y=\"%d\" class=\"ink\" font-weight=\"600\">%s</text>\n", y, html.EscapeString(p.title))
		for _, r := range rows {
			y += 22
			ink, fill := "pale", "other"
			if r.name == "leasehold" {
				ink, fill = "ink", "ours"
			}
			width := max(2, longest*r.v/rows[0].v)
			fmt.Fprintf(&body, "<text x=\"%d\" y=\"%d\" class=\"%s\" text-anchor=\"end\">%s</text>", start-10, y+4, ink, r.name)
			fmt.Fprintf(&body, "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"16\" rx=\"2\" class=\"%s\"/>", start, y-8, width, fill)
			fmt.Fprintf(&body, "<text x=\"%.1f\" y=\"%d\" class=\"ink\" font-size=\"13\">%s</text>\n", start+width+8, y+5, number(r.v, 0))
		}
		y += 48
	}
	return svg(b.about, y-28, body.String())
}

// lines is a chart with a line for each library, over cells that differ in one number. Both axes are logarithmic.
type lines struct {
	about, title string
	x, y         string
	digits       int // of the figures at the ends of the lines
	metric       string
	least        float64 // smaller values are drawn here: a logarithmic axis has no zero
	cells        []at
}

func (l lines) needs() (cells []string) {
	for _, c := range l.cells {
		cells = append(cells, c.cell)
	}
	return cells
}

// The plot area in the picture.
const left, right, top, bottom = 70, 530, 60, 360

// line is one library's line.
type line struct {
	name, color string
	xs, ys      []float64
	label       float64 // position of its name
}

func (l lines) draw(all map[string]outcome) string {
	shown := l.shown(all)
	if len(shown) == 0 {
		return svg(l.about, bottom, "")
	}
	var ys []float64
	for _, s := range shown {
		ys = append(ys, s.ys...)
	}
	first, last := l.cells[0].x, l.cells[len(l.cells)-1].x
	low, high := math.Floor(math.Log10(slices.Min(ys))), math.Ceil(math.Log10(slices.Max(ys))+1e-9)
	xOf := func(x float64) float64 { return left + (right-left)*math.Log(x/first)/math.Log(last/first) }
	yOf := func(y float64) float64 { return bottom - (bottom-top)*(math.Log10(y)-low)/(high-low) }

	var body strings.Builder
	write := func(x, y float64, style, text string) {
		fmt.Fprintf(&body, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, style, html.EscapeString(text))
	}
	rule := func(x1, y1, x2, y2 float64) {
		fmt.Fprintf(&body, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"grid\"/>", x1, y1, x2, y2)
	}
	const small, middle, end = `class="pale" font-size="12"`, ` text-anchor="middle"`, ` text-anchor="end"`
	write(20, 30, `class="ink" font-weight="600"`, l.title)
	write(20, top-12, small, l.y)
	write((left+right)/2, bottom+38, small+middle, l.x)
	for e := low; e <= high; e++ {
		v := math.Pow(10, e)
		rule(left, yOf(v), right, yOf(v))
		write(left-8, yOf(v)+4, small+end, number(v, int(max(0, -e))))
	}
	for _, c := range l.cells {
		rule(xOf(c.x), top, xOf(c.x), bottom)
		write(xOf(c.x), bottom+18, small+middle, strconv.FormatFloat(c.x, 'g', -1, 64))
	}
	for _, s := range shown {
		s.label = yOf(s.ys[len(s.ys)-1])
		var points, dots strings.Builder
		for i := range s.xs {
			fmt.Fprintf(&points, "%.1f,%.1f ", xOf(s.xs[i]), yOf(s.ys[i]))
			fmt.Fprintf(&dots, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>", xOf(s.xs[i]), yOf(s.ys[i]), s.color)
		}
		fmt.Fprintf(&body, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2.5\"/>\n%s\n", strings.TrimSpace(points.String()), s.color, dots.String())
	}
	apart(shown)
	for _, s := range shown {
		write(right+12, s.label+4, `fill="`+s.color+`" font-size="13"`, s.name+": "+number(s.ys[len(s.ys)-1], l.digits))
	}
	return svg(l.about, bottom+54, body.String())
}

// shown returns the lines of the libraries that were measured.
func (l lines) shown(all map[string]outcome) (shown []*line) {
	for _, brand := range brands {
		s := &line{name: brand.name, color: brand.color}
		for _, c := range l.cells {
			if v, ok := all[c.cell].of(brand.contenders, l.metric, true); ok && (v > 0 || l.least > 0) {
				s.xs, s.ys = append(s.xs, c.x), append(s.ys, max(v, l.least))
			}
		}
		if len(s.xs) > 0 {
			shown = append(shown, s)
		}
	}
	return shown
}

// apart moves the names next to the ends of the lines so that they do not overlap.
func apart(shown []*line) {
	const height = 17
	slices.SortFunc(shown, func(a, b *line) int { return cmp.Compare(a.label, b.label) })
	for i, s := range shown[1:] {
		s.label = max(s.label, shown[i].label+height)
	}
	limit := float64(bottom)
	for _, s := range slices.Backward(shown) {
		s.label = min(s.label, limit)
		limit = s.label - height
	}
}
