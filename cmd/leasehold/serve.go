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
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/admin/dashboard"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
)

// server is one call of serve.
type server struct {
	connection
	listen  string
	hosts   []string
	unlocks bool
	as      string
}

func serveCommand() *cobra.Command {
	s := &server{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a web page that shows locks",
		Example: `  leasehold serve
  leasehold serve --allow-unlock --operator alice
  leasehold serve --listen :8126 --host locks.example.com    behind a proxy that asks for a password`,
		Long: `Serve a web page that shows the locks of a server or a cluster, until it is
interrupted: who holds each, when it asked, who waits, which clients there are, and
which clients may be deadlocked. The page follows what happens. All
browsers together ask Redis once, and nobody asks while no browser is there.

The page only shows, unless --allow-unlock is given. Then every user that can open the page
can unlock a lock by force, after typing its name.

serve asks for no password. It listens on this machine alone, unless --listen says
otherwise; then a proxy should ask for one. serve answers only requests for an IP
address, for localhost and for the names of --host, so that no other site in a
browser of yours can reach the page by a name of its own.

Exit code: 1 if it could not listen or connect, 2 if it was called the wrong way,
else 128+n for signal n.

` + connectionHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.as != "" && !s.unlocks {
				return usagef("--operator is for --allow-unlock")
			}
			return s.operate(cmd.Context(), func(_ *admin.Admin, rdb rueidis.Client) error {
				return s.serve(cmd.Context(), rdb, cmd.ErrOrStderr())
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.listen, "listen", "127.0.0.1:8126", "address and port to listen on")
	f.StringSliceVar(&s.hosts, "host", nil, "names under which browsers may ask for the page, besides localhost and IP addresses")
	f.BoolVar(&s.unlocks, "allow-unlock", false, "let visitors unlock locks by force")
	f.StringVar(&s.as, "operator", "", "who unlocks, for the note and for the holder (default: your user and this machine)")
	s.connection.addFlags(cmd)
	return cmd
}

func (s *server) serve(ctx context.Context, rdb rueidis.Client, stderr io.Writer) error {
	opts := []dashboard.Option{dashboard.WithLogger(slog.New(slog.NewTextHandler(stderr, nil)))}
	if s.unlocks {
		var who func(*http.Request) string
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
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	open, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	web := &http.Server{
		Handler:           s.onlyFor(page),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return open },
	}
	addr := l.Addr().(*net.TCPAddr)
	fmt.Fprintf(stderr, "leasehold: serving http://%s/\n", reachable(addr))
	if !addr.IP.IsLoopback() {
		fmt.Fprintln(stderr, "leasehold: other machines can reach the page, and it asks for no password: put a proxy before it that does")
	}
	ended := make(chan error, 1)
	go func() { ended <- web.Serve(l) }()
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
