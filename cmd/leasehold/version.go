package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version describes this binary.
type version struct {
	Version  string `json:"version"`            // of the module; "(devel)" if it was built from a clone
	Revision string `json:"revision,omitempty"` // of the clone
	Modified bool   `json:"modified,omitempty"` // the clone had changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func versionCommand() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  leasehold version -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return out.write(cmd.OutOrStdout(), thisVersion())
		},
	}
	out.addFlag(cmd)
	return cmd
}

func thisVersion() version {
	v := version{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = info.Main.Version
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

// table writes the version in one line.
func (v version) table(w io.Writer) error {
	revision := ""
	if v.Revision != "" {
		revision = ", revision " + v.Revision[:min(12, len(v.Revision))]
	}
	if v.Modified {
		revision += " with changes"
	}
	_, err := fmt.Fprintf(w, "leasehold %s%s, %s, %s\n", v.Version, revision, v.Go, v.Platform)
	return err
}
