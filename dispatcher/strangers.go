package dispatcher

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/procfleet/procfleet/dispatcher/dialect"
)

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
