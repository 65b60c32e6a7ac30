// Package demo demonstrates procfleet through its public HTTP API: it starts a sample
// process on this host, kills it, and waits for the agent to restart it.
package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

const (
	// statusEvery is the interval of status operations; each creates a task.
	statusEvery = 500 * time.Millisecond
	// patience limits the wait for the restart, which takes about a second.
	patience = 60 * time.Second
)

// Config configures a demo; every field is required.
type Config struct {
	Client *client.Client
	Server string         // URL of the server in the printed commands
	Host   procfleet.Host // host of this machine's agent
	Dir    string         // directory of the sample process; created if missing
	Out    io.Writer
}

// show is one run of the demo.
type show struct {
	Config
	spec procfleet.ProcessSpec
}

// Run runs the demo. It leaves the sample process running.
func Run(ctx context.Context, cfg Config) error {
	spec, err := prepare(cfg.Dir)
	if err != nil {
		return fmt.Errorf("prepare the sample process in %s: %w", cfg.Dir, err)
	}
	s := &show{Config: cfg, spec: spec}
	s.say("\ndemo: POST /v1/tasks submits the start of a sample process on %s", cfg.Host)
	result, err := s.operate(ctx, procfleet.ActionStart, true)
	if err != nil {
		return err
	}
	if err := s.verified(ctx, result); err != nil {
		return err
	}
	if err := s.survive(ctx, result.Status.PID); err != nil {
		return err
	}
	s.say("\nThe system keeps running; Ctrl-C stops it, but not the sample process.\n  stop the sample: procfleet op stop --host %s -f %s --server %s --wait",
		cfg.Host, filepath.Join(cfg.Dir, specFile), cfg.Server)
	return nil
}

func (s *show) say(format string, args ...any) { fmt.Fprintf(s.Out, format+"\n", args...) }

// operate submits an action for the host and returns its final result. If verbose, it
// prints the task id and each state of the host's item.
func (s *show) operate(ctx context.Context, action procfleet.Action, verbose bool) (client.Result, error) {
	id, err := s.Client.Submit(ctx, client.Submission{Operations: []client.Operation{
		{Action: action, Process: s.spec, Hosts: []procfleet.Host{s.Host}},
	}})
	if err != nil {
		return client.Result{}, err
	}
	if verbose {
		s.say("  accepted as %s", id)
		defer s.say("  query it again with: curl -s %s/v1/tasks/%s/results", s.Server, id)
	}
	var last procfleet.State
	for task, err := range s.Client.Watch(ctx, id) {
		if err != nil {
			return client.Result{}, err
		}
		if state := stateOfOne(task.Counts); verbose && state != last {
			last = state
			s.say("  %s  %s", s.Host, state)
		}
	}
	for result, err := range s.Client.Results(ctx, id, client.Query{}) {
		return result, err
	}
	return client.Result{}, fmt.Errorf("task %s has no result", id)
}

// stateOfOne returns the state of the only item of a task.
func stateOfOne(counts procfleet.Counts) procfleet.State {
	for state, n := range counts {
		if n > 0 {
			return state
		}
	}
	return ""
}

// verified prints the outcome of the start. A sample process that was already running
// counts as a success.
func (s *show) verified(ctx context.Context, r client.Result) error {
	switch {
	case r.Status == nil || !r.Status.Running:
		return fmt.Errorf("start on %s: code %d: %s", r.Host, r.Code, r.Message)
	case r.Code == procfleet.CodeAlreadyRunning:
		s.say("  verified: %s already running (code %d), pid %d", r.Key, r.Code, r.Status.PID)
	default:
		s.say("  verified: %s running (code %d), pid %d", r.Key, r.Code, r.Status.PID)
	}
	if r.Status.Supervised {
		return nil
	}
	_, err := s.operate(ctx, procfleet.ActionSupervise, false)
	return err
}

// survive kills the sample and waits for its successor.
func (s *show) survive(ctx context.Context, pid int) error {
	process, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	s.say("\ndemo: kill -9 %d, which simulates a crash of the process", pid)
	if err := process.Kill(); err != nil {
		return fmt.Errorf("kill the sample process %d: %w", pid, err)
	}
	killed := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the agent did not restart the process within %v", patience))
	defer cancel()
	for {
		r, err := s.operate(ctx, procfleet.ActionStatus, false)
		if err != nil {
			return err
		}
		if r.Status != nil && r.Status.Running && r.Status.PID != pid {
			s.say("  the agent restarted it after %.1fs: new pid %d", time.Since(killed).Seconds(), r.Status.PID)
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(statusEvery):
		}
	}
}
