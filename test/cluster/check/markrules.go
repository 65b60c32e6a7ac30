package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// command is a control command of one operation on one host.
type command struct {
	token string
	host  procfleet.Host
	verb  Verb
}

// commands lists the commands that an action may run. The last one must have run if
// the action succeeded. A successful stop or kill may have found that its process
// had just ended.
var commands = map[procfleet.Action]struct {
	may  []Verb
	must Verb
}{
	procfleet.ActionStart:   {[]Verb{VerbStart}, VerbStart},
	procfleet.ActionStop:    {[]Verb{VerbStop}, ""},
	procfleet.ActionRestart: {[]Verb{VerbStop, VerbStart}, VerbStart},
	procfleet.ActionReload:  {[]Verb{VerbReload}, VerbReload},
	procfleet.ActionKill:    {[]Verb{VerbKill}, ""},
}

// marks checks the marks: which commands ran, how often, and whether the results
// match.
func (j *judge) marks(marks []Mark) {
	ran, revived := map[command][]Mark{}, map[command]bool{}
	for _, m := range marks {
		switch c := (command{m.Token, m.Host, m.Verb}); {
		case !strings.HasPrefix(m.Token, j.h.Run+"-"):
		case m.Operation == automatic:
			revived[c] = true
		default:
			ran[c] = append(ran[c], m)
		}
	}
	asked := map[command]*Submission{}
	for _, s := range j.h.Submissions {
		for _, a := range s.Operations {
			for _, h := range a.Hosts {
				for _, v := range commands[a.Action].may {
					if a.Token != "" {
						asked[command{a.Token, h, v}] = s
					}
				}
			}
		}
	}
	for _, c := range inOrder(ran) {
		j.ran(c, ran[c], asked[c])
	}
	for _, s := range j.h.Submissions {
		for _, a := range s.Operations {
			if a.Token != "" && s.Task != "" {
				j.truth(s, a, ran, revived)
			}
		}
	}
}

func inOrder(ran map[command][]Mark) []command {
	all := make([]command, 0, len(ran))
	for c := range ran {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b command) int {
		return cmp.Or(
			strings.Compare(a.token, b.token),
			strings.Compare(a.host.String(), b.host.String()),
			strings.Compare(string(a.verb), string(b.verb)))
	})
	return all
}

// ran checks the marks of one command on one host.
func (j *judge) ran(c command, marks []Mark, s *Submission) {
	if s == nil {
		j.brokenItem(RuleRequested, "", -1, c.host, "%s of %s ran for %s; no submission requested it", c.verb, c.token, marks[0].Operation)
		return
	}
	if s.Keyless && s.Task == "" {
		j.brokenItem(RuleRefused, "", -1, c.host, "%s of %s ran for %s, but submission %s has no task: %v", c.verb, c.token, marks[0].Operation, s.Key, s.Err)
		return
	}
	var operations []string
	for _, m := range marks {
		operations = append(operations, m.Operation)
		task, _, _ := strings.Cut(m.Operation, "/")
		if s.Task != "" && task != string(s.Task) {
			j.brokenItem(RuleOneKey, s.Task, -1, c.host, "the response to key %s named this task, but %s ran for %s", s.Key, c.token, m.Operation)
		}
	}
	if len(marks) > 1 {
		j.brokenItem(RuleTwice, s.Task, -1, c.host, "%s of %s ran %d times, for %s", c.verb, c.token, len(marks), strings.Join(operations, " and "))
	}
}

// truth compares the results of one operation with the marks of its command. An
// agent that died before it ran the command of a resident process may have started
// the process automatically after its return. The process is then in revived, and
// runs as requested.
func (j *judge) truth(s *Submission, a Operation, ran map[command][]Mark, revived map[command]bool) {
	last := j.h.last(s.Task)
	if last == nil {
		return // checked above
	}
	for i := range last.Results {
		r := &last.Results[i]
		if r.Name != a.Process || r.Action != a.Action || !slices.Contains(a.Hosts, r.Host) {
			continue
		}
		verbs := commands[a.Action]
		must := command{a.Token, r.Host, verbs.must}
		var marks []Mark
		for _, v := range verbs.may {
			marks = append(marks, ran[command{a.Token, r.Host, v}]...)
		}
		what := fmt.Sprintf("%s at %s: %s %d %s %q", last.Span, last.Dispatcher, r.State, r.Code, r.Reason, r.Message)
		switch {
		case verbs.must != "" && len(ran[must]) == 0 && !revived[must] && happened(r):
			j.brokenItem(RuleTrue, s.Task, r.Item, r.Host, "%s, but %s of %s never ran", what, verbs.must, a.Token)
		case len(marks) > 0 && ranNothing(r):
			j.brokenItem(RuleTrue, s.Task, r.Item, r.Host, "%s, but %s ran for %s", what, a.Token, marks[0].Operation)
		case len(marks) > 0 && served(r) && !j.h.wiped(r.Host, s.At):
			j.brokenItem(RuleNotLost, s.Task, r.Item, r.Host, "%s is a result of the server, but %s ran for %s and its agent has its data", what, a.Token, marks[0].Operation)
		}
	}
}

// happened reports whether a result means that the command ran.
func happened(r *client.Result) bool { return r.State == procfleet.StateSucceeded }

// ranNothing reports whether a result means that no command ran.
func ranNothing(r *client.Result) bool {
	return r.State == procfleet.StateUnchanged || r.State == procfleet.StateRejected || r.Reason == procfleet.ReasonRefused
}

// finalStates checks the final states of the resident processes.
func (j *judge) finalStates() {
	for _, st := range j.h.FinalStates {
		if st.Unknown != "" {
			j.brokenItem(RuleState, "", -1, st.Host, "final status of %s: %s", st.Process, st.Unknown)
			continue
		}
		last := j.decisive(st.Process, st.Host)
		if last == nil {
			continue
		}
		if j.h.wiped(st.Host, j.tasks[last.task].At) {
			continue
		}
		if runs := leavesRunning(last.result); runs != st.Running {
			j.brokenItem(RuleState, last.task, last.result.Item, st.Host, "%s of %s was the last operation (%s %s), but at %s running is %t",
				last.result.Action, st.Process, last.result.State, last.result.Reason, st.At.Format("15:04:05.000"), st.Running)
		}
	}
}

// leavesRunning reports whether the process runs after an operation that succeeded
// or had nothing to do.
func leavesRunning(r *client.Result) bool {
	ends := r.Action == procfleet.ActionStop || r.Action == procfleet.ActionKill
	return r.Reason == procfleet.ReasonAlreadyRunning || r.Reason == procfleet.ReasonSucceeded && !ends
}

// changes reports whether an action changes the state of a process.
func changes(a procfleet.Action) bool {
	return a != procfleet.ActionStatus && a != procfleet.ActionReload
}

// decision is an operation that had an effect, with its fence.
type decision struct {
	task   procfleet.TaskID
	number procfleet.Number
	result *client.Result
}

// decisive returns the last operation that determines the state of a process, or
// nil.
func (j *judge) decisive(process string, host procfleet.Host) *decision {
	var deeds []decision
	for id := range j.tasks {
		last := j.h.last(id)
		number, err := id.Number()
		if last == nil || err != nil {
			continue
		}
		for i := range last.Results {
			r := &last.Results[i]
			if r.Host == host && r.Name == process && changes(r.Action) {
				deeds = append(deeds, decision{id, number, r})
			}
		}
	}
	slices.SortFunc(deeds, func(a, b decision) int {
		if a.number != b.number {
			return int(b.number - a.number)
		}
		return b.result.Item - a.result.Item
	})
	for i := range deeds {
		switch r := deeds[i].result; {
		case r.Reason == procfleet.ReasonRefused, r.State == procfleet.StateCancelled: // no effect
		case r.State == procfleet.StateSucceeded || r.State == procfleet.StateUnchanged:
			return &deeds[i]
		default:
			return nil // it may have had a part of its effect
		}
	}
	return nil
}
