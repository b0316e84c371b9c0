package dashboard_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/admin/dashboard"
	"github.com/leasehold-go/leasehold/internal/redistest"
)

// json gets a path of /api, and decodes the response.
func (s *site) json(path string, want int) map[string]any {
	s.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(s.says(path, want)), &v); err != nil {
		s.Fatal(err)
	}
	return v
}

// until gets a path of /api until ok reports true.
func (s *site) until(path string, ok func(text string) bool) (text string) {
	s.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if text = s.says(path, 200); ok(text) {
			return text
		}
		if time.Now().After(end) {
			s.Fatalf("not in time: %s", text)
		}
	}
}

// The JSON of locks has these fields, supports the parameters of the page, and has no owner strings.
func TestAPI_locks(t *testing.T) {
	server := redistest.Start(t)
	s := serve(t, server.Client(t))
	c := billing(t, server.Client(t), "billing")
	h := mustLock(t, c.NewLock("orders:1"))
	defer func() { _ = h.Unlock(context.Background()) }()
	permit := mustLock(t, c.NewSemaphore("gpus", 4))
	defer func() { _ = permit.Unlock(context.Background()) }()
	election := mustLock(t, c.NewLock("leader"))
	defer func() { _ = election.Unlock(context.Background()) }()
	server.Do(t, "HSET", "leasehold_leader:{leader}", "token", "7", "value", "10.0.0.7", "since", "1764000000000")
	server.Do(t, "PEXPIRE", "leasehold_leader:{leader}", "600000")
	text := s.until("api/locks", func(text string) bool { return strings.Contains(text, `"name":"billing"`) })
	for _, part := range []string{`"complete":true`, `"scanned":1`, `"more":false`, `"missing":[]`, `"at":"`,
		`"name":"orders:1","kind":"plain","mode":"exclusive","lease_ms":`, `"holding":1,"waiting":0,"gone":0,"holders":[{"mode":"exclusive","count":1,"since":"`,
		`"client":{"name":"billing","host":"`, `"label":"zone=a"`, `"kind":"semaphore"`, `"permits":4,"free":3`,
		`"leader":{"value":"10.0.0.7","since":"2025-11-24T16:00:00Z","token":7}`} {
		if !strings.Contains(text, part) {
			t.Errorf("no %s in %s", part, text)
		}
	}
	for _, secret := range []string{h.Owner(), permit.Owner(), c.ID()} {
		if strings.Contains(text, secret) {
			t.Errorf("it tells %s", secret)
		}
	}
	for query, want := range map[string]int{"": 3, "?kind=plain": 2, "?q=GPUS": 1, "?q=billing": 3, "?q=nothing": 0} {
		if n := len(s.json("api/locks"+query, 200)["locks"].([]any)); n != want {
			t.Errorf("%q: %d locks, want %d", query, n, want)
		}
	}
}

// Two names that are not UTF-8 can look alike in JSON. Their bytes distinguish them.
func TestAPI_bytes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := serve(t, server.Client(t))
	c := billing(t, server.Client(t), "billing")
	for _, name := range []string{"a\xfe", "a\xff", "plain"} {
		mustLock(t, c.NewLock(name))
	}
	text := s.until("api/locks", func(text string) bool { return strings.Count(text, `"name":`) >= 3 })
	for _, part := range []string{`"name":"a\ufffd","name_base64":"Yf4=",`, `"name":"a\ufffd","name_base64":"Yf8=",`, `"name":"plain","kind":`} {
		if !strings.Contains(text, part) {
			t.Errorf("no %s in %s", part, text)
		}
	}
	if text := s.says("api/history?name=a%ff", 200, `"name_base64":"Yf8=",`); !strings.Contains(text, `"mode":"exclusive"`) {
		t.Errorf("%s", text)
	}
}

// The addresses of /api do not read the body of a request. They would store a large upload in a file.
func TestAPI_upload(t *testing.T) {
	h, err := dashboard.New(redistest.Start(t).Client(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/api/locks", "/api/history?name=orders:42"} {
		body := strings.NewReader("--b\r\nContent-Disposition: form-data; name=\"q\"; filename=\"q\"\r\n\r\nany\r\n--b--\r\n")
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, body)
		r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK || r.MultipartForm != nil {
			t.Errorf("%s: %d, and it has read %v", path, w.Code, r.MultipartForm)
		}
	}
}

// An error is in the JSON, with a status for it.
func TestAPI_fault(t *testing.T) {
	server := redistest.Start(t)
	s := serve(t, server.Client(t, server.AddUser(t, "nobody", "~*", "+ping")))
	if v := s.json("api/locks", 503); !strings.Contains(v["error"].(string), "NOPERM") {
		t.Errorf("%v", v)
	}
}

// The holds of earlier looks are on the page of the lock, and in the JSON. Nothing is recorded before the first look. Without a browser, only Record
// records.
func TestAPI_history(t *testing.T) {
	server := redistest.Start(t)
	s := serve(t, server.Client(t))
	c := billing(t, server.Client(t), "billing")
	if v := s.json("api/history?name=orders:1", 200); v["recorded_since"] != nil || len(v["holds"].([]any)) != 0 {
		t.Errorf("before the first look: %v", v)
	}
	first := mustLock(t, c.NewLock("orders:1"))
	look := func(part string) string {
		t.Helper()
		return s.until("api/history?name=orders:1", func(text string) bool {
			s.says("api/locks", 200)
			return strings.Contains(text, part)
		})
	}
	look(`"until":null`)
	if err := first.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	look(`"ended":"released"`)
	second := mustLock(t, billing(t, server.Client(t), "second").NewLock("orders:1"))
	text := look(`"before":false,"until":null`)
	for _, secret := range []string{first.Owner(), second.Owner(), c.ID()} {
		if strings.Contains(text, secret) {
			t.Errorf("it tells %s", secret)
		}
	}
	page := s.until("lock?name=orders:1", func(text string) bool { return strings.Contains(text, "Held in the last hour") })
	if strings.Contains(page, first.Owner()) || !strings.Contains(page, "released") {
		t.Errorf("%s", page)
	}
	a, err := admin.New(server.Client(t), admin.WithOperator("alice"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.ForceUnlock(t.Context(), "orders:1", "", ""); err != nil {
		t.Error(err)
	}
	look(`"ended":"force-unlocked by alice`) // without a page of the lock
	s.until("lock?name=orders:1", func(text string) bool {
		return strings.Contains(text, `<td data-label="Ended">force-unlocked by alice`)
	})
	if v := s.json("api/history?name=other", 200); v["recorded_since"] == nil || len(v["holds"].([]any)) != 0 {
		t.Errorf("another lock: %v", v)
	}
}

// Record reads the locks without a browser, until its context is canceled.
func TestRecord(t *testing.T) {
	server := redistest.Start(t)
	h, err := dashboard.New(server.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.Record(ctx)
	}()
	calls := func() bool {
		reply := server.Do(t, "INFO", "commandstats")
		text, err := reply.ToString()
		return err == nil && strings.Contains(text, "cmdstat_scan:")
	}
	for end := time.Now().Add(patience); !calls(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no look")
		}
	}
	cancel()
	<-done
}

// While keys are being scanned for the first time, the pages have what was found so far, and say so.
func TestPages_scanning(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t)
	const many = "for i = 1, 6000 do redis.call('SET', 'noise' .. i, i) end return 1"
	if err := rdb.Do(t.Context(), rdb.B().Eval().Script(many).Numkeys(0).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		server.Do(t, "HSET", "orders:"+string(rune('a'+i)), "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1", "1")
	}
	wire := redistest.NewProxy(t, server.Addr())
	wire.OnRequest(func(req [][]byte) redistest.Action {
		if strings.EqualFold(string(req[0]), "SCAN") {
			return redistest.Action{DelayReply: 60 * time.Millisecond}
		}
		return redistest.Action{}
	})
	s := serve(t, server.Client(t, redistest.Via(wire)))
	_, text := s.get("locks")
	if !strings.Contains(text, "Scanning:") || !strings.Contains(text, "of the keys so far") {
		t.Errorf("the first page does not say how far it is: %.3000s", text)
	}
	s.until("locks", func(text string) bool {
		return !strings.Contains(text, "Scanning:") && strings.Contains(text, "20 locks")
	})
	if text := s.says("", 200); strings.Contains(text, "is held by") {
		t.Error("the scan takes locks that it finds for new ones")
	}
}

// The lease of a killed holder expired: it did not release the lock, even if other holders still have a lease.
func TestAPI_historyBesideOthers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := serve(t, server.Client(t))
	c := billing(t, server.Client(t), "billing")
	mustLock(t, c.NewSemaphore("gpus", 4))
	mustLock(t, c.NewRWLock("rw").Read())
	if _, err := c.NewWaitGroup("group").Add(t.Context()); err != nil {
		t.Fatal(err)
	}
	const dead = "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:7"
	end := strconv.FormatInt(time.Now().Add(4*time.Second).UnixMilli(), 10)
	server.Do(t, "ZADD", "{gpus}:timeout", end, "abcdefghijklmnop")
	server.Do(t, "SET", "{rw}:"+dead+":rwlock_timeout:1", "1", "PX", "4000")
	server.Do(t, "HSET", "rw", dead, "1")
	server.Do(t, "ZADD", "leasehold_crew:{group}", end, dead)
	events := s.follow(t, "view=locks")
	await(t, events, func(html string) bool { return strings.Contains(html, "3 locks") })
	for _, name := range []string{"gpus", "rw", "group"} {
		text := s.until("api/history?name="+name, func(text string) bool { return strings.Contains(text, `"ended":`) })
		if !strings.Contains(text, `"ended":"lease expired"`) || strings.Contains(text, "released") {
			t.Errorf("%s: %s", name, text)
		}
	}
}
