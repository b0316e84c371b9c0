//go:build linux

package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// outcome is the result of a cell: a map of samples for each repetition.
type outcome struct {
	cell *cell
	reps []map[string]sample // by contender
	errs map[string][]string // by contender
}

// median returns the median over the repetitions in which f has a value; NaN if there are none.
func (o outcome) median(f func(map[string]sample) (float64, bool)) float64 {
	var all []float64
	for _, rep := range o.reps {
		if v, ok := f(rep); ok && !math.IsNaN(v) && !math.IsInf(v, 0) {
			all = append(all, v)
		}
	}
	if len(all) == 0 {
		return math.NaN()
	}
	slices.Sort(all)
	if n := len(all); n%2 == 0 {
		return (all[n/2-1] + all[n/2]) / 2
	}
	return all[len(all)/2]
}

// value returns the median of a metric.
func (o outcome) value(contender, metric string) float64 {
	return o.median(func(rep map[string]sample) (float64, bool) {
		v, ok := rep[contender][metric]
		return v, ok
	})
}

// multiple returns the median of the ratios within each repetition, so a machine that is temporarily
// slow affects both alike.
func (o outcome) multiple(contender, metric, over string, bestIsMost bool) float64 {
	return o.median(func(rep map[string]sample) (float64, bool) {
		v, ok := rep[contender][metric]
		if !ok {
			return 0, false
		}
		if over != best {
			base, ok := rep[over][metric]
			return v / base, ok
		}
		var base float64
		found := false
		for name, s := range rep {
			p, ok := s[metric]
			if contenders[name].kind != peer || !ok {
				continue
			}
			if !found || bestIsMost && p > base || !bestIsMost && p < base {
				base, found = p, true
			}
		}
		return v / base, found
	})
}

// worst returns the largest value in any repetition.
func (o outcome) worst(contender, metric string) (most float64) {
	for _, rep := range o.reps {
		most = max(most, rep[contender][metric])
	}
	return most
}

// reached returns the median of an aim's metric, and whether the aim is reached.
func (o outcome) reached(a aim) (float64, bool) {
	of := a.of
	if of == "" {
		of = "leasehold"
	}
	var v float64
	switch {
	case a.over != "":
		v = o.multiple(of, a.metric, a.over, a.atLeast > 0)
	case a.atMost == 0 && a.atLeast == 0: // must not happen in any repetition
		v = o.worst(of, a.metric)
	default:
		v = o.value(of, a.metric)
	}
	if a.atLeast > 0 {
		return v, v >= a.atLeast
	}
	return v, v <= a.atMost
}

func (a aim) bound() string {
	if a.atLeast > 0 {
		return "≥ " + strconv.FormatFloat(a.atLeast, 'g', -1, 64)
	}
	return "≤ " + strconv.FormatFloat(a.atMost, 'g', -1, 64)
}

// sections are the tables of a run in Markdown, by the names of their sections.
type sections map[string]string

// inOrder lists all sections in page order.
var inOrder = []string{"in short", "cells", "aims"}

func (s sections) String() string {
	var all []string
	for _, name := range inOrder {
		all = append(all, s[name])
	}
	return strings.Join(all, "\n")
}

// report returns the tables of a run.
func report(about string, all []outcome) sections {
	var short, cells, aims strings.Builder
	fmt.Fprintf(&short, "| | leasehold | best alternative | | leasehold ÷ alternative |\n|---|---:|---:|---|---:|\n")
	fmt.Fprintf(&cells, "%s\n", about)
	fmt.Fprintf(&aims, "| cell | metric | target | measured | result |\n|---|---|---|---|---|\n")
	for _, o := range all {
		o.short(&short)
		o.write(&cells)
		for _, a := range o.cell.aims {
			v, ok := o.reached(a)
			said := "missed"
			switch {
			case ok:
				said = "met"
			case math.IsNaN(v) && o.errs["leasehold"] == nil:
				continue // not part of this run
			}
			fmt.Fprintf(&aims, "| %s | %s | %s | %s | %s |\n", o.cell.name, a.what, a.bound(), number(v, 2), said)
		}
	}
	return sections{"in short": short.String(), "cells": cells.String(), "aims": aims.String()}
}

// short writes the cell's rows of the summary table: leasehold next to the alternative with the best
// median.
func (o outcome) short(w io.Writer) {
	for _, h := range o.cell.headlines {
		rival := ""
		for _, name := range o.cell.contenders {
			k, v := contenders[name].kind, o.value(name, h.metric)
			if k != peer && k != java || math.IsNaN(v) {
				continue
			}
			if known := o.value(rival, h.metric); rival == "" || h.less && v < known || !h.less && v > known {
				rival = name
			}
		}
		fmt.Fprintf(w, "| %s (`%s`) | %s | %s | %s | %s |\n", h.text, o.cell.name, number(o.value("leasehold", h.metric), h.digits),
			number(o.value(rival, h.metric), h.digits), rival, number(o.multiple("leasehold", h.metric, rival, !h.less), 2))
	}
}

func (o outcome) write(w io.Writer) {
	c := o.cell
	fmt.Fprintf(w, "\n### `%s`: %s\n\n|", c.name, c.title)
	for _, col := range c.columns {
		fmt.Fprintf(w, " | %s", col.head)
	}
	fmt.Fprintf(w, " |\n|---%s|\n", strings.Repeat("|---:", len(c.columns)))
	var notes []string
	for _, name := range c.contenders {
		_, measured := o.reps[0][name]
		if o.errs[name] == nil && !measured {
			continue // not part of this run
		}
		fmt.Fprintf(w, "| %s", name)
		for _, col := range c.columns {
			v := o.value(name, col.metric)
			if col.multiple {
				v = o.multiple(name, col.metric, c.reference, true)
			}
			fmt.Fprintf(w, " | %s", number(v, col.digits))
		}
		fmt.Fprintln(w, " |")
		for metric, says := range map[string]string{
			"violations": "overlaps of two holders", "failed": "calls failed", "hung": "goroutines did not return",
		} {
			if n := o.worst(name, metric); n > 0 {
				notes = append(notes, fmt.Sprintf("%s: %s %s in the worst repetition.", name, number(n, 0), says))
			}
		}
		if errs := o.errs[name]; errs != nil {
			notes = append(notes, fmt.Sprintf("%s: %d repetitions failed, the first with %q.", name, len(errs), errs[0]))
		}
	}
	slices.Sort(notes)
	for _, n := range notes {
		fmt.Fprintf(w, "\n%s\n", n)
	}
}

// number returns v with the given number of decimals, and commas between thousands.
func number(v float64, digits int) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "–"
	}
	text := strconv.FormatFloat(v, 'f', digits, 64)
	whole, rest, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0 && whole[i-1] != '-'; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if rest != "" {
		return whole + "." + rest
	}
	return whole
}

// marks returns the lines before and after a section in a document.
func marks(name string) (begin, end string) {
	return "<!-- make bench, " + name + ": begin -->\n", "<!-- make bench, " + name + ": end -->\n"
}

// replaced returns the document with the content between each section's marks replaced.
func replaced(document string, s sections) (string, error) {
	for _, name := range inOrder {
		begin, end := marks(name)
		before, rest, ok := strings.Cut(document, begin)
		_, after, closed := strings.Cut(rest, end)
		if !ok || !closed {
			return "", fmt.Errorf("has no %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
		}
		document = before + begin + s[name] + end + after
	}
	return document, nil
}
