package client

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	v1 "github.com/procfleet/procfleet/api/v1"
)

// Config configures a client. Only URL is required.
type Config struct {
	// URL is the URL of a dispatcher, for example "http://127.0.0.1:8080", or of
	// several, separated by commas: if one fails, the client uses the next.
	URL string
	// Token, an application's "<code>.<secret>", is sent as "Authorization:
	// Bearer <Token>". Empty: no such header.
	Token string
	// HTTP sends the requests, with the caller's certificates, proxies or tracing;
	// default: a client with http.DefaultTransport. Its Timeout does not apply to
	// Watch, which reads as long as a task runs.
	HTTP *http.Client
	// Timeout limits one attempt, from connecting to the last byte of the
	// response; default 60 s. It does not apply to Watch.
	Timeout time.Duration
	// Patience is how long a call retries while no server is reachable, or the
	// error is Retryable. Zero: until the context ends; negative: each server is
	// tried once.
	Patience time.Duration
	// Trouble, if not nil, is called with the cause when a call begins to retry,
	// once per outage, and with [ErrNoEvents] when Watch falls back to polling.
	// It is called from the goroutine of the call.
	Trouble func(error)
}

const defaultTimeout = 60 * time.Second

// Client sends requests to the dispatchers of one installation. It is safe for
// concurrent use and does not need to be closed.
type Client struct {
	servers  []address
	current  atomic.Int64
	token    string
	http     *http.Client
	streams  *http.Client // like http, but without a timeout
	timeout  time.Duration
	patience time.Duration
	trouble  func(error)
}

// New returns a client. It does not connect.
func New(cfg Config) (*Client, error) {
	c := &Client{token: cfg.Token, timeout: cfg.Timeout, patience: cfg.Patience, trouble: cfg.Trouble}
	for text := range strings.SplitSeq(cfg.URL, ",") {
		server, err := parseServer(strings.TrimSpace(text))
		if err != nil && strings.Contains(cfg.URL, "@") { // the parse error would contain the password
			err = errors.New("a server is not a URL like http://127.0.0.1:8080; in users and passwords, write special characters like %40 for @")
		}
		if err != nil {
			return nil, err
		}
		c.servers = append(c.servers, server)
	}
	if !printable(cfg.Token) {
		return nil, errors.New("the token has characters that no HTTP header can have")
	}
	if c.timeout <= 0 {
		c.timeout = defaultTimeout
	}
	if c.trouble == nil {
		c.trouble = func(error) {}
	}
	c.http = c.withRedirects(cfg.HTTP)
	streams := *c.http
	streams.Timeout = 0
	c.streams = &streams
	return c, nil
}

// address is the URL of a server, without a trailing slash. Its String method omits
// the password.
type address string

func (a address) String() string {
	u, err := url.Parse(string(a))
	if err != nil {
		return "a server" // unreachable code: parseServer rejects such URLs
	}
	return u.Redacted()
}

func parseServer(text string) (address, error) {
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("server %q is not a URL like http://127.0.0.1:8080", text)
	}
	return address(strings.TrimRight(text, "/")), nil
}

// printable reports whether text is a valid header value of printable ASCII.
func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

// withRedirects returns a copy of the caller's HTTP client that follows a redirect
// only if it preserves method, TLS and token, unless the caller has set
// CheckRedirect.
func (c *Client) withRedirects(given *http.Client) *http.Client {
	if given == nil {
		given = &http.Client{}
	}
	own := *given
	if own.CheckRedirect == nil {
		own.CheckRedirect = c.checkRedirect
	}
	return &own
}

// errRedirected is wrapped by the error for a redirect that is not followed.
var errRedirected = errors.New("redirection not followed")

func (c *Client) checkRedirect(req *http.Request, via []*http.Request) error {
	const most = 10
	last := via[len(via)-1]
	switch {
	case len(via) >= most:
		return fmt.Errorf("%w: this was number %d", errRedirected, most)
	case req.Method != last.Method:
		return fmt.Errorf("%w: it changes %s to %s; use its target as URL: %s", errRedirected, last.Method, req.Method, req.URL.Redacted())
	case last.URL.Scheme == "https" && req.URL.Scheme == "http":
		return fmt.Errorf("%w: it leads from https to http: %s", errRedirected, req.URL.Redacted())
	case c.token != "" && !mayHaveToken(req.URL, via[0].URL):
		return fmt.Errorf("%w: it leads to another server, which must not get the token; if that is the right one, use its URL: %s",
			errRedirected, req.URL.Redacted())
	}
	return nil
}

// mayHaveToken reports whether a URL is on the configured server, or uses TLS on
// another port of the same host name. Package http alone would send the token to
// every port of a host, and to its subdomains.
func mayHaveToken(target, asked *url.URL) bool {
	same := target.Scheme == asked.Scheme && target.Host == asked.Host
	return same || target.Scheme == "https" && target.Hostname() == asked.Hostname()
}

// The types of requests and responses, documented in package v1.
type (
	Targets          = v1.Targets
	Operation        = v1.Operation
	Task             = v1.Task
	TaskControl      = v1.TaskControl
	TaskEvent        = v1.TaskEvent
	TaskCancel       = v1.TaskCancel
	TaskResume       = v1.TaskResume
	TaskApproval     = v1.TaskApproval
	Rollout          = v1.Rollout
	PlannedRollout   = v1.PlannedRollout
	RolloutZones     = v1.RolloutZones
	ZoneSize         = v1.ZoneSize
	RolloutPolicies  = v1.RolloutPolicies
	ScheduleRequest  = v1.ScheduleRequest
	Schedule         = v1.Schedule
	WebhookRequest   = v1.WebhookRequest
	Webhook          = v1.Webhook
	DeadDelivery     = v1.DeadDelivery
	RolloutPolicy    = v1.RolloutPolicy
	TaskRetry        = v1.TaskRetry
	TaskUndo         = v1.TaskUndo
	Cancel           = v1.Cancel
	Hold             = v1.Hold
	Result           = v1.Result
	Plan             = v1.Plan
	PlannedOperation = v1.PlannedOperation
	PlannedHost      = v1.PlannedHost
	PlanProblem      = v1.PlanProblem

	Outcome      = v1.Outcome
	Process      = v1.Process
	Registration = v1.Registration
	Reported     = v1.Reported
	Grouping     = v1.Grouping
	Group        = v1.Group
	HostGroups   = v1.HostGroups

	Agent     = v1.Agent
	HostAgent = v1.HostAgent
	Binding   = v1.Binding
	Freezing  = v1.Freezing
	Frozen    = v1.Frozen
	Lifted    = v1.Lifted
	Freeze    = v1.Freeze
	Health    = v1.Health
	EventPage = v1.EventPage

	CatalogProcess = v1.CatalogProcess
	CatalogSaved   = v1.CatalogSaved
	SavedProcess   = v1.SavedProcess
	Topology       = v1.Topology
	TopologySet    = v1.TopologySet
	TopologyModule = v1.TopologyModule
	Drift          = v1.Drift
	DriftCounts    = v1.DriftCounts
	ModuleDrift    = v1.ModuleDrift
	HostDrift      = v1.HostDrift
)
