package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/admin/dashboard"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
)

// server is one call of serve.
type server struct {
	connection
	listen    string
	hosts     []string
	unlocks   bool
	as        string
	passwords string // a file
	header    string // in which a proxy names the user
	proxies   []string
	records   bool
}

func serveCommand() *cobra.Command {
	s := &server{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a web page that shows locks",
		Example: `  leasehold serve
  leasehold serve --allow-unlock --operator alice
  leasehold serve --allow-unlock --auth /etc/leasehold/users
  leasehold serve --allow-unlock --user-header X-Forwarded-Email --host locks.example.com    behind oauth2-proxy`,
		Long: `Serve a web page that shows the locks of a server or a cluster until serve is
interrupted: holders, waiters, request times, clients, and possible deadlocks. The page
updates itself. /api/locks returns the locks as JSON.

All browsers share one scan of Redis, and nothing is scanned while no browser is open,
except with --record. serve keeps in memory who held which lock in the last hour, for the
page and for leasehold history.

The page is read-only unless --allow-unlock is given. Then every user who can open the
page can force-unlock a lock after typing its name.

serve listens on 127.0.0.1:8126 unless --listen sets another address. It accepts only
requests for an IP address, for localhost and for the names in --host, to prevent DNS
rebinding.

serve has no password by default. Choose one:
  --auth FILE           users and bcrypt hashes, created by htpasswd -cB FILE alice;
                        serve reads the file once, at its start
  --user-header NAME    header in which an authenticating proxy names the user
The audit record and the log then name the user of each force-unlock. The header is
accepted only from the addresses in --trusted-proxy; other requests are rejected. The
proxy must set or remove the header on every request.

Permissions: see leasehold doctor --print-acl page, or with --allow-unlock,
leasehold doctor --print-acl operator.

Exit codes:
  128+n  signal n ended serve
  1      cannot listen, or Redis unavailable at the start
  2      wrong arguments

` + connectionHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case s.as != "" && !s.unlocks:
				return usagef("--operator requires --allow-unlock")
			case s.passwords != "" && s.header != "", s.as != "" && s.passwords+s.header != "":
				return usagef("--operator, --auth and --user-header exclude each other: use one of them")
			case cmd.Flags().Changed("trusted-proxy") && s.header == "":
				return usagef("--trusted-proxy requires --user-header")
			}
			gate, err := s.gate(cmd.ErrOrStderr())
			if err != nil {
				return usage(err)
			}
			return s.operate(cmd.Context(), func(_ *admin.Admin, rdb rueidis.Client) error {
				return s.serve(cmd.Context(), rdb, gate, cmd.ErrOrStderr())
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.listen, "listen", "127.0.0.1:8126", "address and port to listen on")
	f.StringSliceVar(&s.hosts, "host", nil, "allowed host names of the page, in addition to localhost and IP addresses (default none)")
	f.BoolVar(&s.unlocks, "allow-unlock", false, "force-unlock by visitors")
	f.BoolVar(&s.records, "record", false, "continuous recording of holds, even while no browser is open")
	f.StringVar(&s.as, "operator", "", "operator name for the holder and the audit record (default your user and host name)")
	f.StringVar(&s.passwords, "auth", "", "htpasswd file with the users allowed to open the page, with bcrypt hashes (default none)")
	f.StringVar(&s.header, "user-header", "", "header in which an authenticating proxy names the user (default none)")
	f.StringSliceVar(&s.proxies, "trusted-proxy", []string{"127.0.0.0/8", "::1"}, "addresses or networks (CIDR) of the proxies whose --user-header is accepted")
	s.connection.addFlags(cmd)
	return cmd
}

// gate returns the check of who is allowed to open the page, or nil for everyone.
func (s *server) gate(stderr io.Writer) (gate, error) {
	switch {
	case s.passwords != "":
		return readPasswords(s.passwords, s.logger(stderr))
	case s.header != "":
		return newProxies(s.header, s.proxies)
	}
	return nil, nil
}

func (s *server) logger(stderr io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(stderr, nil))
}

func (s *server) serve(ctx context.Context, rdb rueidis.Client, gate gate, stderr io.Writer) error {
	opts, err := s.pageOptions(rdb, gate, stderr)
	if err != nil {
		return err
	}
	page, err := dashboard.New(rdb, opts...)
	if err != nil {
		return err
	}
	var handler http.Handler = page
	if gate != nil {
		handler = behind(gate, page)
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	open, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	web := &http.Server{
		Handler:           s.onlyFor(handler),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return open },
	}
	s.announce(l.Addr().(*net.TCPAddr), gate, stderr)
	ended := make(chan error, 1)
	go func() { ended <- web.Serve(l) }()
	var recording sync.WaitGroup
	defer func() {
		cancel()
		recording.Wait()
	}()
	if s.records {
		recording.Go(func() { page.Record(open) })
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	cancel() // ends the streams of the pages that browsers follow
	limit, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer stop()
	if err := web.Shutdown(limit); err != nil {
		_ = web.Close() // a browser that does not read must not delay the end
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return context.Cause(ctx)
}

// pageOptions returns the options of the page.
func (s *server) pageOptions(rdb rueidis.Client, gate gate, stderr io.Writer) ([]dashboard.Option, error) {
	opts := []dashboard.Option{dashboard.WithLogger(s.logger(stderr))}
	if s.unlocks {
		var who func(*http.Request) string
		if gate != nil {
			who = userOf
		}
		if s.as != "" {
			if _, err := admin.New(rdb, admin.WithOperator(s.as)); err != nil {
				return nil, usage(err)
			}
			who = func(*http.Request) string { return s.as }
		}
		opts = append(opts, dashboard.WithForceUnlock(who))
	}
	return opts, nil
}

// announce writes the address of the page, and warns if other machines can reach it without protection.
func (s *server) announce(addr *net.TCPAddr, gate gate, stderr io.Writer) {
	warn(stderr, "serving http://%s/", reachable(addr))
	switch {
	case addr.IP.IsLoopback():
	case s.passwords != "":
		warn(stderr, "other machines can reach the page, and passwords are sent unencrypted: put a TLS proxy in front of it")
	case gate == nil:
		warn(stderr, "other machines can reach the page without a password: use --auth, or put an authenticating proxy in front of it")
	}
}

// reachable returns the address for a browser on this machine.
func reachable(addr *net.TCPAddr) string {
	if addr.IP.IsUnspecified() {
		return fmt.Sprintf("localhost:%d", addr.Port)
	}
	return addr.String()
}

// onlyFor rejects requests for other host names. Another site could give its own name the address of this machine,
// and its script could then read the page (DNS rebinding).
func (s *server) onlyFor(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.ToLower(strings.Trim(host, "[]"))
		_, err := netip.ParseAddr(host)
		ours := err == nil || host == "localhost" || slices.ContainsFunc(s.hosts, func(name string) bool { return strings.EqualFold(name, host) })
		if !ours {
			http.Error(w, "unknown host name: allow it with leasehold serve --host", http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}
