package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"golang.org/x/sys/unix"
)

// pictureOf is the picture of a session in the README.
const pictureOf = "tool.svg"

// The picture of a session is well-formed, and shows the current output of the tool, except for names of hosts, times and numbers.
// LEASEHOLD_PICTURES=dir redraws it (make picture).
func TestPicture(t *testing.T) {
	t.Parallel()
	session := playSession(t)
	drawn := draw(session)
	if dir := os.Getenv("LEASEHOLD_PICTURES"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, pictureOf), drawn, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile("../../docs/pictures/" + pictureOf)
	if err != nil {
		t.Fatal(err)
	}
	want, err := shape(drawn)
	if err != nil {
		t.Fatalf("a new picture: %v", err)
	}
	if got, err := shape(kept); err != nil || !slices.Equal(got, want) {
		t.Errorf("%s: %v; run make picture. It shows\n%s\nand the tool prints\n%s", pictureOf, err, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// playSession plays a user who finds a stuck holder, and returns the screen of the terminal.
func playSession(t *testing.T) []row {
	t.Helper()
	s := redistest.Start(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"import-orders": "exec sleep 3600", "ship-orders": "read line", "bill-orders": "read line", "report.sh": "read line", "read.sh": "read line"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	names := exec.Command("unshare", "-ru", "hostname", "host-1").Run() == nil // if that is not allowed, all have the name of this host
	waiting, jobs := 0, []*tool(nil)
	for _, job := range []struct{ host, args, lock string }{
		{"host-7", "--lease 15s orders:42 -- ./import-orders", "orders:42"},
		{"host-3", "orders:42 -- ./ship-orders", ""},
		{"host-4", "orders:42 -- ./bill-orders", ""},
		{"host-2", "nightly -- ./report.sh", "nightly"},
		{"host-5", "--shared catalog -- ./read.sh", "catalog"},
	} {
		c := prepare(t, []string{"LEASEHOLD_REDIS_URL=" + s.URL()}, append([]string{"run", "-q"}, strings.Fields(job.args)...)...)
		c.cmd.Dir = dir
		if names {
			tool := slices.Clone(c.cmd.Args)
			tool[0] = c.cmd.Path
			c.cmd.Args = append([]string{"unshare", "-ru", "sh", "-c", `hostname "$0" && exec "$@"`, job.host}, tool...)
			c.cmd.Path, c.cmd.Err = exec.LookPath("unshare")
		}
		jobs = append(jobs, c.start())
		if job.lock != "" {
			awaitHeld(t, s, job.lock)
			registered(t, s, jobs[len(jobs)-1]) // the entry contains the name of the client
			continue
		}
		waiting++
		for end := time.Now().Add(promptly); !strings.Contains(lsJSON(t, s), fmt.Sprintf(`"waiting":%d`, waiting)); {
			if time.Now().After(end) {
				t.Fatalf("%s does not wait", job.args)
			}
		}
	}

	// A client is notified of a force-unlock once it has renewed a lock.
	reply := s.Do(t, "HKEYS", "orders:42")
	owners, err := reply.AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	holder, _, _ := strings.Cut(owners[slices.IndexFunc(owners, func(o string) bool { return strings.Contains(o, ":") })], ":")
	for end := time.Now().Add(promptly); ; time.Sleep(10 * time.Millisecond) {
		reply := s.Do(t, "PUBSUB", "CHANNELS", "leasehold_client:*"+holder+"*")
		if channels, err := reply.AsStrSlice(); err != nil || time.Now().After(end) {
			t.Fatalf("the holder does not listen: %v", err)
		} else if len(channels) > 0 {
			break
		}
	}

	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	p := inTerminal(t, s)
	if err := unix.IoctlSetWinsize(int(p.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: 40}); err != nil {
		t.Fatal(err)
	}
	p.begin("PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"), "TZ=UTC", "NO_COLOR=")
	prompt := func(n int) {
		t.Helper()
		for end := time.Now().Add(promptly); strings.Count("\n"+p.stdout.String(), "\n$ ") < n; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no prompt, but %q", p.stdout)
			}
		}
	}
	prompt(1)
	p.types("leasehold ls\n")
	prompt(2)
	p.types("leasehold unlock orders:42 --reason 'stuck, ticket 815'\n")
	p.stdout.await(t, "[y/N] ")
	p.types("y\n")
	prompt(3)
	p.types("leasehold ls 'orders:*'\n")
	prompt(4)
	rows := screenOf(p.stdout.String())
	p.types("exit 0\n")
	p.ends(0)
	for _, job := range jobs {
		job.stdin.Close()
		job.wait()
	}
	return rows[:len(rows)-1] // without the last prompt
}

// columns is the width of the terminal.
const columns = 100

// glyph is a character on the screen, with its style.
type glyph struct {
	char  rune
	style string // codes of a terminal
}

// row is a row of the screen.
type row struct {
	glyphs []glyph
	more   bool // its line continues in the next row
}

var escape = regexp.MustCompile(`^\x1b\[([0-9;]*)([A-Za-z])`)

// screenOf returns the rows of a terminal that displays a text.
func screenOf(text string) (rows []row) {
	rows = []row{{}}
	at, style := 0, ""
	for text != "" {
		last := &rows[len(rows)-1]
		if code := escape.FindStringSubmatch(text); code != nil {
			switch text = text[len(code[0]):]; {
			case code[2] == "K":
				last.glyphs = last.glyphs[:min(at, len(last.glyphs))]
			case code[2] == "m" && code[1] == "0":
				style = ""
			case code[2] == "m":
				style += code[1] + " "
			}
			continue
		}
		c, n := utf8.DecodeRuneInString(text)
		text = text[n:]
		switch {
		case c == '\r':
			at = 0
			continue
		case c == '\n':
			rows, at = append(rows, row{}), 0
			continue
		case at == columns:
			last.more = true
			rows, at = append(rows, row{}), 0
			last = &rows[len(rows)-1]
		}
		last.glyphs = slices.Replace(last.glyphs, at, min(at+1, len(last.glyphs)), glyph{c, style})
		at++
	}
	return rows
}

// The measures of the picture, in pixels.
const (
	screenWidth, lineHeight, margin = 783, 19, 18 // of letters as wide as 13 pixels of a common monospace font
	titleBar                        = 34
)

// draw returns an SVG of a terminal with these rows. It has its own background, so it is readable on light and dark pages.
func draw(rows []row) []byte {
	var b bytes.Buffer
	width, height := screenWidth+2*margin, titleBar+len(rows)*lineHeight+margin
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="A terminal: leasehold ls lists the locks, unlock shows the holder and the waiters of orders:42 and removes the holder, and then the next process holds the lock" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="13">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect x="0.5" y="0.5" width="%d" height="%d" rx="8" fill="#161b22" stroke="#57606a"/>`+"\n", width-1, height-1)
	for i, colour := range []string{"#ff5f57", "#febc2e", "#28c840"} {
		fmt.Fprintf(&b, `<circle cx="%d" cy="18" r="6" fill="%s"/>`+"\n", 20+20*i, colour)
	}
	for i, r := range rows {
		class := ""
		if r.more {
			class = ` class="more"`
		}
		fmt.Fprintf(&b, `<text%s x="%d" y="%d" fill="#e6edf3" xml:space="preserve" style="white-space:pre">`, class, margin, titleBar+lineHeight*i+14)
		for rest := r.glyphs; len(rest) > 0; {
			n := slices.IndexFunc(rest, func(g glyph) bool { return g.style != rest[0].style })
			if n < 0 {
				n = len(rest)
			}
			var text strings.Builder
			for _, g := range rest[:n] {
				text.WriteRune(g.char)
			}
			looks := looksOf(rest[0].style)
			if strings.HasPrefix(text.String(), "$ ") {
				looks = ` fill="#79c0ff"` // what the user types
			}
			if looks != "" {
				fmt.Fprintf(&b, `<tspan%s>%s</tspan>`, looks, html.EscapeString(text.String()))
			} else {
				b.WriteString(html.EscapeString(text.String()))
			}
			rest = rest[n:]
		}
		b.WriteString("</text>\n")
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// looksOf returns the SVG attributes for codes of a terminal.
func looksOf(style string) (attributes string) {
	for _, code := range strings.Fields(style) {
		attributes += map[string]string{"1": ` font-weight="bold"`, "2": ` fill="#9198a1"`, "31": ` fill="#ff7b72"`, "32": ` fill="#56d364"`}[code]
	}
	return attributes
}

// varies has what differs between sessions.
var varies = []struct {
	what *regexp.Regexp
	is   string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}:\d+`), "OWNER"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`), "TIME"},
	{regexp.MustCompile(` run on [\w.-]+`), " run on HOST"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(ms|µs|s|m|h))+\b`), "DURATION"},
	{regexp.MustCompile(`\bpid \d+`), "pid N"},
	{regexp.MustCompile(`\b\d{10,}\b`), "N"},
	{regexp.MustCompile(` +`), " "},
}

// shape returns the lines of a picture, without what varies and without line wraps.
func shape(svg []byte) (lines []string, err error) {
	d := xml.NewDecoder(bytes.NewReader(svg))
	for more := false; ; {
		token, err := d.Token()
		switch e := token.(type) {
		case xml.StartElement:
			if e.Name.Local == "text" {
				if !more {
					lines = append(lines, "")
				}
				more = slices.ContainsFunc(e.Attr, func(a xml.Attr) bool { return a.Value == "more" })
			}
		case xml.CharData:
			if len(lines) > 0 {
				lines[len(lines)-1] += strings.TrimRight(string(e), "\n")
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	for i := range lines {
		for _, v := range varies {
			lines[i] = v.what.ReplaceAllString(lines[i], v.is)
		}
		lines[i] = strings.TrimSpace(lines[i])
	}
	if len(lines) == 0 {
		return nil, errors.New("it shows nothing")
	}
	return lines, nil
}
