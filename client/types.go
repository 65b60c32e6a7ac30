package client

import v1 "github.com/procfleet/procfleet/api/v1"

// The types of requests and answers. Package v1 declares and describes them.
type (
	Targets          = v1.Targets
	Operation        = v1.Operation
	Task             = v1.Task
	Result           = v1.Result
	Plan             = v1.Plan
	PlannedOperation = v1.PlannedOperation
	PlannedHost      = v1.PlannedHost
	PlanProblem      = v1.PlanProblem

	Outcome      = v1.Outcome
	Process      = v1.Process
	Registration = v1.Registration
	Reported     = v1.Reported
	Grouping     = v1.Grouping
	Group        = v1.Group
	HostGroups   = v1.HostGroups

	Agent     = v1.Agent
	HostAgent = v1.HostAgent
	Binding   = v1.Binding
	Freezing  = v1.Freezing
	Frozen    = v1.Frozen
	Lifted    = v1.Lifted
	Freeze    = v1.Freeze
	EventPage = v1.EventPage

	CatalogueProcess = v1.CatalogProcess
	CatalogueSaved   = v1.CatalogSaved
	SavedProcess     = v1.SavedProcess
	Topology         = v1.Topology
	TopologySet      = v1.TopologySet
	TopologyModule   = v1.TopologyModule
	Drift            = v1.Drift
	DriftCounts      = v1.DriftCounts
	ModuleDrift      = v1.ModuleDrift
	HostDrift        = v1.HostDrift
)
