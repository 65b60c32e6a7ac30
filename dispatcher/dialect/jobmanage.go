package dialect

import "github.com/procfleet/procfleet"

// manageActions are manage_proc's own numbers.
var manageActions = map[int]procfleet.Action{
	1: procfleet.ActionSupervise,
	2: procfleet.ActionRelease,
}

// jobManaged is an element of manage_proc. Where no path says which process it
// is, its value_key does: it is what was started under that key.
type jobManaged struct {
	jobProcess
	Owner string `json:"proc_owner"`
}

func (p jobManaged) operation(action procfleet.Action, prefix string) (procfleet.Operation, error) {
	if missing := p.missing(); missing != "" {
		return procfleet.Operation{}, required(prefix + missing)
	}
	spec, err := p.spec(prefix)
	if err != nil {
		return procfleet.Operation{}, err
	}
	spec.Contact = p.Owner
	spec.Limits = procfleet.Limits{CPU: limitOr(p.CPULimit, 0), Memory: limitOr(p.MemoryLimit, 0)}
	if action == procfleet.ActionSupervise && runsOnce(&spec) {
		action = procfleet.ActionStart
	}
	return p.on(action, spec, prefix)
}

func (p *jobManaged) missing() string {
	switch {
	case blank(p.ProcName):
		return "proc_name"
	case blank(p.Owner):
		return "proc_owner"
	case blank(p.SetupPath) && blank(p.ValueKey):
		return "setup_path"
	case len(p.Hosts) == 0:
		return "ip_list"
	}
	return ""
}

// runsOnce reports whether registering the process means to run it: there is
// nothing to keep alive. As with any start, registering it again while it runs
// is 828, and runs it anew once it has ended.
func runsOnce(s *procfleet.ProcessSpec) bool {
	a := &s.Alive
	return a.Type == procfleet.Once || a.Type == procfleet.Periodic && a.CycleTime == 0 && a.Crontab == ""
}
