package procfleet

import "time"

// RolloutPlan says how the units of a task are released over time. A unit is one host with
// all of its items. An item that is not released is not delivered to its agent.
type RolloutPlan struct {
	// Window is the maximum number of units that are active; see [Rollout.Active].
	Window int `json:"w"`
	// Failures is the number of failed units that is tolerated; [AnyFailures] tolerates all.
	// The next failed unit sets the hold [HoldBudget].
	Failures int `json:"f"`
	// Count has the final states that make a unit a failed one, as soon as one of its items
	// has the state.
	Count []State `json:"c"`
	// Policy is the name of the stored policy that the plan is made from; "" without one.
	Policy string `json:"n,omitempty"`
	// Stages divides the chunks of the task, in their order. The units of a stage are released
	// when the stage before it has passed.
	Stages []RolloutStage `json:"s"`
	// Zones limits the units at work of the chunks with the same [Chunk.Zone].
	Zones ZoneLimits `json:"z,omitzero"`
	// Bake is the time from the end of a stage's last unit until its gate.
	Bake time.Duration `json:"b,omitempty"`
	// Approval sets the hold [HoldApproval] at the gate of each stage but the last.
	Approval bool `json:"a,omitempty"`
	// Auto lets workers judge the gate of each stage but the last by the reports of agents. More than
	// Unhealthy units with a process that is not healthy set the hold [HoldUnhealthy]; units
	// without a report set [HoldInconclusive], unless PassInconclusive is true.
	Auto             bool `json:"h,omitempty"`
	Unhealthy        int  `json:"y,omitempty"`
	PassInconclusive bool `json:"q,omitempty"`
	// Stall sets the hold [HoldStalled] if no unit ends for this time; 0 = never.
	Stall time.Duration `json:"d,omitempty"`
	// OnFailure says what follows the hold [HoldBudget].
	OnFailure OnFailure `json:"o,omitempty"`
	// UndoAll lets the task that reverts the rollout ignore Window.
	UndoAll bool `json:"u,omitempty"`
	// Windows has the namespaces whose maintenance windows stop releases, each with the names of its
	// windows for groups that hosts of the task are in. Windows for all hosts apply in any case.
	Windows map[string][]string `json:"m,omitempty"`
	// Queue is the time from acceptance until which a released unit waits for its host, if no agent
	// of the host is connected; 0 = units do not wait. Coalesce cancels the waiting items of a process
	// as soon as a later task operates it.
	Queue    time.Duration `json:"k,omitempty"`
	Coalesce bool          `json:"l,omitempty"`
	// UnitTimeout is the time from the release of a unit to the deadline of its items.
	UnitTimeout time.Duration `json:"t"`
}

// ZoneLimits bounds the active units of zones; 0 = no limit. It does not apply to chunks without a
// zone.
type ZoneLimits struct {
	Window int `json:"w,omitempty"` // maximum number of active units in each zone
	AtOnce int `json:"o,omitempty"` // maximum number of zones with active units
}

// AnyFailures is the [RolloutPlan.Failures] of a rollout that no failure stops.
const AnyFailures = -1

// RolloutStage is a part of a task.
type RolloutStage struct {
	Units  int `json:"u"` // units of the stage
	Chunks int `json:"c"` // chunks of the task up to the end of the stage
}

// Units returns the number of units of all stages.
func (p *RolloutPlan) Units() int {
	n := 0
	for _, s := range p.Stages {
		n += s.Units
	}
	return n
}

// OnFailure says what happens to a rollout with too many failed units.
type OnFailure string

// Values of [OnFailure].
const (
	OnFailureHold   OnFailure = "hold"   // it is held until a caller resumes or cancels it
	OnFailureCancel OnFailure = "cancel" // it is canceled; items that agents have begun go on
	OnFailureUndo   OnFailure = "undo"   // it is canceled; when it has ended, another task reverts it
)

// RolloutPhase is what the current stage of a rollout waits for.
type RolloutPhase string

// Values of [RolloutPhase].
const (
	PhaseReleasing RolloutPhase = "releasing" // until all units of the stage have ended
	PhaseBaking    RolloutPhase = "baking"    // until the bake time has passed
	PhaseGate      RolloutPhase = "gate"      // until workers have judged the stage, and until an approval
)

// Rollout is the plan and the progress of a gradual task.
type Rollout struct {
	Plan RolloutPlan

	Stage int          // current stage, from 0
	Phase RolloutPhase // phase of the current stage
	Since time.Time    // begin of the phase
	// Window and Failures are those of the plan until a caller changes them.
	Window, Failures int
	Released         int // units that were released
	Active           int // released units with open items, without those that wait
	Waiting          int // released units that wait for their hosts, see [RolloutPlan.Queue]
	Failed           int // units with an item in a state of Plan.Count
	// Judged is the number of stages that the reports of agents, or callers, have passed.
	Judged int
	// Hold stops releases; zero without a hold, and after the end of the task. Items of
	// released units go on.
	Hold Hold
}

// Causes of a [Rollout.Hold]. A success that arrives later does not end it.
const (
	HoldBudget   HoldKind = "budget"   // too many units have failed
	HoldApproval HoldKind = "approval" // the next stage needs an approval
	HoldStalled  HoldKind = "stalled"  // no unit has ended for a long time
	HoldWindow   HoldKind = "window"   // maintenance windows permit no releases; it ends when they do
	// Processes of the stage are not healthy, or agents have not reported them.
	HoldUnhealthy    HoldKind = "unhealthy"
	HoldInconclusive HoldKind = "inconclusive"
)
