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
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// byWhat has the orders in which top can sort.
var byWhat = map[string]func(a, b admin.Lock) int{
	"since": func(a, b admin.Lock) int { // of limiters and filters, what is nearest to its end
		return cmp.Or(cmp.Compare(age(b), age(a)), cmp.Compare(pressing(b), pressing(a)))
	},
	"waiting": func(a, b admin.Lock) int { return b.Waiting - a.Waiting },
	"lease": func(a, b admin.Lock) int { // those that nobody holds have none, and come last
		if a.Locked() != b.Locked() {
			return cmp.Compare(b.Holding, a.Holding)
		}
		return cmp.Compare(a.Lease, b.Lease)
	},
	"name": func(admin.Lock, admin.Lock) int { return 0 },
}

func topCommand() *cobra.Command {
	var (
		via   connection
		as    string
		by    choice
		kind  choice
		every time.Duration
		wide  bool
	)
	cmd := &cobra.Command{
		Use:   "top [PATTERN]",
		Short: "Show locks, or limiters or filters, in a terminal, again and again",
		Example: `  leasehold top
  leasehold top --kind redisson-ratelimit
  leasehold top 'orders:*' --sort waiting`,
		Long: `Show the locks that are held, again and again, until top is interrupted. The lock whose
holder asked for it first comes first; the time since then includes the wait.

--kind ratelimit, window or bloom shows limiters or filters instead. First comes the one
that is nearest to its end: the largest part of its units taken or of its elements
there, or the longest time until nothing is owed.

Keys: up and down choose a lock, Enter shows its details and Esc leads back, s changes
the order, p pauses, q quits, Ctrl-Z suspends. / keeps the locks whose name, holder,
host or label has what you type. u unlocks a lock by force, as leasehold unlock does:
it asks for a reason and for a y. --operator sets who did it, for the holder and the note.

On a server with many keys the table fills while top scans them. After that, top reads
the locks that it knows at each look, and scans for others for a twentieth of the time.

The table has at most as many columns as the terminal: long names and holders are
shortened in the middle, and are whole in the details.

On a terminal that cannot move its cursor (TERM=dumb), each table comes below the one
before. There, without a keyboard, and on a terminal without a size, top takes no keys.
Off a terminal, use leasehold ls for a list, or leasehold watch for events.

` + connectionHelp,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			return via.completeNames(cmd, args, begin)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f, ok := cmd.OutOrStdout().(*os.File)
			switch {
			case every < 100*time.Millisecond:
				return usagef("--interval %v: the least is 100ms", every)
			case !ok || !term.IsTerminal(int(f.Fd())):
				return usagef("top needs a terminal: use leasehold ls for a list, or leasehold watch for events")
			}
			q := admin.Query{Idle: true, Kind: kind.kind()}
			if len(args) > 0 {
				q.Match = args[0]
			}
			var opts []admin.Option
			if as != "" {
				opts = append(opts, admin.WithOperator(as))
			}
			return via.operate(cmd.Context(), func(a *admin.Admin, _ rueidis.Client) error {
				width, height, err := term.GetSize(int(f.Fd())) // a serial line has none
				if in, ok := cmd.InOrStdin().(*os.File); ok && err == nil && width > 0 && height > 0 && os.Getenv("TERM") != "dumb" && isTerminal(in) {
					t := &topView{ctx: cmd.Context(), admin: a, query: q, survey: newSurvey(a, q, every), wide: wide, sort: by.value}
					return t.follow(in, f)
				}
				t := &topScreen{f: f, moves: os.Getenv("TERM") != "dumb", kind: q.Kind}
				again := newSurvey(a, q, every)
				t.begin()
				defer t.end()
				for {
					seen, rest, err := again.look(cmd.Context())
					if cmd.Context().Err() != nil {
						return context.Cause(cmd.Context())
					}
					slices.SortStableFunc(seen.Locks, byWhat[by.value])
					t.show(seen, wide, err)
					select {
					case <-time.After(rest):
					case <-cmd.Context().Done():
						return context.Cause(cmd.Context())
					}
				}
			}, opts...)
		},
	}
	by.init("since", "since", "waiting", "lease", "name")
	by.addFlag(cmd, "sort", "", "what comes first: the holder that asked first, the most waiting, the shortest lease, the name")
	kind.initKinds()
	kind.addFlag(cmd, "kind", "", "which kind of locks, limiters or filters")
	cmd.Flags().DurationVar(&every, "interval", 2*time.Second, "how long to wait between two looks, and longer if Redis is slow")
	cmd.Flags().BoolVar(&wide, "wide", false, "show count, process id, label and owner, too")
	cmd.Flags().StringVar(&as, "operator", "", "the operator that unlocks, for the holder and for the note in Redis (default: your user and this machine)")
	via.addFlags(cmd)
	return cmd
}

// A survey looks at the locks again and again. One goroutine at a time uses it.
type survey struct {
	*admin.Survey
	every time.Duration
	limit time.Duration // how long the next look scans
}

func newSurvey(a *admin.Admin, q admin.Query, every time.Duration) *survey {
	return &survey{Survey: a.Survey(q), every: every, limit: every / 4}
}

// look returns what there is now, and how long to wait before the next look. It scans for a quarter of the time until it has seen all keys, and then
// for a twentieth, so that it takes little of the server; a server that is slow is left alone for longer.
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

// age returns the time since the first of the holders asked for the lock, or 0 if it is unknown.
func age(l admin.Lock) (oldest time.Duration) {
	for _, h := range l.Holders {
		if !h.Since.IsZero() {
			oldest = max(oldest, time.Since(h.Since))
		}
	}
	return oldest
}

// pressing tells how near to its end a limiter or a filter is, compared with others of its kind.
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

// sum says how many locks there are, or limiters or filters.
func sum(k admin.Kind, seen admin.Surveyed) string {
	held, waiting, oldest := sums(seen.Locks)
	text := fmt.Sprintf("%d held, %d waiting, the oldest asked %s ago", held, waiting, short(oldest))
	if unheld(k) {
		text = fmt.Sprintf("%s of the kind %s", number(len(seen.Locks)), k)
	}
	if !seen.Complete {
		text += "; " + scannedText(seen.Scanned)
	}
	return text
}

// sums returns how many of the locks are held, how many callers wait for them, and how long ago the first of the holders asked. A
// latch is listed, and nobody holds it.
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

// The codes for a second screen. The screen of the shell comes back at the end.
const (
	otherScreen = "\x1b[?1049h\x1b[?25l"
	shellScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	eraseBelow  = "\x1b[J"
	eraseRight  = "\x1b[K"
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

// show writes one lock for each line of the screen. It makes one write, so that nothing flickers.
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
		lines[i] = line + eraseRight
	}
	io.WriteString(t.f, home+strings.Join(lines, "\r\n")+eraseBelow)
}
