// Command explore plays histories of the client library, one per seed, and shrinks those that violate a rule.
//
//	go run ./explore -seeds 10000
//	go run ./explore -kind plain -seed 4711 -history
//	go run ./explore -mutants .
//
// The library, the in-memory server and the network are one program. Seeds are first played by the native
// program, which is fast but not deterministic: goroutines that are runnable at the same instant run in any order.
// The program is therefore also built as WebAssembly, which has no threads, and gets its clocks and its random
// numbers from this command. There a plan always plays the same history, to the last instruction. A plan that
// violated a rule is played there in several orders until it violates a rule again, and is then shrunk.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/proof/sim"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
)

func main() {
	var o options
	flag.Uint64Var(&o.seeds, "seeds", 2000, "`number` of seeds to play, of all kinds in turn")
	flag.Uint64Var(&o.from, "from", uint64(time.Now().Unix())*1000, "the first `seed` (default derived from the time)")
	flag.StringVar(&o.kinds, "kind", strings.Join(sim.Kinds, ","), "`kinds` of plans, separated by commas; "+sim.Crowd+" is another")
	flag.Uint64Var(&o.one, "seed", 0, "play one `seed` of one kind")
	flag.StringVar(&o.plan, "plan", "", "play the plan in this `file`")
	flag.BoolVar(&o.history, "history", false, "print the history")
	flag.IntVar(&o.workers, "workers", runtime.GOMAXPROCS(0), "`number` of programs that run at a time")
	flag.Uint64Var(&o.twice, "twice", 20, "play one of `n` batches twice and compare; 0 for none")
	flag.BoolVar(&o.exact, "exact", false, "play all seeds in WebAssembly, which replays exactly and takes ten times as long")
	flag.Uint64Var(&o.batch, "batch", 20, "`number` of seeds per program; starting a program takes as long as playing three seeds")
	flag.StringVar(&o.overlay, "overlay", "", "a `file` for go build -overlay, to play a mutant")
	flag.StringVar(&o.mutants, "mutants", "", "play each mutant whose name matches this `expression`, from seed 1 until a rule is violated")
	flag.BoolVar(&o.shrink, "shrink", true, "shrink a plan that violates a rule")
	flag.Parse()
	os.Exit(o.run(context.Background(), os.Stdout))
}

type options struct {
	seeds, from, one, twice, batch uint64
	kinds, plan, overlay, mutants  string
	history, shrink, exact         bool
	workers                        int
}

// run returns the exit code: 1 if a rule was violated, 2 if the program failed.
func (o options) run(ctx context.Context, out io.Writer) int {
	dir, err := os.MkdirTemp("", "leasehold-sim-")
	if err != nil {
		fmt.Fprintln(out, err)
		return 2
	}
	defer os.RemoveAll(dir)
	exact := sync.OnceValues(func() (player, error) { return loadExact(ctx, dir, o.overlay) })
	code, err := o.with(ctx, out, dir, exact)
	if err != nil {
		fmt.Fprintln(out, err)
		return 2
	}
	return code
}

func (o options) with(ctx context.Context, out io.Writer, dir string, exact func() (player, error)) (int, error) {
	if o.mutants != "" {
		return o.catch(ctx, out)
	}
	kinds := strings.Split(o.kinds, ",")
	if o.plan != "" || o.one != 0 {
		plan := sim.NewPlan(o.one, kinds[0])
		if o.plan != "" {
			text, err := os.ReadFile(o.plan)
			plan = sim.Plan{}
			if err == nil {
				err = json.Unmarshal(text, &plan)
			}
			if err != nil {
				return 2, err
			}
		}
		p, err := exact()
		if err != nil {
			return 2, err
		}
		return o.tell(ctx, out, p, plan), nil
	}
	p, err := exact, error(nil)
	if !o.exact {
		p = func() (player, error) { return loadFast(ctx, dir, o.overlay) }
	}
	first, err := p()
	if err != nil {
		return 2, err
	}
	failed, code := o.explore(ctx, out, first, kinds)
	if failed != nil {
		o.say(out, *failed)
	}
	if failed != nil && o.shrink {
		p, err := exact()
		if err != nil {
			return 2, err
		}
		o.explain(ctx, out, p, *failed)
	}
	return code, nil
}

// tell plays one plan, and prints the result.
func (o options) tell(ctx context.Context, out io.Writer, p player, plan sim.Plan) int {
	results, err := p(ctx, o.history, plan)
	if err != nil {
		fmt.Fprintln(out, err)
		return 2
	}
	r := results[0]
	for _, line := range r.History {
		fmt.Fprintln(out, line)
	}
	fmt.Fprintf(out, "%v, %d of them handed off inside a client, %d holds lost, %d faults in %v; trace %s\n", r.Grants, r.Passed, r.Losses, r.Faults, r.Lasted, r.Trace)
	for _, what := range r.Wrong {
		fmt.Fprintln(out, "WRONG:", what)
	}
	if len(r.Wrong) > 0 {
		return 1
	}
	return 0
}

// explore plays many seeds, until one fails.
func (o options) explore(ctx context.Context, out io.Writer, p player, kinds []string) (failed *found, code int) {
	began := time.Now()
	fmt.Fprintf(out, "seeds %d to %d of %s\n", o.from, o.from+o.seeds-1, o.kinds)
	var mu sync.Mutex // guards the variables below
	var next, again, differ uint64
	all := sim.Result{Grants: sim.Grants{}}
	var played int
	take := func() (batch []sim.Plan, first uint64) {
		mu.Lock()
		defer mu.Unlock()
		first = next
		for ; failed == nil && next < o.seeds && uint64(len(batch)) < o.batch; next++ {
			batch = append(batch, sim.NewPlan(o.from+next, kinds[next%uint64(len(kinds))]))
		}
		return batch, first
	}
	note := func(batch []sim.Plan, first uint64, results, others []sim.Result) {
		mu.Lock()
		defer mu.Unlock()
		for i, r := range results {
			played++
			all.Grants.Add(r.Grants)
			all.Passed += r.Passed
			all.Losses, all.Faults = all.Losses+r.Losses, all.Faults+r.Faults
			if len(r.Wrong) > 0 && (failed == nil || first+uint64(i) < failed.n) {
				failed = &found{batch[i], kinds[(first+uint64(i))%uint64(len(kinds))], first + uint64(i), r}
			}
		}
		for i, r := range others {
			if again++; i < len(results) && r.Trace != results[i].Trace {
				differ++
			}
		}
	}
	var workers sync.WaitGroup
	for range o.workers {
		workers.Go(func() {
			for batch, first := take(); len(batch) > 0; batch, first = take() {
				results, err := p(ctx, false, batch...)
				if err != nil {
					fmt.Fprintln(out, err)
					return
				}
				var others []sim.Result
				if o.twice > 0 && first/o.batch%o.twice == 0 {
					others, _ = p(ctx, false, batch...)
				}
				note(batch, first, results, others)
			}
		})
	}
	workers.Wait()
	took := time.Since(began)
	fmt.Fprintf(out, "%d histories in %v (%.0f per minute): %v, %d of them handed off inside a client, %d holds lost, %d faults; %d plans were played twice, %d of them with the same trace\n",
		played, took.Round(time.Second/10), float64(played)/took.Minutes(), all.Grants, all.Passed, all.Losses, all.Faults, again, again-differ)
	switch {
	case failed != nil, o.exact && differ > 0:
		return failed, 1
	case uint64(played) < o.seeds:
		return nil, 2
	}
	return nil, 0
}

// orders is the maximum number of orders in which a failing plan is replayed until it fails again.
const orders = 50

// say prints the violations.
func (o options) say(out io.Writer, f found) {
	fmt.Fprintf(out, "seed %d of %s violates a rule (number %d of the run):\n", f.plan.Seed, f.kind, f.n+1)
	for _, what := range f.result.Wrong {
		fmt.Fprintln(out, "WRONG:", what)
	}
}

// explain finds the smallest plan that fails in the same way, and prints it with its history.
func (o options) explain(ctx context.Context, out io.Writer, p player, f found) {
	plan, fails := f.plan, func(plan sim.Plan) bool {
		r, err := p(ctx, false, plan)
		return err == nil && alike(f.result, r[0])
	}
	for plan.Order = range uint64(orders) {
		if fails(plan) {
			break
		}
	}
	if !fails(plan) {
		fmt.Fprintf(out, "the violation did not recur in %d orders that replay exactly\n", orders)
		return
	}
	plan, played := sim.Shrink(plan, fails)
	fmt.Fprintf(out, "the smallest of %d plans tried:\n", played)
	r, err := p(ctx, true, plan)
	if err != nil {
		fmt.Fprintln(out, err)
		return
	}
	text, _ := json.Marshal(plan)
	fmt.Fprintf(out, "%s\n", text)
	for _, line := range r[0].History {
		fmt.Fprintln(out, line)
	}
	for _, what := range r[0].Wrong {
		fmt.Fprintln(out, "WRONG:", what)
	}
	fmt.Fprintln(out, "to play it again, exactly: put the plan into a file, and go run ./explore -history -plan FILE")
}

// found is a plan that violates a rule.
type found struct {
	plan   sim.Plan
	kind   string
	n      uint64
	result sim.Result
}

// alike reports whether a and b violate the same rule.
func alike(a, b sim.Result) bool {
	return len(b.Wrong) > 0 && mistake(a.Wrong[0]) == mistake(b.Wrong[0])
}

// mistake returns the kind of a violation.
func mistake(wrong string) string {
	for _, kind := range []string{"left in Redis", "still wait", "token", "out of order", " hold ", "was free for", "the program ended"} {
		if strings.Contains(wrong, kind) {
			return kind
		}
	}
	return ""
}

// player plays plans, one after the other, in a new process.
type player func(ctx context.Context, history bool, plans ...sim.Plan) ([]sim.Result, error)

// build builds the program, with the files replaced by overlay.
func build(ctx context.Context, file, overlay string, env ...string) error {
	args := []string{"test", "-c", "-vet=off", "-o", file, "-ldflags=-s -w"}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	build := exec.CommandContext(ctx, "go", append(args, "github.com/leasehold-go/leasehold/proof/sim")...)
	build.Env = append(os.Environ(), env...)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go test -c: %w\n%s", err, out)
	}
	return nil
}

// arguments make the program play plans.
var arguments = []string{"-test.run=^TestPlay$", "-test.timeout=0"}

// input returns the environment and the standard input of the program. Plans can be too long for an environment
// variable.
func input(history bool, plans []sim.Plan) (env map[string]string, stdin io.Reader, err error) {
	text, err := json.Marshal(plans)
	env = map[string]string{"LEASEHOLD_PLANS": "stdin", "GOGC": "400"}
	if history {
		env["LEASEHOLD_HISTORY"] = "1"
	}
	return env, bytes.NewReader(text), err
}

// limited runs the program with limited address space, because a mutant that allocates without bound must not exhaust
// the memory of the machine. The program needs a few hundred MB.
const limited = `ulimit -v 4000000 2>/dev/null; exec "$0" "$@"`

// loadFast returns a player that runs the native program.
func loadFast(ctx context.Context, dir, overlay string) (player, error) {
	file := filepath.Join(dir, "sim.test")
	if err := build(ctx, file, overlay); err != nil {
		return nil, err
	}
	return func(ctx context.Context, history bool, plans ...sim.Plan) ([]sim.Result, error) {
		env, stdin, err := input(history, plans)
		if err != nil {
			return nil, err
		}
		play := exec.CommandContext(ctx, "sh", append([]string{"-c", limited, file}, arguments...)...)
		play.Dir, play.Stdin = dir, stdin
		play.Env = append(os.Environ(), "GOMAXPROCS=1") // there are as many workers as processors
		for name, value := range env {
			play.Env = append(play.Env, name+"="+value)
		}
		out, err := play.CombinedOutput()
		return results(plans, out, err)
	}, nil
}

// loadExact returns a player that runs the deterministic WebAssembly program.
func loadExact(ctx context.Context, dir, overlay string) (player, error) {
	file := filepath.Join(dir, "sim.wasm")
	if err := build(ctx, file, overlay, "GOOS=wasip1", "GOARCH=wasm"); err != nil {
		return nil, err
	}
	code, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	machine := wazero.NewRuntime(ctx)
	wasi_snapshot_preview1.MustInstantiate(ctx, machine)
	program, err := machine.CompileModule(ctx, code)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, history bool, plans ...sim.Plan) ([]sim.Result, error) {
		var seed [32]byte
		binary.LittleEndian.PutUint64(seed[:], plans[0].Seed)
		binary.LittleEndian.PutUint64(seed[8:], plans[0].Order)
		env, stdin, err := input(history, plans)
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		config := wazero.NewModuleConfig().WithName("").WithArgs(append([]string{"sim"}, arguments...)...).
			WithRandSource(rand.NewChaCha8(seed)).WithStdin(stdin).WithStdout(&out).WithStderr(&out)
		for _, name := range slices.Sorted(maps.Keys(env)) { // the environment must be identical in each run
			config = config.WithEnv(name, env[name])
		}
		m, err := machine.InstantiateModule(ctx, program, config)
		if m != nil {
			m.Close(ctx)
		}
		return results(plans, out.Bytes(), err)
	}, nil
}

// results parses the output of the program, which exited with err.
func results(plans []sim.Plan, out []byte, err error) (all []sim.Result, _ error) {
	parts := strings.Split(string(out), "\nRESULT ")
	for _, part := range parts[1:] {
		line, _, _ := strings.Cut(part, "\n")
		var r sim.Result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	if len(all) < len(plans) { // it panicked, perhaps because of a deadlock
		all = append(all, sim.Result{Seed: plans[len(all)].Seed, Wrong: []string{fmt.Sprintf("the program ended: %v\n%s", err, parts[len(parts)-1])}})
	}
	return all, nil
}
