package main

import (
	"os"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/docs/programs/programtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	programtest.Child(func() error { return run(os.Getenv("REDIS_URL"), programtest.Work) })
	goleak.VerifyTestMain(m, redistest.NotOurs())
}

// queue is the stream of jobs as a test sees it.
type queue struct {
	t *testing.T
	*redistest.Server
}

func (q queue) worker() *programtest.Process {
	return programtest.Start(q.t, "REDIS_URL="+q.URL())
}

// add adds a job, and returns its ID in the stream.
func (q queue) add(id, order string) string {
	q.t.Helper()
	added := q.Do(q.t, "XADD", "jobs", "*", "id", id, "order", order)
	entry, err := added.ToString()
	if err != nil {
		q.t.Fatal(err)
	}
	return entry
}

// number returns the integer that a command replies.
func (q queue) number(args ...string) int64 {
	q.t.Helper()
	reply := q.Do(q.t, args...)
	n, err := reply.ToInt64()
	if err != nil {
		q.t.Fatalf("%q: %v", args, err)
	}
	return n
}

// pending is how many jobs were delivered and are not acknowledged.
func (q queue) pending() int64 {
	q.t.Helper()
	reply := q.Do(q.t, "XPENDING", "jobs", "workers")
	all, err := reply.ToArray()
	if err != nil {
		q.t.Fatal(err)
	}
	n, err := all[0].ToInt64()
	if err != nil {
		q.t.Fatal(err)
	}
	return n
}

// late makes a delivered job one that no worker acknowledged in time.
func (q queue) late(entry string) {
	q.t.Helper()
	q.Do(q.t, "XCLAIM", "jobs", "workers", "nobody", "0", entry, "IDLE", "60000", "JUSTID")
}

// done is whether the queue is empty, and the lock is free.
func (q queue) done() bool {
	q.t.Helper()
	return q.number("XLEN", "jobs") == 0 && q.pending() == 0 && q.number("EXISTS", "orders:42") == 0
}

// After SIGTERM, a worker keeps its lock until the job is done, acknowledges the job, and takes no other one.
func TestQueue_sigterm(t *testing.T) {
	q := queue{t, redistest.Start(t)}
	q.add("j-1", "42")
	w := q.worker()
	w.Await("working on 42")
	next := q.add("j-2", "43")
	w.Terminate()
	if q.number("EXISTS", "orders:42") != 1 || q.pending() != 1 {
		t.Error("SIGTERM released the lock of a job that is not done, or acknowledged the job")
	}
	w.Finish()
	if out := w.End(); strings.Contains(out, "canceled") || strings.Contains(out, "working on 43") {
		t.Errorf("SIGTERM ended the job, or the worker took another one: %s", out)
	}
	if q.Do(t, "XDEL", "jobs", next); !q.done() {
		t.Error("the job that was done is not removed, or its lock is not released")
	}
}

// A job that is delivered again while it is being done does not run twice, not even if its worker could not acknowledge it.
func TestQueue_delivered_again(t *testing.T) {
	q := queue{t, redistest.Start(t)}
	entry := q.add("j-1", "42")
	one := q.worker()
	one.Await("working on 42")
	q.late(entry)
	two := q.worker()
	two.Await("not acquired")
	one.Finish()
	programtest.Until(t, "the job is done", q.done)

	q.add("j-1", "42") // by a producer that retries
	programtest.Until(t, "the copy is removed", q.done)
	for _, w := range []*programtest.Process{one, two} {
		w.Terminate()
		if out := w.End(); strings.Count(out, "working on 42") > 1 || w == two && strings.Contains(out, "working on") {
			t.Errorf("the job ran again: %s", out)
		}
	}
}

// A job whose worker dies is done by another one.
func TestQueue_killed(t *testing.T) {
	q := queue{t, redistest.Start(t)}
	entry := q.add("j-1", "42")
	one := q.worker()
	one.Await("working on 42")
	one.Kill()
	q.Do(t, "PEXPIRE", "orders:42", "1") // as if a minute had passed
	q.late(entry)
	two := q.worker()
	two.Await("working on 42")
	two.Finish()
	programtest.Until(t, "the job is done", q.done)
	two.Terminate()
	two.End()
}

// A job whose worker died is done although many older ones cannot be, because their order is busy.
func TestQueue_behindBusyOrders(t *testing.T) {
	q := queue{t, redistest.Start(t)}
	q.Do(t, "XGROUP", "CREATE", "jobs", "workers", "0", "MKSTREAM")
	for range 30 {
		q.add("j-1", "42")
	}
	entry := q.add("j-2", "43")
	q.Do(t, "XREADGROUP", "GROUP", "workers", "nobody", "STREAMS", "jobs", ">")
	q.late(entry)
	w := q.worker()
	w.Await("working on 43")
	w.Finish()
	programtest.Until(t, "the job is done", func() bool { return q.number("XLEN", "jobs") == 30 })
	w.Terminate()
	w.End()
}
