package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/procfleet/procfleet"
)

// Bounds of a freeze.
const (
	MinFreeze = time.Second
	MaxFreeze = 24 * time.Hour
	// MaxReason is the most bytes of a reason, and of By.
	MaxReason = 1024
)

// Scope is the extent of a freeze: a host; a namespace on a host; or, without a
// host, a namespace everywhere.
type Scope struct {
	Host      procfleet.Host
	Namespace string
}

// Validate returns a [procfleet.FieldError] for an invalid field.
func (s Scope) Validate() error {
	if s.Namespace == "" {
		return validHost("host", s.Host)
	}
	return validName("namespace", s.Namespace)
}

// Freezing is a request to freeze: automatic starts and limits are suspended
// for the TTL, from now on.
type Freezing struct {
	TTL    time.Duration // MinFreeze to MaxFreeze
	Reason string        // for people
	By     string        // the operator
}

// Validate returns a [procfleet.FieldError] for each invalid field.
func (f Freezing) Validate() error {
	errs := []error{validNote("reason", f.Reason), validNote("by", f.By)}
	if f.TTL < MinFreeze || f.TTL > MaxFreeze {
		errs = append(errs, &procfleet.FieldError{Field: "ttl", Problem: fmt.Sprintf("%s is out of range: %s to %s", f.TTL, MinFreeze, MaxFreeze)})
	}
	return errors.Join(errs...)
}

func validNote(field, text string) error {
	switch {
	case len(text) > MaxReason:
		return &procfleet.FieldError{Field: field, Problem: fmt.Sprintf("is %d bytes long, at most %d are allowed", len(text), MaxReason)}
	case !utf8.ValidString(text):
		return &procfleet.FieldError{Field: field, Problem: "is not valid UTF-8"}
	}
	return nil
}

// Freeze is a scope that is frozen until a time.
type Freeze struct {
	Scope
	Until  time.Time
	Reason string
	By     string
}

// Freezes stores freezes until they end, by the store's clock, or are lifted.
type Freezes interface {
	// Freeze freezes each scope, replacing its earlier freeze, and returns when
	// the freeze ends.
	Freeze(ctx context.Context, scopes []Scope, f Freezing) (until time.Time, err error)
	// Lift ends freezes and returns, in order, which existed; a repeat finds
	// nothing. Freezes of larger or smaller scopes stay.
	Lift(ctx context.Context, scopes []Scope) (existed []bool, err error)
	// FreezePage returns up to limit freezes, beginning after the given scope,
	// which need not be frozen; zero begins. Namespaces everywhere come first,
	// then hosts by cloud area and address text; a host comes before its
	// namespaces, which are ordered by their bytes.
	FreezePage(ctx context.Context, after Scope, limit int) ([]Freeze, error)
	// FreezesOf returns for each host, in order, every freeze in effect there,
	// including freezes of namespaces everywhere, in the order of pages.
	FreezesOf(ctx context.Context, hosts []procfleet.Host) ([][]Freeze, error)
}
