package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/memredis"
	"github.com/spf13/cobra"
)

// scene is one part of the demo. Each scene has its own file; start reading at the function
// that is named here.
type scene struct {
	name  string // for --only
	title string
	play  func(context.Context, *stage) error
}

var scenes = []scene{
	{"sale", "A flash sale", flashSale},
	{"ids", "Unique IDs", uniqueIDs},
	{"job", "A job that outlives its lease", longJob},
	{"nested", "A call within a call", nestedCall},
	{"stolen", "A stolen lock", stolenLock},
	{"queue", "A fair queue", fairQueue},
	{"library", "A library", library},
	{"quorum", "A quorum", quorum},
	{"stale", "A stale holder", staleHolder},
	{"gpus", "A few GPUs", shareGPUs},
	{"burst", "A burst at the window boundary", borderBurst},
	{"crawl", "A web crawl", crawl},
	{"team", "A team", team},
	{"election", "An election", elections},
}

// sceneNames returns the names of all scenes.
func sceneNames() (names []string) {
	for _, sc := range scenes {
		names = append(names, sc.name)
	}
	return names
}

// chosen returns the scenes with these names, in the order of the demo. Without names, it returns all scenes.
func chosen(names []string) ([]scene, error) {
	for _, name := range names {
		if !slices.Contains(sceneNames(), name) {
			return nil, usagef("--only %q: must be one of %s", name, strings.Join(sceneNames(), ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(scenes), func(sc scene) bool {
		return len(names) > 0 && !slices.Contains(names, sc.name)
	}), nil
}

func demoCommand() *cobra.Command {
	var address string
	var only []string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show locks at work, and check the results",
		Long: `Show locks at work, and check the results.

The demo plays short scenes. In each scene, several clients compete, and the demo checks
what it prints about them. It takes about ten seconds, because up to three scenes run at
the same time. Nothing must be installed: by default, the demo starts a small
Redis-compatible server in memory.

Its keys begin with "leasehold:demo:", and it leaves none of them. With --url, it needs
the permissions of an application on these keys.

Exit codes:
  0  all checks passed
  1  a check failed
  2  wrong arguments`,
		Example: `  leasehold demo
  leasehold demo --only queue,quorum
  leasehold demo --url redis://127.0.0.1:6379`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			scenes, err := chosen(only)
			if err != nil {
				return err
			}
			out := newScreen(cmd.OutOrStdout())
			if !out.terminal { // a terminal shows the progress in its bottom line
				out.away = newProgress(cmd.ErrOrStderr())
			}
			return demo(cmd.Context(), out, address, scenes)
		},
	}
	cmd.Flags().StringSliceVar(&only, "only", nil, "scenes to play: "+strings.Join(sceneNames(), ", ")+" (default all)")
	_ = cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions(sceneNames(), cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	cmd.Flags().StringVar(&address, "url", "", "URL of a Redis or Valkey server (default a small server in memory)")
	return cmd
}

// demo plays scenes on the server at address, or on a new server in memory if address is
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
