package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
)

// The code that the commands for operators share: ls, inspect, clients, unlock, watch.

// operate connects, and calls f with an admin.
func (c *connection) operate(ctx context.Context, f func(*admin.Admin, rueidis.Client) error, opts ...admin.Option) error {
	address, err := c.address()
	if err != nil {
		return err
	}
	rdb, err := c.dial(ctx, address)
	if err != nil {
		return err
	}
	defer rdb.Close()
	a, err := admin.New(rdb, opts...)
	if err != nil {
		return usage(err)
	}
	return f(a, rdb)
}

// replica returns a warning if the server is a replica, or "". A replica that has lost its primary shows a lock as free as soon as the
// last lease that it received has expired.
func (c *connection) replica(ctx context.Context, rdb rueidis.Client) string {
	if rdb.Mode() == rueidis.ClientModeCluster { // then commands go to the primaries
		return ""
	}
	role, err := rdb.Do(ctx, rdb.B().Role().Build()).ToArray()
	if err != nil || len(role) == 0 { // the commands that follow report what is wrong
		return ""
	}
	if name, _ := role[0].ToString(); name != "slave" {
		return ""
	}
	return fmt.Sprintf("%s is a replica, which can show a held lock as free: connect to the primary, or via Sentinel (?master_set=NAME)", c.server())
}

// warnOfReplica writes that warning to stderr.
func (c *connection) warnOfReplica(ctx context.Context, rdb rueidis.Client, stderr io.Writer) {
	if text := c.replica(ctx, rdb); text != "" {
		fmt.Fprintln(stderr, "leasehold:", text)
	}
}

// completeNames completes a name with the names in Redis: of all locks, or of these kinds, in which "" stands for all locks.
func (c *connection) completeNames(cmd *cobra.Command, args []string, begin string, kinds ...admin.Kind) (names []string, _ cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.Name() != "watch" {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second) // the user is waiting
	defer cancel()
	if kinds == nil {
		kinds = []admin.Kind{""}
	}
	_ = c.operate(ctx, func(a *admin.Admin, _ rueidis.Client) error { // a shell shows no errors
		for _, kind := range kinds {
			for l, err := range a.Locks(ctx, admin.Query{Match: admin.Prefix(begin), Idle: true, Kind: kind}) {
				if err != nil || len(names) == 1000 {
					return err
				}
				if shown(l.Name) != l.Name { // a shell would change the name, or its cursor would move
					continue
				}
				stands := stateOf(l)
				if !unheld(l.Kind) {
					_, stands = holderOf(l)
				}
				names = append(names, l.Name+"\t"+kindOf(l)+", "+stands)
			}
		}
		return nil
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

// The JSON of these commands. docs/operate/tool.md describes it.
type (
	lockJSON struct {
		Name          string                   `json:"name"`
		NameBytes     []byte                   `json:"name_base64,omitempty"` // see bytesOf
		Kind          string                   `json:"kind,omitempty"`        // empty if it is free
		Mode          string                   `json:"mode,omitempty"`
		LeaseMS       *int64                   `json:"lease_ms"` // null without an expiry, and if it is free
		Holding       int                      `json:"holding"`
		Waiting       int                      `json:"waiting"`
		Gone          int                      `json:"gone,omitempty"` // number of waiters of a plain lock whose clients have no entry
		Holders       []ownerJSON              `json:"holders"`
		Waiters       []ownerJSON              `json:"waiters,omitempty"`
		Left          int64                    `json:"left,omitempty"`   // the count of a latch
		Done          int                      `json:"done,omitempty"`   // number of workers of a wait group that are done
		Lost          []ownerJSON              `json:"lost,omitempty"`   // the lost workers of a wait group
		Leader        *leaderJSON              `json:"leader,omitempty"` // the leader value
		Limit         *limitJSON               `json:"limit,omitempty"`
		RedissonLimit *redissonLimitJSON       `json:"redisson_limit,omitempty"`
		Filter        *filterJSON              `json:"filter,omitempty"`
		Ambiguous     string                   `json:"ambiguous,omitempty"`
		Token         uint64                   `json:"token,omitempty"`
		HighestToken  uint64                   `json:"highest_token,omitempty"`
		Permits       *int64                   `json:"permits,omitempty"` // of a semaphore
		Free          *int64                   `json:"free,omitempty"`
		ForceUnlock   *admin.ForceUnlockRecord `json:"force_unlock,omitempty"`
	}
	ownerJSON struct {
		Owner           string     `json:"owner"`
		Mode            string     `json:"mode,omitempty"`
		Count           int        `json:"count,omitempty"`
		Since           *time.Time `json:"since"`                       // time of the request; null if unknown
		LeaseMS         *int64     `json:"lease_ms,omitempty"`          // of a holder; omitted without an expiry, and if a list has only some readers
		WaiterTimeoutMS *int64     `json:"waiter_timeout_ms,omitempty"` // of a waiter that must retry to keep its place
		Gone            bool       `json:"gone,omitempty"`              // of a waiter whose client has no entry
		Lingers         bool       `json:"lingers,omitempty"`           // of a holder whose client may keep the lock idle
		Client          clientJSON `json:"client"`
	}
	leaderJSON struct {
		Value  string    `json:"value"`
		Since  time.Time `json:"since"`
		Token  uint64    `json:"token,omitempty"`
		LeftMS int64     `json:"left_ms,omitempty"` // only from inspect
	}
	limitJSON struct {
		Usage   []usageJSON `json:"usage"`
		AheadMS int64       `json:"ahead_ms"` // time until the turn of the last waiter
		ResetMS int64       `json:"reset_ms"`
		Left    *int64      `json:"left,omitempty"` // Left and NextMS are set only with --limit
		NextMS  *int64      `json:"next_ms,omitempty"`
	}
	usageJSON struct {
		FullMS *int64 `json:"full_ms,omitempty"`
		Used   *int64 `json:"used,omitempty"` // of an aligned limit
		EndMS  *int64 `json:"end_ms,omitempty"`
	}
	redissonLimitJSON struct {
		Rate      int64  `json:"rate"`
		PerMS     int64  `json:"per_ms"`
		PerClient bool   `json:"per_client,omitempty"`
		Left      *int64 `json:"left,omitempty"` // Left, NextMS and ResetMS are omitted if PerClient is set
		NextMS    *int64 `json:"next_ms,omitempty"`
		ResetMS   *int64 `json:"reset_ms,omitempty"`
	}
	filterJSON struct {
		Size           uint64  `json:"size"`
		Hashes         uint64  `json:"hashes"`
		Expected       uint64  `json:"expected"`
		Probability    float64 `json:"probability"`
		Elements       int64   `json:"elements"`
		FalsePositives float64 `json:"false_positives"`
		Fill           float64 `json:"fill"`
		Exact          bool    `json:"exact"`
		Bytes          int64   `json:"bytes,omitempty"` // only from inspect
		Shards         int     `json:"shards,omitempty"`
		Missing        int     `json:"missing,omitempty"`
		OneOf          int     `json:"one_of,omitempty"`
	}
	clientJSON struct {
		ID      string     `json:"id"`
		Name    string     `json:"name,omitempty"`
		Host    string     `json:"host,omitempty"`
		PID     int        `json:"pid,omitempty"`
		Label   string     `json:"label,omitempty"`
		Version string     `json:"version,omitempty"`
		Started *time.Time `json:"started,omitempty"`
	}
)

func toJSON(l admin.Lock) lockJSON {
	j := lockJSON{Name: l.Name, NameBytes: bytesOf(l.Name), Kind: string(l.Kind), Mode: string(l.Mode), Holding: l.Holding, Waiting: l.Waiting, Gone: l.Gone, Holders: []ownerJSON{}, Left: l.Left, Done: l.Done, Token: l.Token, HighestToken: l.HighestToken, ForceUnlock: l.ForceUnlock}
	if s := l.Leader; s != nil {
		j.Leader = &leaderJSON{Value: s.Value, Since: s.Since.UTC(), Token: s.Token, LeftMS: s.Left.Milliseconds()}
	}
	j.Ambiguous = l.Ambiguous
	if s := l.Limit; s != nil {
		j.Limit = &limitJSON{Usage: []usageJSON{}, AheadMS: s.Ahead.Milliseconds(), ResetMS: s.Reset.Milliseconds()}
		for _, o := range s.Usage {
			if o.Aligned {
				j.Limit.Usage = append(j.Limit.Usage, usageJSON{Used: &o.Used, EndMS: milliseconds(o.End)})
			} else {
				j.Limit.Usage = append(j.Limit.Usage, usageJSON{FullMS: milliseconds(o.Full)})
			}
		}
	}
	if s := l.RedissonLimit; s != nil {
		j.RedissonLimit = &redissonLimitJSON{Rate: s.Rate, PerMS: s.Per.Milliseconds(), PerClient: s.PerClient}
		if !s.PerClient {
			j.RedissonLimit.Left, j.RedissonLimit.NextMS, j.RedissonLimit.ResetMS = &s.Left, milliseconds(s.Next), milliseconds(s.Reset)
		}
	}
	if f := l.Filter; f != nil {
		j.Filter = &filterJSON{Size: f.Size, Hashes: f.Hashes, Expected: f.Expected, Probability: f.P, Elements: f.Elements(), FalsePositives: f.FalsePositives(),
			Fill: f.Fill, Exact: f.Exact, Bytes: f.Bytes, Shards: f.Shards, Missing: f.Missing, OneOf: f.OneOf}
	}
	if l.Kind == admin.Semaphore {
		j.Permits, j.Free = &l.Permits, &l.Free
	}
	if l.Locked() && l.Lease >= 0 {
		j.LeaseMS = milliseconds(l.Lease)
	}
	for _, h := range l.Holders {
		o := ownerJSON{Owner: h.Owner, Mode: string(h.Mode), Count: h.Count, Since: instant(h.Since), Lingers: h.Lingers, Client: clientToJSON(h.Client)}
		if left := l.HolderLease(h); left >= 0 && l.Holding <= len(l.Holders) {
			o.LeaseMS = milliseconds(left)
		}
		j.Holders = append(j.Holders, o)
	}
	for _, h := range l.Lost {
		j.Lost = append(j.Lost, ownerJSON{Owner: h.Owner, Mode: string(h.Mode), Since: instant(h.Since), Client: clientToJSON(h.Client)})
	}
	for _, w := range l.Waiters {
		o := ownerJSON{Owner: w.Owner, Gone: l.IsGone(w), Since: instant(w.Since), Client: clientToJSON(w.Client)}
		if w.WaiterTimeout >= 0 {
			o.WaiterTimeoutMS = milliseconds(w.WaiterTimeout)
		}
		j.Waiters = append(j.Waiters, o)
	}
	return j
}

func clientToJSON(c lock.Client) clientJSON {
	return clientJSON{ID: c.ID, Name: c.Name, Host: c.Host, PID: c.PID, Label: c.Label, Version: c.Version, Started: instant(c.Started)}
}

// bytesOf returns the bytes of a name that is not UTF-8: in JSON, such names can look alike. It returns nil for any other name.
func bytesOf(name string) []byte {
	if utf8.ValidString(name) {
		return nil
	}
	return []byte(name)
}

// instant returns t in UTC, or nil if t is zero.
func instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func milliseconds(d time.Duration) *int64 {
	ms := d.Milliseconds()
	return &ms
}

// jsonLine writes v as one line of JSON.
func jsonLine(w io.Writer, v any) error { return encode(w, v, "") }

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
