//go:build man

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// The release process uses this command to write the manual pages and completion scripts of its archives. The released tool does not have it.
func init() { releaseCommands = []*cobra.Command{manCommand()} }

func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR DATE",
		Short:  "Write manual pages and completion scripts",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			date, err := time.Parse(time.DateOnly, args[1])
			if err != nil {
				return err
			}
			man, completions := filepath.Join(args[0], "man"), filepath.Join(args[0], "completions")
			for _, dir := range []string{man, completions} {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return err
				}
			}
			root.DisableAutoGenTag = true
			if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Date: &date, Source: "leasehold", Manual: "leasehold"}, man); err != nil {
				return fmt.Errorf("manual pages: %w", err)
			}
			for file, write := range map[string]func(string) error{
				"leasehold.bash": func(f string) error { return root.GenBashCompletionFileV2(f, true) },
				"_leasehold":     root.GenZshCompletionFile,
				"leasehold.fish": func(f string) error { return root.GenFishCompletionFile(f, true) },
				"leasehold.ps1":  root.GenPowerShellCompletionFileWithDesc,
			} {
				if err := write(filepath.Join(completions, file)); err != nil {
					return fmt.Errorf("%s: %w", file, err)
				}
			}
			return nil
		},
	}
}
