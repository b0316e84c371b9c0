//go:build linux

package chaos_test

import (
	"encoding/json"
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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/integration/internal/history"
	"github.com/leasehold-go/leasehold/integration/internal/redisson"
	"github.com/leasehold-go/leasehold/internal/redistest"
)

// javaThreads is the number of Redisson's threads, which acquire the same locks.
const javaThreads = 4

// java is a driver process (redisson/src/main/java/leasehold/interop/Driver.java), with the holds of its threads. It
// bypasses the proxies: the effect of a broken network on Redisson's own retries is not tested.
type java struct {
	cmd    *exec.Cmd
	exited chan struct{}
	enough atomic.Bool
	all    sync.WaitGroup

	mu              sync.Mutex
	in              *json.Encoder          // guarded by mu
	pending         map[int]chan javaReply // guarded by mu; nil once the process has exited
	next            int                    // guarded by mu
	holds           map[int][]hold         // guarded by mu; by the number of the place
	refused, failed int                    // guarded by mu

	// resent is how many requests for a permit Redisson may have sent twice.
	resent atomic.Int32
}

type javaReply struct {
	ID    int             `json:"id"`
	Value json.RawMessage `json:"value"`
	Err   string          `json:"err"`
}

// javaDid is the reply of a thread; the times are by history.Monotonic.
type javaDid struct {
	Result           any
	Called, Returned int64
}

// javaJar returns the driver's jar, or "" without Java. With LEASEHOLD_REQUIRE_JAVA=1 it is built, and must exist;
// otherwise a jar built by make interop is used.
func javaJar(tb testing.TB) string {
	tb.Helper()
	required := os.Getenv("LEASEHOLD_REQUIRE_JAVA") == "1"
	if !required {
		if _, err := exec.LookPath("java"); err != nil {
			return ""
		}
		if _, err := os.Stat("../redisson/target/driver.jar"); err != nil {
			return ""
		}
	}
	jar, err := redisson.Build("../redisson")
	if err != nil {
		if required {
			tb.Fatal(err)
		}
		return ""
	}
	return jar
}

// startJava starts the driver and its threads, if there is Java and the topology is suitable.
func (s *scene) startJava() *java {
	if s.plan.Topology == "quorum" || os.Getenv("LEASEHOLD_CHAOS_JAVA") == "off" {
		return nil
	}
	jar := javaJar(s)
	if jar == "" {
		return nil
	}
	cmd := exec.Command("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-jar", jar)
	said, err := os.Create(filepath.Join(s.dir, "java.log"))
	if err != nil {
		s.Fatal(err)
	}
	defer said.Close()
	cmd.Stderr = said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		s.Fatal(err1, err2)
	}
	j := &java{cmd: cmd, exited: make(chan struct{}), in: json.NewEncoder(stdin), pending: map[int]chan javaReply{}, holds: map[int][]hold{}}
	started := make(chan error)
	go func() {
		// The kernel kills the child when the thread that started it exits.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(j.exited)
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		j.read(stdout)
		_ = cmd.Wait() // it is killed in the end
	}()
	if err := <-started; err != nil {
		s.Fatal(err)
	}
	s.Cleanup(j.kill)
	open := map[string]any{"do": "open", "client": "chaos", "lockWatchdogTimeout": lease.Milliseconds()}
	var addrs []string
	servers := s.servers
	if s.sentinel != nil {
		servers, open["master"] = s.sentinel.Sentinels, redistest.PrimaryName
	}
	for _, server := range servers {
		addrs = append(addrs, server.Addr())
	}
	open["addresses"], open["cluster"] = addrs, s.plan.Topology == "cluster"
	if r := j.call(open); r.Err != "" {
		s.Fatalf("Redisson: %s", r.Err)
	}
	for i := range javaThreads {
		r := rand.New(rand.NewPCG(s.plan.Seed, uint64(1<<40+s.plan.Round<<8+i)))
		j.all.Go(func() {
			for !j.enough.Load() {
				time.Sleep(time.Duration(r.IntN(int(10 * time.Millisecond))))
				j.once(s, fmt.Sprint("t", i), i, r)
			}
		})
	}
	return j
}

// read delivers the replies until the process exits.
func (j *java) read(out io.Reader) {
	for replies := json.NewDecoder(out); ; {
		var r javaReply
		err := replies.Decode(&r)
		j.mu.Lock()
		if err != nil {
			for _, c := range j.pending {
				c <- javaReply{Err: "the process is gone"}
			}
			j.pending = nil
			j.mu.Unlock()
			return
		}
		if c := j.pending[r.ID]; c != nil {
			c <- r
		}
		delete(j.pending, r.ID)
		j.mu.Unlock()
	}
}

// call makes the process execute a command.
func (j *java) call(command map[string]any) javaReply {
	c := make(chan javaReply, 1)
	j.mu.Lock()
	if j.pending == nil {
		j.mu.Unlock()
		return javaReply{Err: "the process is gone"}
	}
	j.next++
	j.pending[j.next] = c
	command["id"] = j.next
	err := j.in.Encode(command)
	j.mu.Unlock()
	if err != nil {
		return javaReply{Err: err.Error()}
	}
	return <-c
}

// thread makes a thread call a method of a lock.
func (j *java) thread(name string, p place, kind, method string, more map[string]any) (did javaDid, err error) {
	command := map[string]any{"do": method, "client": "chaos", "thread": name, "kind": kind, "name": p.Name}
	for k, v := range more {
		command[k] = v
	}
	r := j.call(command)
	if r.Err != "" {
		return did, fmt.Errorf("Redisson: %s", r.Err)
	}
	return did, json.Unmarshal(r.Value, &did)
}

// once acquires a lock or a permit, and releases it. Redisson guarantees nothing about a hold that it renews, so End is
// no later than when the first lease expires.
func (j *java) once(s *scene, name string, number int, r *rand.Rand) {
	at := r.IntN(len(s.plan.Places))
	p := s.plan.Places[at]
	if p.Fenced || at == 0 && r.IntN(4) > 0 {
		return
	}
	h := hold{Process: "java", record: record{Goroutine: int32(number), Place: int16(at), Permits: 1, Flags: flagFixed}}
	var ok bool
	var giveBack func() (released javaDid, err error)
	switch p.Kind {
	case "plain", "rw":
		kind := p.Kind
		if kind == "rw" {
			if kind, h.Side = "read", 'r'; r.IntN(4) == 0 {
				kind, h.Side = "write", 'w'
			}
		}
		method, limits := "tryLock", map[string]any{"lease": longest.Milliseconds(), "wait": 0}
		if r.IntN(2) == 0 {
			method, limits = "lock", map[string]any{"lease": longest.Milliseconds()}
		}
		ok = j.takes(&h, longest, func() (javaDid, error) { return j.thread(name, p, kind, method, limits) })
		giveBack = func() (javaDid, error) { return j.thread(name, p, kind, "unlock", nil) }
	case "fair":
		// Without a wait it does not enter the queue: a caller of Redisson whose call fails stays in the queue for 300
		// s, and blocks all others behind it. Such a call accepts no lease, so Redisson renews the lock.
		h.Flags = 0
		ok = j.takes(&h, lease, func() (javaDid, error) { return j.thread(name, p, "fair", "tryLock", nil) })
		giveBack = func() (javaDid, error) { return j.thread(name, p, "fair", "unlock", nil) }
	case "semaphore":
		if slices.ContainsFunc(s.plan.Servers, func(f fault) bool { return f.Do == "clock" }) {
			return // Redisson uses its own clock: if the server's clock moves backward, it takes permits whose leases are still valid
		}
		var ids []string
		ok = j.takes(&h, longest, func() (did javaDid, err error) {
			did, err = j.permit(p, "acquire", map[string]any{"n": 1, "wait": r.IntN(20), "lease": longest.Milliseconds()})
			if err != nil || did.Returned-did.Called > time.Second.Nanoseconds() { // it waits for 20 ms, and for the reply
				j.resent.Add(1)
			}
			if err == nil {
				ids, err = did.ids()
			}
			did.Result = len(ids) == 1
			return did, err
		})
		giveBack = func() (javaDid, error) { return j.permit(p, "tryRelease", map[string]any{"elements": ids}) }
	default:
		return
	}
	if !ok {
		return
	}
	if r.IntN(10) == 0 {
		time.Sleep(time.Duration(r.IntN(int(20 * time.Millisecond))))
	}
	gave, err := giveBack()
	if err == nil && gave.Result != false {
		h.Release, h.Released, h.Outcome = gave.Called, gave.Returned, outcomeOK
		h.End = min(h.Until, gave.Called)
	} else {
		h.Outcome, h.End = outcomeUnknown, h.Granted // it may have lost the hold without being notified
	}
	h.Look = h.End
	j.mu.Lock()
	defer j.mu.Unlock()
	h.Owner = int64(len(j.holds[at]))*javaThreads + int64(number)
	j.holds[at] = append(j.holds[at], h)
}

// takes reports whether a call acquired what it requested, for at least the given time, and records the times in h.
func (j *java) takes(h *hold, least time.Duration, call func() (javaDid, error)) bool {
	took, err := call()
	if err == nil && took.Result != false {
		h.Call, h.Granted, h.Until = took.Called, took.Returned, took.Called+int64(least-least/100-2*time.Millisecond)
		return true
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.failed++
	} else {
		j.refused++
	}
	return false
}

// permit calls a method of a semaphore. The driver does not report the times, so they are measured around the call.
func (j *java) permit(p place, method string, more map[string]any) (did javaDid, err error) {
	command := map[string]any{"do": "permit." + method, "client": "chaos", "name": p.Name}
	maps.Copy(command, more)
	did.Called = history.Monotonic()
	r := j.call(command)
	did.Returned = history.Monotonic()
	if r.Err != "" {
		return did, fmt.Errorf("Redisson: %s", r.Err)
	}
	return did, json.Unmarshal(r.Value, &did.Result)
}

// ids returns the permits in a reply.
func (d javaDid) ids() (all []string, err error) {
	some, ok := d.Result.([]any)
	if !ok {
		return nil, fmt.Errorf("Redisson: permits %v", d.Result)
	}
	for _, one := range some {
		id, ok := one.(string)
		if !ok {
			return nil, fmt.Errorf("Redisson: a permit %v", one)
		}
		all = append(all, id)
	}
	return all, nil
}

// stop makes the threads acquire no more locks.
func (j *java) stop() {
	if j != nil {
		j.enough.Store(true)
	}
}

// finish waits until the threads are done. By then no other client acquires the locks: a thread of Redisson receives no
// messages from a channel whose slot was migrated, and retries only when the lease in its last reply has expired. If
// others acquired the lock continuously, the thread would find it free only by chance.
func (j *java) finish(tb testing.TB) {
	if j == nil {
		return
	}
	done := make(chan struct{})
	go func() { j.all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		tb.Error("a thread of Redisson was forgotten")
	}
	j.kill()
	<-done
}

func (j *java) kill() {
	_ = j.cmd.Process.Kill() // it may have exited
	<-j.exited
}

// redissonVersion returns the version of Redisson.
func redissonVersion() string {
	text, err := os.ReadFile("../redisson/pom.xml")
	if err != nil {
		return "unknown"
	}
	_, rest, _ := strings.Cut(string(text), "<artifactId>redisson</artifactId>")
	_, rest, _ = strings.Cut(rest, "<version>")
	v, _, _ := strings.Cut(rest, "</version>")
	return v
}
