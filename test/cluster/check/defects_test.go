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
// resident process was started on one of them, which lost its power and came
// back, and in second 3 the process was stopped. In second 4 its status was
// asked for, without a key.
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
	asking   = procfleet.Number(4_000_000).TaskID()
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
	w.accepted(3, stopping, Ask{Action: procfleet.ActionStop, Process: "daemon", Stays: true, Token: "run-3.0", Hosts: []procfleet.Host{one}})
	w.accepted(4, asking, Ask{Action: procfleet.ActionStatus, Process: "daemon", Stays: true, Hosts: []procfleet.Host{one}})
	w.withoutKey(asking)
	w.ends(asking, 0, func(r *client.Result) { r.Status = &procfleet.ProcessStatus{Running: false} })
	w.marks = []Mark{
		ran(0.1, one, "earlier-1.0", "once", VerbStart, "GSETASK:19700101000000:1/0"),
		ran(1.1, one, "run-1.0", "once", VerbStart, string(starting)+"/0"),
		ran(1.1, two, "run-1.0", "once", VerbStart, string(starting)+"/1"),
		ran(2.1, one, "run-2.0", "daemon", VerbStart, string(bringing)+"/0"),
		ran(2.95, one, "run-2.0", "daemon", VerbStart, automatic),
		ran(3.2, one, "run-3.0", "daemon", VerbStop, string(stopping)+"/0"),
	}
	w.Deaths = []Loss{{at(2.9), one}}
	w.Standings = []Standing{{Process: "daemon", Host: one, Running: false, At: at(20).From}}
	w.Tasks = append(w.Tasks, client.Task{ID: "GSETASK:19700101000000:1", Business: "earlier", State: procfleet.TaskFinished})
	return w
}

// ran is a mark.
func ran(second float64, host procfleet.Host, token, process string, verb Verb, operation string) Mark {
	return Mark{Host: host, Token: token, Process: process, Verb: verb, Operation: operation, At: at(second).From}
}

// withoutKey has the submission of a task sent once and without a key.
func (w *world) withoutKey(id procfleet.TaskID) {
	s := w.byTask()[id]
	s.Keyless = true
	w.Answers = slices.DeleteFunc(w.Answers, func(a Answer) bool { return a.Key == s.Key && (a.Task == "" || a.Door == "d2") })
	for i := range w.Tasks {
		if w.Tasks[i].ID == id {
			w.Tasks[i].Business = s.Key
		}
	}
}

// refused has the keyless submission come to no task: its answer is gone, and
// what it left behind stays.
func (w *world) refused(err error) *Submission {
	s := w.byTask()[asking]
	s.Task, s.Err = "", err
	w.Answers = slices.DeleteFunc(w.Answers, func(a Answer) bool { return a.Key == s.Key })
	return s
}

// ends changes the results of a task wherever they are final.
func (w *world) ends(id procfleet.TaskID, item int, edit func(*client.Result)) {
	for _, reading := range w.Readings[id] {
		if r := &reading.Results[item]; r.State.Final() {
			edit(r)
		}
	}
}

// accepted adds a task that was accepted, was seen to run, and succeeded.
func (w *world) accepted(second float64, id procfleet.TaskID, a Ask) {
	key := "key-" + string(id)
	w.Submissions = append(w.Submissions, &Submission{
		Key: key, Asks: []Ask{a}, Task: id, At: at(second).From, Timeout: time.Minute, Callback: true,
	})
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
	end := Notice{Event: string(id) + "/finished", Task: id, State: procfleet.TaskFinished, Counts: procfleet.Counts{procfleet.StateSucceeded: n}}
	w.Events = append(w.Events, end)
	end.At, end.Key, end.Header, end.Status = at(second+0.9).From, key, end.Event, 503
	w.Callbacks = append(w.Callbacks, end)
	end.Status = 204
	w.Callbacks = append(w.Callbacks, end)
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

// drop removes the marks of a token on a host.
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
	{"a second task does the work again", RuleOneKey, func(w *world) { w.marks[1].Operation = "GSETASK:19700101000009:0/0" }},
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
	{"a resident's start command ran twice for one task", RuleTwice, func(w *world) { w.marks = append(w.marks, w.marks[3]) }},
	{"a stop command ran twice", RuleTwice, func(w *world) { w.marks = append(w.marks, w.marks[5]) }},
	{"a command ran on a host that was not asked for", RuleAsked, func(w *world) {
		w.marks = append(w.marks, ran(1.1, nowhere, "run-1.0", "once", VerbStart, string(starting)+"/0"))
	}},
	{"a command ran that nobody asked for", RuleAsked, func(w *world) {
		w.marks = append(w.marks, ran(1.1, one, "run-9.0", "once", VerbStart, string(starting)+"/0"))
	}},
	{"a stop killed", RuleAsked, func(w *world) { w.marks[5].Verb = VerbKill }},
	{"a command ran for no operation", RuleAsked, func(w *world) { w.marks[1].Operation = "by hand" }},
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
	{"a command ran after its agent lost its data, and its result is missing", RuleSilent, func(w *world) {
		w.end(starting, 1, timedOut)
		w.Wipes = []Loss{{at(0.5), two}, {at(5), one}}
	}},
	{"a process does not stand as it was left after its agent lost its data", RuleStands, func(w *world) {
		w.Standings[0].Running = true
		w.Wipes = []Loss{{at(2.9), one}}
	}},
	{"a process runs that was stopped", RuleStands, func(w *world) { w.Standings[0].Running = true }},
	{"a process does not run that was started last", RuleStands, func(w *world) {
		w.end(stopping, 0, func(r *client.Result) {
			outcome(r, procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonRefused)
		})
	}},
	{"an agent says nothing in the end", RuleStands, func(w *world) { w.Standings[0].Unknown = "unreachable" }},

	{"a request without a key makes two tasks", RuleOnce, func(w *world) {
		w.Tasks = append(w.Tasks, client.Task{ID: "GSETASK:19700101000009:0", Business: w.byTask()[asking].Key, State: procfleet.TaskRunning})
	}},
	{"a request without a key was refused and is a task", RuleRefused, func(w *world) { w.refused(client.ErrUnavailable) }},
	{"a request without a key was refused and its command ran", RuleRefused, func(w *world) {
		s := w.refused(client.ErrUnavailable)
		s.Asks[0].Action, s.Asks[0].Token = procfleet.ActionStart, "run-4.0"
		w.Tasks = w.Tasks[:len(w.Tasks)-2]
		w.marks = append(w.marks, ran(4.1, one, "run-4.0", "daemon", VerbStart, string(asking)+"/0"))
	}},
	{"a request without a key has an unknown outcome, no task, and its command ran", RuleRefused, func(w *world) {
		s := w.refused(client.ErrUnknown)
		s.Asks[0].Action, s.Asks[0].Token = procfleet.ActionStart, "run-4.0"
		w.Tasks = w.Tasks[:len(w.Tasks)-2]
		w.marks = append(w.marks, ran(4.1, one, "run-4.0", "daemon", VerbStart, string(asking)+"/0"))
	}},
	{"a request without a key was accepted, and the task is gone", RuleKept, func(w *world) {
		s := w.byTask()[asking]
		s.Task, s.Err = "", client.ErrUnknown
	}},
	{"an answer does not know and names no task", RuleNamed, func(w *world) {
		w.Answers = append(w.Answers, Answer{Span: at(4), Key: "key", Door: "d1", Status: 503, Code: codeUnknown, Text: "unknown"})
	}},
	{"a task is open long after its deadline", RuleInTime, func(w *world) {
		late := w.Looks[starting][2]
		w.Looks[starting][1].Span = at(107)
		late.Span = at(108)
		w.Looks[starting][2] = late
	}},
	{"a task is open long after its deadline and a fail-over before it", RuleInTime, func(w *world) {
		w.Failovers = []Span{{at(20).From, at(50).From}}
		w.Looks[starting][1].Span, w.Looks[starting][2].Span = at(107), at(108)
	}},
	{"an end has no event", RuleNotified, func(w *world) { w.Events = w.Events[1:] }},
	{"an end has no callback", RuleNotified, func(w *world) { w.Callbacks = w.Callbacks[2:] }},
	{"a callback that failed is not repeated", RuleNotified, func(w *world) { w.Callbacks = slices.Delete(w.Callbacks, 1, 2) }},
	{"an event has another id", RuleEventID, func(w *world) { w.Events[0].Event = "1" }},
	{"a callback has another id each time", RuleEventID, func(w *world) { w.Callbacks[1].Event, w.Callbacks[1].Header = "2", "2" }},
	{"a callback has another key than its event", RuleEventID, func(w *world) { w.Callbacks[1].Header = "2" }},
	{"a callback is that of another task", RuleEventID, func(w *world) { w.Callbacks[0].Key = w.Callbacks[2].Key }},
	{"an event says that items are open", RuleEventID, func(w *world) { w.Events[0].Counts = procfleet.Counts{procfleet.StateDelivered: 2} }},
	{"an event leaves out items", RuleEventID, func(w *world) { w.Events[0].Counts = procfleet.Counts{procfleet.StateSucceeded: 1} }},
	{"an older command runs after a newer one", RuleOrder, func(w *world) { w.marks[3], w.marks[5] = w.marks[5], w.marks[3] }},
	{"a command runs after its deadline", RuleExpired, func(w *world) { w.marks[1].At = at(70).From }},

	{"a process is started beside itself", RuleExplained, func(w *world) { w.Deaths = nil }},
	{"a process is stopped that does not run", RuleExplained, func(w *world) {
		w.marks = slices.Delete(w.marks, 4, 5)
	}},
	{"a status says that a process runs which was stopped", RuleExplained, func(w *world) {
		w.ends(asking, 0, func(r *client.Result) { r.Status.Running = true })
	}},
	{"a stop finds nothing to stop though the process runs", RuleExplained, func(w *world) {
		w.ends(stopping, 0, func(r *client.Result) {
			outcome(r, procfleet.StateUnchanged, procfleet.CodeNotRunning, procfleet.ReasonNotRunning)
		})
		w.drop("run-3.0", one)
		w.marks, w.Deaths = slices.Delete(w.marks, 4, 5), nil
	}},
	{"a start finds a process that does not run", RuleExplained, func(w *world) {
		w.Deaths = append(w.Deaths, Loss{at(1.9), one})
		w.ends(bringing, 0, func(r *client.Result) {
			outcome(r, procfleet.StateUnchanged, procfleet.CodeAlreadyRunning, procfleet.ReasonAlreadyRunning)
		})
		w.drop("run-2.0", one)
	}},
	{"of two commands on a process the one that came first is the last in effect", RuleExplained, func(w *world) {
		w.ends(asking, 0, func(r *client.Result) { r.Status.Running = true })
		w.ends(stopping, 0, timedOut)
		w.Deaths = append(w.Deaths, Loss{at(3.5), one})
	}},
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
func TestExplainedFindsWhatViolationsFind(t *testing.T) {
	t.Parallel()
	for _, d := range defects {
		w := newWorld()
		d.do(w)
		found, undecided := w.Explained(w.marks, time.Minute)
		if is := len(found) > 0; undecided != 0 || d.rule == RuleExplained && !is {
			t.Errorf("%s: found %v, %d undecided", d.name, found, undecided)
		}
		for _, v := range found {
			if v.Rule != RuleExplained {
				t.Errorf("%s: %s is of another rule", d.name, v)
			}
		}
	}
	w := newWorld()
	if found, undecided := w.Explained(w.marks, 0); len(found) > 0 || undecided > 0 {
		t.Errorf("of a sound history: found %v, %d undecided", found, undecided)
	}
}

func TestEveryRuleIsBrokenBySomeDefect(t *testing.T) {
	t.Parallel()
	broken := map[Rule]bool{}
	for _, d := range defects {
		broken[d.rule] = true
	}
	for _, r := range rules {
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
		"a host's own word came after a refusal of the whole command": func(w *world) {
			agents := w.Readings[starting][1].Results[1]
			w.end(starting, 1, func(r *client.Result) {
				guess(r, procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonRefused)
			})
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
			w.ends(stopping, 0, timedOut)
			w.end(stopping, 0, timedOut)
			w.drop("run-3.0", one)
			w.ends(asking, 0, func(r *client.Result) { r.Status.Running = true })
		},
		"a stop failed and the process runs": func(w *world) {
			w.end(stopping, 0, func(r *client.Result) {
				outcome(r, procfleet.StateFailed, procfleet.CodeCheckFailed, procfleet.ReasonCheckFailed)
			})
			w.ends(asking, 0, func(r *client.Result) { r.Status.Running = true })
		},
		"a stop found that the process had just ended": func(w *world) {
			w.drop("run-3.0", one)
			w.Deaths = append(w.Deaths, Loss{at(3.1), one})
		},
		"a process that is reloaded runs on": func(w *world) {
			s := w.byTask()[stopping]
			s.Asks[0].Action = procfleet.ActionReload
			for _, reading := range w.Readings[stopping] {
				reading.Results[0].Action = procfleet.ActionReload
			}
			w.marks[5].Verb = VerbReload
			w.ends(asking, 0, func(r *client.Result) { r.Status.Running = true })
			w.Standings[0].Running = true
		},
		"a process that is restarted is stopped and started": func(w *world) {
			s := w.byTask()[stopping]
			s.Asks[0].Action = procfleet.ActionRestart
			for _, reading := range w.Readings[stopping] {
				reading.Results[0].Action = procfleet.ActionRestart
			}
			w.marks = append(w.marks, ran(3.3, one, "run-3.0", "daemon", VerbStart, string(stopping)+"/0"))
			w.ends(asking, 0, func(r *client.Result) { r.Status.Running = true })
			w.Standings[0].Running = true
		},
		"an agent lost its data with a result": func(w *world) {
			w.end(starting, 1, timedOut)
			w.Wipes = []Loss{{at(1.5), two}}
		},
		"an agent lost its data and does not keep a process alive": func(w *world) {
			w.ends(stopping, 0, func(r *client.Result) {
				outcome(r, procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonRefused)
			})
			w.end(stopping, 0, func(*client.Result) {})
			w.drop("run-3.0", one)
			w.Deaths = append(w.Deaths, Loss{at(3.5), one})
			w.Wipes = []Loss{{at(3.5), one}}
		},
		"a request without a key was refused": func(w *world) {
			w.refused(client.ErrUnavailable)
			w.Tasks = slices.DeleteFunc(w.Tasks, func(t client.Task) bool { return t.ID == asking })
		},
		"a request without a key has an unknown outcome and no task": func(w *world) {
			w.refused(client.ErrUnknown)
			w.Tasks = slices.DeleteFunc(w.Tasks, func(t client.Task) bool { return t.ID == asking })
		},
		"an answer does not know and names the task": func(w *world) {
			w.Answers = append(w.Answers, Answer{Span: at(1), Key: w.Answers[0].Key, Door: "d1", Status: 503, Code: codeUnknown, Task: starting})
		},
		"a fail-over delays an end": func(w *world) {
			w.Failovers = []Span{{at(50).From, at(100).From}}
			w.Looks[starting][1].Span, w.Looks[starting][2].Span = at(140), at(141)
		},
		"a callback comes twice": func(w *world) { w.Callbacks = append(w.Callbacks, w.Callbacks...) },
		"a task that was taken back is notified as well": func(w *world) {
			n := w.Callbacks[0]
			n.Task, n.Event, n.State, n.Counts = "GSETASK:19700101000009:0", "GSETASK:19700101000009:0/finished", procfleet.TaskRejected, nil
			n.Header = n.Event
			w.Callbacks = append(w.Callbacks, n)
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
