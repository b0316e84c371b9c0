package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// screenplay is a terminal in which a program runs and the test types.
type screenplay struct {
	*tool
	master, slave *os.File
	shown         int // how much was written before the latest keys
}

// inTerminal prepares a program in its own terminal, as the session leader; begin starts it. Without
// arguments, the program is a shell, and otherwise the tool.
func inTerminal(t *testing.T, s *redistest.Server, args ...string) *screenplay {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	master, slave := openPTY(t)
	c := prepare(t, []string{"LEASEHOLD_REDIS_URL=" + s.URL(), "leasehold=" + path, "PS1=$ ", "TERM=dumb"}, args...)
	if len(args) == 0 {
		c.cmd.Path, c.cmd.Args = "/bin/sh", []string{"sh", "-i"}
	}
	c.stdin.Close()
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = slave, slave, slave
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p := &screenplay{tool: c, master: master, slave: slave}
	t.Cleanup(func() { // runs after the cleanup of start, which shows the output
		slave.Close()
		master.Close()
	})
	read := make(chan struct{})
	go func() {
		defer close(read)
		buffer := make([]byte, 1024)
		for {
			n, err := master.Read(buffer)
			if _, _ = c.stdout.Write(buffer[:n]); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		slave.Close()
		_ = c.cmd.Process.Kill()
		master.Close()
		<-read
	})
	return p
}

// begin starts the program with env added to its environment.
func (p *screenplay) begin(env ...string) *screenplay {
	p.t.Helper()
	p.cmd.Env = append(p.cmd.Env, env...)
	p.start()
	return p
}

// openPTY returns both ends of a new terminal.
func openPTY(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	number := 0
	control, err := master.SyscallConn()
	if err == nil {
		err = control.Control(func(fd uintptr) {
			if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
				number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// The keys that the terminal turns into signals.
const (
	ctrlC         = "\x03"
	ctrlZ         = "\x1a"
	ctrlBackslash = "\x1c"
)

// types types keys.
func (p *screenplay) types(keys string) {
	p.t.Helper()
	if keys != "" {
		p.shown = len(p.stdout.String())
	}
	if _, err := p.master.WriteString(keys); err != nil {
		p.t.Error(err)
	}
}

// The command can read from the terminal. One Ctrl-C is one SIGINT, which only the command receives.
func TestTerminal_interactive(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lock := lockName(t)
	p := inTerminal(t, s, "run", lock, "--", "sh", "-c", `
		trap 'echo interrupted' INT
		echo ready
		while :; do read line || continue; echo "<$line>"; [ "$line" = end ] && exit 4; done`).begin() // a signal makes read fail
	p.stdout.await(t, "ready")
	p.types("one\n")
	p.stdout.await(t, "<one>")
	p.types(ctrlC)
	p.stdout.await(t, "interrupted")
	p.types("end\n")
	p.ends(4)
	if n := strings.Count(p.stdout.String(), "interrupted"); n != 1 {
		t.Errorf("%d signals", n)
	}
	noKeys(t, s, lock)
}

func TestTerminal_interrupt(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, test := range map[string]struct {
		key  string
		want int
	}{"Ctrl-C": {ctrlC, 130}, "Ctrl-backslash": {ctrlBackslash, 131}} {
		t.Run("running, "+name, func(t *testing.T) {
			t.Parallel()
			lock := lockName(t)
			p := inTerminal(t, s, "run", lock, "--", "sh", "-c", "ulimit -c 0; echo ready; exec sleep 60").begin()
			p.stdout.await(t, "ready")
			p.types(test.key)
			p.ends(test.want)
			noKeys(t, s, lock)
		})
		t.Run("waiting, "+name, func(t *testing.T) {
			t.Parallel()
			lock := lockName(t)
			holder := on(t, s, "run", lock, "--", "sh", "-c", "echo ready; read line")
			holder.stdout.await(t, "ready")
			p := inTerminal(t, s, "run", "-v", lock, "--", "echo", "ran").begin()
			p.stdout.await(t, "another owner holds")
			p.types(test.key)
			p.ends(test.want)
			holder.say("")
			holder.ends(0)
			noKeys(t, s, lock)
		})
	}
}

// A command that never reads has the terminal, too. Only the command receives Ctrl-C and changes of the window
// size, and the terminal accepts its settings immediately.
func TestTerminal_foreground(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := inTerminal(t, s, "run", lockName(t), "--", "sh", "-c", `
		while set -- $(cat /proc/$$/stat); [ "$5" != "$8" ]; do sleep 0.01; done # its group, and the terminal's
		exit 4`).begin()
	p.ends(4)
}

// After a command is killed, the terminal is restored.
func TestTerminal_modeRestored(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lock := lockName(t)
	p := inTerminal(t, s, "run", "--lease", "6s", "--on-lost", "kill", lock, "--", "sh", "-c", "stty raw -echo; echo ready; exec sleep 60")
	before, err := term.GetState(int(p.slave.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	p.begin()
	p.stdout.await(t, "ready")
	if during, err := term.GetState(int(p.slave.Fd())); err != nil || *during == *before {
		t.Fatalf("stty changed nothing: %v", err)
	}
	s.Do(t, "DEL", lock)
	p.ends(exitLost)
	if after, err := term.GetState(int(p.slave.Fd())); err != nil || *after != *before {
		t.Errorf("the terminal is not as it was: %v", err)
	}
}

// Without a shell that could continue the command, Ctrl-Z does not stop it for long.
func TestTerminal_noShell(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := inTerminal(t, s, "run", lockName(t), "--", "sh", "-c", "echo ready; read line; exit 4").begin()
	p.stdout.await(t, "ready")
	p.types(ctrlZ)
	p.types("\n")
	p.ends(4)
}

// The tool runs in a shell. 1: Ctrl-Z returns to the prompt. 2: fg continues the command, which has
// the terminal again.
func TestTerminal_jobControl(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lock := lockName(t)
	p := inTerminal(t, s).begin()
	p.types("$leasehold run " + lock + " -- sh -c 'echo re\"\"ady; read line; echo \"<$line>\"; exit 4'\n")
	p.stdout.await(t, "ready")
	p.types(ctrlZ)
	p.stdout.await(t, "Stopped") // the shell writes this; until then, the command may read the keys
	p.types("echo pro\"\"mpt\n")
	p.stdout.await(t, "prompt") // 1
	if !held(t, s, lock) {
		t.Error("the lock is free")
	}
	p.types("fg\n")
	p.types("hello\n")
	p.stdout.await(t, "<hello>") // 2
	p.types("echo \"code $?\"; exit 0\n")
	p.stdout.await(t, "code 4")
	p.ends(0)
	noKeys(t, s, lock)
}

// In a script, the next command after run has the terminal again.
func TestTerminal_script(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := inTerminal(t, s).begin()
	p.types("sh -c '$leasehold run " + lockName(t) + " -- sh -c \"echo re\\\"\\\"ady; read line\"; read line; echo \"<$line>\"'\n")
	p.stdout.await(t, "ready")
	p.types("one\n")
	p.types("two\n")
	p.stdout.await(t, "<two>")
	p.types("exit 0\n")
	p.ends(0)
}

// A background command that uses the terminal stops, as any program does. After fg it has the
// terminal.
func TestTerminal_background(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := inTerminal(t, s).begin()
	p.types("$leasehold run " + lockName(t) + " -- sh -c 'echo re\"\"ady; read line; echo \"<$line>\"; exit 4' &\n")
	p.stdout.await(t, "ready")
	p.types("wait $!; echo st\"\"opped\n")
	p.stdout.await(t, "stopped")
	p.types("fg\n")
	p.types("hello\n")
	p.stdout.await(t, "<hello>")
	p.types("exit 0\n")
	p.ends(0)
}

// At the start of a pipeline, the command does not take the terminal from the end of the pipeline, unless
// the command reads from the terminal.
func TestTerminal_pipeline(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := inTerminal(t, s).begin()
	// The end of the pipeline reads from the terminal while the command runs.
	// exec: dash loses a Ctrl-C that comes while it starts a command.
	p.types("$leasehold run " + lockName(t) + " -- sh -c 'echo re\"\"ady; exec sleep 60' | (read x; echo \"$x\"; read y </dev/tty; echo \"<$y>\"; exit 0)\n")
	p.stdout.await(t, "ready")
	p.types("pager\n")
	p.stdout.await(t, "<pager>")
	p.types(ctrlC)
	// The command reads from the terminal.
	p.types("$leasehold run " + lockName(t) + " -- sh -c 'echo be\"\"gun; read line; echo \"<$line>\"' | cat\n")
	p.stdout.await(t, "begun")
	p.types("command\n")
	p.stdout.await(t, "<command>")
	p.types("exit 0\n")
	p.ends(0)
}

// A command whose standard input is not the terminal gets the terminal when it uses /dev/tty, to set its mode or to read a password. Afterwards,
// the shell has the terminal again. The same applies to a nested run.
func TestTerminal_devTTY(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, line := range map[string]string{
		"the end of a pipeline": "echo piped | $leasehold run %s -- sh %p",
		"a pipeline of two":     "$leasehold run %s2 -- echo piped | $leasehold run %s -- sh %p",
		"a file":                "echo piped >%p.in; $leasehold run %s -- sh %p <%p.in",
		"a file to a file":      "echo piped >%p.in; $leasehold run %s -- sh %p <%p.in >%p.out; cat %p.out",
		"a run in a run":        "echo piped | $leasehold run %s2 -- $leasehold run %s -- sh %p",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			asks, script := filepath.Join(dir, "asks"), filepath.Join(dir, "script")
			line = strings.NewReplacer("%s", lockName(t), "%p", asks).Replace(line)
			// A shell without job control does not take the terminal back itself.
			if err := errors.Join(
				os.WriteFile(asks, []byte(`stty -echo </dev/tty; echo password >/dev/tty; read p </dev/tty; stty echo </dev/tty; cat; echo "<$p>"`), 0o600),
				os.WriteFile(script, []byte(line+"\nread line; echo back $line"), 0o600),
			); err != nil {
				t.Fatal(err)
			}
			p := inTerminal(t, s).begin()
			p.types("sh " + script + "\n")
			p.stdout.await(t, "password")
			p.types("secret\n")
			p.stdout.await(t, "piped")
			p.stdout.await(t, "<secret>")
			p.types("again\n")
			p.stdout.await(t, "back again")
			p.types("exit 0\n")
			p.ends(0)
		})
	}
}

// A pager at the end of a pipeline reads its keys from /dev/tty, one by one and without echo.
func TestTerminal_pager(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lock := lockName(t)
	s.Do(t, "HSET", lock+"listed", redissonOwner, "1")
	pager := filepath.Join(t.TempDir(), "pager")
	if err := os.WriteFile(pager, []byte(`stty -icanon -echo </dev/tty; cat; key=$(dd bs=1 count=1 </dev/tty 2>/dev/null); stty icanon echo </dev/tty; test "$key" = q`), 0o600); err != nil {
		t.Fatal(err)
	}
	p := inTerminal(t, s).begin()
	p.types("$leasehold ls | $leasehold run " + lock + " -- sh " + pager + "; echo code $?\n")
	p.stdout.await(t, "HOLDER")
	p.types("q")
	p.stdout.await(t, "code 0")
	p.types("exit 0\n")
	p.ends(0)
}

// Ctrl-Z also stops a command that does not have the terminal, which would otherwise continue without its lock while leasehold is stopped. A
// message tells the user.
func TestTerminal_stopsWithoutTerminal(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := inTerminal(t, s).begin()
	p.types("echo | $leasehold run " + lockName(t) + " -- sh -c 'echo p\"\"id $$.; exec sleep 60'\n")
	var pid string
	await(t, "no pid", func() bool { // the shell's prompt can come before it
		found := regexp.MustCompile(`pid (\d+)\.`).FindStringSubmatch(p.stdout.String())
		if found != nil {
			pid = found[1]
		}
		return found != nil
	})
	p.types(ctrlZ)
	p.stdout.await(t, "the command is stopped, and so is leasehold: ")
	p.stdout.await(t, "Stopped")
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if _, state, _ := strings.Cut(string(stat), ") "); err != nil || !strings.HasPrefix(state, "T") {
		t.Errorf("the command is not stopped: %q, %v", stat, err)
	}
	p.types("fg\n")
	p.stdout.await(t, "fg")
	await(t, "the command does not continue", func() bool {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			t.Fatal(err)
		}
		_, state, _ := strings.Cut(string(stat), ") ")
		return !strings.HasPrefix(state, "T")
	})
	p.types(ctrlC)
	p.types("echo \"code $?\"; exit 0\n")
	p.stdout.await(t, "code 130")
	p.ends(0)
}

// When leasehold is killed, its command receives the signal, and the lock is free when its lease expires.
func TestRun_killed(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for onLost, kind := range map[string]string{"term": "exits", "kill": "ignores"} {
		t.Run(onLost, func(t *testing.T) {
			t.Parallel()
			lock := lockName(t)
			c := on(t, s, append([]string{"run", "--lease", "3s", "--on-lost", onLost, lock, "--"}, command(kind, "TERM")...)...)
			c.stdout.await(t, "ready")
			c.signal(syscall.SIGKILL)
			c.killed(syscall.SIGKILL)
			awaitFree(t, s, lock)
		})
	}
}

// leasehold writes colors only to a terminal that supports them.
func TestTerminal_colours(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, test := range map[string]struct {
		env  string
		want bool
	}{"colours": {"NO_COLOR=", true}, "none": {"NO_COLOR=1", false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := inTerminal(t, s, "doctor", "--slow", "1h").begin(test.env)
			p.stdout.await(t, "acquired and released")
			p.ends(0)
			if got := strings.Contains(p.stdout.String(), "\x1b[32m✓"); got != test.want {
				t.Errorf("colours: %v, want %v", got, test.want)
			}
		})
	}
}

// In many containers no process reaps orphans, so leasehold does. It cannot tell a zombie from a
// living process, and a zombie would keep the lock.
func TestRun_reaps(t *testing.T) {
	t.Parallel()
	// From here on, orphans become children of this process, which does not reap them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	s := redistest.Start(t)
	c := on(t, s, "run", lockName(t), "--", "sh", "-c", "sleep 60 & sleep 60 & exit 5")
	c.ends(5)
	if c.stderr.String() != "" {
		t.Errorf("run says %q", c.stderr)
	}
}

// unlock displays the holder and asks for confirmation. It does nothing unless the answer is yes.
func TestUnlock_terminal(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for answer, code := range map[string]int{"y": 0, "YES": 0, "n": 1, "": 1, "maybe": 1} {
		name := lockName(t) + answer
		s.Do(t, "HSET", name, redissonOwner, "1")
		p := inTerminal(t, s, "unlock", name)
		p.start()
		p.stdout.await(t, "[y/N] ")
		if !strings.Contains(p.stdout.String(), "thread 84") {
			t.Errorf("unlock does not show the holder: %q", p.stdout)
		}
		if _, err := p.master.WriteString(answer + "\n"); err != nil {
			t.Fatal(err)
		}
		p.ends(code)
		if held(t, s, name) != (code == 1) {
			t.Errorf("after %q the lock is held: %v", answer, held(t, s, name))
		}
	}
	name := lockName(t) + "interrupted"
	s.Do(t, "HSET", name, redissonOwner, "1")
	p := inTerminal(t, s, "unlock", name)
	p.start()
	p.stdout.await(t, "[y/N] ")
	if _, err := p.master.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	p.ends(exitInterrupted)
	if !held(t, s, name) {
		t.Error("the lock was unlocked")
	}
}

// resize displays the semaphore and asks for confirmation. It does nothing unless the answer is yes.
func TestResize_terminal(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for answer, code := range map[string]int{"y": 0, "n": 1, "": 1} {
		name := lockName(t) + answer
		s.Do(t, "SET", name, "4")
		p := inTerminal(t, s, "resize", name, "8").begin()
		p.stdout.await(t, "a semaphore of 4 permits, 4 free")
		p.stdout.await(t, "Change "+name+" from 4 permits to 8? [y/N] ")
		p.types(answer + "\n")
		p.ends(code)
		reply := s.Do(t, "GET", name)
		if n, err := reply.AsInt64(); err != nil || (n == 8) != (code == 0) {
			t.Errorf("after %q there are %d permits, %v", answer, n, err)
		}
	}
}

// top refreshes the locks, with the oldest request at the top, and restores the terminal at the end. It writes no codes to
// a terminal that cannot move its cursor.
func TestTop(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := billing(t, s.Client(t))
	mustLock(t, c.NewLock("z:older"))
	for _, name := range []string{"odd\x1b[31m", "a:younger"} {
		mustLock(t, c.NewLock(name))
	}
	for _, kind := range []string{"dumb", "xterm"} {
		p := inTerminal(t, s, "top", "--interval", "100ms")
		p.cmd.Env = append(p.cmd.Env, "TERM="+kind)
		p.start()
		p.stdout.await(t, "3 held, 0 waiting")
		p.stdout.await(t, "a:younger")
		mustLock(t, c.NewLock("new:"+kind))
		p.stdout.await(t, "new:"+kind)
		if _, err := p.master.WriteString("\x03"); err != nil {
			t.Fatal(err)
		}
		p.stdout.await(t, "interrupted") // the test reads the output later than top writes it
		p.ends(exitInterrupted)
		text := p.stdout.String()
		if older, younger := strings.Index(text, "z:older"), strings.Index(text, "a:younger"); older > younger {
			t.Errorf("%s: the younger comes first: %q", kind, text)
		}
		if strings.Contains(text, "\x1b[31m") || (kind == "dumb") == strings.Contains(text, "\x1b") {
			t.Errorf("%s: %q", kind, text)
		}
		if kind == "xterm" && (!strings.Contains(text, otherScreen) || !strings.Contains(text, shellScreen)) {
			t.Errorf("the shell's screen does not come back: %q", text)
		}
		s.Do(t, "DEL", "new:"+kind)
	}
	says(t, on(t, s, "top"), 2, "top requires a terminal")
	p := inTerminal(t, s, "top", "--interval", "1ms")
	p.start()
	p.stdout.await(t, "must be at least 100ms")
	p.ends(exitUsage)
}

// sized sets the number of columns of p's terminal.
func sized(t *testing.T, p *screenplay, columns uint16) {
	t.Helper()
	raw, err := p.master.SyscallConn() // Fd would make reads block
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) {
			err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns})
		}), err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// awaitDrawn waits until text is on the screen of p, drawn after the latest keys. A program writes only what differs from the previous
// screen, which depends on its speed. When the size of the terminal changes, it writes the whole screen.
func awaitDrawn(t *testing.T, p *screenplay, text string) {
	t.Helper()
	awaitDrawnIn(t, p, 100, text)
}

// awaitDrawnIn is awaitDrawn in a terminal with this number of columns, or one more.
func awaitDrawnIn(t *testing.T, p *screenplay, columns uint16, text string) {
	t.Helper()
	began := time.Now()
	for columns++; !p.stdout.behind(p.shown, time.Second, text); columns ^= 1 {
		if time.Since(began) > promptly {
			t.Fatalf("%q is not on the screen, but %q", text, p.stdout)
		}
		sized(t, p, columns)
	}
}

// The keys of top: a filter, the details of a lock and back, a different sort order, and quit.
func TestTop_keys(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := billing(t, s.Client(t))
	for _, name := range []string{"orders:1", "orders:2", "nightly"} {
		mustLock(t, c.NewLock(name))
	}
	if created, err := c.NewLatch("done").TrySetCount(t.Context(), 7); !created || err != nil {
		t.Fatal(created, err)
	}
	m, err := c.NewWaitGroup("workers").Add(t.Context())
	if err == nil {
		err = m.Fail(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	p := inTerminal(t, s, "top", "--interval", "100ms")
	p.cmd.Env = append(p.cmd.Env, "TERM=xterm-256color")
	sized(t, p, 100)
	p.start()
	for _, step := range []struct{ keys, shows string }{
		{"", "3 held, 0 waiting"},
		{"", "count 7"},
		{"", "0 active, 1 lost"},
		{"s", "by waiting"},
		{"/orders:2\r", "filter orders:2"},
		{"\r", "orders:2: a plain lock, held"},
		{"\x7f", "select"},
		{"/" + strings.Repeat("\x7f", len("orders:2")) + "done\r", "filter done"},
		{"\r", "done: a latch, count 7"},
		{"\x7f", "select"},
	} {
		p.types(step.keys)
		awaitDrawn(t, p, step.shows)
	}
	if _, err := p.master.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	p.ends(0)
}

// top shows Redisson-compatible rate limiters, those closest to their limit first, with their details.
func TestTop_unheld(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	limited(t, s)
	for _, test := range []struct{ kind, term, shows string }{
		{"redisson-ratelimit", "xterm", "3 of type redisson-ratelimit"}, {"bloom", "dumb", "2 of type bloom"}, {"ratelimit", "dumb", "2 of type ratelimit"},
	} {
		p := inTerminal(t, s, "top", "--interval", "100ms", "--kind", test.kind)
		p.cmd.Env = append(p.cmd.Env, "TERM="+test.term)
		p.start()
		p.stdout.await(t, test.shows)
		p.stdout.await(t, map[string]string{"redisson-ratelimit": "1000 per 1s per Redisson client", "bloom": "of 8,000 elements", "ratelimit": "refills in"}[test.kind])
		if text := p.stdout.String(); test.kind == "redisson-ratelimit" && strings.Index(text, "sms") > strings.Index(text, "calls") {
			t.Errorf("the fullest does not come first: %q", text)
		}
		if _, err := p.master.WriteString("\x03"); err != nil {
			t.Fatal(err)
		}
		p.stdout.await(t, "interrupted")
		p.ends(exitInterrupted)
	}
	p := inTerminal(t, s, "top", "--interval", "100ms", "--kind", "redisson-ratelimit")
	p.cmd.Env = append(p.cmd.Env, "TERM=xterm-256color")
	sized(t, p, 100)
	p.start()
	for _, step := range []struct{ keys, shows string }{
		{"", "3 of type redisson-ratelimit"},
		{"", "0 of 10 per 1h remaining"},
		{"/sms\r", "filter sms"},
		{"\r", "a Redisson-compatible rate limiter"},
		{"\x7f", "select"},
	} {
		p.types(step.keys)
		awaitDrawn(t, p, step.shows)
	}
	if _, err := p.master.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	p.ends(0)
}

// On a terminal with 80 columns, the lists of ls and clients have both ends of long names, and all columns. In a pipe, they are complete.
func TestLs_narrow(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	pods(t, s)
	for args, want := range map[string][]string{
		"ls":      {"LEASE", "WAITING", "production:", "26:x2x9k", "26:p8zqf", "payments-", "-x2x9k", "  12\r\n"},
		"clients": {"PID", "UP", "payments-", "-7w4lm"},
	} {
		p := inTerminal(t, s, args)
		sized(t, p, 80)
		p.start()
		p.ends(exitOK)
		for _, text := range want {
			p.stdout.await(t, text)
		}
		for line := range strings.Lines(p.stdout.String()) {
			if n := ansi.StringWidth(strings.TrimRight(line, "\r\n")); n > 80 {
				t.Errorf("%d columns: %q", n, line)
			}
		}
		says(t, on(t, s, args), exitOK, "payments-reconciliation-worker-7d9f8b6c5d-x2x9k")
	}
}

// 1. In 80 columns, top shows LEASE and WAITING.
// 2. The filter applies while it is typed, to the host and the label as well.
// 3. The details scroll, and show in full what the list has shortened.
func TestTop_narrow(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	pods(t, s)
	p := inTerminal(t, s, "top", "--interval", "100ms")
	p.cmd.Env = append(p.cmd.Env, "TERM=xterm-256color")
	sized(t, p, 80)
	p.start()
	for _, step := range []struct{ keys, shows string }{
		{"", "3 held, 36 waiting"},
		{"", "LEASE        WAITING"}, // 1
		{"/x2x9", "filter x2x9"},     // 2
		{strings.Repeat("\x7f", 4) + "shard=1", "filter shard=1"},
		{"\r", "select"},
		{"\r", "payments-reconciliation-worker-7d9f8b6c5d-p8zqf"}, // 3
		{"G", "12. payments-reconciliation-worker"},
		{"g", ": a fair lock, held"},
	} {
		p.types(step.keys)
		awaitDrawnIn(t, p, 80, step.shows)
	}
	p.types("q")
	p.ends(exitOK)
}

// u force-unlocks the selected lock after a reason and a y. Any other key cancels it.
func TestTop_unlock(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	c := billing(t, rdb, seldom)
	h := mustLock(t, c.NewLock("orders:42"))
	if created, err := c.NewLatch("done").TrySetCount(t.Context(), 7); !created || err != nil {
		t.Fatal(created, err)
	}
	knows(t, rdb, c)
	hears(t, s, c)
	p := inTerminal(t, s, "top", "--interval", "100ms", "--operator", "alice")
	p.cmd.Env = append(p.cmd.Env, "TERM=xterm-256color")
	sized(t, p, 100)
	p.start()
	awaitDrawn(t, p, "1 held")
	for _, step := range []struct{ keys, shows string }{
		{"u", "Force-unlock orders:42 and remove its holder? Reason (optional):"},
		{"\x1b", "orders:42: nothing was changed"},
		{"ustuck\r", "Force-unlock orders:42 and remove its holder? [y/N]"},
		{"\r", "orders:42: nothing was changed"},
		{"ustuck, ticket 815\x7f6\r", "Force-unlock orders:42 and remove its holder? [y/N]"},
	} {
		p.types(step.keys)
		awaitDrawn(t, p, step.shows)
	}
	if h.Err() != nil {
		t.Fatal(h.Err())
	}
	p.shown = len(p.stdout.String())
	await(t, "the lock is not unlocked", func() bool { // until the server has returned the holders, a y has no effect
		if _, err := p.master.WriteString("y"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-h.Context().Done():
			return true
		case <-time.After(3 * time.Second): // the next key erases the message of top
			return false
		}
	})
	if err := h.Err(); !errors.Is(err, lock.ErrForceUnlocked) || !strings.Contains(err.Error(), "by alice: stuck, ticket 816") {
		t.Errorf("the holder is told %v", err)
	}
	for _, step := range []struct{ keys, shows string }{
		{"", "unlocked; notification sent to the holder (billing on "},
		{"", "stuck, ticket 816"}, // the audit record in the details
		{"\x7f/done\r", "filter done"},
		{"u", "done is a latch, which has no holder; nothing was changed"},
	} {
		p.types(step.keys)
		awaitDrawn(t, p, step.shows)
	}
	p.types("q")
	p.ends(exitOK)
}

// 1. Ctrl-Z restores the terminal and gives it to the shell.
// 2. fg continues top, which receives the keys again.
func TestTop_jobControl(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	mustLock(t, billing(t, s.Client(t)).NewLock("orders:42"))
	p := inTerminal(t, s)
	p.cmd.Env = append(p.cmd.Env, "TERM=xterm-256color")
	sized(t, p, 100)
	p.start()
	p.stdout.await(t, "$ ")
	before, err := term.GetState(int(p.slave.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	p.types("$leasehold top --interval 100ms\n")
	p.stdout.await(t, "1 held")
	p.types(ctrlZ)
	p.stdout.await(t, "Stopped")
	p.types("echo pro\"\"mpt\n")
	p.stdout.await(t, "prompt") // 1
	if during, err := term.GetState(int(p.slave.Fd())); err != nil || *during != *before {
		t.Errorf("the terminal is not as it was: %v", err)
	}
	if text := p.stdout.String(); strings.LastIndex(text, "\x1b[?1049l") < strings.LastIndex(text, "\x1b[?1049h") {
		t.Errorf("the screen is not the shell's: %q", text)
	}
	p.types("fg\n")
	p.types("/42")
	awaitDrawn(t, p, "filter 42") // 2
	p.types("\rq")
	for limit := time.Now().Add(promptly); ; time.Sleep(5 * time.Millisecond) {
		if after, err := term.GetState(int(p.slave.Fd())); err == nil && *after == *before {
			break
		} else if time.Now().After(limit) {
			t.Fatalf("top does not end: %v, %q", err, p.stdout)
		}
	}
	p.types("echo \"code $?\"; exit 0\n")
	p.stdout.await(t, "code 0")
	p.ends(0)
}

// Without a shell that could continue top, Ctrl-Z does not stop it for long.
func TestTop_noShell(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	mustLock(t, billing(t, s.Client(t)).NewLock("orders:42"))
	p := inTerminal(t, s, "top", "--interval", "100ms")
	p.cmd.Env = append(p.cmd.Env, "TERM=xterm-256color")
	sized(t, p, 100)
	p.start()
	p.stdout.await(t, "1 held")
	p.types(ctrlZ)
	if !p.stdout.behind(p.shown, promptly, "\x1b[?1049h") { // until then, the terminal turns a return key into a newline
		t.Fatalf("it does not continue: %q", p.stdout)
	}
	p.types("/42")
	awaitDrawn(t, p, "filter 42")
	p.types("\rq")
	p.ends(exitOK)
}
