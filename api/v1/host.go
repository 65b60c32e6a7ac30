package v1

import (
	"time"

	"github.com/procfleet/procfleet"
)

// Agent is a live agent; its host can execute operations.
type Agent struct {
	Host       procfleet.Host `json:"host"`
	AgentID    string         `json:"agent_id"`
	Instance   string         `json:"instance"` // random id, created with the agent's data folder
	Version    string         `json:"version"`
	OS         string         `json:"os"`
	Arch       string         `json:"arch"`
	StartedAt  time.Time      `json:"started_at,omitzero"`
	AliveSince time.Time      `json:"alive_since,omitzero"` // first announcement in an uninterrupted series
	SeenAt     time.Time      `json:"seen_at,omitzero"`
	Supervised int            `json:"supervised"` // number of supervised processes
	// CPU and Memory are the used share of the host, in percent.
	CPU      float64 `json:"cpu"`
	Memory   float64 `json:"memory"`
	Conflict bool    `json:"conflict"` // two agents claim this host
	// Missing means that the host is in the topology of the requested business and has no
	// live agent. It has then only Host, Labels and, if processes were requested,
	// Processes, SeenAt and FrozenUntil of the last report.
	Missing bool `json:"missing,omitempty"`
	// Labels are the labels of the host, with its facts os, arch, kernel and version.
	Labels map[string]string `json:"labels,omitempty"`
	// Processes counts the processes in the last report of the agent, and FrozenUntil is the
	// end of a freeze of the whole host; both only if requested with processes=true.
	Processes   *ProcessCounts `json:"processes,omitempty"`
	FrozenUntil *time.Time     `json:"frozen_until,omitempty"`
}

// ProcessCounts counts the processes of a host.
type ProcessCounts struct {
	Up   int `json:"up"`
	Down int `json:"down"`
}

// HostPage is a page of live agents, by cloud area and address. Next is the
// "after" parameter of the next page, empty at the end.
type HostPage struct {
	Hosts []Agent `json:"hosts"`
	Next  string  `json:"next"`
}

// HostAgent is the live agent of one host.
type HostAgent struct {
	// Host is zero if the caller named an agent id that no agent has announced.
	Host    procfleet.Host `json:"host"`
	AgentID string         `json:"agent_id,omitempty"` // agent id in the request
	Agent   *Agent         `json:"agent"`              // nil if the host has no live agent
}

// AgentList is the response to POST /v1/agents/query, whose body is [Targets].
type AgentList struct {
	Agents []HostAgent `json:"agents"` // in the order of the [Targets]
}

// AgentName assigns an agent id to a host.
type AgentName struct {
	Host    procfleet.Host `json:"host"`
	AgentID string         `json:"agent_id"`
}

// BindRequest is the body of POST /v1/agents/bindings.
type BindRequest struct {
	Bindings []AgentName `json:"bindings"`
	Business string      `json:"business,omitempty"`
}

// Binding is the outcome of one [AgentName].
type Binding struct {
	Host    procfleet.Host `json:"host"`
	AgentID string         `json:"agent_id"`
	Bound   bool           `json:"bound"` // whether the agent id now identifies the host
}

// BindingList is the response to a [BindRequest], in the same order.
type BindingList struct {
	Results []Binding `json:"results"`
}

// Freezing selects the processes to freeze: automatic starts and limits are
// suspended, operations are not.
type Freezing struct {
	Namespace string             `json:"namespace,omitempty"` // empty: all processes of the hosts
	TTL       procfleet.Duration `json:"ttl"`                 // 1 s to 24 h
	Reason    string             `json:"reason,omitempty"`
}

// FreezeRequest is the body of PUT /v1/freezes. Without hosts and agent ids it
// freezes a namespace on all hosts.
type FreezeRequest struct {
	Freezing
	Targets
}

// Frozen is the response to a [FreezeRequest].
type Frozen struct {
	Until   *time.Time `json:"until"`   // server time; nil if nothing was frozen
	Results []Outcome  `json:"results"` // in the order of [Outcomes]
}

// LiftRequest is the body of DELETE /v1/freezes.
type LiftRequest struct {
	Namespace string `json:"namespace,omitempty"`
	Targets
}

// Lifted is the response to a [LiftRequest]. The code of a host is
// [procfleet.CodeNotRunning] if nothing was frozen there.
type Lifted struct {
	Lifted  int       `json:"lifted"`  // number of freezes that were ended
	Results []Outcome `json:"results"` // in the order of [Outcomes]
}

// Freeze is one freeze that is in effect.
type Freeze struct {
	Host      procfleet.Host `json:"host"`                // zero: all hosts
	Namespace string         `json:"namespace,omitempty"` // empty: all processes of the host
	Until     time.Time      `json:"until"`
	Reason    string         `json:"reason"`
	By        string         `json:"by"` // application and user that requested the freeze
}

// FreezePage is a page of freezes: first the freezes of all hosts, then by cloud area,
// address and namespace. Next is the cursor of the next page, empty at the end.
type FreezePage struct {
	Freezes []Freeze `json:"freezes"`
	Next    string   `json:"next"`
}

// EventPage is a page of host events, oldest first.
type EventPage struct {
	Events []procfleet.HostEvent `json:"events"`
	// Next is the "after" parameter of the next page, even if no event follows yet.
	Next string `json:"next"`
	More bool   `json:"more"` // the next page is available now
}
