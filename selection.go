package procfleet

import (
	"errors"
	"fmt"
	"path"
	"reflect"
)

// Bounds of a [Selection].
const (
	MaxSelected  = 1000 // maximum number of process ids, and of set and module names
	MaxSelectors = 100  // maximum number of operations with a selection per submission
)

// Selection selects processes in the catalog of [Submission.Business], and all
// hosts of the modules to which the processes are bound.
type Selection struct {
	// Processes are catalog ids, Name is a name pattern of [path.Match]
	// ("nginx*"). Set exactly one of the two.
	Processes []int64 `json:"processes,omitempty"`
	Name      string  `json:"name,omitempty"`
	// Sets and Modules limit the selection to sets and modules of these names;
	// empty: no limit.
	Sets    []string `json:"sets,omitempty"`
	Modules []string `json:"modules,omitempty"`
	// Hosts limits the selection to these hosts; empty: no limit.
	Hosts []Host `json:"hosts,omitempty"`
	// Labels limits the selection to hosts that all these filters of labels and facts
	// match, "key=pattern", "key!=pattern" or "key"; empty: no limit.
	Labels []string `json:"labels,omitempty"`
}

// Validate checks everything in a selection that does not need the catalog.
func (s *Selection) Validate() error {
	var errs []error
	if (len(s.Processes) == 0) == (s.Name == "") {
		errs = append(errs, &FieldError{"processes", "say which: processes (ids) or name (a pattern such as nginx*), one of the two"})
	}
	if n := len(s.Processes); n > MaxSelected {
		errs = append(errs, &FieldError{"processes", fmt.Sprintf("are %d, at most %d are allowed", n, MaxSelected)})
	}
	for i, id := range s.Processes {
		if id < 1 {
			errs = append(errs, &FieldError{fmt.Sprintf("processes[%d]", i), fmt.Sprintf("%d is no id of a process", id)})
			break
		}
	}
	if _, err := path.Match(s.Name, ""); err != nil {
		errs = append(errs, &FieldError{"name", fmt.Sprintf("%q is no pattern: a [ needs its ], and a \\ something after it", clip(s.Name))})
	}
	errs = append(errs, boundText("name", s.Name, MaxKey), boundNames("sets", s.Sets), boundNames("modules", s.Modules), boundNames("labels", s.Labels))
	return errors.Join(errs...)
}

// boundNames validates the names of sets or modules.
func boundNames(field string, names []string) error {
	if len(names) > MaxSelected {
		return &FieldError{field, fmt.Sprintf("are %d, at most %d are allowed", len(names), MaxSelected)}
	}
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", field, i)
		if name == "" {
			return &FieldError{at, "is empty"}
		}
		if err := boundText(at, name, MaxKey); err != nil {
			return err
		}
	}
	return nil
}

// validateSelection validates an operation with a selection. Other process and
// host fields are rejected, because they would have no effect.
func (o *Operation) validateSelection() error {
	errs := []error{o.validateAction(), In("select", o.Selection.Validate())}
	switch {
	case o.Registered:
		errs = append(errs, &FieldError{"registered", "stands beside select; give one or the other"})
	case len(o.Targets) > 0:
		errs = append(errs, &FieldError{"hosts", "stand beside select, which says the hosts; give one or the other"})
	case !reflect.DeepEqual(o.Process, ProcessSpec{}):
		errs = append(errs, &FieldError{"process", "stands beside select, which says the process; give one or the other"})
	}
	return errors.Join(errs...)
}
