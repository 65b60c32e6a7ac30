package operate

import (
	"hash/fnv"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
)

const (
	// sweepParts is the number of turns over which one sweep is spread.
	sweepParts = 5

	// quietSweeps is the number of sweeps in which a quiet process is queried once. Only a
	// query detects that a signal has stopped the process.
	quietSweeps = 6

	// sweepTurns is the number of turns in which every process is queried once.
	sweepTurns = sweepParts * quietSweeps
)

// turnOf returns the turn, less than sweepTurns, in which the process of a key is queried even
// if it is quiet.
func turnOf(key string) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32() % sweepTurns)
}

// sweeper reminds every actor once per period to query its process, one part of the actors per
// turn. Quiet processes it queries itself: one system call per process costs less than waking
// an actor.
type sweeper struct{ *Engine }

// next returns a function that performs one turn of the sweep per call.
func (s sweeper) next() func() {
	turn := -1
	return func() {
		turn = (turn + 1) % sweepTurns
		if turn%sweepParts == 0 {
			s.oom.Poll()
		}
		if turn == 0 {
			s.prune()
		}
		quiet, turn := s.remindTurn(turn), turn
		s.work.Go(func() { s.check(quiet, turn) })
	}
}

// remindTurn reminds the actors of one turn, except those whose process is quiet, which it
// returns.
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

// check reminds the actors whose quiet process or pid file has changed.
func (s sweeper) check(quiet []*actor, turn int) {
	for _, a := range quiet {
		if a.turn == turn && s.changed(a.snapshot.Load().known.Main) {
			a.mailbox.remind(supervise.Swept{})
		}
	}
	s.checkPidFiles(quiet)
}

// changed reports whether a quiet process is gone or stopped by a signal. It skips a process
// that a report has measured since its last turn: the report has detected the change and
// reminded the actor.
func (s sweeper) changed(main proc.Identity) bool {
	if s.gauges.sampledSince(main, time.Duration(s.clock.now())-quietSweeps*s.cfg.Timing.Sweep) {
		return false
	}
	alive, suspended := proc.RunState(main)
	return !alive || suspended
}

// checkPidFiles reminds the actors whose pid file was modified since they read it. If a file
// system hangs, it reminds all actors, each of which then checks its own file.
func (s sweeper) checkPidFiles(actors []*actor) {
	var with []*actor
	var paths []string
	var known []time.Time
	for _, a := range actors {
		if snapshot := a.snapshot.Load(); snapshot.spec.PidPath != "" {
			with, paths, known = append(with, a), append(paths, snapshot.spec.PidPath), append(known, snapshot.pidFileWritten)
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

// prune removes the cached data of processes that are gone. A process that an actor follows
// exists, so it is not queried.
func (s sweeper) prune() {
	followed := map[proc.Identity]bool{}
	for _, snapshot := range s.snapshots() {
		followed[snapshot.known.Main] = true
	}
	gone := func(id proc.Identity) bool { return !followed[id] && !proc.Alive(id) }
	s.gauges.prune(gone)
	s.inquiries.prune(gone)
}
