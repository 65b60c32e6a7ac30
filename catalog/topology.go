package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/label"
)

// Topology defines the sets, modules and hosts of a business. For a [Template], modules
// of the same name in several sets are one module.
type Topology struct {
	// Version counts the changes, from 1; 0 means that the business has no topology.
	Version int64
	// AutoRegister means that binding a process to a module registers it on the hosts
	// of the module and notifies their agents; unbinding unregisters it.
	AutoRegister bool
	Sets         []Set
}

// Set is a group of modules, usually one deployment of a business.
type Set struct {
	Name    string
	Modules []Module
}

// Module is a group of hosts that run the same processes.
type Module struct {
	Name string
	// Default is not 0 for modules of idle or broken hosts. Processes should not be
	// bound to them.
	Default int64
	Hosts   []procfleet.Host
	// Labels are filters of labels, in the form of [label.ParseFilter]. If there are any, the
	// hosts that have a live agent and match all of them are in the module as well.
	Labels []string
}

// Limits of a topology.
const (
	MaxSets        = 10_000
	MaxModules     = 50_000  // in all sets together
	MaxPlacements  = 500_000 // hosts in all modules together
	MaxModuleBytes = 256     // length of the name of a set or a module
	MaxFilters     = 16      // filters of labels of a module
)

// Validate returns the first error of a topology as [procfleet.FieldError]. Names must
// have 1 to [MaxModuleBytes] bytes. The names of sets must be distinct, and so must the
// names of the modules of a set. A module must not have a host twice.
func (t *Topology) Validate() error {
	if len(t.Sets) > MaxSets {
		return &procfleet.FieldError{Field: "sets", Problem: fmt.Sprintf("are %d, at most %d are allowed", len(t.Sets), MaxSets)}
	}
	modules, names := 0, make(map[string]bool, len(t.Sets))
	for i := range t.Sets {
		field := fmt.Sprintf("sets[%d]", i)
		if err := newName(field, t.Sets[i].Name, names); err != nil {
			return err
		}
		if err := t.Sets[i].validate(field); err != nil {
			return err
		}
		modules += len(t.Sets[i].Modules)
	}
	if modules > MaxModules {
		return &procfleet.FieldError{Field: "sets", Problem: fmt.Sprintf("have %d modules together, at most %d are allowed", modules, MaxModules)}
	}
	return t.validPlacements()
}

func (t *Topology) validPlacements() error {
	n := 0
	for _, s := range t.Sets {
		for _, m := range s.Modules {
			n += len(m.Hosts)
		}
	}
	if n > MaxPlacements {
		return &procfleet.FieldError{Field: "sets", Problem: fmt.Sprintf("have %d hosts in all modules together, at most %d are allowed", n, MaxPlacements)}
	}
	return nil
}

func (s *Set) validate(field string) error {
	names := make(map[string]bool, len(s.Modules))
	for j := range s.Modules {
		field := fmt.Sprintf("%s.modules[%d]", field, j)
		if err := newName(field, s.Modules[j].Name, names); err != nil {
			return err
		}
		if err := validHosts(field+".hosts", s.Modules[j].Hosts); err != nil {
			return err
		}
		if err := validFilters(field+".labels", s.Modules[j].Labels); err != nil {
			return err
		}
	}
	return nil
}

func validFilters(field string, filters []string) error {
	if len(filters) > MaxFilters {
		return &procfleet.FieldError{Field: field, Problem: fmt.Sprintf("are %d filters, at most %d are allowed", len(filters), MaxFilters)}
	}
	for i, text := range filters {
		if _, err := label.ParseFilter(text); err != nil {
			return &procfleet.FieldError{Field: fmt.Sprintf("%s[%d]", field, i), Problem: err.Error()}
		}
	}
	return nil
}

func newName(field, name string, others map[string]bool) error {
	field += ".name"
	if others[name] {
		return &procfleet.FieldError{Field: field, Problem: fmt.Sprintf("%q is there twice", name)}
	}
	others[name] = true
	return validText(field, name, MaxModuleBytes)
}

func validHosts(field string, hosts []procfleet.Host) error {
	seen := make(map[procfleet.Host]int, len(hosts))
	for k, h := range hosts {
		if h.IsZero() {
			return validHost(fmt.Sprintf("%s[%d]", field, k), h)
		}
		if first, twice := seen[h]; twice {
			return &procfleet.FieldError{Field: fmt.Sprintf("%s[%d]", field, k), Problem: fmt.Sprintf("%s is there twice: it is number %d too", h, first)}
		}
		seen[h] = k
	}
	return nil
}

// WithHosts returns a copy of the topology with other hosts in one module. The copy
// shares all other data with t. The error is [ErrNoModule], or a [procfleet.FieldError]
// if the result is invalid; errors of hosts name the field "hosts".
func (t *Topology) WithHosts(set, module string, hosts []procfleet.Host) (*Topology, error) {
	i := slices.IndexFunc(t.Sets, func(s Set) bool { return s.Name == set })
	if i < 0 {
		return nil, ErrNoModule
	}
	j := slices.IndexFunc(t.Sets[i].Modules, func(m Module) bool { return m.Name == module })
	if j < 0 {
		return nil, ErrNoModule
	}
	if err := validHosts("hosts", hosts); err != nil {
		return nil, err
	}
	changed := *t
	changed.Sets = slices.Clone(t.Sets)
	changed.Sets[i].Modules = slices.Clone(t.Sets[i].Modules)
	changed.Sets[i].Modules[j].Hosts = slices.Clone(hosts)
	return &changed, changed.validPlacements()
}

// ErrNoModule means that the topology has no such set and module.
var ErrNoModule = errors.New("there is no such set and module in the topology of the business")

// VersionError means that a change was based on another version than the stored one.
type VersionError struct{ Have, Want int64 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("the topology has version %d now, not %d: read it again", e.Have, e.Want)
}

// Topologies stores the topologies of businesses.
type Topologies interface {
	// SetTopology replaces the whole topology in one step and returns the new version.
	// t.Version must be the stored version, otherwise the error is a [*VersionError];
	// -1 replaces any version. See [Topology.Validate].
	SetTopology(ctx context.Context, b Business, t Topology) (version int64, err error)
	// SetModuleHosts replaces the hosts of one module of the stored topology and
	// returns the new version. The error is [ErrNoModule] if there is no such module,
	// or a [procfleet.FieldError] if the hosts are invalid.
	SetModuleHosts(ctx context.Context, b Business, set, module string, hosts []procfleet.Host) (version int64, err error)
	// Topology returns the topology of a business, with sets and modules in the order
	// in which they were stored. The result is shared; do not change it.
	Topology(ctx context.Context, b Business) (*Topology, error)
}
