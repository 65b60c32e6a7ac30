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

// bodies limits the request bodies that are processed at once. A decoded request
// needs many times the memory of its body, for as long as the store or the queue
// makes it wait.
type bodies struct {
	big   *semaphore.Weighted // by number
	small *semaphore.Weighted // by bytes
	limit int64               // of small
}

const (
	// bigBody is the size in bytes above which a body is limited by number.
	bigBody = 1 << 20
	// leastBody is the least that a request reserves, with or without a body.
	leastBody = 4 << 10
	// bigBodyWait and smallBodyWait are how long a caller waits for memory before
	// its request is rejected.
	bigBodyWait   = 30 * time.Second
	smallBodyWait = 2 * time.Second
)

func newBodies(l *Limits) bodies {
	return bodies{big: semaphore.NewWeighted(int64(l.BigBodies)), small: semaphore.NewWeighted(l.SmallBodies), limit: l.SmallBodies}
}

// small reports whether a body is limited by its bytes. A negative length is unknown.
func small(length int64) bool { return length >= 0 && length <= bigBody }

// reserve waits for the memory of a body of the given length, which release
// returns. If none is free in time the error is [dialect.Unavailable].
func (b *bodies) reserve(ctx context.Context, length int64) (release func(), err error) {
	memory, weight, wait := b.big, int64(1), bigBodyWait
	if small(length) {
		memory, weight, wait = b.small, min(max(length, leastBody), b.limit), smallBodyWait
	}
	bounded, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	switch err := memory.Acquire(bounded, weight); {
	case ctx.Err() != nil && err != nil:
		return func() {}, context.Cause(ctx)
	case err != nil:
		return func() {}, &dialect.Error{
			Kind: dialect.Unavailable, Problem: "too many requests are being worked on; nothing was done, try again later", RetryAfter: retryFull,
		}
	}
	return sync.OnceFunc(func() { memory.Release(weight) }), nil
}

// tooLarge refuses a body above the limit.
func tooLarge(limit int64) *dialect.Error {
	return &dialect.Error{
		Kind: dialect.TooLarge, Field: "body", Problem: fmt.Sprintf("is larger than %d bytes; divide the request", limit),
	}
}

// body reads the request's body into in, and sets release.
func (e *exchange) body(in *dialect.Request, unauthenticated bool) (err error) {
	limit, length := e.api.cfg.Limits.Body, e.r.ContentLength
	if length > limit {
		e.skip(2 * limit)
		return tooLarge(limit)
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
		e.release()
		e.skip(2 * limit)
		return tooLarge(limit)
	}
	in.Body = body.Bytes()
	return nil
}

// move replaces the memory that is reserved for the body of a caller who was
// unauthenticated by memory for authenticated callers.
func (e *exchange) move(in *dialect.Request) (err error) {
	defer e.release()
	e.release, err = e.api.bodies.reserve(e.r.Context(), int64(len(in.Body)))
	return err
}

// skip reads and discards more of the body: many clients read the response only
// after they have sent everything.
func (e *exchange) skip(most int64) {
	if e.r.Header.Get("Expect") != "" {
		return // this client sends its body only after a 100 Continue
	}
	_, _ = io.CopyN(io.Discard, e.r.Body, most) // the response does not depend on it
}

const (
	// A caller has stepTime for every largestStep bytes of its body.
	largestStep = 64 << 10
	stepTime    = 5 * time.Second
)

// pace disconnects callers who send their bodies too slowly: each step has a
// deadline, and so has the whole body.
type pace struct {
	control *http.ResponseController
	whole   time.Time
}

func (e *exchange) pace() pace {
	return pace{http.NewResponseController(e.w), e.start.Add(e.api.cfg.Timeouts.Read)}
}

// step sets the deadline of the next step.
func (p pace) step() { p.until(earlier(time.Now().Add(stepTime), p.whole)) }

// end sets the deadline of the rest of the request. After an error net/http reads
// for one more step before it closes the connection.
func (p pace) end(err error) {
	if err != nil {
		p.step()
		return
	}
	p.until(p.whole)
}

func (p pace) until(deadline time.Time) {
	_ = p.control.SetReadDeadline(deadline) // not every writer has deadlines
}

// pacedBody sets a deadline for each step.
type pacedBody struct {
	io.Reader
	pace
	left int // bytes of the step
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

// cutOff is the error for a body that could not be read to its end.
func cutOff(err error) *dialect.Error {
	problem := "ends too early"
	if errors.Is(err, os.ErrDeadlineExceeded) {
		problem = "comes too slowly"
	}
	return &dialect.Error{Kind: dialect.Malformed, Field: "body", Problem: problem}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// A caller whose credentials are in the body is unauthenticated until the body
// was read. Memory for such bodies is reserved as they arrive, not as their
// headers declare, from a part that all unauthenticated callers share.

// segmentWait is how long a body waits for more memory. It is short because the
// body holds memory meanwhile, and all bodies would wait for each other.
const segmentWait = time.Second

// unauthenticatedBody is the part of a body that was read, and its memory.
type unauthenticatedBody struct {
	memory   *semaphore.Weighted
	held     int64
	segments [][]byte
	size     int64
}

// release returns all memory; it may be called again.
func (b *unauthenticatedBody) release() {
	b.memory.Release(b.held)
	b.held, b.segments = 0, nil
}

// reserve reserves memory for one step.
func (b *unauthenticatedBody) reserve(ctx context.Context, size int64) error {
	bounded, cancel := context.WithTimeout(ctx, segmentWait)
	defer cancel()
	switch err := b.memory.Acquire(bounded, size); {
	case ctx.Err() != nil && err != nil:
		return context.Cause(ctx)
	case err != nil:
		return &dialect.Error{
			Kind: dialect.Unavailable, RetryAfter: retryFull,
			Problem: "too many bodies are being read of callers who name themselves nowhere else; nothing was done, try again later, or name the application in a header",
		}
	}
	b.held += size
	return nil
}

// readUnauthenticated reads the body of an unauthenticated caller; release returns
// its memory. The first step is leastBody bytes, and each is twice the one before.
func (e *exchange) readUnauthenticated(ctx context.Context) (body []byte, release func(), err error) {
	limit, length := e.api.cfg.Limits.Body, e.r.ContentLength
	b := &unauthenticatedBody{memory: e.api.unauthenticated}
	pace := e.pace()
	defer func() { pace.end(err) }()
	for step := int64(leastBody); ; step = min(2*step, largestStep) {
		if length >= 0 {
			step = min(step, length-b.size)
		}
		if step == 0 {
			break
		}
		if err = b.reserve(ctx, step); err != nil {
			return nil, b.release, err
		}
		pace.step()
		var segment []byte
		segment, err = readUpTo(e.r.Body, step)
		b.segments, b.size = append(b.segments, segment), b.size+int64(len(segment))
		switch {
		case b.size > limit:
			b.release()
			e.skip(2 * limit)
			return nil, b.release, tooLarge(limit)
		case errors.Is(err, io.EOF) && (length < 0 || b.size == length):
			return b.whole(), b.release, nil
		case err != nil:
			return nil, b.release, cutOff(err)
		}
	}
	return b.whole(), b.release, nil
}

func (b *unauthenticatedBody) whole() []byte {
	if len(b.segments) == 1 {
		return b.segments[0]
	}
	return slices.Concat(b.segments...)
}

// readUpTo reads size bytes, or fewer and why.
func readUpTo(r io.Reader, size int64) ([]byte, error) {
	segment := make([]byte, size)
	for n := 0; ; {
		read, err := r.Read(segment[n:])
		if n += read; err != nil || n == len(segment) {
			return segment[:n], err
		}
	}
}
