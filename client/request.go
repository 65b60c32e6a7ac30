package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"time"
)

// maxAnswer is the maximum size of a response in bytes; a page of 1000 results of
// the largest size has a quarter of this size.
const maxAnswer = 64 << 20

// maxObjects is the maximum number of objects in a response: an empty object of
// three bytes may need hundreds of bytes in memory.
const maxObjects = 1 << 19

// request is a request that any of the servers can handle.
type request struct {
	method, path string
	body         []byte // nil: no body
	contentType  string // content type of body; empty: JSON
	key          string // Idempotency-Key header; empty: none
	policy       string // Procfleet-Rollout header; empty: none
	override     string // Procfleet-Override-Windows header; empty: none
	ifMatch      string // If-Match header; empty: none
}

func get(path string) request { return request{method: http.MethodGet, path: path} }

// do sends a request, with retries, and decodes the response.
func (c *Client) do(ctx context.Context, r request, into any) error {
	return c.persist(ctx, func(server address) error { return c.attempt(ctx, server, r, into) })
}

// send is do with a JSON body.
func (c *Client) send(ctx context.Context, method, path string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	return c.do(ctx, request{method: method, path: path, body: text}, into)
}

// persist calls try with one server after the other until the error is final or nil.
func (c *Client) persist(ctx context.Context, try func(server address) error) error {
	var o outage
	for {
		err := c.round(try)
		if err == nil || !retryable(err) {
			return err
		}
		if err := c.pause(ctx, &o, err); err != nil {
			return err
		}
	}
}

// round calls try once for each server, beginning with the last one that replied.
// Its error joins the errors of all servers.
func (c *Client) round(try func(server address) error) error {
	var failures error
	for range c.servers {
		n := c.current.Load()
		err := try(c.servers[n])
		switch {
		case err == nil || !retryable(err):
			return err
		case failures == nil:
			failures = err
		default:
			failures = fmt.Errorf("%w; %w", failures, err)
		}
		c.selectNext(n)
	}
	return failures
}

// selectNext selects the server after the n-th as the first to try, unless another call
// has already done so.
func (c *Client) selectNext(n int64) {
	c.current.CompareAndSwap(n, (n+1)%int64(len(c.servers)))
}

// outage is the state of a call since its first failure. The zero outage has not
// begun.
type outage struct {
	since time.Time
	next  time.Duration
}

const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// pause waits before the next attempt. It returns an error if no further attempt is
// allowed, because the context or the patience ended.
func (c *Client) pause(ctx context.Context, o *outage, failure error) error {
	if ctx.Err() != nil {
		return ended(ctx, failure)
	}
	if c.patience < 0 {
		return failure
	}
	if o.since.IsZero() {
		o.since, o.next = time.Now(), firstPause
		c.trouble(failure)
	}
	pause := jitter(o.next)
	o.next = min(o.next*2, longestPause)
	if answer, ok := errors.AsType[*Error](failure); ok {
		pause = max(pause, answer.RetryAfter)
	}
	if c.patience > 0 {
		left := c.patience - time.Since(o.since)
		if left <= 0 {
			return failure
		}
		pause = min(pause, left)
	}
	return sleep(ctx, pause, failure)
}

// sleep waits for d; last is the last error, reported if the context ends.
func sleep(ctx context.Context, d time.Duration, last error) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ended(ctx, last)
	}
}

// jitter returns 50 to 150 % of d, to spread clients that lost the same server.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }

// attempt sends a request to one server and decodes the response.
func (c *Client) attempt(ctx context.Context, server address, r request, into any) error {
	bounded, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer within %v", c.timeout))
	defer cancel()
	req, err := c.newRequest(bounded, server, r)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return noAnswer(ctx, bounded, server, err)
	}
	defer resp.Body.Close()
	data, err := readAnswer(resp.Body)
	switch {
	case errors.Is(err, ErrBadResponse):
		return fmt.Errorf("%s%s: %w", server, r.path, err)
	case err != nil:
		return noAnswer(ctx, bounded, server, err)
	case resp.StatusCode/100 != 2:
		return refusal(server, resp, data)
	case into == nil:
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s%s: %w: %s", server, r.path, ErrBadResponse, excerpt(err.Error())) // the decoding error may quote a number in full
	}
	return nil
}

func (c *Client) newRequest(ctx context.Context, server address, r request) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, string(server)+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "procfleet-client")
	req.Header.Set("Accept", "application/json")
	if r.body != nil {
		req.Header.Set("Content-Type", cmp.Or(r.contentType, "application/json"))
	}
	if r.ifMatch != "" {
		req.Header.Set("If-Match", r.ifMatch)
	}
	if r.key != "" {
		req.Header.Set("Idempotency-Key", r.key)
	}
	if r.policy != "" {
		req.Header.Set("Procfleet-Rollout", r.policy)
	}
	if r.override != "" {
		req.Header.Set("Procfleet-Override-Windows", r.override)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	return req, nil
}

// readAnswer reads a response body and rejects one that is too large.
func readAnswer(body io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	switch {
	case err != nil:
		return data, err
	case len(data) > maxAnswer:
		return nil, fmt.Errorf("%w: it is larger than %d MiB", ErrBadResponse, maxAnswer>>20)
	case objects(data) > maxObjects:
		return nil, fmt.Errorf("%w: there are more than %d objects in it", ErrBadResponse, maxObjects)
	}
	return data, nil
}

// objects counts the objects and nulls in a JSON text; a null may decode to an object.
func objects(text []byte) (n int) {
	for inString, i := false, 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && inString:
			i++
		case c == '"':
			inString = !inString
		case (c == '{' || c == 'n') && !inString: // outside strings, only null contains an n
			n++
		}
	}
	return n
}

// noAnswer returns the error for a request without a response. bounded is the
// context of the request, derived from the caller's ctx.
func noAnswer(ctx, bounded context.Context, server address, err error) error {
	switch {
	case ctx.Err() != nil:
		return ended(ctx, nil)
	case bounded.Err() != nil:
		err = context.Cause(bounded)
	}
	if inner, ok := errors.AsType[*url.Error](err); ok {
		err = inner.Err // the returned error already contains the server
	}
	_, badCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, notTLS := errors.AsType[tls.RecordHeaderError](err)
	notTLS = notTLS || errors.Is(err, http.ErrSchemeMismatch)
	switch {
	case errors.Is(err, errRedirected):
		return fmt.Errorf("%s: %w", server, err)
	case badCertificate, notTLS: // a retry would fail again
		return fmt.Errorf("%s: %w", server, err)
	}
	op, ok := errors.AsType[*net.OpError](err)
	return &connectionError{server: server, cause: err, unsent: ok && op.Op == "dial"}
}
