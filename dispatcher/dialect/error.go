package dialect

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
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
	// NotFound: there is no such task, or no such process in the catalogue.
	NotFound
	// Conflict: something stands against it that was there before: the
	// idempotency key was used for another request, or the name is taken.
	Conflict
	// Expired: the caller said until when it was to be accepted.
	Expired
	// NoRoute: no call has this path.
	NoRoute
	// BadMethod: a call has this path, but not this method.
	BadMethod
	// Unavailable: nothing was done; try again later.
	Unavailable
	// StoreFull: nothing was done, since the store has no room for new tasks.
	StoreFull
	// OutcomeUnknown: a task may or may not have been accepted.
	OutcomeUnknown
	// NoApplication: the caller does not say which application it is.
	NoApplication
	// NoSecret: it says so, but gives neither a secret nor a signature.
	NoSecret
	// UnknownApplication: there is no such application.
	UnknownApplication
	// WrongSecret: the secret is not that of the application.
	WrongSecret
	// BadSignature: the signature is not one of the application, or of another time.
	BadSignature
	// NoUser: the caller names no user, or the user is not authenticated.
	NoUser
	// BadToken: the user's bk_token does not count.
	BadToken
	// Forbidden: the application must not do this.
	Forbidden
)

// String is the code word of the native API.
func (k Kind) String() string { return string(nativeKindOf(k).code) }

// Error is why a call is not answered as its caller wished.
type Error struct {
	Kind Kind
	// Field is what the problem is with, in the words of the dialect; it may
	// be empty.
	Field   string
	Problem string
	// Application is who called, if that is what the failure is about.
	Application string
	// Denied is what the application must not do; only of [Forbidden].
	Denied Denied
	// Method and Path are what was asked for; only of [NoRoute] and [BadMethod].
	Method, Path string
	// Call is the name of the call that failed, for dialects whose codes depend
	// on it; "" if there is none for the path and method.
	Call string
	// Code is the dialect's own, if whoever made the failure knows a more
	// precise one than that of the Kind.
	Code int
	// Edit is what was wrong with which process, if a catalogue refused to
	// store it. The Problem says the same in the words of the native API.
	Edit *catalog.EditError
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

// Denied is what an application must not do: some actions, or anything for a
// business. An empty Business is that of a call which is for none.
type Denied struct {
	Actions  []string
	Business string
}

// after writes what a dialect says of a kind of failure, and then the details.
// Words that end with a space go on with them. "{app}" is the application.
func (f *Error) after(words string) string {
	words = strings.ReplaceAll(words, "{app}", f.Application)
	if details := f.Error(); details != "" {
		if words != "" && !strings.HasSuffix(words, " ") {
			words += ": "
		}
		words += details
	}
	return words
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
