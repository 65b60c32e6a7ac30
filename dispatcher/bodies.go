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

// bodies is the room for bodies of requests that are worked on: what they say
// takes many times their size, for as long as the store or the queue lets it
// wait.
type bodies struct {
	big   *semaphore.Weighted // by number
	small *semaphore.Weighted // by bytes
	limit int64               // of small
}

const (
	// bigBody is from how many bytes on a body is a big one.
	bigBody = 1 << 20
	// leastBody is what a request costs at least, with or without a body.
	leastBody = 4 << 10
	// bigBodyWait and smallBodyWait are how long a caller waits for room before
	// it is told to come again.
	bigBodyWait   = 30 * time.Second
	smallBodyWait = 2 * time.Second
)

func newBodies(l *Limits) bodies {
	return bodies{big: semaphore.NewWeighted(int64(l.BigBodies)), small: semaphore.NewWeighted(l.SmallBodies), limit: l.SmallBodies}
}

// small tells by its length, negative if that is not known, whether a body is
// none of the big ones.
func small(length int64) bool { return length >= 0 && length <= bigBody }

// take waits until a body of the given length may be worked on; release gives
// the room back. A caller for whom there is none in time is told to come again.
func (b *bodies) take(ctx context.Context, length int64) (release func(), err error) {
	room, weight, wait := b.big, int64(1), bigBodyWait
	if small(length) {
		room, weight, wait = b.small, min(max(length, leastBody), b.limit), smallBodyWait
	}
	bounded, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	switch err := room.Acquire(bounded, weight); {
	case ctx.Err() != nil && err != nil:
		return func() {}, context.Cause(ctx)
	case err != nil:
		return func() {}, &dialect.Error{
			Kind: dialect.Unavailable, Problem: "too many requests are being worked on; nothing was done, try again later", RetryAfter: retryFull,
		}
	}
	return sync.OnceFunc(func() { room.Release(weight) }), nil
}

// tooLarge refuses a body above the limit.
func tooLarge(limit int64) *dialect.Error {
	return &dialect.Error{
		Kind: dialect.TooLarge, Field: "body", Problem: fmt.Sprintf("is larger than %d bytes; divide the request", limit),
	}
}

// body reads the request's body into in, and sets release.
func (e *exchange) body(in *dialect.Request, stranger bool) (err error) {
	limit, length := e.api.cfg.Limits.Body, e.r.ContentLength
	if length > limit {
		e.skip(2 * limit)
		return tooLarge(limit)
	}
	if stranger {
		in.Body, e.release, err = e.readStranger(e.r.Context())
		return err
	}
	if e.release, err = e.api.bodies.take(e.r.Context(), length); err != nil {
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
	e.release, err = e.api.bodies.take(e.r.Context(), int64(len(in.Body)))
	return err
}

// skip reads on for a while without keeping anything: many callers look for
// an answer only after they have sent everything.
func (e *exchange) skip(most int64) {
	if e.r.Header.Get("Expect") != "" {
		return // this caller waits with its body until it is asked for
	}
	_, _ = io.CopyN(io.Discard, e.r.Body, most) // the answer is the same however this ends
}

const (
	// largestStep is for how many bytes of a body a caller has stepTime.
	largestStep = 64 << 10
	stepTime    = 5 * time.Second
)

// pace ends callers who send their bodies too slowly: each step has a deadline,
// and so has the whole.
type pace struct {
	control *http.ResponseController
	whole   time.Time
}

func (e *exchange) pace() pace {
	return pace{http.NewResponseController(e.w), e.start.Add(e.api.cfg.Timeouts.Read)}
}

// step begins the time for the next step.
func (p pace) step() { p.until(earlier(time.Now().Add(stepTime), p.whole)) }

// end ends the steps. After an error net/http reads on for one more before it
// ends the connection.
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

// pacedBody begins a step whenever the one before is read.
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

// cutOff explains why a body could not be read to its end.
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

// Callers who name themselves in their bodies are strangers until the body was
// read. Room for what they send is taken as it comes, not as it is declared,
// from a part of the memory that all strangers share.

// strangerWait is how long one waits for room, while it holds some: all would
// wait for each other.
const strangerWait = time.Second

// strangersBody is what was read of a stranger's body, and its room.
type strangersBody struct {
	room     *semaphore.Weighted
	held     int64
	segments [][]byte
	size     int64
}

// release gives all room back; it may be called again.
func (b *strangersBody) release() {
	b.room.Release(b.held)
	b.held, b.segments = 0, nil
}

// take adds room for one step.
func (b *strangersBody) take(ctx context.Context, size int64) error {
	bounded, cancel := context.WithTimeout(ctx, strangerWait)
	defer cancel()
	switch err := b.room.Acquire(bounded, size); {
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

// readStranger reads the body of a caller who is not known yet. The room that
// it takes is released by release. The first step is of leastBody, and each is
// twice the one before.
func (e *exchange) readStranger(ctx context.Context) (body []byte, release func(), err error) {
	limit, length := e.api.cfg.Limits.Body, e.r.ContentLength
	b := &strangersBody{room: e.api.strangers}
	pace := e.pace()
	defer func() { pace.end(err) }()
	for step := int64(leastBody); ; step = min(2*step, largestStep) {
		if length >= 0 {
			step = min(step, length-b.size)
		}
		if step == 0 {
			break
		}
		if err = b.take(ctx, step); err != nil {
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

func (b *strangersBody) whole() []byte {
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
