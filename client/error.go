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

// Error is a server's response to a request that failed.
type Error struct {
	Status int    // of HTTP
	Code   string // the API's word, for example "invalid_request"; empty if something else answered
	// Field is the invalid field, for example "process.proc_name".
	Field   string
	Message string
	// Task is the task that the failure is about, if there is one.
	Task procfleet.TaskID
	// RequestID finds the request in the server's log.
	RequestID string
	// RetryAfter is the shortest pause before a retry that the server demands; zero
	// if none.
	RetryAfter time.Duration
	// foreign is set for a response of another program, such as a proxy.
	foreign bool
}

func (e *Error) Error() string {
	if e.Field != "" && !strings.Contains(e.Message, e.Field) {
		return e.Field + ": " + e.Message
	}
	return e.Message
}

// Retryable reports whether the same request may succeed later: the server is
// busy, or the server, a part of it or a proxy is unavailable.
func (e *Error) Retryable() bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// The kinds of [Error], for [errors.Is].
var (
	ErrNotFound    = errors.New("no such task") // 404 of procfleet itself
	ErrInvalid     = errors.New("invalid request")
	ErrConflict    = errors.New("the idempotency key was used for another request")
	ErrVersion     = errors.New("another version is there than was to be replaced")
	ErrDenied      = errors.New("not allowed")
	ErrUnavailable = errors.New("server unavailable") // what is Retryable
)

// versionField is the field of a conflict about a version.
const versionField = "version"

// Is makes an Error one of the kinds.
func (e *Error) Is(kind error) bool {
	switch kind {
	case ErrNotFound:
		return e.Status == http.StatusNotFound && !e.foreign // a proxy does not know tasks
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
	case ErrBadAnswer:
		return e.foreign && !e.Retryable() // a proxy sends retryable ones for an unavailable server
	}
	return false
}

var (
	// ErrUnreachable means that no server could be connected to, or that the
	// connection broke before the answer was complete.
	ErrUnreachable = errors.New("server not reachable")
	// ErrBadAnswer means that a response was not one of procfleet.
	ErrBadAnswer = errors.New("this is not an answer of procfleet")
	// ErrUnknown matches every [UnknownError].
	ErrUnknown = errors.New("the task may have been accepted or not")
)

// UnknownError ends a Submit whose task may exist. Submitting the same again
// with IdempotencyKey finds the task or makes it, and never makes a second
// one.
type UnknownError struct {
	IdempotencyKey string
	// Task is the task's id if the server could name it.
	Task procfleet.TaskID
	Err  error
}

func (e *UnknownError) Error() string { return fmt.Sprintf("%v (%v)", e.Err, ErrUnknown) }

// Unwrap returns the failure and [ErrUnknown].
func (e *UnknownError) Unwrap() []error { return []error{e.Err, ErrUnknown} }

// connectionError is a failure without a response.
type connectionError struct {
	server address
	cause  error
	// unsent is true if the request surely did not reach the server.
	unsent bool
}

func (e *connectionError) Error() string {
	return fmt.Sprintf("%v at %s: %v", ErrUnreachable, e.server, e.cause)
}

func (e *connectionError) Unwrap() []error { return []error{ErrUnreachable, e.cause} }

// stopped is the error of a caller's context that ended; its text is the cause.
type stopped struct {
	cause, err error
	last       error // what was wrong when it came; may be nil
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

// ended returns the error of a context that has ended.
func ended(ctx context.Context, last error) error {
	return &stopped{cause: context.Cause(ctx), err: ctx.Err(), last: last}
}

// retryable reports whether a retry may succeed.
func retryable(err error) bool {
	if errors.As(err, new(*stopped)) {
		return false
	}
	if answer, ok := errors.AsType[*Error](err); ok {
		return answer.Retryable()
	}
	return errors.Is(err, ErrUnreachable)
}

// refusal returns the Error of a response that is not a success.
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

// longestMessage bounds a server's message in errors, in bytes.
const longestMessage = 16 << 10

// retryAfter reads the header of that name, seconds or a date.
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

// excerpt returns the beginning of a foreign text for a message.
func excerpt[T string | []byte | procfleet.TaskID | v1.ErrorCode](foreign T) string {
	const longest = 200
	text := strings.ToValidUTF8(string(foreign[:min(len(foreign), longest)]), "")
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
}
