package main

import (
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// rolloutFlags are the flags of a gradual submission.
type rolloutFlags struct {
	name             string // of a stored policy
	maxConcurrency   string
	maxFailures      string
	ramp             []string
	bake             time.Duration
	progressDeadline time.Duration
	approve, shuffle bool
	checkHealth      bool
	onFailure        string
	order, zones     string
	zoneConcurrency  int
	zonesAtOnce      int
	queueFor         time.Duration
	coalesce         bool
}

func (f *rolloutFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.name, "rollout", "", "name of a stored rollout policy")
	flags.StringVar(&f.maxConcurrency, "max-concurrency", "", "hosts at work at most, as a number or percentage")
	flags.StringVar(&f.maxFailures, "max-failures", "", "failed hosts to tolerate, as a number or percentage")
	flags.StringSliceVar(&f.ramp, "ramp", nil, "hosts released up to each stage, such as 1,5%,100%")
	flags.BoolVar(&f.shuffle, "shuffle", false, "release the hosts in a random order")
	flags.StringVar(&f.order, "order", "", "groups of hosts that are first, such as module=canary,web")
	flags.StringVar(&f.zones, "zones", "", "divide hosts by cloud, set, module or label:NAME")
	flags.IntVar(&f.zoneConcurrency, "zone-concurrency", 0, "hosts at work at most in each of --zones")
	flags.IntVar(&f.zonesAtOnce, "zones-at-once", 0, "zones with hosts at work at most")
	flags.DurationVar(&f.bake, "bake", 0, "time between the stages of --ramp and --order")
	flags.BoolVar(&f.approve, "approve", false, "wait for \"task approve\" after each stage")
	flags.BoolVar(&f.checkHealth, "check-health", false, "hold if processes of a stage are unhealthy")
	flags.DurationVar(&f.progressDeadline, "progress-deadline", 0, "time without an ended host that holds the rollout")
	flags.DurationVar(&f.queueFor, "queue-for", 0, "let operations wait so long for hosts without an agent")
	flags.BoolVar(&f.coalesce, "coalesce", false, "cancel waiting operations that a later task replaces")
	flags.StringVar(&f.onFailure, "on-failure", "", "hold, cancel or undo after too many failures (default hold)")
}

// policy returns the policy that the flags describe; nil if none is set.
func (f *rolloutFlags) policy() (*procfleet.RolloutPolicy, error) {
	p := &procfleet.RolloutPolicy{Shuffle: f.shuffle, OnFailure: procfleet.OnFailure(f.onFailure), Stage: procfleet.RolloutGate{
		Bake: procfleet.Duration(f.bake), ProgressDeadline: procfleet.Duration(f.progressDeadline),
	}}
	p.Zones = procfleet.HostZones{HostGrouping: grouping(f.zones), MaxConcurrency: f.zoneConcurrency, AtOnce: f.zonesAtOnce}
	if by, list, found := strings.Cut(f.order, "="); found {
		p.Order = procfleet.HostOrder{HostGrouping: grouping(by), List: strings.Split(list, ",")}
	} else if f.order != "" {
		return nil, command.Usagef("--order: %q has no groups: name them, for example module=canary,web", f.order)
	}
	if f.checkHealth {
		p.Stage.Gates = append(p.Stage.Gates, procfleet.GateAuto)
	}
	if f.approve {
		p.Stage.Gates = append(p.Stage.Gates, procfleet.GateManual)
	}
	var err error
	if f.maxConcurrency != "" {
		if p.MaxConcurrency, err = procfleet.ParseAmount(f.maxConcurrency); err != nil {
			return nil, command.Usagef("--max-concurrency: %w", err)
		}
	}
	if f.maxFailures != "" {
		failures, err := procfleet.ParseAmount(f.maxFailures)
		if err != nil {
			return nil, command.Usagef("--max-failures: %w", err)
		}
		p.MaxFailures = &failures
	}
	for _, text := range f.ramp {
		upto, err := procfleet.ParseAmount(text)
		if err != nil {
			return nil, command.Usagef("--ramp: %w", err)
		}
		p.Ramp = append(p.Ramp, upto)
	}
	own := p.MaxConcurrency.Given() || p.MaxFailures != nil || len(p.Ramp) > 0 || f.progressDeadline != 0 || f.order != "" || p.Zones != procfleet.HostZones{}
	switch {
	case own && f.name != "":
		return nil, command.Usagef("--rollout names a stored policy; it excludes the other flags of rollouts")
	case own:
		return p, nil
	case f.bake != 0, f.approve, f.checkHealth, f.shuffle, f.onFailure != "":
		return nil, command.Usagef("--bake, --approve, --check-health, --shuffle and --on-failure need --ramp, --order, --max-concurrency or --max-failures")
	}
	return nil, nil //nolint:nilnil // nil is the policy of a task without a rollout
}

// queue returns the queue that the flags describe; nil without one.
func (f *rolloutFlags) queue() (*procfleet.HostQueue, error) {
	if f.queueFor == 0 {
		if f.coalesce {
			return nil, command.Usagef("--coalesce needs --queue-for")
		}
		return nil, nil //nolint:nilnil // nil is the queue of a task whose operations do not wait
	}
	return &procfleet.HostQueue{For: procfleet.Duration(f.queueFor), Coalesce: f.coalesce}, nil
}

// grouping reads "module", or "label:rack" for a label.
func grouping(text string) procfleet.HostGrouping {
	by, label, _ := strings.Cut(text, ":")
	return procfleet.HostGrouping{By: procfleet.GroupBy(by), Label: label}
}
