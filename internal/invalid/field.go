// Package invalid has the error of an invalid field of a Config, so that a
// command that filled the Config from flags, the environment and a file can name
// the source of the value.
package invalid

import (
	"errors"
	"fmt"
)

// FieldError is what is wrong with one field of a Config.
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

// Fields splits what [errors.Join] has joined into its fields and the rest.
func Fields(err error) (fields []*FieldError, rest []error) {
	if err == nil {
		return nil, nil
	}
	if f, ok := err.(*FieldError); ok { //nolint:errorlint // what wraps a field says more than the field
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
