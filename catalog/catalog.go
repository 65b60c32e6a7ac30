// Package catalog defines the contract for data about managed processes, except tasks:
// registrations, the last reports of agents, process groups, freezes, rollout policies, and the
// process templates, modules and hosts of businesses. Package boltcatalog implements it for one
// machine, package rediscatalog for many machines. The tests in package catalogtest
// verify an implementation.
//
// Only freezes expire. All times are UTC with at least microsecond resolution. Every
// method is safe for concurrent use, blocks at most until ctx ends, and may be
// repeated. If the store is unavailable, a method returns taskstore.ErrUnavailable; a
// call about many entries may then have changed some of them. The caller may change its
// arguments and the results after the call, except a [Topology]. The specs in one
// result may share labels and environment.
//
// A call that would store an invalid [Process], namespace or [Business] is rejected as
// a whole. A call that reads an invalid one finds nothing.
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

// Process identifies a managed process on one host. Namespace and Name are opaque
// texts; see [ValidName].
type Process struct {
	Host      procfleet.Host
	Namespace string
	Name      string
}

// Validate returns a [procfleet.FieldError] for each invalid field.
func (p Process) Validate() error {
	return errors.Join(validHost("host", p.Host), validName("namespace", p.Namespace), validName("name", p.Name))
}

// ValidName reports whether a text is valid as a namespace or a name: UTF-8 of 1 to
// [procfleet.MaxKey] bytes without a NUL.
func ValidName(text string) bool { return validName("", text) == nil }

func validName(field, text string) error { return validText(field, text, procfleet.MaxKey) }

// validText returns an error for a text that is not UTF-8 of 1 to most bytes without a
// NUL.
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

// Definition is a request to register one spec on hosts. The spec must have a namespace
// and a name.
type Definition struct {
	Spec  procfleet.ProcessSpec
	Hosts []procfleet.Host
	// Asked is when the caller requested the registration, by the store's clock, if it
	// is stored later. The registration does not replace a spec that was requested at
	// that time or later. Zero means now, and replaces every spec.
	Asked time.Time
}

// Process returns the process that the definition registers on a host.
func (d Definition) Process(h procfleet.Host) Process {
	return Process{Host: h, Namespace: d.Spec.Namespace, Name: d.Spec.Name}
}

// Registration is the registered spec of one process on one host. It does not contain
// whether the process is supervised.
type Registration struct {
	Process
	Spec procfleet.ProcessSpec
	// RegisteredAt is when the process was first registered, by the store's clock.
	// Replacing the spec does not change it.
	RegisteredAt time.Time
}

// Registrations stores the specs of processes by host, namespace and name, until they
// are unregistered.
type Registrations interface {
	// Register stores definitions. existed[i][j] reports whether definition i had a
	// registration on its host j before. With replace, the new spec replaces an
	// existing one, unless [Definition.Asked] excludes that; without replace, the
	// existing spec remains. If the definitions name a process more than once, they are
	// applied in order.
	Register(ctx context.Context, ds []Definition, replace bool) (existed [][]bool, err error)
	// Unregister removes registrations and reports, in order, which existed. A repeated
	// call reports false.
	Unregister(ctx context.Context, ps []Process) (existed []bool, err error)
	// EndRegistrations removes the registrations that the request of a time made, by
	// [Definition.Asked], and reports in order which it removed. A registration remains
	// that is older, or that a later request has replaced.
	EndRegistrations(ctx context.Context, ps []Process, asked time.Time) (ended []bool, err error)
	// Registrations returns one entry per process, in order; nil for a process that is
	// not registered.
	Registrations(ctx context.Context, ps []Process) ([]*Registration, error)
	// RegisteredHosts returns up to limit hosts on which a process is registered,
	// sorted by cloud area and address text. It begins after the host after, on which
	// the process need not be registered; the zero Host begins at the first.
	RegisteredHosts(ctx context.Context, namespace, name string, after procfleet.Host, limit int) ([]procfleet.Host, error)
}

// Desired is the state in which an agent maintains a process.
type Desired string

// The desired states.
const (
	DesiredNone Desired = "none" // not supervised
	DesiredUp   Desired = "up"   // supervised
	DesiredDown Desired = "down" // stopped or killed on purpose
)

// ReportedProcess is the last reported state of one process.
type ReportedProcess struct {
	// Key is [procfleet.ProcessSpec.Key]. Namespace and Name are empty if the agent
	// identifies the process differently.
	Key       string  `json:"key"`
	Namespace string  `json:"namespace,omitempty"`
	Name      string  `json:"name,omitempty"`
	ProcName  string  `json:"proc_name"`
	Desired   Desired `json:"desired"`
	// Status is the agent's observation, without command line and evidence.
	Status procfleet.ProcessStatus `json:"status"`
}

// Report lists all processes that the agent of one host manages, at one moment.
type Report struct {
	Host     procfleet.Host
	AgentID  string
	Instance string
	// Number orders the reports of a host: the larger number is newer. Agents use the
	// server's time in microseconds.
	Number int64
	// At is when the agent created the report, by the server's time.
	At        time.Time
	Processes []ReportedProcess
}

// Entry is the state of one process on one host: its registration, its last report, or
// both.
type Entry struct {
	Process
	Registration *Registration    // nil if the process is only reported
	Reported     *ReportedProcess // nil if the process is only registered
	ReportedAt   time.Time        // when the agent created the report; zero if only registered
	AgentID      string           // from the report; empty if only registered
}

// Entries stores reports and joins them with registrations.
type Entries interface {
	// Report stores reports. A report replaces the last report of its host unless that
	// has the same or a larger number; this also applies among the reports of one call.
	// A report without a host is ignored. A process that the new report omits loses its
	// reported state; if it is not registered, its entry disappears. A reported process
	// with an invalid namespace or name has no entry. If a report names a process
	// twice, the last one counts.
	Report(ctx context.Context, reports []Report) error
	// Reported returns the last report of each host, in order, with all its processes;
	// the zero Report for a host that never reported.
	Reported(ctx context.Context, hosts []procfleet.Host) ([]Report, error)
	// Entries returns one entry per process, in order. If the process is neither
	// registered nor reported, only Process is set.
	Entries(ctx context.Context, ps []Process) ([]Entry, error)
	// EntryPage returns up to limit entries of a namespace, after skipping the first
	// start entries, and the number of all entries. Entries are sorted by the bytes of
	// the name, then by cloud area and address text, independent of the reported state.
	EntryPage(ctx context.Context, namespace string, start, limit int) (page []Entry, total int, err error)
}

// Group limits the resources that a group of processes of one namespace uses together
// on a host.
type Group struct {
	ID string `json:"id"`
	// CPULimit and MemoryLimit are in percent of the host; 0 means no limit.
	CPULimit    float64 `json:"cpu_limit"`
	MemoryLimit float64 `json:"memory_limit"`
	// The ByLimit fields select the process that is killed first when the group exceeds
	// its limit. false selects the process with the highest usage; true spares
	// processes with a large limit of their own longer.
	CPUByLimit    bool `json:"cpu_by_limit"`
	MemoryByLimit bool `json:"memory_by_limit"`
}

// HostGroups holds the groups of one namespace on one host.
type HostGroups struct {
	Host      procfleet.Host
	Namespace string
	Name      string // name of the caller's process, if the caller gave it
	Labels    map[string]json.RawMessage
	Groups    []Group
}

// Validate returns a [procfleet.FieldError] for each invalid field.
func (g HostGroups) Validate() error {
	return errors.Join(validHost("host", g.Host), validName("namespace", g.Namespace))
}

// Groups stores process groups by host and namespace.
type Groups interface {
	// SetGroups replaces the groups of each host and namespace, in order. An empty list
	// removes the groups.
	SetGroups(ctx context.Context, gs []HostGroups) error
	// Groups returns one entry per host, in order. Without groups, only Host and
	// Namespace are set.
	Groups(ctx context.Context, namespace string, hosts []procfleet.Host) ([]HostGroups, error)
	// GroupsOf returns, for each host in order, the groups of all namespaces, sorted by
	// the bytes of the namespace.
	GroupsOf(ctx context.Context, hosts []procfleet.Host) ([][]HostGroups, error)
}

// Store is the complete catalog.
type Store interface {
	Registrations
	Entries
	Groups
	HostLabels
	Freezes
	Policies
	Schedules
	Webhooks
	Templates
	Topologies
}
