// Package demo shows locks at work in short scenes, and checks what it prints about them.
package demo

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/terminal"
	"github.com/leasehold-go/leasehold/internal/memredis"
)

// scene is one part of the demo. Its file has the name of the scene; start reading at the function
// that is named here.
type scene struct {
	name  string
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

// Scenes returns the names of all scenes, in the order of the demo.
func Scenes() (names []string) {
	for _, sc := range scenes {
		names = append(names, sc.name)
	}
	return names
}

// Options configures a demo.
type Options struct {
	URL    string   // of the server; if empty, the demo starts a small one in memory
	Server string   // the address of that server, without a password
	Only   []string // the names of the scenes to play; if empty, all
}

// Play plays the scenes and writes them to w. If w is not a terminal, it shows the progress on progress.
func Play(ctx context.Context, w, progress io.Writer, o Options) error {
	out := newScreen(w)
	if !out.terminal { // a terminal shows the progress in its bottom line
		out.away = terminal.NewProgress(progress)
	}
	return play(ctx, out, o, slices.DeleteFunc(slices.Clone(scenes), func(sc scene) bool {
		return len(o.Only) > 0 && !slices.Contains(o.Only, sc.name)
	}))
}

func play(ctx context.Context, out *screen, o Options, scenes []scene) error {
	place := "the server at " + o.Server
	if o.URL == "" {
		server, err := memredis.Start()
		if err != nil {
			return err
		}
		defer server.Close()
		place = "in memory, at " + server.Addr()
		o.URL = "redis://" + server.Addr()
	}

	s, err := newStage(out, o.URL)
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
