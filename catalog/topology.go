package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet"
)

// Topology is what sets, modules and hosts a business has. Modules of one name
// in several sets are one module to a [Template].
type Topology struct {
	// Version counts changes, from 1 on; 0 is a business that has no topology.
	Version int64
	// AutoRegister lets the agents of a module's hosts know of a process as
	// soon as it is bound to the module, and forget it when it is unbound.
	AutoRegister bool
	Sets         []Set
}

// Set is a group of modules: one deployment of a business.
type Set struct {
	Name    string
	Modules []Module
}

// Module is a group of hosts that have the same processes.
type Module struct {
	Name string
	// Default is not 0 for modules of hosts that are idle or out of order:
	// processes are not meant to be bound to them.
	Default int64
	Hosts   []procfleet.Host
}

// Bounds of a topology.
const (
	MaxSets        = 10_000
	MaxModules     = 50_000  // of all sets together
	MaxPlacements  = 500_000 // hosts of all modules together
	MaxModuleBytes = 256     // of a name of a set or module
)

// Validate reports as [procfleet.FieldError] the first thing that keeps t from
// being stored: names are texts of 1 to [MaxModuleBytes] bytes, no two sets
// have the same, nor have two modules of a set, and a module has no host twice.
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

// WithHosts returns the topology with other hosts in one of its modules; it
// shares the others with t. The error is [ErrNoModule], or says, of the field
// "hosts" where they are wrong, what keeps it from being stored.
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

// ErrNoModule means that a topology has no such set and module.
var ErrNoModule = errors.New("there is no such set and module in the topology of the business")

// VersionError refuses a change that was meant for another version.
type VersionError struct{ Have, Want int64 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("the topology has version %d now, not %d: read it again", e.Have, e.Want)
}

// Topologies keeps what modules and hosts businesses have.
type Topologies interface {
	// SetTopology replaces the whole topology at once and returns its new
	// version. t.Version is what it replaces: a [*VersionError] if that is not
	// what there is; -1 replaces any. See [Topology.Validate].
	SetTopology(ctx context.Context, b Business, t Topology) (version int64, err error)
	// SetModuleHosts replaces the hosts of one module of the present version;
	// [ErrNoModule]; a [procfleet.FieldError] if they cannot be hosts of a module.
	SetModuleHosts(ctx context.Context, b Business, set, module string, hosts []procfleet.Host) (version int64, err error)
	// Topology returns the topology of a business, sets and modules in the
	// order in which they were given. What it returns is shared: do not change it.
	Topology(ctx context.Context, b Business) (*Topology, error)
}
