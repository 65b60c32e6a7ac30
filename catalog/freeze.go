package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/procfleet/procfleet"
)

// Limits of a freeze.
const (
	MinFreeze = time.Second
	MaxFreeze = 24 * time.Hour
	// MaxReason is the maximum length of a reason, and of By, in bytes.
	MaxReason = 1024
)

// Scope is the extent of a freeze: a host, a namespace on a host, or, without a host, a
// namespace on all hosts.
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

// Freezing is a request to freeze a scope: agents suspend automatic starts and limits
// for the TTL, beginning now.
type Freezing struct {
	TTL    time.Duration // MinFreeze to MaxFreeze
	Reason string        // free text, shown to operators
	By     string        // name of the caller
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

// Freeze is a frozen scope with the end of the freeze.
type Freeze struct {
	Scope
	Until  time.Time
	Reason string
	By     string
}

// Freezes stores freezes until they end, by the store's clock, or are lifted.
type Freezes interface {
	// Freeze freezes each scope and returns the end of the freezes. It replaces an
	// earlier freeze of the same scope.
	Freeze(ctx context.Context, scopes []Scope, f Freezing) (until time.Time, err error)
	// Lift lifts freezes and reports, in order, which existed. A repeated call reports
	// false. It does not lift freezes of larger or smaller scopes.
	Lift(ctx context.Context, scopes []Scope) (existed []bool, err error)
	// FreezePage returns up to limit freezes. It begins after the scope after, which
	// need not be frozen; the zero Scope begins at the first. Freezes of namespaces on
	// all hosts come first, then hosts by cloud area and address text. A host precedes
	// its namespaces, which are sorted by bytes.
	FreezePage(ctx context.Context, after Scope, limit int) ([]Freeze, error)
	// FreezesOf returns, for each host in order, all freezes in effect there, including
	// freezes of namespaces on all hosts, in the order of FreezePage.
	FreezesOf(ctx context.Context, hosts []procfleet.Host) ([][]Freeze, error)
}
