package dispatcher

import (
	"context"
	"slices"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// An operation may refer to registrations, for a process or for members of its
// spec, or to processes of the catalog. To expand it is to resolve these references.

// part is an operation without references.
type part struct {
	procfleet.Operation
	// For a selection: the id of the process in the catalog, and for each target the
	// paths of its modules.
	id      int64
	modules [][]string
}

// newPart returns the part of a process of the catalog.
func newPart(action procfleet.Action, id int64, spec procfleet.ProcessSpec, placed []catalog.Placement) part {
	p := part{
		Operation: procfleet.Operation{Action: action, Process: spec, Targets: make([]procfleet.Target, len(placed))},
		id:        id, modules: make([][]string, len(placed)),
	}
	for i := range placed {
		p.Targets[i].Host, p.modules[i] = placed[i].Host, placed[i].Modules
	}
	return p
}

// expansion is the result of expanding one operation.
type expansion struct {
	parts    []part
	problems []v1.PlanProblem
	refusal  error // a [*dialect.Error]; the whole submission is refused
}

// expander expands the operations of one submission.
type expander struct {
	submitter *submitter
	business  string
	label     func(procfleet.Host) string // see terms
	known     registrations               // for members that operations omit
	selector  *selector                   // nil before the first selection
	items     int                         // so far
}

func (s *submitter) newExpander(ctx context.Context, sub *procfleet.Submission, label func(procfleet.Host) string) (*expander, error) {
	known, err := s.completing(ctx, sub.Operations)
	return &expander{submitter: s, business: sub.Business, label: label, known: known}, err
}

// count adds items, and returns an error for more than a request may have.
func (x *expander) count(items int) error {
	x.items += items
	return x.submitter.cfg.Limits.items(x.items)
}

// expand expands an operation; field names it in the refusal of its selection.
func (x *expander) expand(ctx context.Context, o procfleet.Operation, field string) (expansion, error) {
	switch {
	case o.Selection != nil:
		return x.selected(ctx, &o, field)
	case o.Registered:
		return x.registered(ctx, o)
	case o.Over != nil:
		return x.completed(o)
	}
	return expansion{parts: []part{{Operation: o}}}, x.count(len(o.Targets))
}

func (x *expander) selected(ctx context.Context, o *procfleet.Operation, field string) (expansion, error) {
	if x.selector == nil {
		selector, err := newSelector(ctx, x.submitter.store, x.business)
		if err != nil {
			return expansion{}, err
		}
		x.selector = selector
	}
	found, err := x.selector.choose(ctx, o.Action, o.Selection, x.count)
	if err != nil {
		return expansion{}, err
	}
	return expansion{found.parts, found.problems, found.refusal(field)}, nil
}

// registered divides an operation into one for each registered spec.
func (x *expander) registered(ctx context.Context, o procfleet.Operation) (e expansion, err error) {
	s := x.submitter
	if len(o.Targets) == 0 {
		if o.Targets, err = s.everywhere(ctx, &o.Process, x.label); err != nil {
			return e, err
		}
		if len(o.Targets) == 0 {
			return expansion{refusal: nowhereRegistered(&o.Process)}, nil
		}
	}
	if err := x.count(len(o.Targets)); err != nil {
		return e, err
	}
	specs, err := s.registered(ctx, &o.Process, o.Targets)
	if err != nil {
		return e, err
	}
	return divided(bySpec(o, specs, asRegistered))
}

// completed divides an operation into one for each registered spec that it completes.
func (x *expander) completed(o procfleet.Operation) (expansion, error) {
	if err := x.count(len(o.Targets)); err != nil {
		return expansion{}, err
	}
	return divided(bySpec(o, x.known.of(&o), overRegistered))
}

func divided(operations []procfleet.Operation, err error) (expansion, error) {
	var e expansion
	for _, each := range operations {
		e.parts = append(e.parts, part{Operation: each})
	}
	return e, err
}

// indirect reports whether an operation must be expanded.
func indirect(o procfleet.Operation) bool { return o.Registered || o.Selection != nil || o.Over != nil }

// specified returns the operations of a submission after expansion.
func (s *submitter) specified(ctx context.Context, sub *procfleet.Submission, label func(procfleet.Host) string) ([]procfleet.Operation, error) {
	if !slices.ContainsFunc(sub.Operations, indirect) {
		return sub.Operations, nil
	}
	x, err := s.newExpander(ctx, sub, label)
	if err == nil {
		err = x.known.refusal(sub.Operations)
	}
	if err != nil {
		return nil, err
	}
	found := make([]procfleet.Operation, 0, len(sub.Operations))
	for i := range sub.Operations {
		e, err := x.expand(ctx, sub.Operations[i], selectField(sub, i))
		if err == nil {
			err = e.refusal
		}
		if err != nil {
			return nil, err
		}
		for j := range e.parts {
			found = append(found, e.parts[j].Operation)
		}
	}
	return found, nil
}

// specifying returns the operations that need no expansion.
func specifying(operations []procfleet.Operation) []procfleet.Operation {
	return slices.DeleteFunc(slices.Clone(operations), indirect)
}
