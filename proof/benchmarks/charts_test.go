//go:build linux

package main

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A run draws each chart whose cells were measured, with the figures of its tables, and no other chart.
func TestDrawn(t *testing.T) {
	all := map[string]*cell{}
	for _, c := range cells {
		all[c.name] = c
	}
	for name, c := range charts {
		t.Run(name, func(t *testing.T) {
			var measured []outcome
			for i, of := range c.needs() {
				if all[of] == nil {
					t.Fatalf("there is no cell %s", of)
				}
				rep := map[string]sample{}
				for j, contender := range all[of].contenders {
					v := float64(1000*(i+1) + 10*j)
					rep[contender] = sample{"locks/s": v, "switches/s": v, "p50 us": v, "sent/s": v}
				}
				measured = append(measured, outcome{cell: all[of], reps: []map[string]sample{rep}})
			}

			dir := t.TempDir()
			if err := drawn(dir, measured[1:]); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				t.Error("it is drawn without its first cell")
			}
			if err := drawn(dir, measured); err != nil {
				t.Fatal(err)
			}
			picture, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			for d := xml.NewDecoder(strings.NewReader(string(picture))); ; {
				if _, err := d.Token(); err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			last := measured[len(measured)-1]
			want := number(last.value("leasehold", "locks/s"), 0)
			if !strings.Contains(string(picture), want) || strings.Contains(string(picture), "NaN") || strings.Contains(string(picture), "%!") {
				t.Errorf("it has no %s, or no number somewhere:\n%s", want, picture)
			}
		})
	}
}

// The best of a library's contenders represents it, and values too small for the axis are drawn at its
// end.
func TestLines(t *testing.T) {
	c := lines{title: "a title", x: "goroutines", y: "commands", digits: 1, least: 0.5, metric: "sent/s", cells: []at{{"one", 1}, {"ten", 10}}}
	run := map[string]outcome{}
	for name, redsync := range map[string]float64{"one": 0, "ten": 40} {
		run[name] = outcome{cell: &cell{name: name}, reps: []map[string]sample{{
			"redsync-rueidis": {"sent/s": redsync}, "redsync-goredis": {"sent/s": 90}, "leasehold": {"sent/s": 2},
		}}}
	}
	drawn := c.draw(run)
	for _, want := range []string{"redsync: 40.0", "leasehold: 2.0", `points="70.0,`, `stroke="#c2701c"`} {
		if !strings.Contains(drawn, want) {
			t.Errorf("it has no %q:\n%s", want, drawn)
		}
	}
	if strings.Contains(drawn, "redislock") || strings.Contains(drawn, "Inf") {
		t.Errorf("it shows what was not measured:\n%s", drawn)
	}
}
