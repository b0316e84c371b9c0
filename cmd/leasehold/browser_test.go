package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/leasehold-go/leasehold/internal/redistest"
)

// chromium returns the path of a browser. It is Chromium, or Chrome.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("LEASEHOLD_CHROMIUM"), "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" || os.Getenv("LEASEHOLD_REQUIRE_CHROMIUM") == "1" {
		t.Fatal("this test needs Chromium, and must not be skipped here (CI or LEASEHOLD_REQUIRE_CHROMIUM is set)")
	}
	t.Skip("NOT TESTED: this test needs Chromium; scripts/chromium.sh installs it")
	return ""
}

// browser is a tab of a headless Chromium.
type browser struct {
	*testing.T
	ctx context.Context
	url string // of the page that leasehold serve serves

	mu     sync.Mutex
	errors []string // messages of the console, for example about a violated Content-Security-Policy
}

// elsewhere is a name that the browser treats as another machine. Without TLS, browsers send fewer headers to other machines.
const elsewhere = "locks.test"

// browse starts leasehold serve on s, and a browser.
func browse(t *testing.T, s *redistest.Server, flags ...string) *browser {
	t.Helper()
	b := &browser{T: t, url: serving(t, s, flags...)}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium(t)), chromedp.WindowSize(1280, 900),
		chromedp.NoSandbox, // required for root; the pages are trusted
		chromedp.Flag("host-resolver-rules", "MAP "+elsewhere+" 127.0.0.1"),
		chromedp.DisableGPU, chromedp.Flag("disable-dev-shm-usage", true))
	alloc, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Error(err)
		}
		cancel()
		stop()
	})
	b.ctx = ctx
	err := chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			b.errors = append(b.errors, fmt.Sprintf("%+v", e.ExceptionDetails))
		case *log.EventEntryAdded:
			if e.Entry.Level == log.EntryLevelError {
				b.errors = append(b.errors, e.Entry.Text+" "+e.Entry.URL)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// serving starts leasehold serve, and returns the URL of its page.
func serving(t *testing.T, s *redistest.Server, flags ...string) string {
	t.Helper()
	c := on(t, s, append([]string{"serve", "--listen", "127.0.0.1:0"}, flags...)...)
	c.stderr.await(t, "serving http://")
	t.Cleanup(func() {
		c.signal(os.Interrupt)
		c.ends(exitInterrupted)
	})
	return regexp.MustCompile(`http://[0-9.:]+/`).FindString(c.stderr.String())
}

// do runs steps in the browser.
func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 3*promptly)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.failed(err)
	}
}

// failed ends the test, and reports what the page shows.
func (b *browser) failed(err error) {
	b.Helper()
	text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string]("location + '\\n' + document.body.innerText"))
	b.Fatalf("the browser: %v\n%s", err, text)
}

// open opens a page.
func (b *browser) open(path string) {
	b.Helper()
	b.do(chromedp.Navigate(b.url+path), chromedp.WaitVisible(chromedp.CSS("main h1")))
}

// until waits until a script returns true.
func (b *browser) until(script string) {
	b.Helper()
	for end := time.Now().Add(3 * promptly); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithDeadline(b.ctx, end)
		said, err := chromedp.Run(ctx, chromedp.Evaluate[string]("String("+script+")"))
		cancel()
		if err == nil && said == "true" {
			return
		}
		if time.Now().After(end) { // until then, an error can come from a page that is being replaced
			b.failed(fmt.Errorf("not in time: %s (%v)", script, err))
		}
	}
}

// shows waits until the page shows a text.
func (b *browser) shows(text string) {
	b.Helper()
	b.until("!!document.body && document.body.innerText.includes(" + quoteJS(text) + ")")
}

// eval returns the result of a script.
func (b *browser) eval(script string) string {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 3*promptly)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("String("+script+")"))
	if err != nil {
		b.failed(fmt.Errorf("%s: %w", script, err))
	}
	return text
}

func quoteJS(text string) string { return "`" + strings.ReplaceAll(text, "`", "\\`") + "`" }

// quiet checks that the console of the browser has no errors.
func (b *browser) quiet() {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.errors) > 0 {
		b.Errorf("the browser says %q", b.errors)
	}
}

// scheme makes the browser prefer light or dark.
func (b *browser) scheme(name string) {
	b.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
	if err != nil {
		b.Fatal(err)
	}
}

// picture writes what the browser shows to a file, if LEASEHOLD_PICTURES names a directory.
func (b *browser) picture(name string, width, height int64) {
	b.Helper()
	dir := os.Getenv("LEASEHOLD_PICTURES")
	if dir == "" {
		return
	}
	b.do(chromedp.EmulateViewport(width, height))
	time.Sleep(300 * time.Millisecond) // for what fades in; pictures are not checked
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)
	}
	if err != nil {
		b.Error(err)
	}
}
