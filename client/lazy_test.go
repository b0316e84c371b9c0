package client_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
	"github.com/redis/rueidis"
)

// openLazily opens a client that is closed at the end of the test.
func openLazily(t *testing.T, url string, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.Open(t.Context(), url, append(opts, client.WithLazyConnect())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Open returns a client even while its server is down:
//
//	1 TryLock reports why there is no connection
//	2 Lock waits for the server
//	3 from then on it works like any other client
func TestWithLazyConnect_serverDown(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Kill(t)
	if c, err := client.Open(t.Context(), s.URL()); err == nil {
		c.Close(t.Context())
		t.Fatal("without the option it opens, too: that tests nothing")
	}
	c := openLazily(t, s.URL(), client.WithWatchdogTimeout(40*time.Second), client.WithOpTimeout(10*time.Second))
	l := c.NewLock("orders")
	for range 2 {
		_, err := l.TryLock(t.Context()) // 1
		if !errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("the server is down: %v", err)
		}
	}
	got := make(chan error)
	go func() {
		h, err := l.Lock(t.Context())
		if err == nil {
			err = h.Unlock(t.Context())
		}
		got <- err
	}()
	s.Restart(t)
	if err := <-got; err != nil { // 2
		t.Fatal(err)
	}
	h, err := l.Lock(t.Context()) // 3
	if err != nil {
		t.Fatal(err)
	}
	waiter := make(chan error)
	go func() {
		h, err := l.Lock(t.Context())
		if err == nil {
			err = h.Unlock(t.Context())
		}
		waiter <- err
	}()
	if err := errors.Join(h.Unlock(t.Context()), <-waiter); err != nil {
		t.Error(err)
	}
}

// A server that accepts connections and sends nothing delays neither a call nor Close.
func TestWithLazyConnect_serverPaused(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Freeze(t)
	c := openLazily(t, s.URL()+"?dial_timeout=1h&write_timeout=1h") // the time limit for the greeting
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.NewLock("orders").TryLock(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A dialer that ignores its context delays neither Close nor a call during Close.
func TestWithLazyConnect_dialerIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := make(chan struct{})
		option := rueidis.ClientOption{InitAddress: []string{"redis:6379"}, DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			<-dials
			return nil, syscall.ECONNREFUSED
		}}
		c, err := client.OpenWithOption(t.Context(), option, client.WithLazyConnect(), client.WithOpTimeout(3*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		called := make(chan error, 1)
		go func() {
			_, err := c.NewLock("orders").TryLock(context.Background())
			called <- err
		}()
		synctest.Wait() // TryLock waits for the first attempt
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		closed := make(chan error, 1)
		go func() { closed <- c.Close(ctx) }()
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		for name, result := range map[string]chan error{"TryLock": called, "Close": closed} {
			select {
			case err := <-result:
				if (err == nil) != (name == "Close") {
					t.Errorf("%s: %v", name, err)
				}
			default:
				t.Errorf("%s waits for the dialer", name)
			}
		}
		close(dials)
		time.Sleep(time.Minute) // lets the goroutines of rueidis end
	})
}

func TestWithLazyConnect_errors(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Do(t, "ACL", "SETUSER", "locks", "on", ">secret", "~*", "&*", "+@all")
	node := redistest.Start(t, "--cluster-enabled", "yes")
	node.AddSlots(t, 0, 16384)
	sentinel := redistest.StartSentinel(t, 1).Sentinels[0]
	for name, test := range map[string]struct {
		url, text string
		waits     bool // Lock waits for the server
	}{
		"password": {"redis://locks:wrong@" + s.Addr(), "WRONGPASS", false},
		"cluster":  {node.URL(), "without this option", false},
		"sentinel": {sentinel.URL(), "is a Sentinel", false},
		"nobody":   {"redis://127.0.0.1:1", "connection refused", true},
	} {
		c := openLazily(t, test.url)
		l := c.NewLock("orders")
		_, err := l.TryLock(t.Context())
		if err == nil || !strings.Contains(err.Error(), test.text) || !isError(err) || errors.Is(err, lock.ErrUnavailable) != test.waits {
			t.Errorf("%s: got %v, want %q in it", name, err, test.text)
		}
		if test.waits {
			continue
		}
		if _, again := l.Lock(t.Context()); again == nil || !strings.Contains(again.Error(), test.text) {
			t.Errorf("%s: Lock: %v", name, again)
		}
	}
	replicas := rueidis.ClientOption{InitAddress: []string{s.Addr()}, Username: "locks", Password: "secret",
		Standalone: rueidis.StandaloneOption{ReplicaAddress: []string{s.Addr()}}, SendToReplicas: func(rueidis.Completed) bool { return false }}
	c, err := client.OpenWithOption(t.Context(), replicas, client.WithLazyConnect())
	if err != nil {
		t.Fatal(err)
	}
	if h, err := c.NewLock("orders").Lock(t.Context()); err != nil || h.Unlock(t.Context()) != nil {
		t.Errorf("with options for a standalone server: %v", err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := client.Open(t.Context(), "nonsense", client.WithLazyConnect()); !isError(err) {
		t.Errorf("a bad URL: %v", err)
	}
	if _, err := client.New(redistest.NewMini(t).Client(t), client.WithLazyConnect()); !isError(err) {
		t.Errorf("on a client that is connected: %v", err)
	}
}

// A quorum starts while one of three servers is down. Its error contains the reason for each missing vote.
func TestWithLazyConnect_quorum(t *testing.T) {
	t.Parallel()
	var servers []*redistest.Server
	var locks []lock.Locker
	for range 3 {
		s := redistest.Start(t)
		servers = append(servers, s)
	}
	servers[0].Kill(t)
	for _, s := range servers {
		locks = append(locks, openLazily(t, s.URL(), client.WithWatchdogTimeout(40*time.Second), client.WithOpTimeout(10*time.Second)).NewLock("leader"))
	}
	q := multilock.NewQuorum(locks, multilock.WithMaxLease(40*time.Second), multilock.WithServerTimeout(10*time.Second), multilock.WithDurableServers())
	h, err := q.TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	servers[0].Restart(t)
	for deadline := time.Now().Add(2 * time.Minute); len(multilock.Holds(h)) < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the server is up, and has no vote")
		}
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	servers[0].Kill(t)
	servers[1].Kill(t)
	_, err = q.TryLock(t.Context())
	if !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("one of three servers is left: %v", err)
	}
	for _, part := range []string{"server 1: ", "server 2: "} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not contain %q", err, part)
		}
	}
	servers[0].Restart(t) // so that Close is confirmed
	servers[1].Restart(t)
}
