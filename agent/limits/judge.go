// Package limits decides when a process exceeds its resource limits, and which member of a
// pool is terminated when the pool exceeds its limits.
//
// A [Judge] reads a sequence of [Reading] values, each with all process trees, and returns
// at most one [Breach] per reading. It has no clock and no side effects.
//
// Three rules prevent reactions to peaks: CPU usage is averaged over a window and memory
// must exceed its limit in several consecutive readings; a process is ignored while it
// warms up; and readings that cannot be compared (another process, a gap, a clock that was
// set back) restart the measurement.
package limits

import (
	"cmp"
	"slices"
	"time"
)

// Rules are the times by which a Judge checks limits. They have no defaults.
type Rules struct {
	Window   time.Duration // time over which CPU usage is averaged
	ArmAfter time.Duration // age from which a process is measured, also as a member of a pool
	Spacing  time.Duration // minimum time from the end of a termination to the next breach
}

// Judge finds breaches of limits. It is not safe for concurrent use.
type Judge struct {
	rules Rules
	trees map[string]*following
	pools map[Pool]*track

	underway bool
	ended    time.Duration // end of the latest termination, on the clock of Reading.At
	acted    bool          // true after the first termination
}

// following is the measured process tree of one key.
type following struct {
	*track
	main Process
}

// NewJudge returns a judge without readings.
func NewJudge(rules Rules) *Judge {
	return &Judge{rules: rules, trees: map[string]*following{}, pools: map[Pool]*track{}}
}

// Read adds one reading and returns a breach to act on, if there is one. The caller calls
// [Judge.Begin] before it acts on the breach, and [Judge.End] afterwards. Without a call of
// Begin, the next Read returns the breach again.
//
// Breaches of single processes have priority over breaches of pools, and larger breaches
// over smaller ones. If the first member of a pool is deferred, the pool waits: no other
// member is terminated instead.
func (j *Judge) Read(r Reading) (Breach, bool) {
	j.follow(&r)
	if j.underway || j.acted && r.At < j.ended+j.rules.Spacing {
		return Breach{}, false
	}
	deferred := map[string]bool{}
	for _, t := range r.Trees {
		deferred[t.Key] = t.Deferred
	}
	for _, found := range [][]Breach{j.overOwn(&r), j.overPool(&r)} {
		found = slices.DeleteFunc(found, func(b Breach) bool { return deferred[b.Key] })
		if len(found) > 0 {
			return slices.MinFunc(found, func(a, b Breach) int {
				return cmp.Or(cmp.Compare(b.Value/b.Limit, a.Value/a.Limit), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Metric, b.Metric))
			}), true
		}
	}
	return Breach{}, false
}

// Begin records that the caller terminates the process of a breach. Until [Judge.End], Read
// returns no breach.
func (j *Judge) Begin() { j.underway = true }

// End records that the termination ended at the time at, on the clock of [Reading.At]; done
// is false if the process was not touched. A process that survives is returned again only
// after its usage has fallen below 90 % of the limit.
func (j *Judge) End(b Breach, at time.Duration, done bool) {
	j.underway = false
	if !done {
		return
	}
	j.ended, j.acted = at, true
	if t := j.trackOf(b); t != nil {
		t.acted[b.Metric] = b.Pool == nil
		if b.Pool != nil {
			t.quiet[b.Metric] = at + j.rules.Window
			t.streaks, t.cpu = 0, history{}
		}
	}
}

// Dismiss records that [Breach.Confirm] did not confirm a breach at the time at. Read does
// not return the breach again for one window, since exact values are expensive to measure.
func (j *Judge) Dismiss(b Breach, at time.Duration) {
	if t := j.trackOf(b); t != nil {
		t.quiet[b.Metric] = at + j.rules.Window
	}
}

// trackOf returns the track of the breach's process or pool; nil if it is no longer measured.
func (j *Judge) trackOf(b Breach) *track {
	if b.Pool != nil {
		return j.pools[*b.Pool]
	}
	if f := j.trees[b.Key]; f != nil && f.main == b.Main {
		return f.track
	}
	return nil
}

// follow adds a reading to the tracks of all trees and pools, and removes the other tracks.
func (j *Judge) follow(r *Reading) {
	trees := make(map[string]*following, len(r.Trees))
	for _, t := range r.Trees {
		f := j.trees[t.Key]
		if f == nil || f.main != t.Main {
			f = &following{track: newTrack(), main: t.Main}
		}
		if j.warm(t) {
			f.add(r, j.rules.Window, t)
		}
		trees[t.Key] = f
	}
	j.trees = trees
	pools := make(map[Pool]*track, len(r.Pools))
	for _, p := range r.Pools {
		pools[p] = cmp.Or(j.pools[p], newTrack())
		sum := Tree{CPUKnown: true, CPULimit: p.CPULimit, MemoryLimit: p.MemoryLimit}
		for _, t := range j.members(r, p) {
			sum.CPU += t.CPU
			sum.Memory += t.Memory
		}
		pools[p].add(r, j.rules.Window, sum)
	}
	j.pools = pools
}

func (j *Judge) warm(t Tree) bool { return t.Age >= j.rules.ArmAfter }

// members returns the measured trees of a pool.
func (j *Judge) members(r *Reading, p Pool) []Tree {
	var members []Tree
	for _, t := range r.Trees {
		if t.Namespace == p.Namespace && j.warm(t) {
			members = append(members, t)
		}
	}
	return members
}

// overOwn returns the breaches of the limits of single processes.
func (j *Judge) overOwn(r *Reading) []Breach {
	var found []Breach
	for _, t := range r.Trees {
		f := j.trees[t.Key]
		for _, metric := range []Metric{CPU, Memory} {
			limit := t.limit(metric)
			if f.over(metric, limit, j.rules.Window) {
				found = append(found, Breach{
					Metric: metric, Value: f.value(metric), Limit: limit, Window: j.window(metric, r.Period),
					Key: t.Key, Main: t.Main,
				})
			}
		}
	}
	return found
}

// overPool returns the breaches of the limits of pools.
func (j *Judge) overPool(r *Reading) []Breach {
	var found []Breach
	for _, p := range r.Pools {
		for _, metric := range []Metric{CPU, Memory} {
			members := j.poolMembers(r, p, metric)
			if len(members) == 0 || !j.pools[p].over(metric, p.limit(metric), j.rules.Window) {
				continue
			}
			b := Breach{
				Metric: metric, Value: j.pools[p].value(metric), Limit: p.limit(metric),
				Window: j.window(metric, r.Period), Pool: &p,
			}
			b.selectVictim(rank(members, p.byLimit(metric)))
			found = append(found, b)
		}
	}
	return found
}

func (j *Judge) poolMembers(r *Reading, p Pool, metric Metric) []Member {
	var members []Member
	for _, t := range j.members(r, p) {
		members = append(members, Member{
			Key: t.Key, Main: t.Main, Usage: j.trees[t.Key].value(metric), Limit: t.limit(metric),
		})
	}
	return members
}

// window returns the time for which a limit has to be exceeded for a breach.
func (j *Judge) window(metric Metric, period time.Duration) time.Duration {
	return of(metric, j.rules.Window, (streak-1)*period)
}
