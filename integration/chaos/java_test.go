//go:build linux

package chaos_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/integration/internal/redisson"
	"github.com/leasehold-go/leasehold/internal/redistest"
)

// javaThreads is how many threads of Redisson take the same locks.
const javaThreads = 4

// java is a driver process (redisson/src/main/java/leasehold/interop/Driver.java), and what its threads held. It is
// connected past the proxies: what a broken network does to Redisson's own retries is not the subject.
type java struct {
	cmd    *exec.Cmd
	exited chan struct{}
	enough atomic.Bool
	all    sync.WaitGroup

	mu              sync.Mutex
	in              *json.Encoder          // guarded by mu
	pending         map[int]chan javaReply // guarded by mu; nil once it is gone
	next            int                    // guarded by mu
	holds           map[int][]hold         // guarded by mu; by the place
	refused, failed int                    // guarded by mu
}

type javaReply struct {
	ID    int             `json:"id"`
	Value json.RawMessage `json:"value"`
	Err   string          `json:"err"`
}

// javaDid is the answer of a thread; the times are by history.Monotonic.
type javaDid struct {
	Result           any
	Called, Returned int64
}

// javaJar returns the driver's jar, "" where there is no Java. With LEASEHOLD_REQUIRE_JAVA=1 it is built, and must be there;
// otherwise a jar that make interop has built is used.
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

// startJava starts the driver and its threads, where there is Java and the topology suits.
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
		// The kernel kills the child when the thread that started it ends.
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
				j.once(s.plan.Places, fmt.Sprint("t", i), i, r)
			}
		})
	}
	return j
}

// read delivers the replies until the process is gone.
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

// call has the process carry out a command.
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

// thread has a thread of it call a method of a lock.
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

// once takes a lock with a lease, and gives it back. Redisson promises nothing about a hold that it renews, but one with a
// lease lasts until that much time after the call.
func (j *java) once(places []place, name string, number int, r *rand.Rand) {
	at := r.IntN(len(places))
	p := places[at]
	// Not the fair ones: a caller of Redisson whose call fails stays in their queue for 300 s, and all others behind it.
	if p.Fenced || p.Kind != "plain" && p.Kind != "rw" || at == 0 && r.IntN(4) > 0 {
		return
	}
	kind, side := p.Kind, byte(0)
	if kind == "rw" {
		if kind, side = "read", 'r'; r.IntN(4) == 0 {
			kind, side = "write", 'w'
		}
	}
	method, limits := "tryLock", map[string]any{"lease": longest.Milliseconds(), "wait": 0}
	if r.IntN(2) == 0 {
		method, limits = "lock", map[string]any{"lease": longest.Milliseconds()}
	}
	took, err := j.thread(name, p, kind, method, limits)
	j.mu.Lock()
	switch {
	case err != nil:
		j.failed++
	case method == "tryLock" && took.Result != true:
		j.refused++
	}
	j.mu.Unlock()
	if err != nil || method == "tryLock" && took.Result != true {
		return
	}
	if r.IntN(10) == 0 {
		time.Sleep(time.Duration(r.IntN(int(20 * time.Millisecond))))
	}
	gave, err := j.thread(name, p, kind, "unlock", nil)
	end := took.Called + int64(longest-longest/100-2*time.Millisecond)
	h := hold{Process: "java", record: record{
		Call: took.Called, Granted: took.Returned, Until: end, Goroutine: int32(number), Place: int16(at), Permits: 1, Side: side, Flags: flagFixed,
	}}
	if err == nil {
		h.Release, h.Released, h.Outcome = gave.Called, gave.Returned, outcomeOK
		end = min(end, gave.Called)
	} else {
		h.Outcome, end = outcomeUnknown, took.Returned // it may have lost it, and is not told before
	}
	h.End, h.Look = end, end
	j.mu.Lock()
	defer j.mu.Unlock()
	h.Owner = int64(len(j.holds[at]))*javaThreads + int64(number)
	j.holds[at] = append(j.holds[at], h)
}

// finish waits until its threads are done.
func (j *java) finish(tb testing.TB) {
	if j == nil {
		return
	}
	j.enough.Store(true)
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
	_ = j.cmd.Process.Kill() // it may be gone
	<-j.exited
}

// version is Redisson's.
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
