package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"
)

// historyJSON is the reply of /api/history, and the output of history -o json.
type historyJSON struct {
	Name      string     `json:"name"`
	NameBytes []byte     `json:"name_base64,omitempty"`
	Recorded  *time.Time `json:"recorded_since"`
	Holds     []holdJSON `json:"holds"`
}

type holdJSON struct {
	Mode   string     `json:"mode"`
	Asked  *time.Time `json:"asked"`
	From   time.Time  `json:"from"`
	Before bool       `json:"before"`
	Until  *time.Time `json:"until"`
	HeldMS int64      `json:"held_ms"`
	Ended  string     `json:"ended,omitempty"`
	Client clientJSON `json:"client"`
}

// defaultPage is the default address of serve.
const defaultPage = "http://127.0.0.1:8126/"

func historyCommand() *cobra.Command {
	var (
		from string
		out  output
	)
	cmd := &cobra.Command{
		Use:   "history NAME",
		Short: "Show who held a lock in the last hour",
		Example: `  leasehold serve --record
  leasehold history orders:42
  leasehold history orders:42 --from https://locks.example.com/ -o json`,
		Long: `Show who held the lock NAME in the last hour, and for how long. Redis stores only the
current holders, so history reads what a running leasehold serve has recorded. serve
records while a browser is open, and continuously with --record. It keeps up to 4,096
ended holds of all locks in memory.

serve checks the locks about once per second, and less often on a server with many keys.
A hold that begins and ends between two checks is missing, and times are those of the
checks.

--from is the URL of serve. Other users of the machine can read command lines, so put the
user and password of serve --auth into LEASEHOLD_SERVE_URL.

history needs no connection to Redis, and no permissions there.

Exit codes:
  0  shown, even if nothing was recorded
  1  serve is unreachable, or requires a password
  2  wrong arguments`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			page := cmp.Or(from, os.Getenv("LEASEHOLD_SERVE_URL"), defaultPage)
			h, err := recorded(cmd.Context(), page, args[0])
			if err != nil {
				return err
			}
			if out.format.value == "json" {
				return writeJSON(cmd.OutOrStdout(), h)
			}
			switch {
			case len(h.Holds) > 0:
				return h.table(cmd.OutOrStdout())
			case h.Recorded == nil:
				warn(cmd.ErrOrStderr(), "nothing recorded: no browser has opened %s; serve --record records continuously", redacted(page))
			default:
				warn(cmd.ErrOrStderr(), "nothing recorded for %s in the last hour; serve has recorded since %s", shown(args[0]), h.Recorded.Local().Format(time.DateTime))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "URL of leasehold serve (default $LEASEHOLD_SERVE_URL, then "+defaultPage+")")
	out.addFlag(cmd)
	return cmd
}

// recorded returns what the leasehold serve at page has recorded about a lock.
func recorded(ctx context.Context, page, name string) (h historyJSON, err error) {
	u, err := url.Parse(page)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return h, usagef("--from: want a URL such as %s", defaultPage)
	}
	u = u.JoinPath("api", "history")
	u.RawQuery = url.Values{"name": {name}}.Encode()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return h, err
	}
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		var failed *url.Error // its text has the URL
		if errors.As(err, &failed) {
			err = failed.Err
		}
		return h, fmt.Errorf("cannot read the history: no leasehold serve at %s: %w", redacted(page), err)
	}
	defer reply.Body.Close()
	switch {
	case reply.StatusCode == http.StatusUnauthorized:
		return h, fmt.Errorf("%s requires a password: put user and password into LEASEHOLD_SERVE_URL, as in http://user:password@host/", redacted(page))
	case reply.StatusCode != http.StatusOK:
		return h, fmt.Errorf("%s replied with %s: want leasehold serve of this version", redacted(page), reply.Status)
	}
	if err := json.NewDecoder(io.LimitReader(reply.Body, 16<<20)).Decode(&h); err != nil {
		return h, fmt.Errorf("%s is not leasehold serve: %w", redacted(page), err)
	}
	return h, nil
}

// table writes a line for each hold.
func (h *historyJSON) table(w io.Writer) error {
	t := table{{"HOLDER", "PID", "MODE", "FROM", "HELD", "ENDED"}}
	for _, p := range h.Holds {
		began, ended := p.From.Local().Format(time.TimeOnly), shown(p.Ended)
		if p.Before {
			began = "before " + began
		}
		if p.Until == nil {
			ended = "still held"
		}
		holder := shown(p.Client.Name) + " on " + shown(p.Client.Host)
		if p.Client.Name == "" {
			holder = "unregistered client"
		}
		number := "-"
		if p.Client.PID > 0 {
			number = fmt.Sprint(p.Client.PID)
		}
		t = append(t, []string{holder, number, shown(p.Mode), began, short(time.Duration(p.HeldMS) * time.Millisecond), ended})
	}
	return t.write(w, columnsOf(w, false))
}
