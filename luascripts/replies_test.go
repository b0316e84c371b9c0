package luascripts_test

import (
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	keynames "github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
)

// Any reply of a broken server to the scripts of the other types is either read or is an error. With an error, the other
// results are zero.
func FuzzOtherReplies(f *testing.F) {
	for _, s := range []string{
		"+OK\r\n", ":5\r\n", ":-9\r\n", "$-1\r\n", "*0\r\n", "_\r\n", "-ERR x\r\n", "-PERMITS 5\r\n", "-STALE 5\r\n", "*2\r\n:1\r\n$1\r\n1\r\n", "*3\r\n:1\r\n:2\r\n:3\r\n", "*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n",
		"*4\r\n:1\r\n$1\r\n5\r\n*2\r\n$1\r\na\r\n:7\r\n*0\r\n", "*7\r\n:1795000000000000\r\n:1\r\n:0\r\n:9\r\n:0\r\n:0\r\n:1\r\n", "*2\r\n*2\r\n$1\r\na\r\n:1\r\n*0\r\n", ":9223372036854775807\r\n", "*2\r\n:1\r\n*3\r\n$1\r\na\r\n:-1\r\n$-1\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, reply []byte) {
		rdb, ok := answering(t, reply)
		if !ok {
			return
		}
		alone := func(what string, err error, results ...any) {
			t.Helper()
			for _, r := range results {
				if err != nil && !reflect.ValueOf(r).IsZero() {
					t.Errorf("%s: %+v beside %v, by %q", what, r, err, reply)
				}
			}
		}
		ctx, permits := t.Context(), taker(1, 2)

		sem := semaphoreKeys(3)
		a, err := luascripts.AcquireSemaphore(ctx, rdb, sem, luascripts.Request{Owner: permits, Lease: lease, Want: 1})
		alone("acquire", err, a)
		v, err := luascripts.ReleaseSemaphore(ctx, rdb, sem, permits, 0)
		alone("release", err, v)
		v, at, err := luascripts.ResizeSemaphore(ctx, rdb, sem, 3, 1000)
		alone("resize", err, v, at)
		v, slots, err := luascripts.SlotsOfPermits(ctx, rdb, sem, permits)
		alone("slots", err, v, slots)
		stock, err := luascripts.InspectSemaphore(ctx, rdb, sem)
		alone("inspect", err, stock)

		latch := keynames.Latch("done")
		s, v, err := luascripts.CountDownLatch(ctx, rdb, latch, latchCall("a"))
		alone("count down", err, s, v)
		s, v, err = luascripts.LatchStatus(ctx, rdb, latch, time.Hour)
		alone("look at a latch", err, s, v)

		waitGroup := keynames.WaitGroup("team")
		a, err = luascripts.JoinWaitGroup(ctx, rdb, waitGroup, luascripts.Request{Owner: ours, Lease: lease})
		alone("join", err, a)
		c, v, err := luascripts.WaitGroupStatus(ctx, rdb, waitGroup)
		alone("look at a wait group", err, c, v)
		members, v, err := luascripts.InspectWaitGroup(ctx, rdb, waitGroup)
		alone("members", err, members, v)
		n, v, err := luascripts.DismissFromWaitGroup(ctx, rdb, waitGroup, []string{ours})
		alone("dismiss", err, n, v)

		said, v, err := luascripts.ReadLeader(ctx, rdb, keynames.Leader("chief"))
		alone("leader", err, said, v)

		w, err := luascripts.TakeWindow(ctx, rdb, keynames.Window("w"), 1, 1, "id", 0)
		alone("window", err, w)
		is, err := luascripts.InspectWindow(ctx, rdb, keynames.Window("w"))
		alone("look at a window", err, is)
		rated, at, err := luascripts.InitWindow(ctx, rdb, keynames.Window("w"), 1, time.Second, false, 1000)
		alone("make a window", err, rated, at)
		v, at, err = luascripts.DeleteWindow(ctx, rdb, keynames.Window("w"), 1000)
		alone("delete a window", err, at, v)
		v, at, err = luascripts.DeleteBloom(ctx, rdb, "{b}:config", "b", 1000)
		alone("delete a filter", err, at, v)
		when, replies, v, err := askLimit(ctx, rdb, "k", luascripts.NewLimitRules(hourly), []luascripts.LimitRequest{want(1)})
		alone("limit", err, when, replies, v)
	})
}

// If the server lacks a command that a script calls, its reply names the script and the line. The error names the command.
func TestDiscreet_unknownCommand(t *testing.T) {
	s := redistest.Start(t, "--rename-command", "TIME", "")
	rdb := s.Client(t)
	q := luascripts.Request{Owner: owner("G1"), Lease: lease, Want: 1}
	for name, call := range map[string]func() error{
		"a plain lock": func() error { _, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, q); return err },
		"a fair lock":  func() error { _, err := luascripts.AcquireFair(t.Context(), rdb, fairKeys, q); return err },
		"a reader":     func() error { _, err := luascripts.AcquireRead(t.Context(), rdb, rwKeys, q); return err },
		"a writer":     func() error { _, err := luascripts.AcquireWrite(t.Context(), rdb, rwKeys, q); return err },
		"a filter":     func() error { _, _, err := luascripts.DeleteBloom(t.Context(), rdb, "{f}:config", "f", 1); return err },
	} {
		err := luascripts.Discreet(call())
		var unknown *luascripts.UnknownError
		if !errors.As(err, &unknown) || unknown.Needs != "TIME" || !strings.Contains(err.Error(), "leasehold needs TIME") {
			t.Errorf("%s: %v", name, err)
		}
		if all := contents(t, rdb); all != "" {
			t.Errorf("%s left\n%s", name, all)
		}
	}
}

// Servers use different texts for this, some without the line.
func TestUnknownError(t *testing.T) {
	text := luascripts.Text("bloom_delete")
	sum := sha1.Sum([]byte(text))
	sha := hex.EncodeToString(sum[:])
	line := strconv.Itoa(1 + strings.Count(text[:strings.Index(text, "'TIME'")], "\n"))
	for reply, want := range map[string]string{
		"ERR Unknown Redis command called from script script: " + sha + ", on @user_script:" + line + ".":                                                       "TIME",
		"ERR Error running script (call to f_" + sha + "): @user_script:" + line + ": @user_script: " + line + ": Unknown Redis command called from Lua script": "TIME",
		"ERR Unknown command called from script script: " + sha + ", on @user_script:" + line + ".":                                                             "TIME",
		"ERR Unknown Redis command called from script":                                                                                                          "a command of its scripts",
		"ERR Unknown Redis command called from script script: " + sha + ", on @user_script:1.":                                                                  "a command of its scripts",
		"ERR Unknown Redis command called from script script: " + sha + ", on @user_script:99999.":                                                              "a command of its scripts",
		"ERR Unknown Redis command called from script script: " + sha[1:] + "0, on @user_script:" + line + ".":                                                  "a command of its scripts",
		"ERR unknown command 'EVALSHA', with args beginning with: 'secret'":                                                                                     "EVALSHA and EVAL",
	} {
		rdb, ok := answering(t, []byte("-"+reply+"\r\n"))
		if !ok {
			t.Fatal("no client")
		}
		_, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Request{Owner: owner("G1"), Lease: lease, Want: 1})
		err = luascripts.Discreet(err)
		if !errors.As(err, new(*luascripts.UnknownError)) || !strings.Contains(err.Error(), "(leasehold needs "+want+"; it may have been renamed)") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s", reply, err, want)
		}
	}
}
