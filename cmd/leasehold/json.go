package main

import (
	"io"
	"time"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
)

// The JSON of locks, limiters, filters and clients. docs/operate/tool.md describes it.
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
		LeaseMS         *int64     `json:"lease_ms,omitempty"`          // of a holder; omitted without an expiry, and if it is unknown
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
		if left := l.HolderLease(h); left >= 0 {
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
