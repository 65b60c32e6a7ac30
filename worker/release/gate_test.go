package release

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func TestAGateHoldsUnhealthyProcessesAndSilentAgents(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC)
	const succeeded, failed = procfleet.StateSucceeded, procfleet.StateFailed
	running := procfleet.ProcessStatus{Running: true, Phase: "running", Restarts: 2}
	with := func(change func(*procfleet.ProcessStatus)) procfleet.ProcessStatus {
		s := running
		change(&s)
		return s
	}
	for name, c := range map[string]struct {
		action procfleet.Action
		state  procfleet.State
		age    time.Duration // of the report at the begin of the gate
		now    procfleet.ProcessStatus
		key    string // of the reported process
		want   string // "" = healthy
	}{
		"healthy":                 {procfleet.ActionRestart, succeeded, -time.Second, running, "shop:web", ""},
		"not running":             {procfleet.ActionStart, succeeded, -time.Second, with(func(s *procfleet.ProcessStatus) { s.Running = false }), "shop:web", "does not run"},
		"a periodic process":      {procfleet.ActionStart, succeeded, -time.Second, with(func(s *procfleet.ProcessStatus) { s.Running, s.NextRunAt = false, since }), "shop:web", ""},
		"restarted":               {procfleet.ActionReload, procfleet.StateUnchanged, -time.Second, with(func(s *procfleet.ProcessStatus) { s.Restarts = 4 }), "shop:web", "restarted 2 times"},
		"given up":                {procfleet.ActionSupervise, succeeded, -time.Second, with(func(s *procfleet.ProcessStatus) { s.Phase = "fatal" }), "shop:web", "given up"},
		"a failed health command": {procfleet.ActionRestart, succeeded, -time.Second, with(func(s *procfleet.ProcessStatus) { s.Health = "failed: exit=4" }), "shop:web", "exit=4"},
		"not reported":            {procfleet.ActionRestart, succeeded, -time.Second, running, "shop:db", "not reported"},
		"an old report":           {procfleet.ActionRestart, succeeded, time.Second, running, "shop:web", "has not reported"},
		"a failed item":           {procfleet.ActionRestart, failed, -time.Second, with(func(s *procfleet.ProcessStatus) { s.Running = false }), "shop:web", ""},
		"a stop":                  {procfleet.ActionStop, succeeded, -time.Second, with(func(s *procfleet.ProcessStatus) { s.Running = false }), "shop:web", ""},
	} {
		spec := procfleet.DefaultSpec()
		spec.Namespace, spec.Name, spec.ProcName = "shop", "web", "nginx"
		host, err := procfleet.ParseHost("0:10.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		before := running
		row := procfleet.ItemResult{Item: procfleet.Item{Action: c.action, Target: procfleet.Target{Host: host}}, Spec: &spec, State: c.state, Result: procfleet.Result{Status: &before}}
		if c.key == "shop:web" {
			c.key = spec.Key()
		}
		report := catalog.Report{At: since.Add(-c.age), Processes: []catalog.ReportedProcess{{Key: c.key, Status: c.now}}}
		var v verdict
		v.judge([]procfleet.ItemResult{row}, &report, since)
		got := v.unhealthy.String() + v.silent.String()
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestAHoldNamesTheFirstHosts(t *testing.T) {
	t.Parallel()
	var v verdict
	for i := range 7 {
		host, err := procfleet.ParseHost(fmt.Sprintf("0:10.0.0.%d", i))
		if err != nil {
			t.Fatal(err)
		}
		v.unhealthy.add(host, "does not run")
	}
	if h := v.hold(&procfleet.RolloutPlan{Unhealthy: 7}); h.Kind != "" {
		t.Errorf("7 of 7 tolerated hosts: %+v", h)
	}
	h := v.hold(&procfleet.RolloutPlan{Unhealthy: 6})
	if h.Kind != procfleet.HoldUnhealthy || !strings.Contains(h.Reason, "0:10.0.0.4 does not run and 2 more") {
		t.Errorf("7 of 6 tolerated hosts: %+v", h)
	}
	silent := verdict{silent: v.unhealthy}
	if h := silent.hold(&procfleet.RolloutPlan{}); h.Kind != procfleet.HoldInconclusive {
		t.Errorf("silent agents: %+v", h)
	}
	if h := silent.hold(&procfleet.RolloutPlan{PassInconclusive: true}); h.Kind != "" {
		t.Errorf("silent agents that pass: %+v", h)
	}
}
