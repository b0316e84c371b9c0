package luascripts_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// answering returns a client whose server sends the same reply to every script. It reports false if
// reply is not a valid reply.
func answering(t *testing.T, reply []byte) (rueidis.Client, bool) {
	t.Helper()
	if !whole(reply) {
		return nil, false
	}
	rdb, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress:       []string{"fake:6379"},
		DisableCache:      true,
		ForceSingleClient: true,
		AlwaysRESP2:       true,
		ConnWriteTimeout:  time.Second,
		PipelineMultiplex: -1,
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go serve(theirs, reply)
			return ours, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rdb.Close)
	return rdb, true
}

// serve replies to scripts with reply, and to everything else with OK.
func serve(c net.Conn, reply []byte) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		n, err := count(r, '*')
		if err != nil {
			return
		}
		var first string
		for i := range n {
			size, err := count(r, '$')
			if err != nil {
				return
			}
			b := make([]byte, size+2)
			if _, err := io.ReadFull(r, b); err != nil {
				return
			}
			if i == 0 {
				first = strings.ToUpper(string(b[:size]))
			}
		}
		answer := []byte("+OK\r\n")
		switch {
		case strings.HasPrefix(first, "EVAL"):
			answer = reply
		case first == "PING":
			answer = []byte("+PONG\r\n")
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

func count(r *bufio.Reader, mark byte) (n int, err error) {
	line, err := r.ReadString('\n')
	if err != nil || len(line) < 3 || line[0] != mark {
		return 0, io.ErrUnexpectedEOF
	}
	for _, d := range strings.TrimSpace(line[1:]) {
		n = n*10 + int(d-'0')
	}
	return n, nil
}

// whole reports whether b is exactly one RESP2 reply that cannot be mistaken for a subscription
// message.
func whole(b []byte) bool {
	if len(b) > 512 {
		return false
	}
	rest, ok := one(b, 0)
	return ok && len(rest) == 0
}

func one(b []byte, depth int) (left []byte, ok bool) {
	line, rest, found := strings.Cut(string(b), "\r\n")
	if !found || len(line) < 2 || depth > 2 {
		return nil, false
	}
	for _, c := range line[1:] {
		if c == '\r' || c == '\n' {
			return nil, false
		}
	}
	number := func() (n int, ok bool) {
		for _, c := range line[1:] {
			if c < '0' || c > '9' || n > 100 {
				return 0, false
			}
			n = n*10 + int(c-'0')
		}
		return n, true
	}
	switch line[0] {
	case '+', '-':
		return []byte(rest), true
	case ':':
		digits := strings.TrimPrefix(line[1:], "-")
		if digits == "" || len(digits) > 18 || strings.Trim(digits, "0123456789") != "" {
			return nil, false
		}
		return []byte(rest), true
	case '$':
		if line == "$-1" {
			return []byte(rest), true
		}
		n, ok := number()
		if !ok || len(rest) < n+2 || rest[n:n+2] != "\r\n" {
			return nil, false
		}
		return []byte(rest[n+2:]), true
	case '*':
		n, ok := number()
		left = []byte(rest)
		for i := 0; ok && i < n; i++ {
			// A list that starts with text could be a subscription message.
			if i == 0 && depth == 0 && (len(left) == 0 || left[0] != ':') {
				return nil, false
			}
			left, ok = one(left, depth+1)
		}
		return left, ok
	}
	return nil, false
}

// The functions below check how a call handles a reply that no script sends.

func plausibleGrant(t *testing.T, reply []byte, got luascripts.Acquired, err error) {
	t.Helper()
	switch {
	case err != nil && got != (luascripts.Acquired{}):
		t.Errorf("an error with a verdict: %+v, %v", got, err)
	case err == nil && got.Verdict == luascripts.Done && !strings.Contains(string(reply), strconv.FormatUint(got.Token, 10)):
		t.Errorf("granted with token %d by %q", got.Token, reply)
	}
}

func plausibleVerdict(t *testing.T, reply []byte, got luascripts.Verdict, err error, legal ...luascripts.Verdict) {
	t.Helper()
	switch {
	case err != nil && got != 0:
		t.Errorf("an error with a verdict: %d, %v", got, err)
	case err == nil && (!slices.Contains(legal, got) || !strings.Contains(string(reply), strconv.Itoa(int(got)))):
		t.Errorf("%d by %q", got, reply)
	}
}

func plausibleSnapshot(t *testing.T, reply []byte, got luascripts.Snapshot, err error, list string) {
	t.Helper()
	var bad *luascripts.ReplyError
	switch {
	case err != nil && !reflect.DeepEqual(got, luascripts.Snapshot{}):
		t.Errorf("an error with a snapshot: %+v, %v", got, err)
	case errors.As(err, &bad) && bad.Script == "":
		t.Errorf("an error without its script: %v", err)
	case err == nil && got.Foreign && strings.TrimLeft(string(reply), ":-0") != "4\r\n":
		t.Errorf("foreign by %q", reply)
	case err == nil && !got.Foreign && !strings.HasPrefix(string(reply), list) && !regexp.MustCompile(`^\*0+`+list[1:]).Match(reply):
		t.Errorf("%+v by %q", got, reply)
	}
}
