package operate

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/procfleet/procfleet/agent/limits"
	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// crowded is the number of processes from which a host is measured three times less often: a
// measurement costs about 5 µs per process.
const crowded = 10_000

// limiter measures the processes with a limit of their own or of their group, and terminates
// those that exceed it. Without such processes it measures nothing. Only its goroutine, run,
// uses its fields, except for shown.
type limiter struct {
	engine  *Engine
	judge   *limits.Judge
	meter   proc.UsageMeter
	failing bool // the latest measurement failed
	period  time.Duration

	ended chan func() // capacity 1: at most one termination is in progress

	// shown is the latest measurement, for statuses.
	shown atomic.Pointer[map[proc.Identity]proc.TreeUsage]
}

func newLimiter(e *Engine) *limiter {
	t := &e.cfg.Timing
	return &limiter{
		engine: e, period: t.UsageSample, ended: make(chan func(), 1),
		judge: limits.NewJudge(limits.Rules{Window: t.UsageWindow, ArmAfter: t.UsageArm, Spacing: t.TerminateSpacing}),
	}
}

func (l *limiter) run(ctx context.Context) {
	next := time.NewTimer(l.period)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case end := <-l.ended:
			end()
		case <-next.C:
			l.sample()
			// Restart the timer after the sample, so that a slow host is not measured permanently.
			next.Reset(l.period)
		}
	}
}

// deferred reports whether the process must not be terminated now: work is in progress, its
// state is unknown, or the host or namespace is frozen.
func (s *snapshot) deferred() bool {
	return s.busy != "" || s.phase != supervise.Running || !s.settled || s.paused
}

// sample measures all subjects once and acts on an exceeded limit.
func (l *limiter) sample() {
	defer l.engine.rescue("", "watching limits", nil)
	pools := l.pools()
	subjects := l.subjects(pools)
	if len(subjects) == 0 {
		l.reset()
		return
	}
	usage, err := l.measure(subjects)
	if err != nil {
		return // the judge notices the gap
	}
	l.shown.Store(&usage.Trees)
	b, found := l.judge.Read(reading(subjects, usage, pools, l.period))
	if !found {
		return
	}
	if b, found = l.confirm(b, subjects, usage); found && !subjects[b.Key].deferred() {
		l.act(b, subjects[b.Key], usage.Capacity)
	}
}

func (l *limiter) reset() {
	l.shown.Store(nil)
	l.judge.Read(limits.Reading{})
	l.meter, l.period = proc.UsageMeter{}, l.engine.cfg.Timing.UsageSample
}

func (l *limiter) measure(subjects map[string]*snapshot) (proc.Usage, error) {
	roots := make([]proc.Identity, 0, len(subjects))
	for _, s := range subjects {
		roots = append(roots, s.known.Main)
	}
	managed := func(pid int) bool { return l.engine.host.Claims.OtherHas(pid, "") }
	usage, err := l.meter.Measure(roots, managed)
	switch {
	case err != nil && !l.failing:
		l.engine.cfg.Log.WithError(err).Warn("limit checks suspended: process metrics unreadable")
	case err == nil && l.failing:
		l.engine.cfg.Log.Info("limit checks resumed")
	}
	l.failing = err != nil
	l.period = pace(l.engine.cfg.Timing.UsageSample, usage.Processes)
	return usage, err
}

// pace returns the interval between measurements of a host with this number of processes.
func pace(sample time.Duration, processes int) time.Duration {
	if processes >= crowded {
		return 3 * sample
	}
	return sample
}

// pools returns the groups of processes that share a limit on this host.
func (l *limiter) pools() []limits.Pool {
	settings := l.engine.settings.Load()
	pools := make([]limits.Pool, 0, len(settings.Groups))
	for _, g := range settings.Groups {
		pools = append(pools, limits.Pool{
			Namespace: g.Namespace, ID: g.ID, CPULimit: g.CPULimit, MemoryLimit: g.MemoryLimit,
			CPUByLimit: g.CPUByLimit, MemoryByLimit: g.MemoryByLimit,
		})
	}
	return pools
}

// subjects returns, by key, the running processes that have a limit or share one. A resident
// process that was released is not included.
func (l *limiter) subjects(pools []limits.Pool) map[string]*snapshot {
	shared := map[string]bool{}
	for _, p := range pools {
		shared[p.Namespace] = true
	}
	subjects := map[string]*snapshot{}
	for key, s := range l.engine.snapshots() {
		limited := s.spec.CPULimit > 0 || s.spec.MemoryLimit > 0 || shared[s.spec.Namespace]
		ours := s.specStored && (s.supervised() || s.spec.Type != procspec.Resident)
		if ours && limited && !s.known.Main.IsZero() {
			subjects[key] = s
		}
	}
	return subjects
}

// reading converts a measurement for the judge.
func reading(subjects map[string]*snapshot, usage proc.Usage, pools []limits.Pool, period time.Duration) limits.Reading {
	r := limits.Reading{At: usage.At, Period: period, Pools: pools}
	for key, s := range subjects {
		tree, lives := usage.Trees[s.known.Main]
		if !lives {
			continue
		}
		spec, main := &s.spec, s.known.Main
		r.Trees = append(r.Trees, limits.Tree{
			Key: key, Namespace: spec.Namespace, Main: limits.Process{PID: main.PID, Start: main.Start}, Age: tree.Age,
			CPU: tree.CPU, CPUKnown: tree.CPUKnown, Memory: tree.MemoryPercent,
			CPULimit: spec.CPULimit, MemoryLimit: spec.MemoryLimit, Deferred: s.deferred(),
		})
	}
	return r
}

// confirm checks a breach of a memory limit again by proportional memory (PSS), since the
// first measurement counts shared memory once for each process of a tree. It reports false
// if the limit is not exceeded.
func (l *limiter) confirm(b limits.Breach, subjects map[string]*snapshot, usage proc.Usage) (limits.Breach, bool) {
	if b.Metric != limits.Memory {
		return b, true
	}
	keys := []string{b.Key}
	for _, m := range b.Members {
		keys = append(keys, m.Key)
	}
	memory := map[string]float64{}
	for _, key := range keys {
		tree := usage.Trees[subjects[key].known.Main]
		if len(tree.Processes) == 1 && b.Pool == nil {
			continue
		}
		pss, err := proc.TreePSS(tree.Processes)
		if err != nil {
			l.engine.cfg.Log.WithField("process", key).WithError(err).Debug("proportional memory unreadable, using resident memory")
			continue
		}
		memory[key] = usage.Capacity.PercentOf(pss)
	}
	better, still := b.Confirm(memory)
	if !still {
		l.judge.Dismiss(b, usage.At)
	}
	return better, still
}

// act terminates the process, and emits an event after the termination. It does not wait.
func (l *limiter) act(b limits.Breach, s *snapshot, of proc.Capacity) {
	l.judge.Begin()
	l.engine.requestTermination(b.Key, s.known.Main, func(end procop.TerminationEnd) {
		l.ended <- func() {
			l.judge.End(b, time.Duration(l.engine.clock.now()), end.Begun)
			if end.Begun {
				l.engine.cfg.Emit(exceeded(b, s, of, end))
			}
		}
	})
}

// usageOf returns the latest measured usage of a process tree; zero if no limit applies to
// the process, which is not measured then.
func (l *limiter) usageOf(main proc.Identity) proc.TreeUsage {
	if trees := l.shown.Load(); trees != nil {
		return (*trees)[main]
	}
	return proc.TreeUsage{}
}

// maxEventMembers bounds the group members that an event lists.
const maxEventMembers = 50

// exceeded returns the event about a termination: its cause and result.
func exceeded(b limits.Breach, s *snapshot, of proc.Capacity, end procop.TerminationEnd) agentproto.Event {
	spec := &s.spec
	event := agentproto.Event{
		Kind: agentproto.EventLimitExceeded, Key: b.Key, Namespace: spec.Namespace, Name: spec.Name, ProcName: spec.ProcName,
		PID: s.known.Main.PID,
		Details: map[string]any{
			"metric": string(b.Metric), "value": b.Value, "limit": b.Limit, "window_s": b.Window.Seconds(),
			"of_cpus": of.CPUs, "of_memory_bytes": of.Memory, "ended": end.Gone, "how": end.How,
		},
	}
	cause := fmt.Sprintf("its %s, %.4g %% of the host, exceeded its limit of %.4g %% for %s", b.Metric, b.Value, b.Limit, b.Window)
	if b.Pool != nil {
		cause = fmt.Sprintf("group %s used %.4g %% of the host's %s for %s, above its limit of %.4g %%, and this one of its %d members was terminated",
			b.Pool.ID, b.Value, b.Metric, b.Window, b.Limit, len(b.Members))
		maps.Copy(event.Details, poolDetails(b))
	}
	exit, details := describeExit(end.Exit)
	if exit != "" {
		exit = fmt.Sprintf("pid %d %s", event.PID, exit)
	}
	event.Message = procop.Join(cause, end.Text(), exit)
	maps.Copy(event.Details, details)
	return event
}

// poolDetails returns the usage of the members, which shows why this member was chosen.
func poolDetails(b limits.Breach) map[string]any {
	members := make([]map[string]any, 0, min(len(b.Members), maxEventMembers))
	for _, m := range b.Members[:cap(members)] {
		members = append(members, map[string]any{
			"key": m.Key, "pid": m.Main.PID, "usage": m.Usage, "limit": m.Limit, "score": m.Score, "minor": m.Minor,
		})
	}
	return map[string]any{"pool": b.Pool.ID, "victim": b.Key, "members": members, "members_total": len(b.Members)}
}
