package operate

import (
	"context"
	"hash/fnv"
	"time"

	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
)

const (
	// sweepParts spreads one sweep over its period.
	sweepParts = 5

	// quietSweeps is the number of sweeps in which a quiet process is queried
	// once: only a query notices that a signal has stopped it.
	quietSweeps = 6

	// sweepTurns is the number of turns until every process was queried.
	sweepTurns = sweepParts * quietSweeps
)

// turnOf is the turn, below sweepTurns, in which a key's process is queried
// however quiet it is.
func turnOf(key string) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32() % sweepTurns)
}

// sweep reminds every actor once in a period to look at its process, a part
// of them at a time, and leaves out the actors whose process is quiet.
func (e *Engine) sweep() {
	tick := time.NewTicker(e.cfg.Timing.Sweep / sweepParts)
	defer tick.Stop()
	for turn := 0; ; turn = (turn + 1) % sweepTurns {
		select {
		case <-e.life.Done():
			return
		case <-tick.C:
		}
		if turn%sweepParts == 0 {
			e.oom.Note()
		}
		if turn == 0 {
			e.prune()
		}
		quiet := e.remind(turn)
		e.work.Go(func() { e.check(quiet, turn) })
	}
}

// remind reminds the actors of one turn whose process is not quiet, and returns
// the others.
func (e *Engine) remind(turn int) (quiet []*actor) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.actors {
		switch {
		case a.turn%sweepParts != turn%sweepParts:
		case a.snapshot.Load().quiet:
			quiet = append(quiet, a)
		default:
			a.mailbox.remind(supervise.Swept{})
		}
	}
	return quiet
}

// check reminds the actors of quiet processes that one system call shows to have
// changed. One goroutine does so for all of them: to wake every actor for it
// costs more than the system calls.
func (e *Engine) check(quiet []*actor, turn int) {
	for _, a := range quiet {
		if a.turn == turn && e.stirs(a.snapshot.Load().known.Main) {
			a.mailbox.remind(supervise.Swept{})
		}
	}
	e.checkPidFiles(quiet)
}

// stirs reports whether a process that was quiet is gone or stopped by a signal.
// A report that has measured the process since its last turn knows as much, and
// has told its actor (see suspended).
func (e *Engine) stirs(main proc.Identity) bool {
	if e.gauges.sampledSince(main, time.Duration(e.now())-quietSweeps*e.cfg.Timing.Sweep) {
		return false
	}
	alive, suspended := proc.Stands(main)
	return !alive || suspended
}

// suspended reminds the actor of a quiet process that was found stopped by a
// signal.
func (e *Engine) suspended(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a, ok := e.actors[key]; ok {
		a.mailbox.remind(supervise.Swept{})
	}
}

// checkPidFiles reminds the actors whose pid file was written since they read
// it. Where a file system hangs, every actor checks its own file.
func (e *Engine) checkPidFiles(actors []*actor) {
	with, paths, known := make([]*actor, 0, len(actors)), make([]string, 0, len(actors)), make([]time.Time, 0, len(actors))
	for _, a := range actors {
		if s := a.snapshot.Load(); s.spec.PidPath != "" {
			with, paths, known = append(with, a), append(paths, s.spec.PidPath), append(known, s.pidFileWritten)
		}
	}
	if len(with) == 0 {
		return
	}
	written, err := e.finder.FilesWritten(e.life, paths)
	for i, a := range with {
		if err != nil || !written[i].Equal(known[i]) {
			a.mailbox.remind(supervise.Swept{})
		}
	}
}

// quiet reports whether nothing has to be looked for at the process: it runs,
// its end is notified, and nothing is asked about it at intervals.
func (a *actor) quiet() bool {
	s := &a.state
	return s.Phase == supervise.Running && s.Work == supervise.Idle && s.Settled() && !s.Suspended &&
		s.Rival == (supervise.Identity{}) && a.watches(s.Main) && s.Kept &&
		!procspec.HasInstances(&a.spec) && a.spec.HealthCmd == "" && a.schedule.table.IsZero()
}

// sweep looks for what no event notifies: one small file of the process, and
// when its pid file was written.
func (a *actor) sweep(ctx context.Context) {
	if a.state.Phase != supervise.Running {
		a.step(ctx, supervise.Swept{}, nil)
		return
	}
	alive, suspended := proc.Stands(proc.Identity(a.state.Main))
	if !alive {
		a.step(ctx, supervise.Swept{}, nil)
		return
	}
	a.seenAlive()
	if suspended != a.state.Suspended {
		a.step(ctx, supervise.Suspended{Main: a.state.Main, On: suspended}, nil)
	}
	a.examine(ctx, time.Now())
	if a.incomplete() {
		a.recount(ctx)
	}
	if path := a.spec.PidPath; a.state.Kept && !procspec.HasInstances(&a.spec) && path != "" && !a.checking {
		a.checking = true
		a.engine.work.Go(func() { a.mailbox.put(pidFileSeen{written: a.engine.finder.PidFileWritten(ctx, path)}) })
	}
}

// prune forgets what was noted of processes that are gone. A process that an
// actor follows is not gone, which needs no look.
func (e *Engine) prune() {
	followed := map[proc.Identity]bool{}
	for _, s := range e.snapshots() {
		followed[s.known.Main] = true
	}
	gone := func(id proc.Identity) bool { return !followed[id] && !proc.Alive(id) }
	e.gauges.prune(gone)
	e.inquiries.prune(gone)
}
