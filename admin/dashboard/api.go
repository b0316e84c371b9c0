package dashboard

import (
	"encoding/json"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
)

// The JSON of /api. The field names are those of leasehold ls -o json. Like the pages, it has no owner strings. It also has no client
// IDs, because they are a part of owner strings.
type (
	apiList struct {
		At       time.Time `json:"at"`
		Complete bool      `json:"complete"` // all keys have been scanned at least once
		Scanned  float64   `json:"scanned"`  // share of the keys that the current pass has scanned
		More     bool      `json:"more"`     // there are more locks than the list has
		Missing  []string  `json:"missing"`  // the primaries of a cluster that do not respond
		Error    string    `json:"error,omitempty"`
		Locks    []apiLock `json:"locks"`
	}
	apiLock struct {
		Name    string      `json:"name"`
		Bytes   []byte      `json:"name_base64,omitempty"` // set if the name is not UTF-8: in JSON, such names can look alike
		Kind    string      `json:"kind"`
		Mode    string      `json:"mode,omitempty"`
		LeaseMS *int64      `json:"lease_ms"` // null without an expiry
		Holding int         `json:"holding"`
		Waiting int         `json:"waiting"`
		Gone    int         `json:"gone"`
		Holders []apiHolder `json:"holders"`
		Left    int64       `json:"left,omitempty"`
		Done    int         `json:"done,omitempty"`
		Lost    []apiHolder `json:"lost,omitempty"`
		Permits *int64      `json:"permits,omitempty"`
		Free    *int64      `json:"free,omitempty"`
		Leader  *apiLeader  `json:"leader,omitempty"`
	}
	apiHolder struct {
		Mode    string     `json:"mode,omitempty"`
		Count   int        `json:"count,omitempty"`
		Since   *time.Time `json:"since"`
		LeaseMS *int64     `json:"lease_ms,omitempty"` // omitted without an expiry, and if it is unknown
		Lingers bool       `json:"lingers,omitempty"`  // it is in use, or kept idle
		Client  apiClient  `json:"client"`
	}
	apiLeader struct {
		Value string    `json:"value"`
		Since time.Time `json:"since"`
		Token uint64    `json:"token,omitempty"`
	}
	apiClient struct {
		Name    string     `json:"name,omitempty"`
		Host    string     `json:"host,omitempty"`
		PID     int        `json:"pid,omitempty"`
		Label   string     `json:"label,omitempty"`
		Version string     `json:"version,omitempty"`
		Started *time.Time `json:"started,omitempty"`
	}
	apiPast struct {
		Name     string     `json:"name"`
		Bytes    []byte     `json:"name_base64,omitempty"` // as in apiLock
		Recorded *time.Time `json:"recorded_since"`        // null if nothing has been recorded yet
		Holds    []apiHold  `json:"holds"`                 // the latest first
	}
	apiHold struct {
		Mode   string     `json:"mode"`
		Asked  *time.Time `json:"asked"`
		From   time.Time  `json:"from"`
		Before bool       `json:"before"` // it may have begun before From
		Until  *time.Time `json:"until"`  // null while it is held
		HeldMS int64      `json:"held_ms"`
		Ended  string     `json:"ended,omitempty"`
		Client apiClient  `json:"client"`
	}
)

// instant returns t in UTC, or nil if t is zero.
func instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// bytesOf returns the bytes of a name that is not UTF-8, and nil for any other.
func bytesOf(name string) []byte {
	if utf8.ValidString(name) {
		return nil
	}
	return []byte(name)
}

func apiClientOf(c lock.Client) apiClient {
	return apiClient{Name: c.Name, Host: c.Host, PID: c.PID, Label: c.Label, Version: c.Version, Started: instant(c.Started)}
}

func apiHoldersOf(all []lock.Holder) []apiHolder {
	holders := make([]apiHolder, 0, len(all))
	for _, h := range all {
		holders = append(holders, apiHolder{Mode: string(h.Mode), Count: h.Count, Since: instant(h.Since), Lingers: h.Lingers, Client: apiClientOf(h.Client)})
	}
	return holders
}

func milliseconds(d time.Duration) *int64 {
	ms := d.Milliseconds()
	return &ms
}

func apiLockOf(l admin.Lock) apiLock {
	j := apiLock{Name: l.Name, Bytes: bytesOf(l.Name), Kind: string(l.Kind), Mode: string(l.Mode), Holding: l.Holding, Waiting: l.Waiting, Gone: l.Gone, Holders: apiHoldersOf(l.Holders), Left: l.Left, Done: l.Done}
	if l.Locked() && l.Lease >= 0 {
		j.LeaseMS = milliseconds(l.Lease)
	}
	for i, h := range l.Holders {
		if left := l.HolderLease(h); left >= 0 {
			j.Holders[i].LeaseMS = milliseconds(left)
		}
	}
	if len(l.Lost) > 0 {
		j.Lost = apiHoldersOf(l.Lost)
	}
	if l.Kind == admin.Semaphore {
		j.Permits, j.Free = &l.Permits, &l.Free
	}
	if leads(l) {
		j.Leader = &apiLeader{Value: l.Leader.Value, Since: l.Leader.Since.UTC(), Token: l.Leader.Token}
	}
	return j
}

// apiLocks serves the locks as JSON.
func (h *Handler) apiLocks(w http.ResponseWriter, r *http.Request) {
	s, err := h.survey.get(r.Context())
	if err != nil {
		return // the caller has disconnected
	}
	list := apiList{At: s.at.UTC(), Complete: s.complete, Scanned: s.scanned, More: s.more, Missing: []string{}, Locks: []apiLock{}}
	for _, m := range s.missing {
		list.Missing = append(list.Missing, m.Server)
	}
	if s.err != nil {
		list.Error = s.err.Error()
	}
	q := r.URL.Query() // not FormValue, which would also read an upload, and write a large one to a file
	matches := matching(q.Get("q"))
	for _, l := range s.locks {
		if matches(l.Lock) && ofKind(l.Lock, q.Get("kind")) {
			list.Locks = append(list.Locks, apiLockOf(l.Lock))
		}
	}
	writeJSON(w, statusOf(s.err, len(s.locks)), list)
}

// apiHistory serves the holds of a lock in the last hour as JSON.
func (h *Handler) apiHistory(w http.ResponseWriter, r *http.Request) {
	if !h.history.since().IsZero() {
		_, _ = h.detailOf(r.URL.Query().Get("name")).get(r.Context()) // its audit record shows which holds were force-unlocked
	}
	now := time.Now()
	name := r.URL.Query().Get("name")
	past := apiPast{Name: name, Bytes: bytesOf(name), Recorded: instant(h.history.since()), Holds: []apiHold{}}
	for _, p := range h.history.of(past.Name, now) {
		past.Holds = append(past.Holds, apiHold{Mode: string(p.mode), Asked: instant(p.asked), From: p.from.UTC(), Before: p.before, Until: instant(p.ended),
			HeldMS: p.lasted(now).Milliseconds(), Ended: p.how, Client: apiClientOf(p.client)})
	}
	writeJSON(w, http.StatusOK, past)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller may have disconnected
}
