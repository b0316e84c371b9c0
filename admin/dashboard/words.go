package dashboard

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/leasehold-go/leasehold/lock"
)

// shown returns a text of an application for display. It quotes a text that is empty or has invisible characters.
func shown(text string) string {
	odd := func(c rune) bool { return !unicode.IsPrint(c) || c == unicode.ReplacementChar }
	if text == "" || strings.ContainsFunc(text, odd) || strings.TrimSpace(text) != text {
		return strconv.Quote(text)
	}
	return text
}

// clientName returns how a client is named in a sentence; the UUID is left out if the client has a name.
func clientName(c lock.Client) string {
	switch {
	case c.Known():
		return shown(c.Name) + " on " + shown(c.Host)
	case c.ID == "":
		return "a client"
	case redissons(c):
		return "Redisson " + shortID(c.ID)
	}
	return "client " + shortID(c.ID)
}

// redissons reports whether c is a client of Redisson: the UUIDs of leasehold have version 7.
func redissons(c lock.Client) bool { return len(c.ID) > 14 && c.ID[14] != '7' }

// shortID returns the beginning and the end of a UUID, which are enough to tell clients apart.
func shortID(id string) string {
	if len(id) < 20 {
		return shown(id)
	}
	return shown(id[:8] + "…" + id[len(id)-6:])
}

func lockURL(name string) string { return "./lock?name=" + url.QueryEscape(name) }

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return group(n) + " " + word + "s"
}

// group returns n with commas between the thousands.
func group(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// short formats d with its two largest units. The script of the page has the same function.
func short(d time.Duration) string {
	switch s := int64(max(d, 0) / time.Second); {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", max(d, 0).Seconds())
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm %02ds", s/60, s%60)
	case s < 48*3600:
		return fmt.Sprintf("%dh %02dm", s/3600, s%3600/60)
	default:
		return fmt.Sprintf("%dd %02dh", s/86400, s%86400/3600)
	}
}

// age is the time since which a state has lasted. Text is empty if the script of the page counts it.
type age struct {
	Since int64 // ms since 1970; 0 if unknown
	Text  string
	Exact string
}

func ageOf(t time.Time, live bool) age {
	if t.IsZero() {
		return age{}
	}
	a := age{Since: t.UnixMilli(), Exact: t.UTC().Format("2006-01-02 15:04:05 UTC")}
	if !live {
		a.Text = short(time.Since(t))
	}
	return a
}

// lease is the remaining time of a lease, with a bar. Text is empty if the script of the page counts it.
type lease struct {
	Until, Full int64 // ms since 1970, and ms; Until is 0 without an expiry
	Left        int64 // ms
	Text, Level string
}

func leaseOf(s span, live bool) lease {
	if s.until.IsZero() {
		return lease{}
	}
	l := lease{Until: s.until.UnixMilli(), Full: s.full.Milliseconds()}
	if !live {
		left := max(time.Until(s.until), 0)
		l.Left, l.Text, l.Level = left.Milliseconds(), short(left), level(left, s.full)
	}
	return l
}

// level returns the style of a bar. A lease that is renewed does not stay below two thirds for long.
func level(left, full time.Duration) string {
	switch {
	case left < full/4:
		return "low"
	case left < full*55/100:
		return "late"
	}
	return "good"
}

// quoted returns a word quoted for a shell.
func quoted(word string) string {
	odd := func(c rune) bool { return !unicode.IsPrint(c) || c == unicode.ReplacementChar } // which also stands for invalid UTF-8
	if strings.ContainsFunc(word, odd) {
		q := strconv.QuoteToASCII(word)
		return "$'" + strings.ReplaceAll(strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`), "'", `\'`) + "'"
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// cut removes the middle of a text that has more than most characters.
func cut(text string, most int) string {
	letters := []rune(text)
	if len(letters) <= most {
		return text
	}
	half := (most - 1) / 2
	return string(letters[:most-1-half]) + "…" + string(letters[len(letters)-half:])
}
