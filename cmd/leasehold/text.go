package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
)

// The words for owners, clients, times and numbers that the commands share.

// shown returns text from Redis in a form that is safe for a terminal. It quotes text with
// characters that could move the cursor or mislead a reader.
func shown(text string) string {
	odd := func(c rune) bool { return !unicode.IsPrint(c) || c == unicode.ReplacementChar }
	if text == "" || strings.ContainsFunc(text, odd) || strings.TrimSpace(text) != text || strings.HasPrefix(text, `"`) {
		return strconv.Quote(text)
	}
	return text
}

// brief describes a client in a cell of a table.
func brief(c lock.Client) string {
	if !c.Known() {
		return cmp.Or(maker(c.ID), "?") + " " + shown(c.ID)
	}
	return shown(c.Name) + " on " + shown(c.Host)
}

// maker returns "Redisson" for the UUID of a Redisson client, and otherwise "client". The UUIDs of
// leasehold have version 7.
func maker(id string) string {
	if len(id) > 14 && id[14] != '7' {
		return "Redisson"
	}
	return "client"
}

// whole describes a client in a sentence.
func whole(c lock.Client) string {
	if !c.Known() {
		return brief(c)
	}
	text := fmt.Sprintf("%s, pid %d", brief(c), c.PID)
	if c.Label != "" {
		text += ", " + shown(c.Label)
	}
	return text
}

// who describes an owner in a sentence, with the thread of a Redisson owner.
func who(owner string, c lock.Client) string {
	if _, thread, ok := strings.Cut(owner, ":"); ok && maker(c.ID) == "Redisson" {
		return whole(c) + ", thread " + shown(thread)
	}
	return whole(c)
}

// ago returns how long ago t was, or "-" if t is zero.
func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return short(max(time.Since(t), 0))
}

// left formats the remaining time of a lease.
func left(d time.Duration) string {
	if d < 0 {
		return "no expiry"
	}
	return short(d)
}

// short returns d in its two largest units.
func short(d time.Duration) string {
	switch {
	case d.Round(time.Millisecond) < time.Second:
		return d.Round(time.Millisecond).String()
	case d.Round(100*time.Millisecond) < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d.Round(time.Second) < time.Hour:
		d = d.Round(time.Second)
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d.Round(time.Minute) < 48*time.Hour:
		d = d.Round(time.Minute)
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	d = d.Round(time.Hour)
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// leaseLeft describes the lease of one of several holders.
func leaseLeft(lease time.Duration) string {
	switch {
	case lease == admin.UnknownLease:
		return "lease unknown"
	case lease < 0:
		return "no expiry"
	}
	return "lease " + left(lease) + " left"
}

// plural formats n with its noun.
func plural(n int64, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// role returns the noun for a holder.
func role(h lock.Holder) string {
	switch h.Mode {
	case lock.Read:
		return "reader"
	case lock.Write:
		return "writer"
	case lock.Worker:
		return "worker"
	}
	return "holder"
}

// since describes when h requested the lock.
func since(h lock.Holder) string {
	if h.Since.IsZero() {
		return "request time unknown"
	}
	text := fmt.Sprintf("requested %s ago, at %s", ago(h.Since), h.Since.Local().Format("2006-01-02 15:04:05 MST"))
	if h.Lingers {
		text = "in use, or kept idle (lingers); " + text
	}
	if h.Mode == lock.Worker { // a worker of a wait group does not wait
		return text
	}
	return text + " (includes the wait)"
}
