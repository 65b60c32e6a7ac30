package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// replies is a collector that replies to the nth request with the nth
// response, and to later ones with the last.
type replies struct {
	requests  []*http.Request
	bodies    [][]byte
	responses []http.Response
}

func (r *replies) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	r.requests, r.bodies = append(r.requests, req), append(r.bodies, body)
	resp := r.responses[min(len(r.requests), len(r.responses))-1]
	resp.Request = req
	if resp.Body == nil {
		resp.Body = http.NoBody
	}
	return &resp, nil
}

func response(status int, header http.Header, body []byte) http.Response {
	return http.Response{StatusCode: status, Status: http.StatusText(status), Header: header, Body: io.NopCloser(bytes.NewReader(body))}
}

func oneSpan() []*tracepb.ResourceSpans {
	return []*tracepb.ResourceSpans{{ScopeSpans: []*tracepb.ScopeSpans{{Spans: []*tracepb.Span{{Name: "step", TraceId: bytes.Repeat([]byte{7}, 16)}}}}}}
}

// TestRequestIsWhatTheProtocolDefines decodes the body with the published type
// of the request.
func TestRequestIsWhatTheProtocolDefines(t *testing.T) {
	t.Parallel()
	for _, zipped := range []bool{false, true} {
		collector := &replies{responses: []http.Response{response(http.StatusOK, nil, nil)}}
		client := &collectorClient{
			url: "http://collector:4318/v1/traces", gzip: zipped, header: http.Header{"X-Key": {"k"}},
			http: &http.Client{Transport: collector},
		}
		if err := client.UploadTraces(t.Context(), oneSpan()); err != nil {
			t.Fatal(err)
		}
		req, body := collector.requests[0], io.Reader(bytes.NewReader(collector.bodies[0]))
		if req.Method != http.MethodPost || req.URL.String() != client.url || req.Header.Get("Content-Type") != protobuf || req.Header.Get("X-Key") != "k" {
			t.Errorf("request %s %s %v", req.Method, req.URL, req.Header)
		}
		if got := req.Header.Get("Content-Encoding") == "gzip"; got != zipped {
			t.Errorf("compressed: %v, want %v", got, zipped)
		}
		if zipped {
			var err error
			if body, err = gzip.NewReader(body); err != nil {
				t.Fatal(err)
			}
		}
		data, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		var request collectorpb.ExportTraceServiceRequest
		if err := proto.Unmarshal(data, &request); err != nil {
			t.Fatal(err)
		}
		if want := (&collectorpb.ExportTraceServiceRequest{ResourceSpans: oneSpan()}); !proto.Equal(&request, want) {
			t.Errorf("the collector reads %v, want %v", &request, want)
		}
	}
}

func TestBusyCollectorGetsSpansAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		collector := &replies{responses: []http.Response{
			response(http.StatusServiceUnavailable, http.Header{"Retry-After": {"5"}}, nil),
			response(http.StatusTooManyRequests, nil, nil),
			response(http.StatusOK, nil, nil),
		}}
		client := &collectorClient{url: "http://collector", header: http.Header{}, http: &http.Client{Transport: collector}}
		began := time.Now()
		if err := client.UploadTraces(t.Context(), oneSpan()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 5*time.Second || took > 10*time.Second || len(collector.requests) != 3 {
			t.Errorf("%d requests in %v, want 3 in five to ten seconds", len(collector.requests), took)
		}
	})
}

// TestErrorsEndAnUpload requires one request, and an error with the reason.
func TestErrorsEndAnUpload(t *testing.T) {
	t.Parallel()
	partial, err := proto.Marshal(&collectorpb.ExportTraceServiceResponse{
		PartialSuccess: &collectorpb.ExportTracePartialSuccess{RejectedSpans: 3, ErrorMessage: "too old"},
	})
	if err != nil {
		t.Fatal(err)
	}
	protobufHeader := http.Header{"Content-Type": {protobuf}}
	for name, c := range map[string]struct {
		response http.Response
		want     string
		rejected int64
	}{
		"rejected":               {response(http.StatusBadRequest, nil, []byte("no spans here")), "no spans here", 0},
		"busy beyond the export": {response(http.StatusServiceUnavailable, http.Header{"Retry-After": {"99999999"}}, nil), "Service Unavailable", 0},
		"partial success":        {response(http.StatusOK, protobufHeader, partial), "too old", 3},
		"broken response":        {response(http.StatusOK, protobufHeader, partial[:len(partial)-1]), "decode the collector's response", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), exportTimeout)
				defer cancel()
				collector := &replies{responses: []http.Response{c.response}}
				client := &collectorClient{url: "http://collector", header: http.Header{}, http: &http.Client{Transport: collector}}
				err := client.UploadTraces(ctx, oneSpan())
				if err == nil || !strings.Contains(err.Error(), c.want) || len(collector.requests) != 1 {
					t.Errorf("%d requests, error %v, want 1 and %q", len(collector.requests), err, c.want)
				}
				if partial, ok := errors.AsType[*partialError](err); ok != (c.rejected > 0) || ok && partial.rejected != c.rejected {
					t.Errorf("error %v, want %d rejected spans", err, c.rejected)
				}
			})
		})
	}
}

// TestStandardVariables sets what the OpenTelemetry specification names.
func TestStandardVariables(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/base")
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b, x-other = c=d ,")
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1500")
	target, err := endpoint("")
	if want := "http://collector:4318/base/v1/traces"; err != nil || target != want {
		t.Errorf("target %q, %v, want %q", target, err, want)
	}
	client, err := (&TraceConfig{Version: "1"}).client(target)
	if err != nil {
		t.Fatal(err)
	}
	if h := client.header; h.Get("x-key") != "a b" || h.Get("x-other") != "c=d" || h.Get("User-Agent") != "procfleet/1" {
		t.Errorf("headers %v", h)
	}
	if !client.gzip || client.http.Timeout != 1500*time.Millisecond {
		t.Errorf("compressed %v, timeout %v", client.gzip, client.http.Timeout)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4318/as-is")
	if target, err := endpoint(""); err != nil || target != "http://collector:4318/as-is" {
		t.Errorf("target %q, %v", target, err)
	}
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "zstd",
		"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "10s", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "secret",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			if err := (TraceConfig{}).Validate(); err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "secret") {
				t.Errorf("error %v, want one that names the variable and no secret", err)
			}
		})
	}
	t.Setenv("OTEL_SDK_DISABLED", "true")
	if target, err := endpoint(""); err != nil || target != "" {
		t.Errorf("disabled: target %q, %v", target, err)
	}
}
