package check

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/procfleet/procfleet"
)

const (
	namespace = "check"
	// residents is how many resident processes each host has.
	residents = 3
	// shared is how many names are left to starts that compete for one.
	shared = 2
)

// MarkFile is where start commands leave their marks, in the folder that the
// load is given.
const MarkFile = "marks"

// plan makes submissions from a seed: the same seed, the same submissions.
type plan struct {
	random *rand.Rand
	run    string
	hosts  []procfleet.Host
	absent []procfleet.Host // that have no agent
	made   int
}

func newPlan(cfg *Config) *plan {
	return &plan{
		random: rand.New(rand.NewPCG(cfg.Seed, 0)),
		run:    cfg.Run, hosts: cfg.Hosts, absent: cfg.Absent,
	}
}

// next makes one more submission.
func (p *plan) next() *Submission {
	p.made++
	s := &Submission{Key: fmt.Sprintf("%s-%d", p.run, p.made)}
	switch draw := p.random.IntN(100); {
	case draw < 35:
		s.Asks = []Ask{p.once(s, 0, p.some(1))}
	case draw < 50:
		s.Asks = []Ask{p.once(s, 0, p.hosts)}
	case draw < 58:
		s.Asks = []Ask{p.competing(s)}
	case draw < 66 && len(p.absent) > 0:
		s.Asks = []Ask{p.once(s, 0, append(p.some(1), p.absent...))}
	case draw < 76:
		s.Asks = []Ask{p.status(p.hosts)}
	case draw < 84:
		s.Asks = []Ask{p.once(s, 0, p.some(2)), p.once(s, 1, p.some(2)), p.status(p.some(3))}
	default:
		s.Asks = []Ask{p.change(s)}
	}
	return s
}

// once is the start of a program that leaves its mark and ends. Nothing else
// has its name.
func (p *plan) once(s *Submission, n int, hosts []procfleet.Host) Ask {
	name := fmt.Sprintf("%s.%d", s.Key, n)
	return Ask{Action: procfleet.ActionStart, Process: "once-" + name, Token: name, Hosts: hosts}
}

// competing is such a start under a name that other submissions use too.
func (p *plan) competing(s *Submission) Ask {
	a := p.once(s, 0, p.some(2))
	a.Process = fmt.Sprintf("shared-%d", p.random.IntN(shared))
	return a
}

// change is something that changes how a resident process stands.
func (p *plan) change(s *Submission) Ask {
	actions := []procfleet.Action{procfleet.ActionStart, procfleet.ActionStart, procfleet.ActionStop, procfleet.ActionRestart}
	a := Ask{
		Action: actions[p.random.IntN(len(actions))], Process: resident(p.random.IntN(residents)),
		Stays: true, Hosts: p.some(1 + p.random.IntN(len(p.hosts))),
	}
	if a.Action != procfleet.ActionStop {
		a.Token = s.Key + ".0"
	}
	return a
}

func (p *plan) status(hosts []procfleet.Host) Ask {
	return Ask{Action: procfleet.ActionStatus, Process: resident(p.random.IntN(residents)), Stays: true, Hosts: hosts}
}

func resident(n int) string { return fmt.Sprintf("resident-%d", n) }

// some returns up to n different hosts, in order.
func (p *plan) some(n int) []procfleet.Host {
	picked := p.random.Perm(len(p.hosts))[:min(n, len(p.hosts))]
	slices.Sort(picked)
	hosts := make([]procfleet.Host, len(picked))
	for i, k := range picked {
		hosts[i] = p.hosts[k]
	}
	return hosts
}

// spec is the process of an ask. Its start command leaves its mark, with one
// write, before it does anything else.
func (a *Ask) spec(folder string) procfleet.ProcessSpec {
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.ProcName, spec.SetupPath = namespace, a.Process, "sleep", folder
	spec.Control.NoProfile = true
	spec.Control.Start = fmt.Sprintf(`echo "%s $PROCFLEET_OP" >> %s`, a.Token, MarkFile)
	spec.Alive.Type = procfleet.Once
	spec.Alive.OpTimeout, spec.Alive.StopCheck = procfleet.Seconds(20), procfleet.Seconds(10)
	spec.Alive.StartCheckBegin, spec.Alive.StartCheckEnd = 0, 0
	if a.Stays {
		spec.PidPath = folder + "/" + a.Process + ".pid"
		spec.Control.Start += fmt.Sprintf("; sleep 86400 > /dev/null 2>&1 < /dev/null & echo $! > %s.pid", a.Process)
		spec.Alive.Type = procfleet.Resident
		// Agents die and come back with all processes of their containers: that is no
		// reason to give a process up.
		spec.Alive.StartRetries, spec.Alive.StartInterval = procfleet.MaxRetries, procfleet.Seconds(1)
	}
	return spec
}
