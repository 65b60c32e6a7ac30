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
	// Internal: an error of the server. It is the zero value, so that an unclassified
	// error is never reported as the caller's.
	Internal Kind = iota
	// Malformed: the body is not what it claims to be.
	Malformed
	// BadHeader: the credentials header cannot be read.
	BadHeader
	// InvalidField: a field is missing, of the wrong type or out of range.
	InvalidField
	// TooLarge: the body or the number of items is over the limit.
	TooLarge
	// NotFound: there is no such task, or no such process in the catalog.
	NotFound
	// Conflict: the idempotency key was used for another request, or the name is used
	// by another process.
	Conflict
	// Expired: the caller's limit for acceptance has passed.
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
	// NoApplication: the request names no application.
	NoApplication
	// NoSecret: it names one, and has neither a secret nor a signature.
	NoSecret
	// UnknownApplication: there is no such application.
	UnknownApplication
	// WrongSecret: the secret is not that of the application.
	WrongSecret
	// BadSignature: the signature is not one of the application, or is expired.
	BadSignature
	// NoUser: the caller names no user, or the user is not authenticated.
	NoUser
	// BadToken: the user's bk_token is invalid.
	BadToken
	// Forbidden: the application may not do this.
	Forbidden
)

// String is the code word of the native API.
func (k Kind) String() string { return string(nativeKindOf(k).code) }

// Error is the failure of a call.
type Error struct {
	Kind Kind
	// Field is the invalid field, by its name in the dialect; it may be empty.
	Field   string
	Problem string
	// Application is the caller, if the failure is about authentication or rights.
	Application string
	// Denied are the missing rights of the application; only of [Forbidden].
	Denied Denied
	// Method and Path are those of the request; only of [NoRoute] and [BadMethod].
	Method, Path string
	// Call is the name of the call that failed, for dialects whose codes depend
	// on it; "" if there is none for the path and method.
	Call string
	// Code is a code of the dialect that is more precise than that of the Kind; 0 is none.
	Code int
	// Edit is the catalog's error about an edit, if there is one. Problem has the same
	// in the form of the native API.
	Edit *catalog.EditError
	// Task is the task that the failure is about, if there is one.
	Task procfleet.TaskID
	// RetryAfter is when to try again; zero if trying again does not help.
	RetryAfter time.Duration
}

func (f *Error) Error() string {
	if f.Field == "" {
		return f.Problem
	}
	return f.Field + ": " + f.Problem
}

// Denied are missing rights: actions, or a business. An empty Business is that of a
// call without a business.
type Denied struct {
	Actions  []string
	Business string
}

// after returns a dialect's text for a kind of failure, followed by the details. "{app}"
// is replaced by the application. A text that does not end with a space is followed by
// a colon.
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

// required is the error for a field that is absent, null or empty.
func required(field string) *Error { return invalid(field, "This field is required.") }

// refused converts the errors of the vocabulary's validation to an Error that names
// the first field and counts the rest. The function name returns the dialect's name
// of a field of the native form.
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
