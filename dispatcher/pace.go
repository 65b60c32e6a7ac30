package dispatcher

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/procfleet/procfleet/dispatcher/dialect"
)

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
