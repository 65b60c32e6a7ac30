package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	protobuf    = "application/x-protobuf"
	retryPause  = time.Second // before the first retry; doubled for each further retry
	maxResponse = 64 << 10    // maximum bytes read of a response
	shownBody   = 512         // maximum bytes of an error response in logs
)

// collectorClient sends spans by OTLP over HTTP with protobuf bodies. It implements
// [otlptrace.Client]. OpenTelemetry's own HTTP client would link all of gRPC; see
// docs/dependencies.md for the cost.
type collectorClient struct {
	url    string
	header http.Header
	gzip   bool
	http   *http.Client
}

// Start implements [otlptrace.Client]. It does not connect.
func (c *collectorClient) Start(context.Context) error { return nil }

// Stop implements [otlptrace.Client].
func (c *collectorClient) Stop(context.Context) error { return nil }

// UploadTraces sends spans, and retries while the collector requests it and ctx has
// not ended. The error is a [*partialError] if the collector rejected some spans.
func (c *collectorClient) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// TracesData has the same wire format as ExportTraceServiceRequest, whose
	// package imports gRPC.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return fmt.Errorf("encode spans: %w", err)
	}
	if c.gzip {
		body = compressed(body)
	}
	for pause := retryPause; ; pause *= 2 {
		after, err := c.post(ctx, body)
		if after < 0 {
			return err
		}
		after = max(after, pause/2+rand.N(pause))
		if end, ok := ctx.Deadline(); ok && time.Until(end) < after {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(after):
		}
	}
}

func compressed(body []byte) []byte {
	var small bytes.Buffer
	w := gzip.NewWriter(&small)
	_, _ = w.Write(body) // writing to a buffer cannot fail
	_ = w.Close()
	return small.Bytes()
}

// post sends one request. retryAfter is the delay before a retry; negative: do not
// retry.
func (c *collectorClient) post(ctx context.Context, body []byte) (retryAfter time.Duration, err error) {
	const never = -1
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return never, err
	}
	req.Header = c.header.Clone()
	req.Header.Set("Content-Type", protobuf)
	if c.gzip {
		req.Header.Set("Content-Encoding", "gzip")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return never, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return never, fmt.Errorf("read the response of %s: %w", req.URL.Redacted(), err)
	}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return retryTime(resp.Header.Get("Retry-After")), responseError(req, resp, answer)
	}
	if resp.StatusCode/100 != 2 {
		return never, responseError(req, resp, answer)
	}
	if resp.Header.Get("Content-Type") != protobuf {
		return never, nil
	}
	return never, partialSuccess(answer)
}

func responseError(req *http.Request, resp *http.Response, body []byte) error {
	return fmt.Errorf("%s replied %s: %q", req.URL.Redacted(), resp.Status, body[:min(len(body), shownBody)])
}

// retryTime parses a Retry-After header, seconds or a date; 0 for any other text.
func retryTime(header string) time.Duration {
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if date, err := http.ParseTime(header); err == nil {
		return max(time.Until(date), 0)
	}
	return 0
}

// partialError reports spans that the collector rejected, or, if rejected is 0, a
// warning of the collector.
type partialError struct {
	rejected int64
	message  string
}

func (e *partialError) Error() string {
	return fmt.Sprintf("the collector rejected %d spans: %q", e.rejected, e.message[:min(len(e.message), shownBody)])
}

// partialSuccess decodes an ExportTraceServiceResponse, whose field 1 is
// {1: rejected_spans, 2: error_message}. It returns nil if all spans were accepted.
func partialSuccess(response []byte) error {
	var partial partialError
	err := fields(response, func(n protowire.Number, _ uint64, value []byte) error {
		if n != 1 {
			return nil
		}
		return fields(value, func(n protowire.Number, number uint64, text []byte) error {
			if n == 1 {
				partial.rejected = int64(number) //nolint:gosec // an int64 on the wire
			}
			if n == 2 {
				partial.message = string(text)
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("decode the collector's response: %w", err)
	}
	if partial == (partialError{}) {
		return nil
	}
	return &partial
}

// fields calls do for each field of a protobuf message, with a varint as number or
// with the bytes as value.
func fields(message []byte, do func(n protowire.Number, number uint64, value []byte) error) error {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		var number uint64
		var value []byte
		switch kind {
		case protowire.VarintType:
			number, size = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			value, size = protowire.ConsumeBytes(message)
		default:
			size = protowire.ConsumeFieldValue(n, kind, message)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		if err := do(n, number, value); err != nil {
			return err
		}
	}
	return nil
}
