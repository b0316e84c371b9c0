package fencehttp_test

import (
	"math/big"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/fence/fencehttp"
	"github.com/leasehold-go/leasehold/internal/fencetest"
)

// A header is a token if it consists of digits only, with a value from 1 to the largest 64-bit number. A request with
// anything else does not reach the handler.
func FuzzHeader(f *testing.F) {
	for _, s := range []string{"", "0", "1", "007", "+1", "-1", "1_0", "0x1", "1e3", "18446744073709551615", "18446744073709551616", "1, 1", " 1", "1\n", "١"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		want := new(big.Int)
		if header != "" && strings.Trim(header, "0123456789") == "" {
			want.SetString(header, 10)
		}
		fine := want.Sign() > 0 && want.IsUint64()
		r, w := httptest.NewRequest(http.MethodPut, "/", nil), httptest.NewRecorder()
		r.Header[fencehttp.Header] = []string{header}
		fencehttp.Handler(nil, tells).ServeHTTP(w, r)
		switch {
		case fine && (w.Code != http.StatusOK || w.Body.String() != strconv.FormatUint(want.Uint64(), 10)):
			t.Errorf("%q: %d %q", header, w.Code, w.Body)
		case !fine && w.Code != http.StatusBadRequest:
			t.Errorf("%q: %d %q, want 400", header, w.Code, w.Body)
		}
		err := fencehttp.FromResponse(&http.Response{StatusCode: http.StatusPreconditionFailed, Header: r.Header})
		if fine != (err != nil) {
			t.Errorf("%q in a response: %v", header, err)
		}
		if fine {
			fencetest.IsStale(t, header, err, 0, want.Uint64())
		}
	})
}
