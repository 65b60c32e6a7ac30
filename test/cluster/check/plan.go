package check

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
)

const (
	namespace = "check"
	// residents is how many resident processes each host has.
	residents = 3
	// shared is how many names are left to starts that compete for one.
	shared = 2

	// Of so many submissions one has no key, and one is for the light agents.
	keylessEvery = 6
	bigEvery     = 20
	// bigStep is by how many items big tasks differ, and bigSizes how many
	// sizes there are.
	bigStep, bigSizes = 1000, 5
)

// MarkFile is where control commands leave their marks, in the folder that the
// load is given.
const MarkFile = "marks"

// plan makes submissions from a seed: the same seed, the same submissions.
type plan struct {
	random *rand.Rand
	run    string
	hosts  []procfleet.Host
	absent []procfleet.Host // that have no agent
	light  []procfleet.Host // whose agents run nothing
	calls  bool             // whether callbacks are requested
	made   int
}

func newPlan(cfg *Config) *plan {
	return &plan{
		random: rand.New(rand.NewPCG(cfg.Seed, 0)),
		run:    cfg.Run, hosts: cfg.Hosts, absent: cfg.Absent, light: cfg.Light, calls: cfg.Callbacks != "",
	}
}

// next makes one more submission.
func (p *plan) next() *Submission {
	p.made++
	s := &Submission{Key: fmt.Sprintf("%s-%d", p.run, p.made), Keyless: p.made%keylessEvery == 0}
	s.Callback = p.calls && p.random.IntN(2) == 0
	if p.made%bigEvery == 5 && len(p.light) > 0 {
		s.Asks = p.big(s)
		return s
	}
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

// big is 1,000 to 5,000 items on light agents, and a start on all other hosts,
// also on those that have no agent, for which parts of the task have to wait.
func (p *plan) big(s *Submission) []Ask {
	actions := []procfleet.Action{procfleet.ActionStart, procfleet.ActionStop, procfleet.ActionRestart}
	action := actions[p.random.IntN(len(actions))]
	asks := []Ask{p.once(s, 0, slices.Concat(p.hosts, p.absent))}
	for left := bigStep * (1 + p.made/bigEvery%bigSizes); left > 0; left -= len(p.light) {
		hosts := p.light[:min(left, len(p.light))]
		asks = append(asks, Ask{Action: action, Process: fmt.Sprintf("light-%d", len(asks)), Hosts: hosts})
	}
	return asks
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
	actions := []procfleet.Action{
		procfleet.ActionStart, procfleet.ActionStart, procfleet.ActionStart, procfleet.ActionStop,
		procfleet.ActionRestart, procfleet.ActionReload, procfleet.ActionKill,
	}
	return Ask{
		Action: actions[p.random.IntN(len(actions))], Process: resident(p.random.IntN(residents)), Token: s.Key + ".0",
		Stays: true, Hosts: p.some(1 + p.random.IntN(len(p.hosts))),
	}
}

func (p *plan) status(hosts []procfleet.Host) Ask {
	return Ask{Action: procfleet.ActionStatus, Process: resident(p.random.IntN(residents)), Stays: true, Hosts: hosts}
}

const residentName = "resident-"

func resident(n int) string { return residentName + strconv.Itoa(n) }

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

// mark is a shell line that leaves a mark, with one write.
func (a *Ask) mark(verb Verb) string {
	return fmt.Sprintf(`read up idle < /proc/uptime; echo "%s %s %s $PROCFLEET_OP $up" >> %s`, a.Token, a.Process, verb, MarkFile)
}

// spec is the process of an ask. Its commands leave their marks before they do
// anything else.
func (a *Ask) spec(folder string) procfleet.ProcessSpec {
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.ProcName, spec.SetupPath = namespace, a.Process, "sleep", folder
	spec.Control.NoProfile = true
	spec.Control.Start = a.mark(VerbStart)
	spec.Alive.Type = procfleet.Once
	spec.Alive.OpTimeout, spec.Alive.StopCheck = procfleet.Seconds(20), procfleet.Seconds(10)
	spec.Alive.StartCheckBegin, spec.Alive.StartCheckEnd = 0, 0
	if a.Stays {
		spec.PidPath = folder + "/" + a.Process + ".pid"
		// Arguments tell the programs apart: all of a host have one name and one
		// folder, and a pid file that a death left behind may come to name another.
		program := "sleep 8640" + strings.TrimPrefix(a.Process, residentName)
		spec.ArgsPattern = "^" + program + "$"
		spec.Control.Start += fmt.Sprintf("; %s > /dev/null 2>&1 < /dev/null & echo $! > %s.pid", program, a.Process)
		end := fmt.Sprintf("; read pid < %s.pid; kill -", a.Process)
		spec.Control.Stop, spec.Control.Kill = a.mark(VerbStop)+end+"TERM $pid", a.mark(VerbKill)+end+"KILL $pid"
		spec.Control.Reload = a.mark(VerbReload)
		spec.Alive.Type = procfleet.Resident
		// Agents die and come back with all processes of their containers: that is no
		// reason to give a process up.
		spec.Alive.StartRetries, spec.Alive.StartInterval = procfleet.MaxRetries, procfleet.Seconds(1)
	}
	return spec
}
