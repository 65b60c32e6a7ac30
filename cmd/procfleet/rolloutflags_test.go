package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet"
)

func policyOf(t *testing.T, args ...string) (*procfleet.RolloutPolicy, error) {
	t.Helper()
	var f rolloutFlags
	flags := pflag.NewFlagSet("op", pflag.ContinueOnError)
	f.register(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f.policy()
}

func TestFlagsDescribeOrderAndZones(t *testing.T) {
	t.Parallel()
	p, err := policyOf(t, "--order", "module=canary,web", "--zones", "label:rack", "--zone-concurrency", "2", "--zones-at-once", "1")
	if err != nil {
		t.Fatal(err)
	}
	order := procfleet.HostOrder{HostGrouping: procfleet.HostGrouping{By: procfleet.GroupByModule}, List: []string{"canary", "web"}}
	zones := procfleet.HostZones{
		HostGrouping: procfleet.HostGrouping{By: procfleet.GroupByLabel, Label: "rack"}, MaxConcurrency: 2, AtOnce: 1,
	}
	if !cmp.Equal(p.Order, order) || p.Zones != zones {
		t.Errorf("order %+v, zones %+v", p.Order, p.Zones)
	}
}

func TestFlagsDescribeTheGates(t *testing.T) {
	t.Parallel()
	p, err := policyOf(t, "--ramp", "1", "--check-health", "--approve", "--on-failure", "undo")
	if err != nil || !cmp.Equal(p.Stage.Gates, []string{procfleet.GateAuto, procfleet.GateManual}) || p.OnFailure != procfleet.OnFailureUndo {
		t.Errorf("%+v: %v", p, err)
	}
	if p, err := policyOf(t, "--rollout", "careful", "--ramp", "1"); err == nil {
		t.Errorf("a stored policy and flags: %+v", p)
	}
}

func TestFlagsDescribeTheQueue(t *testing.T) {
	t.Parallel()
	none := rolloutFlags{}
	if q, err := none.queue(); q != nil || err != nil {
		t.Errorf("without flags: %+v, %v", q, err)
	}
	lone := rolloutFlags{coalesce: true}
	if q, err := lone.queue(); err == nil {
		t.Errorf("--coalesce alone: %+v", q)
	}
	whole := rolloutFlags{queueFor: time.Hour, coalesce: true}
	if q, err := whole.queue(); err != nil || *q != (procfleet.HostQueue{For: procfleet.Duration(time.Hour), Coalesce: true}) {
		t.Errorf("%+v: %v", q, err)
	}
}

func TestFlagsThatNeedOthersSaySo(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--order", "module"}, {"--bake", "1m"}, {"--ramp", "x"}} {
		if p, err := policyOf(t, args...); err == nil {
			t.Errorf("%v: %+v", args, p)
		}
	}
	if p, err := policyOf(t); p != nil || err != nil {
		t.Errorf("without flags: %+v, %v", p, err)
	}
}
