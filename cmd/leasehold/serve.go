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
		Long: `Serve a web page that shows the locks of a server or a cluster, until it is
interrupted: who holds each, when it asked, who waits, which clients there are, and
which clients may be deadlocked. The page follows what happens. All
browsers together ask Redis once, and nobody asks while no browser is there, unless
--record says so. serve keeps in memory who held which lock, for the page of the lock and
for leasehold history. /api/locks has the locks as JSON.

The page only shows, unless --allow-unlock is given. Then every user that can open the page
can unlock a lock by force, after typing its name.

serve listens on this machine alone, unless --listen says otherwise. It answers only
requests for an IP address, for localhost and for the names of --host, so that no other
site in a browser of yours can reach the page by a name of its own.

serve asks for no password, unless one of these says so:
  --auth FILE           a file of users and bcrypt hashes: htpasswd -cB FILE alice
  --user-header NAME    the header in which a proxy names the user that it has checked
An unlock is then recorded as that of the user, and the log of serve has a line for each
with user and address. serve believes the header only from the proxies of --trusted-proxy,
which are those on this machine if not set, and rejects all other requests. The proxy must
remove the header from what browsers send. serve reads FILE once, at its start.

Exit code: 1 if it could not listen or connect, 2 if it was called the wrong way,
else 128+n for signal n.

` + connectionHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case s.as != "" && !s.unlocks:
				return usagef("--operator is for --allow-unlock")
			case s.passwords != "" && s.header != "", s.as != "" && s.passwords+s.header != "":
				return usagef("--operator, --auth and --user-header each say who the user is: give one of them")
			case cmd.Flags().Changed("trusted-proxy") && s.header == "":
				return usagef("--trusted-proxy is for --user-header")
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
	f.StringSliceVar(&s.hosts, "host", nil, "names under which browsers may ask for the page, besides localhost and IP addresses")
	f.BoolVar(&s.unlocks, "allow-unlock", false, "let visitors unlock locks by force")
	f.BoolVar(&s.records, "record", false, "look at the locks all the time, not only while a browser follows a page, and record who holds them")
	f.StringVar(&s.as, "operator", "", "who unlocks, for the note and for the holder (default: your user and this machine)")
	f.StringVar(&s.passwords, "auth", "", "file with the users that may open the page, and the bcrypt hashes of their passwords")
	f.StringVar(&s.header, "user-header", "", "header in which a proxy names the user, who may open the page")
	f.StringSliceVar(&s.proxies, "trusted-proxy", []string{"127.0.0.0/8", "::1"}, "addresses or networks (CIDR) of the proxies whose --user-header counts")
	s.connection.addFlags(cmd)
	return cmd
}

// gate returns who may open the page; nil stands for everyone.
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
	opts := []dashboard.Option{dashboard.WithLogger(s.logger(stderr))}
	if s.unlocks {
		var who func(*http.Request) string
		if gate != nil {
			who = userOf
		}
		if s.as != "" {
			if _, err := admin.New(rdb, admin.WithOperator(s.as)); err != nil {
				return usage(err)
			}
			who = func(*http.Request) string { return s.as }
		}
		opts = append(opts, dashboard.WithForceUnlock(who))
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
	addr := l.Addr().(*net.TCPAddr)
	fmt.Fprintf(stderr, "leasehold: serving http://%s/\n", reachable(addr))
	switch {
	case addr.IP.IsLoopback():
	case s.passwords != "":
		fmt.Fprintln(stderr, "leasehold: other machines can reach the page, and passwords cross the network in the clear: put a proxy with TLS before it")
	case gate == nil:
		fmt.Fprintln(stderr, "leasehold: other machines can reach the page, and it asks for no password: give --auth, or put a proxy before it that does")
	}
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
	cancel() // of the pages that browsers follow
	limit, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer stop()
	if err := web.Shutdown(limit); err != nil {
		_ = web.Close() // a browser that reads nothing must not keep it here
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return context.Cause(ctx)
}

// reachable returns the address for a browser on this machine.
func reachable(addr *net.TCPAddr) string {
	if addr.IP.IsUnspecified() {
		return fmt.Sprintf("localhost:%d", addr.Port)
	}
	return addr.String()
}

// onlyFor refuses requests for names that are not ours. Another site can give its own name the address of this
// machine, and its script could then read the page.
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
			http.Error(w, "no page of this name: leasehold serve --host names it", http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}
