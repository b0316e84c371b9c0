package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/leasehold-go/leasehold/proof/sim"
	"github.com/yuin/gopher-lua/parse"
)

// Each text that a mutant replaces occurs exactly once in the given file, and the replacement compiles.
// Building each mutant would take long, so the Go files are built once, with all changes.
func TestMutants(t *testing.T) {
	root, err := library(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := mutant{name: "all"}
	for _, m := range mutants {
		overlay, err := m.overlay(t.TempDir(), root)
		if err != nil {
			t.Error(err)
			continue
		}
		text, err := os.ReadFile(overlay)
		if err != nil {
			t.Fatal(err)
		}
		var files struct{ Replace map[string]string }
		if err := json.Unmarshal(text, &files); err != nil {
			t.Fatal(err)
		}
		for file, instead := range files.Replace {
			if filepath.Ext(file) != ".lua" {
				continue
			}
			script, err := os.ReadFile(instead)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := parse.Parse(bytes.NewReader(script), file); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
		}
		all.edits = append(all.edits, slices.DeleteFunc(slices.Clone(m.edits), func(e edit) bool { return filepath.Ext(e.file) == ".lua" })...)
	}
	overlay, err := all.overlay(t.TempDir(), root)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-overlay", overlay, "github.com/leasehold-go/leasehold/client").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A mutant is played until a plan fails. If none does, the mutant is not caught.
func TestMutants_row(t *testing.T) {
	o := options{seeds: 50, batch: 5, workers: 2}
	for _, test := range []struct {
		from   uint64 // the first failing seed
		row    string
		caught bool
	}{
		{33, "| x | plain | 33 | a and b hold plain0 |", true},
		{51, "| x | plain | none of 50 | nothing |", false},
	} {
		row, caught, err := o.row(t.Context(), mutant{name: "x", kind: "plain"}, func(_ context.Context, _ bool, plans ...sim.Plan) (all []sim.Result, _ error) {
			for _, p := range plans {
				r := sim.Result{Seed: p.Seed}
				if p.Seed >= test.from {
					r.Wrong = []string{"a and b hold plain0\nand more"}
				}
				all = append(all, r)
			}
			return all, nil
		})
		if row != test.row || caught != test.caught || err != nil {
			t.Errorf("%q, %t, %v; want %q, %t", row, caught, err, test.row, test.caught)
		}
	}
	nowhere := mutant{name: "x", edits: []edit{{"doc.go", "no such text", ""}}}
	if _, err := nowhere.overlay(t.TempDir(), "../.."); err == nil {
		t.Error("a text that is not there is no error")
	}
}
