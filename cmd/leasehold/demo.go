package main

import (
	"slices"
	"strings"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/demo"
	"github.com/spf13/cobra"
)

func demoCommand() *cobra.Command {
	var o demo.Options
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
			for _, name := range o.Only {
				if !slices.Contains(demo.Scenes(), name) {
					return usagef("--only %q: must be one of %s", name, strings.Join(demo.Scenes(), ", "))
				}
			}
			if o.URL != "" {
				if _, err := client.ParseURL(o.URL); err != nil {
					return usage(err)
				}
				o.Server = redacted(o.URL)
			}
			return demo.Play(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), o)
		},
	}
	cmd.Flags().StringSliceVar(&o.Only, "only", nil, "scenes to play: "+strings.Join(demo.Scenes(), ", ")+" (default all)")
	_ = cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions(demo.Scenes(), cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	cmd.Flags().StringVar(&o.URL, "url", "", "URL of a Redis or Valkey server (default a small server in memory)")
	return cmd
}
