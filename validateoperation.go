package procfleet

import (
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"time"
)

// Validate validates an operation completely. Callers that accept an operation
// although some of its processes are invalid use [Operation.ValidateBounds].
func (o *Operation) Validate() error {
	switch {
	case o.Selection != nil:
		return o.validateSelection()
	case o.Registered:
		return errors.Join(o.validateAction(), o.validateRegistered())
	}
	return errors.Join(o.validateAction(), In("process", o.Process.Validate(o.Action)), o.validateTargets())
}

func (o *Operation) validateAction() error {
	return oneOf("action", o.Action, actions...)
}

// ValidateBounds checks bounds and the presence of targets only, for callers that
// report an invalid process as a failed item. It accepts an unknown action,
// except with a Selection.
func (o *Operation) ValidateBounds() error {
	switch {
	case o.Selection != nil:
		return o.validateSelection()
	case o.Registered:
		return o.validateRegistered()
	}
	return errors.Join(In("process", o.Process.ValidateBounds()), o.validateTargets())
}

func (o *Operation) validateTargets() error {
	if len(o.Targets) > 0 {
		return nil
	}
	return &FieldError{"hosts", "is empty; name at least one host as <cloud area>:<ip>, for example 0:10.0.0.1"}
}

// validateRegistered checks that Process has Namespace and Name only: other
// fields would have no effect.
func (o *Operation) validateRegistered() error {
	name := ProcessSpec{Namespace: o.Process.Namespace, Name: o.Process.Name}
	errs := []error{In("process", name.ValidateIdentity())}
	if !reflect.DeepEqual(o.Process, name) {
		errs = append(errs, &FieldError{"process", "has more than namespace and name; with registered, everything else is as it was registered"})
	}
	return errors.Join(errs...)
}

// Validate validates the submission without its operations, which
// [Operation.Validate] or the dialect validates.
func (s *Submission) Validate() error {
	var errs []error
	if len(s.Operations) == 0 {
		errs = append(errs, &FieldError{"operations", "is empty; give at least one operation"})
	}
	if n := s.selectors(); n > MaxSelectors {
		errs = append(errs, &FieldError{"operations", fmt.Sprintf("%d of them have select, at most %d may; divide the request", n, MaxSelectors)})
	}
	if s.Timeout != 0 {
		errs = append(errs, within("timeout", Duration(s.Timeout), time.Second, MaxTimeout))
	}
	if s.Rollout != nil {
		errs = append(errs, In("rollout", s.Rollout.Validate()))
	}
	errs = append(errs, s.validateQueue())
	if s.Callback != "" {
		u, err := url.Parse(s.Callback)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			errs = append(errs, &FieldError{"callback", "is not an http or https URL"})
		}
	}
	return errors.Join(errs...)
}

func (s *Submission) selectors() int {
	n := 0
	for i := range s.Operations {
		if s.Operations[i].Selection != nil {
			n++
		}
	}
	return n
}
