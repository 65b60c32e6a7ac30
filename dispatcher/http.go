package dispatcher

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/semaphore"

	"github.com/procfleet/procfleet/dispatcher/auth"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/dispatcher/openapi"
	"github.com/procfleet/procfleet/dispatcher/webhook"
	"github.com/procfleet/procfleet/web"
)

// api holds the dependencies that all endpoints share.
type api struct {
	cfg       Config
	log       logrus.FieldLogger
	submitter *submitter
	store     Store
	metrics   *dispatcherMetrics
	watches   *watches
	workers   workers
	health    health
	// bodies limits the bodies that are processed at the same time. unauthenticated
	// limits the bytes held for callers whose credentials are in their bodies.
	bodies          bodies
	unauthenticated *semaphore.Weighted

	sender         *webhook.Sender
	authenticator  *auth.Authenticator
	console        *web.Console // nil with Config.NoConsole
	unavailableLog oncePerSecond
	refusalLog     oncePerSecond
}

// oncePerSecond limits a repeated log message to one per second.
type oncePerSecond struct{ last atomic.Int64 }

func (o *oncePerSecond) due(now time.Time) bool {
	last := o.last.Load()
	return now.UnixNano()-last >= int64(time.Second) && o.last.CompareAndSwap(last, now.UnixNano())
}

// handler returns the handler of all paths: calls of the dialects, health, metrics and
// documentation.
func (a *api) handler(dialects []dialect.Dialect) (http.Handler, error) {
	byKind, err := endpointsByKind(endpoints())
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", a.ready)
	if a.cfg.Metrics != nil {
		mux.Handle("GET /metrics", a.cfg.Metrics)
	}
	a.documentation(mux, dialects)
	front := http.Handler(mux)
	for i := range dialects {
		for _, family := range dialects[i].Reached() {
			into := mux
			if family.Owns != nil {
				into = http.NewServeMux()
				front = owned(family.Owns, into, front)
			}
			at := surface{dialects[i].Name, family}
			paths, err := byPath(family.Calls, byKind)
			if err != nil {
				return nil, err
			}
			for path, byMethod := range paths {
				into.Handle(path, a.route(at, byMethod))
			}
			for _, prefix := range family.Prefixes {
				into.Handle(prefix, a.route(at, nil))
			}
		}
	}
	if front, err = a.withConsole(front); err != nil {
		return nil, err
	}
	return auth.RefuseForeignPages(singleSlashes(front)), nil
}

// withConsole adds the console, which calls the API through rest, and redirects / to it.
func (a *api) withConsole(rest http.Handler) (http.Handler, error) {
	first := "/docs"
	if !a.cfg.NoConsole {
		var err error
		if a.console, err = web.New(web.Config{API: rest, Key: a.cfg.ConsoleKey, Log: a.cfg.Log}); err != nil {
			return nil, err
		}
		first = web.Prefix
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		switch path := r.URL.Path; {
		case a.console != nil && strings.HasPrefix(path, web.Prefix):
			a.console.ServeHTTP(w, r)
		case reads && (path == "/" || path+"/" == first):
			http.Redirect(w, r, first, http.StatusFound)
		default:
			rest.ServeHTTP(w, r)
		}
	}), nil
}

// owned routes the paths that a family owns to its handler, and all others to rest.
func owned(owns func(path string) bool, family, rest http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if owns(r.URL.Path) {
			family.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	})
}

// singleSlashes replaces consecutive slashes in the path by one, as the servers in
// front of BlueKing do. Clients whose configured address ends in a slash send "//", and
// some of them do not follow redirects.
func singleSlashes(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if escaped := r.URL.EscapedPath(); strings.Contains(escaped, "//") {
			at := *r.URL
			at.RawPath = manySlashes.ReplaceAllString(escaped, "/") // an escaped slash is part of a name and remains
			at.Path, _ = url.PathUnescape(at.RawPath)               // valid, because the original path was
			r = r.WithContext(r.Context())                          // shallow copy, so that the server's request is not changed
			r.URL = &at
		}
		next.ServeHTTP(w, r)
	})
}

var manySlashes = regexp.MustCompile(`/{2,}`)

type servedCall struct {
	*dialect.Call
	endpoint
}

// byPath indexes calls by path and method. It returns an error for a call whose
// endpoint is not served.
func byPath(calls []dialect.Call, byKind map[reflect.Type]endpoint) (map[string]map[string]*servedCall, error) {
	paths := make(map[string]map[string]*servedCall)
	for i := range calls {
		call := &calls[i]
		served, known := byKind[reflect.TypeOf(call.Endpoint)]
		if !known {
			return nil, fmt.Errorf("call %s has the endpoint %T, which is not served", call.Name, call.Endpoint)
		}
		for _, path := range call.Paths {
			if paths[path] == nil {
				paths[path] = make(map[string]*servedCall)
			}
			for _, method := range call.Methods {
				paths[path][method] = &servedCall{call, served}
			}
		}
	}
	return paths, nil
}

// surface is the dialect and the family of paths to which a request belongs.
type surface struct {
	name   string
	family dialect.Family
}

// route returns the handler for the calls of one path. Without calls it responds that
// the path does not exist.
func (a *api) route(at surface, byMethod map[string]*servedCall) http.Handler {
	allowed := strings.Join(slices.Sorted(maps.Keys(byMethod)), ", ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := a.begin(at, byMethod[r.Method], w, r)
		defer e.end()
		switch {
		case len(byMethod) == 0:
			e.fail(&dialect.Error{
				Kind: dialect.NoRoute, Problem: "there is no path " + r.URL.Path, Method: r.Method, Path: r.URL.Path,
			})
		case e.call == nil:
			w.Header().Set("Allow", allowed)
			e.fail(&dialect.Error{
				Kind: dialect.BadMethod, Problem: r.Method + " is not allowed here; use " + allowed, Method: r.Method, Path: r.URL.Path,
			})
		default:
			e.serve()
		}
	})
}

// ready handles /readyz.
func (a *api) ready(w http.ResponseWriter, r *http.Request) {
	if a.cfg.Ready != nil {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		if err := a.cfg.Ready(ctx); err != nil {
			plain(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
	}
	plain(w, http.StatusOK, "ready")
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n")) // the caller may have disconnected
}

// documentation serves the API description as OpenAPI at /openapi.json and as a page at
// /docs. It needs no authentication, because it is the same for every caller. It is
// generated at the first request.
func (a *api) documentation(mux *http.ServeMux, dialects []dialect.Dialect) {
	described := sync.OnceValues(func() (*openapi.API, error) { return openapi.New(dialects, a.cfg.Version) })
	a.document(mux, "GET /openapi.json", "application/json", described, (*openapi.API).JSON)
	a.document(mux, "GET /docs", "text/html; charset=utf-8", described, (*openapi.API).Page)
}

// document serves a document that is generated once. Caches must revalidate it, because
// another build may describe another API.
func (a *api) document(
	mux *http.ServeMux, pattern, contentType string, described func() (*openapi.API, error), render func(*openapi.API) ([]byte, error),
) {
	var tag string
	once := sync.OnceValues(func() ([]byte, error) {
		api, err := described()
		if err != nil {
			return nil, err
		}
		text, err := render(api)
		sum := sha256.Sum256(text)
		tag = `"` + hex.EncodeToString(sum[:16]) + `"`
		return text, err
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
		header.Set("ETag", tag)
		header.Set("Cache-Control", "no-cache")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Content-Security-Policy", openapi.PagePolicy())
		header.Set("Referrer-Policy", "no-referrer")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
	})
}
