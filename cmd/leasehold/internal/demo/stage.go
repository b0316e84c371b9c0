package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/redis/rueidis"
)

// Limits, so that the demo ends even if the server does not respond.
var (
	sceneLimit = time.Minute
	tidyLimit  = 5 * time.Second
)

// stage is what scenes play on: a server with some data, clients on it, and a
// screen to show what happens.
type stage struct {
	out     *screen
	address string
	prefix  string // of all keys; different for each demo
	data    *data

	closers []func(context.Context) error // of the clients of the current scene
	claims  []claim                       // of the scene; of all scenes that were shown
}

// claim is a statement of the demo about locks, and whether it was true.
type claim struct {
	ok   bool
	text string
}

func claimf(ok bool, format string, args ...any) claim {
	return claim{ok, fmt.Sprintf(format, args...)}
}

func newStage(out *screen, address string) (*stage, error) {
	prefix := "leasehold:demo:" + strings.ToLower(rand.Text()[:8]) + ":"
	d, err := openData(address, prefix)
	if err != nil {
		return nil, err
	}
	return &stage{out: out, address: address, prefix: prefix, data: d}, nil
}

// quiet prevents the clients from logging what the scenes do on purpose.
var quiet = client.WithLogger(slog.New(slog.DiscardHandler))

// open returns a client with its own connection and identity, like that of
// another process. It is closed at the end of the scene.
func (s *stage) open(ctx context.Context, opts ...client.Option) (*client.Client, error) {
	c, err := client.Open(ctx, s.address, append(opts, client.WithKeyPrefix(s.prefix), quiet, client.WithoutRegistry())...)
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, c.Close)
	return c, nil
}

// openMortal opens a client of the server at address that can die: kill closes its
// connection first, and then the client. As after a process was killed, Redis receives
// neither a heartbeat nor a release.
func (s *stage) openMortal(address string, opts ...client.Option) (c *client.Client, kill func(context.Context) error, err error) {
	option, err := client.ParseURL(address)
	if err != nil {
		return nil, nil, err
	}
	rdb, err := rueidis.NewClient(option)
	if err != nil {
		return nil, nil, err
	}
	disconnect := sync.OnceFunc(rdb.Close)
	c, err = client.New(rdb, append(opts, client.WithKeyPrefix(s.prefix), quiet, client.WithoutRegistry())...)
	if err != nil {
		disconnect()
		return nil, nil, err
	}
	s.closers = append(s.closers, func(ctx context.Context) error {
		defer disconnect()
		return c.Close(ctx)
	})
	return c, func(ctx context.Context) error {
		disconnect()
		return c.Close(ctx)
	}, nil
}

// openMany opens n clients.
func (s *stage) openMany(ctx context.Context, n int, opts ...client.Option) ([]*client.Client, error) {
	clients := make([]*client.Client, n)
	for i := range clients {
		c, err := s.open(ctx, opts...)
		if err != nil {
			return nil, err
		}
		clients[i] = c
	}
	return clients, nil
}

// check shows claims and keeps them for the summary.
func (s *stage) check(claims ...claim) {
	for _, c := range claims {
		s.out.claim(c)
	}
	s.claims = append(s.claims, claims...)
}

// atOnce is the number of scenes that play at the same time. Scenes mostly wait.
const atOnce = 3

// part is a scene that plays on its own stage.
type part struct {
	*stage
	over chan struct{} // closed when it has been played
	err  error         // why it failed; read after over
}

// playAll plays the scenes, and shows them one after the other, up to the first that fails.
func (s *stage) playAll(ctx context.Context, scenes []scene) error {
	ctx, stop := context.WithCancel(ctx)
	var playing sync.WaitGroup
	defer playing.Wait()
	defer stop()

	var parts []*part
	for range scenes {
		own := &stage{out: s.out.behind(), address: s.address, prefix: s.prefix, data: s.data}
		parts = append(parts, &part{stage: own, over: make(chan struct{})})
	}
	var next atomic.Int64
	for range atOnce {
		playing.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(scenes)); i = next.Add(1) - 1 {
				if parts[i].err = context.Cause(ctx); parts[i].err == nil {
					parts[i].err = parts[i].play(ctx, scenes[i])
				}
				close(parts[i].over)
			}
		})
	}
	for i, p := range parts {
		s.out.title(fmt.Sprintf("%d. %s", i+1, scenes[i].title))
		p.out.reveal()
		<-p.over
		s.claims = append(s.claims, p.claims...)
		if p.err != nil {
			return fmt.Errorf("scene %d: %w", i+1, p.err)
		}
	}
	return nil
}

// play plays one scene and closes its clients.
func (s *stage) play(ctx context.Context, sc scene) error {
	ctx, cancel := context.WithTimeoutCause(ctx, sceneLimit, fmt.Errorf("timed out after %v", sceneLimit))
	defer cancel()
	err := sc.play(ctx, s)
	return errors.Join(err, s.closeClients(ctx))
}

// closeClients closes the clients of a scene, even if ctx is already canceled.
func (s *stage) closeClients(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyLimit)
	defer cancel()
	var errs []error
	for _, closeClient := range s.closers {
		errs = append(errs, closeClient(ctx))
	}
	s.closers = nil
	return errors.Join(errs...)
}

// tidyUp removes the demo's data, even if ctx is already canceled, and checks
// whether the locks have left any keys.
func (s *stage) tidyUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyLimit)
	defer cancel()
	s.out.title("Keys left in Redis")
	err := s.data.removeAll(ctx)
	keys, lookErr := s.data.left(ctx)
	s.check(checkLeft(keys, errors.Join(err, lookErr))...)
}

func checkLeft(keys []string, err error) []claim {
	if err != nil {
		return []claim{claimf(false, "the number of keys left in Redis is unknown: %v", err)}
	}
	if len(keys) > 0 {
		return []claim{claimf(false, "%d keys left in Redis: %q", len(keys), keys)}
	}
	return []claim{claimf(true, "0 keys left in Redis")}
}

// summary shows how many claims were true. It returns an error if one was not.
func (s *stage) summary(took time.Duration) error {
	var untrue []claim
	for _, c := range s.claims {
		if !c.ok {
			untrue = append(untrue, c)
		}
	}
	s.out.title("Summary")
	if len(untrue) == 0 {
		s.out.claim(claimf(true, "all %d checks passed in %.1f s", len(s.claims), took.Seconds()))
		return nil
	}
	for _, c := range untrue {
		s.out.claim(c) // again, so that the user sees it
	}
	return fmt.Errorf("%d of %d checks failed", len(untrue), len(s.claims))
}

// each calls fn n times concurrently, and waits. The first error cancels the
// context of the others, and is returned.
func each(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			if err := fn(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}

// sleep waits for d. If ctx is canceled first, it returns the cause.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
