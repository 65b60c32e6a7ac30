package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// plan runs the steps of acceptance that precede storing the task, and stores nothing.
func (a *api) plan(ctx context.Context, sub *procfleet.Submission) (*v1.Plan, error) {
	s := a.submitter
	if err := s.cfg.Limits.items(sub.Items()); err != nil {
		return nil, err
	}
	if err := s.resolve(ctx, sub.Operations); err != nil {
		return nil, err
	}
	p := &v1.Plan{Operations: []v1.PlannedOperation{}, Problems: []v1.PlanProblem{}}
	operations, err := s.planned(ctx, sub, p)
	if err != nil {
		return nil, err
	}
	if _, err := s.policed(ctx, sub, operations); err != nil {
		if f, is := errors.AsType[*dialect.Error](err); !is || f.Kind != dialect.OutsideWindow {
			return nil, err
		}
		p.Refusal = cmp.Or(p.Refusal, err.Error())
	}
	cut, err := s.cut(ctx, operations, sub)
	if err != nil {
		return nil, err
	}
	if p.Refusal == "" && cut.refusal != nil {
		p.Refusal = cut.refusal.Error()
	}
	if p.Refusal == "" {
		p.Items, p.Rollout = cut.items, dialect.PlannedRollout(cut.rollout)
		if p.Rollout != nil && p.Rollout.Zones != nil {
			p.Rollout.Zones.Groups = cut.zones
		}
	}
	return p, a.addAgents(ctx, p)
}

// planned expands operations into p and returns the expanded operations. Acceptance
// stops at the first rejected operation; a plan continues with the others.
func (s *submitter) planned(ctx context.Context, sub *procfleet.Submission, p *v1.Plan) ([]procfleet.Operation, error) {
	x, err := s.newExpander(ctx, sub, nil)
	if err != nil {
		return nil, err
	}
	var operations []procfleet.Operation
	for i := range sub.Operations {
		e, err := x.expand(ctx, sub.Operations[i], selectField(sub, i))
		if err != nil {
			return nil, err
		}
		if e.refusal != nil && p.Refusal == "" {
			p.Refusal = e.refusal.Error()
		}
		for _, problem := range e.problems {
			problem.Index = i
			p.Problems = append(p.Problems, problem)
		}
		for j := range e.parts {
			operations = append(operations, e.parts[j].Operation)
			p.Operations = append(p.Operations, plannedOperation(i, &e.parts[j]))
			if e.parts[j].Process.Unregistered {
				p.Problems = append(p.Problems, v1.PlanProblem{
					Index: i, Reason: v1.NotRegistered, Name: nameOf(&e.parts[j].Process),
					Message: fmt.Sprintf("is not registered on %d of the hosts, and fails there: register it first", len(e.parts[j].Targets)),
				})
			}
		}
	}
	return operations, nil
}

func plannedOperation(index int, of *part) v1.PlannedOperation {
	o := v1.PlannedOperation{
		Index: index, Action: of.Action, ProcessID: of.id, Name: nameOf(&of.Process), Hosts: make([]v1.PlannedHost, 0, len(of.Targets)),
	}
	if !of.Process.Unregistered {
		o.Process = &of.Process
	}
	named := make(map[procfleet.Target]bool, len(of.Targets))
	for i, t := range of.Targets {
		if named[t] { // a target that is named twice counts once
			continue
		}
		named[t] = true
		h := v1.PlannedHost{Host: t.Host, AgentID: t.AgentID}
		if of.modules != nil {
			h.Modules = of.modules[i]
		}
		o.Hosts = append(o.Hosts, h)
	}
	return o
}

func nameOf(s *procfleet.ProcessSpec) string { return cmp.Or(s.Name, s.Key()) }

// addAgents marks the hosts of a plan that have live agents, and counts the hosts.
func (a *api) addAgents(ctx context.Context, p *v1.Plan) error {
	var targets []procfleet.Target
	for i := range p.Operations {
		for _, h := range p.Operations[i].Hosts {
			targets = append(targets, procfleet.Target{Host: h.Host})
		}
	}
	at := hostsOf(targets)
	presences, err := a.agentsAt(ctx, at.hosts)
	if err != nil {
		return err
	}
	p.Hosts = len(at.hosts)
	for n := range presences {
		if !live(&presences[n]) {
			p.WithoutAgent++
		}
	}
	next := 0
	for i := range p.Operations {
		o := &p.Operations[i]
		missing := 0
		for j := range o.Hosts {
			n := at.of[next]
			next++
			if o.Hosts[j].Alive = n >= 0 && live(&presences[n]); !o.Hosts[j].Alive {
				missing++
			}
		}
		if missing > 0 {
			p.Problems = append(p.Problems, v1.PlanProblem{
				Index: o.Index, Reason: v1.NoAgent, ProcessID: o.ProcessID, Name: o.Name,
				Message: fmt.Sprintf("no agent lives on %d of %d hosts: it ends there with code %d", missing, len(o.Hosts), procfleet.CodeAgentAbnormal),
			})
		}
	}
	return nil
}
