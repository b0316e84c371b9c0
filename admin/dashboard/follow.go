package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"time"
)

// followed is an event of the stream that a page follows.
type followed struct {
	Now  int64         `json:"now"`            // the server's time, in ms since 1970
	HTML template.HTML `json:"html,omitempty"` // the content of the page, if it has changed
}

// follow sends the content of a page whenever it changes, as server-sent events.
func (h *Handler) follow(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	name := q.Get("view")
	if _, ok := pages[name]; !ok {
		http.Error(w, "no such page", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	if r.Method == http.MethodHead {
		return
	}
	if h.streams.Add(1) > mostStreams {
		h.streams.Add(-1)
		w.Header().Set("Retry-After", "30")
		http.Error(w, fmt.Sprintf("too many open pages: %d", mostStreams), http.StatusServiceUnavailable)
		return
	}
	defer h.streams.Add(-1)
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Time{}) // a server can have a write timeout, and the first read can take longer
	ctx := context.WithValue(r.Context(), csrfKey{}, cookieOf(r))
	var sent template.HTML
	send := func() bool {
		content, _, err := h.content(ctx, name, q, true)
		if err != nil {
			return false // the browser reconnects
		}
		e := followed{Now: time.Now().UnixMilli()}
		if content != sent {
			e.HTML, sent = content, content
		}
		text, err := json.Marshal(e)
		if err == nil {
			// A browser that does not read must not keep the stream open.
			_ = control.SetWriteDeadline(time.Now().Add(mostTime))
			defer control.SetWriteDeadline(time.Time{})
			_, err = fmt.Fprintf(w, "data: %s\n\n", text)
		}
		return err == nil && control.Flush() == nil
	}
	if !send() {
		return
	}
	switch name {
	case "lock":
		h.detailOf(q.Get("name")).each(ctx, send)
	case "limits":
		h.limits.each(ctx, send)
	default:
		h.survey.each(ctx, send)
	}
}
