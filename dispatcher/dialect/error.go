package dialect

import (
	"errors"
	"fmt"
	"time"

	"github.com/procfleet/procfleet"
)

// Kind is the class of an [Error]; each dialect has its own code for it.
type Kind int

// The kinds of failure.
const (
	// Internal is a fault of ours. It is the zero value so that a failure
	// nobody classified is never blamed on the caller.
	Internal Kind = iota
	// Malformed: the body is not what it claims to be.
	Malformed
	// BadHeader: the credentials header cannot be read.
	BadHeader
	// InvalidField: a field is missing, of the wrong type or out of range.
	InvalidField
	// TooLarge: the body or the number of items is over the limit.
	TooLarge
	// NotFound: there is no such task.
	NotFound
	// Conflict: the idempotency key was used for another request.
	Conflict
	// Expired: the caller said until when it was to be accepted.
	Expired
	// NoRoute: no call has this path.
	NoRoute
	// BadMethod: a call has this path, but not this method.
	BadMethod
	// Unavailable: nothing was done; try again later.
	Unavailable
	// OutcomeUnknown: a task may or may not have been accepted.
	OutcomeUnknown
)

// String is the code word of the native API.
func (k Kind) String() string { return nativeKindOf(k).code }

// Error is why a call is not answered as its caller wished.
type Error struct {
	Kind Kind
	// Field is what the problem is with, in the words of the dialect; it may
	// be empty.
	Field   string
	Problem string
	// Method and Path are what was asked for; only of [NoRoute] and [BadMethod].
	Method, Path string
	// Task is the task that the failure is about, if there is one.
	Task procfleet.TaskID
	// RetryAfter is when to try again; zero for kinds where trying again
	// does not help.
	RetryAfter time.Duration
}

func (f *Error) Error() string {
	if f.Field == "" {
		return f.Problem
	}
	return f.Field + ": " + f.Problem
}

// invalid is an Error of kind [InvalidField].
func invalid(field, format string, args ...any) *Error {
	return &Error{Kind: InvalidField, Field: field, Problem: fmt.Sprintf(format, args...)}
}

// required is the failure for a field that is absent, null or empty.
func required(field string) *Error { return invalid(field, "This field is required.") }

// refused turns the errors of the vocabulary's own validation into a failure
// that names the first field and counts the rest. The name function says what
// the dialect calls a field of the native form.
func refused(err error, name func(field string) string) *Error {
	problems := invalids(err, nil)
	if len(problems) == 0 {
		return &Error{Kind: InvalidField, Problem: err.Error()}
	}
	f := invalid(name(problems[0].Field), "%s", problems[0].Problem)
	if more := len(problems) - 1; more > 0 {
		f.Problem += fmt.Sprintf(" (and %d more problems)", more)
	}
	return f
}

func invalids(err error, found []*procfleet.FieldError) []*procfleet.FieldError {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			found = invalids(e, found)
		}
		return found
	}
	if one, ok := errors.AsType[*procfleet.FieldError](err); ok {
		found = append(found, one)
	}
	return found
}
