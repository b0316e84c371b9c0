package fencehttp_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/fence/fencehttp"
)

// A service stores the largest token of each account, and its client sends a token.
func ExampleHandler() {
	var marks fence.Marks
	mux := http.NewServeMux()
	mux.Handle("PUT /accounts/{id}", fencehttp.Handler(
		func(r *http.Request, token uint64) error { return marks.Of(r.PathValue("id")).Check(token) },
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// A newer holder may have written since the check: check again in the same step as
			// the write.
			err := marks.Of(r.PathValue("id")).Do(fencehttp.FromContext(r.Context()), func() error { return nil })
			if !fencehttp.WriteError(w, err) {
				fmt.Fprint(w, "saved")
			}
		})))
	server := httptest.NewServer(mux)
	defer server.Close()

	for _, token := range []uint64{1795225388576200, 1795225388576199} { // as from Hold.Token
		r, err := http.NewRequest(http.MethodPut, server.URL+"/accounts/1", nil)
		if err != nil {
			log.Print(err)
			return
		}
		if err := fencehttp.SetHeader(r.Header, token); err != nil {
			log.Print(err)
			return
		}
		resp, err := server.Client().Do(r)
		if err != nil {
			log.Print(err)
			return
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err := fencehttp.FromResponse(resp); errors.Is(err, fence.ErrStale) {
			fmt.Println(resp.Status, err)
		} else {
			fmt.Println(resp.Status, string(body))
		}
	}
	// Output:
	// 200 OK saved
	// 412 Precondition Failed leasehold: fence: stale fencing token 1795225388576199: highest token seen is 1795225388576200
}
