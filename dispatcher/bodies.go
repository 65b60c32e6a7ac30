package dispatcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// bodies limits the request bodies that are processed at the same time. A decoded
// request needs many times the memory of its body while it waits for the store or the
// queue.
type bodies struct {
	big   *semaphore.Weighted // weight 1 per body
	small *semaphore.Weighted // weight in bytes
	limit int64               // capacity of small
}

const (
	// bigBody is the size in bytes above which bodies are limited by number instead of
	// size.
	bigBody = 1 << 20
	// leastBody is the minimum number of bytes that a request reserves, even without a
	// body.
	leastBody = 4 << 10
	// bigBodyWait and smallBodyWait are how long a request waits for memory before it
	// is rejected.
	bigBodyWait   = 30 * time.Second
	smallBodyWait = 2 * time.Second
)

func newBodies(l *Limits) bodies {
	return bodies{big: semaphore.NewWeighted(int64(l.BigBodies)), small: semaphore.NewWeighted(l.SmallBodies), limit: l.SmallBodies}
}

func small(length int64) bool { return length >= 0 && length <= bigBody }

// reserve waits for the memory for a body of the given length; call release to free it.
// If the memory is not available in time, the error is [dialect.Unavailable].
func (b *bodies) reserve(ctx context.Context, length int64) (release func(), err error) {
	memory, weight, wait := b.big, int64(1), bigBodyWait
	if small(length) {
		memory, weight, wait = b.small, min(max(length, leastBody), b.limit), smallBodyWait
	}
	if err := acquire(ctx, memory, weight, wait, "too many requests are in progress; nothing was done, try again later"); err != nil {
		return func() {}, err
	}
	return sync.OnceFunc(func() { memory.Release(weight) }), nil
}

// acquire acquires a weight of memory. If it is not available within wait, the error is
// [dialect.Unavailable] with the given problem.
func acquire(ctx context.Context, memory *semaphore.Weighted, weight int64, wait time.Duration, problem string) error {
	bounded, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	err := memory.Acquire(bounded, weight)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return &dialect.Error{Kind: dialect.Unavailable, Problem: problem, RetryAfter: retryFull}
}

func bodyTooLarge(limit int64) *dialect.Error {
	return &dialect.Error{
		Kind: dialect.TooLarge, Field: "body", Problem: fmt.Sprintf("is larger than %d bytes; divide the request", limit),
	}
}

// body reads the request's body into in, and sets release.
func (e *exchange) body(in *dialect.Request, unauthenticated bool) (err error) {
	limit, length := e.api.cfg.Limits.Body, e.r.ContentLength
	if length > limit {
		return bodyTooLarge(limit)
	}
	if unauthenticated {
		in.Body, e.release, err = e.readUnauthenticated(e.r.Context())
		return err
	}
	if e.release, err = e.api.bodies.reserve(e.r.Context(), length); err != nil {
		return err
	}
	var body bytes.Buffer
	body.Grow(int(max(length, 0)) + bytes.MinRead)
	pace := e.pace()
	n, err := body.ReadFrom(io.LimitReader(&pacedBody{Reader: e.r.Body, pace: pace}, limit+1))
	pace.end(err)
	switch {
	case err != nil:
		return cutOff(err)
	case n > limit:
		return bodyTooLarge(limit)
	}
	in.Body = body.Bytes()
	return nil
}

// move reserves memory in the part for authenticated callers and releases the memory
// that the body held in the part for unauthenticated callers.
func (e *exchange) move(in *dialect.Request) (err error) {
	defer e.release()
	e.release, err = e.api.bodies.reserve(e.r.Context(), int64(len(in.Body)))
	return err
}

// skip reads and discards up to most bytes of the body.
func (e *exchange) skip(most int64) {
	if e.r.Header.Get("Expect") != "" {
		return // the client sends the body only after a 100 Continue
	}
	_, _ = io.CopyN(io.Discard, e.r.Body, most) // the response was decided before
}

const (
	// A caller must send every largestStep bytes of its body within stepTime.
	largestStep = 64 << 10
	stepTime    = 5 * time.Second
)

// pace disconnects callers that send their bodies too slowly. Each step and the whole
// body have a deadline.
type pace struct {
	control *http.ResponseController
	whole   time.Time
}

func (e *exchange) pace() pace {
	return pace{http.NewResponseController(e.w), e.start.Add(e.api.cfg.Timeouts.Read)}
}

func (p pace) step() {
	deadline := time.Now().Add(stepTime)
	if p.whole.Before(deadline) {
		deadline = p.whole
	}
	p.until(deadline)
}

// end sets the read deadline for the rest of the request. After an error it allows one
// more step, which net/http reads before it closes the connection.
func (p pace) end(err error) {
	if err != nil {
		p.step()
		return
	}
	p.until(p.whole)
}

func (p pace) until(deadline time.Time) {
	_ = p.control.SetReadDeadline(deadline) // fails for writers without deadlines, for example in tests
}

// pacedBody is a body reader that sets a deadline for each step.
type pacedBody struct {
	io.Reader
	pace
	left int // bytes left in the step
}

func (b *pacedBody) Read(into []byte) (int, error) {
	if b.left == 0 {
		b.step()
		b.left = largestStep
	}
	n, err := b.Reader.Read(into[:min(len(into), b.left)])
	b.left -= n
	return n, err
}

func cutOff(err error) *dialect.Error {
	problem := "ends too early"
	if errors.Is(err, os.ErrDeadlineExceeded) {
		problem = "arrives too slowly"
	}
	return &dialect.Error{Kind: dialect.Malformed, Field: "body", Problem: problem}
}

// If the body contains the credentials, its caller is unauthenticated until the body
// was read. Memory for such a body is reserved as its bytes arrive, not as its
// Content-Length declares, from a part that all unauthenticated callers share.

// segmentWait is how long a body waits for more memory. It is short, because every
// waiting body holds memory for which others wait.
const segmentWait = time.Second

// readUnauthenticated reads the body of an unauthenticated caller; call release to free
// its memory. The first step is leastBody bytes; each step is twice as large as the
// previous one, up to largestStep.
func (e *exchange) readUnauthenticated(ctx context.Context) (body []byte, release func(), err error) {
	limit, length, held := e.api.cfg.Limits.Body, e.r.ContentLength, int64(0)
	release = func() {
		e.api.unauthenticated.Release(held)
		held = 0
	}
	pace := e.pace()
	defer func() { pace.end(err) }()
	for step := int64(leastBody); ; step = min(2*step, largestStep) {
		if length >= 0 {
			step = min(step, length-int64(len(body)))
		}
		if step == 0 {
			return body, release, nil
		}
		err = acquire(ctx, e.api.unauthenticated, step, segmentWait,
			"too many bodies that contain credentials are being received; nothing was done, try again later, or name the application in a header")
		if err != nil {
			return nil, release, err
		}
		held += step
		pace.step()
		body, err = appendUpTo(body, e.r.Body, int(step))
		switch size := int64(len(body)); {
		case size > limit:
			return nil, release, bodyTooLarge(limit)
		case errors.Is(err, io.EOF) && (length < 0 || size == length):
			return body, release, nil
		case err != nil:
			return nil, release, cutOff(err)
		}
	}
}

// appendUpTo appends up to size bytes of r. If it appends fewer, it returns the error.
func appendUpTo(body []byte, r io.Reader, size int) ([]byte, error) {
	body = slices.Grow(body, size)
	for end := len(body) + size; ; {
		n, err := r.Read(body[len(body):end])
		if body = body[:len(body)+n]; err != nil || len(body) == end {
			return body, err
		}
	}
}
