package dialect

import (
	"net/http"
	"strconv"

	"github.com/procfleet/procfleet"
)

// Plan is what would be done of a submission, had it been accepted at the
// moment of the plan.
type Plan struct {
	// Refusal is why it would not be accepted; "" if it would.
	Refusal string `json:"refusal,omitempty"`
	// Items is how many items the task would have, 0 if it is refused. Hosts is
	// how many different ones Operations have, WithoutAgent on how many of them
	// no agent lives.
	Items        int `json:"items"`
	Hosts        int `json:"hosts"`
	WithoutAgent int `json:"without_agent"`
	// Operations are one for each process that was selected or spec that is
	// registered, and otherwise as they were asked for. Problems say of what
	// nothing, or less, comes. Neither is nil.
	Operations []PlannedOperation `json:"operations"`
	Problems   []PlanProblem      `json:"problems"`
}

// PlannedOperation is one action on one process.
type PlannedOperation struct {
	Index   int                    `json:"index"` // of the operation in the submission
	Action  procfleet.Action       `json:"action"`
	ID      int64                  `json:"process_id,omitempty"` // in the catalogue; 0 if it is not from there
	Name    string                 `json:"name"`                 // of the process, or its key if it has none
	Process *procfleet.ProcessSpec `json:"process"`              // nil if it is to be as registered, and is not
	Hosts   []PlannedHost          `json:"hosts"`
}

// PlannedHost is a host as the operation would reach it; without one, AgentID is
// the agent that nobody has announced.
type PlannedHost struct {
	Host    procfleet.Host `json:"host"`
	AgentID string         `json:"agent_id,omitempty"` // if the caller named the agent
	// Modules are those that made it be selected, as "set/module".
	Modules []string `json:"modules,omitempty"`
	Alive   bool     `json:"alive"` // an agent lives there
}

// PlanProblem is why nothing is done for a part of what was asked for.
type PlanProblem struct {
	Index   int           `json:"index"` // of the operation in the submission
	Reason  ProblemReason `json:"reason"`
	ID      int64         `json:"process_id,omitempty"` // of the process that it is about, if it is about one
	Name    string        `json:"name,omitempty"`       // of that process
	Message string        `json:"message"`              // for people
}

// ProblemReason is the class of a [PlanProblem]; software branches on it.
type ProblemReason string

// The reasons.
const (
	UnknownProcess ProblemReason = "unknown_process" // the catalogue has none with this id, or whose name matches
	UnfitSpec      ProblemReason = "unfit_spec"      // it lacks what the action needs
	NotBound       ProblemReason = "not_bound"       // to no module
	UnknownModule  ProblemReason = "unknown_module"  // the topology has no module of this name
	UnknownSet     ProblemReason = "unknown_set"     // the topology has no set of this name
	NoHosts        ProblemReason = "no_hosts"        // the module has none
	FilteredOut    ProblemReason = "filtered_out"    // none of its modules is among the sets and modules asked for
	NotRegistered  ProblemReason = "not_registered"  // on some hosts
	NoAgent        ProblemReason = "no_agent"        // on some hosts; the task reports them as unreachable
)

// Planned reports whether a request to make a task wants to know only what
// would be done.
func Planned(r *Request) (bool, error) {
	values, there := r.Query["plan"]
	if !there {
		return false, nil
	}
	if len(values) == 1 {
		if planned, err := strconv.ParseBool(values[0]); err == nil {
			return planned, nil
		}
	}
	return false, invalid("plan", "is neither true nor false")
}

func nativePlan(p *Plan, _ string) Reply { return Reply{Status: http.StatusOK, Body: p} }
