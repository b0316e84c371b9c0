package client_test

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// A client that holds one lock and waits for another uses one connection for commands, and one for notifications and
// its entry. With RESP2, rueidis needs a second connection for notifications.
func TestOpen_connections(t *testing.T) {
	t.Parallel()
	for url, most := range map[string]int{"": 2, "?protocol=2": 3} {
		t.Run(url, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			holder, err := client.Open(t.Context(), s.URL(), client.WithoutRegistry())
			if err != nil {
				t.Fatal(err)
			}
			defer holder.Close(t.Context())
			if _, err := holder.NewLock("other").Lock(t.Context()); err != nil {
				t.Fatal(err)
			}
			c, err := client.Open(t.Context(), s.URL()+url+with(url)+"client_name=both")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close(t.Context())
			if _, err := c.NewLock("own").Lock(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			waited := make(chan error, 1)
			go func() {
				_, err := c.NewLock("other").Lock(ctx)
				waited <- err
			}()
			// Wait for the client's entry and its subscription to force-unlock notifications.
			ready := func() bool {
				channels := s.Do(t, "PUBSUB", "CHANNELS", "leasehold_client:"+c.ID())
				found, _ := channels.AsStrSlice()
				reply := s.Do(t, "EXISTS", "leasehold_client:"+c.ID())
				entries, _ := reply.ToInt64()
				return len(found) == 1 && entries == 1
			}
			for end := time.Now().Add(20 * time.Second); !ready(); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the client is not at rest")
				}
			}
			list := s.Do(t, "CLIENT", "LIST")
			text, _ := list.ToString()
			if n := strings.Count(text, " name=both "); n != most {
				t.Errorf("%d connections, want %d: %s", n, most, text)
			}
			cancel()
			<-waited
		})
	}
}

func with(query string) string {
	if query == "" {
		return "?"
	}
	return "&"
}

// PINGs are frequent enough to protect the lease, and otherwise rare.
func TestOpen_pings(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	of := func(option rueidis.ClientOption, opts ...client.Option) (dialer net.Dialer) {
		option.InitAddress = []string{s.Addr()}
		option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			dialer = *d
			return d.DialContext(ctx, "tcp", addr)
		}
		c, err := client.OpenWithOption(t.Context(), option, opts...)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		return dialer
	}
	for want, got := range map[time.Duration]net.Dialer{
		5 * time.Second:        of(rueidis.ClientOption{}),
		2 * time.Second:        of(rueidis.ClientOption{}, client.WithWatchdogTimeout(12*time.Second)),
		time.Second:            of(rueidis.ClientOption{}, client.WithWatchdogTimeout(time.Second)),
		42 * time.Second:       of(rueidis.ClientOption{Dialer: net.Dialer{KeepAlive: 42 * time.Second}}),
		300 * time.Millisecond: of(rueidis.ClientOption{Dialer: net.Dialer{KeepAlive: 300 * time.Millisecond}}, client.WithWatchdogTimeout(time.Minute)),
	} {
		if got.KeepAlive != want {
			t.Errorf("%v, want %v", got.KeepAlive, want)
		}
		if explicit := want > 5*time.Second || want < time.Second; got.KeepAliveConfig.Enable == explicit {
			t.Errorf("%v: %+v", want, got.KeepAliveConfig)
		}
	}
	parsed, err := client.ParseURL(s.URL())
	if err != nil || parsed.Dialer.KeepAlive != 5*time.Second {
		t.Errorf("%v, %v", parsed.Dialer, err)
	}
}
