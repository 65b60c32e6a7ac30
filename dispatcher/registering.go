package dispatcher

import (
	"context"
	"errors"
	"fmt"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// register registers processes, or removes registrations.
func (e *exchange) register(ctx context.Context, q *dialect.Registering, at *targetHosts) ([]dialect.TargetOutcome, error) {
	ctx, cancel := e.detached(ctx)
	defer cancel()
	if err := e.auditChange(ctx, changeOf(string(q.Mode), q.Business, at.hosts, q.Process.Key())); err != nil {
		return nil, err
	}
	var outcomes []dialect.TargetOutcome
	var err error
	if q.Mode == dialect.Unregister {
		outcomes, err = e.unregister(ctx, q, at)
	} else {
		outcomes, err = e.api.register(ctx, q, at)
	}
	if err != nil {
		return nil, err
	}
	e.log().WithFields(logrus.Fields{
		"application": e.who.Application, "user": e.who.User, "mode": string(q.Mode), "process": q.Process.Key(), "hosts": len(at.hosts),
	}).Info("registrations changed")
	return outcomes, nil
}

func (a *api) register(ctx context.Context, q *dialect.Registering, at *targetHosts) ([]dialect.TargetOutcome, error) {
	existed := make([]bool, len(at.hosts))
	if len(at.hosts) > 0 {
		answer, err := a.store.Register(ctx, []catalog.Definition{{Spec: q.Process, Hosts: at.hosts}}, q.Mode == dialect.RegisterAny)
		if err != nil {
			return nil, fmt.Errorf("register %s: %w", q.Process.Key(), err)
		}
		existed = answer[0]
	}
	return outcomesOf(q.Targets, at, func(n int) (procfleet.Code, string) {
		if existed[n] && q.Mode == dialect.RegisterNew {
			return procfleet.CodeRegistered, "Fail to register, for the process info already exists."
		}
		return success(n)
	}), nil
}

// unregister releases a process on the hosts where it is registered, and then removes
// the registrations. A crash in between leaves the registrations, and the caller, who
// received no response, repeats the call.
func (e *exchange) unregister(ctx context.Context, q *dialect.Registering, at *targetHosts) ([]dialect.TargetOutcome, error) {
	a := e.api
	ps := at.processes(q.Process.Namespace, q.Process.Name)
	registered, err := a.store.Registrations(ctx, ps)
	if err != nil {
		return nil, fmt.Errorf("look up what is registered for %s: %w", q.Process.Key(), err)
	}
	release := procfleet.Operation{Action: procfleet.ActionRelease, Process: q.Process}
	var existing []*catalog.Registration
	var removed []catalog.Process
	for n, r := range registered {
		if r != nil {
			existing, removed = append(existing, r), append(removed, ps[n])
			release.Targets = append(release.Targets, procfleet.Target{Host: ps[n].Host})
		}
	}
	if len(removed) > 0 {
		if err := e.submitRelease(ctx, release, existing, q.Business); err != nil {
			return nil, err
		}
		a.cfg.Reached(PointReleased)
		if _, err := a.store.Unregister(ctx, removed); err != nil {
			return nil, fmt.Errorf("unregister %s: %w", q.Process.Key(), err)
		}
	}
	return outcomesOf(q.Targets, at, func(n int) (procfleet.Code, string) {
		if registered[n] == nil {
			return procfleet.CodeNotRunning, "process info not registered"
		}
		return success(n)
	}), nil
}

// submitRelease creates a task that releases the processes. The caller does not receive
// its id, because its results do not affect the removal of the registrations.
func (e *exchange) submitRelease(ctx context.Context, o procfleet.Operation, registered []*catalog.Registration, business string) error {
	operations, err := bySpec(o, registered, asRegistered)
	if err != nil {
		return err
	}
	_, err = e.submit(ctx, &procfleet.Submission{Operations: operations, Business: business}, terms{internal: true})
	if _, unknown := errors.AsType[*OutcomeUnknownError](err); unknown {
		e.log().WithError(err).Warn("release outcome unknown")
		return &dialect.Error{
			Kind: dialect.Unavailable, Problem: "whether the process was released is unknown, and it is still registered; try again later", RetryAfter: retryUnavailable,
		}
	}
	if err != nil {
		return fmt.Errorf("release unregistered processes: %w", err)
	}
	return nil
}

// outcomesOf returns one outcome per target: the outcome of its host, or an error if
// the target has no host.
func outcomesOf(targets []procfleet.Target, at *targetHosts, of func(host int) (procfleet.Code, string)) []dialect.TargetOutcome {
	outcomes := make([]dialect.TargetOutcome, len(targets))
	for i, t := range targets {
		code, message := procfleet.CodeAgentAbnormal, unreachableMessage(t, at.conflicts[t.AgentID])
		if n := at.of[i]; n >= 0 {
			code, message = of(n)
		}
		outcomes[i] = dialect.TargetOutcome{Target: t, Code: code, Message: message}
	}
	return outcomes
}

func success(int) (procfleet.Code, string) { return procfleet.CodeSuccess, "success" }

// unreachableMessage returns the message for a target without a host.
func unreachableMessage(t procfleet.Target, conflicts []procfleet.Host) string {
	if len(conflicts) > 1 {
		return fmt.Sprintf("agent id %q is claimed by hosts %s and %s: stop the agents of all but one, or name the host by its address",
			t.AgentID, conflicts[0], conflicts[1])
	}
	if t.AgentID != "" {
		return fmt.Sprintf("no agent with id %q has announced itself: check the id, or start the agent on its host", t.AgentID)
	}
	return "neither an address nor an agent id was given: name the host"
}
