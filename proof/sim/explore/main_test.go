package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/proof/sim"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A plan has the same history each time, to the last byte of its trace, and a different one in another
// order.
func TestExact_replays(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program for WebAssembly")
	}
	p, err := loadExact(t.Context(), t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	others := 0
	for seed, kind := range sim.Kinds {
		plan := sim.NewPlan(uint64(seed+1), kind)
		var traces []string
		for range 2 {
			r, err := p(t.Context(), false, plan)
			if err != nil {
				t.Fatal(err)
			}
			traces = append(traces, r[0].Trace)
		}
		if traces[0] != traces[1] {
			t.Errorf("seed %d of %s: trace %s, and then %s", seed+1, kind, traces[0], traces[1])
		}
		plan.Order++
		if r, err := p(t.Context(), false, plan); err == nil && r[0].Trace != traces[0] {
			others++
		}
	}
	if others == 0 {
		t.Error("the order makes no difference: the trace does not have what happened")
	}
}

// A failing plan is found, and shrunk to its essentials.
func TestExplore_finds(t *testing.T) {
	var out bytes.Buffer
	// Here, a plan fails if two actors use one lock.
	wrong := func(_ context.Context, _ bool, plans ...sim.Plan) (all []sim.Result, _ error) {
		for _, p := range plans {
			r := sim.Result{Seed: p.Seed, Trace: "x"}
			if len(p.Actors) > 1 && slices.ContainsFunc(p.Faults, func(f sim.Fault) bool { return f.What == sim.Pause }) {
				r.Wrong = []string{"a and b hold plain0"}
			}
			all = append(all, r)
		}
		return all, nil
	}
	o := options{seeds: 1000, from: 1, batch: 7, workers: 2, twice: 2, kinds: "plain"}
	failed, code := o.explore(t.Context(), &out, wrong, []string{"plain"})
	if failed == nil || code != 1 {
		t.Fatalf("%v, %d: %s", failed, code, out.String())
	}
	o.explain(t.Context(), &out, wrong, *failed)
	small, _ := sim.Shrink(failed.plan, func(p sim.Plan) bool {
		r, _ := wrong(t.Context(), false, p)
		return len(r[0].Wrong) > 0
	})
	if len(small.Actors) != 2 || len(small.Faults) != 1 || len(small.Actors[0].Ops) != 1 || small.Actors[0].Ops[0].Hold > time.Millisecond {
		t.Errorf("%+v", small)
	}
	if !strings.Contains(out.String(), "the smallest of") {
		t.Error(out.String())
	}
}

// -plan plays the plan in a file.
func TestWith_plan(t *testing.T) {
	plan := sim.NewPlan(7, "plain")
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var played []sim.Plan
	exact := func() (player, error) {
		return func(_ context.Context, _ bool, plans ...sim.Plan) ([]sim.Result, error) {
			played = append(played, plans...)
			return make([]sim.Result, len(plans)), nil
		}, nil
	}
	var out bytes.Buffer
	if _, err := (options{plan: file}).with(t.Context(), &out, t.TempDir(), exact); err != nil {
		t.Fatal(err)
	}
	if len(played) != 1 || !reflect.DeepEqual(played[0], plan) {
		t.Errorf("it played %+v", played)
	}
}

// If the program ends before all plans were played, the first of the remaining plans has failed.
func TestResults(t *testing.T) {
	plans := []sim.Plan{{Seed: 1}, {Seed: 2}}
	r, err := results(plans, []byte("x\nRESULT {\"Seed\":1}\npanic: deadlock\n"), nil)
	if err != nil || len(r) != 2 || len(r[0].Wrong) > 0 || len(r[1].Wrong) != 1 || r[1].Seed != 2 {
		t.Errorf("%v, %v", r, err)
	}
}
