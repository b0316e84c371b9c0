package goredisopt_test

import (
	"context"
	"crypto/tls"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/goredisopt"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/redis/go-redis/v9/push"
	"github.com/redis/rueidis"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// reach fails unless a client with option locks on the servers that rdb connects to, where rdb reads the lock.
func reach(t *testing.T, rdb redis.UniversalClient, option rueidis.ClientOption, err error) {
	t.Helper()
	defer rdb.Close()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.OpenWithOption(t.Context(), option, client.WithoutRegistry())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	h, err := c.NewLock("goredisopt").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := rdb.Exists(t.Context(), "goredisopt").Result(); n != 1 || err != nil {
		t.Errorf("go-redis sees %d locks, %v", n, err)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// secret returns a server with a user and a password, and a database other than 0.
func secret(t *testing.T) *redistest.Server {
	t.Helper()
	s := redistest.Start(t)
	s.AddUser(t, "ann", "~*", "&*", "+@all")
	return s
}

// A single server with a user, a database, and each way to set a password. Options that go-redis already uses can be converted
// too.
func TestFromOptions(t *testing.T) {
	s := secret(t)
	for name, o := range map[string]*redis.Options{
		"password":                   {Addr: s.Addr(), Username: "ann", Password: "secret", DB: 2},
		"CredentialsProvider":        {Addr: s.Addr(), CredentialsProvider: func() (string, string) { return "ann", "secret" }},
		"CredentialsProviderContext": {Addr: s.Addr(), CredentialsProviderContext: func(context.Context) (string, string, error) { return "ann", "secret", nil }},
		"RESP2":                      {Addr: s.Addr(), Username: "ann", Password: "secret", Protocol: 2, PoolSize: 3, ReadTimeout: time.Second, ConnMaxLifetime: -1},
		"Dialer": {Addr: "elsewhere:1", Username: "ann", Password: "secret", Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, s.Addr())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := redis.NewClient(o)
			option, err := goredisopt.FromOptions(o)
			reach(t, rdb, option, err)
			rdb = redis.NewClient(o)
			option, err = goredisopt.FromOptions(rdb.Options()) // go-redis has set some of them
			reach(t, rdb, option, err)
		})
	}
}

func TestFromOptions_TLS(t *testing.T) {
	a := redistest.NewAuthority(t)
	_, addr := redistest.StartTLS(t, a)
	o := &redis.Options{Addr: addr, TLSConfig: a.Config(a.Issue(t))}
	option, err := goredisopt.FromOptions(o)
	reach(t, redis.NewClient(o), option, err)

	o.Dialer = redis.NewDialer(o) // it performs the TLS handshake
	option, err = goredisopt.FromOptions(o)
	reach(t, redis.NewClient(o), option, err)
}

func TestFromOptions_unixSocket(t *testing.T) {
	socket := t.TempDir() + "/redis"
	redistest.Start(t, "--unixsocket", socket)
	for _, network := range []string{"", "unix"} {
		o := &redis.Options{Network: network, Addr: socket}
		option, err := goredisopt.FromOptions(o)
		reach(t, redis.NewClient(o), option, err)
	}
}

func TestFromClusterOptions(t *testing.T) {
	a := redistest.NewAuthority(t)
	_, addrs := redistest.StartTLSCluster(t, a)
	o := &redis.ClusterOptions{Addrs: addrs, TLSConfig: a.Config(a.Issue(t))}
	rdb := redis.NewClusterClient(o) // sets fields of o
	option, err := goredisopt.FromClusterOptions(o)
	reach(t, rdb, option, err)
}

// The Sentinels have a separate password.
func TestFromFailoverOptions(t *testing.T) {
	s := redistest.StartSentinel(t, 2)
	o := &redis.FailoverOptions{MasterName: redistest.PrimaryName, DB: 1}
	for _, sentinel := range s.Sentinels {
		sentinel.Do(t, "ACL", "SETUSER", "ann", "on", ">secret", "+@all", "&*")
		o.SentinelAddrs = append(o.SentinelAddrs, sentinel.Addr())
	}
	for _, node := range s.Nodes {
		node.Do(t, "ACL", "SETUSER", "bob", "on", ">hidden", "~*", "&*", "+@all")
	}
	o.SentinelUsername, o.SentinelPassword, o.Username, o.Password = "ann", "secret", "bob", "hidden"
	option, err := goredisopt.FromFailoverOptions(o)
	if option.Sentinel.Username != "ann" || option.Sentinel.Password != "secret" {
		t.Errorf("%+v", option.Sentinel)
	}
	reach(t, redis.NewFailoverClient(o), option, err)
}

func TestFromFailoverOptions_TLS(t *testing.T) {
	a := redistest.NewAuthority(t)
	o := &redis.FailoverOptions{MasterName: redistest.PrimaryName, SentinelAddrs: []string{redistest.StartTLSSentinel(t, a)}, TLSConfig: a.Config(a.Issue(t))}
	option, err := goredisopt.FromFailoverOptions(o)
	reach(t, redis.NewFailoverClient(o), option, err)
}

// openLocks opens a client on the servers of redis.NewUniversalClient(options).
func openLocks(ctx context.Context, options *redis.UniversalOptions) (*client.Client, error) {
	option, err := goredisopt.FromUniversalOptions(options) // also TLS, Sentinel and passwords
	if err != nil {
		return nil, err // names the field that leasehold does not support
	}
	return client.OpenWithOption(ctx, option, client.WithKeyPrefix("lock:"))
}

// Code of docs/guides/goredis.md.
func TestFromUniversalOptions_TLS(t *testing.T) {
	a := redistest.NewAuthority(t)
	o := &redis.UniversalOptions{MasterName: redistest.PrimaryName, Addrs: []string{redistest.StartTLSSentinel(t, a)}, TLSConfig: a.Config(a.Issue(t))}
	c, err := openLocks(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	rdb := redis.NewUniversalClient(o)
	defer rdb.Close()
	h, err := c.NewLock("goredisopt").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := rdb.Exists(t.Context(), "lock:goredisopt").Result(); n != 1 || err != nil {
		t.Errorf("go-redis sees %d locks, %v", n, err)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// Instead of their own password, the Sentinels would be sent what a credential provider returns for the servers.
func TestFromFailoverOptions_providers(t *testing.T) {
	plain := func() (user, password string) { return "bob", "hidden" }
	provide := func(context.Context) (user, password string, err error) { return "bob", "hidden", nil }
	for _, options := range []any{
		&redis.FailoverOptions{MasterName: "primary", CredentialsProvider: plain},
		&redis.FailoverOptions{MasterName: "primary", CredentialsProviderContext: provide},
		&redis.UniversalOptions{MasterName: "primary", CredentialsProviderContext: provide},
	} {
		if err := from(options); err == nil || !strings.Contains(err.Error(), "FailoverOptions.CredentialsProvider") || !strings.Contains(err.Error(), "(the Sentinels would be sent") {
			t.Errorf("%+v: %v", options, err)
		}
	}
}

// Each kind of universal options is converted like its own type of options.
func TestFromUniversalOptions(t *testing.T) {
	one, two, master := []string{"a:1"}, []string{"a:1", "b:2"}, "primary"
	for name, c := range map[string]struct {
		universal redis.UniversalOptions
		want      func() (rueidis.ClientOption, error)
	}{
		"a server": {redis.UniversalOptions{Addrs: one, DB: 3, Username: "ann"}, func() (rueidis.ClientOption, error) {
			return goredisopt.FromOptions(&redis.Options{Addr: "a:1", DB: 3, Username: "ann"})
		}},
		"a cluster": {redis.UniversalOptions{Addrs: two, Password: "x"}, func() (rueidis.ClientOption, error) {
			return goredisopt.FromClusterOptions(&redis.ClusterOptions{Addrs: two, Password: "x"})
		}},
		"a cluster with one address": {redis.UniversalOptions{Addrs: one, IsClusterMode: true, ClientName: "x"}, func() (rueidis.ClientOption, error) {
			return goredisopt.FromClusterOptions(&redis.ClusterOptions{Addrs: one, ClientName: "x"})
		}},
		"Sentinel": {redis.UniversalOptions{Addrs: two, MasterName: master, SentinelPassword: "y", DB: 1}, func() (rueidis.ClientOption, error) {
			return goredisopt.FromFailoverOptions(&redis.FailoverOptions{SentinelAddrs: two, MasterName: master, SentinelPassword: "y", DB: 1})
		}},
	} {
		got, err := goredisopt.FromUniversalOptions(&c.universal)
		want, wantErr := c.want()
		if err != nil || wantErr != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v, %v", name, got, err, want, wantErr)
		}
	}
	if o, err := goredisopt.FromOptions(&redis.Options{}); err != nil || !slices.Equal(o.InitAddress, []string{"localhost:6379"}) {
		t.Errorf("%v, %v", o.InitAddress, err)
	}
}

// Timeouts and the name are converted, and the TLS configuration is a copy.
func TestFromOptions_converted(t *testing.T) {
	config := &tls.Config{ServerName: "redis"}
	o, err := goredisopt.FromOptions(&redis.Options{ClientName: "app", DialTimeout: time.Second, WriteTimeout: 2 * time.Second, ConnMaxLifetime: time.Hour, Protocol: 2, TLSConfig: config})
	if err != nil || o.ClientName != "app" || o.Dialer.Timeout != time.Second || o.ConnWriteTimeout != 2*time.Second || o.ConnLifetime != time.Hour || !o.AlwaysRESP2 || o.TLSConfig == config || o.TLSConfig.ServerName != "redis" {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := goredisopt.FromOptions(&redis.Options{DialTimeout: -1}); err == nil || !strings.Contains(err.Error(), "must not be negative") {
		t.Errorf("%v", err)
	}
}

// rueidis closes a connection if a reply takes longer than its single timeout, so that is the larger one. Without a timeout, the
// default of leasehold applies.
func TestFromOptions_timeouts(t *testing.T) {
	for _, c := range []struct{ read, write, want time.Duration }{
		{0, 0, 0},
		{0, time.Second, time.Second},
		{10 * time.Second, 0, 10 * time.Second},
		{10 * time.Second, time.Second, 10 * time.Second},
		{-1, -2, 0},
		{-2, time.Second, time.Second},
	} {
		o := &redis.Options{ReadTimeout: c.read, WriteTimeout: c.write}
		if got, err := goredisopt.FromOptions(o); err != nil || got.ConnWriteTimeout != c.want {
			t.Errorf("%+v: %v, %v", c, got.ConnWriteTimeout, err)
		}
	}
	o := redis.NewClient(&redis.Options{ReadTimeout: -2, WriteTimeout: -2})
	defer o.Close()
	if got, err := goredisopt.FromOptions(o.Options()); err != nil || got.ConnWriteTimeout != 0 { // go-redis has changed -2 to -1
		t.Errorf("used: %v, %v", got.ConnWriteTimeout, err)
	}
}

// A dialer is called with the network of the options.
func TestFromOptions_dialerNetwork(t *testing.T) {
	for _, c := range []struct{ network, addr, want string }{
		{"", "a:1", "tcp"},
		{"tcp4", "a:1", "tcp4"},
		{"", "/redis.sock", "unix"},
		{"unix", "redis.sock", "unix"},
	} {
		var got string
		option, err := goredisopt.FromOptions(&redis.Options{Network: c.network, Addr: c.addr, Dialer: func(_ context.Context, network, addr string) (net.Conn, error) {
			got = network + " " + addr
			return nil, net.ErrClosed
		}})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = option.DialCtxFn(t.Context(), option.InitAddress[0], nil, nil)
		if want := c.want + " " + c.addr; got != want {
			t.Errorf("%+v: dials %s; want %s", c, got, want)
		}
	}
}

// Without a password, go-redis sends no user, and connects as the default user.
func TestFromOptions_userAlone(t *testing.T) {
	s := redistest.Start(t)
	for name, o := range map[string]*redis.Options{
		"fields":   {Addr: s.Addr(), Username: "nobody"},
		"provider": {Addr: s.Addr(), CredentialsProvider: func() (string, string) { return "nobody", "" }},
	} {
		t.Run(name, func(t *testing.T) {
			option, err := goredisopt.FromOptions(o)
			reach(t, redis.NewClient(o), option, err)
		})
	}
	option, err := goredisopt.FromFailoverOptions(&redis.FailoverOptions{MasterName: "primary", SentinelUsername: "nobody"})
	if err != nil || option.Sentinel.Username != "" {
		t.Errorf("Sentinel: %q, %v", option.Sentinel.Username, err)
	}
}

// Every exported field of each kind of options is converted, has no effect, or is an error that names it.
func TestFields(t *testing.T) {
	converted := strings.Fields(`Network Addr Addrs MasterName SentinelAddrs SentinelUsername SentinelPassword IsClusterMode
		ClientName Dialer Protocol Username Password CredentialsProvider CredentialsProviderContext DB DialTimeout ReadTimeout WriteTimeout ConnMaxLifetime TLSConfig`)
	noEffect := strings.Fields(`MaxRetries MinRetryBackoff MaxRetryBackoff DialerRetries DialerRetryTimeout ContextTimeoutEnabled
		ReadBufferSize WriteBufferSize PoolFIFO PoolSize MaxConcurrentDials PoolTimeout MinIdleConns MaxIdleConns MaxActiveConns ConnMaxIdleTime
		ConnMaxLifetimeJitter DisableIndentity DisableIdentity IdentitySuffix UnstableResp3 FailingTimeoutSeconds MaintNotificationsConfig MaxRedirects NewClient PushNotificationProcessor`)
	for _, options := range []any{new(redis.Options), new(redis.ClusterOptions), new(redis.FailoverOptions), new(redis.UniversalOptions)} {
		of := reflect.TypeOf(options).Elem()
		for i := range of.NumField() {
			f := of.Field(i)
			if !f.IsExported() || slices.Contains(converted, f.Name) || slices.Contains(noEffect, f.Name) {
				continue
			}
			o := reflect.New(of)
			switch set := o.Elem().Field(i); f.Type.Kind() {
			case reflect.Bool:
				set.SetBool(true)
			case reflect.Func:
				set.Set(reflect.MakeFunc(f.Type, nil))
			case reflect.Interface:
				set.Set(reflect.ValueOf(anything{}))
			default:
				t.Errorf("%s.%s is in no list", of.Name(), f.Name)
				continue
			}
			err := from(o.Interface())
			if want := of.Name() + "." + f.Name; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", want, err)
			}
		}
		if err := from(reflect.Zero(reflect.PointerTo(of)).Interface()); err == nil || !strings.Contains(err.Error(), of.Name()) {
			t.Errorf("nil *%s: %v", of.Name(), err)
		}
	}
}

func from(options any) (err error) {
	switch o := options.(type) {
	case *redis.Options:
		_, err = goredisopt.FromOptions(o)
	case *redis.ClusterOptions:
		_, err = goredisopt.FromClusterOptions(o)
	case *redis.FailoverOptions:
		_, err = goredisopt.FromFailoverOptions(o)
	case *redis.UniversalOptions:
		_, err = goredisopt.FromUniversalOptions(o)
	}
	return err
}

// anything implements every interface that a field can have.
type anything struct {
	auth.StreamingCredentialsProvider
	push.NotificationProcessor
	redis.Limiter
}
