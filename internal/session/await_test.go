package session

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// shared returns a session, and its client, which others use as well. Its only connection
// leads through the wire.
func (w *world) shared() (*Session, rueidis.Client) {
	rdb := w.mini.Client(w, redistest.Via(w.wire), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })
	s := New(rdb, testConfig())
	w.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			w.Error(err)
		}
	})
	return s, rdb
}

// The application's own command gives up, and the client library closes the connection
// with its error for all who wait there. That is no time-out of ours.
func TestInline_timeoutOfAnother(t *testing.T) {
	inBubble(t, func(w *world) {
		s, rdb := w.shared()
		h := w.lock(s, context.Background())
		w.wire.OnRequest(redistest.Once("GET", redistest.Action{DelayReply: time.Minute}))
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		go rdb.Do(ctx, rdb.B().Get().Key("x").Build())
		synctest.Wait()
		start := time.Now()
		if err := h.Unlock(context.Background()); err != nil {
			w.Errorf("Unlock: %v after %v, want that it is sent again", err, time.Since(start))
		}
		if keys := w.mini.Keys(); len(keys) != 0 {
			w.Errorf("left: %q", keys)
		}
	})
}
