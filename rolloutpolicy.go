package procfleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// RolloutPolicy is a caller's request to release the hosts of a task gradually. Amounts in percent
// are of the hosts of the task.
type RolloutPolicy struct {
	// MaxConcurrency is the maximum number of hosts at work; a fraction rounds up, to at least 1.
	// Zero = all.
	MaxConcurrency Amount `json:"max_concurrency,omitzero"`
	// Max limits MaxConcurrency to a number of hosts; 0 = no limit.
	Max int `json:"max,omitempty"`
	// Ramp has the hosts that are released up to the end of each stage, ascending. A last stage
	// with all hosts may be omitted. A fraction rounds up.
	Ramp []Amount `json:"ramp,omitempty"`
	// Shuffle releases the hosts in a random order, by default in that of the request.
	Shuffle bool `json:"shuffle,omitempty"`
	// Order releases hosts by their groups. Each group of hosts ends a stage.
	Order HostOrder `json:"order,omitzero"`
	// Zones limits the hosts at work in each group. It has no effect on stages.
	Zones HostZones `json:"zones,omitzero"`
	// MaxFailures is the number of failed hosts that is tolerated; a fraction rounds down. Nil
	// tolerates all.
	MaxFailures *Amount `json:"max_failures,omitempty"`
	// Count has the states of items that make a host a failed one: failed, timed_out and
	// unreachable, by default all of them.
	Count []State `json:"count,omitempty"`
	// OnFailure is [OnFailureHold] by default.
	OnFailure OnFailure `json:"on_failure,omitempty"`
	// Undo applies to [OnFailureUndo].
	Undo RolloutUndo `json:"undo,omitzero"`
	// Stage applies to the end of each stage but the last.
	Stage RolloutGate `json:"stage,omitzero"`
	// Queue lets operations wait for hosts without an agent. The queue of a request has precedence.
	Queue *HostQueue `json:"queue,omitempty"`
	// Deadline is the time from acceptance until the task ends in any case, 1 minute to 30 days;
	// default 7 days. The timeout of the task applies to each host, from its release.
	Deadline Duration `json:"deadline,omitempty"`
}

// GroupBy says how hosts are divided into groups.
type GroupBy string

// Values of [GroupBy]. A host of several sets or modules is in the group of its first one, in
// the order of the topology. The hosts without a set, module or label are one group.
const (
	GroupByCloud  GroupBy = "cloud"
	GroupBySet    GroupBy = "set"    // of the business of the task
	GroupByModule GroupBy = "module" // of the business of the task
	GroupByLabel  GroupBy = "label"  // by the value of a label
)

// HostGrouping divides hosts into groups. The zero value does not.
type HostGrouping struct {
	By    GroupBy `json:"by,omitempty"`
	Label string  `json:"label,omitempty"` // name of the label, only for [GroupByLabel]
}

// HostOrder is an order of groups of hosts.
type HostOrder struct {
	HostGrouping
	// List has the names of the groups that are first, at most [MaxRamp]. The other hosts are one
	// group after them. The name of a cloud area is its number. A host of several sets or modules
	// is in the first of them in List.
	List []string `json:"list,omitempty"`
}

// HostZones limits the hosts at work by their groups, the zones. At least one limit is set.
type HostZones struct {
	HostGrouping
	MaxConcurrency int `json:"max_concurrency,omitempty"` // maximum number of hosts at work in each zone; 0 = no limit
	AtOnce         int `json:"at_once,omitempty"`         // maximum number of zones with hosts at work; 0 = no limit
}

func (g HostGrouping) validate() error {
	if g.By == GroupByLabel && g.Label == "" {
		return &FieldError{"label", "is missing"}
	}
	if g.By != GroupByLabel && g.Label != "" {
		return &FieldError{"label", "is only allowed with by = label"}
	}
	return oneOf("by", g.By, GroupByCloud, GroupBySet, GroupByModule, GroupByLabel)
}

func (o *HostOrder) validate() error {
	if o.HostGrouping == (HostGrouping{}) && len(o.List) == 0 {
		return nil
	}
	err := In("order", o.HostGrouping.validate())
	if n := len(o.List); n == 0 || n > MaxRamp {
		err = errors.Join(err, &FieldError{"order.list", fmt.Sprintf("has %d groups, 1 to %d are allowed", n, MaxRamp)})
	}
	return err
}

func (z *HostZones) validate() error {
	if *z == (HostZones{}) {
		return nil
	}
	err := In("zones", z.HostGrouping.validate())
	if z.MaxConcurrency < 0 || z.AtOnce < 0 || z.MaxConcurrency+z.AtOnce == 0 {
		err = errors.Join(err, &FieldError{"zones", "needs a positive max_concurrency or at_once"})
	}
	return err
}

// RolloutGate is what a rollout waits for after the last host of a stage.
type RolloutGate struct {
	Bake Duration `json:"bake,omitempty"` // up to 7 days
	// Gates has the gates that open after Bake: "auto" compares the processes with the reports of
	// agents, and "manual" waits for an approval after that.
	Gates []string `json:"gates,omitempty"`
	// Unhealthy is the number of hosts with unhealthy processes that "auto" tolerates.
	Unhealthy int `json:"unhealthy,omitempty"`
	// Inconclusive says what "auto" does if agents do not report: "hold" (default) or "pass".
	Inconclusive string `json:"inconclusive,omitempty"`
	// ProgressDeadline is the time after which a rollout is held if no host ends; 0 = never.
	ProgressDeadline Duration `json:"progress_deadline,omitempty"`
}

// RolloutUndo says how a rollout is undone.
type RolloutUndo struct {
	Speed UndoSpeed `json:"speed,omitempty"` // default [UndoWindow]
}

// UndoSpeed says how many hosts of an undo are at work.
type UndoSpeed string

// Values of [UndoSpeed].
const (
	UndoWindow UndoSpeed = "window" // as many as of the rollout
	UndoAll    UndoSpeed = "all"
)

// Validate returns a [FieldError] for an unknown value.
func (s UndoSpeed) Validate(field string) error {
	if s == "" {
		return nil
	}
	return oneOf(field, s, UndoWindow, UndoAll)
}

// Gates of [RolloutGate].
const (
	GateManual = "manual" // opens with an approval
	GateAuto   = "auto"   // opens if the processes are healthy
)

// Values of [RolloutGate].Inconclusive.
const (
	inconclusiveHolds  = "hold"
	inconclusivePasses = "pass"
)

// Limits of a [RolloutPolicy].
const (
	MaxRamp         = 100                 // maximum number of stages
	MaxRolloutTime  = 30 * 24 * time.Hour // maximum deadline
	rolloutDeadline = 7 * 24 * time.Hour
	maxBake         = 7 * 24 * time.Hour
)

// Amount is a number of hosts, or a part of them in percent. In JSON it is a number, or a string
// such as "20" or "2.5%". The zero value means that none is given.
type Amount struct {
	Number  float64
	Percent bool
	given   bool
	problem string // of an amount that could not be decoded
}

// ParseAmount reads an amount: an integer, or a number up to 100 before a percent sign.
func ParseAmount(s string) (Amount, error) {
	digits, percent := strings.CutSuffix(strings.TrimSpace(s), "%")
	n, err := strconv.ParseFloat(digits, 64)
	switch {
	case err != nil, n < 0, math.IsNaN(n), percent && n > 100, !percent && (n != math.Trunc(n) || n > math.MaxInt32):
		return Amount{}, fmt.Errorf("%q is neither a number such as 20 nor a percentage such as 10%%", clip(s))
	}
	return Amount{Number: n, Percent: percent, given: true}, nil
}

// Given reports whether the amount was set, also to 0.
func (a Amount) Given() bool { return a.given }

// IsZero reports whether no amount is given.
func (a Amount) IsZero() bool { return !a.given }

// String returns the amount as [ParseAmount] reads it.
func (a Amount) String() string {
	text := strconv.FormatFloat(a.Number, 'f', -1, 64)
	if a.Percent {
		text += "%"
	}
	return text
}

// UnmarshalJSON reads a number or a string. It keeps an error for [Amount.Validate], which names
// the field.
func (a *Amount) UnmarshalJSON(data []byte) error {
	text := string(data)
	if text != "" && text[0] == '"' {
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
	}
	read, err := ParseAmount(text)
	if err != nil {
		read = Amount{given: true, problem: err.Error()}
	}
	*a = read
	return nil
}

// Validate returns a [FieldError] for an amount that could not be decoded.
func (a Amount) Validate(field string) error {
	if a.problem == "" {
		return nil
	}
	return &FieldError{field, a.problem}
}

// MarshalJSON writes a string.
func (a Amount) MarshalJSON() ([]byte, error) { return json.Marshal(a.String()) }

// Of returns the part of n units, with a fraction rounded down.
func (a Amount) Of(n int) int {
	if a.Percent {
		return int(math.Floor(a.Number * float64(n) / 100))
	}
	return int(a.Number)
}

// upOf returns the part of n units, with a fraction rounded up, from 1 to n.
func (a Amount) upOf(n int) int {
	part := int(a.Number)
	if a.Percent {
		part = int(math.Ceil(a.Number * float64(n) / 100))
	}
	return min(max(part, 1), n)
}

// Validate returns a [FieldError] for each invalid field, joined.
func (p *RolloutPolicy) Validate() error {
	var errs []error
	wrong := func(is bool, field, format string, args ...any) {
		if is {
			errs = append(errs, &FieldError{field, fmt.Sprintf(format, args...)})
		}
	}
	errs = append(errs, p.MaxConcurrency.Validate("max_concurrency"))
	if p.MaxFailures != nil {
		errs = append(errs, p.MaxFailures.Validate("max_failures"))
	}
	wrong(p.Max < 0, "max", "is negative")
	wrong(len(p.Ramp) > MaxRamp, "ramp", "has %d stages, at most %d are allowed", len(p.Ramp), MaxRamp)
	for _, upto := range p.Ramp {
		errs = append(errs, upto.Validate("ramp"))
	}
	for i := 1; i < len(p.Ramp); i++ {
		before, next := p.Ramp[i-1], p.Ramp[i]
		wrong(next.Percent == before.Percent && next.Number <= before.Number, "ramp", "%s does not exceed %s before it", next, before)
	}
	errs = append(errs, p.Order.validate(), p.Zones.validate())
	for _, s := range p.Count {
		wrong(s != StateFailed && s != StateTimedOut && s != StateUnreachable, "count", "%q is none of failed, timed_out and unreachable", clip(string(s)))
	}
	if p.OnFailure != "" {
		errs = append(errs, oneOf("on_failure", p.OnFailure, OnFailureHold, OnFailureCancel, OnFailureUndo))
	}
	errs = append(errs, p.Undo.Speed.Validate("undo.speed"))
	wrong(p.Undo.Speed != "" && p.OnFailure != OnFailureUndo, "undo", "needs on_failure = undo")
	for _, g := range p.Stage.Gates {
		errs = append(errs, oneOf("stage.gates", g, GateManual, GateAuto))
	}
	auto := slices.Contains(p.Stage.Gates, GateAuto)
	wrong(p.Stage.Unhealthy < 0, "stage.unhealthy", "is negative")
	wrong(p.Stage.Unhealthy > 0 && !auto, "stage.unhealthy", "needs the gate auto")
	wrong(p.Stage.Inconclusive != "" && !auto, "stage.inconclusive", "needs the gate auto")
	if p.Stage.Inconclusive != "" {
		errs = append(errs, oneOf("stage.inconclusive", p.Stage.Inconclusive, inconclusiveHolds, inconclusivePasses))
	}
	errs = append(errs,
		within("stage.bake", p.Stage.Bake, 0, maxBake),
		within("stage.progress_deadline", p.Stage.ProgressDeadline, 0, maxBake),
	)
	if p.Queue != nil {
		errs = append(errs, In("queue", p.Queue.Validate()))
	}
	if p.Deadline != 0 {
		errs = append(errs, within("deadline", p.Deadline, time.Minute, MaxRolloutTime))
	}
	return errors.Join(errs...)
}

// TaskTimeout returns the time from acceptance to the deadline of the task.
func (p *RolloutPolicy) TaskTimeout() time.Duration {
	if p.Deadline == 0 {
		return rolloutDeadline
	}
	return p.Deadline.Std()
}

// Plan returns the plan for units, whose numbers in each group of Order are given, at least one unit
// in all. The chunks of its stages are not set.
func (p *RolloutPolicy) Plan(timeout time.Duration, groups ...int) RolloutPlan {
	units := 0
	var ends []int // numbers of units up to the end of each stage
	for _, n := range groups {
		units += n
		ends = append(ends, units)
	}
	plan := RolloutPlan{
		Window: units, Failures: AnyFailures, Count: p.Count, OnFailure: p.OnFailure, UndoAll: p.Undo.Speed == UndoAll, UnitTimeout: timeout,
		Bake: p.Stage.Bake.Std(), Approval: slices.Contains(p.Stage.Gates, GateManual), Stall: p.Stage.ProgressDeadline.Std(),
		Auto: slices.Contains(p.Stage.Gates, GateAuto), Unhealthy: p.Stage.Unhealthy, PassInconclusive: p.Stage.Inconclusive == inconclusivePasses,
		Zones: ZoneLimits{Window: p.Zones.MaxConcurrency, AtOnce: p.Zones.AtOnce},
	}
	if p.MaxConcurrency.Given() {
		plan.Window = p.MaxConcurrency.upOf(units)
	}
	if p.Max > 0 {
		plan.Window = min(plan.Window, p.Max)
	}
	if p.MaxFailures != nil {
		plan.Failures = p.MaxFailures.Of(units)
	}
	if len(plan.Count) == 0 {
		plan.Count = []State{StateFailed, StateTimedOut, StateUnreachable}
	}
	for _, upto := range p.Ramp {
		ends = append(ends, upto.upOf(units))
	}
	slices.Sort(ends)
	done := 0
	for _, end := range slices.Compact(ends) {
		if end > done {
			plan.Stages = append(plan.Stages, RolloutStage{Units: end - done})
			done = end
		}
	}
	return plan
}
