package check

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
)

const (
	namespace = "check"
	// residents is the number of resident processes per host.
	residents = 3
	// shared is the number of names for which several starts compete.
	shared = 2

	// keylessEvery is the number of submissions per submission without a key,
	// bigEvery the number per submission to the simulated agents.
	keylessEvery = 6
	bigEvery     = 20
	// bigStep is the difference in items between the sizes of big tasks, and
	// bigSizes the number of sizes.
	bigStep, bigSizes = 1000, 5

	// queue is how long operations wait for hosts without an agent. Only the first submissions, the
	// early ones, wait for hosts that never have one.
	queue = time.Minute
	early = 10
)

// MarkFile is the file in the load's folder into which control commands write their
// marks.
const MarkFile = "marks"

// plan creates submissions from a seed: the same seed gives the same submissions.
type plan struct {
	random *rand.Rand
	run    string
	hosts  []procfleet.Host
	absent []procfleet.Host // hosts without an agent
	light  []procfleet.Host // hosts of simulated agents
	calls  bool             // callbacks are requested
	rolls  bool             // some tasks are rollouts
	made   int
}

func newPlan(cfg *Config) *plan {
	return &plan{
		random: rand.New(rand.NewPCG(cfg.Seed, 0)),
		run:    cfg.Run, hosts: cfg.Hosts, absent: cfg.Absent, light: cfg.Light, calls: cfg.Callbacks != "", rolls: cfg.Rollouts,
	}
}

// next creates the next submission.
func (p *plan) next() *Submission {
	p.made++
	s := &Submission{Key: fmt.Sprintf("%s-%d", p.run, p.made), Keyless: p.made%keylessEvery == 0}
	s.Callback = p.calls && p.random.IntN(2) == 0
	if p.made%bigEvery == 5 && len(p.light) > 0 {
		s.Operations = p.big(s)
		if p.rolls && !s.Keyless && p.made/bigEvery%2 == 0 {
			s.Window, s.Ramp = len(p.light)/10*(1+p.random.IntN(2)), p.random.IntN(2) == 0
		}
		return s
	}
	switch draw := p.random.IntN(100); {
	case draw < 35:
		s.Operations = []Operation{p.once(s, 0, p.some(1))}
	case draw < 50:
		s.Operations = []Operation{p.once(s, 0, p.hosts)}
		if p.rolls && !s.Keyless {
			s.Window, s.Ramp = p.random.IntN(len(p.hosts)), p.random.IntN(2) == 0
			p.divide(s)
			p.wait(s)
		}
	case draw < 58:
		s.Operations = []Operation{p.competing(s)}
	case draw < 66 && len(p.absent) > 0:
		s.Operations = []Operation{p.once(s, 0, append(p.some(1), p.absent...))}
		switch {
		case !p.rolls || s.Keyless:
		case p.made <= early:
			s.Queue = queue
		case p.random.IntN(2) == 0:
			s.Window, s.Budget = 1, true
			s.Operations[0].Hosts = slices.Concat(p.absent[:1], p.some(2))
		}
	case draw < 76:
		s.Operations = []Operation{p.status(p.hosts)}
	case draw < 84:
		s.Operations = []Operation{p.once(s, 0, p.some(2)), p.once(s, 1, p.some(2)), p.status(p.some(3))}
	default:
		s.Operations = []Operation{p.change(s)}
		if p.rolls && !s.Keyless {
			p.wait(s)
			s.Coalesce = s.Queue > 0 && p.random.IntN(2) == 0
		}
	}
	return s
}

// divide limits the cloud areas of some rollouts.
func (p *plan) divide(s *Submission) {
	by := procfleet.HostGrouping{By: procfleet.GroupByCloud}
	switch {
	case s.Window == 0:
	case p.random.IntN(3) == 0:
		s.Zones = procfleet.HostZones{HostGrouping: by, MaxConcurrency: 1}
	case p.random.IntN(2) == 0:
		s.Zones = procfleet.HostZones{HostGrouping: by, AtOnce: 1}
	}
}

// wait lets the operations of some submissions wait for their hosts.
func (p *plan) wait(s *Submission) {
	if p.random.IntN(3) == 0 {
		s.Queue = queue
	}
}

// big returns operations on 1,000 to 5,000 simulated agents, and a start on all
// other hosts. Some of these have no agent, so parts of the task have to wait.
func (p *plan) big(s *Submission) []Operation {
	actions := []procfleet.Action{procfleet.ActionStart, procfleet.ActionStop, procfleet.ActionRestart}
	action := actions[p.random.IntN(len(actions))]
	operations := []Operation{p.once(s, 0, slices.Concat(p.hosts, p.absent))}
	for left := bigStep * (1 + p.made/bigEvery%bigSizes); left > 0; left -= len(p.light) {
		hosts := p.light[:min(left, len(p.light))]
		operations = append(operations, Operation{Action: action, Process: fmt.Sprintf("light-%d", len(operations)), Hosts: hosts})
	}
	return operations
}

// release returns a rollout on all simulated agents.
func (p *plan) release(window int) *Submission {
	p.made++
	s := &Submission{Key: fmt.Sprintf("%s-%d", p.run, p.made), Window: window}
	s.Operations = []Operation{{Action: procfleet.ActionRestart, Process: "light-rollout", Hosts: p.light}}
	return s
}

// once returns the start of a program that writes its mark and ends. Its process
// has a unique name.
func (p *plan) once(s *Submission, n int, hosts []procfleet.Host) Operation {
	name := fmt.Sprintf("%s.%d", s.Key, n)
	return Operation{Action: procfleet.ActionStart, Process: "once-" + name, Token: name, Hosts: hosts}
}

// competing returns such a start under a name that other submissions use, too.
func (p *plan) competing(s *Submission) Operation {
	a := p.once(s, 0, p.some(2))
	a.Process = fmt.Sprintf("shared-%d", p.random.IntN(shared))
	return a
}

// change returns an operation that changes the state of a resident process.
func (p *plan) change(s *Submission) Operation {
	actions := []procfleet.Action{
		procfleet.ActionStart, procfleet.ActionStart, procfleet.ActionStart, procfleet.ActionStop,
		procfleet.ActionRestart, procfleet.ActionReload, procfleet.ActionKill,
	}
	return Operation{
		Action: actions[p.random.IntN(len(actions))], Process: resident(p.random.IntN(residents)), Token: s.Key + ".0",
		Stays: true, Hosts: p.some(1 + p.random.IntN(len(p.hosts))),
	}
}

func (p *plan) status(hosts []procfleet.Host) Operation {
	return Operation{Action: procfleet.ActionStatus, Process: resident(p.random.IntN(residents)), Stays: true, Hosts: hosts}
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

// mark returns a shell line that writes a mark with one write.
func (a *Operation) mark(verb Verb) string {
	return fmt.Sprintf(`read up idle < /proc/uptime; echo "%s %s %s $PROCFLEET_OP $up" >> %s`, a.Token, a.Process, verb, MarkFile)
}

// spec returns the process of an operation. Its commands first write their marks.
func (a *Operation) spec(folder string) procfleet.ProcessSpec {
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.ProcName, spec.SetupPath = namespace, a.Process, "sleep", folder
	spec.Control.NoProfile = true
	spec.Control.Start = a.mark(VerbStart)
	spec.Alive.Type = procfleet.Once
	spec.Alive.OpTimeout, spec.Alive.StopCheck = procfleet.Seconds(20), procfleet.Seconds(10)
	spec.Alive.StartCheckBegin, spec.Alive.StartCheckEnd = 0, 0
	if a.Stays {
		spec.PidPath = folder + "/" + a.Process + ".pid"
		// Arguments distinguish the programs: all programs of a host have one name
		// and one folder, and after a death a pid file may name another one.
		program := "sleep 8640" + strings.TrimPrefix(a.Process, residentName)
		spec.ArgsPattern = "^" + program + "$"
		spec.Control.Start += fmt.Sprintf("; %s > /dev/null 2>&1 < /dev/null & echo $! > %s.pid", program, a.Process)
		end := fmt.Sprintf("; read pid < %s.pid; kill -", a.Process)
		spec.Control.Stop, spec.Control.Kill = a.mark(VerbStop)+end+"TERM $pid", a.mark(VerbKill)+end+"KILL $pid"
		spec.Control.Reload = a.mark(VerbReload)
		spec.Alive.Type = procfleet.Resident
		// Faults kill agents with all processes of their containers. The agent must
		// not give the processes up for that.
		spec.Alive.StartRetries, spec.Alive.StartInterval = procfleet.MaxRetries, procfleet.Seconds(1)
	}
	return spec
}
