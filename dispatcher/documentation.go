package dispatcher

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"sync"
	"time"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/dispatcher/openapi"
)

// documentation serves the description of the API: for programs at
// /openapi.json and for people at /docs. It is the same for every caller, so
// nobody is asked who they are. It is made when it is asked for first.
func (a *api) documentation(mux *http.ServeMux, dialects []dialect.Dialect) {
	described := sync.OnceValues(func() (*openapi.API, error) { return openapi.New(dialects, a.cfg.Version) })
	a.document(mux, "GET /openapi.json", "application/json", func() ([]byte, error) {
		api, err := described()
		if err != nil {
			return nil, err
		}
		return api.JSON()
	})
	a.document(mux, "GET /docs", "text/html; charset=utf-8", func() ([]byte, error) {
		api, err := described()
		if err != nil {
			return nil, err
		}
		return api.Page()
	})
}

// document serves what is made once. Caches keep it and ask each time whether
// it is still the same, which after an upgrade it may not be.
func (a *api) document(mux *http.ServeMux, pattern, contentType string, produce func() ([]byte, error)) {
	once := sync.OnceValues(produce)
	tag := sync.OnceValue(func() string {
		text, _ := once()
		sum := sha256.Sum256(text)
		return `"` + hex.EncodeToString(sum[:16]) + `"`
	})
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		text, err := once()
		if err != nil {
			a.log.WithError(err).Error("OpenAPI document not generated")
			plain(w, http.StatusInternalServerError, "the API cannot be described; see the log")
			return
		}
		header := w.Header()
		header.Set("Content-Type", contentType)
		header.Set("ETag", tag())
		header.Set("Cache-Control", "no-cache")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Content-Security-Policy", openapi.PagePolicy())
		header.Set("Referrer-Policy", "no-referrer")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
	})
}
