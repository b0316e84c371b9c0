// Package goredisopt converts the options of go-redis to those of leasehold, for applications that already have them.
//
//	option, err := goredisopt.FromOptions(options) // the *redis.Options of the application
//	if err != nil {
//		return err
//	}
//	c, err := client.OpenWithOption(ctx, option)
//
// leasehold opens its own connections in addition to those of go-redis. Over RESP3, it opens one
// for commands to each server in use, and one that carries notifications and its registry entry.
//
// # Fields
//
//	converted    the servers, TLS, user, password and credential providers, the database, the dialer, client name and protocol,
//	             DialTimeout, ReadTimeout, WriteTimeout and ConnMaxLifetime
//	no effect    pool sizes, buffers, retries and redirects, identity, maintenance and push notifications, NewClient:
//	             leasehold shares one connection between all callers, and client.WithOpTimeout bounds its commands
//	an error     OnConnect, StreamingCredentialsProvider, Limiter, ClusterSlots, credential providers with Sentinel,
//	             and all that selects replicas: locks are on the primary
//
// rueidis has one timeout for the reads and writes of a connection, ConnWriteTimeout, after which
// the connection is closed. It is the larger of ReadTimeout and WriteTimeout. If neither is
// positive, leasehold uses its default, because it must detect a server that hangs. As in go-redis,
// a user without a password is not sent.
package goredisopt

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// FromOptions converts the options of redis.NewClient. If a field that is set is not supported, the error names it.
func FromOptions(o *redis.Options) (rueidis.ClientOption, error) {
	if o == nil {
		return rueidis.ClientOption{}, errNil("Options")
	}
	network, addr := o.Network, o.Addr
	if network == "" && strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	if addr == "" {
		addr = "localhost:6379"
	}
	option, err := convert(o, network, []string{addr})
	if network != "" && network != "tcp" && option.DialCtxFn == nil {
		option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
			if t == nil {
				return d.DialContext(ctx, network, addr)
			}
			return (&tls.Dialer{NetDialer: d, Config: t}).DialContext(ctx, network, addr)
		}
	}
	return option, err
}

// FromClusterOptions converts the options of redis.NewClusterClient. If a field that is set is not supported, the error names it.
func FromClusterOptions(o *redis.ClusterOptions) (rueidis.ClientOption, error) {
	if o == nil {
		return rueidis.ClientOption{}, errNil("ClusterOptions")
	}
	return convert(o, "", o.Addrs)
}

// FromFailoverOptions converts the options of redis.NewFailoverClient, for Redis with Sentinel. If a field that is set is not
// supported, the error names it.
func FromFailoverOptions(o *redis.FailoverOptions) (rueidis.ClientOption, error) {
	if o == nil {
		return rueidis.ClientOption{}, errNil("FailoverOptions")
	}
	option, err := convert(o, "", o.SentinelAddrs)
	option.Sentinel = rueidis.SentinelOption{
		Dialer:     option.Dialer,
		TLSConfig:  option.TLSConfig,
		MasterSet:  o.MasterName,
		Username:   user(o.SentinelUsername, o.SentinelPassword),
		Password:   o.SentinelPassword,
		ClientName: o.ClientName,
	}
	return option, err
}

// FromUniversalOptions converts the options of redis.NewUniversalClient. That client connects with
// Sentinel if MasterName is set. Otherwise it connects to a cluster if there are several addresses
// or IsClusterMode is set, and else to a single server. If a field that is set is not supported,
// the error names it.
func FromUniversalOptions(o *redis.UniversalOptions) (rueidis.ClientOption, error) {
	if o == nil {
		return rueidis.ClientOption{}, errNil("UniversalOptions")
	}
	if err := check(o); err != nil { // checks the fields that the other options do not have
		return rueidis.ClientOption{}, err
	}
	u := *o
	switch {
	case u.MasterName != "":
		return FromFailoverOptions(u.Failover())
	case len(u.Addrs) > 1 || u.IsClusterMode:
		return FromClusterOptions(u.Cluster())
	}
	return FromOptions(u.Simple())
}

func errNil(of string) error { return fmt.Errorf("goredisopt: the *redis.%s are nil", of) }

// replicas is the reason why options that select replicas are not supported.
const replicas = "locks are on the primary"

// sentinels is the reason why options for Sentinel cannot have a credential provider.
const sentinels = "the Sentinels would be sent the credentials of the servers"

// unsupported has the fields that cause an error if they are set, with the reason.
var unsupported = map[string]string{
	"OnConnect":                    "connections are made by another library",
	"StreamingCredentialsProvider": "use CredentialsProviderContext",
	"Limiter":                      "it is for a *redis.Client",
	"ClusterSlots":                 "the slots come from the cluster",
	"ReadOnly":                     replicas,
	"RouteByLatency":               replicas,
	"RouteRandomly":                replicas,
	"ReplicaOnly":                  replicas,
	"UseDisconnectedReplicas":      replicas,

	"FailoverOptions.CredentialsProvider":        sentinels,
	"FailoverOptions.CredentialsProviderContext": sentinels,
}

// check returns an error that names an unsupported field of options.
func check(options any) error {
	v := reflect.ValueOf(options).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if why := cmp.Or(unsupported[name], unsupported[v.Type().Name()+"."+name]); why != "" && !v.Field(i).IsZero() {
			return fmt.Errorf("goredisopt: %s.%s is not supported (%s); remove it", v.Type().Name(), name, why)
		}
	}
	return nil
}

// convert converts the fields that all options have. network is the network of the dialer; "" means tcp.
func convert(options any, network string, addrs []string) (rueidis.ClientOption, error) {
	if err := check(options); err != nil {
		return rueidis.ClientOption{}, err
	}
	v := reflect.ValueOf(options).Elem()
	r := rueidis.ClientOption{
		InitAddress:  slices.Clone(addrs),
		ClientName:   get[string](v, "ClientName"),
		Username:     user(get[string](v, "Username"), get[string](v, "Password")),
		Password:     get[string](v, "Password"),
		SelectDB:     get[int](v, "DB"),
		TLSConfig:    get[*tls.Config](v, "TLSConfig").Clone(),
		AlwaysRESP2:  get[int](v, "Protocol") == 2,
		ConnLifetime: max(0, get[time.Duration](v, "ConnMaxLifetime")), // -1 means none

		// -1 and -2 mean none.
		ConnWriteTimeout: max(0, get[time.Duration](v, "ReadTimeout"), get[time.Duration](v, "WriteTimeout")),
	}
	if r.Dialer.Timeout = get[time.Duration](v, "DialTimeout"); r.Dialer.Timeout < 0 {
		return rueidis.ClientOption{}, fmt.Errorf("goredisopt: %s.DialTimeout must not be negative; got %v", v.Type().Name(), r.Dialer.Timeout)
	}
	if dial := get[func(context.Context, string, string) (net.Conn, error)](v, "Dialer"); dial != nil {
		r.DialCtxFn = func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dial(ctx, cmp.Or(network, "tcp"), addr)
		}
	}
	provide := get[func(context.Context) (string, string, error)](v, "CredentialsProviderContext")
	if plain := get[func() (string, string)](v, "CredentialsProvider"); provide == nil && plain != nil {
		provide = func(context.Context) (user, password string, err error) {
			user, password = plain()
			return user, password, nil
		}
	}
	if provide != nil {
		r.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
			name, password, err := provide(context.Background())
			return rueidis.AuthCredentials{Username: user(name, password), Password: password}, err
		}
	}
	return r, nil
}

// user returns the user that go-redis connects as. Without a password, it sends no user.
func user(name, password string) string {
	if password == "" {
		return ""
	}
	return name
}

// get returns a field of options, or its zero value if these options do not have the field.
func get[T any](v reflect.Value, name string) (value T) {
	if f := v.FieldByName(name); f.IsValid() {
		value, _ = f.Interface().(T)
	}
	return value
}
