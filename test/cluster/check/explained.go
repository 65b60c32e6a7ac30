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

// explained checks that the history of each resident process is linearizable: the
// commands in the order of their marks, together with the deaths of the host,
// explain every result. If an operation has no result of its agent, its outcome is
// unknown: its command may or may not have had its effect. The limit is per
// process; explained calls undecided for each process that it could not decide
// within the limit.
func (j *judge) explained(marks []Mark, limit time.Duration, undecided func(process, *processHistory)) {
	processHistories := j.processHistories(marks)
	for _, p := range inPlace(processHistories) {
		s := processHistories[p]
		slices.SortStableFunc(s.operations, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
		switch explain(s.operations, limit) {
		case porcupine.Ok:
		case porcupine.Illegal:
			// The first result that the operations before it cannot explain is the
			// most informative.
			n := sort.Search(len(s.operations), func(n int) bool { return explain(s.operations[:n+1], limit) != porcupine.Ok })
			j.brokenItem(RuleExplained, "", -1, p.host, "%s: no order of these operations explains the last one: %s", p.name, showOperations(s.operations[:n+1]))
		case porcupine.Unknown:
			undecided(p, s)
		}
	}
}

func explain(operations []porcupine.Operation, limit time.Duration) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(processModel, operations, limit)
}

const (
	// explainingTime limits the search for an order of the operations of one
	// process.
	explainingTime = 2 * time.Minute
	// tick is the resolution of the times of marks.
	tick = 20 * time.Millisecond
	// autoTime is the maximum time from the mark of an automatic start to its
	// effect, unless the next command begins before.
	autoTime = 5 * time.Second
	// ever is the end of operations with an unknown outcome.
	ever = 24 * 365 * time.Hour
)

// effect is the effect of an operation on a process.
type effect string

const (
	effectStart  effect = "start"     // stopped before, running after
	effectEnd    effect = "end"       // running before, stopped after
	effectDeath  effect = "death"     // its host ended it, if it ran
	effectGone   effect = "gone"      // not running, for any reason
	effectUp     effect = "seen up"   // running, according to a result
	effectDown   effect = "seen down" // not running, according to a result
	effectReload effect = "reload"    // no effect
)

// modelOp is one operation on a process in the model.
type modelOp struct {
	effect effect
	// mark is the number of its mark among the marks of the process, from 1; 0 if
	// it has none.
	mark int
	// certain states that the operation had its effect. Otherwise it may or may not
	// have had it.
	certain bool
	text    string
}

// condition is the state of the model: whether the process runs, and the number of
// the last mark.
type condition struct {
	running bool
	mark    int
}

// processModel is the sequential specification of a process.
var processModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{condition{running: false}, condition{running: true}} },
	Step: func(state, input, _ any) []any {
		var next []any
		for _, c := range step(state.(condition), input.(modelOp)) {
			next = append(next, c)
		}
		return next
	},
}).ToModel()

// step returns the possible conditions of a process after a deed, or none if the
// modelOp is impossible in c.
func step(c condition, d modelOp) []condition {
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

// follows returns nothing if the deed is impossible. Otherwise it returns the
// condition after the deed and, if the effect is uncertain, the condition before
// it.
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

// processHistory is the known history of one process.
type processHistory struct {
	operations []porcupine.Operation
	marks      int
	auto       int // 1 + index of the last operation if this is an automatic start
	marked     map[procfleet.TaskID]map[Verb]bool
}

func (s *processHistory) add(d modelOp, call, end time.Time) {
	s.operations = append(s.operations, porcupine.Operation{Input: d, Call: call.UnixMicro(), Return: max(end.UnixMicro(), call.UnixMicro())})
}

// showOperations formats the last operations.
func showOperations(operations []porcupine.Operation) string {
	const most = 20
	var parts []string
	for i := range operations {
		o := &operations[i]
		parts = append(parts, fmt.Sprintf("%s [%s–%s]", o.Input.(modelOp).text, moment(o.Call), moment(o.Return)))
	}
	if len(parts) > most {
		parts = append([]string{"…"}, parts[len(parts)-most:]...)
	}
	return strings.Join(parts, "; ")
}

func moment(micro int64) string { return time.UnixMicro(micro).Format(clockLayout) }

// own is the first result of an item that came from an agent, as the test first read it.
type own struct {
	client.Result
	seen Span
}

// processHistories collects the history of each resident process: the marks since the load
// began, the results of agents, and the deaths of hosts.
func (j *judge) processHistories(marks []Mark) map[process]*processHistory {
	processHistories, began := map[process]*processHistory{}, time.Time{}
	results := map[procfleet.TaskID]map[int]own{}
	for _, s := range j.h.Submissions {
		if began.IsZero() || s.At.Before(began) {
			began = s.At
		}
		for _, a := range s.Operations {
			for _, h := range a.Hosts {
				if a.Stays && s.Task != "" {
					processHistories[process{a.Process, h}] = &processHistory{marked: map[procfleet.TaskID]map[Verb]bool{}}
				}
			}
		}
		results[s.Task] = j.own(s)
	}
	for _, m := range marks {
		if s := processHistories[process{m.Process, m.Host}]; s != nil && !m.At.Before(began) {
			s.ran(&m, results)
		}
	}
	for _, s := range j.h.Submissions {
		for _, r := range results[s.Task] {
			if processHistory := processHistories[process{r.Name, r.Host}]; processHistory != nil {
				processHistory.addResult(s, &r)
			}
		}
	}
	for _, d := range j.h.Deaths {
		for p, s := range processHistories {
			if p.host == d.Host && !d.Until.Before(began) {
				s.add(modelOp{effect: effectDeath, certain: true, text: "its host died"}, d.From, d.Until)
			}
		}
	}
	return processHistories
}

// own returns the first result of each item that came from an agent, by item, as the test
// first read it.
func (j *judge) own(s *Submission) map[int]own {
	first := map[int]own{}
	if s.Task == "" || !slices.ContainsFunc(s.Operations, func(a Operation) bool { return a.Stays }) {
		return first
	}
	for _, reading := range j.h.ResultsPolls[s.Task] {
		for i := range reading.Results {
			r := &reading.Results[i]
			if _, known := first[r.Item]; !known && r.State.Final() && !served(r) {
				first[r.Item] = own{*r, reading.Span}
			}
		}
	}
	return first
}

// ran adds the command that wrote the mark m to the history. results are the agents' results
// by task and item; they bound the end of the command.
func (s *processHistory) ran(m *Mark, results map[procfleet.TaskID]map[int]own) {
	if s.auto > 0 {
		last := &s.operations[s.auto-1]
		last.Return = max(last.Call, min(last.Return, m.At.UnixMicro()))
		s.auto = 0
	}
	s.marks++
	d := modelOp{mark: s.marks, text: fmt.Sprintf("%s for %s", m.Verb, m.Operation)}
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

// addResult adds the observation in an agent's result, in addition to the effects of the
// commands that the agent ran.
func (s *processHistory) addResult(sub *Submission, r *own) {
	d := modelOp{certain: true, text: fmt.Sprintf("%s of %s/%d: %s", r.Action, sub.Task, r.Item, r.Reason)}
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
	case leavesRunning(&r.Result) && !ran[VerbStart]: // an automatic start started it
		d.effect = effectUp
	case !leavesRunning(&r.Result) && !ran[VerbStop] && !ran[VerbKill]:
		d.effect = effectGone
	default:
		return
	}
	s.add(d, sub.At, r.seen.Until)
}

// inPlace returns the processes in order.
func inPlace(processHistories map[process]*processHistory) []process {
	all := make([]process, 0, len(processHistories))
	for p := range processHistories {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b process) int {
		return strings.Compare(a.name+" "+a.host.String(), b.name+" "+b.host.String())
	})
	return all
}
