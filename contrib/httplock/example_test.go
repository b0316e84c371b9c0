package httplock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/httplock"
	"github.com/leasehold-go/leasehold/lock"
)

// One payment of an order at a time, in all replicas of the service.
func ExampleHandler() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	pay := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 3 {
			if r.Context().Err() != nil { // the client went away, or the lock was lost
				return
			}
			// … one step of the payment
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/payment", httplock.Handler(
		func(r *http.Request) lock.Locker { return c.NewLock("orders:" + r.PathValue("id")) },
		pay,
		func(r *http.Request, err error) { log.Print(r.URL.Path, ": ", err) },
	))
	server := httptest.NewServer(mux)
	defer server.Close()

	post := func() {
		resp, err := http.Post(server.URL+"/orders/42/payment", "", nil)
		if err != nil {
			log.Print(err)
			return
		}
		resp.Body.Close()
		fmt.Println(resp.Status)
	}
	post()
	err = lock.Do(ctx, c.NewLock("orders:42"), func(context.Context) error { // as another request would
		post()
		return nil
	})
	if err != nil {
		log.Print(err)
	}
	// Output:
	// 204 No Content
	// 409 Conflict
}

// Errors as JSON, in the format of the service's API.
func ExampleWithErrorResponse() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	asJSON := func(w http.ResponseWriter, r *http.Request, status int, err error) {
		code := "internal"
		switch {
		case errors.Is(err, lock.ErrNotAcquired):
			code = "order_busy"
		case errors.Is(err, lock.ErrUnavailable):
			code = "try_again"
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": code})
	}
	handler := httplock.Handler(
		func(r *http.Request) lock.Locker { return c.NewLock("orders:43") },
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}),
		nil,
		httplock.WithErrorResponse(asJSON),
	)
	err = lock.Do(ctx, c.NewLock("orders:43"), func(context.Context) error { // as another request would
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders/43/payment", nil))
		fmt.Print(w.Code, " ", w.Body)
		return nil
	})
	if err != nil {
		log.Print(err)
	}
	// Output: 409 {"error":"order_busy"}
}
