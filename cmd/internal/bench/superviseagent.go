package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// measureAgent measures a standalone agent.
func (s Supervise) measureAgent(ctx context.Context, at *site, found *findings) error {
	argv, err := s.agentProgram(at.plant)
	if err != nil {
		return err
	}
	info, err := os.Stat(argv[0])
	if err != nil {
		return err
	}
	found.program = int(info.Size())
	o, err := newOverseer(ctx, at, argv, s.Log)
	if err != nil {
		return err
	}
	defer o.conn.Close()
	if _, err := o.startAgent(ctx); err != nil {
		return err
	}
	defer func() { o.agent().stop() }()
	processes, err := at.sleepers("bench", s.Processes)
	if err != nil {
		return err
	}
	name := shortName(argv)
	for _, step := range []func() error{
		func() error { return s.idleAgent(ctx, o, found, name, nil) },
		func() error { return s.startAll(ctx, o, found, processes) },
		func() error { return s.idleAgent(ctx, o, found, name, processes) },
		func() error { return s.killSome(ctx, o, found, name, processes) },
		func() error { return s.adoptAll(ctx, o, found, processes) },
		func() error { return s.burst(ctx, o, found, agentproto.ActionStatus, processes) },
		func() error { return s.burst(ctx, o, found, agentproto.ActionReload, processes) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	o.agent().stop() // before the kills: the agent would restart killed processes
	return killIn(at.dir)
}

func (s Supervise) idleAgent(ctx context.Context, o *overseer, found *findings, name string, processes []sleeper) error {
	cpu, rss, err := idle(ctx, o.agent().pid(), s.For)
	if err != nil {
		return err
	}
	u := upkeep{what: name, processes: len(processes), cpu: cpu, rss: rss}
	if len(processes) == 0 {
		u.goalRSS = idleGoal
	}
	found.upkeeps = append(found.upkeeps, u)
	return nil
}

func (s Supervise) startAll(ctx context.Context, o *overseer, found *findings, processes []sleeper) error {
	took, err := o.operate(ctx, agentproto.ActionStart, processes, len(processes))
	if err != nil {
		return err
	}
	found.series = append(found.series, series{what: "starts, each with a check of a second", n: len(processes), took: took})
	_, err = running(ctx, o.data(), len(processes))
	return err
}

// killSome first kills s.Runs processes and waits for each restart, then kills further
// processes without waiting.
func (s Supervise) killSome(ctx context.Context, o *overseer, found *findings, name string, processes []sleeper) error {
	d := deaths{what: name}
	for _, p := range processes[:s.Runs] {
		before, begun := p.pid(), time.Now()
		if err := kill(before); err != nil {
			return err
		}
		if err := p.awaitRestart(ctx, before, time.Millisecond); err != nil {
			return err
		}
		d.restarted = append(d.restarted, time.Since(begun))
	}
	victims := processes[s.Runs : s.Runs+s.Kills]
	pids, killed := make([]int, len(victims)), make([]time.Time, len(victims))
	for i, p := range victims {
		pids[i], killed[i] = p.pid(), time.Now()
		if err := kill(pids[i]); err != nil {
			return err
		}
		if err := wait(ctx, killPause); err != nil {
			return err
		}
	}
	for i, p := range victims {
		if err := p.awaitRestart(ctx, pids[i], 20*time.Millisecond); err != nil {
			return err
		}
	}
	known, err := running(ctx, o.data(), len(processes))
	if err != nil {
		return err
	}
	for i, p := range victims {
		exit := known[p.key].LastExit
		if exit == nil || exit.At.Before(killed[i]) {
			return fmt.Errorf("the agent has not detected the kill of %s", p.key)
		}
		d.detected = append(d.detected, exit.At.Sub(killed[i]))
	}
	found.deaths = append(found.deaths, d)
	return nil
}

// killPause is the interval between kills that do not wait for a restart.
const killPause = 20 * time.Millisecond

// awaitRestart waits until the process has another pid than before.
func (p sleeper) awaitRestart(ctx context.Context, before int, every time.Duration) error {
	return until(ctx, p.key+" is started again", every, func() bool {
		now := p.pid()
		return now != 0 && now != before
	})
}

// adoptAll kills the agent, starts it again and measures the time until the new agent has
// adopted every process.
func (s Supervise) adoptAll(ctx context.Context, o *overseer, found *findings, processes []sleeper) error {
	before, err := query(ctx, o.data())
	if err != nil {
		return err
	}
	took := make([]time.Duration, s.Runs)
	for i := range took {
		if err := o.killAgent(); err != nil {
			return err
		}
		if took[i], err = o.startAgent(ctx); err != nil {
			return err
		}
		after, err := running(ctx, o.data(), len(processes))
		if err != nil {
			return err
		}
		for key, p := range after {
			if p.PID != before[key].PID {
				return fmt.Errorf("%s was process %d and is %d after the agent's restart", key, before[key].PID, p.PID)
			}
		}
	}
	found.series = append(found.series, series{what: "adoption", n: len(processes), took: quantile(took, 0.5)})
	return nil
}

// burst sends s.Operations operations as fast as the agent accepts them.
func (s Supervise) burst(ctx context.Context, o *overseer, found *findings, action string, processes []sleeper) error {
	d := series{what: "burst of " + action + " operations", n: s.Operations}
	counting, stop := context.WithCancel(ctx)
	most := make(chan int)
	go func() { most <- mostThreads(counting, o.agent().pid()) }()
	var err error
	d.took, err = o.operate(ctx, action, processes, s.Operations)
	stop()
	d.threads = <-most
	if err != nil {
		return err
	}
	if d.threads == 0 {
		return errors.New("the agent has ended")
	}
	if action != agentproto.ActionReload {
		found.series = append(found.series, d)
		return nil
	}
	login, err := loginShell(ctx, o.account)
	if err != nil {
		return err
	}
	what := d.what
	for _, shell := range []string{bareShell, login} {
		if d.floor, err = bareCommands(ctx, shell, s.Operations, reloadCommand); err != nil {
			return err
		}
		d.what = what + ", floor in " + shell
		found.series = append(found.series, d)
	}
	return nil
}

// mostThreads returns the maximum number of threads of a process until ctx ends.
func mostThreads(ctx context.Context, pid int) int {
	const every = 5 * time.Millisecond
	most := threads(pid)
	for wait(ctx, every) == nil {
		most = max(most, threads(pid))
	}
	return most
}
