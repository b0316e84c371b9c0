//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// server is a redis-server started by the run, without persistence, or a cluster of them.
type server struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once the process is reaped
	addr   string
	begin  func() (*server, error) // assigned once: starts a server with the same port and data
	wire   *wire                   // the run's own connection
	others []*server               // the other masters of a cluster
}

// errNoServer is returned if no server is installed.
var errNoServer = errors.New("needs redis-server or valkey-server on the PATH; scripts/redis-server.sh installs it")

// startServers starts the given number of masters: one server, or a cluster. They load the module, if one
// is given.
func startServers(dir string, masters int, module string) (*server, error) {
	var options []string
	if masters > 1 {
		options = append(options, "--cluster-enabled", "yes")
	}
	if module != "" {
		options = append(options, "--loadmodule", module)
	}
	s, err := startServer(dir, options)
	if err != nil {
		return nil, err
	}
	for range masters - 1 {
		other, err := startServer(dir, options)
		if err != nil {
			s.stop()
			return nil, err
		}
		s.others = append(s.others, other)
	}
	if masters > 1 {
		if err := s.join(); err != nil {
			s.stop()
			return nil, err
		}
	}
	return s, nil
}

// nodes returns all servers of a cluster, or the only one.
func (s *server) nodes() []*server { return append([]*server{s}, s.others...) }

// join makes a cluster of s and the others, and waits until all of them report it.
func (s *server) join() error {
	const slots = 16384
	all := s.nodes()
	for i, n := range all {
		if _, err := n.wire.ask(fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", i*slots/len(all), (i+1)*slots/len(all)-1)); err != nil {
			return err
		}
		host, port, _ := net.SplitHostPort(n.addr)
		if _, err := s.wire.ask("CLUSTER MEET " + host + " " + port); err != nil {
			return err
		}
	}
	for _, n := range all {
		for tries := 0; ; tries++ {
			info, err := n.wire.ask("CLUSTER INFO")
			if err != nil {
				return err
			}
			if strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_size:%d", len(all))) {
				break
			}
			if tries == 1000 {
				return fmt.Errorf("no cluster in ten seconds:\n%s", info)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}

// flush deletes all keys.
func (s *server) flush() error {
	for _, n := range s.nodes() {
		if _, err := n.wire.ask("FLUSHALL"); err != nil {
			return err
		}
	}
	return nil
}

func startServer(dir string, options []string) (*server, error) {
	bin := os.Getenv("LEASEHOLD_REDIS_SERVER")
	for _, name := range []string{"redis-server", "valkey-server"} {
		if found, err := exec.LookPath(name); err == nil && bin == "" {
			bin = found
		}
	}
	if bin == "" {
		return nil, errNoServer
	}
	for range 20 {
		s, err := launch(bin, dir, options)
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, errGone) {
			return nil, err
		}
	}
	return nil, errors.New("no free port")
}

var errGone = errors.New("the server ended at once")

func launch(bin, dir string, options []string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	return begin(bin, dir, port, options)
}

func begin(bin, dir, port string, options []string) (s *server, err error) {
	cmd := exec.Command(bin, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", dir, "--dbfilename", "dump-"+port+".rdb",
		"--cluster-config-file", "nodes-"+port+".conf")
	cmd.Args = append(cmd.Args, options...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s = &server{
		cmd: cmd, exited: make(chan struct{}), addr: net.JoinHostPort("127.0.0.1", port),
		begin: func() (*server, error) { return begin(bin, dir, port, options) },
	}
	started := make(chan error)
	go func() {
		// The server is killed when the thread that started it exits, so this thread only waits for the
		// server.
		runtime.LockOSThread()
		defer close(s.exited)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	for range 500 {
		if s.wire, err = dial(s.addr); err == nil {
			if info, e := s.wire.ask("INFO server"); e == nil {
				// Otherwise another server took the port first.
				if strings.Contains(info, fmt.Sprintf("\nprocess_id:%d\r", cmd.Process.Pid)) {
					return s, nil
				}
				err = errGone
				break
			}
			s.wire.conn.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.stop()
	return nil, errors.Join(errGone, err)
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

func (s *server) stop() {
	for _, n := range s.others {
		n.stop()
	}
	if s.wire != nil {
		s.wire.conn.Close()
	}
	_ = s.cmd.Process.Kill()
	<-s.exited
}

// during runs f, and returns the commands that clients sent and the server's CPU time during it.
func (s *server) during(f func() error) (c calls, busy time.Duration, err error) {
	if _, err = s.counted(); err != nil {
		return nil, 0, err
	}
	before, err := s.cpu()
	if err != nil {
		return nil, 0, err
	}
	if err = f(); err != nil {
		return nil, 0, err
	}
	after, err := s.cpu()
	if err != nil {
		return nil, 0, err
	}
	c, err = s.counted()
	return c, after - before, err
}

// restart stops the server, and starts it again with its data after d.
func (s *server) restart(d time.Duration) error {
	if _, err := s.wire.ask("SAVE"); err != nil {
		return err
	}
	s.stop()
	time.Sleep(d)
	again, err := s.begin()
	if err != nil {
		return err
	}
	s.cmd, s.exited, s.wire = again.cmd, again.exited, again.wire
	return nil
}

// freeze makes the server unresponsive for d.
func (s *server) freeze(d time.Duration) error {
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(d)
	return s.cmd.Process.Signal(syscall.SIGCONT)
}

// calls has the server's statistics for each command.
type calls map[string]stat

// stat has the server's statistics for one command.
type stat struct {
	calls int64         // how often it was executed
	took  time.Duration // total, including the commands that a script calls
}

// sent lists the commands that clients send and scripts here do not call. SET is an exception: some
// contenders send it, and others call it in a script.
var sent = []string{"evalsha", "eval", "script|load", "hello", "client|tracking", "client|setinfo", "subscribe", "unsubscribe"}

// sentBy returns how many commands the clients sent, without PING: rueidis sends one per second on each
// connection.
func (c calls) sentBy(e entry) (n int64) { return c.sum(e).calls }

// busyBy returns how long the server executed the commands of sentBy.
func (c calls) busyBy(e entry) time.Duration { return c.sum(e).took }

func (c calls) sum(e entry) (all stat) {
	names := sent
	if e.sets {
		names = append([]string{"set"}, sent...)
	}
	for _, name := range names {
		all.calls += c[name].calls
		all.took += c[name].took
	}
	return all
}

// counted returns the commands executed since its last call, without the run's own.
func (s *server) counted() (calls, error) {
	c := calls{}
	for _, n := range s.nodes() {
		info, err := n.wire.ask("INFO commandstats")
		if err != nil {
			return nil, err
		}
		c.add(info)
		if _, err := n.wire.ask("CONFIG RESETSTAT"); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// add adds the statistics reported by a server.
func (c calls) add(info string) {
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		if !ok {
			continue
		}
		var n, micros int64
		if _, err := fmt.Sscanf(rest, "calls=%d,usec=%d", &n, &micros); err != nil {
			continue // the section heading
		}
		c[name] = stat{c[name].calls + n, c[name].took + time.Duration(micros)*time.Microsecond}
	}
}

// cpu returns the CPU time that the server has used for commands.
func (s *server) cpu() (time.Duration, error) {
	info, err := s.wire.ask("INFO cpu")
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, field := range []string{"used_cpu_sys_main_thread:", "used_cpu_user_main_thread:"} {
		_, rest, ok := strings.Cut(info, field)
		text, _, _ := strings.Cut(rest, "\r")
		seconds, err := strconv.ParseFloat(text, 64)
		if !ok || err != nil {
			return 0, fmt.Errorf("INFO cpu: no %s", field)
		}
		sum += seconds
	}
	return time.Duration(sum * float64(time.Second)), nil
}

// wire is a raw connection: a client library would send extra commands.
type wire struct {
	conn net.Conn
	r    *bufio.Reader
}

func dial(addr string) (*wire, error) {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return nil, err
	}
	return &wire{c, bufio.NewReader(c)}, nil
}

// ask sends a command and returns the reply, which must be a status, a number or a string.
func (w *wire) ask(command string) (string, error) {
	if err := w.conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(w.conn, command+"\r\n"); err != nil {
		return "", err
	}
	line, err := w.r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSpace(line)
	switch line[0] {
	case '+', ':':
		return line[1:], nil
	case '$':
		n, err := strconv.Atoi(line[1:])
		if err != nil {
			return "", err
		}
		text := make([]byte, n+2)
		_, err = io.ReadFull(w.r, text)
		return string(text), err
	}
	return "", fmt.Errorf("%s: %s", command, line)
}

// knows reports whether the server supports the command.
func (s *server) knows(command string) bool {
	_, err := s.wire.ask(command)
	return err == nil
}

// version returns the name and the version of the server.
func (s *server) version() (string, error) {
	info, err := s.wire.ask("INFO server")
	_, rest, _ := strings.Cut(info, "redis_version:")
	version, _, _ := strings.Cut(rest, "\r")
	return version, err
}
