package operate

import (
	"hash/fnv"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
)

const (
	// sweepParts spreads one sweep over its period.
	sweepParts = 5

	// quietSweeps is the number of sweeps in which a quiet process is queried once: only
	// a query notices that a signal has stopped it.
	quietSweeps = 6

	// sweepTurns is the number of turns until every process was queried.
	sweepTurns = sweepParts * quietSweeps
)

// turnOf returns the turn, below sweepTurns, in which a key's process is queried however
// quiet it is.
func turnOf(key string) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32() % sweepTurns)
}

// sweeper reminds every actor once in a period to query its process, a part of them at a
// time. It leaves out those whose process is quiet, and queries these itself: one system
// call for a process costs less than waking its actor.
type sweeper struct{ *Engine }

// next returns a function that does one turn of the sweep at each call.
func (s sweeper) next() func() {
	turn := -1
	return func() {
		turn = (turn + 1) % sweepTurns
		if turn%sweepParts == 0 {
			s.oom.Note()
		}
		if turn == 0 {
			s.prune()
		}
		quiet, turn := s.remindTurn(turn), turn
		s.work.Go(func() { s.check(quiet, turn) })
	}
}

// remindTurn reminds the actors of one turn whose process is not quiet, and returns the
// others.
func (s sweeper) remindTurn(turn int) (quiet []*actor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.actors {
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

// check reminds the actors whose quiet process has changed.
func (s sweeper) check(quiet []*actor, turn int) {
	for _, a := range quiet {
		if a.turn == turn && s.changed(a.snapshot.Load().known.Main) {
			a.mailbox.remind(supervise.Swept{})
		}
	}
	s.checkPidFiles(quiet)
}

// changed reports whether a process that was quiet is gone or stopped by a signal. A
// report that has measured the process since its last turn has noticed as much, and has
// reminded the actor.
func (s sweeper) changed(main proc.Identity) bool {
	if s.gauges.sampledSince(main, time.Duration(s.clock.now())-quietSweeps*s.cfg.Timing.Sweep) {
		return false
	}
	alive, suspended := proc.RunState(main)
	return !alive || suspended
}

// checkPidFiles reminds the actors whose pid file was written since they read it. If a
// file system hangs, every actor checks its own file.
func (s sweeper) checkPidFiles(actors []*actor) {
	var with []*actor
	var paths []string
	var known []time.Time
	for _, a := range actors {
		if seen := a.snapshot.Load(); seen.spec.PidPath != "" {
			with, paths, known = append(with, a), append(paths, seen.spec.PidPath), append(known, seen.pidFileWritten)
		}
	}
	if len(with) == 0 {
		return
	}
	written, err := s.host.Finder.FilesWritten(s.life, paths)
	for i, a := range with {
		if err != nil || !written[i].Equal(known[i]) {
			a.mailbox.remind(supervise.Swept{})
		}
	}
}

// prune removes what is stored of processes that are gone. One that an actor follows is
// not gone, which needs no query.
func (s sweeper) prune() {
	followed := map[proc.Identity]bool{}
	for _, seen := range s.snapshots() {
		followed[seen.known.Main] = true
	}
	gone := func(id proc.Identity) bool { return !followed[id] && !proc.Alive(id) }
	s.gauges.prune(gone)
	s.inquiries.prune(gone)
}
