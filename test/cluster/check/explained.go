package check

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// explained judges whether the commands that ran on each resident process, in
// the order of their marks, with the deaths of its host, explain every result:
// whether its history is linearizable. What has no result of its agent has an
// unknown outcome: its command may have had its effect or not. The limit is for
// each process; undecided is called for those that were not decided within it.
func (j *judge) explained(marks []Mark, limit time.Duration, undecided func(process, *story)) {
	stories := j.stories(marks)
	for _, p := range inPlace(stories) {
		s := stories[p]
		slices.SortStableFunc(s.operations, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
		switch explain(s.operations, limit) {
		case porcupine.Ok:
		case porcupine.Illegal:
			// The first that cannot be explained by those before it says most.
			n := sort.Search(len(s.operations), func(n int) bool { return explain(s.operations[:n+1], limit) != porcupine.Ok })
			j.brokenItem(RuleExplained, "", -1, p.host, "%s: no order of these explains the last: %s", p.name, showOperations(s.operations[:n+1]))
		case porcupine.Unknown:
			undecided(p, s)
		}
	}
}

func explain(operations []porcupine.Operation, limit time.Duration) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(processModel, operations, limit)
}

const (
	// explainingTime bounds the search for an order of one process.
	explainingTime = 2 * time.Minute
	// tick is the resolution of the times of marks.
	tick = 20 * time.Millisecond
	// autoTime is how long after its mark an automatic start may take to have
	// its effect, unless the next command begins before.
	autoTime = 5 * time.Second
	// ever is when operations end of which the outcome is unknown.
	ever = 24 * 365 * time.Hour
)

// effect is what an operation did to a process.
type effect string

const (
	effectStart  effect = "start"     // it did not run, and runs
	effectEnd    effect = "end"       // it ran, and does not run
	effectDeath  effect = "death"     // its host ended it, if it ran
	effectGone   effect = "gone"      // it does not run any more, whatever ended it
	effectUp     effect = "seen up"   // it runs, as a result says
	effectDown   effect = "seen down" // it does not run, as a result says
	effectReload effect = "reload"    // none
)

// deed is one operation on a process, as the model takes it.
type deed struct {
	effect effect
	// mark is the number of its mark among those of the process, from 1; 0
	// without one.
	mark int
	// certain is that the effect was had. Without, it may have been or not.
	certain bool
	text    string
}

// condition is the state of the model: how the process stands, and the last mark.
type condition struct {
	running bool
	mark    int
}

// processModel is the sequential specification of a process.
var processModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{condition{running: false}, condition{running: true}} },
	Step: func(state, input, _ any) []any {
		var next []any
		for _, c := range step(state.(condition), input.(deed)) {
			next = append(next, c)
		}
		return next
	},
}).ToModel()

// step returns how a process may stand after a deed; nothing if the deed cannot
// have been done then.
func step(c condition, d deed) []condition {
	if d.mark != 0 {
		if d.mark <= c.mark {
			return nil
		}
		c.mark = d.mark
	}
	up, down := condition{true, c.mark}, condition{false, c.mark}
	switch d.effect {
	case effectStart:
		return follows(!c.running, d.certain, up, down)
	case effectEnd:
		return follows(c.running, d.certain, down, up)
	case effectDeath, effectGone:
		return []condition{down}
	case effectUp:
		return follows(c.running, true, up, up)
	case effectDown:
		return follows(!c.running, true, down, down)
	case effectReload:
		return []condition{c}
	}
	return nil
}

// follows returns nothing if a deed was not possible, and otherwise how the
// process stood after it and, if the effect is not certain, as it stood before.
func follows(possible, certain bool, after, before condition) []condition {
	switch {
	case !possible:
		return nil
	case certain:
		return []condition{after}
	default:
		return []condition{after, before}
	}
}

// story is what is known of one process.
type story struct {
	operations []porcupine.Operation
	marks      int
	auto       int // 1 + the last of operations if it is an automatic start
	marked     map[procfleet.TaskID]map[Verb]bool
}

func (s *story) add(d deed, call, end time.Time) {
	s.operations = append(s.operations, porcupine.Operation{Input: d, Call: call.UnixMicro(), Return: max(end.UnixMicro(), call.UnixMicro())})
}

// showOperations shows the last operations.
func showOperations(operations []porcupine.Operation) string {
	const most = 20
	var parts []string
	for i := range operations {
		o := &operations[i]
		parts = append(parts, fmt.Sprintf("%s [%s–%s]", o.Input.(deed).text, moment(o.Call), moment(o.Return)))
	}
	if len(parts) > most {
		parts = append([]string{"…"}, parts[len(parts)-most:]...)
	}
	return strings.Join(parts, "; ")
}

func moment(micro int64) string { return time.UnixMicro(micro).Format(clockLayout) }

// own is the first reading of an agent's own result of an item.
type own struct {
	client.Result
	seen Span
}

// stories collects what is known of the resident processes: the marks since the
// load began, the results of agents, and the deaths of hosts.
func (j *judge) stories(marks []Mark) map[process]*story {
	stories, began := map[process]*story{}, time.Time{}
	results := map[procfleet.TaskID]map[int]own{}
	for _, s := range j.h.Submissions {
		if began.IsZero() || s.At.Before(began) {
			began = s.At
		}
		for _, a := range s.Asks {
			for _, h := range a.Hosts {
				if a.Stays && s.Task != "" {
					stories[process{a.Process, h}] = &story{marked: map[procfleet.TaskID]map[Verb]bool{}}
				}
			}
		}
		results[s.Task] = j.own(s)
	}
	for _, m := range marks {
		if s := stories[process{m.Process, m.Host}]; s != nil && !m.At.Before(began) {
			s.ran(&m, results)
		}
	}
	for _, s := range j.h.Submissions {
		for _, r := range results[s.Task] {
			if story := stories[process{r.Name, r.Host}]; story != nil {
				story.told(s, &r)
			}
		}
	}
	for _, d := range j.h.Deaths {
		for p, s := range stories {
			if p.host == d.Host && !d.Until.Before(began) {
				s.add(deed{effect: effectDeath, certain: true, text: "its host died"}, d.From, d.Until)
			}
		}
	}
	return stories
}

// own returns the results of the items of a task that their agents made, each
// as it was read first.
func (j *judge) own(s *Submission) map[int]own {
	first := map[int]own{}
	if s.Task == "" || !slices.ContainsFunc(s.Asks, func(a Ask) bool { return a.Stays }) {
		return first
	}
	for _, reading := range j.h.Readings[s.Task] {
		for i := range reading.Results {
			r := &reading.Results[i]
			if _, known := first[r.Item]; !known && r.State.Final() && !served(r) {
				first[r.Item] = own{*r, reading.Span}
			}
		}
	}
	return first
}

// ran adds a command that left its mark.
func (s *story) ran(m *Mark, results map[procfleet.TaskID]map[int]own) {
	if s.auto > 0 {
		last := &s.operations[s.auto-1]
		last.Return = max(last.Call, min(last.Return, m.At.UnixMicro()))
		s.auto = 0
	}
	s.marks++
	d := deed{mark: s.marks, text: fmt.Sprintf("%s for %s", m.Verb, m.Operation)}
	end := m.At.Add(ever)
	if m.Operation == automatic {
		d.certain, end = true, m.At.Add(autoTime)
	} else if f, ok := m.fence(); ok {
		if s.marked[m.task()] == nil {
			s.marked[m.task()] = map[Verb]bool{}
		}
		s.marked[m.task()][m.Verb] = true
		if r, known := results[m.task()][f.item]; known {
			end = r.seen.Until
			d.certain = r.State == procfleet.StateSucceeded
		}
	}
	switch m.Verb {
	case VerbStart:
		d.effect = effectStart
	case VerbStop, VerbKill:
		d.effect = effectEnd
	case VerbReload:
		d.effect = effectReload
	}
	s.add(d, m.At.Add(-tick), end)
	if m.Operation == automatic {
		s.auto = len(s.operations)
	}
}

// told adds what an agent's result says, beside the effect of the commands that
// it ran.
func (s *story) told(sub *Submission, r *own) {
	d := deed{certain: true, text: fmt.Sprintf("%s of %s/%d: %s", r.Action, sub.Task, r.Item, r.Reason)}
	ran := s.marked[sub.Task]
	switch {
	case r.Action == procfleet.ActionStatus:
		if r.Status == nil {
			return
		}
		d.effect = effectDown
		if r.Status.Running {
			d.effect = effectUp
		}
	case r.Reason == procfleet.ReasonAlreadyRunning:
		d.effect = effectUp
	case r.Reason == procfleet.ReasonNotRunning:
		d.effect = effectDown
	case r.State != procfleet.StateSucceeded || r.Action == procfleet.ActionReload:
		return
	case leavesRunning(&r.Result) && !ran[VerbStart]: // an automatic start did it
		d.effect = effectUp
	case !leavesRunning(&r.Result) && !ran[VerbStop] && !ran[VerbKill]:
		d.effect = effectGone
	default:
		return
	}
	s.add(d, sub.At, r.seen.Until)
}

// inPlace returns processes in order.
func inPlace(stories map[process]*story) []process {
	all := make([]process, 0, len(stories))
	for p := range stories {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b process) int {
		return strings.Compare(a.name+" "+a.host.String(), b.name+" "+b.host.String())
	})
	return all
}
