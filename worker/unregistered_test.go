package worker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
)

// withoutSpec is an action on a process that is not registered on the hosts.
func withoutSpec(action procfleet.Action, on ...procfleet.Host) procfleet.Chunk {
	c := chunk(action, on...)
	c.Specs = []procfleet.ProcessSpec{{Namespace: "test", Name: "app", Unregistered: true}}
	return c
}

func TestAProcessThatIsNotRegisteredEndsWithoutItsHost(t *testing.T) {
	t.Parallel()
	const problem = "process info not registered"
	e := start(t)
	a := e.agent(host(1), accept)
	for action, want := range map[procfleet.Action]struct {
		code    procfleet.Code
		state   procfleet.State
		message string
	}{
		procfleet.ActionStart:     {procfleet.CodeFailed, procfleet.StateFailed, problem + ": register test:app on this host first"},
		procfleet.ActionRestart:   {procfleet.CodeFailed, procfleet.StateFailed, problem},
		procfleet.ActionReload:    {procfleet.CodeFailed, procfleet.StateFailed, problem},
		procfleet.ActionKill:      {procfleet.CodeFailed, procfleet.StateFailed, problem},
		procfleet.ActionSupervise: {procfleet.CodeFailed, procfleet.StateFailed, problem},
		procfleet.ActionRelease:   {procfleet.CodeFailed, procfleet.StateFailed, problem},
		procfleet.ActionStop:      {procfleet.CodeNotRunning, procfleet.StateUnchanged, problem},
		procfleet.ActionStatus:    {procfleet.CodeSuccess, procfleet.StateSucceeded, "success"},
		"5":                       {procfleet.CodeUnknownAction, procfleet.StateFailed, problem},
	} {
		id := e.submit(time.Minute, withoutSpec(action, host(1), host(2))) // host 2 has no agent
		for item := range 2 {
			r := e.waitState(id, item, want.state)
			if r.Code != want.code || !strings.HasPrefix(r.Message, want.message) || r.Rank != procfleet.RankServer {
				t.Errorf("%s of item %d is %+v, want code %d and %q", action, item, r, want.code, want.message)
			}
			status := r.Status
			if (status != nil) != (action == procfleet.ActionStatus) {
				t.Errorf("%s has status %+v", action, status)
			} else if status != nil && (status.Running || status.Supervised || status.Phase != "unregistered" || status.At.IsZero()) {
				t.Errorf("status is %+v, want one that is not running, phase unregistered", status)
			}
		}
		e.eventually(func() bool { return e.store.settled(id) }, "the end is told")
	}
	if a.asked() > 0 {
		t.Errorf("the host got %+v", a.got())
	}
}

func TestUnregisteredItemsDoNotWaitForASlowHost(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.agent(host(1), silent)
	c := chunk(procfleet.ActionStart, host(1), host(2))
	c.Specs = append(c.Specs, withoutSpec(procfleet.ActionStart).Specs...)
	c.Items[1].Spec = 1
	id := e.submit(time.Minute, c)
	e.waitState(id, 1, procfleet.StateFailed)
	if got := e.state(id, 0); got != procfleet.StatePending {
		t.Errorf("the item of the host without reply is %s by then", got)
	}
}
