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

// crowded is the number of processes on a host from which it is read three
// times less often: a reading costs some 5 µs for each of them.
const crowded = 10_000

// limiter measures the processes that have a limit of their own or share one,
// and takes down what uses too much. Nothing is measured while there are none.
// Its goroutine, run, is the only one that touches its fields, but for shown.
type limiter struct {
	engine *Engine
	judge  *limits.Judge
	meter  proc.UsageMeter
	blind  bool // the latest measurement failed
	period time.Duration

	ended chan func() // capacity 1: there is one take-down at a time

	// shown is what was measured last, for statuses.
	shown atomic.Pointer[map[proc.Identity]proc.TreeUsage]
}

func newLimiter(e *Engine) *limiter {
	t := &e.cfg.Timing
	return &limiter{
		engine: e, period: t.UsageSample, ended: make(chan func(), 1),
		judge: limits.NewJudge(limits.Rules{Window: t.UsageWindow, ArmAfter: t.UsageArm, Spacing: t.TakeDownSpacing}),
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
			// From the end of one to the next: a slow host is not read all the time.
			next.Reset(l.period)
		}
	}
}

// subject is a process whose usage matters.
type subject struct {
	main     proc.Identity
	snapshot *snapshot
	deferred bool
}

// sample measures once and acts on a limit that is exceeded.
func (l *limiter) sample() {
	defer l.engine.rescue("", "watching limits", func(string) {})
	pools := l.engine.pools()
	subjects := l.engine.limited(pools)
	if len(subjects) == 0 {
		l.forget()
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
	if b, found = l.confirm(b, subjects, usage); found && !subjects[b.Key].deferred {
		l.act(b, subjects[b.Key], usage.Capacity)
	}
}

func (l *limiter) forget() {
	l.shown.Store(nil)
	l.judge.Read(limits.Reading{})
	l.meter, l.period = proc.UsageMeter{}, l.engine.cfg.Timing.UsageSample
}

func (l *limiter) measure(subjects map[string]subject) (proc.Usage, error) {
	roots := make([]proc.Identity, 0, len(subjects))
	for _, s := range subjects {
		roots = append(roots, s.main)
	}
	managed := func(pid int) bool { return l.engine.host.Claims.OtherHas(pid, "") }
	usage, err := l.meter.Measure(roots, managed)
	switch {
	case err != nil && !l.blind:
		l.engine.cfg.Log.WithError(err).Warn("limit checks suspended: process metrics unreadable")
	case err == nil && l.blind:
		l.engine.cfg.Log.Info("limit checks resumed")
	}
	l.blind = err != nil
	l.period = pace(l.engine.cfg.Timing.UsageSample, usage.Processes)
	return usage, err
}

// pace is how often a host with so many processes is read.
func pace(sample time.Duration, processes int) time.Duration {
	if processes >= crowded {
		return 3 * sample
	}
	return sample
}

// pools are the groups of this host.
func (e *Engine) pools() []limits.Pool {
	settings := e.settings.Load()
	pools := make([]limits.Pool, 0, len(settings.Groups))
	for _, g := range settings.Groups {
		pools = append(pools, limits.Pool{
			Namespace: g.Namespace, ID: g.ID, CPULimit: g.CPULimit, MemoryLimit: g.MemoryLimit,
			CPUByLimit: g.CPUByLimit, MemoryByLimit: g.MemoryByLimit,
		})
	}
	return pools
}

// limited are the processes that run and have a limit or share one, by key. A
// process that is meant to be kept alive and was released is left alone.
func (e *Engine) limited(pools []limits.Pool) map[string]subject {
	shared := map[string]bool{}
	for _, p := range pools {
		shared[p.Namespace] = true
	}
	subjects := map[string]subject{}
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, a := range e.actors {
		s := a.snapshot.Load()
		limited := s.spec.CPULimit > 0 || s.spec.MemoryLimit > 0 || shared[s.spec.Namespace]
		ours := s.kept && (s.supervised() || s.spec.Type != procspec.Resident)
		if ours && limited && !s.known.Main.IsZero() {
			subjects[key] = subject{main: s.known.Main, snapshot: s, deferred: e.defers(s)}
		}
	}
	return subjects
}

// defers reports whether a process must be left alone now, whatever it uses:
// something is being done with it, nobody knows how it stands, or its host or
// namespace is frozen.
func (e *Engine) defers(s *snapshot) bool {
	return s.busy != "" || s.phase != supervise.Running || !s.settled || s.held
}

// reading is a measurement as the judge wants it.
func reading(subjects map[string]subject, usage proc.Usage, pools []limits.Pool, period time.Duration) limits.Reading {
	r := limits.Reading{At: usage.At, Period: period, Pools: pools}
	for key, s := range subjects {
		tree, lives := usage.Trees[s.main]
		if !lives {
			continue
		}
		spec := &s.snapshot.spec
		r.Trees = append(r.Trees, limits.Tree{
			Key: key, Namespace: spec.Namespace, Main: limits.Process{PID: s.main.PID, Start: s.main.Start}, Age: tree.Age,
			CPU: tree.CPU, CPUKnown: tree.CPUKnown, Memory: tree.MemoryPercent,
			CPULimit: spec.CPULimit, MemoryLimit: spec.MemoryLimit, Deferred: s.deferred,
		})
	}
	return r
}

// confirm judges memory once more by what trees of several processes really
// use: what they share is in the figure of each.
func (l *limiter) confirm(b limits.Breach, subjects map[string]subject, usage proc.Usage) (limits.Breach, bool) {
	if b.Metric != limits.Memory {
		return b, true
	}
	keys := []string{b.Key}
	for _, m := range b.Members {
		keys = append(keys, m.Key)
	}
	memory := map[string]float64{}
	for _, key := range keys {
		tree := usage.Trees[subjects[key].main]
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

// act takes the process down and tells so once that is over. It does not wait.
func (l *limiter) act(b limits.Breach, s subject, of proc.Capacity) {
	l.judge.Begin(b)
	l.engine.takeDown(b.Key, s.main, func(end procop.TerminationEnd) {
		l.ended <- func() {
			l.judge.End(b, time.Duration(l.engine.now()), end.Begun)
			if end.Begun {
				l.engine.cfg.Tell(exceeded(b, s, of, end))
			}
		}
	})
}

// usageOf is what the tree of a process was measured to use last; zero if it
// is not measured, since no limit applies to it.
func (l *limiter) usageOf(main proc.Identity) proc.TreeUsage {
	if trees := l.shown.Load(); trees != nil {
		return (*trees)[main]
	}
	return proc.TreeUsage{}
}

// maxToldMembers bounds the members of a group that an event names.
const maxToldMembers = 50

// exceeded tells why a process was taken down, and how that ended.
func exceeded(b limits.Breach, s subject, of proc.Capacity, end procop.TerminationEnd) agentproto.Event {
	n := s.snapshot.names
	event := agentproto.Event{
		Kind: agentproto.EventLimitExceeded, Key: b.Key, Namespace: n.namespace, Name: n.name, ProcName: n.procName,
		PID: s.main.PID,
		Details: map[string]any{
			"metric": string(b.Metric), "value": b.Value, "limit": b.Limit, "window_s": b.Window.Seconds(),
			"of_cpus": of.CPUs, "of_memory_bytes": of.Memory, "ended": end.Gone, "how": end.How,
		},
	}
	cause := fmt.Sprintf("its %s, %.4g %% of the host, was over its limit of %.4g %% for %s", b.Metric, b.Value, b.Limit, b.Window)
	if b.Pool != nil {
		cause = fmt.Sprintf("group %s used %.4g %% of the host's %s for %s, over its limit of %.4g %%, and this one of its %d members had to go",
			b.Pool.ID, b.Value, b.Metric, b.Window, b.Limit, len(b.Members))
		maps.Copy(event.Details, poolDetails(b))
	}
	event.Message = procop.Join(cause, end.Text())
	return event
}

// poolDetails say why this member had to go.
func poolDetails(b limits.Breach) map[string]any {
	members := make([]map[string]any, 0, min(len(b.Members), maxToldMembers))
	for _, m := range b.Members[:cap(members)] {
		members = append(members, map[string]any{
			"key": m.Key, "pid": m.Main.PID, "usage": m.Usage, "limit": m.Limit, "score": m.Score, "minor": m.Minor,
		})
	}
	return map[string]any{"pool": b.Pool.ID, "victim": b.Key, "members": members, "members_total": len(b.Members)}
}
