package proc

import (
	"errors"
	"fmt"
	"slices"
)

// several looks for all processes of a program that has more than one: those
// that were found earlier, and what the lines of the pid file name. Without any
// it goes on as for one process.
func (s *search) several() Probe {
	s.mine = agentLine()
	probe := Probe{Verdict: Running}
	for _, id := range append([]Identity{s.target.Known}, s.target.Mates...) {
		switch p, err := s.still(id); {
		case err == nil:
			probe.add(p)
		case !errors.Is(err, ErrGone):
			return Probe{Verdict: Uncertain, Evidence: fmt.Sprintf("known process pid %d: %v", id.PID, err)}
		}
	}
	var doubt string
	for _, pid := range s.files.pids {
		switch j := s.judgePid(pid); j.verdict {
		case Running:
			probe.add(j.process)
			probe.UsedPidFile = true
			if j.alias != "" {
				probe.Alias = j.alias
			}
		case Uncertain:
			doubt = j.reason
		case Stopped:
		}
	}
	if len(probe.Procs) == 0 {
		if doubt != "" {
			return Probe{Verdict: Uncertain, Evidence: doubt}
		}
		return s.probe()
	}
	probe.Evidence = joinReasons(fmt.Sprintf("%d of %d instances run", len(probe.Procs), s.target.Instances), doubt)
	return probe
}

// add takes in a process once.
func (p *Probe) add(process Process) {
	if !slices.ContainsFunc(p.Procs, func(has Process) bool { return has.Identity == process.Identity }) {
		p.Procs = append(p.Procs, process)
	}
}
