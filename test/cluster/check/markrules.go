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

// commands are what an action may run, and must have run to have succeeded,
// which is the last one. A stop or kill that succeeded may have found that its
// process had just ended.
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

// marks judges the evidence: what ran, how often, and whether the results know.
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
		for _, a := range s.Asks {
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
		for _, a := range s.Asks {
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

// ran judges the marks of one command on one host.
func (j *judge) ran(c command, marks []Mark, s *Submission) {
	if s == nil {
		j.brokenItem(RuleAsked, "", -1, c.host, "%s of %s ran there, for %s; no submission asked for that", c.verb, c.token, marks[0].Operation)
		return
	}
	if s.Keyless && s.Task == "" {
		j.brokenItem(RuleRefused, "", -1, c.host, "%s of %s ran there, for %s, but submission %s has no task: %v", c.verb, c.token, marks[0].Operation, s.Key, s.Err)
		return
	}
	var operations []string
	for _, m := range marks {
		operations = append(operations, m.Operation)
		task, _, _ := strings.Cut(m.Operation, "/")
		if s.Task != "" && task != string(s.Task) {
			j.brokenItem(RuleOneKey, s.Task, -1, c.host, "key %s was answered with this task, but %s ran for %s", s.Key, c.token, m.Operation)
		}
	}
	if len(marks) > 1 {
		j.brokenItem(RuleTwice, s.Task, -1, c.host, "%s of %s ran %d times, for %s", c.verb, c.token, len(marks), strings.Join(operations, " and "))
	}
}

// truth compares the results of one operation with whether its command ran. An
// agent that died before it ran the command of a resident process, and came
// back, may have found that the process is to be kept alive, and have started
// it for that: then it was revived, and runs as was asked.
func (j *judge) truth(s *Submission, a Ask, ran map[command][]Mark, revived map[command]bool) {
	last := j.h.last(s.Task)
	if last == nil {
		return // told already
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
		what := fmt.Sprintf("%s at %s: %s %d %s %q", last.Span, last.Door, r.State, r.Code, r.Reason, r.Message)
		switch {
		case verbs.must != "" && len(ran[must]) == 0 && !revived[must] && happened(r):
			j.brokenItem(RuleTrue, s.Task, r.Item, r.Host, "%s, but %s of %s never ran", what, verbs.must, a.Token)
		case len(marks) > 0 && didNot(r):
			j.brokenItem(RuleTrue, s.Task, r.Item, r.Host, "%s, but %s ran for %s", what, a.Token, marks[0].Operation)
		case len(marks) > 0 && served(r) && !j.h.wiped(r.Host, s.At):
			j.brokenItem(RuleSilent, s.Task, r.Item, r.Host, "%s is the server's guess, but %s ran for %s and its agent is there", what, a.Token, marks[0].Operation)
		}
	}
}

// happened is whether a result says that the command ran.
func happened(r *client.Result) bool { return r.State == procfleet.StateSucceeded }

// didNot is whether a result says that no command ran.
func didNot(r *client.Result) bool {
	return r.State == procfleet.StateUnchanged || r.State == procfleet.StateRejected || r.Reason == procfleet.ReasonRefused
}

// standings judges how the resident processes stand in the end.
func (j *judge) standings() {
	for _, st := range j.h.Standings {
		if st.Unknown != "" {
			j.brokenItem(RuleStands, "", -1, st.Host, "asked how %s stands when everything had healed: %s", st.Process, st.Unknown)
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
			j.brokenItem(RuleStands, last.task, last.result.Item, st.Host, "%s of %s was the last that happened (%s %s), but at %s running is %t",
				last.result.Action, st.Process, last.result.State, last.result.Reason, st.At.Format("15:04:05.000"), st.Running)
		}
	}
}

// leavesRunning is whether the process runs after an operation that did what
// it was to, or had nothing to do.
func leavesRunning(r *client.Result) bool {
	ends := r.Action == procfleet.ActionStop || r.Action == procfleet.ActionKill
	return r.Reason == procfleet.ReasonAlreadyRunning || r.Reason == procfleet.ReasonSucceeded && !ends
}

// changes is whether an action changes how a process stands.
func changes(a procfleet.Action) bool {
	return a != procfleet.ActionStatus && a != procfleet.ActionReload
}

// decision is an operation that had an effect, with its place in the order.
type decision struct {
	task   procfleet.TaskID
	number procfleet.Number
	result *client.Result
}

// decisive returns the last operation on a process that says how it stands,
// nil if none does.
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
		case r.Reason == procfleet.ReasonRefused: // it had no effect
		case r.State == procfleet.StateSucceeded || r.State == procfleet.StateUnchanged:
			return &deeds[i]
		default:
			return nil // it may have happened, in part
		}
	}
	return nil
}
