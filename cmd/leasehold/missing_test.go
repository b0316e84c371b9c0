package main

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/leasehold-go/leasehold/internal/redistest"
)

// badge waits until the freshness badge of the page has this class and this text.
func (b *browser) badge(class, text string) {
	b.Helper()
	b.until(`document.getElementById("fresh").className.trim() === "fresh ` + class + `" && document.getElementById("fresh").textContent === ` + quoteJS(text))
}

// One of three primaries is dead: the tool and the page show what the others store, and name the one that is missing.
func TestDeadPrimary(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-replica-no-failover", "yes")
	rdb := cluster.Client(t)
	masters := cluster.Masters(t)
	living, dead := masters[0], masters[1]
	var there, gone string // a lock on each of them
	for i := 0; there == "" || gone == ""; i++ {
		id, name := "01a20376-5c32-7c6b-b43e-0000000000"+strconv.Itoa(10+i), "orders:"+strconv.Itoa(i)
		for _, words := range [][]string{{"HSET", name, id + ":1", "1"}, {"HSET", "leasehold_client:" + id, "host", "host-7", "name", "billing"}} {
			if err := rdb.Do(t.Context(), rdb.B().Arbitrary(words[0]).Keys(words[1]).Args(words[2:]...).Build()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		switch cluster.Master(t, name) {
		case living:
			there = name
		case dead:
			gone = name
		}
	}
	dead.Kill(t)

	why := "incomplete: " + dead.Addr() + " does not respond ("
	for _, args := range []string{"ls", "ls -o wide", "ls -o json", "ls -o jsonl", "ls -o name", "ls " + gone} {
		c := on(t, living, strings.Fields(args)...)
		says(t, c, 1, why)
		out := c.stdout.String()
		if strings.Contains(out, there) == strings.HasSuffix(args, gone) || strings.Contains(out, gone) || strings.Contains(c.stderr.String(), "no lock") {
			t.Errorf("%s: %s", args, out)
		}
		if list := []lockJSON{}; args == "ls -o json" && json.Unmarshal([]byte(out), &list) != nil {
			t.Errorf("%s is no JSON: %s", args, out)
		}
	}
	free := "free:0"
	for i := 1; cluster.Master(t, free) != living; i++ {
		free = "free:" + strconv.Itoa(i)
	}
	says(t, on(t, living, "inspect", free), 0, free+": free\n")
	for _, args := range []string{"clients", "clients -o json", "clients -o jsonl"} {
		says(t, on(t, living, strings.Fields(args)...), 1, why, "billing")
	}

	says(t, on(t, living, "doctor", "--slow", "1h"), 2, ": failure\n", "✗ connection of "+dead.Addr(), "primary does not respond: ", "✓ connection", "✓ memory of "+living.Addr(), "✓ lock")

	b := browse(t, living)
	for path, shows := range map[string]string{"": "at least ", "locks": there, "clients": "billing", "graph": "Unknown.", "limits": "Unknown."} {
		b.open(path)
		b.shows(shows)
		b.shows("Incomplete: " + dead.Addr() + " does not respond")
		b.badge("off", "incomplete")
		b.picture("incomplete-"+path, 1440, 900)
	}
	b.quiet()
}

// The badge of the page is green only while Redis responds, and what was never read is shown as unknown.
func TestPage_unavailable(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := browse(t, s)
	for _, path := range []string{"", "lock?name=orders:1"} {
		b.open(path)
		b.badge("on", "live")
		s.Freeze(t)
		b.badge("off", "cannot read from Redis")
		b.shows("Cannot read from Redis.")
		if path == "" {
			b.shows("unknown")
			b.picture("unavailable", 390, 844)
		}
		s.Thaw(t)
		b.badge("on", "live")
	}
	b.quiet()
}

// While Redis is unavailable, the page of a lock keeps what it shows and what is typed into its form. A lease that may have been
// renewed does not count down to zero. Even on a narrow screen, the header says that the page is not current, wherever the page is scrolled to.
func TestPage_unavailableLock(t *testing.T) {
	s := redistest.Start(t)
	n := &night{t: t, s: s, now: time.Now()}
	owners := []string{n.owner(n.client(0, "billing", "host-0", ""), time.Minute), n.owner(n.client(1, "billing", "host-1", ""), time.Minute)}
	read := func(left time.Duration) {
		for _, o := range owners {
			n.reads("orders:42", o, left)
		}
	}
	read(time.Hour)
	b := browse(t, s, "--allow-unlock")
	b.do(chromedp.EmulateViewport(390, 844))
	b.open("lock?name=orders:42")
	b.until("document.getElementById('fresh').textContent === 'live'")
	const leases = `[...document.querySelectorAll(".state .left, [data-label=Lease] .left")].map((e) => e.textContent)`
	const header = `getComputedStyle(document.querySelector(".bar")).position`
	b.until(header + ` === "static"`)
	b.do(chromedp.Focus(chromedp.CSS("summary")), chromedp.KeyEvent(kb.Enter), chromedp.SendKeys(chromedp.CSS("[name=reason]"), "stuck since 3"))
	typed := func() {
		t.Helper()
		if got := b.eval(`document.querySelector("details").open && document.querySelector("[name=reason]").value`); got != "stuck since 3" {
			t.Errorf("the form says %s", got)
		}
	}
	s.Freeze(t)
	b.badge("off", "cannot read from Redis")
	s.Thaw(t)
	b.badge("on", "live")
	typed()
	read(15 * time.Second)
	b.until(leases + `.every((text) => text.length === "14s".length)`)
	s.Kill(t)
	b.shows("Cannot read from Redis.")
	b.shows("This page shows the state at")
	b.until(header + ` === "sticky"`)
	b.until(leases + `.join() === "unknown,unknown,unknown"`)
	b.shows("host-1")
	typed()
	s.Restart(t)
	b.shows("free")
	b.until("document.getElementById('fresh').textContent === 'live'")
	b.quiet()
}
