// Package web is the console: pages for operators at /ui/ of a dispatcher.
//
// The console reads and changes nothing by itself. Each page and each button calls the native API in the
// same process, with the credentials of the viewer, so that a viewer can do exactly what the API
// permits. Pages are complete without scripts. A script opens a page a second time as a stream of
// server-sent events, and replaces what has changed.
//
// console.go has the routes, session.go the sign-in, page.go the requests for pages, live.go the
// streams, and the other files one page or a few each.
package web

import (
	"context"
	"crypto/rand"
	"embed"
	"io/fs"
	"net/http"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
)

//go:embed static
var static embed.FS

// Prefix is the path of all pages.
const Prefix = "/ui/"

// Config configures a console. API and Log are required.
type Config struct {
	// API serves the native API, the paths /v1/... and /readyz.
	API http.Handler
	// Key encrypts sessions; it has [KeySize] bytes. Consoles behind one address need the same key. If
	// it is nil, the key is random and viewers sign in again after a restart.
	Key []byte
	Log logrus.FieldLogger
}

// Console serves the pages. Create it with [New].
type Console struct {
	api      http.Handler
	log      logrus.FieldLogger
	sessions *sessions
	texts    []*language
	surveys  surveys
	streams  chan struct{}   // limits the open streams
	life     context.Context //nolint:containedctx // the life of the console
	end      context.CancelFunc
	open     sync.WaitGroup // streams and surveys
	handler  http.Handler
	failure  *page // shows errors
}

// maxStreams is the maximum number of open streams of a console. Each one reads its page once a second.
const maxStreams = 256

// New returns a console. It returns an error for a key of another size.
func New(cfg Config) (*Console, error) {
	key := cfg.Key
	if key == nil {
		key = make([]byte, KeySize)
		_, _ = rand.Read(key) // never fails
	}
	sessions, err := newSessions(key)
	if err != nil {
		return nil, err
	}
	own, err := content()
	if err != nil {
		return nil, err
	}
	c := &Console{
		api: cfg.API, log: cfg.Log.WithField("component", "console"), sessions: sessions, texts: own.texts, failure: own.failure,
		streams: make(chan struct{}, maxStreams),
	}
	c.surveys.console = c
	c.life, c.end = context.WithCancel(context.Background())
	c.handler, err = c.routes(own.pages)
	return c, err
}

// Stop ends all streams, and does not wait for them.
func (c *Console) Stop() { c.end() }

// Wait waits for the end of all streams; call it after Stop and after the end of all requests.
func (c *Console) Wait() { c.open.Wait() }

func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.handler.ServeHTTP(w, r) }

// routes returns the handler of all pages, buttons and files.
func (c *Console) routes(pages []page) (http.Handler, error) {
	files, err := fs.Sub(static, "static")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	for i := range pages {
		p := &pages[i]
		mux.Handle("GET "+Prefix+p.path, c.page(p))
		if p.form != "" {
			mux.Handle("POST "+Prefix+p.form, c.page(p))
		}
	}
	for path, do := range buttons() {
		mux.Handle("POST "+Prefix+path, c.button(do))
	}
	mux.HandleFunc("POST "+Prefix+"signin", c.signIn)
	mux.HandleFunc("POST "+Prefix+"signout", c.signOut)
	mux.HandleFunc("POST "+Prefix+"language", c.setLanguage)
	at := Prefix + "static/" + fileVersion + "/"
	mux.Handle("GET "+at, http.StripPrefix(at, cached(http.FileServerFS(files))))
	return secured(mux), nil
}

// contentPolicy permits the console's own scripts, styles and streams, and nothing else. In
// particular it permits no script and no style in a page.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// secured sets the headers with which browsers defend a page.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// cached permits caches to store files: a changed file has another address, see [fileVersion].
func cached(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/") || r.URL.Path == "" {
			http.NotFound(w, r) // no listing
			return
		}
		w.Header().Set("Cache-Control", "private, max-age=86400")
		next.ServeHTTP(w, r)
	})
}
