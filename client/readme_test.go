package client_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

func ship(ctx context.Context, rdb rueidis.Client) error {
	c, err := client.New(rdb) // or client.Open(ctx, "redis://127.0.0.1:6379")
	if err != nil {
		return err
	}
	defer c.Close(ctx) // gives back every lock it still holds

	h, err := c.NewLock("orders:42").Lock(ctx) // waits until the lock is held or ctx ends
	if err != nil {
		return err
	}
	defer h.Unlock(ctx) // works although ctx may be over by then

	return work(h.Context()) // over as soon as the lock is not certainly held
}

func work(ctx context.Context) error { return ctx.Err() }

// The README's example is the function above, which compiles and runs.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "```go\n")
	example, _, found := strings.Cut(rest, "```")
	this, err := os.ReadFile("readme_test.go")
	if err != nil {
		t.Fatal(err)
	}
	if !found || !strings.Contains(string(this), example) {
		t.Errorf("the README's example is not the one that is compiled here:\n%s", example)
	}
	s := redistest.Start(t)
	if err := ship(t.Context(), s.Client(t)); err != nil {
		t.Error(err)
	}
}
