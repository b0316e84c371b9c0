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
					t := &topView{ctx: cmd.Context(), admin: a, query: q, every: every, wide: wide, sort: by.value}
					return t.follow(in, f)
				}
				t := &topScreen{f: f, moves: os.Getenv("TERM") != "dumb", kind: q.Kind}
				t.begin()
				defer t.end()
				for {
					locks, err := all(cmd.Context(), a, q)
					if cmd.Context().Err() != nil {
						return context.Cause(cmd.Context())
					}
					slices.SortStableFunc(locks, byWhat[by.value])
					t.show(locks, wide, err)
					select {
					case <-time.After(every):
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
	cmd.Flags().DurationVar(&every, "interval", 2*time.Second, "how long to wait between two looks")
	cmd.Flags().BoolVar(&wide, "wide", false, "show count, process id, label and owner, too")
	cmd.Flags().StringVar(&as, "operator", "", "the operator that unlocks, for the holder and for the note in Redis (default: your user and this machine)")
	via.addFlags(cmd)
	return cmd
}

// all returns the locks that match q, sorted by name.
func all(ctx context.Context, a *admin.Admin, q admin.Query) (locks []admin.Lock, err error) {
	for l, err := range a.Locks(ctx, q) {
		if err != nil {
			return nil, err
		}
		locks = append(locks, l)
	}
	slices.SortFunc(locks, func(a, b admin.Lock) int { return cmp.Compare(a.Name, b.Name) })
	return locks, nil
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
func sum(k admin.Kind, locks []admin.Lock) string {
	if unheld(k) {
		return fmt.Sprintf("%s of the kind %s", number(len(locks)), k)
	}
	held, waiting, oldest := sums(locks)
	return fmt.Sprintf("%d held, %d waiting, the oldest asked %s ago", held, waiting, short(oldest))
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
func (t *topScreen) show(locks []admin.Lock, wide bool, err error) {
	width, height, failed := term.GetSize(int(t.f.Fd()))
	if failed != nil || width == 0 || height == 0 {
		width, height = 80, 24
	}
	lines := []string{time.Now().Format(time.TimeOnly) + "  " + sum(t.kind, locks), ""}
	if err != nil {
		lines = []string{time.Now().Format(time.TimeOnly) + "  " + oneLine(explain(err)), ""}
	}
	var text strings.Builder
	locks = locks[:min(len(locks), max(height-4, 1))]
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
