package main

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// rolloutFlags are the flags of a gradual submission.
type rolloutFlags struct {
	maxConcurrency   string
	maxFailures      string
	ramp             []string
	bake             time.Duration
	progressDeadline time.Duration
	approve, shuffle bool
	onFailure        string
}

func (f *rolloutFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.maxConcurrency, "max-concurrency", "", "hosts at work at most, as a number or percentage")
	flags.StringVar(&f.maxFailures, "max-failures", "", "failed hosts to tolerate, as a number or percentage")
	flags.StringSliceVar(&f.ramp, "ramp", nil, "hosts released up to each stage, such as 1,5%,100%")
	flags.BoolVar(&f.shuffle, "shuffle", false, "release the hosts in a random order")
	flags.DurationVar(&f.bake, "bake", 0, "time between the stages of --ramp")
	flags.BoolVar(&f.approve, "approve", false, "wait for \"task approve\" after each stage")
	flags.DurationVar(&f.progressDeadline, "progress-deadline", 0, "time without an ended host that holds the rollout")
	flags.StringVar(&f.onFailure, "on-failure", "", "hold or cancel after too many failures (default hold)")
}

// policy returns the policy that the flags describe; nil if none is set.
func (f *rolloutFlags) policy() (*procfleet.RolloutPolicy, error) {
	p := &procfleet.RolloutPolicy{Shuffle: f.shuffle, OnFailure: procfleet.OnFailure(f.onFailure), Stage: procfleet.RolloutGate{
		Bake: procfleet.Duration(f.bake), ProgressDeadline: procfleet.Duration(f.progressDeadline),
	}}
	if f.approve {
		p.Stage.Gates = []string{procfleet.GateManual}
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
	switch {
	case p.MaxConcurrency.Given(), p.MaxFailures != nil, len(p.Ramp) > 0, f.progressDeadline != 0:
		return p, nil
	case f.bake != 0, f.approve, f.shuffle, f.onFailure != "":
		return nil, command.Usagef("--bake, --approve, --shuffle and --on-failure need --ramp, --max-concurrency or --max-failures")
	}
	return nil, nil //nolint:nilnil // nil is the policy of a task without a rollout
}
