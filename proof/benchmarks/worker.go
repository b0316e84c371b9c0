//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// workerEnv is set, to a role, in the environment of worker processes.
const workerEnv = "LEASEHOLD_BENCHMARKS_WORKER"

// role is the task of a worker process.
type role struct {
	Contender string
	Settings  settings
	Process   int    // its number among the processes of this contender
	Board     string // a file
	CPU, Mem  string // files for profiles; empty for none
	Redisson  string // the jar of integration/redisson; empty for none
}

// job is one piece of work. A worker does one at a time.
type job struct {
	Do         string // a name in jobs
	Goroutines int
	Each       bool          // a lock for each goroutine, not one for all
	Read       bool          // read locks
	Endless    bool          // the calls' context is never canceled
	Inside     time.Duration // work while the lock is held
	Begin, End int64         // by monotonic
	ComeBack   time.Duration // time for goroutines to return, once they should
	Names      int           // how many locks to hold or to use in turn, keys to use, or elements in a call
	PerSecond  int           // the rate limit of a key
	State      string        // of the clients in a fleet
}

// result is the result of a job; each job sets some of the fields.
type result struct {
	Err string

	Counts   []int64 // acquisitions of each goroutine between Begin and End
	Total    int64   // acquisitions, including those after End by goroutines that were waiting then
	Switches int64   // how many of Counts followed an acquisition of another goroutine
	Moves    int64   // how many of Counts followed an acquisition of another process
	AllMoves int64   // how many of Total did so
	Waits    histogram
	Longest  time.Duration

	Violations int64 // another holder was inside at the same time
	Failed     int64 // calls that returned an error
	Admitted   int64 // permits granted by a rate limiter, or elements found by a filter
	Hung       int64 // goroutines that did not return

	CPU       time.Duration // of a loop; otherwise of the process, at the start of the job
	CPUAfter  time.Duration // of the process, at the end of the job
	Mallocs   uint64
	Bytes     uint64
	RSS       int64 // bytes
	Heap      int64 // bytes in use after a garbage collection
	Routines  int
	At        int64 // by monotonic
	Handovers []time.Duration
}

// work does the jobs read from in, until EOF.
func work(text string, in io.Reader, out io.Writer) error {
	var r role
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return err
	}
	b, unmap, err := openBoard(r.Board)
	if err != nil {
		return err
	}
	defer unmap()
	stop, err := profile(r)
	if err != nil {
		return err
	}
	defer stop()
	c, err := contenders[r.Contender].open(r.Settings)
	if err != nil {
		return err
	}
	w := &working{role: r, board: b, contender: c}
	answers := json.NewEncoder(out)
	for jobs := json.NewDecoder(bufio.NewReader(in)); ; {
		var j job
		if err := jobs.Decode(&j); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		var res result
		res.CPU = cpu()
		if do, ok := toDo[j.Do]; !ok {
			res.Err = "no such job: " + j.Do
		} else if err := do(w, j, &res); err != nil {
			res.Err = err.Error()
		}
		res.CPUAfter = cpu()
		if err := answers.Encode(res); err != nil {
			return err
		}
	}
	if !w.hung { // otherwise Close could block forever
		c.Close()
	}
	return nil
}

// working is the worker's side of a worker process.
type working struct {
	role
	board     *board
	contender contender
	hung      bool // a goroutine of the worker did not return
	keep      keep
	filter    filter // made by fill
	fleet     fleet  // made by muster
}

var toDo = map[string]func(*working, job, *result) error{
	"loop":     (*working).loop,
	"handover": (*working).handover,
	"take":     (*working).take,
	"give":     (*working).give,
	"queue":    (*working).queue,
	"drain":    (*working).drain,
	"look":     (*working).look,
	"latch":    (*working).latch,
	"rate":     (*working).rate,
	"fill":     (*working).fill,
	"look up":  (*working).lookUp,
	"muster":   (*working).muster,
	"replace":  (*working).replace,
	"disband":  (*working).disband,
}

// look returns the current resource usage of the process.
func (w *working) look(_ job, res *result) (err error) {
	res.Routines = runtime.NumGoroutine()
	res.Heap = heap()
	res.RSS, err = residentSize()
	return err
}

// lockName returns the name of the n-th lock.
func lockName(n int) string { return "bench:" + strconv.Itoa(n) }

// cpu returns the CPU time used by this process.
func cpu() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// residentSize returns the resident size of the process after freed memory is returned to the
// system.
func residentSize() (int64, error) {
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

func profile(r role) (stop func(), err error) {
	var files []*os.File
	create := func(name string) *os.File {
		f, e := os.Create(name)
		err = errors.Join(err, e)
		files = append(files, f)
		return f
	}
	if r.CPU != "" {
		if f := create(r.CPU); err == nil {
			err = pprof.StartCPUProfile(f)
		}
	}
	var mem *os.File
	if r.Mem != "" {
		runtime.MemProfileRate = 1 // every allocation
		mem = create(r.Mem)
	}
	return func() {
		pprof.StopCPUProfile()
		if mem != nil {
			_ = pprof.Lookup("allocs").WriteTo(mem, 0)
		}
		for _, f := range files {
			_ = f.Close()
		}
	}, err
}

// worker is the parent's side of a worker process.
type worker struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
	jobs *json.Encoder
}

// startWorker starts a process for the role. The process ends with this one.
func startWorker(r role) (*worker, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	if contenders[r.Contender].kind == java {
		cmd = exec.Command("java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", r.Redisson, "leasehold.interop.Bench")
	}
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &worker{cmd: cmd, in: in, out: json.NewDecoder(bufio.NewReader(out)), jobs: json.NewEncoder(in)}, nil
}

// send gives the worker a job; receive waits for its result.
func (w *worker) send(j job) error { return w.jobs.Encode(j) }

func (w *worker) receive() (result, error) {
	var res result
	if err := w.out.Decode(&res); err != nil {
		return res, fmt.Errorf("worker %d: %w", w.cmd.Process.Pid, err)
	}
	if res.Err != "" {
		return res, fmt.Errorf("worker %d: %s", w.cmd.Process.Pid, res.Err)
	}
	return res, nil
}

// stop ends the process, which exits when there are no more jobs; if it does not, it is killed soon
// after.
func (w *worker) stop() {
	w.in.Close()
	kill := time.AfterFunc(3*time.Second, func() { _ = w.cmd.Process.Kill() })
	_ = w.cmd.Wait()
	kill.Stop()
}

// profiles returns the files for a worker's profiles, in the directories cpu and mem.
func profiles(cpu, mem, cell, contender string, process int) (cpuFile, memFile string) {
	name := fmt.Sprintf("%s-%s-%d", cell, contender, process)
	if cpu != "" {
		cpuFile = filepath.Join(cpu, name+".cpu.pprof")
	}
	if mem != "" {
		memFile = filepath.Join(mem, name+".allocs.pprof")
	}
	return cpuFile, memFile
}
