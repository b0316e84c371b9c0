//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// bench is one run.
type bench struct {
	reps       int
	short      bool
	large      bool
	set        string // locks or kinds; empty for both
	cells      *regexp.Regexp
	contenders *regexp.Regexp
	cpuprofile string
	memprofile string
	redisson   string // a jar; if empty, Redisson is left out
	module     string // RedisBloom; if empty, it is left out
	dir        string // for files that are deleted after the run
	progress   io.Writer
}

func main() {
	if text := os.Getenv(workerEnv); text != "" {
		if err := work(text, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "benchmarks:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(1)
	}
}

func run() error {
	b := bench{progress: os.Stderr}
	var doc, pictures, cells, contenders string
	flag.IntVar(&b.reps, "reps", 5, "`repetitions`; the tables show medians")
	flag.BoolVar(&b.short, "short", false, "run each cell only briefly, to check that it works")
	flag.BoolVar(&b.large, "large", false, "include the cells that need much memory")
	flag.StringVar(&b.set, "set", "", "run only one `set` of cells: locks, or kinds (docs/evidence/performance-kinds.md)")
	flag.StringVar(&cells, "cells", "", "run only cells whose names match the `regexp`")
	flag.StringVar(&contenders, "contenders", "", "run only contenders whose names match the `regexp`")
	flag.StringVar(&b.cpuprofile, "cpuprofile", "", "write a CPU profile of each worker process to the `directory`")
	flag.StringVar(&b.memprofile, "memprofile", "", "write a profile of all allocations of each worker process to the `directory`; slows them down")
	flag.StringVar(&b.redisson, "redisson", "", "include Redisson, from the `jar` that Maven builds of integration/redisson; make bench sets it if Maven is installed")
	flag.StringVar(&b.module, "module", "", "include RedisBloom, from the `file` redisbloom.so; make bench sets it if scripts/servers.sh can fetch the module")
	flag.StringVar(&doc, "doc", "", "also write the tables into the Markdown `file`, between its marks")
	flag.StringVar(&pictures, "pictures", "", "draw the charts whose cells are part of the run into the `directory`")
	flag.Parse()

	if b.set != "" && b.set != "locks" && b.set != "kinds" {
		return fmt.Errorf("-set %s: must be locks or kinds", b.set)
	}
	var err error
	if b.cells, err = regexp.Compile(cells); err != nil {
		return err
	}
	if b.contenders, err = regexp.Compile(contenders); err != nil {
		return err
	}
	for _, dir := range []string{b.cpuprofile, b.memprofile} {
		if dir != "" {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
	}
	if b.dir, err = os.MkdirTemp("", "leasehold-benchmarks-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)

	outcomes, about, err := b.run()
	if len(outcomes) == 0 {
		return err
	}
	tables := report(about, outcomes)
	fmt.Print(tables)
	if doc != "" && err == nil {
		before, err := os.ReadFile(doc)
		if err != nil {
			return err
		}
		after, err := replaced(string(before), tables)
		if err != nil {
			return fmt.Errorf("%s: %w", doc, err)
		}
		if err := os.WriteFile(doc, []byte(after), 0o644); err != nil {
			return err
		}
	}
	if pictures != "" && err == nil {
		if err := drawn(pictures, outcomes); err != nil {
			return err
		}
	}
	return errors.Join(err, wrong(outcomes))
}

// wrong returns an error if a contender admitted two holders at once.
func wrong(outcomes []outcome) error {
	for _, o := range outcomes {
		for _, name := range o.cell.contenders {
			if n := o.worst(name, "violations"); n > 0 {
				return fmt.Errorf("%s, %s: two holders at once, %v times", o.cell.name, name, n)
			}
		}
	}
	return nil
}

// run measures the selected cells. On an error, it also returns those measured before.
func (b *bench) run() (all []outcome, about string, err error) {
	for _, c := range cells {
		if !b.cells.MatchString(c.name) || c.large && !b.large || b.set != "" && b.set != c.set() {
			continue
		}
		o, version, err := b.measure(c)
		if err != nil {
			return all, about, fmt.Errorf("%s: %w", c.name, err)
		}
		all = append(all, o)
		about = b.about(version)
	}
	return all, about, nil
}

func (b *bench) about(redis string) string {
	return fmt.Sprintf("%s. %d cores, %s/%s, %s, redis-server %s on loopback; %s. Medians of %d repetitions.",
		time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), redis,
		strings.Join(versions(), ", "), b.reps)
}

// versions returns the versions of the alternatives and of the libraries that they use.
func versions() (all []string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, d := range info.Deps {
		switch d.Path {
		case "github.com/redis/rueidis", "github.com/redis/go-redis/v9", "github.com/go-redsync/redsync/v4", "github.com/bsm/redislock",
			"github.com/go-redis/redis_rate/v10", "github.com/redis/rueidis/rueidislimiter", "github.com/throttled/throttled/v2",
			"github.com/bits-and-blooms/bloom/v3":
			all = append(all, strings.TrimPrefix(d.Path, "github.com/")+" "+d.Version)
		}
	}
	return all
}

// measure runs a cell. In each repetition all contenders are measured, one right after the other,
// in a different order each time.
func (b *bench) measure(c *cell) (o outcome, version string, err error) {
	o = outcome{cell: c, errs: map[string][]string{}}
	module := ""
	if c.module {
		module = b.module
	}
	s, err := startServers(b.dir, max(c.masters, 1), module)
	if err != nil {
		return o, "", err
	}
	defer s.stop()
	if version, err = s.version(); err != nil {
		return o, "", err
	}
	var way *delay
	if c.roundTrip > 0 {
		if way, err = newDelay(s.addr, c.roundTrip); err != nil {
			return o, "", err
		}
		defer way.close()
	}
	var stages []*stage
	for _, name := range c.contenders {
		if !b.contenders.MatchString(name) || contenders[name].kind == java && b.redisson == "" {
			continue
		}
		if asks := contenders[name].asks; asks != "" && !s.knows(asks) {
			continue
		}
		st, err := b.newStage(c, name, s, way)
		if err != nil {
			return o, "", err
		}
		defer st.close()
		stages = append(stages, st)
	}
	began := time.Now()
	for rep := range b.repetitions(c) {
		samples := map[string]sample{}
		for i := range stages {
			st := stages[(rep+i)%len(stages)]
			got, err := st.slice()
			if err != nil {
				o.errs[st.contender] = append(o.errs[st.contender], err.Error())
				continue
			}
			samples[st.contender] = got
		}
		o.reps = append(o.reps, samples)
	}
	fmt.Fprintf(b.progress, "%-12s %d contenders, %d repetitions in %v\n", c.name, len(stages), len(o.reps), time.Since(began).Round(time.Second))
	return o, version, nil
}

func (b *bench) repetitions(c *cell) int {
	if b.short {
		return b.reps
	}
	return b.reps * max(1, c.more)
}

// comeBack returns how long goroutines may take to return once they should. Pollers can take long.
func (b *bench) comeBack() time.Duration {
	if b.short {
		return 2 * time.Second
	}
	return 5 * time.Second
}

// time returns d, or less in a short run.
func (b *bench) time(d time.Duration) time.Duration {
	if b.short {
		return max(d/50, 100*time.Millisecond)
	}
	return d
}

// many returns n, or less in a short run.
func (b *bench) many(n int) int {
	if b.short {
		return max(n/50, 1)
	}
	return n
}
