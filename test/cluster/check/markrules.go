package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// command is a start command on one host.
type command struct {
	token string
	host  procfleet.Host
}

// marks judges the evidence: what ran, how often, and whether the results know.
func (j *judge) marks(marks []Mark) {
	ran, revived := map[command][]Mark{}, map[command]bool{}
	for _, m := range marks {
		switch c := (command{m.Token, m.Host}); {
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
				if a.Token != "" {
					asked[command{a.Token, h}] = s
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
		if a.token != b.token {
			return strings.Compare(a.token, b.token)
		}
		return strings.Compare(a.host.String(), b.host.String())
	})
	return all
}

// ran judges the marks of one start command on one host.
func (j *judge) ran(c command, marks []Mark, s *Submission) {
	if s == nil {
		j.brokenItem(RuleAsked, "", -1, c.host, "%s ran there, for %s; no submission asked for that", c.token, marks[0].Operation)
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
		j.brokenItem(RuleTwice, s.Task, -1, c.host, "%s ran %d times, for %s", c.token, len(marks), strings.Join(operations, " and "))
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
		c := command{a.Token, r.Host}
		marks := ran[c]
		what := fmt.Sprintf("%s at %s: %s %d %s %q", last.Span, last.Door, r.State, r.Code, r.Reason, r.Message)
		switch {
		case len(marks) == 0 && !revived[c] && happened(r):
			j.brokenItem(RuleTrue, s.Task, r.Item, r.Host, "%s, but %s never ran", what, a.Token)
		case len(marks) > 0 && didNot(r):
			j.brokenItem(RuleTrue, s.Task, r.Item, r.Host, "%s, but %s ran for %s", what, a.Token, marks[0].Operation)
		case len(marks) > 0 && served(r):
			j.brokenItem(RuleSilent, s.Task, r.Item, r.Host, "%s is the server's guess, but %s ran for %s and its agent is there", what, a.Token, marks[0].Operation)
		}
	}
}

// happened is whether a result says that the start command ran.
func happened(r *client.Result) bool { return r.State == procfleet.StateSucceeded }

// didNot is whether a result says that the start command did not run.
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
		if runs := leavesRunning(last.result); runs != st.Running {
			j.brokenItem(RuleStands, last.task, last.result.Item, st.Host, "%s of %s was the last that happened (%s %s), but at %s running is %t",
				last.result.Action, st.Process, last.result.State, last.result.Reason, st.At.Format("15:04:05.000"), st.Running)
		}
	}
}

// leavesRunning is whether the process runs after an operation that did what
// it was to, or had nothing to do.
func leavesRunning(r *client.Result) bool {
	return r.Reason == procfleet.ReasonAlreadyRunning || r.Reason == procfleet.ReasonSucceeded && r.Action != procfleet.ActionStop
}

// deed is an operation that had an effect, with its place in the order.
type deed struct {
	task   procfleet.TaskID
	number procfleet.Number
	result *client.Result
}

// decisive returns the last operation on a process that says how it stands,
// nil if none does.
func (j *judge) decisive(process string, host procfleet.Host) *deed {
	var deeds []deed
	for id := range j.tasks {
		last := j.h.last(id)
		number, err := id.Number()
		if last == nil || err != nil {
			continue
		}
		for i := range last.Results {
			r := &last.Results[i]
			if r.Name == process && r.Host == host && r.Action != procfleet.ActionStatus {
				deeds = append(deeds, deed{id, number, r})
			}
		}
	}
	slices.SortFunc(deeds, func(a, b deed) int {
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
