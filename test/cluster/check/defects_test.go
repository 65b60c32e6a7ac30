package check

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// world is what was seen of a fleet in which nothing is wrong, as seconds of a
// clock: in second 1 a start of a program on two hosts was asked for, in second 2 a
// resident process was started on one of them, and in second 3 stopped.
type world struct {
	History
	marks []Mark
}

var (
	one, two = mustHost("0:10.0.0.1"), mustHost("1:10.0.0.2")
	nowhere  = mustHost("0:10.0.0.99")

	starting = procfleet.Number(1_000_000).TaskID()
	bringing = procfleet.Number(2_000_000).TaskID()
	stopping = procfleet.Number(3_000_000).TaskID()
)

func mustHost(text string) procfleet.Host {
	h, err := procfleet.ParseHost(text)
	if err != nil {
		panic(err)
	}
	return h
}

// at is a moment that took no time.
func at(second float64) Span {
	moment := time.UnixMicro(int64(second * 1e6)).UTC()
	return Span{moment, moment}
}

func newWorld() *world {
	w := &world{History: History{Run: "run", Looks: map[procfleet.TaskID][]Look{}, Readings: map[procfleet.TaskID][]Reading{}}}
	w.accepted(1, starting, Ask{Action: procfleet.ActionStart, Process: "once", Token: "run-1.0", Hosts: []procfleet.Host{one, two}})
	w.accepted(2, bringing, Ask{Action: procfleet.ActionStart, Process: "daemon", Stays: true, Token: "run-2.0", Hosts: []procfleet.Host{one}})
	w.accepted(3, stopping, Ask{Action: procfleet.ActionStop, Process: "daemon", Stays: true, Hosts: []procfleet.Host{one}})
	w.marks = []Mark{
		{one, "run-1.0", string(starting) + "/0"},
		{two, "run-1.0", string(starting) + "/1"},
		{one, "run-2.0", string(bringing) + "/0"},
		{one, "run-2.0", automatic},
		{one, "earlier-1.0", "GSETASK:19700101000000:1/0"},
	}
	w.Standings = []Standing{{Process: "daemon", Host: one, Running: false, At: at(20).From}}
	w.Tasks = append(w.Tasks, client.Task{ID: "GSETASK:19700101000000:1", Business: "earlier", State: procfleet.TaskFinished})
	return w
}

// accepted adds a task that was accepted, was seen to run, and succeeded.
func (w *world) accepted(second float64, id procfleet.TaskID, a Ask) {
	key := "key-" + string(id)
	w.Submissions = append(w.Submissions, &Submission{Key: key, Asks: []Ask{a}, Task: id})
	w.Answers = append(w.Answers,
		Answer{Span: at(second), Key: key, Door: "d1", Status: 503, Text: "busy"},
		Answer{Span: at(second + 0.1), Key: key, Door: "d1", Status: 201, Task: id},
		Answer{Span: at(second + 0.2), Key: key, Door: "d2", Status: 201, Task: id})
	n := len(a.Hosts)
	w.Looks[id] = []Look{
		look(second+0.3, id, procfleet.TaskAccepted, n, procfleet.Counts{procfleet.StatePending: n}),
		look(second+0.5, id, procfleet.TaskRunning, n, procfleet.Counts{procfleet.StateDelivered: n}),
		look(second+0.7, id, procfleet.TaskFinished, n, procfleet.Counts{procfleet.StateSucceeded: n}),
	}
	open, ended := Reading{Span: at(second + 0.4), Door: "d1"}, Reading{Span: at(second + 0.8), Door: "d2", Last: true}
	for i, h := range a.Hosts {
		r := client.Result{Item: i, Host: h, Name: a.Process, Action: a.Action, State: procfleet.StateDelivered, Code: procfleet.CodeRunning}
		open.Results = append(open.Results, r)
		r.State, r.Code, r.Reason, r.AcceptedAt = procfleet.StateSucceeded, procfleet.CodeSuccess, procfleet.ReasonSucceeded, at(second).From
		ended.Results = append(ended.Results, r)
	}
	w.Readings[id] = []Reading{open, ended}
	w.Tasks = append(w.Tasks, client.Task{ID: id, Business: "run", State: procfleet.TaskFinished})
}

func look(second float64, id procfleet.TaskID, state procfleet.TaskState, items int, counts procfleet.Counts) Look {
	return Look{Span: at(second), Door: "d1", Task: client.Task{ID: id, State: state, Items: items, Counts: counts}}
}

// again adds a look and a reading after all others, both of which edit has
// changed.
func (w *world) again(second float64, id procfleet.TaskID, edit func(*Look, []client.Result)) {
	looks, readings := w.Looks[id], w.Readings[id]
	l, r := looks[len(looks)-1], readings[len(readings)-1]
	l.Span, l.Task.Counts = at(second), maps.Clone(l.Task.Counts)
	r.Span, r.Results = at(second+0.1), slices.Clone(r.Results)
	edit(&l, r.Results)
	w.Looks[id], w.Readings[id] = append(looks, l), append(readings, r)
}

// outcome makes a result another one.
func outcome(r *client.Result, state procfleet.State, code procfleet.Code, reason procfleet.Reason) {
	r.State, r.Code, r.Reason = state, code, reason
}

// guess makes a result one that the server made.
func guess(r *client.Result, state procfleet.State, code procfleet.Code, reason procfleet.Reason) {
	outcome(r, state, code, reason)
	r.AcceptedAt, r.StartedAt = time.Time{}, time.Time{}
}

// end changes the last reading of a task and the look at its counters.
func (w *world) end(id procfleet.TaskID, item int, edit func(*client.Result)) {
	readings := w.Readings[id]
	results := readings[len(readings)-1].Results
	edit(&results[item])
	counts := procfleet.Counts{}
	for i := range results {
		counts[results[i].State]++
	}
	looks := w.Looks[id]
	looks[len(looks)-1].Task.Counts = counts
}

// drop takes the marks of a token on a host away.
func (w *world) drop(token string, host procfleet.Host) {
	w.marks = slices.DeleteFunc(w.marks, func(m Mark) bool { return m.Token == token && m.Host == host })
}

func reopened(l *Look, results []client.Result) {
	l.Task.State, l.Task.Counts = procfleet.TaskRunning, procfleet.Counts{procfleet.StateDelivered: len(results)}
	for i := range results {
		outcome(&results[i], procfleet.StateDelivered, procfleet.CodeRunning, "")
	}
}

func unreachable(r *client.Result) {
	guess(r, procfleet.StateUnreachable, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable)
}

func timedOut(r *client.Result) {
	guess(r, procfleet.StateTimedOut, procfleet.CodeFailed, procfleet.ReasonTimedOut)
}

// defects are what may be wrong, with the rule that finds it.
var defects = []struct {
	name string
	rule Rule
	do   func(w *world)
}{
	{"a sound submission is refused", RuleAnswer, func(w *world) {
		w.Answers = append(w.Answers, Answer{Span: at(4), Key: "key", Door: "d1", Status: 500, Text: "oops"})
	}},
	{"a submission never comes to an answer", RuleAnswer, func(w *world) {
		w.Submissions = append(w.Submissions, &Submission{Key: "key", Err: client.ErrUnreachable})
	}},
	{"an accepted task is gone", RuleKept, func(w *world) {
		w.Looks[starting] = append(w.Looks[starting], Look{Span: at(9), Door: "d1", Missing: true})
	}},
	{"an accepted task is gone during a fail-over", RuleKept, func(w *world) {
		w.Failovers = []Span{{at(0).From, at(30).From}}
		w.Looks[starting] = append([]Look{{Span: at(1.3), Door: "d1", Missing: true}}, w.Looks[starting]...)
	}},
	{"an accepted task is rejected", RuleKept, func(w *world) {
		w.again(9, starting, func(l *Look, _ []client.Result) { l.Task.State = procfleet.TaskRejected })
	}},
	{"a key makes two tasks", RuleOneKey, func(w *world) { w.Answers[2].Task = "GSETASK:19700101000009:0" }},
	{"two keys make one task", RuleOneKey, func(w *world) { w.Answers[4].Task = starting }},
	{"a second task does the work again", RuleOneKey, func(w *world) { w.marks[0].Operation = "GSETASK:19700101000009:0/0" }},
	{"there is a task that nobody was told of", RuleOneKey, func(w *world) {
		w.Tasks = append(w.Tasks, client.Task{ID: "GSETASK:19700101000009:0", Business: "run", State: procfleet.TaskRunning})
	}},
	{"a task does not end", RuleEnds, func(w *world) { w.Looks[starting] = w.Looks[starting][:2] }},
	{"a task has one item less", RuleItems, func(w *world) { w.Looks[starting][0].Task.Items = 1 }},
	{"counters do not add up for a moment", RuleSum, func(w *world) { w.Looks[starting][1].Task.Counts[procfleet.StateDelivered] = 1 }},
	{"a finished task has an open item", RuleSum, func(w *world) {
		w.Looks[starting][2].Task.Counts = procfleet.Counts{procfleet.StateDelivered: 1, procfleet.StateSucceeded: 1}
	}},
	{"counters are not those of the results", RuleSum, func(w *world) {
		w.Looks[starting][2].Task.Counts = procfleet.Counts{procfleet.StateFailed: 2}
	}},
	{"a finished task runs again", RuleOnward, func(w *world) {
		w.again(9, starting, reopened)
		w.again(10, starting, func(l *Look, results []client.Result) {
			*l = w.Looks[starting][2]
			copy(results, w.Readings[starting][1].Results)
		})
	}},
	{"what was long finished runs again after a fail-over", RuleOnward, func(w *world) {
		w.again(19, starting, reopened)
		w.Failovers = []Span{{at(15).From, at(30).From}}
	}},
	{"a delivered item is pending again", RuleOnward, func(w *world) {
		w.Looks[starting][1], w.Looks[starting][0] = w.Looks[starting][0], w.Looks[starting][1]
	}},
	{"an item is missing", RuleResult, func(w *world) { w.Readings[starting][1].Results = w.Readings[starting][1].Results[:1] }},
	{"an item is listed twice", RuleResult, func(w *world) { w.Readings[starting][1].Results[1] = w.Readings[starting][1].Results[0] }},
	{"an item of a finished task is open", RuleResult, func(w *world) {
		outcome(&w.Readings[starting][1].Results[0], procfleet.StatePending, procfleet.CodeRunning, "")
	}},
	{"code and state do not belong together", RuleResult, func(w *world) { w.Readings[starting][1].Results[0].Code = procfleet.CodeFailed }},
	{"an open item has a reason", RuleResult, func(w *world) { w.Readings[starting][0].Results[0].Reason = procfleet.ReasonSucceeded }},
	{"results cannot be read in the end", RuleResult, func(w *world) { w.Readings[starting][1].Last = false }},
	{"the agent's word changes", RuleFinal, func(w *world) {
		w.again(9, starting, func(_ *Look, results []client.Result) {
			outcome(&results[0], procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonCommandFailed)
		})
	}},
	{"the agent's word changes during a fail-over", RuleFinal, func(w *world) {
		w.Failovers = []Span{{at(0).From, at(30).From}}
		w.again(9, starting, func(_ *Look, results []client.Result) {
			outcome(&results[0], procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonCommandFailed)
		})
	}},
	{"a final result is open again", RuleFinal, func(w *world) { w.again(9, starting, reopened) }},
	{"a guess replaces the agent's word", RuleFinal, func(w *world) {
		w.again(9, starting, func(_ *Look, results []client.Result) { timedOut(&results[0]) })
	}},
	{"a guess replaces another one", RuleFinal, func(w *world) {
		w.end(starting, 0, unreachable)
		w.again(9, starting, func(_ *Look, results []client.Result) { timedOut(&results[0]) })
	}},
	{"the agent's word replaces a guess and is not called late", RuleFinal, func(w *world) {
		w.end(starting, 0, unreachable)
		w.again(9, starting, func(_ *Look, results []client.Result) {
			outcome(&results[0], procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonCommandFailed)
			results[0].AcceptedAt = at(1).From
		})
	}},
	{"a start command ran twice", RuleTwice, func(w *world) { w.marks = append(w.marks, w.marks[1]) }},
	{"a resident's start command ran twice for one task", RuleTwice, func(w *world) { w.marks = append(w.marks, w.marks[2]) }},
	{"a command ran on a host that was not asked for", RuleAsked, func(w *world) {
		w.marks = append(w.marks, Mark{nowhere, "run-1.0", string(starting) + "/0"})
	}},
	{"a command ran that nobody asked for", RuleAsked, func(w *world) {
		w.marks = append(w.marks, Mark{one, "run-9.0", string(starting) + "/0"})
	}},
	{"a result is of a host that was not asked for", RuleAsked, func(w *world) { w.Readings[starting][1].Results[1].Host = nowhere }},
	{"a start succeeded whose command never ran", RuleTrue, func(w *world) { w.drop("run-1.0", two) }},
	{"a start was refused whose command ran", RuleTrue, func(w *world) {
		w.end(starting, 1, func(r *client.Result) {
			outcome(r, procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonRefused)
		})
	}},
	{"it was running already, but its command ran", RuleTrue, func(w *world) {
		w.end(starting, 1, func(r *client.Result) {
			outcome(r, procfleet.StateUnchanged, procfleet.CodeAlreadyRunning, procfleet.ReasonAlreadyRunning)
		})
	}},
	{"a command ran and its result is missing", RuleSilent, func(w *world) { w.end(starting, 1, timedOut) }},
	{"the agent's word was seen and lost", RuleSilent, func(w *world) {
		w.Failovers = []Span{{at(0).From, at(30).From}}
		w.again(9, starting, func(l *Look, results []client.Result) {
			timedOut(&results[0])
			l.Task.Counts = procfleet.Counts{procfleet.StateTimedOut: 1, procfleet.StateSucceeded: 1}
		})
		w.drop("run-1.0", one)
	}},
	{"a process runs that was stopped", RuleStands, func(w *world) { w.Standings[0].Running = true }},
	{"a process does not run that was started last", RuleStands, func(w *world) {
		w.end(stopping, 0, func(r *client.Result) {
			outcome(r, procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonRefused)
		})
	}},
	{"an agent says nothing in the end", RuleStands, func(w *world) { w.Standings[0].Unknown = "unreachable" }},
}

func TestEveryDefectIsFound(t *testing.T) {
	t.Parallel()
	for _, d := range defects {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			d.do(w)
			found := w.Violations(w.marks)
			if !slices.ContainsFunc(found, func(v Violation) bool { return v.Rule == d.rule }) {
				t.Errorf("nothing broke the rule %q; found was %v", d.rule, found)
			}
			for _, v := range found {
				if v.Text == "" || !strings.Contains(v.String(), string(v.Rule)) {
					t.Errorf("%q does not say what was seen", v)
				}
			}
		})
	}
}

// TestEveryRuleIsBrokenBySomeDefect keeps the table complete.
func TestEveryRuleIsBrokenBySomeDefect(t *testing.T) {
	t.Parallel()
	broken := map[Rule]bool{}
	for _, d := range defects {
		broken[d.rule] = true
	}
	for _, r := range []Rule{
		RuleAnswer, RuleKept, RuleOneKey, RuleEnds, RuleItems, RuleSum, RuleOnward, RuleResult,
		RuleFinal, RuleTwice, RuleAsked, RuleTrue, RuleSilent, RuleStands,
	} {
		if !broken[r] {
			t.Errorf("no defect breaks the rule %q", r)
		}
	}
}

// TestWhatMayHappenIsNotFound: what the documents allow breaks no rule.
func TestWhatMayHappenIsNotFound(t *testing.T) {
	t.Parallel()
	for name, allow := range map[string]func(w *world){
		"nothing is wrong": func(*world) {},
		"a task was taken back and the next attempt made another": func(w *world) {
			w.Tasks = append(w.Tasks, client.Task{ID: "GSETASK:19700101000009:0", Business: "run", State: procfleet.TaskRejected})
		},
		"a host had no agent": func(w *world) {
			w.end(starting, 1, unreachable)
			w.drop("run-1.0", two)
		},
		"a host's own word came late": func(w *world) {
			agents := w.Readings[starting][1].Results[1]
			w.end(starting, 1, timedOut)
			w.again(9, starting, func(l *Look, results []client.Result) {
				results[1], results[1].Late = agents, true
				l.Task.Counts = procfleet.Counts{procfleet.StateSucceeded: 2}
			})
		},
		"a start failed though its command ran": func(w *world) {
			w.end(starting, 1, func(r *client.Result) {
				outcome(r, procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonCommandFailed)
			})
		},
		"a start was superseded": func(w *world) {
			w.end(starting, 1, func(r *client.Result) {
				guess(r, procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonRefused)
			})
			w.drop("run-1.0", two)
		},
		"a resident process was started to keep it alive, not by its command": func(w *world) {
			w.marks = slices.DeleteFunc(w.marks, func(m Mark) bool { return m.Token == "run-2.0" && m.Operation != automatic })
		},
		"an agent's word is sent again with better times": func(w *world) {
			w.again(9, starting, func(_ *Look, results []client.Result) { results[0].AcceptedAt = at(1.5).From })
		},
		"a stop of which nothing is known leaves the process as it likes": func(w *world) {
			w.end(stopping, 0, timedOut)
		},
		"a fail-over takes back what was just seen, and it comes again": func(w *world) {
			w.Failovers = []Span{{at(1).From, at(30).From}}
			w.again(9, starting, reopened)
			w.again(10, starting, func(l *Look, results []client.Result) {
				*l = w.Looks[starting][2]
				l.Span = at(10)
				copy(results, w.Readings[starting][1].Results)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			allow(w)
			for _, v := range w.Violations(w.marks) {
				t.Error(v)
			}
		})
	}
}
