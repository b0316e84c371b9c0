package retry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// own is an error of this module.
type own struct{ error }

func (own) Final() {}

func (e own) Unwrap() error { return e.error }

// refused returns a function that makes errors of replies, as the client library does.
func refused(t *testing.T) func(text string) error {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	return func(text string) error {
		m.SetError(text)
		defer m.SetError("")
		err := rdb.Do(t.Context(), rdb.B().Ping().Build()).Error()
		if err == nil || err.Error() != strings.TrimPrefix(text, "ERR ") { // it omits the code ERR
			t.Fatalf("%q became %v", text, err)
		}
		return err
	}
}

// Each reply has the same meaning on its own, inside a script error of any version, and wrapped.
func TestReplies(t *testing.T) {
	t.Parallel()
	reply, seen := refused(t), make(map[string]bool)
	for _, r := range slices.Concat(Replies, ProxyReplies) {
		if seen[r.Match] {
			t.Errorf("%s has two rows", r.Match)
		}
		seen[r.Match] = true
		if !strings.Contains(r.Reply, r.Match) || r.When == "" {
			t.Errorf("%s: an incomplete row: %+v", r.Match, r)
		}
		if r.Temporary != (r.Is == lock.ErrUnavailable) || r.Lasts && !r.Temporary || r.Denied && r.Is != nil {
			t.Errorf("%s: a row that contradicts itself: %+v", r.Match, r.Fault)
		}
		for _, text := range []string{
			r.Reply,
			r.Reply + " script: 1b936e, on @user_script:1.",
			"ERR Error running script (call to f_14fa): @user_script:43: @user_script: 43: -" + r.Reply,
			"ERR Error running script: " + r.Reply,
		} {
			err := reply(text)
			if got := FaultOf(err); got != r.Fault {
				t.Errorf("%q: %+v, want %+v", text, got, r.Fault)
			}
			if got := FaultOf(fmt.Errorf("wrapped: %w", err)); got != r.Fault {
				t.Errorf("%q, wrapped: %+v, want %+v", text, got, r.Fault)
			}
			if Temporary(text) != r.Temporary {
				t.Errorf("%q: %t", text, !r.Temporary)
			}
		}
	}
}

// Other texts of the replies, and texts that only resemble one.
func TestReply_texts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"CLUSTERDOWN Hash slot not served":                                          "CLUSTERDOWN",
		"CLUSTERDOWN The cluster is down and only accepts read commands":            "CLUSTERDOWN",
		"TRYAGAIN Slot is being trimmed":                                            "TRYAGAIN",
		"ERR Script attempted to execute a command while the cluster is down":       "while the cluster is down",
		"ERR max number of clients + cluster connections reached":                   "max number of clients",
		"LOADING Valkey is loading the dataset in memory":                           "LOADING",
		"UNBLOCKED client unblocked via CLIENT UNBLOCK":                             "UNBLOCKED",
		"READONLY Can not run script with write flag on readonly replica":           "READONLY",
		"OOM allow-oom flag is not set on the script, can not run it":               "OOM",
		"MISCONF Errors writing to the AOF file: No space left on device":           "MISCONF",
		"ERR of a proxy: READONLY x":                                                "READONLY",
		"-LOADING x":                                                                "LOADING",
		"NOPERM User x has no permissions to access the 'a BUSY b' key":             "NOPERM",
		"ERR ACL failure in script: User x has no permissions to access 'a BUSY b'": "ACL failure in script",
		"ERR The user executing the script can't access at least one of the keys":   "The user executing the script",
		"BUSYGROUP Consumer Group name already exists":                              "BUSYGROUP",
		"ERR Unknown command called from script script: 1b936e, on @user_script:1.": "command called from",
		"ERR unknown command `EVALSHA`, with args beginning with: `LOADING`":        "unknown command",
		"ERR no server avaliable":                                                   "no server",
		"ERR handle request, backend conn failure, topom.conn":                      "backend conn",
		"ERR the server is not LOADING, or so it says":                              "ERR",
		"NOPERM User x has no permissions to access 'max number of clients'":        "NOPERM",
		"ERR syntax error":          "ERR",
		"moved 3999 127.0.0.1:6381": "ERR",
		"SOMETHING new":             "ERR",
		"":                          "ERR",
	} {
		if got := Reply(text); got.Match != want {
			t.Errorf("%q is %s, want %s", text, got.Match, want)
		}
	}
}

// A call that does not wait retries what may pass soon. A full memory or disk lasts.
func TestRetries(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"LOADING x": true, "OOM x": false, "NOPERM x": false, "ERR x": false} {
		if got := Reply(text).Retries(); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}

// The meaning of errors other than replies. An unknown error is one of the connection: the outcome of
// the command is unknown.
func TestFaultOf(t *testing.T) {
	t.Parallel()
	reply := refused(t)
	unreplied, unsent, final := Fault{Temporary: true, Is: lock.ErrUnavailable}, Fault{Executed: No, Temporary: true, Is: lock.ErrUnavailable}, Fault{Executed: No}
	over, garbled := Fault{Executed: No, Is: lock.ErrClosed}, Fault{Executed: Yes}
	for _, c := range []struct {
		err  error
		want Fault
	}{
		{luascripts.Discreet(reply("ERR unknown command 'EVALSHA', with args beginning with: 'TRYAGAIN'")), final},
		{reply("ERR unknown command 'EVALSHA', with args beginning with: 'TRYAGAIN'"), final},
		{reply("SOMETHING that no table has"), Fault{}},
		{Undialled{reply("SOMETHING that no table has")}, final},
		{Undialled{reply("upstream failure")}, unsent},
		{&luascripts.ReplyError{Script: "x", Reply: "y"}, garbled},
		{&luascripts.WaitError{Reply: "ERR unknown command 'WAIT'"}, Fault{Executed: Yes, Is: lock.ErrReplicas}},
		{&luascripts.WaitError{Reply: "UNBLOCKED force unblock from blocking operation"}, Fault{Executed: Yes, Temporary: true, Is: lock.ErrUnavailable}},
		{&luascripts.WaitError{Reply: "ERR WAIT cannot be used with replica instances."}, Fault{Executed: Yes, Temporary: true, Is: lock.ErrUnavailable}},
		{rueidis.ErrClosing, unreplied},
		{rueidis.ErrNoSlot, unsent},
		{Closed{rueidis.ErrClosing}, Fault{Is: lock.ErrClosed}},
		{Undialled{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}, unsent},
		{Undialled{reply("NOAUTH Authentication required.")}, Fault{Executed: No, Denied: true}},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, unreplied},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, unreplied},
		{io.EOF, unreplied},
		{os.ErrDeadlineExceeded, unreplied},
		{context.DeadlineExceeded, unreplied},
		{lock.ErrUnavailable, unreplied},
		{own{io.EOF}, final},
		{own{lock.ErrClosed}, over},
		{lock.ErrClosed, over},
		{errors.New("anything"), unreplied},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err)} {
			if got := FaultOf(err); got != c.want {
				t.Errorf("%v: %+v, want %+v", err, got, c.want)
			}
		}
		if got := c.want.MayHaveRun(); got != (c.want.Executed != No) {
			t.Errorf("%v may have been executed: %t", c.err, got)
		}
	}
}
