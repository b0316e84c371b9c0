package locktest

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
)

// faults has the current faults of a Server. The zero value has none.
type faults struct {
	mu     sync.Mutex
	down   bool
	frozen time.Time       // no command runs until then
	up     chan struct{}   // closed by Up; nil if no command waits for the end of a fault
	delay  time.Duration   // before each command
	denied map[string]bool // denied commands
	conns  map[*conn]bool  // open connections
}

// conn is a connection that Down closes.
type conn struct {
	net.Conn
	faults *faults
}

func (c *conn) Close() error {
	c.faults.mu.Lock()
	delete(c.faults.conns, c)
	c.faults.mu.Unlock()
	return c.Conn.Close()
}

// connected returns c as a connection that Down closes. While the server is down, it closes c and fails.
func (f *faults) connected(c net.Conn) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		c.Close()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	if f.conns == nil {
		f.conns = make(map[*conn]bool)
	}
	wrapped := &conn{c, f}
	f.conns[wrapped] = true
	return wrapped, nil
}

// before delays a command, and returns the error reply if it is denied.
func (f *faults) before(command string) (refusal string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for due := time.Now().Add(f.delay); ; { // Freeze can be called again in the meantime
		wait := max(time.Until(due), time.Until(f.frozen))
		if wait <= 0 {
			break
		}
		if f.up == nil {
			f.up = make(chan struct{})
		}
		up := f.up
		f.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-up:
			timer.Stop()
			due = time.Time{}
		}
		f.mu.Lock()
	}
	if f.denied[command] {
		return fmt.Sprintf("NOPERM User default has no permissions to run the '%s' command", strings.ToLower(command))
	}
	return ""
}

// Down stops the server. It closes all connections and refuses new ones until [Server.Up]. It keeps
// its data. Calls fail with lock.ErrUnavailable, and waits continue.
func (s *Server) Down() {
	f := &s.faults
	f.mu.Lock()
	f.down = true
	var open []*conn
	for c := range f.conns {
		open = append(open, c)
	}
	f.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
}

// Up ends Down, Freeze, Slow and Deny. Commands that are delayed at that moment run immediately. The
// end of the test ends these faults, too.
func (s *Server) Up() {
	f := &s.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down, f.frozen, f.delay, f.denied = false, time.Time{}, 0, nil
	if f.up != nil {
		close(f.up)
		f.up = nil
	}
}

// Freeze makes the server unresponsive for d. It accepts connections and commands, and runs none of
// them before d has passed. Leases continue to expire. To let a lease expire under its holder,
// freeze the server for longer than the lease.
func (s *Server) Freeze(d time.Duration) {
	f := &s.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frozen = time.Now().Add(d)
}

// Slow delays each command by d, until [Server.Up] or another Slow.
func (s *Server) Slow(d time.Duration) {
	f := &s.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

// Deny makes the server reject commands, such as "SUBSCRIBE", as for a user without permission, until [Server.Up] or another
// Deny. The locks send EVALSHA and EVAL. Commands in scripts are not rejected.
func (s *Server) Deny(commands ...string) {
	f := &s.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	f.denied = make(map[string]bool)
	for _, c := range commands {
		f.denied[strings.ToUpper(c)] = true
	}
}

// Lose deletes everything that the server stores about the lock called name, including its waiters,
// as a failover or an eviction can. The name includes the key prefix of the client. The holder
// detects the loss at its next renewal. The cause matches lock.ErrLost and lock.ErrGone. Other
// owners can acquire the lock immediately. Lose reports whether there was anything.
func (s *Server) Lose(name string) bool {
	lost := s.mini.Del(name)
	tagged := keys.ReadWrite(name).LeasePrefix
	for _, key := range s.mini.Keys() {
		prefix, suffix, found := strings.Cut(key, tagged)
		ours := strings.HasPrefix(prefix, "leasehold_") || strings.HasPrefix(prefix, "redisson_")
		if found && (ours && strings.Trim(suffix, ":") == "" || prefix == "" && isLease(suffix)) && key != keys.Tokens(name) {
			lost = s.mini.Del(key) || lost
		}
	}
	return lost
}

// isLease reports whether suffix is the part after the name in a key with leases. It is ":timeout" for a
// semaphore, and ":<uuid>:<number>:rwlock_timeout:<n>" for a read/write lock.
func isLease(suffix string) bool {
	parts := strings.Split(suffix, ":")
	return suffix == ":timeout" || len(parts) == 5 && parts[0] == "" && parts[3] == "rwlock_timeout"
}

// Expire makes the leases of the lock called name expire on the server now, as if its holders had
// stopped renewing. The name includes the key prefix of the client. The holders detect the loss
// at their next renewals, as [lock.ErrGone]. Expire reports whether there was a lease.
func (s *Server) Expire(name string) bool {
	switch s.mini.Type(name) {
	case "hash":
		for _, key := range s.mini.Keys() {
			if suffix, ok := strings.CutPrefix(key, keys.ReadWrite(name).LeasePrefix); ok && isLease(suffix) {
				s.mini.Del(key)
			}
		}
		return s.mini.Del(name)
	case "string": // a semaphore
		leases := keys.Semaphore(name).Leases
		permits, err := s.mini.ZMembers(leases)
		past := float64(time.Now().UnixMilli() - 1)
		for _, permit := range permits {
			_, _ = s.mini.ZAdd(leases, past, permit)
		}
		return err == nil && len(permits) > 0
	}
	return false
}
