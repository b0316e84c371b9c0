package main

import (
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// resize changes the permit count of an idle or held semaphore, and of nothing else.
func TestResize(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := billing(t, s.Client(t))
	on(t, s, "run", "--permits", "4", "gpus", "--", "sh", "-c", "exit 0").ends(0)
	idle := "gpus: a semaphore of 4 permits, 4 free\nambiguous  the key is a number: an idle semaphore, or a counter of an application\n"
	says(t, on(t, s, "inspect", "gpus"), 0, idle)
	says(t, on(t, s, "inspect", "gpus", "-o", "json"), 0, `"permits": 4`)
	says(t, on(t, s, "unlock", "gpus", "--yes"), 1, "gpus is not held; nothing was changed")
	says(t, on(t, s, "resize", "gpus", "8"), 2, "not a terminal, nothing was changed; use --yes")
	says(t, on(t, s, "resize", "gpus", "8", "--yes"), 0, idle, "gpus has 8 permits, 8 free")
	says(t, on(t, s, "run", "--permits", "4", "gpus", "--", "sh", "-c", "exit 0"), exitBroken,
		"semaphore has 8, --permits wants 4; use the same number, or change the count with leasehold resize\n")

	h, err := c.NewSemaphore("gpus", 8).N(5).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	says(t, on(t, s, "resize", "gpus", "3", "--yes"), 0, "gpus has 3 permits, and 5 are held: none is granted until fewer than 3 are held")
	if err := h.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	says(t, on(t, s, "inspect", "gpus"), 0, "gpus: a semaphore of 3 permits, 3 free")

	mustLock(t, c.NewLock("orders"))
	s.Do(t, "SET", "text", "an application's")
	for line, test := range map[string]struct {
		code int
		text string
	}{
		"none 4 --yes":          {1, "no semaphore none on " + s.URL()},
		"orders 4 --yes":        {1, "orders is not a semaphore, but a key of type plain; nothing was changed"},
		"text 4 --yes":          {1, "key text is not a lock"},
		"gpus 0 --yes":          {2, "PERMITS 0: must be at least 1 and at most"},
		"gpus 2147483648 --yes": {2, "at most 2147483647"},
		"gpus four --yes":       {2, "PERMITS four"},
		"gpus --yes":            {2, "1 argument: use leasehold resize NAME PERMITS"},
		"gpus 5 --yes extra":    {2, "3 arguments: use leasehold resize NAME PERMITS"},
	} {
		says(t, on(t, s, append([]string{"resize"}, strings.Fields(line)...)...), test.code, test.text)
	}
	reply := s.Do(t, "GET", "gpus")
	if text, err := reply.ToString(); err != nil || text != "3" {
		t.Errorf("gpus is %q, %v", text, err)
	}
}
