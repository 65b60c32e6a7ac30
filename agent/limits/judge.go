// Package limits decides when a process uses more of its host than it may, and
// which process of a group has to go for the others.
//
// A [Judge] is told one [Reading] of all process trees after another and finds
// at most one [Breach] at a time. It has no clock and looks at nothing itself;
// it never acts either. It imports nothing of ours.
//
// Three rules keep it from acting on what passes: CPU counts as a mean over a
// window and memory by several readings in a row, a process is left alone while
// it warms up, and whatever makes readings incomparable (another process, a gap,
// a clock that went back) begins anew.
package limits

import (
	"cmp"
	"slices"
	"time"
)

// Rules are the times by which limits are judged. Zero means zero.
type Rules struct {
	Window time.Duration // CPU counts as the mean over it
	// ArmAfter is how long a process may use what it likes after its start:
	// nothing counts before, in a pool neither.
	ArmAfter time.Duration
	Spacing  time.Duration // between the end of one take-down and the next
}

// Judge finds processes that use too much. It is not safe for concurrent use.
type Judge struct {
	rules Rules
	trees map[string]*following
	pools map[Pool]*track

	underway bool
	ended    time.Duration // the latest take-down
	acted    bool          // there was one
}

// following is a tree that is followed under one key.
type following struct {
	*track
	main Process
}

// NewJudge returns a judge that has seen nothing.
func NewJudge(rules Rules) *Judge {
	return &Judge{rules: rules, trees: map[string]*following{}, pools: map[Pool]*track{}}
}

// Read takes over one reading and returns a breach to act upon, if there is one.
// The caller says whether it does, with [Judge.Begin], and how that ended, with
// [Judge.End]; what nobody acts upon is found again with the next reading.
//
// Limits of single processes come before those of pools, and the one that is
// exceeded most before the others. A pool waits while the member that has to go
// is deferred, so that no other one goes in its place.
func (j *Judge) Read(r Reading) (Breach, bool) {
	j.follow(&r)
	found := slices.Concat(j.overOwn(&r), j.overPool(&r))
	if j.underway || j.acted && r.At < j.ended+j.rules.Spacing {
		return Breach{}, false
	}
	deferred := map[string]bool{}
	for _, t := range r.Trees {
		deferred[t.Key] = t.Deferred
	}
	found = slices.DeleteFunc(found, func(b Breach) bool { return deferred[b.Key] })
	if len(found) == 0 {
		return Breach{}, false
	}
	return slices.MinFunc(found, func(a, b Breach) int {
		if (a.Pool == nil) != (b.Pool == nil) {
			if a.Pool == nil {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.Value/b.Limit, a.Value/a.Limit), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Metric, b.Metric))
	}), true
}

// Begin says that the process of a breach is being taken down. Until the end of
// that no other breach is found.
func (j *Judge) Begin(Breach) { j.underway = true }

// End says that the take-down of a breach is over; done is false if nothing was
// done after all. A process that outlives it is not found again before it has
// used clearly less than its limit for once.
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

// Dismiss says that better figures did not confirm a breach. It is not found
// again for one window: such figures are expensive.
func (j *Judge) Dismiss(b Breach, at time.Duration) {
	if t := j.trackOf(b); t != nil {
		t.quiet[b.Metric] = at + j.rules.Window
	}
}

// trackOf is nil if what the breach is about is not followed any more.
func (j *Judge) trackOf(b Breach) *track {
	if b.Pool != nil {
		return j.pools[*b.Pool]
	}
	if f := j.trees[b.Key]; f != nil && f.main == b.Main {
		return f.track
	}
	return nil
}

// follow brings everything that is remembered up to date.
func (j *Judge) follow(r *Reading) {
	trees := make(map[string]*following, len(r.Trees))
	for _, t := range r.Trees {
		f := j.trees[t.Key]
		if f == nil || f.main != t.Main {
			f = &following{track: newTrack(), main: t.Main}
		}
		if j.warm(t) {
			f.add(r, j.rules.Window, usage{t.CPU, t.Memory, t.CPUKnown, t.CPULimit, t.MemoryLimit})
		}
		trees[t.Key] = f
	}
	j.trees = trees
	pools := make(map[Pool]*track, len(r.Pools))
	for _, p := range r.Pools {
		pools[p] = cmp.Or(j.pools[p], newTrack())
		u := usage{cpuKnown: true, cpuLimit: p.CPULimit, memoryLimit: p.MemoryLimit}
		for _, t := range j.members(r, p) {
			u.cpu += t.CPU
			u.memory += t.Memory
		}
		pools[p].add(r, j.rules.Window, u)
	}
	j.pools = pools
}

// warm reports whether what a process uses counts already.
func (j *Judge) warm(t Tree) bool { return t.Age >= j.rules.ArmAfter }

// members are the trees that count in a pool.
func (j *Judge) members(r *Reading, p Pool) []Tree {
	var members []Tree
	for _, t := range r.Trees {
		if t.Namespace == p.Namespace && j.warm(t) {
			members = append(members, t)
		}
	}
	return members
}

// overOwn are the breaches of single processes' limits.
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

// overPool are the breaches of pools' limits.
func (j *Judge) overPool(r *Reading) []Breach {
	var found []Breach
	for _, p := range r.Pools {
		for _, metric := range []Metric{CPU, Memory} {
			members := j.standings(r, p, metric)
			if len(members) == 0 || !j.pools[p].over(metric, p.limit(metric), j.rules.Window) {
				continue
			}
			b := Breach{
				Metric: metric, Value: j.pools[p].value(metric), Limit: p.limit(metric),
				Window: j.window(metric, r.Period), Pool: &p,
			}
			b.accuse(rank(members, p.byLimit(metric)))
			found = append(found, b)
		}
	}
	return found
}

func (j *Judge) standings(r *Reading, p Pool, metric Metric) []Member {
	var members []Member
	for _, t := range j.members(r, p) {
		members = append(members, Member{
			Key: t.Key, Main: t.Main, Usage: j.trees[t.Key].value(metric), Limit: t.limit(metric),
		})
	}
	return members
}

// window is how long a limit has been exceeded for when that counts.
func (j *Judge) window(metric Metric, period time.Duration) time.Duration {
	if metric == CPU {
		return j.rules.Window
	}
	return (streak - 1) * period
}
