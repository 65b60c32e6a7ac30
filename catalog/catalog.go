// Package catalog is the contract of what the server knows of managed
// processes apart from tasks: how they are registered, what their agents last
// reported of them, how a host's processes are grouped, what is frozen, which
// processes businesses define, and what modules and hosts businesses have. The
// task stores implement it; the suite in catalogtest says what they must do.
//
// Nothing here expires but freezes. All moments are in UTC and are kept to the microsecond
// at least. Every method is safe for concurrent use, returns when ctx ends, and
// may be repeated. A store that cannot be asked now answers
// taskstore.ErrUnavailable; a call over many entries may then have had its
// effect on some of them. What is returned, and what was given, is the
// caller's to change but for a [Topology]; the specs of one answer may share
// labels and environment.
//
// A call that would store something for what is not a [Process], for a
// namespace that is none, or for what is not a [Business], is refused whole; one
// that asks for it finds nothing.
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

// Validate reports as [procfleet.FieldError] what keeps p from being a process.
func (p Process) Validate() error {
	return errors.Join(validHost("host", p.Host), validName("namespace", p.Namespace), validName("name", p.Name))
}

// ValidName reports whether a text can be a namespace or a name: it is UTF-8 of
// 1 to [procfleet.MaxKey] bytes without a NUL.
func ValidName(text string) bool { return validName("", text) == nil }

func validName(field, text string) error { return validText(field, text, procfleet.MaxKey) }

// validText refuses what is not UTF-8 of 1 to most bytes without a NUL.
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
	// Asked is for who is late with it: when it was asked for, by the store's
	// clock. It replaces no spec that was asked for then or since; zero is now,
	// and replaces all.
	Asked time.Time
}

// Process is what the definition registers on a host.
func (d Definition) Process(h procfleet.Host) Process {
	return Process{Host: h, Namespace: d.Spec.Namespace, Name: d.Spec.Name}
}

// Registration is what was registered for one process on one host. It says
// what the process is, not whether anything keeps it alive.
type Registration struct {
	Process
	Spec procfleet.ProcessSpec
	// RegisteredAt is when it was registered first, by the store's clock; a
	// new spec does not move it.
	RegisteredAt time.Time
}

// Registrations keeps specs by host, namespace and name until they are taken
// away again.
type Registrations interface {
	// Register stores definitions. existed[i][j] says whether definition i had
	// a registration on its host j before. With replace the new spec takes the
	// old one's place, unless it is late; without, the old one stays. A process that is named
	// more than once is registered as often, in order.
	Register(ctx context.Context, ds []Definition, replace bool) (existed [][]bool, err error)
	// Unregister takes registrations away and says, in order, which were
	// there; a repeat finds nothing.
	Unregister(ctx context.Context, ps []Process) (existed []bool, err error)
	// Registrations returns one entry per process, in order; nil for those
	// that are not registered.
	Registrations(ctx context.Context, ps []Process) ([]*Registration, error)
	// RegisteredHosts returns up to limit hosts on which a process is
	// registered, ordered by cloud area and address text, beginning after the
	// given host, on which it need not be registered; zero begins.
	RegisteredHosts(ctx context.Context, namespace, name string, after procfleet.Host, limit int) ([]procfleet.Host, error)
}

// Desired is what an agent holds a process to.
type Desired string

// The desired states.
const (
	DesiredNone Desired = "none" // left alone: released, or never supervised
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
	// Status is what the agent saw; it has no command line and no evidence.
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

// Entry is what is known of one process on one host: its registration, what
// was reported, or both.
type Entry struct {
	Process
	Registration *Registration    // nil if only reported
	Reported     *ReportedProcess // nil if only registered
	ReportedAt   time.Time        // when the report was made; zero if only registered
	AgentID      string           // as the report says; empty if only registered
}

// Entries joins registrations with what agents report.
type Entries interface {
	// Report stores reports, each in the place of the host's last one unless
	// that is as new or newer, also within the call; one without a host is left
	// out. Processes that a new report leaves out are known by their
	// registration only, or not at all. A reported process whose namespace and
	// name are not valid is no entry; of two with the same the last is.
	Report(ctx context.Context, reports []Report) error
	// Reported returns the last report of each host, in order, with every
	// process that is in it; the zero Report for hosts that never reported.
	Reported(ctx context.Context, hosts []procfleet.Host) ([]Report, error)
	// Entries returns one entry per process, in order; of what is neither
	// registered nor reported it has only Process.
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
	// ByLimit chooses who has to go first when the group is over its limit:
	// without it the process that uses most, with it processes with a large
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

// Validate reports as [procfleet.FieldError] what keeps g from being stored.
func (g HostGroups) Validate() error {
	return errors.Join(validHost("host", g.Host), validName("namespace", g.Namespace))
}

// Groups keeps process groups by host and namespace.
type Groups interface {
	// SetGroups stores groups in the place of those of the same host and
	// namespace, one after the other; none at all takes them away.
	SetGroups(ctx context.Context, gs []HostGroups) error
	// Groups returns one entry per host, in order; without groups it has only
	// Host and Namespace.
	Groups(ctx context.Context, namespace string, hosts []procfleet.Host) ([]HostGroups, error)
	// GroupsOf returns for each host, in order, what was set there for every
	// namespace, by the bytes of the namespace.
	GroupsOf(ctx context.Context, hosts []procfleet.Host) ([][]HostGroups, error)
}

// Store is everything together.
type Store interface {
	Registrations
	Entries
	Groups
	Freezes
	Templates
	Topologies
}
