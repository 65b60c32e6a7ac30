//go:build cluster && linux

package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/procfleet/procfleet/test/cluster/check"
	"github.com/procfleet/procfleet/test/cluster/fleet"
)

// randomSteps are successive faults of a seed's schedule.
type randomSteps struct {
	schedule check.Schedule
	most     time.Duration // begins no step after this time
	done     int
}

// randomFaults returns the random faults that the flags select.
func randomFaults(f *fleet.Fleet) *randomSteps {
	const (
		manySteps         = 200
		cutSeed, cutSteps = 1, 4
	)
	if *cut {
		return &randomSteps{schedule: check.NewSchedule(cutSeed, nodesOf(f), cutSteps), most: time.Minute}
	}
	return &randomSteps{schedule: check.NewSchedule(cmp.Or(*seed, rand.Uint64N(1<<32)), nodesOf(f), manySteps), most: *random}
}

func (r *randomSteps) run(s *stage) error {
	began := time.Now()
	for _, step := range r.schedule.Steps {
		if time.Since(began) > r.most {
			break
		}
		s.log("seed %d, step %d: %s", r.schedule.Seed, r.done+1, step)
		if err := s.step(step); err != nil {
			return fmt.Errorf("step %d, %s: %w", r.done+1, step, err)
		}
		r.done++
	}
	return nil
}

// step executes one step of a schedule. The fleet works before and after it.
func (s *stage) step(step check.Step) error {
	if err := s.hold(step.After); err != nil {
		return err
	}
	over := func() {}
	if step.MayFailOver() {
		over = s.load.Failover()
	}
	defer func() { over() }()
	var broken []error
	for _, blow := range step.NodeFaults {
		broken = append(broken, s.begin(faultFuncs[blow.Fault], blow.Node.Name))
	}
	return errors.Join(errors.Join(broken...), s.hold(step.For), s.Repair(), s.settle())
}

// faultFuncs are the methods that cause the faults of a schedule.
var faultFuncs = map[check.Fault]func(*fleet.Node) error{
	check.Kill:    (*fleet.Node).Kill,
	check.Pause:   (*fleet.Node).Pause,
	check.Cut:     (*fleet.Node).Cut,
	check.Delay:   slower(200 * time.Millisecond),
	check.Restart: (*fleet.Node).Restart,
}

func nodesOf(f *fleet.Fleet) []check.Node {
	var nodes []check.Node
	for _, n := range f.FaultTargets() {
		nodes = append(nodes, check.Node{Name: n.Name, Kind: check.Kind(n.Kind)})
	}
	return nodes
}
