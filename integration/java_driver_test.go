//go:build linux

package integration_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	driver "github.com/leasehold-go/leasehold/integration/internal/redisson"
	"github.com/leasehold-go/leasehold/lock"
)

// The Go side of redisson/, a driver process that executes commands with Redisson: see
// redisson/src/main/java/leasehold/interop/Driver.java.

// fenced is a plain lock with tokens from the token counter: Java's RFencedLock.
const fenced kind = "fenced"

// javaKinds are all types of locks that both sides support.
var javaKinds = []kind{plain, fair, read, write, fenced}

// goLock returns leasehold's handle for a type that both sides support.
func goLock(c *client.Client, k kind, name string, options ...lock.Option) lock.Locker {
	if k == fenced {
		return c.NewLock(name, append(options, lock.WithFencing())...)
	}
	return k.lock(c, name, options...)
}

// javaBuilt builds the driver's jar once per run.
var javaBuilt = sync.OnceValues(func() (jar string, err error) { return driver.Build("redisson") })

// needJava skips a test that needs Java, unless LEASEHOLD_REQUIRE_JAVA is set, as make interop
// does; then the test fails without Java.
func needJava(tb testing.TB) {
	tb.Helper()
	if os.Getenv("LEASEHOLD_REQUIRE_JAVA") != "1" {
		tb.Skip("NOT TESTED: whether Java and Go understand each other; make interop does it")
	}
	needed := []string{"java", "javac", "mvn"}
	for _, name := range needed {
		if _, err := exec.LookPath(name); err == nil {
			continue
		}
		tb.Fatalf("this test needs %s on the PATH; scripts/java.sh installs it", name)
	}
	if _, err := javaBuilt(); err != nil {
		tb.Fatal(err)
	}
}

// java is a driver process: a worker with different commands.
type java struct {
	*worker
	clients atomic.Int64 // clients opened so far
}

func launchJava() (*java, error) {
	jar, err := javaBuilt()
	if err != nil {
		return nil, err
	}
	// Compile fast rather than well: most of these processes live for seconds.
	w, err := launch(exec.Command("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-jar", jar))
	return &java{worker: w}, err
}

// startJava starts a driver process, which is killed when tb ends.
func startJava(tb testing.TB) *java {
	tb.Helper()
	needJava(tb)
	j, err := launchJava()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(j.kill)
	return j
}

// javaForAll is the driver process shared by all tests that do not disturb it. Starting Redisson takes a second or two
// of CPU time per process.
var javaForAll struct {
	sync.Mutex
	*java // nil until a test needs it
}

// sharedJava returns javaForAll, started if necessary.
func sharedJava(tb testing.TB) *java {
	tb.Helper()
	needJava(tb)
	javaForAll.Lock()
	defer javaForAll.Unlock()
	if javaForAll.java == nil {
		j, err := launchJava()
		if err != nil {
			tb.Fatal(err)
		}
		javaForAll.java = j
	}
	return javaForAll.java
}

// endJava kills javaForAll when all tests are done.
func endJava() {
	if javaForAll.java != nil {
		javaForAll.kill()
	}
}

// javaRequest is one command. Its times are in ms.
type javaRequest struct {
	ID       int       `json:"id"`
	Do       string    `json:"do"`
	Client   string    `json:"client,omitempty"`
	Thread   string    `json:"thread,omitempty"`
	Kind     kind      `json:"kind,omitempty"`
	Name     string    `json:"name,omitempty"`
	Wait     *int64    `json:"wait,omitempty"`
	Lease    *int64    `json:"lease,omitempty"`
	ThreadID int64     `json:"threadId,omitempty"`
	Contest  *javaPlan `json:"contest,omitempty"`
	Threads  int       `json:"threads,omitempty"` // this and the next field are for share
	History  string    `json:"history,omitempty"`
	N        int64     `json:"n,omitempty"`        // this and the next field are for objects that are not locks
	Interval int64     `json:"interval,omitempty"` // ms
	P        float64   `json:"p,omitempty"`
	Elements []string  `json:"elements,omitempty"`
	Kryo     bool      `json:"kryo,omitempty"`
	javaOptions
}

// javaOptions are the options of a RedissonClient.
type javaOptions struct {
	Addresses []string `json:"addresses,omitempty"`
	Cluster   bool     `json:"cluster,omitempty"`
	Watchdog  int64    `json:"lockWatchdogTimeout,omitempty"`     // ms
	FairWait  int64    `json:"fairLockWaitTimeout,omitempty"`     // ms
	Sharded   string   `json:"shardedSubscriptionMode,omitempty"` // AUTO, ON or OFF
}

// send sends the process a command, like a worker's send.
func (j *java) send(tb testing.TB, r javaRequest) <-chan reply {
	tb.Helper()
	return j.tell(tb, r.Do, func(id int) any { r.ID = id; return r })
}

// redisson is one RedissonClient.
type redisson struct {
	java *java
	name string
	uuid string
}

// open connects with the options o. The client is closed when tb ends.
func (j *java) open(tb testing.TB, o javaOptions) *redisson {
	tb.Helper()
	r := &redisson{java: j, name: "client" + strconv.FormatInt(j.clients.Add(1), 10)}
	answer := receive(tb, j.send(tb, javaRequest{Do: "open", Client: r.name, javaOptions: o}))
	r.uuid = value[string](tb, must(tb, answer))
	tb.Cleanup(func() {
		select {
		case <-j.exited:
		default:
			must(tb, receive(tb, j.send(tb, javaRequest{Do: "close", Client: r.name})))
		}
	})
	return r
}

// lock is a thread's handle of a lock.
func (r *redisson) lock(thread string, k kind, name string) *javaLock {
	return &javaLock{r, thread, k, name}
}

// javaLock is one lock for one Java thread.
type javaLock struct {
	*redisson
	thread string
	kind   kind
	lock   string
}

// did is the reply of a thread: the owner of the thread, and when the call began and ended, by monotonic.
type did struct {
	Result           json.RawMessage
	Owner            string
	Called, Returned int64
}

// begin makes the thread call a method of Redisson, and does not wait for it to return.
func (l *javaLock) begin(tb testing.TB, method string, times ...func(*javaRequest)) <-chan reply {
	tb.Helper()
	r := javaRequest{Do: method, Client: l.name, Thread: l.thread, Kind: l.kind, Name: l.lock}
	for _, set := range times {
		set(&r)
	}
	return l.java.send(tb, r)
}

// call makes the thread call a method of Redisson that must succeed.
func (l *javaLock) call(tb testing.TB, method string, times ...func(*javaRequest)) did {
	tb.Helper()
	return value[did](tb, must(tb, receive(tb, l.begin(tb, method, times...))))
}

func within(d time.Duration) func(*javaRequest) {
	return func(r *javaRequest) { r.Wait = new(int64); *r.Wait = d.Milliseconds() }
}

func leased(d time.Duration) func(*javaRequest) {
	return func(r *javaRequest) { r.Lease = new(int64); *r.Lease = d.Milliseconds() }
}

// result decodes the result of the method.
func result[T any](tb testing.TB, d did) (v T) {
	tb.Helper()
	if err := json.Unmarshal(d.Result, &v); err != nil {
		tb.Fatalf("Java's reply %s: %v", d.Result, err)
	}
	return v
}

// try reports whether the thread has the lock now.
func (l *javaLock) try(tb testing.TB) bool {
	tb.Helper()
	return result[bool](tb, l.call(tb, "tryLock"))
}

// get acquires a lock that must be free, and returns its owner.
func (l *javaLock) get(tb testing.TB, times ...func(*javaRequest)) (owner string) {
	tb.Helper()
	return l.call(tb, "lock", times...).Owner
}

// unlock releases one hold.
func (l *javaLock) unlock(tb testing.TB) did { tb.Helper(); return l.call(tb, "unlock") }

// locked, holds and left return what Java reports about the lock: whether it is held, how often by this thread, and the
// remaining lease.
func (l *javaLock) locked(tb testing.TB) bool {
	tb.Helper()
	return result[bool](tb, l.call(tb, "isLocked"))
}
func (l *javaLock) holds(tb testing.TB) int {
	tb.Helper()
	return result[int](tb, l.call(tb, "getHoldCount"))
}
func (l *javaLock) left(tb testing.TB) time.Duration {
	tb.Helper()
	return time.Duration(result[int64](tb, l.call(tb, "remainTimeToLive"))) * time.Millisecond
}

// parks makes the thread lock, and waits until it sleeps in Redisson's method, so that only a message or the end of the
// sleep wakes it.
func (l *javaLock) parks(t *testing.T) <-chan reply {
	t.Helper()
	answer := l.begin(t, "lock")
	until(t, func() bool {
		if len(answer) > 0 {
			r := <-answer
			t.Fatalf("%s lock %q: Java should wait, got %s %s", l.kind, l.lock, r.Value, r.Err)
		}
		return l.sleeps(t)
	})
	return answer
}

func (l *javaLock) sleeps(tb testing.TB) bool {
	tb.Helper()
	return value[bool](tb, must(tb, receive(tb, l.java.send(tb, javaRequest{Do: "waits", Client: l.name, Thread: l.thread}))))
}

// javaFails fails unless the reply is the error with this exception.
func javaFails(t *testing.T, answer <-chan reply, exception string) {
	t.Helper()
	if r := receive(t, answer); !slices.Contains(r.Is, exception) {
		t.Errorf("Java returned %s %q, want an %s", r.Value, r.Err, exception)
	}
}
