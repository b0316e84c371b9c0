package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/terminal"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// byWhat has the sort orders of top.
var byWhat = map[string]func(a, b admin.Lock) int{
	"since": func(a, b admin.Lock) int { // limiters and filters: the one closest to its limit first
		return cmp.Or(cmp.Compare(age(b), age(a)), cmp.Compare(pressing(b), pressing(a)))
	},
	"waiting": func(a, b admin.Lock) int { return b.Waiting - a.Waiting },
	"lease": func(a, b admin.Lock) int { // locks without holders have no lease, and come last
		if a.Locked() != b.Locked() {
			return cmp.Compare(b.Holding, a.Holding)
		}
		return cmp.Compare(a.Lease, b.Lease)
	},
	"name": func(admin.Lock, admin.Lock) int { return 0 },
}

// tops is one call of top.
type tops struct {
	via   connection
	as    string
	by    choice
	kind  choice
	every time.Duration
	wide  bool
}

func topCommand() *cobra.Command {
	t := &tops{}
	cmd := &cobra.Command{
		Use:   "top [PATTERN]",
		Short: "Show a live table of locks in the terminal",
		Example: `  leasehold top
  leasehold top --kind redisson-ratelimit
  leasehold top 'orders:*' --sort waiting`,
		Long: `Show the held locks in a table, refreshed every --interval until top is interrupted. The
lock with the oldest request comes first (--sort); the time since the request includes
the wait.

--kind ratelimit, redisson-ratelimit or bloom shows limiters or filters instead. The one
closest to its limit comes first: with the longest time until it is refilled, the largest
used quota, or the largest number of elements.

Keys:
  up, down, PgUp, PgDn   select a lock, or scroll the details
  Enter, Esc             show the details; go back
  s                      sort by the next column
  /                      filter by name, holder, host, label or client ID
  u                      force-unlock, after a reason and a confirmation
  p, q, Ctrl-Z           pause; quit; suspend

On a server with many keys, the table fills while top scans them. After that, top reads
the known locks at each refresh, and scans for new ones for a twentieth of the time. It
shows up to 20,000 locks, and says so if there may be more: pass a PATTERN to see others.

Long names and holders are shortened in the middle to fit the width; the details show
them in full. On a terminal that cannot move its cursor (TERM=dumb), each table is
printed below the previous one. There, without a keyboard, and on a terminal without a
size, top reads no keys. Without a terminal, use leasehold ls or leasehold watch.

Permissions: see leasehold doctor --print-acl exporter for the table, and
leasehold doctor --print-acl operator for the details and a force-unlock.

Exit codes:
  0    you quit
  1    Redis unavailable at the start
  2    wrong arguments, or no terminal
  130  interrupted

` + connectionHelp,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			return t.via.completeNames(cmd, args, begin)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f, ok := cmd.OutOrStdout().(*os.File)
			switch {
			case t.every < 100*time.Millisecond:
				return usagef("--interval %v: must be at least 100ms", t.every)
			case !ok || !term.IsTerminal(int(f.Fd())):
				return usagef("top requires a terminal: use leasehold ls for a list, or leasehold watch for events")
			}
			return t.via.operate(cmd.Context(), func(a *admin.Admin, _ rueidis.Client) error {
				return t.show(cmd.Context(), a, queryOf(t.kind.kind(), args), cmd.InOrStdin(), f)
			}, operator(t.as)...)
		},
	}
	t.by.init("since", "since", "waiting", "lease", "name")
	t.by.addFlag(cmd, "sort", "", "sort order")
	t.kind.initKinds()
	t.kind.addFlag(cmd, "kind", "", "type of lock, limiter or filter")
	cmd.Flags().DurationVar(&t.every, "interval", 2*time.Second, "time between refreshes; longer if Redis is slow")
	cmd.Flags().BoolVar(&t.wide, "wide", false, "additional columns: count, process ID, label and owner")
	cmd.Flags().StringVar(&t.as, "operator", "", "operator name for the holder and the audit record (default your user and host name)")
	t.via.addFlags(cmd)
	return cmd
}

// show shows the locks on the terminal f until ctx is canceled or the user quits. It reads keys if it can.
func (t *tops) show(ctx context.Context, a *admin.Admin, q admin.Query, stdin io.Reader, f *os.File) error {
	again, moves := newSurvey(a, q, t.every), os.Getenv("TERM") != "dumb"
	width, height, err := term.GetSize(int(f.Fd())) // a serial line has none
	if in, ok := stdin.(*os.File); ok && err == nil && width > 0 && height > 0 && moves && terminal.Is(in) {
		view := &topView{ctx: ctx, admin: a, query: q, survey: again, wide: t.wide, sort: t.by.value}
		return view.follow(in, f)
	}
	screen := &topScreen{f: f, moves: moves, kind: q.Kind}
	screen.begin()
	defer screen.end()
	for {
		seen, rest, err := again.look(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		slices.SortStableFunc(seen.Locks, byWhat[t.by.value])
		screen.show(seen, t.wide, err)
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// A survey reads the locks repeatedly. One goroutine at a time uses it.
type survey struct {
	*admin.Survey
	every time.Duration
	limit time.Duration // how long the next look scans
}

func newSurvey(a *admin.Admin, q admin.Query, every time.Duration) *survey {
	return &survey{Survey: a.Survey(q), every: every, limit: every / 4}
}

// look returns the current locks, and the pause before the next look. It scans for a quarter of the interval until all keys have been scanned, and
// then for a twentieth, to put little load on the server. The pause is longer if the server is slow.
func (s *survey) look(ctx context.Context) (seen admin.Surveyed, rest time.Duration, err error) {
	began := time.Now()
	seen, err = s.Look(ctx, s.limit)
	took := time.Since(began)
	switch {
	case err != nil:
		return seen, s.every, err
	case !seen.Complete:
		return seen, max(s.every/4, took), lacksOf(seen.Missing)
	}
	s.limit = s.every / 20
	return seen, max(s.every, 4*took), lacksOf(seen.Missing)
}

// lacksOf returns an error if primaries of a cluster do not respond.
func lacksOf(missing []admin.Missing) error {
	if len(missing) == 0 {
		return nil
	}
	return &admin.IncompleteError{Missing: missing}
}

// age returns the time since the oldest request of a current holder, or 0 if it is unknown.
func age(l admin.Lock) (oldest time.Duration) {
	for _, h := range l.Holders {
		if !h.Since.IsZero() {
			oldest = max(oldest, time.Since(h.Since))
		}
	}
	return oldest
}

// pressing returns how close a limiter or a filter is to its limit, for comparison with others of its type.
func pressing(l admin.Lock) float64 {
	switch {
	case l.Limit != nil:
		return l.Limit.Reset.Seconds()
	case l.RedissonLimit != nil && !l.RedissonLimit.PerClient:
		return 1 - float64(l.RedissonLimit.Left)/float64(l.RedissonLimit.Rate)
	case l.Filter != nil:
		return float64(l.Filter.Elements()) / float64(l.Filter.Expected)
	}
	return 0
}

// sum describes the number of locks, limiters or filters.
func sum(k admin.Kind, seen admin.Surveyed) string {
	held, waiting, oldest := sums(seen.Locks)
	text := fmt.Sprintf("%d held, %d waiting, oldest request %s ago", held, waiting, short(oldest))
	if unheld(k) {
		text = fmt.Sprintf("%s of type %s", number(len(seen.Locks)), k)
	}
	if seen.More {
		text += "; shows at most " + number(admin.MaxSurveyed) + ": pass a PATTERN"
	}
	if !seen.Complete {
		text += "; " + scannedText(seen.Scanned)
	}
	return text
}

// sums returns the number of held locks, the number of waiters, and the time since the oldest request of a current holder. A latch is
// listed, but is never held.
func sums(locks []admin.Lock) (held, waiting int, oldest time.Duration) {
	for _, l := range locks {
		if l.Locked() {
			held++
		}
		waiting, oldest = waiting+l.Waiting, max(oldest, age(l))
	}
	return held, waiting, oldest
}

// topScreen is the terminal of top.
type topScreen struct {
	f     *os.File
	moves bool       // the terminal can move its cursor
	kind  admin.Kind // empty for all that can be held
}

// The codes for the alternate screen. The screen of the shell is restored at the end.
const (
	otherScreen = "\x1b[?1049h\x1b[?25l"
	shellScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	eraseBelow  = "\x1b[J"
)

func (t *topScreen) begin() {
	if t.moves {
		io.WriteString(t.f, otherScreen)
	}
}

func (t *topScreen) end() {
	if t.moves {
		io.WriteString(t.f, shellScreen)
	}
}

// show writes one lock for each line of the screen. It makes one write, to avoid flicker.
func (t *topScreen) show(seen admin.Surveyed, wide bool, err error) {
	width, height, failed := term.GetSize(int(t.f.Fd()))
	if failed != nil || width == 0 || height == 0 {
		width, height = 80, 24
	}
	lines := []string{time.Now().Format(time.TimeOnly) + "  " + sum(t.kind, seen), ""}
	if err != nil {
		lines = []string{time.Now().Format(time.TimeOnly) + "  " + oneLine(explain(err)), ""}
	}
	var text strings.Builder
	locks := seen.Locks[:min(len(seen.Locks), max(height-4, 1))]
	if unheld(t.kind) {
		_ = listStates(&text, width, locks) // writing to a Builder never fails
	} else {
		_ = listLocks(&text, width, locks, wide)
	}
	lines = append(lines, strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")...)
	if !t.moves {
		io.WriteString(t.f, strings.Join(lines, "\n")+"\n\n")
		return
	}
	for i, line := range lines {
		if letters := []rune(line); len(letters) > width {
			line = string(letters[:width])
		}
		lines[i] = line + terminal.EraseRight
	}
	io.WriteString(t.f, home+strings.Join(lines, "\r\n")+eraseBelow)
}
