package dispatcher

import (
	"context"
	"slices"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// An operation may refer to registrations, for the whole spec or for members that the
// caller omitted, or to processes of the catalog. Expanding an operation resolves these
// references.

// part is an operation without references.
type part struct {
	procfleet.Operation
	// Only for a selection: the catalog id of the process, and the module paths of each
	// target.
	id      int64
	modules [][]string
}

// newPart returns the part for one process of the catalog and its hosts.
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

type expansion struct {
	parts    []part
	problems []v1.PlanProblem
	refusal  error // a [*dialect.Error] that rejects the whole submission
}

// expander expands the operations of one submission.
type expander struct {
	submitter *submitter
	business  string
	label     func(procfleet.Host) string // see terms.label
	known     registrations               // registrations for operations that omit members
	selector  *selector                   // nil before the first selection
	items     int                         // items counted so far
}

func (s *submitter) newExpander(ctx context.Context, sub *procfleet.Submission, label func(procfleet.Host) string) (*expander, error) {
	known, err := s.completing(ctx, sub.Operations)
	return &expander{submitter: s, business: sub.Business, label: label, known: known}, err
}

// count adds items and returns an error if the request has more than allowed.
func (x *expander) count(items int) error {
	x.items += items
	return x.submitter.cfg.Limits.items(x.items)
}

// expand expands an operation. If the selection is rejected, the error names field.
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

// registered divides an operation into one operation for each distinct registered spec.
func (x *expander) registered(ctx context.Context, o procfleet.Operation) (e expansion, err error) {
	s := x.submitter
	if len(o.Targets) == 0 {
		if o.Targets, err = s.registeredTargets(ctx, &o.Process, x.label); err != nil {
			return e, err
		}
		if len(o.Targets) == 0 {
			return expansion{refusal: notRegisteredAnywhere(&o.Process)}, nil
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

// completed divides an operation into one operation for each distinct registered spec,
// with omitted members filled in.
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

// specified returns the expanded operations of a submission.
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
