package operate

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/local"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

func TestOverviewSaysWhatHappensNext(t *testing.T) {
	t.Parallel()
	later := time.Now().Add(time.Hour)
	up := func(phase supervise.Phase) snapshot {
		return snapshot{desired: supervise.Up, settled: true, phase: phase}
	}
	unsettled := up(supervise.Unknown)
	unsettled.settled = false
	busy := up(supervise.Stopping)
	busy.busy = "stop"
	paused, alone := up(supervise.Backoff), up(supervise.Unknown)
	paused.paused, alone.quarantined = true, true
	for what, c := range map[string]struct {
		s    snapshot
		st   agentproto.Status
		want string
		at   time.Time
	}{
		"running":                 {up(supervise.Running), agentproto.Status{Running: true}, local.NextWatch, time.Time{}},
		"not supervised":          {snapshot{desired: supervise.None, settled: true}, agentproto.Status{Running: true}, local.NextNothing, time.Time{}},
		"stopped":                 {snapshot{desired: supervise.Down, settled: true}, agentproto.Status{}, local.NextNothing, time.Time{}},
		"in an operation":         {busy, agentproto.Status{NextRetryAt: later}, local.NextFinish, time.Time{}},
		"not looked for yet":      {unsettled, agentproto.Status{}, local.NextSearch, time.Time{}},
		"waiting for a start":     {up(supervise.Backoff), agentproto.Status{NextRetryAt: later}, local.NextStart, later},
		"given up":                {up(supervise.Fatal), agentproto.Status{}, local.NextAdopt, time.Time{}},
		"given up but for a rare": {up(supervise.Fatal), agentproto.Status{NextRetryAt: later}, local.NextStart, later},
		"between periodic runs":   {up(supervise.Stopped), agentproto.Status{NextRunAt: later}, local.NextRun, later},
		"frozen":                  {up(supervise.Backoff), agentproto.Status{NextRetryAt: later, FrozenUntil: later}, local.NextFrozen, later},
		"paused":                  {paused, agentproto.Status{NextRetryAt: later}, local.NextUnconfirmed, time.Time{}},
		"frozen and paused":       {paused, agentproto.Status{FrozenUntil: later}, local.NextFrozen, later},
		"quarantined":             {alone, agentproto.Status{Running: true}, local.NextQuarantined, time.Time{}},
		"uncertain":               {up(supervise.Uncertain), agentproto.Status{}, local.NextSearch, time.Time{}},
	} {
		if got, at := c.s.next(&c.st); got != c.want || !at.Equal(c.at) {
			t.Errorf("%s: %s at %v, want %s at %v", what, got, at, c.want, c.at)
		}
	}
}
