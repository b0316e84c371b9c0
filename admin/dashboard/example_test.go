package dashboard_test

import (
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"

	"github.com/leasehold-go/leasehold/admin/dashboard"
	"github.com/redis/rueidis"
)

// Serve the pages behind your own authentication, which names the operator.
func ExampleHandler() {
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	operator := func(r *http.Request) string { // set by your authentication
		user, _, _ := r.BasicAuth()
		return user
	}
	pages, err := dashboard.New(rdb, dashboard.WithForceUnlock(operator), dashboard.WithLogger(slog.Default()))
	if err != nil {
		log.Print(err)
		return
	}
	auth := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, password, ok := r.BasicAuth(); !ok || user != "alice" || password != "secret" {
				http.Error(w, "who are you?", http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	mux := http.NewServeMux()
	mux.Handle("/leasehold/", http.StripPrefix("/leasehold", auth(pages)))

	for _, user := range []string{"mallory", "alice"} {
		r := httptest.NewRequest(http.MethodGet, "/leasehold/", nil)
		r.SetBasicAuth(user, "secret")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(user, w.Code)
	}
	// Output:
	// mallory 401
	// alice 200
}
