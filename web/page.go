package web

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/procfleet/procfleet/client"
)

// page is one kind of page.
type page struct {
	path string // pattern of its path below [Prefix]
	name string // name of its template, templates/<name>.html
	nav  string // its entry in the navigation
	// load reads the content, with which the template is executed.
	load func(ctx context.Context, v *visit) (content any, err error)
	// form is the path below [Prefix] to which the page's own form is sent; "" without one.
	form string
	// still pages do not change by themselves: they have no stream.
	still bool

	rendered map[*language]*rendered
}

// pages returns all pages.
func pages() []page {
	return []page{
		{path: "{$}", name: "overview", nav: "overview", load: showOverview},
		{path: "tasks", name: "tasks", nav: "tasks", load: listTasks},
		{path: "tasks/{task}", name: "task", nav: "tasks", load: showTask},
		{path: "tasks/{task}/retry", name: "retry", nav: "tasks", load: showRetry, still: true},
		{path: "operate", name: "operate", nav: "operate", load: showOperate, form: "operate/plan", still: true},
		{path: "hosts", name: "hosts", nav: "hosts", load: listHosts},
		{path: "hosts/{host}", name: "host", nav: "hosts", load: showHost},
		{path: "hosts/{host}/processes/{key}", name: "process", nav: "hosts", load: showProcess},
		{path: "processes", name: "processes", nav: "hosts", load: listProcesses},
		{path: "catalog", name: "catalog", nav: "catalog", load: showCatalog},
		{path: "catalog/{process}", name: "drift", nav: "catalog", load: showDrift},
		{path: "rules", name: "rules", nav: "rules", load: showRules},
		{path: "webhooks", name: "webhooks", nav: "rules", load: showWebhooks},
		{path: "events", name: "events", nav: "events", load: listEvents},
		{path: "audit", name: "audit", nav: "events", load: listAudit},
		{path: "search", name: "search", load: search, still: true},
		{path: "signin", name: "signin", load: showSignIn, still: true},
	}
}

// do is the effect of a button. It returns the address of the page to show next.
type do func(ctx context.Context, v *visit) (next string, err error)

// buttons returns the effects of all buttons, by the pattern of the path below [Prefix].
func buttons() map[string]do {
	return map[string]do{
		"tasks/{task}/pause":        pauseTask,
		"tasks/{task}/resume":       resumeTask,
		"tasks/{task}/approve":      approveTask,
		"tasks/{task}/cancel":       cancelTask,
		"tasks/{task}/retry":        retryTask,
		"tasks/{task}/undo":         undoTask,
		"operate":                   operate,
		"hosts/{host}/freeze":       freezeHost,
		"hosts/{host}/lift":         liftHost,
		"webhooks/{name}/redeliver": redeliver,
		"rules/pause":               pauseSchedule,
	}
}

// visit is one request of a viewer.
type visit struct {
	console *Console
	w       http.ResponseWriter
	r       *http.Request
	session *session // nil without a sign-in
	api     *client.Client
	text    *language
	input   url.Values // the query and the form
	// failures are those of the task of the page. A stream reads them again when their number changes.
	failures *failures
}

func (c *Console) visit(w http.ResponseWriter, r *http.Request) *visit {
	v := &visit{console: c, w: w, r: r, text: c.languageOf(r), input: r.URL.Query()}
	v.enter(c.sessions.of(r))
	return v
}

// callTimeout limits one call of the API.
const callTimeout = 20 * time.Second

// enter makes s, which may be nil, the session of the visit: from now on the API is called with its
// credentials.
func (v *visit) enter(s *session) {
	cfg := client.Config{
		URL:     "http://console",
		HTTP:    &http.Client{Transport: &apiCall{v.console.api, v.r.RemoteAddr}},
		Timeout: callTimeout, Patience: -1,
	}
	if s != nil {
		cfg.Token = s.Token
	}
	api, err := client.New(cfg)
	if err != nil { // no header can have this token
		v.enter(nil)
		return
	}
	v.session, v.api = s, api
}

// query returns a parameter without surrounding spaces; "" without one.
func (v *visit) query(name string) string { return strings.TrimSpace(v.input.Get(name)) }

// business returns the business in the query, or else that of the session; "" for all.
func (v *visit) business() string {
	if v.session == nil {
		return v.query("business")
	}
	return cmp.Or(v.query("business"), v.session.Business)
}

// signedOut reports whether the API has rejected the credentials of the viewer, or their absence.
func signedOut(err error) bool {
	refused, ok := errors.AsType[*client.Error](err)
	return ok && refused.Status == http.StatusUnauthorized
}

// page returns the handler of a page. A request for a stream gets one.
func (c *Console) page(p *page) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := c.visit(w, r)
		if r.Method == http.MethodPost && !v.readForm() {
			return
		}
		if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
			v.stream(p)
			return
		}
		if p.name == "signin" && v.session != nil && v.query("kept") != "" {
			http.Redirect(w, r, ownPath(v.query("next")), http.StatusSeeOther)
			return
		}
		content, err := p.load(r.Context(), v)
		if err != nil {
			v.fail(err)
			return
		}
		v.show(http.StatusOK, p, content)
	})
}

// button returns the handler of a button. After success the browser loads the next page, so that a
// reload repeats nothing.
func (c *Console) button(effect do) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := c.visit(w, r)
		if !v.readForm() {
			return
		}
		next, err := effect(r.Context(), v)
		if err != nil {
			v.fail(err)
			return
		}
		http.Redirect(w, r, next, http.StatusSeeOther)
	})
}

// readForm adds the form to the input, or shows why it cannot be read.
func (v *visit) readForm() (ok bool) {
	v.r.Body = http.MaxBytesReader(v.w, v.r.Body, maxForm)
	if err := v.r.ParseForm(); err != nil {
		v.fail(invalid("form", err.Error()))
		return false
	}
	v.input = v.r.Form
	return true
}

// frame is the data of the layout around the content of a page.
type frame struct {
	Lang, Nav, Here string
	Live            bool
	SignIn          bool   // the page has no navigation
	Application     string // of the viewer; "" without a sign-in
	Languages       []*language
	Version         string // of the files, see [fileVersion]
	Content         any
}

func (v *visit) show(status int, p *page, content any) {
	f := frame{
		Lang: v.text.Tag, Nav: p.nav, Here: v.r.URL.RequestURI(), Live: !p.still, SignIn: p.name == "signin",
		Languages: v.console.texts, Version: fileVersion, Content: content,
	}
	if v.session != nil {
		f.Application = v.session.application()
	}
	var text bytes.Buffer
	if err := p.rendered[v.text].ExecuteTemplate(&text, "layout", f); err != nil {
		v.console.log.WithError(err).WithField("page", p.name).Error("page not rendered")
		http.Error(v.w, "internal error", http.StatusInternalServerError)
		return
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.Header().Set("Vary", "Accept, Accept-Language, Cookie")
	v.w.WriteHeader(status)
	_, _ = v.w.Write(text.Bytes()) // fails if the viewer has disconnected
}

// problem is the content of the page of an error.
type problem struct {
	Status int
	Advice string // key of a text
	Field  string
	Text   string // message of the API
	Back   string // the page before
}

// fail shows the page of an error, or the sign-in page.
func (v *visit) fail(err error) {
	if to, ok := errors.AsType[*elsewhere](err); ok {
		http.Redirect(v.w, v.r, to.address, http.StatusSeeOther)
		return
	}
	if signedOut(err) && v.session == nil {
		v.toSignIn("")
		return
	}
	if signedOut(err) { // the application was removed, or its secret replaced
		v.toSignIn("wrong")
		return
	}
	v.show(statusOf(err), v.console.failure, v.problem(err))
}

func (v *visit) toSignIn(why string) {
	query := url.Values{"next": {v.back()}}
	if why != "" {
		query.Set(why, "1")
	}
	http.Redirect(v.w, v.r, Prefix+"signin?"+query.Encode(), http.StatusSeeOther)
}

// back returns the page that the viewer wanted or had: of a button, the page with the button.
func (v *visit) back() string {
	if v.r.Method == http.MethodGet {
		return ownPath(v.r.URL.RequestURI())
	}
	from, err := url.Parse(v.r.Referer())
	if err != nil {
		return Prefix
	}
	return ownPath(from.RequestURI())
}

func statusOf(err error) int {
	if refused, ok := errors.AsType[*client.Error](err); ok {
		return refused.Status
	}
	return http.StatusServiceUnavailable
}

func (v *visit) problem(err error) problem {
	p := problem{Status: statusOf(err), Text: err.Error(), Back: v.back()}
	if refused, ok := errors.AsType[*client.Error](err); ok {
		p.Text, p.Field = refused.Message, refused.Field
	}
	switch p.Status {
	case http.StatusNotFound:
		p.Advice = "error.notfound"
	case http.StatusConflict:
		p.Advice = "error.conflict"
	case http.StatusForbidden:
		p.Advice = "error.forbidden"
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
		p.Advice = "error.input"
	default:
		p.Advice = "error.unavailable"
	}
	return p
}
