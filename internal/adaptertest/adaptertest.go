// Package adaptertest runs the tests of adapters for every possible outcome of a call for a lock.
package adaptertest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// Call is one use of an adapter.
type Call struct {
	Fault  string
	Ctx    context.Context // of the caller
	Addr   string          // of the server, for clients of other libraries
	Client *client.Client
	Lock   lock.Locker // of the client
}

// Faults are the possible outcomes of a call for a lock. They are the keys of the table that [Walk] checks.
const (
	Free         = "free"
	Busy         = "busy"         // another owner has the lock
	Refused      = "refused"      // no server listens at the address
	Unresponsive = "unresponsive" // no reply within the operation timeout
	ReadOnly     = "read-only"    // the server is a replica
	Denied       = "denied"       // the user lacks a permission
	WrongType    = "wrong type"   // the key is not a lock
	BadName      = "bad name"
	Closed       = "closed"   // the client of leasehold is closed
	Canceled     = "canceled" // the caller's context was canceled before a reply
	Deadline     = "deadline" // the same, because of its deadline
)

// None is the result for a fault that an adapter cannot have, such as Canceled without a context of the caller.
const None = "none"

// Walk calls see for each fault, to use an adapter once, and compares its results with want. Only for Free may the function of
// the caller run under the lock.
func Walk(t *testing.T, want map[string]string, see func(t *testing.T, c Call) (seen string)) {
	t.Helper()
	walked := make(map[string]bool)
	for fault, prepare := range faults {
		walked[fault] = true
		if want[fault] == None {
			continue
		}
		t.Run(strings.ReplaceAll(fault, " ", "_"), func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			name, call := "orders", Call{Fault: fault, Ctx: ctx, Addr: s.Addr()}
			p := redistest.NewProxy(t, s.Addr())
			edits, options := []func(*rueidis.ClientOption){}, []client.Option{}
			switch fault {
			case Refused, Unresponsive: // for the other faults, a second can be too short on a busy machine
				options = append(options, client.WithOpTimeout(time.Second))
			case Denied:
				const user = "reader"
				edits = append(edits, func(o *rueidis.ClientOption) { o.Username, o.Password = user, "any" })
				s.Do(t, "ACL", "SETUSER", user, "on", "nopass", "~*", "&*", "+@all", "-@scripting")
			case BadName:
				name = strings.Repeat("x", 5000)
			case Canceled, Deadline: // a proxy accepts connections even if the server refuses them
				edits = append(edits, redistest.Via(p))
				call.Addr = p.Addr()
			}
			c, err := client.New(s.Client(t, edits...), options...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				over, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				_ = c.Close(over)
			})
			call.Client, call.Lock = c, c.NewLock(name)
			if prepare != nil {
				undo := prepare(t, &call, s, p)
				defer undo()
			}
			if seen := see(t, call); seen != want[fault] {
				t.Errorf("%s: the user sees %q, want %q", fault, seen, want[fault])
			}
		})
	}
	for fault := range want {
		if !walked[fault] {
			t.Errorf("there is no fault %q", fault)
		}
	}
}

// faults has a function for each fault that prepares it and returns how to undo it.
var faults = map[string]func(t *testing.T, call *Call, s *redistest.Server, p *redistest.Proxy) (undo func()){
	Free: nil,
	Busy: func(t *testing.T, call *Call, s *redistest.Server, _ *redistest.Proxy) func() {
		other, err := client.New(s.Client(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.NewLock("orders").Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		return func() { _ = other.Close(context.Background()) }
	},
	Refused: func(t *testing.T, _ *Call, s *redistest.Server, _ *redistest.Proxy) func() {
		s.Kill(t)
		return func() { s.Restart(t) }
	},
	Unresponsive: func(t *testing.T, _ *Call, s *redistest.Server, _ *redistest.Proxy) func() {
		s.Freeze(t)
		return func() { s.Thaw(t) }
	},
	ReadOnly: func(t *testing.T, _ *Call, s *redistest.Server, _ *redistest.Proxy) func() {
		s.Do(t, "REPLICAOF", "127.0.0.1", "1")
		return func() { s.Do(t, "REPLICAOF", "NO", "ONE") }
	},
	Denied: nil,
	WrongType: func(t *testing.T, _ *Call, s *redistest.Server, _ *redistest.Proxy) func() {
		s.Do(t, "SET", "orders", "1")
		return func() {}
	},
	BadName: nil,
	Closed: func(t *testing.T, call *Call, _ *redistest.Server, _ *redistest.Proxy) func() {
		if err := call.Client.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		return func() {}
	},
	Canceled: func(t *testing.T, call *Call, _ *redistest.Server, p *redistest.Proxy) func() {
		ctx, cancel := context.WithCancel(call.Ctx)
		call.Ctx = ctx
		return held(p, cancel)
	},
	Deadline: func(t *testing.T, call *Call, _ *redistest.Server, p *redistest.Proxy) func() {
		ctx, cancel := context.WithTimeout(call.Ctx, 200*time.Millisecond)
		call.Ctx = ctx
		undo := held(p, func() {})
		return func() { undo(); cancel() }
	},
}

// held blocks all scripts until undo is called, and calls asked when the first one arrives.
func held(p *redistest.Proxy, asked func()) (undo func()) {
	pass := make(chan struct{})
	p.OnRequest(func(req [][]byte) redistest.Action {
		if cmd := strings.ToUpper(string(req[0])); cmd != "EVALSHA" && cmd != "EVAL" {
			return redistest.Action{}
		}
		asked()
		return redistest.Action{HoldRequest: pass}
	})
	return func() { close(pass) }
}

// ReplyTime limits a wait, and is long enough for replies.
const ReplyTime = 10 * time.Second

// Only returns want with None added for the faults that are missing in it.
func Only(want map[string]string) map[string]string {
	all := make(map[string]string)
	for fault := range faults {
		all[fault] = None
	}
	maps.Copy(all, want)
	return all
}

// Matches returns the errors of package lock and of package context that err matches, as ": ErrNotAcquired".
func Matches(err error) string {
	var names []string
	for name, target := range map[string]error{
		"ErrNotAcquired":   lock.ErrNotAcquired,
		"ErrUnavailable":   lock.ErrUnavailable,
		"ErrWrongType":     lock.ErrWrongType,
		"ErrBadName":       lock.ErrBadName,
		"ErrClosed":        lock.ErrClosed,
		"ErrLost":          lock.ErrLost,
		"Canceled":         context.Canceled,
		"DeadlineExceeded": context.DeadlineExceeded,
	} {
		if errors.Is(err, target) {
			names = append(names, name)
		}
	}
	if names == nil {
		return ""
	}
	slices.Sort(names)
	return ": " + strings.Join(names, ", ")
}
