package operate

import (
	"context"
	"hash/fnv"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
)

const (
	// sweepParts spreads one sweep over its period.
	sweepParts = 5

	// quietSweeps is the number of sweeps in which a quiet process is looked at
	// once: only a look notices that a signal has stopped it.
	quietSweeps = 6

	// sweepTurns is the number of turns until every process was looked at.
	sweepTurns = sweepParts * quietSweeps
)

// turnOf is the turn, below sweepTurns, in which a key's process is looked at
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
		e.work.Go(func() { e.checkPidFiles(quiet) })
	}
}

// remind reminds the actors of one turn, and returns those that it left out
// although a pid file may name another process than theirs.
func (e *Engine) remind(turn int) (quiet []*actor) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.actors {
		if a.turn%sweepParts != turn%sweepParts {
			continue
		}
		switch s := a.snapshot.Load(); {
		case !s.quiet || a.turn == turn:
			a.mailbox.remind(supervise.Swept{})
		case s.spec.PidPath != "":
			quiet = append(quiet, a)
		}
	}
	return quiet
}

// checkPidFiles reminds the actors whose pid file was written since they read
// it. All files are checked by one goroutine, because a goroutine with a timer
// for each costs more than the check. Where a file system hangs, every actor
// checks its own file.
func (e *Engine) checkPidFiles(quiet []*actor) {
	if len(quiet) == 0 {
		return
	}
	paths, known := make([]string, len(quiet)), make([]time.Time, len(quiet))
	for i, a := range quiet {
		s := a.snapshot.Load()
		paths[i], known[i] = s.spec.PidPath, s.pidFileWritten
	}
	written, err := e.finder.FilesWritten(e.life, paths)
	for i, a := range quiet {
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
		!several(&a.spec) && a.spec.HealthCmd == "" && a.schedule.table.IsZero()
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
	if path := a.spec.PidPath; a.state.Kept && !several(&a.spec) && path != "" && !a.checking {
		a.checking = true
		a.engine.work.Go(func() { a.mailbox.put(pidFileSeen{written: a.engine.finder.PidFileWritten(ctx, path)}) })
	}
}

// prune forgets what was noted of processes that are gone. A process that an
// actor follows is not gone, which needs no look.
func (e *Engine) prune() {
	followed := map[proc.Identity]bool{}
	for _, s := range e.snapshots() {
		followed[s.known.main] = true
	}
	gone := func(id proc.Identity) bool { return !followed[id] && !proc.Alive(id) }
	e.gauges.prune(gone)
	e.inquiries.prune(gone)
}
