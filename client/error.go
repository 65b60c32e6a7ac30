package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

// Error is a server's error response.
type Error struct {
	Status int    // HTTP status
	Code   string // API error code, for example "invalid_request"; empty for responses of other programs
	// Field is the invalid field, for example "process.proc_name".
	Field   string
	Message string
	// Task is the task concerned, if any.
	Task procfleet.TaskID
	// RequestID identifies the request in the server's log.
	RequestID string
	// RetryAfter is the minimum pause before a retry that the server demands, or zero.
	RetryAfter time.Duration
	// foreign is true for a response of another program, such as a proxy.
	foreign bool
}

func (e *Error) Error() string {
	if e.Field != "" && !strings.Contains(e.Message, e.Field) {
		return e.Field + ": " + e.Message
	}
	return e.Message
}

// Retryable reports whether the same request may succeed later: the server is
// overloaded, or the server, a part of it or a proxy is unavailable.
func (e *Error) Retryable() bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// Kinds of [Error], for [errors.Is].
var (
	ErrNotFound    = errors.New("no such task") // status 404, unless sent by a proxy
	ErrInvalid     = errors.New("invalid request")
	ErrConflict    = errors.New("the idempotency key was used for another request")
	ErrVersion     = errors.New("the current version is not the one to replace")
	ErrDenied      = errors.New("not allowed")
	ErrUnavailable = errors.New("server unavailable") // every Retryable error
)

// versionField is the field of a conflict between versions.
const versionField = "version"

// Is reports whether the error is of the given kind.
func (e *Error) Is(kind error) bool {
	switch kind {
	case ErrNotFound:
		return e.Status == http.StatusNotFound && !e.foreign // a proxy's 404 does not concern the task
	case ErrInvalid:
		return e.Status == http.StatusBadRequest || e.Status == http.StatusRequestEntityTooLarge
	case ErrConflict:
		return e.Status == http.StatusConflict && e.Field != versionField
	case ErrVersion:
		return e.Status == http.StatusConflict && e.Field == versionField
	case ErrDenied:
		return e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden
	case ErrUnavailable:
		return e.Retryable()
	case ErrBadResponse:
		return e.foreign && !e.Retryable() // a retryable response of a proxy means ErrUnavailable
	}
	return false
}

var (
	// ErrUnreachable means that no server accepted a connection, or that the
	// connection broke before the response was complete.
	ErrUnreachable = errors.New("server not reachable")
	// ErrBadResponse means that a response does not come from procfleet.
	ErrBadResponse = errors.New("response not from procfleet")
	// ErrUnknown matches every [UnknownError].
	ErrUnknown = errors.New("the task may have been accepted or not")
)

// UnknownError is returned by Submit if the task may exist. A retry with
// IdempotencyKey finds the task or creates it, and never creates a second one.
type UnknownError struct {
	IdempotencyKey string
	// Task is the id of the task, if the server reported it.
	Task procfleet.TaskID
	Err  error
}

func (e *UnknownError) Error() string { return fmt.Sprintf("%v (%v)", e.Err, ErrUnknown) }

// Unwrap returns Err and [ErrUnknown].
func (e *UnknownError) Unwrap() []error { return []error{e.Err, ErrUnknown} }

// connectionError is an error without a response.
type connectionError struct {
	server address
	cause  error
	// unsent is true if the request certainly did not reach the server.
	unsent bool
}

func (e *connectionError) Error() string {
	return fmt.Sprintf("%v at %s: %v", ErrUnreachable, e.server, e.cause)
}

func (e *connectionError) Unwrap() []error { return []error{ErrUnreachable, e.cause} }

// stopped is the error after the end of the caller's context; its text is the cause.
type stopped struct {
	cause, err error
	last       error // error of the last attempt; may be nil
}

func (s *stopped) Error() string {
	if s.last == nil {
		return s.cause.Error()
	}
	return fmt.Sprintf("%v; the last attempt: %v", s.cause, s.last)
}

func (s *stopped) Unwrap() []error {
	if s.last == nil {
		return []error{s.cause, s.err}
	}
	return []error{s.cause, s.err, s.last}
}

// ended returns the error for a context that has ended; last may be nil.
func ended(ctx context.Context, last error) error {
	return &stopped{cause: context.Cause(ctx), err: ctx.Err(), last: last}
}

// retryable reports whether a retry may succeed after err.
func retryable(err error) bool {
	if errors.As(err, new(*stopped)) {
		return false
	}
	if answer, ok := errors.AsType[*Error](err); ok {
		return answer.Retryable()
	}
	return errors.Is(err, ErrUnreachable)
}

// refusal returns the Error for an error response.
func refusal(server address, resp *http.Response, body []byte) *Error {
	e := &Error{
		Status: resp.StatusCode, RequestID: resp.Header.Get("X-Bkapi-Request-Id"),
		RetryAfter: retryAfter(resp.Header.Get("Retry-After")),
	}
	var answer v1.Failure
	if err := json.Unmarshal(body, &answer); err != nil || answer.Error.Message == "" {
		e.foreign = true
		e.Message = strings.TrimSpace(fmt.Sprintf("%s answered %d %s %s", server, resp.StatusCode, http.StatusText(resp.StatusCode), excerpt(body)))
		return e
	}
	e.Code, e.Field, e.Task = excerpt(answer.Error.Code), excerpt(answer.Error.Field), procfleet.TaskID(excerpt(answer.Error.Task))
	e.Message = strings.ToValidUTF8(answer.Error.Message[:min(len(answer.Error.Message), longestMessage)], "")
	return e
}

// longestMessage is the maximum size of a server's message in errors, in bytes.
const longestMessage = 16 << 10

// retryAfter parses a Retry-After header: seconds or a date; at most one minute.
func retryAfter(text string) time.Duration {
	const longest = time.Minute
	if seconds, err := strconv.Atoi(text); err == nil {
		return min(time.Duration(max(seconds, 0))*time.Second, longest)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(time.Until(at), 0), longest)
	}
	return 0
}

// excerpt returns the beginning of text from a server, for an error message.
func excerpt[T string | []byte | procfleet.TaskID | v1.ErrorCode](foreign T) string {
	const longest = 200
	text := strings.ToValidUTF8(string(foreign[:min(len(foreign), longest)]), "")
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
}
