// Package invalid declares the error for an invalid field of a Config, so that a
// command that fills the Config from flags, the environment and a file can report
// the source of the value.
package invalid

import (
	"errors"
	"fmt"
)

// FieldError describes an invalid field of a Config.
type FieldError struct {
	Name    string // path in the Config, for example "Limits.Items"
	Problem error  // begins with the value or a verb, for example "must be at least 1"
}

// Fieldf returns a [FieldError] with a formatted problem.
func Fieldf(name, format string, args ...any) error {
	return &FieldError{Name: name, Problem: fmt.Errorf(format, args...)}
}

func (f *FieldError) Error() string { return "Config." + f.Name + ": " + f.Problem.Error() }

func (f *FieldError) Unwrap() error { return f.Problem }

// Fields splits an error made by [errors.Join] into field errors and the rest.
func Fields(err error) (fields []*FieldError, rest []error) {
	if err == nil {
		return nil, nil
	}
	if f, ok := err.(*FieldError); ok { //nolint:errorlint // an error that wraps a FieldError has more detail
		return []*FieldError{f}, nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, each := range joined.Unwrap() {
			f, r := Fields(each)
			fields, rest = append(fields, f...), append(rest, r...)
		}
		return fields, rest
	}
	if f, r := Fields(errors.Unwrap(err)); len(f) > 0 {
		return f, r
	}
	return nil, []error{err}
}
