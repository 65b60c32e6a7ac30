package dialect

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// Kind is the class of an [Error]. Each dialect has its own code for it.
type Kind int

// The kinds of errors.
const (
	// Internal: an error of the server. It is the zero value, so that an unclassified
	// error is never reported as the caller's.
	Internal Kind = iota
	// Malformed: the body cannot be parsed.
	Malformed
	// BadHeader: the credentials header cannot be read.
	BadHeader
	// InvalidField: a field is missing, of the wrong type or out of range.
	InvalidField
	// TooLarge: the body or the number of items exceeds its limit.
	TooLarge
	// NotFound: the task or the process of the catalog does not exist.
	NotFound
	// Conflict: the idempotency key was used for another request, or another process has
	// the name.
	Conflict
	// OutsideWindow: maintenance windows deny the operation now.
	OutsideWindow
	// Expired: the time until which the caller wanted the request accepted has passed.
	Expired
	// NoRoute: no call has this path.
	NoRoute
	// BadMethod: calls have this path, but not with this method.
	BadMethod
	// Unavailable: a system that the dispatcher needs is unavailable. The caller can
	// repeat the request later.
	Unavailable
	// StoreFull: nothing was done, because the task store has no space for new tasks.
	StoreFull
	// OutcomeUnknown: the dispatcher does not know whether a task was accepted.
	OutcomeUnknown
	// NoApplication to BadToken: the caller was not authenticated. NoApplication: the
	// request names no application.
	NoApplication
	// NoSecret: the request names an application, but has neither a secret nor a
	// signature.
	NoSecret
	// UnknownApplication: the application does not exist.
	UnknownApplication
	// WrongSecret: the application has another secret.
	WrongSecret
	// BadSignature: the signature is invalid, has expired, or was used before.
	BadSignature
	// NoUser: the caller names no user, or the user is not authenticated.
	NoUser
	// BadToken: the user's bk_token is invalid.
	BadToken
	// Forbidden: the application lacks the necessary rights.
	Forbidden
)

// String returns the error code of the native API.
func (k Kind) String() string { return string(nativeKindOf(k).code) }

// unauthenticated reports whether the caller of the request was not authenticated.
func (k Kind) unauthenticated() bool { return k >= NoApplication && k <= BadToken }

// Error is the failure of a call. [Dialect.Fail] encodes it.
type Error struct {
	Kind Kind
	// Field is the name of the invalid field in the dialect; it may be empty.
	Field   string
	Problem string
	// Application is the calling application, for errors of authentication and
	// authorization.
	Application string
	// Denied are the rights that the application lacks; only for [Forbidden].
	Denied Denied
	// Method and Path are those of the request; only for [NoRoute] and [BadMethod].
	Method, Path string
	// Call is the name of the failed call, for dialects whose codes depend on it; "" if
	// no call has the path and the method.
	Call string
	// Code is the code of the dialect if it is more precise than the code of Kind; 0 if
	// not.
	Code int
	// Edit is the catalog's error about an edit, or nil. Problem describes the same
	// error in the terms of the native API.
	Edit *catalog.EditError
	// Task is the task that the error is about; "" if it is about none.
	Task procfleet.TaskID
	// RetryAfter is how long the caller should wait before it repeats the request; 0 if
	// a repetition does not help.
	RetryAfter time.Duration
}

func (f *Error) Error() string {
	if f.Field == "" {
		return f.Problem
	}
	return f.Field + ": " + f.Problem
}

// Denied are the rights that an application lacks: actions, in a business if Business is
// not empty.
type Denied struct {
	Actions  []string
	Business string
}

// after returns the text of a dialect for a kind of failure, followed by the details of
// f. It replaces "{app}" in the text by the application, and inserts a colon after a
// text that does not end with a space.
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

func invalid(field, format string, args ...any) *Error {
	return &Error{Kind: InvalidField, Field: field, Problem: fmt.Sprintf(format, args...)}
}

// required returns the error for a field that is absent, null or empty.
func required(field string) *Error { return invalid(field, "This field is required.") }

// refused converts validation errors of package procfleet or catalog to one Error. It
// names the first invalid field and counts the others. The function name returns the
// dialect's name for a field of the native API.
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
