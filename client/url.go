package client

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/dial"
	"github.com/redis/rueidis"
)

// ParseURL returns the options that [Open] connects with. Use it if the application needs the
// rueidis client itself. Change the options, create the client with rueidis.NewClient, and pass it
// to [New].
//
// A URL can have the parameters db, master_set, client_name, dial_timeout, write_timeout,
// client_cache=0 and max_retries=0. Others are addr (further addresses, each "host:port"),
// skip_verify (only with TLS) and protocol (2 or 3). Any other parameter, a value without effect,
// and a fragment are errors. An error never repeats the password.
func ParseURL(text string) (rueidis.ClientOption, error) {
	option, err := parseURL(text)
	if err != nil {
		return rueidis.ClientOption{}, err
	}
	return tuned(option, DefaultWatchdogTimeout), nil
}

// parseURL is ParseURL without the settings for locks.
func parseURL(text string) (rueidis.ClientOption, error) {
	option, err := rueidis.ParseURL(withoutSlash(text))
	if err != nil {
		err = unreadable(text, err)
	} else {
		err = check(text)
	}
	if err != nil {
		return rueidis.ClientOption{}, err
	}
	if option.TLSConfig != nil && option.Sentinel.MasterSet != "" {
		// The name in the URL is that of a Sentinel. The certificate of each server is verified for the server's own name.
		option.TLSConfig.ServerName = ""
		option.Sentinel.TLSConfig = option.TLSConfig // otherwise rueidis connects to them in plain text
	}
	return option, nil
}

// withoutSlash removes a slash at the end of the address, because rueidis requires a database number after it.
func withoutSlash(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Path != "/" || u.Scheme == "unix" {
		return text
	}
	u.Path = ""
	return u.String()
}

// tuned sets the zero fields of option to values suitable for locks with this lease.
func tuned(option rueidis.ClientOption, lease time.Duration) rueidis.ClientOption {
	option.DisableCache = true
	option.ClientName = cmp.Or(option.ClientName, "leasehold")
	option.ConnWriteTimeout = cmp.Or(option.ConnWriteTimeout, 5*time.Second)
	// The operating system detects a host that is gone, without a command. PINGs detect a server that hangs,
	// before a lease can expire. rueidis sends one if it received no other reply since the last tick.
	option.Dialer = dial.Lively(option.Dialer)
	option.Dialer.KeepAlive = cmp.Or(option.Dialer.KeepAlive, max(min(lease/6, 5*time.Second), time.Second))
	// rueidis ignores Dialer for Sentinels. A Sentinel that hangs would keep the client from following a failover.
	sentinel := &option.Sentinel.Dialer
	*sentinel = dial.Lively(*sentinel)
	sentinel.KeepAlive = cmp.Or(sentinel.KeepAlive, option.Dialer.KeepAlive)
	sentinel.Timeout = cmp.Or(sentinel.Timeout, option.Dialer.Timeout, rueidis.DefaultDialTimeout)
	// Commands and replies of locks are short. The default buffers take 1.35 MB for each connection.
	option.ReadBufferEachConn = cmp.Or(option.ReadBufferEachConn, 32<<10)
	option.WriteBufferEachConn = cmp.Or(option.WriteBufferEachConn, 32<<10)
	option.RingScaleEachConn = cmp.Or(option.RingScaleEachConn, 9)
	// With a single connection, commands about a lock stay in order, and more callers share each
	// write. A short wait for more callers halves the write cost of a busy client. A lone caller
	// does not wait.
	option.PipelineMultiplex = cmp.Or(option.PipelineMultiplex, -1)
	option.MaxFlushDelay = cmp.Or(option.MaxFlushDelay, 20*time.Microsecond)
	option.Sentinel.TopologyRefreshInterval = cmp.Or(option.Sentinel.TopologyRefreshInterval, 5*time.Second)
	option.ClusterOption.ShardsRefreshInterval = cmp.Or(option.ClusterOption.ShardsRefreshInterval, 15*time.Second)
	return option
}

var (
	errEmpty    = errors.New("the URL is empty: want redis://host:port, rediss://host:port for TLS, or unix:///path")
	errNoScheme = errors.New("the URL has no scheme: want redis://host:port, rediss://host:port for TLS, or unix:///path")
	errEncoding = errors.New("the URL cannot be read; are user and password percent-encoded? want redis://user:password@host:port")
	errFragment = errors.New(`the URL contains "#", and a Redis URL has no fragment: in a user or password, write %23`)
)

// unreadable returns the error of ParseURL for a text that rueidis rejected with err. It never
// repeats anything that may be part of the password.
func unreadable(text string, err error) error {
	scheme, _, ok := strings.Cut(text, "://")
	switch known := map[string]bool{"redis": true, "rediss": true, "valkey": true, "valkeys": true, "unix": true}; {
	case text == "":
		return errEmpty
	case !ok:
		return errNoScheme
	case strings.Contains(text, "#"):
		return errFragment
	case !known[scheme] && !strings.Contains(scheme, "@"):
		return fmt.Errorf("the URL has the scheme %.20q: want redis://host:port, rediss://host:port for TLS, or unix:///path", scheme)
	case strings.Contains(text, "@") || errors.As(err, new(*url.Error)):
		return errEncoding
	}
	return err
}

// parameters are the supported URL parameters. want describes the valid values if rueidis ignores others.
var parameters = map[string]struct {
	want string
	fits func(value string) bool
}{
	"addr": {"host:port", func(v string) bool {
		_, port, err := net.SplitHostPort(v)
		return err == nil && port != ""
	}},
	"client_cache":  {"0", func(v string) bool { return v == "0" }},
	"client_name":   {},
	"db":            {},
	"dial_timeout":  {"a positive duration, such as 5s", positive},
	"master_set":    {"the name that the Sentinels know", func(v string) bool { return v != "" }},
	"max_retries":   {"0", func(v string) bool { return v == "0" }},
	"protocol":      {"2 or 3", func(v string) bool { return v == "2" || v == "3" }},
	"skip_verify":   {},
	"write_timeout": {"a positive duration, such as 5s", positive},
}

// positive reports whether value is a positive duration, or not a duration at all, which rueidis reports.
func positive(value string) bool {
	d, err := time.ParseDuration(value)
	return err != nil || d > 0
}

// check returns an error for parts of a valid URL that rueidis ignores. The error repeats no value.
func check(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return errEncoding
	}
	given, err := url.ParseQuery(u.RawQuery)
	switch {
	case !strings.Contains(text, "://"):
		return errNoScheme
	case strings.Contains(text, "#"): // a password with this character ends in the host part
		return errFragment
	case err != nil:
		return errEncoding
	case u.Scheme == "unix" && u.Host != "":
		return errors.New("the URL of a Unix socket has a host: want unix:///path, with three slashes")
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		parameter, known := parameters[name]
		switch {
		case !known && strings.Contains(u.RawQuery, "@"): // the name may be part of the password
			return errEncoding
		case !known:
			return unknownParameter(name)
		case len(given[name]) > 1 && name != "addr": // rueidis uses only the first value
			return fmt.Errorf("the URL parameter %s is given %d times, want 1", name, len(given[name]))
		case name == "db" && u.Scheme != "unix" && strings.Trim(u.Path, "/") != "": // rueidis ignores the path
			return errors.New("the URL names a database in its path and in the parameter db: omit one of them")
		case name == "skip_verify" && u.Scheme != "rediss" && u.Scheme != "valkeys":
			return errors.New("the URL parameter skip_verify is for TLS only: want rediss://host:port")
		case u.Scheme == "unix" && (name == "addr" || name == "master_set"):
			return fmt.Errorf("the URL parameter %s is for TCP only, and the URL names a Unix socket", name)
		case parameter.fits != nil && slices.ContainsFunc(given[name], func(v string) bool { return !parameter.fits(v) }):
			return fmt.Errorf("the URL parameter %s must be %s", name, parameter.want)
		}
	}
	return nil
}

// unknownParameter returns the error for an unsupported URL parameter.
func unknownParameter(name string) error {
	hint := ""
	if short := strings.ToLower(name); strings.Contains(short, "tls") || strings.Contains(short, "ssl") {
		hint = "; for TLS the URL begins with rediss://"
	}
	return fmt.Errorf("unknown URL parameter %.40q%s; the known parameters are %s", name, hint, strings.Join(slices.Sorted(maps.Keys(parameters)), ", "))
}
