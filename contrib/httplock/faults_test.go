package httplock_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/leasehold-go/leasehold/contrib/httplock"
	"github.com/leasehold-go/leasehold/internal/adaptertest"
	"github.com/leasehold-go/leasehold/lock"
)

// The response to a client of the server for each fault, and the errors passed to failed.
func TestFaults(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]func(func(*http.Request) lock.Locker, http.Handler, func(*http.Request, error), ...httplock.Option) http.Handler{
		"Handler":        httplock.Handler,
		"WaitingHandler": httplock.WaitingHandler,
	} {
		want := map[string]string{
			adaptertest.Free:         "200",
			adaptertest.Busy:         "409",
			adaptertest.Refused:      "503, Retry-After, told",
			adaptertest.Unresponsive: "503, Retry-After, told",
			adaptertest.ReadOnly:     "503, Retry-After, told",
			adaptertest.Denied:       "500, told",
			adaptertest.WrongType:    "500, told",
			adaptertest.BadName:      "400, told",
			adaptertest.Closed:       "503, Retry-After, told",
			adaptertest.Canceled:     "503, Retry-After", // no client reads it
			adaptertest.Deadline:     "503, Retry-After, told",
		}
		if name == "WaitingHandler" { // it waits as long as the request does; other tests cover the waits
			for _, fault := range []string{adaptertest.Busy, adaptertest.Refused, adaptertest.Unresponsive, adaptertest.ReadOnly} {
				want[fault] = adaptertest.None
			}
		}
		t.Run(name, func(t *testing.T) {
			adaptertest.Walk(t, want, func(t *testing.T, c adaptertest.Call) string {
				told := ""
				next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
				h := handler(func(*http.Request) lock.Locker { return c.Lock }, next, func(*http.Request, error) { told = ", told" })
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequestWithContext(c.Ctx, http.MethodPost, "/", nil))
				seen := fmt.Sprint(w.Code)
				if w.Header().Get("Retry-After") != "" {
					seen += ", Retry-After"
				}
				return seen + told
			})
		})
	}
}
