// Package catalog is the contract of the data about managed processes apart
// from tasks: registrations, the last reports of agents, process groups,
// freezes, process templates of businesses, and the modules and hosts of
// businesses. The task stores implement it; the suite in catalogtest checks
// them.
//
// Only freezes expire. All times are UTC, with at least microseconds. Every
// method is safe for concurrent use, returns when ctx ends, and may be
// repeated. An unavailable store returns taskstore.ErrUnavailable; a call over
// many entries may then have had its effect on some of them. The caller may
// change its arguments and the results afterwards, except a [Topology]; the
// specs of one result may share labels and environment.
//
// A call that would store an invalid [Process], namespace or [Business] is
// rejected as a whole; a call that reads one finds nothing.
package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/procfleet/procfleet"
)

// Process is the identity of a managed process on one host. Namespace and
// Name are opaque texts; see [ValidName].
type Process struct {
	Host      procfleet.Host
	Namespace string
	Name      string
}

// Validate returns a [procfleet.FieldError] for each invalid field.
func (p Process) Validate() error {
	return errors.Join(validHost("host", p.Host), validName("namespace", p.Namespace), validName("name", p.Name))
}

// ValidName reports whether a text can be a namespace or a name: it is UTF-8 of
// 1 to [procfleet.MaxKey] bytes without a NUL.
func ValidName(text string) bool { return validName("", text) == nil }

func validName(field, text string) error { return validText(field, text, procfleet.MaxKey) }

// validText rejects a text that is not UTF-8 of 1 to most bytes without a NUL.
func validText(field, text string, most int) error {
	switch {
	case text == "":
		return &procfleet.FieldError{Field: field, Problem: "is empty"}
	case len(text) > most:
		return &procfleet.FieldError{Field: field, Problem: fmt.Sprintf("is %d bytes long, at most %d are allowed", len(text), most)}
	case !utf8.ValidString(text):
		return &procfleet.FieldError{Field: field, Problem: "is not valid UTF-8"}
	case strings.ContainsRune(text, 0):
		return &procfleet.FieldError{Field: field, Problem: "contains a NUL character"}
	}
	return nil
}

func validHost(field string, h procfleet.Host) error {
	if h.IsZero() {
		return &procfleet.FieldError{Field: field, Problem: "is empty"}
	}
	return nil
}

// Definition registers one spec, which has a namespace and a name, on hosts.
type Definition struct {
	Spec  procfleet.ProcessSpec
	Hosts []procfleet.Host
	// Asked is when the registration was requested, by the store's clock, if it
	// is stored late. It replaces no spec that was requested at that time or
	// later; zero is now, and replaces all.
	Asked time.Time
}

// Process is what the definition registers on a host.
func (d Definition) Process(h procfleet.Host) Process {
	return Process{Host: h, Namespace: d.Spec.Namespace, Name: d.Spec.Name}
}

// Registration is the registered spec of one process on one host. Whether the
// process is supervised is not part of it.
type Registration struct {
	Process
	Spec procfleet.ProcessSpec
	// RegisteredAt is when it was registered first, by the store's clock; a
	// new spec does not move it.
	RegisteredAt time.Time
}

// Registrations stores specs by host, namespace and name until they are
// unregistered.
type Registrations interface {
	// Register stores definitions. existed[i][j] says whether definition i had
	// a registration on its host j before. With replace the new spec replaces
	// the old one, unless it is late; without, the old one stays. A process that
	// is named more than once is registered as often, in order.
	Register(ctx context.Context, ds []Definition, replace bool) (existed [][]bool, err error)
	// Unregister removes registrations and returns, in order, which existed; a
	// repeat finds nothing.
	Unregister(ctx context.Context, ps []Process) (existed []bool, err error)
	// Registrations returns one entry per process, in order; nil for those
	// that are not registered.
	Registrations(ctx context.Context, ps []Process) ([]*Registration, error)
	// RegisteredHosts returns up to limit hosts on which a process is
	// registered, ordered by cloud area and address text, beginning after the
	// given host, on which it need not be registered; zero begins.
	RegisteredHosts(ctx context.Context, namespace, name string, after procfleet.Host, limit int) ([]procfleet.Host, error)
}

// Desired is the state in which an agent keeps a process.
type Desired string

// The desired states.
const (
	DesiredNone Desired = "none" // not supervised, or no longer
	DesiredUp   Desired = "up"   // supervised
	DesiredDown Desired = "down" // stopped or killed on purpose
)

// ReportedProcess is one process as its agent last reported it.
type ReportedProcess struct {
	// Key is [procfleet.ProcessSpec.Key]. Processes that are not identified by
	// namespace and name have neither.
	Key       string  `json:"key"`
	Namespace string  `json:"namespace,omitempty"`
	Name      string  `json:"name,omitempty"`
	ProcName  string  `json:"proc_name"`
	Desired   Desired `json:"desired"`
	// Status is the agent's observation, without command line and evidence.
	Status procfleet.ProcessStatus `json:"status"`
}

// Report is everything that the agent of one host manages, at one moment.
type Report struct {
	Host     procfleet.Host
	AgentID  string
	Instance string
	// Number orders the reports of a host: the larger one is newer. Agents use
	// microseconds of the server's time.
	Number int64
	// At is when it was made, by the server's time.
	At        time.Time
	Processes []ReportedProcess
}

// Entry is the registration of one process on one host, its last report, or
// both.
type Entry struct {
	Process
	Registration *Registration    // nil if only reported
	Reported     *ReportedProcess // nil if only registered
	ReportedAt   time.Time        // when the report was made; zero if only registered
	AgentID      string           // as the report says; empty if only registered
}

// Entries joins registrations with what agents report.
type Entries interface {
	// Report stores reports. Each replaces the host's last one unless that is as
	// new or newer, also within the call; one without a host is ignored.
	// Processes that a new report leaves out keep their registration only, or
	// disappear. A reported process with an invalid namespace or name is no
	// entry; of two with the same the last one is.
	Report(ctx context.Context, reports []Report) error
	// Reported returns the last report of each host, in order, with every
	// process that is in it; the zero Report for hosts that never reported.
	Reported(ctx context.Context, hosts []procfleet.Host) ([]Report, error)
	// Entries returns one entry per process, in order; only Process is set if it
	// is neither registered nor reported.
	Entries(ctx context.Context, ps []Process) ([]Entry, error)
	// EntryPage returns up to limit entries of a namespace, leaving out the
	// first start, and the number of all. The order is by the bytes of the
	// name, then by cloud area and address text, and does not depend on what is
	// reported of them.
	EntryPage(ctx context.Context, namespace string, start, limit int) (page []Entry, total int, err error)
}

// Group shares a part of a host's resources among the processes of one
// namespace there.
type Group struct {
	ID string `json:"id"`
	// Limits are in percent of the host; 0 is no limit.
	CPULimit    float64 `json:"cpu_limit"`
	MemoryLimit float64 `json:"memory_limit"`
	// ByLimit chooses which process is killed first when the group is over its
	// limit: without it the one that uses most; with it processes with a large
	// limit of their own are spared longer.
	CPUByLimit    bool `json:"cpu_by_limit"`
	MemoryByLimit bool `json:"memory_by_limit"`
}

// HostGroups are the groups of one namespace on one host.
type HostGroups struct {
	Host      procfleet.Host
	Namespace string
	Name      string // of the caller's process, if it was given
	Labels    map[string]json.RawMessage
	Groups    []Group
}

// Validate returns a [procfleet.FieldError] for each invalid field.
func (g HostGroups) Validate() error {
	return errors.Join(validHost("host", g.Host), validName("namespace", g.Namespace))
}

// Groups stores process groups by host and namespace.
type Groups interface {
	// SetGroups replaces the groups of each host and namespace, one after the
	// other; an empty list removes them.
	SetGroups(ctx context.Context, gs []HostGroups) error
	// Groups returns one entry per host, in order; without groups it has only
	// Host and Namespace.
	Groups(ctx context.Context, namespace string, hosts []procfleet.Host) ([]HostGroups, error)
	// GroupsOf returns for each host, in order, the groups of every namespace,
	// ordered by the bytes of the namespace.
	GroupsOf(ctx context.Context, hosts []procfleet.Host) ([][]HostGroups, error)
}

// Store is all parts together.
type Store interface {
	Registrations
	Entries
	Groups
	Freezes
	Templates
	Topologies
}
