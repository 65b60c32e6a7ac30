// Package telemetry creates the tracers of the roles and exports their spans. It links
// the OpenTelemetry tracing SDK, so agents must not import it; they use package
// tracecontext. Metrics and logging have separate packages.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet/internal/invalid"
	"github.com/procfleet/procfleet/internal/tlsfiles"
)

// TraceConfig configures the export of traces.
type TraceConfig struct {
	// URL is the collector's base URL for OTLP over HTTP, for example
	// http://127.0.0.1:4318; spans are posted to its path /v1/traces. If URL is
	// empty, OTEL_EXPORTER_OTLP_ENDPOINT (or _TRACES_ENDPOINT) is used; without
	// either, tracing is off. Headers, certificates and other settings come from
	// the other OTEL_EXPORTER_OTLP_ variables.
	URL string
	// TLS has the certificate files for the collector; nil: the files in the
	// environment variables.
	TLS *tlsfiles.Client
	// Ratio is the fraction of tasks to trace, 0 to 1, unless the caller's trace
	// has a sampling decision.
	Ratio float64
	// Service is the default of service.name; OTEL_SERVICE_NAME and
	// OTEL_RESOURCE_ATTRIBUTES take precedence. Version is service.version.
	Service, Version string

	Log   logrus.FieldLogger
	Meter metric.Meter // counts exported and dropped spans
}

// Tracing creates the tracers of a process and exports their spans. A nil Tracing
// records nothing.
type Tracing struct {
	own, agent *sdktrace.TracerProvider
	log        logrus.FieldLogger
}

// agentService is the service.name of spans that a worker creates from the reports of
// agents, since most hosts have no access to a collector.
const agentService = "procfleet-agent"

// Limits of the export to the collector.
const (
	maxQueued     = 8192             // queued spans
	maxBatch      = 512              // spans per request
	exportPause   = time.Second      // pause between requests while spans arrive
	exportTimeout = 10 * time.Second // limit per request, including retries
	flushTimeout  = 5 * time.Second  // limit for the export at the exit of the process
)

// Validate returns all errors, each with the name of its field.
func (cfg TraceConfig) Validate() error {
	var errs []error
	if !(cfg.Ratio >= 0 && cfg.Ratio <= 1) { // also true for NaN
		errs = append(errs, invalid.Fieldf("Ratio", "%v is not a fraction: give a number from 0 to 1", cfg.Ratio))
	}
	switch target, err := endpoint(cfg.URL); {
	case err != nil && cfg.URL != "":
		errs = append(errs, invalid.Fieldf("URL", "%w", err))
	case err != nil:
		errs = append(errs, err)
	case target != "":
		_, err := standardSettings()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// requestSettings are the settings for requests in the standard variables.
type requestSettings struct {
	header  http.Header
	gzip    bool
	timeout time.Duration // at most [exportTimeout], which is also the default
}

// standardSettings reads OTEL_EXPORTER_OTLP_PROTOCOL, _HEADERS, _COMPRESSION and
// _TIMEOUT. The error lists all unsupported values, but no header values, which are
// secrets.
func standardSettings() (requestSettings, error) {
	s := requestSettings{header: http.Header{}, timeout: exportTimeout}
	var errs []error
	if name, protocol := standard("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		errs = append(errs, fmt.Errorf("%s=%q: traces are sent as http/protobuf only; give the collector's port for that, usually 4318, and leave the variable out", name, protocol))
	}
	name, headers := standard("HEADERS")
	for i, header := range strings.Split(headers, ",") {
		if strings.TrimSpace(header) == "" {
			continue
		}
		key, escaped, found := strings.Cut(header, "=")
		key = strings.TrimSpace(key)
		value, err := url.PathUnescape(strings.TrimSpace(escaped))
		if err != nil || !found || key == "" {
			errs = append(errs, fmt.Errorf("%s: entry %d is not valid: write KEY=VALUE with the value URL-encoded", name, i+1))
			continue
		}
		s.header.Set(key, value)
	}
	switch name, compression := standard("COMPRESSION"); compression {
	case "", "none":
	case "gzip":
		s.gzip = true
	default:
		errs = append(errs, fmt.Errorf("%s=%q: write gzip or none", name, compression))
	}
	if name, text := standard("TIMEOUT"); text != "" {
		ms, err := strconv.ParseUint(text, 10, 31)
		if err != nil || ms == 0 {
			errs = append(errs, fmt.Errorf("%s=%q is not a number of milliseconds", name, text))
		}
		s.timeout = min(s.timeout, time.Duration(ms)*time.Millisecond)
	}
	return s, errors.Join(errs...)
}

// standard returns the name and value of an OpenTelemetry variable for exporters; the
// variable for traces takes precedence over the general one.
func standard(what string) (name, value string) {
	name = "OTEL_EXPORTER_OTLP_TRACES_" + what
	if value = os.Getenv(name); value != "" {
		return name, value
	}
	name = "OTEL_EXPORTER_OTLP_" + what
	return name, os.Getenv(name)
}

// collector parses and checks the URL of a collector.
func collector(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%q is not the URL of a collector: give its base URL, for example http://127.0.0.1:4318", text)
	}
	if port := u.Port(); port != "" {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return nil, fmt.Errorf("%q has no port from 0 to 65535", text)
		}
	}
	return u, nil
}

// NewTracing returns nil and no error if no collector is configured. It does not
// connect, and an unavailable collector delays nothing. The caller must call Close
// before the process exits.
func NewTracing(ctx context.Context, cfg TraceConfig) (*Tracing, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	target, err := endpoint(cfg.URL)
	if err != nil || target == "" {
		return nil, err
	}
	client, err := cfg.client(target)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("open the trace exporter: %w", err)
	}
	limiter, err := newLimiter(exporter, &cfg)
	if err != nil {
		return nil, err
	}
	// Errors of the OpenTelemetry libraries are logged in the same way.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(limiter.logFailure))
	t := &Tracing{log: cfg.Log}
	if t.own, err = provider(ctx, limiter, cfg.Ratio, resource.WithHost(),
		resource.WithAttributes(semconv.ServiceName(cfg.Service), semconv.ServiceVersion(cfg.Version)), resource.WithFromEnv()); err != nil {
		return nil, err
	}
	// Ratio 0: agents' spans are recorded only within traces that are already sampled.
	if t.agent, err = provider(ctx, limiter, 0, resource.WithFromEnv(), resource.WithAttributes(semconv.ServiceName(agentService))); err != nil {
		return nil, err
	}
	return t, nil
}

// client returns a client that posts spans to target. It follows no redirect: the
// configured headers are secrets that only the collector may receive.
func (cfg *TraceConfig) client(target string) (*collectorClient, error) {
	settings, err := standardSettings()
	if err != nil {
		return nil, err
	}
	settings.header.Set("User-Agent", "procfleet/"+cfg.Version)
	files := cfg.TLS
	if files == nil {
		if files, err = standardFiles(cfg.Log); err != nil {
			return nil, err
		}
	}
	sends := &http.Client{
		Transport: http.DefaultTransport, Timeout: settings.timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if files != nil {
		sends.Transport = files.Transport(http.DefaultTransport.(*http.Transport).Clone())
	}
	return &collectorClient{url: target, header: settings.header, gzip: settings.gzip, http: sends}, nil
}

// standardFiles returns the certificate files in the OpenTelemetry variables, or nil
// if none is set.
func standardFiles(log logrus.FieldLogger) (*tlsfiles.Client, error) {
	var files tlsfiles.Files
	for what, file := range map[string]*string{"CERTIFICATE": &files.CA, "CLIENT_CERTIFICATE": &files.Cert, "CLIENT_KEY": &files.Key} {
		_, *file = standard(what)
	}
	if files.None() {
		return nil, nil
	}
	client, err := files.Client(log)
	if err != nil {
		return nil, fmt.Errorf("certificates of OTEL_EXPORTER_OTLP_…: %w", err)
	}
	return client, nil
}

// endpoint returns the URL to which spans are posted, derived from base or else from
// the standard variables; empty if neither is set.
func endpoint(base string) (target string, err error) {
	const path = "v1/traces"
	if base == "" {
		if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
			return "", nil
		}
		name, value := standard("ENDPOINT")
		if value == "" {
			return "", nil
		}
		u, err := collector(value)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		if !strings.Contains(name, "_TRACES_") { // the _TRACES_ variable contains the full URL
			u = u.JoinPath(path)
		}
		return u.String(), nil
	}
	u, err := collector(base)
	if err != nil {
		return "", err
	}
	if !strings.HasSuffix(u.Path, "/"+path) {
		u = u.JoinPath(path)
	}
	return u.String(), nil
}

// provider creates tracers that send spans to limiter. ratio applies to spans without
// a parent; other spans are sampled if their parent is. Later options take precedence.
func provider(ctx context.Context, limiter *limiter, ratio float64, options ...resource.Option) (*sdktrace.TracerProvider, error) {
	res, err := resource.New(ctx, append([]resource.Option{resource.WithTelemetrySDK()}, options...)...)
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return sdktrace.NewTracerProvider(
		sdktrace.WithResource(res),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(ratio))),
		sdktrace.WithSpanProcessor(limiter),
	), nil
}

// Tracer returns the tracer of a component, for example "worker"; nil if tracing is
// off.
func (t *Tracing) Tracer(component string) trace.Tracer {
	if t == nil {
		return nil
	}
	return t.own.Tracer(component)
}

// AgentTracer returns the tracer for actions of agents, which trace viewers show as a
// separate service; nil if tracing is off.
func (t *Tracing) AgentTracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.agent.Tracer("agent")
}

// Close exports the queued spans, for at most 5 s.
func (t *Tracing) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	// Both providers share the limiter; the first shutdown exports all queued spans.
	if err := errors.Join(t.own.Shutdown(ctx), t.agent.Shutdown(ctx)); err != nil {
		t.log.WithError(err).Warn("spans not exported before shutdown")
	}
}
