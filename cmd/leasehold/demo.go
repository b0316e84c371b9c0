package main

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/internal/memredis"
	"github.com/spf13/cobra"
)

// scene is one thing that the demo shows. Each scene has a file of its own; begin to read
// at the function that is named here.
type scene struct {
	title string
	play  func(context.Context, *stage) error
}

var scenes = []scene{
	{"A flash sale", flashSale},
	{"Unique IDs", uniqueIDs},
	{"A job that outlives its lease", longJob},
	{"A call within a call", nestedCall},
	{"A stolen lock", stolenLock},
	{"A fair queue", fairQueue},
	{"A library", library},
	{"A quorum", quorum},
	{"A stale holder", staleHolder},
	{"A few GPUs", shareGPUs},
	{"A burst at the window boundary", borderBurst},
	{"A web crawl", crawl},
	{"A team", team},
	{"An election", elections},
}

func demoCommand() *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show locks at work, and check the results",
		Long: `Show locks at work, and check the results.

The demo plays short scenes. In each scene, several clients compete, and the demo checks
what it prints about them. It takes about half a minute. Nothing must be installed: by
default, the demo starts a small Redis-compatible server in memory.

Its keys begin with "leasehold:demo:", and it leaves none of them. With --url, it needs
the permissions of an application on these keys.

Exit codes:
  0  all checks passed
  1  a check failed
  2  wrong arguments`,
		Example: `  leasehold demo
  leasehold demo --url redis://127.0.0.1:6379`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo(cmd.Context(), newScreen(cmd.OutOrStdout()), address, scenes)
		},
	}
	cmd.Flags().StringVar(&address, "url", "", "URL of a Redis or Valkey server (default a small server in memory)")
	return cmd
}

// demo plays scenes on the server at address, or on a server of its own if address is
// empty.
func demo(ctx context.Context, out *screen, address string, scenes []scene) error {
	place := "the server at " + redacted(address)
	if address == "" {
		server, err := memredis.Start()
		if err != nil {
			return err
		}
		defer server.Close()
		place = "in memory, at " + server.Addr()
		address = "redis://" + server.Addr()
	}

	s, err := newStage(out, address)
	if err != nil {
		return err
	}
	defer s.data.close()
	out.title("leasehold demo")
	out.line("Redis: %s", place)

	start := time.Now()
	err = s.playAll(ctx, scenes)
	s.tidyUp(ctx)
	if err != nil {
		return err
	}
	return s.summary(time.Since(start))
}
