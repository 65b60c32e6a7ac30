package pack

import (
	"strings"
	"time"

	"github.com/procfleet/procfleet"
)

// UnitStart is the byte of [Units] of the first item of a unit.
const UnitStart = '1'

// Units has one byte per item of a chunk: [UnitStart] if the item is on another host than the
// item before it.
func Units(items []procfleet.Item) string {
	units := make([]byte, len(items))
	for i := range items {
		units[i] = UnitStart
		if i > 0 && sameUnit(&items[i-1].Target, &items[i].Target) {
			units[i] = '0'
		}
	}
	return string(units)
}

func sameUnit(a, b *procfleet.Target) bool {
	if a.Host.IsZero() {
		return *a == *b
	}
	return a.Host == b.Host
}

// UnitOf returns the first item of the unit of item i.
func UnitOf(units string, i int) int { return strings.LastIndexByte(units[:i+1], UnitStart) }

// UnitEnd returns the index after the last item of the unit that begins with item i.
func UnitEnd(units string, i int) int {
	if n := strings.IndexByte(units[i+1:], UnitStart); n >= 0 {
		return i + 1 + n
	}
	return len(units)
}

// CountedMarks returns the marks of the states that make a unit of a rollout a failed one, without
// [Superseded] and [Expired]: a unit that a later operation has overtaken, or whose host never returned,
// says nothing about the rollout.
func CountedMarks(p *procfleet.RolloutPlan) string {
	var marks strings.Builder
	for _, s := range p.Count {
		marks.WriteString(Marks(s))
	}
	return strings.NewReplacer(string(Superseded), "", string(Expired), "").Replace(marks.String())
}

// NewRollout returns a rollout at its begin.
func NewRollout(p procfleet.RolloutPlan, now time.Time) *procfleet.Rollout {
	return &procfleet.Rollout{Plan: p, Phase: procfleet.PhaseReleasing, Since: now, Window: p.Window, Failures: p.Failures}
}
