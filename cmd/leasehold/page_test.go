package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/latch"
	"github.com/leasehold-go/leasehold/lock"
)

// night writes example locks to a server: those of services on several hosts, of which two block each other.
type night struct {
	t   *testing.T
	s   *redistest.Server
	now time.Time
}

func (n *night) client(i int, name, host, label string) string {
	n.t.Helper()
	id := fmt.Sprintf("01a20376-5c32-7c6b-b43e-%012x", 0xa07f69b48000+i)
	n.s.Do(n.t, "HSET", "leasehold_client:"+id, "host", host, "pid", strconv.Itoa(700+i*401), "name", name, "label", label, "version", "v0.1.0",
		"started", n.now.Add(-time.Duration(i+1)*7*time.Hour).Format(time.RFC3339Nano))
	return id
}

// owner returns an owner of a client that requested its lock this long ago.
func (n *night) owner(client string, ago time.Duration) string {
	return client + ":" + strconv.FormatInt(n.now.Add(-ago).UnixMicro()<<10, 10)
}

func (n *night) holds(name, owner string, left time.Duration) {
	n.t.Helper()
	n.s.Do(n.t, "HSET", name, owner, "1")
	n.s.Do(n.t, "PEXPIRE", name, strconv.FormatInt(left.Milliseconds(), 10))
}

func (n *night) waits(name, owner string) {
	n.t.Helper()
	n.s.Do(n.t, "RPUSH", "redisson_lock_queue:{"+name+"}", owner)
	n.s.Do(n.t, "ZADD", "redisson_lock_timeout:{"+name+"}", strconv.FormatInt(n.now.Add(time.Hour).UnixMilli(), 10), owner)
}

func (n *night) reads(name, owner string, left time.Duration) {
	n.t.Helper()
	n.s.Do(n.t, "HSET", name, "mode", "read", owner, "1")
	n.s.Do(n.t, "SET", "{"+name+"}:"+owner+":rwlock_timeout:1", "1", "PX", strconv.FormatInt(left.Milliseconds(), 10))
	n.s.Do(n.t, "PEXPIRE", name, strconv.FormatInt(left.Milliseconds(), 10))
}

func fall(t *testing.T, s *redistest.Server) {
	n := &night{t: t, s: s, now: time.Now()}
	shipping := n.client(6, "shipping", "host-3", "zone=b")
	billing, cron, ledger, payments, search := n.client(10, "billing", "host-7", "zone=a"), n.client(2, "cron", "host-1", ""),
		n.client(3, "ledger", "host-5", "zone=b"), n.client(4, "payments", "host-2", "zone=a"), n.client(5, "search", "host-9", "zone=b")
	hour := time.Hour
	n.holds("orders:42", n.owner(billing, 47*time.Minute+12*time.Second), 24*time.Second)
	n.waits("orders:42", n.owner(shipping, 46*time.Minute))
	n.waits("orders:42", n.owner(cron, 12*time.Minute))
	s.Do(t, "SET", "redisson_lock_token:{orders:42}", "1842")
	n.holds("orders:41", n.owner(billing, 3*time.Second), 29*time.Second)
	n.holds("nightly:report", n.owner(cron, 2*hour+14*time.Minute), 22*time.Second)
	n.holds("nightly:vacuum", n.owner(cron, 9*time.Minute), 11*time.Second)
	n.holds("transfer:eu:7", n.owner(payments, 5*time.Minute), 27*time.Second)
	n.holds("transfer:us:3", n.owner(ledger, 5*time.Minute), 25*time.Second)
	n.waits("transfer:us:3", n.owner(payments, 4*time.Minute))
	n.waits("transfer:eu:7", n.owner(ledger, 4*time.Minute))
	n.waits("transfer:eu:7", n.owner(search, time.Minute))
	for i, c := range []string{search, billing, payments} {
		n.reads("catalog", n.owner(c, time.Duration(20+i)*time.Second), 28*time.Second)
	}
	n.holds("stock:berlin:aisle-4", "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:84", 26*time.Second)
	n.waits("stock:berlin:aisle-4", n.owner(shipping, 2*time.Minute))
	n.holds("stock:oslo:aisle-1", n.owner(search, 41*time.Second), 5*time.Second)
	n.holds("migration", n.owner(ledger, 30*hour), hour)
	s.Do(t, "PERSIST", "migration")
	n.holds("billing:leader", n.owner(billing, 26*hour), 27*time.Second)
	s.Do(t, "HSET", "leasehold_leader:{billing:leader}", "token", "7", "value", "http://10.0.0.7:8080", "since", strconv.FormatInt(n.now.Add(-25*hour).UnixMilli(), 10))

	owes := func(key string, debt time.Duration, used int) {
		ends := n.now.Truncate(24 * hour).Add(24 * hour)
		text := fmt.Sprintf("gcra %d 0 %d", n.now.UnixMicro(), debt.Microseconds())
		if used > 0 {
			text += fmt.Sprintf(" %d:%d", ends.UnixMicro(), used)
			debt = max(debt, ends.Sub(n.now))
		}
		s.Do(t, "SET", key, text, "PX", strconv.FormatInt(debt.Milliseconds()+2, 10))
	}
	owes("api:alice", 54*time.Second, 960)
	owes("api:bob", 4*time.Second+100*time.Millisecond, 12)
	owes("mail:partner", 3*time.Minute, 0)
	for name, taken := range map[string]int{"sms": 10, "push": 3} {
		s.Do(t, "HSET", name, "rate", "10", "interval", "3600000", "type", "0", "keepAliveTime", "0")
		s.Do(t, "SET", "{"+name+"}:value", strconv.Itoa(10-taken))
		for i := range taken {
			at := n.now.Add(-time.Duration(48-4*i) * time.Minute).UnixMilli()
			s.Do(t, "ZADD", "{"+name+"}:permits", strconv.FormatInt(at, 10), fmt.Sprintf("\x10%016d\x01\x00\x00\x00", i))
		}
	}
	for name, fill := range map[string]int{"seen:urls": 5, "seen:mails": 12} {
		s.Do(t, "HSET", "{"+name+"}:config", "size", "958506", "hashIterations", "7", "expectedInsertions", "100000", "falseProbability", "0.01")
		s.Do(t, "SET", name, strings.Repeat("\xff"+strings.Repeat("\x00", fill-1)+"\x0f", 119814/(fill+1)+1)[:119814])
	}
}

// pods returns a night with names and holders of locks as in Kubernetes.
func pods(t *testing.T, s *redistest.Server) *night {
	t.Helper()
	n := &night{t: t, s: s, now: time.Now()}
	for i, pod := range []string{"x2x9k", "p8zqf", "7w4lm"} {
		c := n.client(i, "payments-reconciliation-worker", "payments-reconciliation-worker-7d9f8b6c5d-"+pod, "region=eu-west-1,shard="+strconv.Itoa(i))
		name := "production:payments:reconciliation:batch:2026-11-26:" + pod
		n.holds(name, n.owner(c, time.Duration(i+1)*26*time.Hour), time.Hour)
		for w := range 12 {
			n.waits(name, n.owner(c, time.Duration(w)*time.Minute))
		}
	}
	return n
}

// The pages of the example locks in a browser, in light and dark. Each text has enough contrast to its background, each
// control has a name, and nothing violates the policy of the page.
func TestPage_looks(t *testing.T) {
	s := redistest.Start(t)
	b := browse(t, s, "--allow-unlock")
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		b.do(chromedp.EmulateViewport(1440, 900))
		for name, page := range map[string]struct{ path, shows string }{
			"overview":           {"", "Oldest request"},
			"free":               {"lock?name=orders:9", "No keys."},
			"locks":              {"locks?sort=since", "stock:berlin:aisle-4"},
			"lock":               {"lock?name=orders:42", "Waiters, in queue order"},
			"graph":              {"graph", "Possible deadlock."},
			"limits":             {"limits", "seen:urls"},
			"redisson-ratelimit": {"lock?name=sms", "10 per 1h"},
			"filter":             {"lock?name=seen:urls", "False positives"},
			"election":           {"lock?name=billing:leader", "Leader for"},
			"clients":            {"clients", "payments"},
		} {
			s.Do(t, "FLUSHALL")
			fall(t, s)
			b.open(page.path)
			b.shows(page.shows)
			b.until("document.getElementById('fresh').textContent === 'live'")
			if name == "overview" {
				b.until(warns)
			}
			if odd := b.eval(unreadable); odd != "" {
				t.Errorf("%s, %s: too little contrast: %s", name, scheme, odd)
			}
			if odd := b.eval(unnamed); odd != "" {
				t.Errorf("%s: %s", name, odd)
			}
			for _, width := range []int64{1440, 390} {
				b.do(chromedp.EmulateViewport(width, 900))
				if odd := b.eval(cramped); odd != "" {
					t.Errorf("%s, %d wide: %s", name, width, odd)
				}
			}
			b.picture("page-"+name+"-phone-"+scheme, 390, 844)
			b.picture("page-"+name+"-"+scheme, 1160, 700)
		}
	}
	b.quiet()
}

// warns reports whether the page has warned of a ring for several surveys: an earlier warning can be about earlier locks.
const warns = `(() => {
	window.since = document.querySelector(".ring") ? window.since || Date.now() : 0;
	return window.since > 0 && Date.now() - window.since > 4000;
})()`

// unreadable lists the texts whose contrast to their background is below the minimum of WCAG 2 (4.5).
const unreadable = `(() => {
	const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
	const lum = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const odd = [];
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n; (n = walk.nextNode()); ) {
		const el = n.parentElement;
		if (!n.nodeValue.trim() || !el.checkVisibility() || el.closest("svg, .unseen, .skip, option, [aria-hidden]")) continue;
		let behind = el;
		while (behind && parse(getComputedStyle(behind).backgroundColor)[3] < 1) behind = behind.parentElement;
		const a = lum(parse(getComputedStyle(el).color)), b = lum(parse(getComputedStyle(behind || document.body).backgroundColor));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < 4.5) odd.push(n.nodeValue.trim() + " " + ratio.toFixed(2));
	}
	return odd.join("; ");
})()`

// cramped lists what a narrow screen cuts off, or what requires horizontal scrolling.
const cramped = `(() => {
	const odd = [];
	for (const el of document.querySelectorAll("body, body *")) {
		if (!el.checkVisibility() || el.closest(".unseen, svg, progress, select, option") || el.scrollWidth <= el.clientWidth + 1) continue;
		if (el === document.body || getComputedStyle(el).overflowX !== "visible") odd.push(el.nodeName + "." + el.className + " " + el.scrollWidth + " > " + el.clientWidth + ": " + el.textContent.trim().slice(0, 40));
	}
	for (const g of document.querySelectorAll("svg g")) for (const text of g.querySelectorAll("text"))
		if (text.getComputedTextLength() > g.querySelector("rect").getBBox().width) odd.push("wider than its node: " + text.textContent);
	for (const el of document.querySelectorAll("main *, header *, footer *")) {
		const box = el.getBoundingClientRect();
		if (el.checkVisibility() && !el.closest(".unseen, .skip") && (box.right > innerWidth + 1 || box.left < -1)) odd.push("outside: " + el.nodeName + "." + el.getAttribute("class") + " " + el.textContent.trim().slice(0, 40));
	}
	return odd.join("; ");
})()`

// unnamed lists what a user of a screen reader would miss.
const unnamed = `(() => {
	const odd = [];
	const name = (el) => (el.getAttribute("aria-label") || el.textContent || (el.labels && [...el.labels].map((l) => l.textContent).join("")) || "").trim();
	for (const el of document.querySelectorAll("a, button, input:not([type=hidden]), select, summary")) if (!name(el) && !(el.labels && el.labels.length)) odd.push("no name: " + el.outerHTML.slice(0, 80));
	for (const el of document.querySelectorAll("table")) if (!el.caption) odd.push("a table without a caption");
	for (const el of document.querySelectorAll("thead th, tbody th")) if (!el.scope) odd.push("a head without a scope");
	for (const el of document.querySelectorAll("img")) if (!el.hasAttribute("alt")) odd.push("a picture without a text");
	for (const what of ["header", "main", "nav[aria-label]", "h1", "[role=status]"]) if (!document.querySelector(what)) odd.push("no " + what);
	if (document.querySelectorAll("h1").length !== 1) odd.push("more than one h1");
	const ids = [...document.querySelectorAll("[id]")].map((el) => el.id);
	if (new Set(ids).size !== ids.length) odd.push("an id twice");
	for (const el of document.querySelectorAll("[style], script:not([src]), [onclick]")) odd.push("inline: " + el.outerHTML.slice(0, 80));
	return odd.join("; ");
})()`

// On a phone, the page shows each holder and the number of waiters, whatever their names are. Forty waiters that count as dead are one row.
func TestPage_phone(t *testing.T) {
	s := redistest.Start(t)
	n := pods(t, s)
	for i := range 40 {
		o := n.owner(n.client(9, "cron", "cron-28812345-abcde", ""), time.Duration(i)*time.Minute)
		name := "production:payments:reconciliation:batch:2026-11-26:x2x9k"
		s.Do(t, "RPUSH", "redisson_lock_queue:{"+name+"}", o)
		s.Do(t, "ZADD", "redisson_lock_timeout:{"+name+"}", "1000", o)
	}
	b := browse(t, s, "--allow-unlock")
	b.do(chromedp.EmulateViewport(390, 844))
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		for name, page := range map[string]struct{ path, shows string }{
			"overview": {"", "payments-reconciliation-worker-7d9f8b6c5d-x2x9k"},
			"locks":    {"locks", "payments-reconciliation-worker-7d9f8b6c5d-x2x9k"},
			"lock":     {"lock?name=production:payments:reconciliation:batch:2026-11-26:x2x9k", "40 waiters timed out: 40 of cron on cron-28812345-abcde"},
			"clients":  {"clients", "payments-reconciliation-worker-7d9f8b6c5d-x2x9k"},
		} {
			b.open(page.path)
			b.shows(page.shows)
			b.until("document.getElementById('fresh').textContent === 'live'")
			if odd := b.eval(cramped); odd != "" {
				t.Errorf("%s: %s", name, odd)
			}
			if name == "locks" {
				b.shows("2d 04h")
				b.until(`[...document.querySelectorAll("[data-label=Waiting]")].some((c) => c.textContent === "52" && c.getBoundingClientRect().right <= innerWidth)`) // 12 and 40
			}
			b.picture("page-"+name+"-pods-phone-"+scheme, 390, 844)
			b.picture("page-"+name+"-pods-"+scheme, 1440, 900)
			b.do(chromedp.EmulateViewport(390, 844))
		}
	}
	b.quiet()
}

// 1. The list of locks updates while the search is typed: by name, holder, host and label.
// 2. j and k move from row to row, / moves to the search, and ? opens the list of keys.
// 3. A button copies the name of a lock.
func TestPage_keys(t *testing.T) {
	s := redistest.Start(t)
	pods(t, s)
	n := &night{t: t, s: s, now: time.Now()}
	n.holds("odd 'name'", n.owner(n.client(7, "billing", "host-7", ""), time.Minute), time.Hour)
	b := browse(t, s)
	b.open("lock?name=nightly")
	b.shows("free")
	b.do(chromedp.KeyEvent("/")) // there is no search on this page
	b.shows("4 locks")
	b.until(`document.activeElement.name === "q"`)
	for _, text := range []string{"BATCH:2026-11-26:p8", "6c5d-p8zqf", "shard=1"} { // 1
		b.do(chromedp.KeyEvent(text))
		b.shows("1 of 4 locks")
		b.until(`document.querySelectorAll("tbody tr").length === 1 && document.querySelector("tbody a").textContent.endsWith("p8zqf")`)
		b.eval(`document.activeElement.select()`)
	}
	b.do(chromedp.KeyEvent("worker"))
	b.shows("3 of 4 locks")
	b.do(chromedp.KeyEvent(kb.Escape))

	at := func() string { return b.eval(`document.activeElement.textContent.slice(-5)`) } // 2
	for _, step := range []struct{ key, want string }{{"j", "7w4lm"}, {"j", "p8zqf"}, {"j", "x2x9k"}, {"j", "x2x9k"}, {"k", "p8zqf"}} {
		if b.do(chromedp.KeyEvent(step.key)); at() != step.want {
			t.Errorf("after %s the focus is at %s, want %s", step.key, at(), step.want)
		}
	}
	b.do(chromedp.KeyEvent("?"))
	b.shows("Next and previous row")
	b.picture("page-keys-dialog", 1160, 700)
	b.do(chromedp.KeyEvent("j"), chromedp.KeyEvent(kb.Escape))
	b.until(`!document.getElementById("shortcuts").open`)
	if at() != "p8zqf" {
		t.Errorf("after the dialog the focus is at %s", at())
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	b.shows("Waiters, in queue order")

	b.open("lock?name=odd%20%27name%27") // 3
	b.eval(`navigator.clipboard.writeText = (text) => { window.copied = text; }`)
	for button, want := range map[string]string{"h1 .copy": "odd 'name'", ".host .copy": "host-7"} {
		b.do(chromedp.Focus(chromedp.CSS(button)), chromedp.KeyEvent(kb.Enter))
		b.until("window.copied === " + quoteJS(want))
	}
	b.do(chromedp.Focus(chromedp.CSS("h3 .copy")), chromedp.KeyEvent(kb.Enter))
	b.until("window.copied.startsWith(" + quoteJS(`redis-cli HGETALL 'odd '`) + ")")
	b.eval(`(Object.defineProperty(navigator, "clipboard", { value: undefined }), document.execCommand = () => { window.copied = document.activeElement.value; })`)
	b.do(chromedp.Focus(chromedp.CSS(".host .copy")), chromedp.KeyEvent(kb.Enter))
	b.until("window.copied === `host-7`")
	b.quiet()
}

// 1. A lease counts down, and jumps at a renewal. The bar grows with the longest lease observed.
// 2. A lock appears and disappears without a reload, and the focus stays where it is.
// 3. The page pauses and resumes, and keeps what was typed into its search.
func TestPage_follows(t *testing.T) {
	s := redistest.Start(t)
	c := billing(t, s.Client(t))
	mustLock(t, c.NewLock("orders:1"))
	b := browse(t, s)
	b.open("locks")
	b.shows("billing on ")

	// 1.
	b.until(`(() => {
		const v = document.querySelector("tbody tr progress").value;
		window.least = Math.min(window.least ?? 1e9, v);
		return v - window.least > 1000;
	})()`)

	s.Do(t, "HSET", "by:hand", redissonOwner, "1")
	s.Do(t, "PEXPIRE", "by:hand", "20000")
	b.until(`document.querySelectorAll("tbody tr").length === 2`)
	s.Do(t, "PEXPIRE", "by:hand", "60000")
	b.until(`document.querySelector("tbody tr progress").max > 50000 && document.querySelector("tbody tr progress").value > 30000`)
	s.Do(t, "DEL", "by:hand")
	b.until(`document.querySelectorAll("tbody tr").length === 1`)

	// 2.
	b.do(chromedp.Focus(chromedp.CSS("tbody a.name")))
	b.eval(`window.focused = document.activeElement`)
	h := mustLock(t, c.NewLock("orders:0"))
	b.until(`document.querySelectorAll("tbody tr").length === 2`)
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	b.until(`document.querySelectorAll("tbody tr").length === 1`)
	if got := b.eval(`document.activeElement === window.focused && document.activeElement.textContent`); got != "orders:1" {
		t.Errorf("the focus is at %s", got)
	}

	// 3.
	b.do(chromedp.Click(chromedp.CSS("#pause")))
	b.until(`document.getElementById("fresh").textContent === "paused"`)
	h = mustLock(t, c.NewLock("orders:2"))
	b.do(chromedp.SendKeys(chromedp.CSS("input[name=q]"), "orders:2")) // while it is paused
	b.until(`location.search.includes("orders%3A2")`)
	b.do(chromedp.Click(chromedp.CSS("#pause")))
	b.shows("1 of 2 locks")
	b.shows("orders:2")
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	b.quiet()
}

// An operator finds the stuck lock with only the keyboard, and force-unlocks it. Its holder is notified.
func TestPage_unlock(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	c := billing(t, rdb, seldom)
	h := mustLock(t, c.NewLock("orders:42"))
	knows(t, rdb, c)
	hears(t, s, c)
	next := make(chan error, 1)
	go func() {
		other, err := client.New(rdb, client.WithName("cron"))
		if err == nil {
			_, err = other.NewLock("orders:42").Lock(context.Background())
			err = errors.Join(err, other.Close(context.Background()))
		}
		next <- err
	}()

	b := browse(t, s, "--allow-unlock", "--operator", "alice")
	b.open("")
	b.do(chromedp.KeyEvent(kb.Tab))
	if got := b.eval(`document.activeElement.textContent`); got != "Skip to the content" {
		t.Errorf("the first stop is %q", got)
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	tabTo(b, "orders:42")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.shows("Force-unlock…")
	b.shows("Waiters, in queue order")
	tabTo(b, "Force-unlock…")
	b.do(chromedp.KeyEvent(kb.Enter), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent("stuck since 3"), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent("orders:4"), chromedp.KeyEvent(kb.Enter))
	b.shows("Nothing was changed: the typed name does not match.")
	if h.Err() != nil {
		t.Fatal(h.Err())
	}
	tabTo(b, "Force-unlock…")
	b.do(chromedp.KeyEvent(kb.Enter), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent("stuck since 3"), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent("orders:42"), chromedp.KeyEvent(kb.Enter))
	b.shows("Unlocked. Notification sent to 1 holder.")
	<-h.Context().Done()
	if err := h.Err(); !errors.Is(err, lock.ErrForceUnlocked) || !strings.Contains(err.Error(), "by alice: stuck since 3") {
		t.Errorf("the holder is told %v", err)
	}
	if err := <-next; err != nil {
		t.Error(err)
	}
	b.shows("free")
	b.quiet()
}

// The form names the holders that the page displays when the form is opened, and does not change until it is closed.
func TestPage_unlockAfterAChange(t *testing.T) {
	s := redistest.Start(t)
	n := &night{t: t, s: s, now: time.Now()}
	swap := func(host string) { // the lock is never free
		const script = `redis.call('DEL', KEYS[1]); redis.call('HSET', KEYS[1], ARGV[1], 1); redis.call('PEXPIRE', KEYS[1], 600000)`
		s.Do(t, "EVAL", script, "1", "orders:42", n.owner(n.client(len(host), "billing", host, ""), time.Minute))
	}
	b := browse(t, s, "--allow-unlock")
	displays := func(host string) {
		t.Helper()
		b.until(`document.querySelector(".people .host")?.textContent.startsWith(` + quoteJS(host+" ") + `)`)
	}
	open := func() { b.do(chromedp.Focus(chromedp.CSS("summary")), chromedp.KeyEvent(kb.Enter)) }
	send := func() { b.do(chromedp.SendKeys(chromedp.CSS("[name=typed]"), "orders:42"+kb.Enter)) }

	swap("a")
	b.open("lock?name=orders:42")
	displays("a")
	b.until("document.getElementById('fresh').textContent === 'live'")
	open()
	swap("bb")
	displays("bb")
	send()
	b.shows("Nothing was changed: the holders displayed when you opened the form no longer hold the lock.")

	displays("bb")
	b.until("document.getElementById('fresh').textContent === 'live'")
	open()
	b.until(`document.querySelector("details").open`)
	b.eval(`window.named = document.querySelector("[name=seen]").value`)
	swap("ccc")
	displays("ccc")
	open() // closes it
	b.until(`!document.querySelector("details").open && document.querySelector("[name=seen]").value !== window.named`)
	open()
	send()
	b.shows("Unlocked.")
	b.shows("free")

	swap("dddd")
	b.open("lock?name=orders:42")
	displays("dddd")
	b.until("document.getElementById('fresh').textContent === 'live'")
	swap("eeeee")
	displays("eeeee")
	open()
	send()
	b.shows("Unlocked.")
	b.quiet()
}

// Force-unlock works on a page of another machine without TLS, too.
func TestPage_unlockElsewhere(t *testing.T) {
	s := redistest.Start(t)
	s.Do(t, "HSET", "orders:42", redissonOwner, "1")
	b := browse(t, s, "--allow-unlock", "--host", elsewhere)
	b.url = strings.Replace(b.url, "127.0.0.1", elsewhere, 1)
	b.open("lock?name=orders:42")
	b.do(chromedp.Focus(chromedp.CSS("summary")), chromedp.KeyEvent(kb.Enter), chromedp.SendKeys(chromedp.CSS("[name=typed]"), "orders:42"+kb.Enter))
	b.shows("Unlocked.")
	if held(t, s, "orders:42") {
		t.Error("it is held still")
	}
	b.quiet()
}

// follow follows a link with the keyboard, because a click can miss a link that an update of the page moves.
func follow(b *browser, link string) {
	b.Helper()
	b.do(chromedp.Focus(chromedp.CSS(link)), chromedp.KeyEvent(kb.Enter))
}

// tabTo presses Tab until the focus is on something with this text.
func tabTo(b *browser, text string) {
	b.Helper()
	for range 60 {
		b.do(chromedp.KeyEvent(kb.Tab))
		if b.eval(`document.activeElement.textContent.trim()`) == text {
			return
		}
	}
	b.Fatalf("Tab does not lead to %q", text)
}

// hears waits until the client is subscribed to force-unlocks, once a lock was renewed.
func hears(t *testing.T, s *redistest.Server, c *client.Client) {
	t.Helper()
	await(t, "the client does not listen", func() bool {
		reply := s.Do(t, "PUBLISH", "leasehold_client:"+c.ID(), "hello")
		n, err := reply.ToInt64()
		return err == nil && n > 0
	})
}

// The page updates for a latch that is counted down, and for a wait group that loses a worker.
func TestPage_latchAndWaitGroup(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := billing(t, s.Client(t))
	l := c.NewLatch("import:done")
	if created, err := l.TrySetCount(t.Context(), 3); !created || err != nil {
		t.Fatal(created, err)
	}
	var members []*latch.Worker
	for range 2 {
		m, err := c.NewWaitGroup("workers").Add(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, m)
	}
	b := browse(t, s)
	b.open("locks")
	b.shows("count 3")
	if got := b.eval(`[...document.querySelectorAll("tbody tr")].map(r => r.querySelectorAll(".lease").length).join()`); got != "0,1" {
		t.Errorf("leases of the latch and of the wait group: %s", got)
	}
	if _, err := l.CountDown(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.shows("count 2")
	follow(b, `a[href*="name=workers"]`)
	b.shows("2 active")
	if err := members[0].Fail(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.shows("1 active, 1 lost")
	if err := members[1].Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.shows("0 active, 1 done, 1 lost")
	b.quiet()
}

// The page updates for a rate limiter that is used up, and for a filter that fills.
func TestPage_limits(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := billing(t, s.Client(t))
	w := c.NewRedissonRateLimiter("sms")
	if _, err := w.Init(t.Context(), 10, time.Hour); err != nil {
		t.Fatal(err)
	}
	f := c.NewBloomFilter("seen")
	if _, err := f.Init(t.Context(), 100, .01); err != nil {
		t.Fatal(err)
	}
	b := browse(t, s)
	b.open("limits")
	b.shows("10 of 10 per 1h remaining")
	if _, err := w.Take(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	b.shows("3 of 10 per 1h remaining")
	b.until(`document.querySelector("tr[data-key*=sms] progress").value === 0.7`)
	if _, err := f.Add(t.Context(), []byte("a"), []byte("b")); err != nil {
		t.Fatal(err)
	}
	b.shows("2 of 100 elements")
	follow(b, `a[href*="name=sms"]`)
	b.shows("the used permits, with the time of each")
	if _, err := w.Take(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	b.shows("0 of 10 per 1h remaining; next in ")
	follow(b, ".crumb a")
	b.shows("2 limiters and filters")
	b.quiet()
}

// With 10,000 locks, a page has fifty of them, and any can be found.
func TestPage_manyLocks(t *testing.T) {
	s := redistest.Start(t)
	const many = 10000
	s.Do(t, "EVAL", `for i = 1, tonumber(ARGV[1]) do
		local name = string.format('orders:%05d', i)
		redis.call('HSET', name, ARGV[2] .. i, 1)
		redis.call('PEXPIRE', name, 600000 + i)
	end`, "0", strconv.Itoa(many), "01a20376-5c32-7c6b-b43e-a07f69b48111:18424")
	b := browse(t, s)
	b.open("locks")
	b.shows("10,000 locks")
	if got := b.eval(`document.querySelectorAll("tbody tr").length + " " + (document.documentElement.outerHTML.length < 100000)`); got != "50 true" {
		t.Errorf("rows, and whether the page is small: %s", got)
	}
	follow(b, "a[rel=next]")
	b.shows("page 2 of 200")
	b.do(chromedp.SendKeys(chromedp.CSS("input[name=q]"), "0077"+kb.Enter))
	b.shows("11 of 10,000 locks")
	b.shows("orders:00771")
	b.quiet()
}
