// Package telemetry makes the tracers of the roles and exports their spans. It
// links the OpenTelemetry tracing SDK, so agents must not import it; they use
// tracecontext. Metrics and logging have packages of their own.
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
	"go.opentelemetry.io/otel/attribute"
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
	// http://127.0.0.1:4318; spans go to its /v1/traces. If it is empty,
	// OTEL_EXPORTER_OTLP_ENDPOINT (or _TRACES_ENDPOINT) counts; without either
	// nothing is recorded. Headers, certificates and the like are set by the
	// other OTEL_EXPORTER_OTLP_ variables.
	URL string
	// TLS has the certificate files for the collector of URL; nil leaves it to the
	// variables.
	TLS *tlsfiles.Client
	// Ratio of the tasks that are traced, 0 to 1, where the caller has not
	// decided by its own trace.
	Ratio float64
	// Service is service.name unless OTEL_SERVICE_NAME or
	// OTEL_RESOURCE_ATTRIBUTES set another; Version is service.version.
	Service, Version string

	Log   logrus.FieldLogger
	Meter metric.Meter // counts what was exported and what was dropped
}

// Tracing makes the tracers of a process and sends their spans. A nil Tracing
// records nothing.
type Tracing struct {
	own, agent *sdktrace.TracerProvider
	log        logrus.FieldLogger
}

// agentService is the service.name of spans that a worker makes of what
// agents report: their hosts usually reach no collector.
const agentService = "procfleet-agent"

// Bounds of what waits for the collector.
const (
	maxQueued     = 8192             // spans
	maxBatch      = 512              // spans in one request
	exportPause   = time.Second      // between requests while spans come in
	exportTimeout = 10 * time.Second // of one request, tries included
	flushTimeout  = 5 * time.Second  // at the end of the process
)

// Validate reports everything that is wrong, each with its field.
func (cfg TraceConfig) Validate() error {
	var errs []error
	if !(cfg.Ratio >= 0 && cfg.Ratio <= 1) { // nor is NaN a part
		errs = append(errs, invalid.Fieldf("Ratio", "%v is not a part: give a number from 0 to 1", cfg.Ratio))
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

// requestSettings are what the standard variables say of requests.
type requestSettings struct {
	header  http.Header
	gzip    bool
	timeout time.Duration // at most [exportTimeout], which is the default
}

// standardSettings reads OTEL_EXPORTER_OTLP_PROTOCOL, _HEADERS, _COMPRESSION
// and _TIMEOUT. It reports every value that is not supported; header values,
// which are secrets, are in no error.
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

// standard returns an OpenTelemetry variable about the export of traces; the one
// for traces alone takes precedence.
func standard(what string) (name, value string) {
	name = "OTEL_EXPORTER_OTLP_TRACES_" + what
	if value = os.Getenv(name); value != "" {
		return name, value
	}
	name = "OTEL_EXPORTER_OTLP_" + what
	return name, os.Getenv(name)
}

// collector parses the URL of a collector.
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

// NewTracing returns nil, and no error, without a collector. It does not connect:
// an unavailable collector delays nothing. Close must be
// called at the end of the process.
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
	// What libraries have to say of telemetry itself goes the same way.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(limiter.trouble))
	t := &Tracing{log: cfg.Log}
	if t.own, err = provider(ctx, limiter, cfg.Ratio, semconv.ServiceName(cfg.Service), semconv.ServiceVersion(cfg.Version)); err != nil {
		return nil, err
	}
	// Agents' spans exist only as parts of traces that were decided on.
	if t.agent, err = provider(ctx, limiter, 0); err != nil {
		return nil, err
	}
	return t, nil
}

// client sends spans to the URL target. It follows no redirection: the headers
// that the variables name are secrets of the collector, and of no other server.
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

// standardFiles are those that the variables of OpenTelemetry name, nil
// if they name none.
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

// endpoint returns the URL that spans are posted to: that of base, or else of
// the standard variables; empty if neither names one.
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
		if !strings.Contains(name, "_TRACES_") { // whose URL is complete
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

// provider makes tracers whose spans go through limiter. A ratio is for the
// spans without a parent; every other span does as its parent.
func provider(ctx context.Context, limiter *limiter, ratio float64, service ...attribute.KeyValue) (*sdktrace.TracerProvider, error) {
	own := []resource.Option{resource.WithTelemetrySDK(), resource.WithHost(), resource.WithAttributes(service...), resource.WithFromEnv()}
	if len(service) == 0 {
		own = append(own[:0:0], resource.WithTelemetrySDK(), resource.WithFromEnv(),
			resource.WithAttributes(semconv.ServiceName(agentService)))
	}
	res, err := resource.New(ctx, own...)
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return sdktrace.NewTracerProvider(
		sdktrace.WithResource(res),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(ratio))),
		sdktrace.WithSpanProcessor(limiter),
	), nil
}

// Tracer returns the tracer of a component, for example "worker"; nil if
// nothing is recorded.
func (t *Tracing) Tracer(component string) trace.Tracer {
	if t == nil {
		return nil
	}
	return t.own.Tracer(component)
}

// AgentTracer returns the tracer for what agents did, which is a service of
// its own in every view of traces; nil if nothing is recorded.
func (t *Tracing) AgentTracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.agent.Tracer("agent")
}

// Close sends what waits, for at most 5 s.
func (t *Tracing) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	// Both end the same limiter, the first with all that waits.
	if err := errors.Join(t.own.Shutdown(ctx), t.agent.Shutdown(ctx)); err != nil {
		t.log.WithError(err).Warn("spans not exported before shutdown")
	}
}
