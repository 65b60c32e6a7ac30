package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/client"
)

func TestProgressInAPipeIsPlainLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newProgress(&out)
	running := task("running", 10, 1, 6)
	p.show(running)
	p.show(running) // nothing new
	p.show(task("finished", 10, 1, 9))
	p.end()
	if got, want := out.String(), "running 7/10: 1 failed, 6 succeeded\nfinished 10/10: 1 failed, 9 succeeded\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestProgressOnATerminalIsABarThatRedrawsItself(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newProgress(&out)
	p.terminal = true
	p.show(task("running", 10, 0, 5))
	p.end()
	if got := out.String(); !strings.HasPrefix(got, "\r[###############---------------] running 5/10") || !strings.HasSuffix(got, "\n") {
		t.Errorf("got %q", got)
	}
}

func TestAWatchThatShowedNothingLeavesNoEmptyLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newProgress(&out)
	p.terminal = true
	p.end() // an outage before the first word of the server
	p.show(task("running", 10, 0, 5))
	p.end()
	p.end()
	if got := out.String(); !strings.HasPrefix(got, "\r[") || strings.Count(got, "\n") != 1 {
		t.Errorf("got %q", got)
	}
}

func TestProgressFitsTheTerminal(t *testing.T) {
	t.Parallel()
	half := task("running", 10, 0, 5)
	for width, want := range map[int]string{
		79: "[###############---------------] running 5/10: 5 succeeded  1.0s",
		40: "[###---] running 5/10: 5 succeeded  1.0s",
		30: "running 5/10: 5 succeeded",
		24: "running 5/10: 5 succeed…",
		1:  "…",
		0:  "",
	} {
		if got := fit(half, time.Second, width); got != want {
			t.Errorf("%d: %q, want %q", width, got, want)
		}
	}
}

func TestProgressOfARolloutShowsStageWindowAndBudget(t *testing.T) {
	t.Parallel()
	failures := 2
	r := client.Rollout{PlannedRollout: client.PlannedRollout{Window: 3, MaxFailures: &failures, Stages: []v1.RolloutStage{{Hosts: 1}, {Hosts: 19}}}, Hosts: 20, Released: 6, Active: 3, Failed: 1, Stage: 2}
	if got, want := rolloutText(&r), "stage 2/2, 6 of 20 hosts released, 3 at work, 1 failed (2 tolerated)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	r.Stage, r.Phase, r.MaxFailures = 1, procfleet.PhaseBaking, nil
	if got, want := rolloutText(&r), "stage 1/2, 6 of 20 hosts released, 3 at work, baking"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	r.Hold = &client.Hold{Kind: procfleet.HoldBudget}
	if got := rolloutText(&r); !strings.HasSuffix(got, ", held: budget") {
		t.Errorf("got %q", got)
	}
	zones := client.PlannedRollout{Window: 3, Stages: r.Stages, Zones: &client.RolloutZones{Window: 2, AtOnce: 1}}
	if got, want := plannedRolloutText(&zones), "at most 3 hosts at work, 2 in each zone, 1 of the zones at once, all failures tolerated, hosts by stage: 1, 19"; got != want {
		t.Errorf("zones: %q", got)
	}
	if got, want := plannedRolloutText(&client.PlannedRollout{Window: 3, Stages: r.Stages}), "at most 3 hosts at work, all failures tolerated, hosts by stage: 1, 19"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
