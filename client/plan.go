package client

import (
	"context"
	"net/http"

	"github.com/procfleet/procfleet"
)

// Plan is what would be done of a submission at this moment. Its JSON is the
// API's.
type Plan struct {
	// Refusal is why it would not be accepted; empty if it would.
	Refusal string `json:"refusal,omitempty"`
	// Items is how many items the task would have, 0 if it is refused. Hosts is
	// how many different ones Operations have, WithoutAgent on how many of them
	// no agent lives.
	Items        int `json:"items"`
	Hosts        int `json:"hosts"`
	WithoutAgent int `json:"without_agent"`
	// Operations are one for each process that was selected or spec that is
	// registered, and otherwise as they were asked for. Problems say of what
	// nothing, or less, comes.
	Operations []PlannedOperation `json:"operations"`
	Problems   []PlanProblem      `json:"problems"`
}

// PlannedOperation is one action on one process.
type PlannedOperation struct {
	Index     int              `json:"index"` // of the operation in the submission
	Action    procfleet.Action `json:"action"`
	ProcessID int64            `json:"process_id,omitempty"` // in the catalogue; 0 if it is not from there
	Name      string           `json:"name"`                 // of the process, or its key if it has none
	// Process is nil if it is to be as it is registered, and nothing is.
	Process *procfleet.ProcessSpec `json:"process"`
	Hosts   []PlannedHost          `json:"hosts"`
}

// PlannedHost is a host as an operation would reach it.
type PlannedHost struct {
	// Host is zero if AgentID is one that nobody has announced.
	Host    procfleet.Host `json:"host"`
	AgentID string         `json:"agent_id,omitempty"`
	// Modules are those that made it be selected, as "set/module".
	Modules []string `json:"modules,omitempty"`
	Alive   bool     `json:"alive"` // an agent lives there
}

// PlanProblem is why nothing is done for a part of what was asked for.
type PlanProblem struct {
	Index     int    `json:"index"`                // of the operation in the submission
	Reason    string `json:"reason"`               // a word, for software; see docs/api.md
	ProcessID int64  `json:"process_id,omitempty"` // of the process that it is about, if it is about one
	Name      string `json:"name,omitempty"`       // of that process
	Message   string `json:"message"`              // for people
}

// Plan tells what would be done of a submission, and does nothing. The
// IdempotencyKey plays no part.
func (c *Client) Plan(ctx context.Context, s Submission) (p Plan, err error) {
	return p, c.send(ctx, http.MethodPost, "/v1/tasks?plan=true", s, &p)
}
