package dialect

import (
	"path"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/label"
)

// TaskFilter selects tasks. The zero filter selects all.
type TaskFilter struct {
	States       []procfleet.TaskState `json:",omitempty"` // any of these; none = all
	Action       procfleet.Action      `json:",omitempty"` // the task has an operation with this action
	Business     string                `json:",omitempty"`
	Application  string                `json:",omitempty"`
	CreatedAfter time.Time             `json:",omitzero"`
	ItemFilter
}

// ItemFilter selects items by host and by process, "name" or "namespace:name". The zero
// filter selects all.
type ItemFilter struct {
	Host    procfleet.Host `json:",omitzero"`
	Process string         `json:",omitempty"`
}

// MatchesItem reports whether the filter selects an item.
func (f *ItemFilter) MatchesItem(it *procfleet.ItemResult) bool {
	return (f.Host.IsZero() || f.Host == it.Item.Target.Host) &&
		(f.Process == "" || f.Process == it.Spec.Name || f.Process == it.Spec.Key())
}

// Matches reports whether the filter selects a task, apart from its items.
func (f *TaskFilter) Matches(t *procfleet.Task) bool {
	return (len(f.States) == 0 || slices.Contains(f.States, t.State)) &&
		(f.Action == "" || slices.Contains(t.Actions, f.Action)) &&
		(f.Business == "" || f.Business == t.Business) &&
		(f.Application == "" || f.Application == t.Application) &&
		!t.CreatedAt.Before(f.CreatedAfter)
}

// HostFilter selects hosts with a live agent. The zero filter selects all.
type HostFilter struct {
	Areas    []procfleet.CloudArea `json:",omitempty"` // any of these; none = all
	Labels   []label.Filter        `json:",omitempty"` // all of these, over labels and facts
	Conflict bool                  `json:",omitempty"` // two agents claim the host
}

// Matches reports whether the filter selects a host with the labels.
func (f *HostFilter) Matches(host procfleet.Host, labels map[string]string, conflict bool) bool {
	return (len(f.Areas) == 0 || slices.Contains(f.Areas, host.Cloud)) && (conflict || !f.Conflict) &&
		!slices.ContainsFunc(f.Labels, func(l label.Filter) bool { return !l.Matches(labels) })
}

// ListFleet is the endpoint that returns a page of the processes of all hosts.
type ListFleet = Codec[FleetPage, FleetProcesses]

// FleetPage requests the reported processes of hosts after the host After, of as many hosts
// as have Limit processes together.
type FleetPage struct {
	After    procfleet.Host
	Limit    int
	Business string   // only hosts in the topology of the business
	Modules  []string // only hosts of these modules of the business; none = all
	Hosts    []procfleet.Host
	Drift    bool // sets Drift of each process
	Drifted  bool // only processes that differ from their registration; sets Drift as well
	HostFilter
	ProcessFilter
}

// InBusiness returns the business whose hosts the request is about; "" = all hosts.
func (q *FleetPage) InBusiness() string { return q.Business }

// ProcessFilter selects reported processes. The zero filter selects all.
type ProcessFilter struct {
	State     string // "up", "down", or a phase of [procfleet.ProcessStatus]
	Namespace string
	Name      string // pattern of [path.Match]
	Restarted bool   // the agent has restarted the process
}

// The states of a [ProcessFilter] that are not phases.
const (
	StateUp   = "up"
	StateDown = "down"
)

// Matches reports whether the filter selects a process.
func (f *ProcessFilter) Matches(p *catalog.ReportedProcess) bool {
	switch {
	case f.Namespace != "" && f.Namespace != p.Namespace, f.Restarted && p.Status.Restarts == 0:
		return false
	case f.Name != "":
		if matches, _ := path.Match(f.Name, p.Name); !matches { // decodeFleetPage has checked the pattern
			return false
		}
	}
	switch f.State {
	case "":
		return true
	case StateUp:
		return p.Status.Running
	case StateDown:
		return !p.Status.Running
	}
	return f.State == p.Status.Phase
}

// FleetProcesses is a page of processes by host. The next page begins after the host Next;
// the zero host ends the list. A page may be short or empty although another page follows.
type FleetProcesses struct {
	Processes []FleetProcess
	Next      procfleet.Host
}

// FleetProcess is a process in the last report of a host with a live agent.
type FleetProcess struct {
	Host       procfleet.Host
	AgentID    string
	Labels     map[string]string
	ReportedAt time.Time
	Drift      []v1.DriftState // differences from the registration
	catalog.ReportedProcess
}

// ListAudit is the endpoint that returns a page of the audit log.
type ListAudit = Codec[AuditQuery, v1.AuditPage]

// AuditQuery requests up to Limit records of the audit log after a position, the Next of a
// previous page, or since a time.
type AuditQuery struct {
	After       string
	Since       time.Time `json:",omitzero"`
	Limit       int
	Event       string           `json:",omitempty"`
	Application string           `json:",omitempty"` // authenticated or claimed
	Business    string           `json:",omitempty"`
	Task        procfleet.TaskID `json:",omitempty"`
}

// Matches reports whether the query selects a record.
func (q *AuditQuery) Matches(r *v1.AuditRecord) bool {
	return (q.Event == "" || q.Event == r.Event) &&
		(q.Application == "" || q.Application == r.Application || q.Application == r.Claimed) &&
		(q.Business == "" || q.Business == r.Business) &&
		(q.Task == "" || q.Task == r.Task)
}

// ShowOutput is the endpoint that returns a page of the output of a process.
type ShowOutput = Codec[OutputQuery, v1.OutputPage]

// OutputQuery requests the output of a process on a host: after Cursor, the Next of a previous
// page, or the last Tail lines. With Follow the request waits a few seconds for output after
// Cursor.
type OutputQuery struct {
	Business string `json:",omitempty"`
	Host     procfleet.Host
	Process  string // [procfleet.ProcessSpec.Key]
	Tail     int
	Since    time.Time `json:",omitzero"`
	Log      bool      `json:",omitempty"` // the log file of the process instead of its output
	Cursor   string    `json:",omitempty"`
	Follow   bool      `json:",omitempty"`
}

// OnTargets returns the business and the host.
func (q *OutputQuery) OnTargets() (business string, targets []procfleet.Target) {
	return q.Business, []procfleet.Target{{Host: q.Host}}
}
