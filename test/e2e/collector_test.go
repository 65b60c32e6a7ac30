//go:build linux

package e2e

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// collector is an OTLP receiver that stores every span.
type collector struct {
	t   *testing.T
	URL string

	mu    sync.Mutex
	spans []span
}

// span is one decoded span.
type span struct {
	*tracepb.Span
	service string
}

func (s span) trace() string  { return hex.EncodeToString(s.TraceId) }
func (s span) id() string     { return hex.EncodeToString(s.SpanId) }
func (s span) parent() string { return hex.EncodeToString(s.ParentSpanId) }

func (s span) attribute(key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return text(a.Value)
		}
	}
	return ""
}

func text(v *commonpb.AnyValue) string {
	if s, ok := v.Value.(*commonpb.AnyValue_StringValue); ok {
		return s.StringValue
	}
	return v.String()
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{t: t}
	server := httptest.NewServer(http.HandlerFunc(c.receive))
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

func (c *collector) receive(w http.ResponseWriter, r *http.Request) {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unzipped
	}
	data, err := io.ReadAll(body)
	var request collectorpb.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(data, &request)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		c.t.Errorf("collector got %s %s: %v", r.Method, r.URL.Path, err)
		http.Error(w, "not spans", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range request.ResourceSpans {
		service := ""
		for _, a := range rs.Resource.Attributes {
			if a.Key == "service.name" {
				service = text(a.Value)
			}
		}
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				c.spans = append(c.spans, span{s, service})
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// of returns the received spans of a task's trace, which is the trace of its
// acceptance.
func (c *collector) of(task string) []span {
	c.mu.Lock()
	defer c.mu.Unlock()
	trace := ""
	for _, s := range c.spans {
		if s.Name == "task accept" && s.attribute("procfleet.task") == task {
			trace = s.trace()
		}
	}
	var mine []span
	for _, s := range c.spans {
		if s.trace() == trace {
			mine = append(mine, s)
		}
	}
	return mine
}

// all returns every received span.
func (c *collector) all() []span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]span(nil), c.spans...)
}

// named counts spans by service and name.
func named(spans []span) map[string]int {
	counts := map[string]int{}
	for _, s := range spans {
		counts[s.service+": "+s.Name]++
	}
	return counts
}
