package redistest_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// A killed test process runs no Cleanup. Its server must not outlive it. 1: this binary runs again,
// as a child with a server. 2: the server's address arrives. 3: the child is killed. 4: no server
// listens there anymore.
func TestServer_diesWithTheTestProcess(t *testing.T) {
	t.Parallel()
	const role = "LEASEHOLD_REDISTEST_CHILD"
	if os.Getenv(role) != "" {
		s := redistest.Start(t)
		fmt.Printf("\nserver %s\n", s.Addr())
		select {}
	}
	redistest.Start(t) // skips without a server

	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")      // 1
	child.Env = append(os.Environ(), role+"=1", "TMPDIR="+t.TempDir()) // it will not remove its files
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var addr string
	for lines := bufio.NewScanner(out); addr == "" && lines.Scan(); { // 2
		if after, ok := strings.CutPrefix(lines.Text(), "server "); ok {
			addr = after
		}
	}
	if err := child.Process.Kill(); err != nil { // 3
		t.Fatal(err)
	}
	_ = child.Wait() // "signal: killed"
	if addr == "" {
		t.Fatal("the child started no server")
	}

	for deadline := time.Now().Add(5 * time.Second); ; { // 4
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		c.Close()
		if time.Now().After(deadline) {
			t.Fatalf("the server at %s outlives the process that started it", addr)
		}
		time.Sleep(time.Millisecond)
	}
}
