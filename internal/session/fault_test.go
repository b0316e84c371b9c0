package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

func TestFaultOf(t *testing.T) {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	// reply is an error as it comes out of the client library.
	reply := func(text string) error {
		m.SetError(text)
		defer m.SetError("")
		return rdb.Do(t.Context(), rdb.B().Ping().Build()).Error()
	}
	retry, never, unknown, garbled := fault{again: true}, fault{}, fault{mayHaveRun: true, again: true}, fault{mayHaveRun: true}
	for _, c := range []struct {
		err  error
		want fault
	}{
		{reply("LOADING Redis is loading the dataset in memory"), retry},
		{reply("TRYAGAIN Multiple keys request during rehashing of slot"), retry},
		{reply("CLUSTERDOWN Hash slot not served"), retry},
		{reply("MASTERDOWN Link with MASTER is down"), retry},
		{reply("READONLY You can't write against a read only replica."), retry},
		{reply("BUSY Redis is busy running a script."), retry},
		{reply("ERR Error running script: READONLY You can't write"), retry},
		{reply("ERR Error running script (call to f_14fa): @user_script:43: @user_script: 43: -READONLY You can't write against a read only replica."), retry},
		{reply("NOAUTH Authentication required."), never},
		{reply("NOPERM this user has no permissions"), never},
		{reply("WRONGPASS invalid username-password pair"), never},
		{reply("OOM command not allowed when used memory > 'maxmemory'."), never},
		{reply("MISCONF Redis is configured to save RDB snapshots"), never},
		{reply("NOREPLICAS Not enough good replicas to write."), never},
		{reply("WRONGTYPE Operation against a key"), never},
		{reply("ERR The user executing the script can't run this command"), never},
		{luascripts.Discreet(reply("ERR unknown command 'EVALSHA', with args beginning with: 'TRYAGAIN'")), never},
		{&luascripts.ReplyError{Script: "x", Reply: "y"}, garbled},
		{rueidis.ErrClosing, garbled},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, retry},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, unknown},
		{io.EOF, unknown},
		{os.ErrDeadlineExceeded, unknown},
		{context.DeadlineExceeded, unknown},
		{noAnswer{time.Second}, unknown},
		{tooLate{time.Second, time.Minute}, never},
		{final{lock.ErrClosed}, never},
		{fmt.Errorf("wrapped: %w", io.EOF), unknown},
	} {
		if c.err == nil {
			t.Fatal("no error to classify")
		}
		if got := faultOf(c.err); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.err, got, c.want)
		}
	}
	s := &Session{rdb: rdb}
	if err := s.told(reply("WRONGTYPE Operation against a key")); !errors.Is(err, lock.ErrForeignKey) {
		t.Errorf("%v", err)
	}
}
