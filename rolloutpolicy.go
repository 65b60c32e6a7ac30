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
	// MaxFailures is the number of failed hosts that is tolerated; a fraction rounds down. Nil
	// tolerates all.
	MaxFailures *Amount `json:"max_failures,omitempty"`
	// Count has the states of items that make a host a failed one: failed, timed_out and
	// unreachable, by default all of them.
	Count []State `json:"count,omitempty"`
	// OnFailure is [OnFailureHold] by default.
	OnFailure OnFailure `json:"on_failure,omitempty"`
	// Stage applies to the end of each stage but the last.
	Stage RolloutGate `json:"stage,omitzero"`
	// Deadline is the time from acceptance until the task ends in any case, 1 minute to 30 days;
	// default 7 days. The timeout of the task applies to each host, from its release.
	Deadline Duration `json:"deadline,omitempty"`
}

// RolloutGate is what a rollout waits for after the last host of a stage.
type RolloutGate struct {
	Bake Duration `json:"bake,omitempty"` // up to 7 days
	// Gates has the gates that open after Bake: "manual" waits for an approval.
	Gates []string `json:"gates,omitempty"`
	// ProgressDeadline is the time after which a rollout is held if no host ends; 0 = never.
	ProgressDeadline Duration `json:"progress_deadline,omitempty"`
}

// GateManual is the gate that opens with an approval.
const GateManual = "manual"

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
	for _, s := range p.Count {
		wrong(s != StateFailed && s != StateTimedOut && s != StateUnreachable, "count", "%q is none of failed, timed_out and unreachable", clip(string(s)))
	}
	if p.OnFailure != "" {
		errs = append(errs, oneOf("on_failure", p.OnFailure, OnFailureHold, OnFailureCancel))
	}
	for _, g := range p.Stage.Gates {
		errs = append(errs, oneOf("stage.gates", g, GateManual))
	}
	errs = append(errs,
		within("stage.bake", p.Stage.Bake, 0, maxBake),
		within("stage.progress_deadline", p.Stage.ProgressDeadline, 0, maxBake),
	)
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

// Plan returns the plan for a number of units, at least one. The chunks of its stages are not set.
func (p *RolloutPolicy) Plan(units int, timeout time.Duration) RolloutPlan {
	plan := RolloutPlan{
		Window: units, Failures: AnyFailures, Count: p.Count, OnFailure: p.OnFailure, UnitTimeout: timeout,
		Bake: p.Stage.Bake.Std(), Approval: len(p.Stage.Gates) > 0, Stall: p.Stage.ProgressDeadline.Std(),
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
	done := 0
	for _, upto := range append(slices.Clone(p.Ramp), Amount{Number: float64(units), given: true}) {
		if end := upto.upOf(units); end > done {
			plan.Stages = append(plan.Stages, RolloutStage{Units: end - done})
			done = end
		}
	}
	return plan
}
