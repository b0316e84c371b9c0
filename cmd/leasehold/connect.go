package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/dial"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
)

// connection is how a command reaches its servers: the flags, and the environment for
// the flags that are not set.
type connection struct {
	urls      []string
	authority string // a file with certificates
	cert, key string // files with the client's certificate and its key
	insecure  bool
}

// addFlags gives cmd the flags of a connection.
func (c *connection) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVarP(&c.urls, "url", "u", nil, "URL of the server: redis, rediss (TLS), valkey, valkeys or unix (default $LEASEHOLD_REDIS_URL, then $REDIS_URL)")
	f.StringVar(&c.authority, "cacert", "", "file with the certificate authorities of the server, in PEM (default those of the system)")
	f.StringVar(&c.cert, "cert", "", "file with the client certificate, in PEM (default none)")
	f.StringVar(&c.key, "key", "", "file with the private key of --cert, in PEM (default none)")
	f.BoolVar(&c.insecure, "insecure", false, "no verification of the server certificate")
}

// connectionHelp is the section about the connection in the help of each command.
const connectionHelp = `Connection:
  The URL comes from --url, LEASEHOLD_REDIS_URL or REDIS_URL, in that order.
      redis://[user:password@]host[:port][/db]       one server, or a cluster
      rediss://…                                     the same over TLS
      redis://sentinel:26379?master_set=NAME         via Sentinel; &addr=HOST:PORT adds a Sentinel
      unix:///path/to/redis.sock?db=0                a Unix socket
  Other users of the machine can read command lines, so do not put a password into
  --url. If the URL has no password, REDISCLI_AUTH sets it. The variables
  LEASEHOLD_SENTINEL_USERNAME and LEASEHOLD_SENTINEL_PASSWORD are for Sentinel.`

// addresses returns the URLs of the servers. In the environment, spaces separate them.
func (c *connection) addresses() ([]string, error) {
	urls := c.urls
	if len(urls) == 0 {
		urls = strings.Fields(cmp.Or(os.Getenv("LEASEHOLD_REDIS_URL"), os.Getenv("REDIS_URL")))
	}
	if len(urls) == 0 {
		return nil, usagef("no server URL: set --url or LEASEHOLD_REDIS_URL")
	}
	return urls, nil
}

// address returns the URL of the server for a command that accepts only one.
func (c *connection) address() (string, error) {
	urls, err := c.addresses()
	if err == nil && len(urls) > 1 {
		err = usagef("%d URLs: want 1", len(urls))
	}
	if err != nil {
		return "", err
	}
	return urls[0], nil
}

// server returns the address of the server for a message, without a password.
func (c *connection) server() string {
	address, err := c.address()
	if err != nil {
		return "the server"
	}
	return redacted(address)
}

// dial connects to the server at address. It stops trying when ctx is canceled.
func (c *connection) dial(ctx context.Context, address string) (rueidis.Client, error) {
	option, err := c.options(address)
	if err != nil {
		return nil, err
	}
	rdb, err := dial.Client(ctx, option)
	if err == nil {
		return rdb, nil
	}
	if cause := context.Cause(ctx); errors.As(cause, &interrupted{}) {
		return nil, cause
	}
	return nil, &connectError{address, err}
}

// connectError is the error of a failed connection to a server.
type connectError struct {
	address string
	err     error
}

// Error names the server.
func (e *connectError) Error() string {
	return fmt.Sprintf("cannot connect to %s: %v", redacted(e.address), e.err)
}

// Unwrap returns the cause.
func (e *connectError) Unwrap() error { return e.err }

// options returns the options of a connection to the server at address.
func (c *connection) options(address string) (rueidis.ClientOption, error) {
	option, err := client.ParseURL(address)
	if err != nil {
		return option, usage(err)
	}
	option.Password = cmp.Or(option.Password, os.Getenv("REDISCLI_AUTH"))
	option.Sentinel.Username = os.Getenv("LEASEHOLD_SENTINEL_USERNAME")
	option.Sentinel.Password = os.Getenv("LEASEHOLD_SENTINEL_PASSWORD")
	// A command-line tool sends little, and should start fast. By default, rueidis
	// allocates two buffers of half a megabyte for each connection.
	option.ReadBufferEachConn, option.WriteBufferEachConn = 16<<10, 16<<10
	option.RingScaleEachConn = 8
	return option, c.secure(option.TLSConfig)
}

// secure applies the TLS flags to config.
func (c *connection) secure(config *tls.Config) error {
	if config == nil {
		if c.authority != "" || c.cert != "" || c.key != "" || c.insecure {
			return usagef("--cacert, --cert, --key and --insecure require a TLS URL: use rediss://")
		}
		return nil
	}
	config.InsecureSkipVerify = config.InsecureSkipVerify || c.insecure
	if c.authority != "" {
		pem, err := os.ReadFile(c.authority)
		if err != nil {
			return usage(fmt.Errorf("--cacert: %w", err))
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return usagef("--cacert: no PEM certificate in %s", c.authority)
		}
	}
	if c.cert == "" && c.key == "" {
		return nil
	}
	if c.cert == "" || c.key == "" {
		return usage(errors.New("--cert and --key must be used together"))
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return usage(fmt.Errorf("--cert, --key: %w", err))
	}
	config.Certificates = []tls.Certificate{pair}
	return nil
}

// redacted returns address without user and password. Of the query, it keeps only the parameters that identify the server, because a user
// may have put a password there by mistake.
func redacted(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Opaque != "" {
		return "an invalid URL"
	}
	u.User, u.Fragment = nil, ""
	if u.Host == "" && u.Scheme != "unix" {
		u.Host = "localhost:6379" // the default of rueidis
	}
	q := u.Query()
	maps.DeleteFunc(q, func(name string, _ []string) bool {
		return !slices.Contains([]string{"db", "addr", "master_set"}, name)
	})
	u.RawQuery = q.Encode()
	return u.String()
}

// operate connects, and calls f with an admin.
func (c *connection) operate(ctx context.Context, f func(*admin.Admin, rueidis.Client) error, opts ...admin.Option) error {
	address, err := c.address()
	if err != nil {
		return err
	}
	rdb, err := c.dial(ctx, address)
	if err != nil {
		return err
	}
	defer rdb.Close()
	a, err := admin.New(rdb, opts...)
	if err != nil {
		return usage(err)
	}
	return f(a, rdb)
}

// replica returns a warning if the server is a replica, or "". A replica that has lost its primary shows a lock as free as soon as the
// last lease that it received has expired.
func (c *connection) replica(ctx context.Context, rdb rueidis.Client) string {
	if rdb.Mode() == rueidis.ClientModeCluster { // then commands go to the primaries
		return ""
	}
	role, err := rdb.Do(ctx, rdb.B().Role().Build()).ToArray()
	if err != nil || len(role) == 0 { // the commands that follow report what is wrong
		return ""
	}
	if name, _ := role[0].ToString(); name != "slave" {
		return ""
	}
	return fmt.Sprintf("%s is a replica, which can show a held lock as free: connect to the primary, or via Sentinel (?master_set=NAME)", c.server())
}

// warnOfReplica writes that warning to stderr.
func (c *connection) warnOfReplica(ctx context.Context, rdb rueidis.Client, stderr io.Writer) {
	if text := c.replica(ctx, rdb); text != "" {
		warn(stderr, "%s", text)
	}
}
