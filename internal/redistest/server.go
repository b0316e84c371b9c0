package redistest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// patience is the timeout for calls that a healthy server executes immediately.
const patience = 10 * time.Second

// Server is a redis-server process that belongs to one test. It writes nothing to disk unless
// configured to, so a restart loses all data, like a crash of a server without persistence. It is
// safe for concurrent use.
type Server struct {
	bin    string                 // set once
	args   func(*Server) []string // set once: its command line
	config []string               // set once, and changed by Rejoin of a Sentinel topology
	dir    string                 // set once
	port   int                    // changed only while start searches for a free one

	mu   sync.Mutex
	proc *process         // guarded by mu; nil while the server is killed
	did  map[string]int64 // guarded by mu; the number of calls of Do, by command name
}

// process is one run of the server.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once the process is reaped
	frozen bool          // guarded by Server.mu
}

// Start runs a server on a free port of 127.0.0.1 and returns once it responds. The server is
// stopped when tb ends, even if it is frozen then.
//
// config is appended to the command line: Start(t, "--maxmemory", "1mb"). Do not set port, bind or
// requirepass.
//
// The binary is $LEASEHOLD_REDIS_SERVER, or redis-server or valkey-server on $PATH. Without any of
// them the test is skipped, but fails if $CI is set or $LEASEHOLD_REQUIRE_REDIS is 1: a suite that
// silently tests nothing is worse than a failing one.
func Start(tb testing.TB, config ...string) *Server {
	tb.Helper()
	return start(tb, (*Server).alone, config...)
}

// alone returns the arguments of a server that is not part of a cluster.
func (s *Server) alone() []string {
	return append([]string{
		"--port", strconv.Itoa(s.port),
		"--bind", "127.0.0.1",
		"--save", "",
		"--appendonly", "no",
		"--dir", s.dir,
	}, s.config...)
}

// start starts a server with the arguments that args returns at each start.
func start(tb testing.TB, args func(*Server) []string, config ...string) *Server {
	tb.Helper()
	s := &Server{bin: find(tb), args: args, config: config, dir: tb.TempDir()}
	tb.Cleanup(func() { s.end() })

	err := errors.New("no free port")
	for range 20 {
		// Use ports below the range from which systems choose ports for outgoing connections
		// (Linux: from 32768, others: from 49152). Otherwise a client that redials a killed server
		// could occupy its port, and Restart would fail.
		s.port = 12000 + rand.IntN(10000)
		// Another test's server, even in another process, must not take the port in the meantime.
		// So each server holds the UDP port with that number, which Redis does not use.
		claim, busy := net.ListenPacket("udp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)))
		if busy != nil {
			continue
		}
		if err = s.launch(); err == nil {
			tb.Cleanup(func() { claim.Close() })
			return s
		}
		claim.Close()
	}
	tb.Fatalf("start %s: %v", s.bin, err)
	return nil
}

// Installed reports whether Start has a binary to run.
func Installed() bool {
	_, err := binary()
	return err == nil
}

// errNone is returned if no binary is named and none is installed.
var errNone = errors.New("redis-server or valkey-server on the PATH")

// binary returns the path of the server's binary.
func binary() (string, error) {
	if name := os.Getenv("LEASEHOLD_REDIS_SERVER"); name != "" {
		bin, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("LEASEHOLD_REDIS_SERVER: %w", err)
		}
		return bin, nil
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if bin, err := exec.LookPath(name); err == nil {
			return bin, nil
		}
	}
	return "", errNone
}

// find returns the path of the server's binary, or ends the test.
func find(tb testing.TB) string {
	tb.Helper()
	bin, err := binary()
	if errors.Is(err, errNone) {
		missing(tb, err.Error())
	}
	if err != nil {
		tb.Fatalf("%v", err)
	}
	return bin
}

// missing skips or fails a test that cannot run without what.
func missing(tb testing.TB, what string) {
	tb.Helper()
	if os.Getenv("CI") != "" || os.Getenv("LEASEHOLD_REQUIRE_REDIS") == "1" {
		tb.Fatalf("this test needs %s, and must not be skipped here (CI or LEASEHOLD_REQUIRE_REDIS is set)", what)
	}
	tb.Skipf("NOT TESTED: this test needs %s; scripts/redis-server.sh installs it", what)
}

// launch starts the process and waits until it responds.
func (s *Server) launch() error {
	logName := filepath.Join(s.dir, "server.log")
	log, err := os.Create(logName)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own

	cmd := exec.Command(s.bin, s.args(s)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = dieWithParent()

	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Linux kills the child when the *thread* that started it exits, not the process. So this
		// goroutine keeps its thread until the child is reaped: the thread cannot exit before the
		// child, unless the whole process does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.exited)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // "signal: killed" is the intended end
		}
	}()
	if err := <-started; err != nil {
		<-p.exited
		return err
	}

	if err := p.ready(s.Addr()); err != nil {
		p.kill()
		said, _ := os.ReadFile(logName)
		return fmt.Errorf("%w\n%s", err, said)
	}
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()
	return nil
}

// ready waits until this process, and no other, responds at addr.
func (p *process) ready(addr string) error {
	deadline := time.Now().Add(patience)
	for {
		err := p.answers(addr)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no answer in %v: %w", patience, err)
		}
		select {
		case <-p.exited:
			return errors.New("exited at once")
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// answers sends PING and requests the process id. If two test binaries pick the same port, the PONG
// can come from the other one's server.
func (p *process) answers(addr string) error {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("PING\r\nINFO server\r\n")); err != nil {
		return err
	}
	r := bufio.NewReader(c)
	var pong, info bytes.Buffer
	if err := errors.Join(readFrame(r, &pong), readFrame(r, &info)); err != nil {
		return err
	}
	if pong.String() != "+PONG\r\n" {
		return fmt.Errorf("PING: %q", pong.String())
	}
	if id := fmt.Sprintf("\nprocess_id:%d\r\n", p.cmd.Process.Pid); !strings.Contains(info.String(), id) {
		return errors.New("the port belongs to another server")
	}
	return nil
}

// kill kills the process, even a frozen one, and waits until it has exited. A frozen process is not
// resumed first, because it would execute the commands received in the meantime.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only if it has already exited
	<-p.exited
}

// end kills the process, if there is one, and reports whether there was.
func (s *Server) end() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return false
	}
	s.proc.kill()
	s.proc = nil
	return true
}

func (s *Server) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc != nil
}

// Addr returns the server's "127.0.0.1:port". It does not change with Restart.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// URL returns the server's "redis://127.0.0.1:port".
func (s *Server) URL() string { return "redis://" + s.Addr() }

// Pid returns the process id of the running server, or 0 if it was killed.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.cmd.Process.Pid
}

// Kill kills the server like a crash, and returns when it has exited.
func (s *Server) Kill(tb testing.TB) {
	tb.Helper()
	if !s.end() {
		tb.Fatal("redistest: Kill of a server that is not running")
	}
}

// Restart starts the killed server again, with the same address and directory.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	if s.Pid() != 0 {
		tb.Fatal("redistest: Restart of a running server; Kill it first")
	}
	if err := s.launch(); err != nil {
		tb.Fatalf("restart %s: %v", s.bin, err)
	}
}

// Freeze pauses the server without closing a connection, and returns when none of its threads runs
// anymore. Requests wait in its sockets, and are executed after Thaw. A frozen server is also
// thawed when tb ends, so that clients close quickly.
func (s *Server) Freeze(tb testing.TB) {
	tb.Helper()
	if err := s.setFrozen(true); err != nil {
		tb.Fatalf("redistest: freeze: %v", err)
	}
	tb.Cleanup(func() { _ = s.setFrozen(false) }) // fails if the server was killed since
}

// Thaw resumes a frozen server. It has no effect on a running one.
func (s *Server) Thaw(tb testing.TB) {
	tb.Helper()
	if err := s.setFrozen(false); err != nil {
		tb.Fatalf("redistest: thaw: %v", err)
	}
}

func (s *Server) setFrozen(frozen bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return errors.New("the server is not running")
	}
	if s.proc.frozen == frozen {
		return nil
	}
	set := thaw
	if frozen {
		set = freeze
	}
	if err := set(s.proc.cmd.Process); err != nil {
		return err
	}
	s.proc.frozen = frozen
	return nil
}

// Client connects to the server, without client-side caching. Edits change the options first; see
// [Via]. The client is closed when tb ends.
func (s *Server) Client(tb testing.TB, edit ...func(*rueidis.ClientOption)) rueidis.Client {
	tb.Helper()
	return connect(tb, rueidis.ClientOption{InitAddress: []string{s.Addr()}, DisableCache: true}, edit)
}

func connect(tb testing.TB, opt rueidis.ClientOption, edit []func(*rueidis.ClientOption)) rueidis.Client {
	tb.Helper()
	for _, e := range edit {
		e(&opt)
	}
	c, err := rueidis.NewClient(opt)
	if err != nil {
		tb.Fatalf("redistest: connect: %v", err)
	}
	tb.Cleanup(c.Close)
	return c
}

// Do runs one command, such as Do(t, "SCRIPT", "FLUSH"), and fails the test if the command fails. A
// null reply is not a failure: use the message's IsNil.
//
// Each call uses a new connection, unaffected by proxies and earlier Kills. That takes about a
// millisecond, and adds a HELLO to the server's statistics.
func (s *Server) Do(tb testing.TB, args ...string) rueidis.RedisMessage {
	tb.Helper()
	msg, err := s.ask(args...)
	if err != nil && !rueidis.IsRedisNil(err) {
		tb.Fatalf("redis %s: %v", strings.Join(args, " "), err)
	}
	return msg
}

// ask sends a command on a new connection.
func (s *Server) ask(args ...string) (rueidis.RedisMessage, error) {
	s.mu.Lock()
	if s.did == nil {
		s.did = map[string]int64{}
	}
	s.did[strings.ToLower(args[0])]++
	s.mu.Unlock()
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress:         []string{s.Addr()},
		DisableCache:        true,
		ForceSingleClient:   true,
		ClientSetInfo:       rueidis.DisableClientSetInfo,
		PipelineMultiplex:   -1,
		RingScaleEachConn:   4,
		ReadBufferEachConn:  4 << 10,
		WriteBufferEachConn: 4 << 10,
	})
	if c != nil {
		defer c.Close()
	}
	if err != nil {
		return rueidis.RedisMessage{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience) // the test's context is already canceled in a Cleanup
	defer cancel()
	return c.Do(ctx, c.B().Arbitrary(args...).Build()).ToMessage()
}

// KnowsSharded reports whether the server supports sharded Pub/Sub, which requires Redis 7.0.
func (s *Server) KnowsSharded(tb testing.TB) bool {
	tb.Helper()
	reply := s.Do(tb, "COMMAND", "INFO", "ssubscribe")
	known, err := reply.ToArray()
	if err != nil || len(known) != 1 {
		tb.Fatalf("COMMAND INFO: %v, %v", known, err)
	}
	return !known[0].IsNil()
}

// CommandCalls returns how often the server has executed the command since it started or since
// ResetStats, from INFO commandstats. A subcommand is named "config|get"; Redis before 7.0 counts
// the subcommands of a command together. Calls from scripts count, and so do calls that failed
// during execution, such as an EVALSHA with the reply NOSCRIPT.
func (s *Server) CommandCalls(tb testing.TB, name string) int64 {
	tb.Helper()
	reply := s.Do(tb, "INFO", "commandstats")
	info, err := reply.ToString()
	if err != nil {
		tb.Fatalf("redis INFO commandstats: %v", err)
	}
	if !strings.Contains(info, "|") {
		name, _, _ = strings.Cut(name, "|")
	}
	_, rest, ok := strings.Cut(info, "cmdstat_"+strings.ToLower(name)+":calls=")
	if !ok {
		return 0
	}
	calls, _, _ := strings.Cut(rest, ",")
	n, err := strconv.ParseInt(calls, 10, 64)
	if err != nil {
		tb.Fatalf("redis INFO commandstats: %v", err)
	}
	return n
}

// CommandCallsByClients is CommandCalls without the calls of Do. It is
// for commands without subcommands, and for servers whose statistics were not
// reset.
func (s *Server) CommandCallsByClients(tb testing.TB, name string) int64 {
	tb.Helper()
	calls := s.CommandCalls(tb, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	return calls - s.did[strings.ToLower(name)]
}

// ResetStats makes CommandCalls count from zero.
func (s *Server) ResetStats(tb testing.TB) {
	tb.Helper()
	s.Do(tb, "CONFIG", "RESETSTAT")
}

// Log returns what the server has logged since it was started.
func (s *Server) Log() ([]byte, error) { return os.ReadFile(filepath.Join(s.dir, "server.log")) }
