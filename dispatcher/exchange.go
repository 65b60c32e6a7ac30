package dispatcher

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet/dispatcher/auth"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/tracecontext"
)

// maxRequestID is the maximum length in bytes of a caller's request id, which is copied
// into the response.
const maxRequestID = 128

// exchange is one request and its response.
type exchange struct {
	api     *api
	at      surface
	call    *servedCall // nil if the path and method have no call
	w       *statusWriter
	r       *http.Request
	span    trace.Span
	who     auth.Caller // set after authentication
	release func()      // releases the memory reserved for the body; safe to call again
	id      string      // 32 hexadecimal digits
	start   time.Time
}

// begin assigns the request's id and starts its span. The caller must defer end.
func (a *api) begin(at surface, call *servedCall, w http.ResponseWriter, r *http.Request) *exchange {
	e := &exchange{
		api: a, at: at, call: call, w: &statusWriter{ResponseWriter: w}, r: r,
		id: newRequestID(), start: time.Now(), release: func() {},
	}
	e.trace()
	given := r.Header.Get(auth.RequestIDHeader)
	if given == "" || len(given) > maxRequestID {
		given = e.id
	}
	e.w.Header().Set(auth.RequestIDHeader, given)
	return e
}

func newRequestID() string {
	random := uuid.New()
	return hex.EncodeToString(random[:])
}

// name returns the name of the call, or "<dialect>.none" without one.
func (e *exchange) name() string {
	if e.call == nil {
		return e.at.name + ".none"
	}
	return e.call.Name
}

// end completes the request; it must be deferred. It recovers a panic, which must not
// end other requests, and records the metrics, the span and the log line of the
// request.
func (e *exchange) end() {
	cause := recover()
	if err, _ := cause.(error); cause != nil && !errors.Is(err, http.ErrAbortHandler) { // with ErrAbortHandler a handler closes the connection
		e.log().WithField("panic", fmt.Sprint(cause)).WithField("stack", string(debug.Stack())).Error("request panicked")
		if e.w.status == 0 {
			e.fail(&dialect.Error{Kind: dialect.Internal, Problem: "internal error, request " + e.id})
			cause = nil
		} else {
			cause = http.ErrAbortHandler // the response is truncated: close the connection
		}
	}
	e.span.SetAttributes(attribute.Int("http.response.status_code", e.w.status))
	e.span.End()
	e.api.metrics.request(e.r.Context(), e.name(), e.w.status, time.Since(e.start))
	e.log().WithFields(logrus.Fields{
		"method": e.r.Method, "path": e.r.URL.Path, "status": e.w.status, "elapsed_ms": time.Since(e.start).Milliseconds(),
	}).Debug("request completed")
	if cause != nil {
		panic(cause)
	}
}

func (e *exchange) log() logrus.FieldLogger {
	return tracecontext.Log(e.r.Context(), e.api.log.WithFields(logrus.Fields{"request": e.id, "dialect": e.name()}))
}

// serve authenticates the caller, reads the body, and serves the endpoint of the call.
// If the headers contain the credentials, it authenticates the caller before it reads
// the body.
func (e *exchange) serve() {
	err := cmp.Or(auth.RefuseOtherAccounts(e.r.Context()), auth.RefuseHeader(e.r.Header))
	in := e.request()
	inBody := e.at.family.CredentialsInBody && in.BkapiAuthorization == ""
	if err == nil && !inBody {
		err = e.authenticate(in)
	}
	if err != nil {
		e.failEarly(err)
		return
	}
	unauthenticated := inBody && e.api.authenticator.Enabled()
	defer func() { e.release() }()
	if err = e.body(in, unauthenticated); err != nil {
		e.failEarly(err)
		return
	}
	if inBody {
		err = e.authenticate(in)
	}
	if err == nil && unauthenticated {
		err = e.move(in)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(e.r.Context(), e.api.cfg.Timeouts.Query)
		defer cancel()
		err = e.call.serve(ctx, e, in)
	}
	if err != nil {
		e.fail(err)
	}
}

// authenticate authenticates the caller and checks that the caller may do the action
// that the endpoint requires.
func (e *exchange) authenticate(in *dialect.Request) (err error) {
	ctx, cancel := context.WithTimeout(e.r.Context(), e.api.cfg.Timeouts.Query)
	defer cancel()
	if e.who, err = e.api.authenticator.Authenticate(ctx, &e.at.family, in, peer(e.r)); err != nil {
		return err
	}
	return e.who.MayDo(e.call.action)
}

// detached returns the context for a change, which must complete even if the caller
// disconnects.
func (e *exchange) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), e.api.cfg.Timeouts.Accept)
}

// request returns the request without its body.
func (e *exchange) request() *dialect.Request {
	return &dialect.Request{
		Method:             e.r.Method,
		Path:               e.r.URL.Path,
		ID:                 e.r.PathValue("id"),
		Wildcards:          wildcards(e.r),
		Query:              e.r.URL.Query(),
		MaxItems:           e.api.cfg.Limits.Items,
		Authorization:      e.r.Header.Get("Authorization"),
		BkapiAuthorization: e.r.Header.Get("X-Bkapi-Authorization"),
		BkAppCode:          e.r.Header.Get("Bk-App-Code"),
		BkUsername:         e.r.Header.Get("Bk-Username"),
		CMDBUser:           underscored(e.r.Header, "BK_USER"),
		CMDBSupplier:       underscored(e.r.Header, "HTTP_BLUEKING_SUPPLIER_ID"),
		LastEventID:        e.r.Header.Get("Last-Event-ID"),
		ContentType:        e.r.Header.Get("Content-Type"),
		IfMatch:            e.r.Header.Get("If-Match"),
	}
}

// underscored returns a header whose name contains underscores. Some proxies replace
// the underscores by hyphens.
func underscored(h http.Header, name string) string {
	return cmp.Or(h.Get(name), h.Get(strings.ReplaceAll(name, "_", "-")))
}

// wildcards returns the values of the wildcards in the pattern of the path; nil if the
// pattern has none.
func wildcards(r *http.Request) map[string]string {
	var values map[string]string
	for _, name := range wildcardNames.FindAllStringSubmatch(r.Pattern, -1) {
		if values == nil {
			values = make(map[string]string)
		}
		values[name[1]] = r.PathValue(name[1])
	}
	return values
}

var wildcardNames = regexp.MustCompile(`\{(\w+)\}`)

// peer returns the caller's address; the zero address for a Unix socket.
func peer(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr()
}

// failEarly sends an error before the body was read, and then discards the body: many clients
// read the response only after they have sent the whole body. Without full duplex net/http would
// reset the connection, and such a client would not know whether the request was accepted. With
// it, the connection must be closed, because a part of the body may be left.
func (e *exchange) failEarly(err error) {
	e.release()
	if e.r.ContentLength == 0 {
		e.fail(err)
		return
	}
	control := http.NewResponseController(e.w)
	_ = control.EnableFullDuplex() // fails for writers without it, for example in tests
	e.w.Header().Set("Connection", "close")
	e.fail(err)
	_ = control.Flush()
	e.skip(2 * e.api.cfg.Limits.Body)
}

// fail sends an error in the dialect's form.
func (e *exchange) fail(err error) {
	f := e.api.failed(err, e.log(), e.id, e.start)
	if e.call != nil {
		f.Call = e.call.Name
		e.auditRefusal(err, f)
	}
	if f.RetryAfter > 0 {
		e.w.Header().Set("Retry-After", strconv.Itoa(int(f.RetryAfter.Seconds())))
	}
	e.reply(e.at.family.Fail(f, e.id))
}

func (e *exchange) reply(reply dialect.Reply) {
	body, err := reply.JSON()
	if err != nil {
		panic(fmt.Errorf("encode an answer of %s: %w", e.name(), err)) // a bug in the dialect; end recovers the panic
	}
	if reply.Location != "" {
		e.w.Header().Set("Location", reply.Location)
	}
	if reply.Authenticate != "" {
		e.w.Header().Set("WWW-Authenticate", reply.Authenticate)
	}
	if reply.ETag != "" {
		e.w.Header().Set("ETag", reply.ETag)
	}
	e.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	e.header(reply.Status)
	_, _ = e.w.Write(body) // the caller may have disconnected
}

func (e *exchange) header(status int) {
	e.w.Header().Set("Content-Type", "application/json; charset=utf-8")
	e.w.Header().Set("Cache-Control", "no-store")
	e.w.Header().Set("X-Content-Type-Options", "nosniff")
	e.w.WriteHeader(status)
}

// statusWriter records the status of the response; 0 if none was written.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap returns the wrapped writer to http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
