package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/bus"
)

// Outputs reads the output of processes from agents.
type Outputs interface {
	Output(ctx context.Context, q bus.OutputQuery) (bus.OutputPage, error)
}

const (
	// outputWait bounds the wait of a request that follows the output, and outputPoll is the
	// interval of its queries.
	outputWait = 5 * time.Second
	outputPoll = 300 * time.Millisecond
	// outputTimeout bounds the wait for the reply of an agent.
	outputTimeout = 3 * time.Second
)

// showOutput returns a page of the output of a process. It records the first page of a caller in
// the audit log; a request that continues a page has the position of that page.
func (e *exchange) showOutput(ctx context.Context, q *dialect.OutputQuery, at *targetHosts) (v1.OutputPage, error) {
	if e.api.cfg.Outputs == nil {
		return v1.OutputPage{}, &dialect.Error{Kind: dialect.Unavailable, Problem: "this server does not read output", RetryAfter: retryUnavailable}
	}
	request := bus.OutputQuery{Host: at.hosts[0], Key: q.Process, Tail: q.Tail, Log: q.Log}
	if !q.Since.IsZero() {
		request.Age = max(time.Millisecond, time.Since(q.Since))
	}
	if q.Cursor != "" {
		var err error
		if request.File, request.Offset, err = outputPosition(q.Cursor); err != nil {
			return v1.OutputPage{}, err
		}
	} else if err := e.auditChange(ctx, changeOf("read output", q.Business, at.hosts, q.Process)); err != nil {
		return v1.OutputPage{}, err
	}
	for begun := time.Now(); ; {
		page, err := e.outputPage(ctx, request)
		if err != nil || !q.Follow || q.Cursor == "" || page.Data != "" || time.Since(begun) > outputWait {
			return page, err
		}
		select {
		case <-ctx.Done():
			return page, nil
		case <-time.After(outputPoll):
		}
	}
}

func (e *exchange) outputPage(ctx context.Context, request bus.OutputQuery) (v1.OutputPage, error) {
	ctx, cancel := context.WithTimeout(ctx, outputTimeout)
	defer cancel()
	page, err := e.api.cfg.Outputs.Output(ctx, request)
	switch {
	case errors.Is(err, bus.ErrNoAgent), errors.Is(err, bus.ErrUnavailable):
		return v1.OutputPage{}, &dialect.Error{Kind: dialect.Unavailable, Problem: err.Error(), RetryAfter: retryUnavailable}
	case err != nil:
		return v1.OutputPage{}, fmt.Errorf("read output of %s on %s: %w", request.Key, request.Host, err)
	case page.File == "":
		problem := "the agent of host " + request.Host.String() + " has no output of process " + request.Key
		if page.Problem != "" {
			problem = fmt.Sprintf("host %s: %.500s", request.Host, page.Problem)
		}
		return v1.OutputPage{}, &dialect.Error{Kind: dialect.NotFound, Problem: problem}
	}
	data := page.Data
	if page.More {
		data = wholeCharacters(data)
	}
	next := page.Next - int64(len(page.Data)-len(data))
	return v1.OutputPage{Data: strings.ToValidUTF8(string(data), "\uFFFD"), Next: page.File + "-" + strconv.FormatInt(next, 10), More: page.More, Lost: page.Lost}, nil
}

// wholeCharacters returns text without an incomplete character at its end.
func wholeCharacters(text []byte) []byte {
	for back := 1; back < utf8.UTFMax && back < len(text); back++ {
		if at := len(text) - back; utf8.RuneStart(text[at]) {
			if !utf8.FullRune(text[at:]) {
				return text[:at]
			}
			break
		}
	}
	return text
}

// outputPosition parses the Next of a page.
func outputPosition(cursor string) (file string, offset int64, err error) {
	file, rest, _ := strings.Cut(cursor, "-")
	offset, err = strconv.ParseInt(rest, 10, 64)
	if _, bad := strconv.ParseInt(file, 10, 64); err != nil || bad != nil || offset < 0 {
		return "", 0, &dialect.Error{Kind: dialect.InvalidField, Field: "cursor", Problem: "is not the next of a page before"}
	}
	return file, offset, nil
}
