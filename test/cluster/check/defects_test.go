package check

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/client"
)

// world is the correct history of a fleet, in seconds of a clock. In second 1 a
// task starts a program on two hosts. In second 2 a task starts a resident process
// on one of them; the host loses power and boots. In second 3 a task stops the
// process. In second 4 a submission without a key queries its status.
type world struct {
	History
	marks []Mark
}

var (
	one, two = mustHost("0:10.0.0.1"), mustHost("1:10.0.0.2")
	beside   = mustHost("0:10.0.0.3") // in the cloud area of one
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

// at returns a span without duration.
func at(second float64) Span {
	moment := time.UnixMicro(int64(second * 1e6)).UTC()
	return Span{moment, moment}
}

func newWorld() *world {
	w := &world{History: History{Run: "run", TaskPolls: map[procfleet.TaskID][]TaskPoll{}, ResultsPolls: map[procfleet.TaskID][]ResultsPoll{}}}
	w.accepted(1, starting, Operation{Action: procfleet.ActionStart, Process: "once", Token: "run-1.0", Hosts: []procfleet.Host{one, two}})
	w.accepted(2, bringing, Operation{Action: procfleet.ActionStart, Process: "daemon", Stays: true, Token: "run-2.0", Hosts: []procfleet.Host{one}})
	w.accepted(3, stopping, Operation{Action: procfleet.ActionStop, Process: "daemon", Stays: true, Token: "run-3.0", Hosts: []procfleet.Host{one}})
	w.accepted(4, asking, Operation{Action: procfleet.ActionStatus, Process: "daemon", Stays: true, Hosts: []procfleet.Host{one}})
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
	w.FinalStates = []FinalState{{Process: "daemon", Host: one, Running: false, At: at(20).From}}
	w.Tasks = append(w.Tasks, client.Task{ID: "GSETASK:19700101000000:1", Business: "earlier", State: procfleet.TaskFinished})
	return w
}

// pause adds a confirmed pause of a task.
func (w *world) pause(id procfleet.TaskID, paused, resumed float64) {
	w.Holds = append(w.Holds, Hold{Task: id, Paused: at(paused), Resumed: at(resumed), Confirmed: true})
}

// retry adds a retry of an item that was unreachable.
func (w *world) retry() *Retry {
	const of, id = procfleet.TaskID("GSETASK:19700101000008:0"), procfleet.TaskID("GSETASK:19700101000008:1")
	w.Tasks = append(w.Tasks,
		client.Task{ID: of, Business: "earlier", State: procfleet.TaskFinished, RetriedBy: []procfleet.TaskID{id}},
		client.Task{ID: id, Business: "earlier", State: procfleet.TaskFinished, RetryOf: of})
	results := []client.Result{{Host: nowhere, Name: "daemon", Action: procfleet.ActionStatus, State: procfleet.StateUnreachable}}
	w.Retries = append(w.Retries, Retry{Span: at(8), Of: of, Task: id, Before: results, After: results, Items: results})
	return &w.Retries[0]
}

// runsAt changes the acceptance and the command of the first item of a task.
func (w *world) runsAt(id procfleet.TaskID, accepted, begun float64) {
	w.ends(id, 0, func(r *client.Result) { r.AcceptedAt = at(accepted).From })
	for i := range w.marks {
		if w.marks[i].Operation == string(id)+"/0" {
			w.marks[i].At = at(begun).From
		}
	}
}

// ran returns a mark.
func ran(second float64, host procfleet.Host, token, process string, verb Verb, operation string) Mark {
	return Mark{Host: host, Token: token, Process: process, Verb: verb, Operation: operation, At: at(second).From}
}

// withoutKey changes the submission of a task: it was sent once, without an idempotency key.
func (w *world) withoutKey(id procfleet.TaskID) {
	s := w.byTask()[id]
	s.Keyless = true
	w.Responses = slices.DeleteFunc(w.Responses, func(a Response) bool { return a.Key == s.Key && (a.Task == "" || a.Dispatcher == "d2") })
	for i := range w.Tasks {
		if w.Tasks[i].ID == id {
			w.Tasks[i].Business = s.Key
		}
	}
}

// refused removes the response of the keyless submission; the records of its task
// remain.
func (w *world) refused(err error) *Submission {
	s := w.byTask()[asking]
	s.Task, s.Err = "", err
	w.Responses = slices.DeleteFunc(w.Responses, func(a Response) bool { return a.Key == s.Key })
	return s
}

// gradual makes the first task a rollout, and adds a poll after its commands began and before its
// hosts end.
func (w *world) gradual(window, released, active int) *TaskPoll {
	w.Submissions[0].Window = window
	for i := range w.TaskPolls[starting] {
		w.TaskPolls[starting][i].Task.Rollout = &client.Rollout{Released: 2}
	}
	l := &w.TaskPolls[starting][1]
	l.Task.Rollout = &client.Rollout{Released: released, Active: active}
	return l
}

// expires gives the first task a queue, and lets its first item expire.
func (w *world) expires(queue time.Duration, second float64) {
	w.Submissions[0].Queue = queue
	w.ends(starting, 0, func(r *client.Result) {
		r.State, r.Code, r.Reason, r.Refusal = procfleet.StateUnreachable, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable, procfleet.RefusalExpired
		r.FinishedAt = at(second).From
	})
}

// ends edits the final results of an item in all readings.
func (w *world) ends(id procfleet.TaskID, item int, edit func(*client.Result)) {
	for _, reading := range w.ResultsPolls[id] {
		if r := &reading.Results[item]; r.State.Final() {
			edit(r)
		}
	}
}

// accepted adds a task that was accepted, then running, then succeeded.
func (w *world) accepted(second float64, id procfleet.TaskID, a Operation) {
	key := "key-" + string(id)
	w.Submissions = append(w.Submissions, &Submission{
		Key: key, Operations: []Operation{a}, Task: id, At: at(second).From, Timeout: time.Minute, Callback: true,
	})
	w.Responses = append(w.Responses,
		Response{Span: at(second), Key: key, Dispatcher: "d1", Status: 503, Text: "busy"},
		Response{Span: at(second + 0.1), Key: key, Dispatcher: "d1", Status: 201, Task: id},
		Response{Span: at(second + 0.2), Key: key, Dispatcher: "d2", Status: 201, Task: id})
	n := len(a.Hosts)
	w.TaskPolls[id] = []TaskPoll{
		taskPoll(second+0.3, id, procfleet.TaskAccepted, n, procfleet.Counts{procfleet.StatePending: n}),
		taskPoll(second+0.5, id, procfleet.TaskRunning, n, procfleet.Counts{procfleet.StateDelivered: n}),
		taskPoll(second+0.7, id, procfleet.TaskFinished, n, procfleet.Counts{procfleet.StateSucceeded: n}),
	}
	open, ended := ResultsPoll{Span: at(second + 0.4), Dispatcher: "d1"}, ResultsPoll{Span: at(second + 0.8), Dispatcher: "d2", Last: true}
	for i, h := range a.Hosts {
		r := client.Result{Item: i, Host: h, Name: a.Process, Action: a.Action, State: procfleet.StateDelivered, Code: procfleet.CodeRunning}
		open.Results = append(open.Results, r)
		r.State, r.Code, r.Reason, r.AcceptedAt = procfleet.StateSucceeded, procfleet.CodeSuccess, procfleet.ReasonSucceeded, at(second).From
		ended.Results = append(ended.Results, r)
	}
	w.ResultsPolls[id] = []ResultsPoll{open, ended}
	w.Tasks = append(w.Tasks, client.Task{ID: id, Business: "run", State: procfleet.TaskFinished})
	end := Notification{Event: string(id) + "/finished", Task: id, State: procfleet.TaskFinished, Counts: procfleet.Counts{procfleet.StateSucceeded: n}}
	w.Events = append(w.Events, end)
	end.At, end.Key, end.Header, end.Status = at(second+0.9).From, key, end.Event, 503
	w.Callbacks = append(w.Callbacks, end)
	end.Status = 204
	w.Callbacks = append(w.Callbacks, end)
}

func taskPoll(second float64, id procfleet.TaskID, state procfleet.TaskState, items int, counts procfleet.Counts) TaskPoll {
	return TaskPoll{Span: at(second), Dispatcher: "d1", Task: client.Task{ID: id, State: state, Items: items, Counts: counts}}
}

// again adds polls of counters and results after all others, changed by edit.
func (w *world) again(second float64, id procfleet.TaskID, edit func(*TaskPoll, []client.Result)) {
	polls, readings := w.TaskPolls[id], w.ResultsPolls[id]
	l, r := polls[len(polls)-1], readings[len(readings)-1]
	l.Span, l.Task.Counts = at(second), maps.Clone(l.Task.Counts)
	r.Span, r.Results = at(second+0.1), slices.Clone(r.Results)
	edit(&l, r.Results)
	w.TaskPolls[id], w.ResultsPolls[id] = append(polls, l), append(readings, r)
}

// outcome changes state, code and reason of a result.
func outcome(r *client.Result, state procfleet.State, code procfleet.Code, reason procfleet.Reason) {
	r.State, r.Code, r.Reason = state, code, reason
}

// guess turns an agent's result into a result that the server set.
func guess(r *client.Result, state procfleet.State, code procfleet.Code, reason procfleet.Reason) {
	outcome(r, state, code, reason)
	r.AcceptedAt, r.StartedAt = time.Time{}, time.Time{}
}

// end edits a result in the last reading of a task and updates the counters in the
// last poll.
func (w *world) end(id procfleet.TaskID, item int, edit func(*client.Result)) {
	readings := w.ResultsPolls[id]
	results := readings[len(readings)-1].Results
	edit(&results[item])
	counts := procfleet.Counts{}
	for i := range results {
		counts[results[i].State]++
	}
	polls := w.TaskPolls[id]
	polls[len(polls)-1].Task.Counts = counts
}

// drop removes the marks of a token on a host.
func (w *world) drop(token string, host procfleet.Host) {
	w.marks = slices.DeleteFunc(w.marks, func(m Mark) bool { return m.Token == token && m.Host == host })
}

func reopened(l *TaskPoll, results []client.Result) {
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

// defects are broken histories, each with the rule that detects it.
var defects = []struct {
	name string
	rule Rule
	do   func(w *world)
}{
	{"a valid submission is rejected", RuleAccepted, func(w *world) {
		w.Responses = append(w.Responses, Response{Span: at(4), Key: "key", Dispatcher: "d1", Status: 500, Text: "oops"})
	}},
	{"a submission gets no response", RuleAccepted, func(w *world) {
		w.Submissions = append(w.Submissions, &Submission{Key: "key", Err: client.ErrUnreachable})
	}},
	{"an accepted task is missing", RuleExists, func(w *world) {
		w.TaskPolls[starting] = append(w.TaskPolls[starting], TaskPoll{Span: at(9), Dispatcher: "d1", Missing: true})
	}},
	{"an accepted task is missing during a fail-over", RuleExists, func(w *world) {
		w.Failovers = []Span{{at(0).From, at(30).From}}
		w.TaskPolls[starting] = append([]TaskPoll{{Span: at(1.3), Dispatcher: "d1", Missing: true}}, w.TaskPolls[starting]...)
	}},
	{"an accepted task is rejected", RuleExists, func(w *world) {
		w.again(9, starting, func(l *TaskPoll, _ []client.Result) { l.Task.State = procfleet.TaskRejected })
	}},
	{"a key creates two tasks", RuleOneKey, func(w *world) { w.Responses[2].Task = "GSETASK:19700101000009:0" }},
	{"two keys create one task", RuleOneKey, func(w *world) { w.Responses[4].Task = starting }},
	{"a second task runs the command again", RuleOneKey, func(w *world) { w.marks[1].Operation = "GSETASK:19700101000009:0/0" }},
	{"the list has a task that no response named", RuleOneKey, func(w *world) {
		w.Tasks = append(w.Tasks, client.Task{ID: "GSETASK:19700101000009:0", Business: "run", State: procfleet.TaskRunning})
	}},
	{"a task does not end", RuleEnds, func(w *world) { w.TaskPolls[starting] = w.TaskPolls[starting][:2] }},
	{"a task has one item less", RuleItems, func(w *world) { w.TaskPolls[starting][0].Task.Items = 1 }},
	{"counters do not add up in one poll", RuleSum, func(w *world) { w.TaskPolls[starting][1].Task.Counts[procfleet.StateDelivered] = 1 }},
	{"a finished task has an open item", RuleSum, func(w *world) {
		w.TaskPolls[starting][2].Task.Counts = procfleet.Counts{procfleet.StateDelivered: 1, procfleet.StateSucceeded: 1}
	}},
	{"counters differ from the results", RuleSum, func(w *world) {
		w.TaskPolls[starting][2].Task.Counts = procfleet.Counts{procfleet.StateFailed: 2}
	}},
	{"a finished task runs again", RuleProgress, func(w *world) {
		w.again(9, starting, reopened)
		w.again(10, starting, func(l *TaskPoll, results []client.Result) {
			*l = w.TaskPolls[starting][2]
			copy(results, w.ResultsPolls[starting][1].Results)
		})
	}},
	{"a task that finished long before runs again after a fail-over", RuleProgress, func(w *world) {
		w.again(19, starting, reopened)
		w.Failovers = []Span{{at(15).From, at(30).From}}
	}},
	{"a delivered item is pending again", RuleProgress, func(w *world) {
		w.TaskPolls[starting][1], w.TaskPolls[starting][0] = w.TaskPolls[starting][0], w.TaskPolls[starting][1]
	}},
	{"an item is missing", RuleResult, func(w *world) { w.ResultsPolls[starting][1].Results = w.ResultsPolls[starting][1].Results[:1] }},
	{"an item is listed twice", RuleResult, func(w *world) { w.ResultsPolls[starting][1].Results[1] = w.ResultsPolls[starting][1].Results[0] }},
	{"an item of a finished task is open", RuleResult, func(w *world) {
		outcome(&w.ResultsPolls[starting][1].Results[0], procfleet.StatePending, procfleet.CodeRunning, "")
	}},
	{"code and state do not match", RuleResult, func(w *world) { w.ResultsPolls[starting][1].Results[0].Code = procfleet.CodeFailed }},
	{"an open item has a reason", RuleResult, func(w *world) { w.ResultsPolls[starting][0].Results[0].Reason = procfleet.ReasonSucceeded }},
	{"the final results cannot be read", RuleResult, func(w *world) { w.ResultsPolls[starting][1].Last = false }},
	{"an agent's result changes", RuleFinal, func(w *world) {
		w.again(9, starting, func(_ *TaskPoll, results []client.Result) {
			outcome(&results[0], procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonCommandFailed)
		})
	}},
	{"an agent's result changes during a fail-over", RuleFinal, func(w *world) {
		w.Failovers = []Span{{at(0).From, at(30).From}}
		w.again(9, starting, func(_ *TaskPoll, results []client.Result) {
			outcome(&results[0], procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonCommandFailed)
		})
	}},
	{"a final result is open again", RuleFinal, func(w *world) { w.again(9, starting, reopened) }},
	{"the server's result replaces the agent's", RuleFinal, func(w *world) {
		w.again(9, starting, func(_ *TaskPoll, results []client.Result) { timedOut(&results[0]) })
	}},
	{"one of the server's results replaces another", RuleFinal, func(w *world) {
		w.end(starting, 0, unreachable)
		w.again(9, starting, func(_ *TaskPoll, results []client.Result) { timedOut(&results[0]) })
	}},
	{"the agent's result replaces the server's and is not marked late", RuleFinal, func(w *world) {
		w.end(starting, 0, unreachable)
		w.again(9, starting, func(_ *TaskPoll, results []client.Result) {
			outcome(&results[0], procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonCommandFailed)
			results[0].AcceptedAt = at(1).From
		})
	}},
	{"a start command ran twice", RuleTwice, func(w *world) { w.marks = append(w.marks, w.marks[1]) }},
	{"a resident's start command ran twice for one task", RuleTwice, func(w *world) { w.marks = append(w.marks, w.marks[3]) }},
	{"a stop command ran twice", RuleTwice, func(w *world) { w.marks = append(w.marks, w.marks[5]) }},
	{"a command ran on a host outside the request", RuleRequested, func(w *world) {
		w.marks = append(w.marks, ran(1.1, nowhere, "run-1.0", "once", VerbStart, string(starting)+"/0"))
	}},
	{"a command ran without a request", RuleRequested, func(w *world) {
		w.marks = append(w.marks, ran(1.1, one, "run-9.0", "once", VerbStart, string(starting)+"/0"))
	}},
	{"a stop ran the kill command", RuleRequested, func(w *world) { w.marks[5].Verb = VerbKill }},
	{"a command ran for no operation", RuleRequested, func(w *world) { w.marks[1].Operation = "by hand" }},
	{"a result has a host outside the request", RuleRequested, func(w *world) { w.ResultsPolls[starting][1].Results[1].Host = nowhere }},
	{"a start succeeded without its command", RuleTrue, func(w *world) { w.drop("run-1.0", two) }},
	{"a start was refused although its command ran", RuleTrue, func(w *world) {
		w.end(starting, 1, func(r *client.Result) {
			outcome(r, procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonRefused)
		})
	}},
	{"a start command of an already running process ran", RuleTrue, func(w *world) {
		w.end(starting, 1, func(r *client.Result) {
			outcome(r, procfleet.StateUnchanged, procfleet.CodeAlreadyRunning, procfleet.ReasonAlreadyRunning)
		})
	}},
	{"the result of a command that ran is missing", RuleNotLost, func(w *world) { w.end(starting, 1, timedOut) }},
	{"an agent's result was read and then lost", RuleNotLost, func(w *world) {
		w.Failovers = []Span{{at(0).From, at(30).From}}
		w.again(9, starting, func(l *TaskPoll, results []client.Result) {
			timedOut(&results[0])
			l.Task.Counts = procfleet.Counts{procfleet.StateTimedOut: 1, procfleet.StateSucceeded: 1}
		})
		w.drop("run-1.0", one)
	}},
	{"the result of a command that ran after a loss of the agent's data is missing", RuleNotLost, func(w *world) {
		w.end(starting, 1, timedOut)
		w.Wipes = []Loss{{at(0.5), two}, {at(5), one}}
	}},
	{"a process runs after a stop and a loss of the agent's data", RuleState, func(w *world) {
		w.FinalStates[0].Running = true
		w.Wipes = []Loss{{at(2.9), one}}
	}},
	{"a stopped process runs", RuleState, func(w *world) { w.FinalStates[0].Running = true }},
	{"a started process does not run", RuleState, func(w *world) {
		w.end(stopping, 0, func(r *client.Result) {
			outcome(r, procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonRefused)
		})
	}},
	{"an agent does not report the final state", RuleState, func(w *world) { w.FinalStates[0].Unknown = "unreachable" }},

	{"a submission without a key creates two tasks", RuleOnce, func(w *world) {
		w.Tasks = append(w.Tasks, client.Task{ID: "GSETASK:19700101000009:0", Business: w.byTask()[asking].Key, State: procfleet.TaskRunning})
	}},
	{"a rejected submission without a key has a task", RuleRefused, func(w *world) { w.refused(client.ErrUnavailable) }},
	{"the command of a rejected submission without a key ran", RuleRefused, func(w *world) {
		s := w.refused(client.ErrUnavailable)
		s.Operations[0].Action, s.Operations[0].Token = procfleet.ActionStart, "run-4.0"
		w.Tasks = w.Tasks[:len(w.Tasks)-2]
		w.marks = append(w.marks, ran(4.1, one, "run-4.0", "daemon", VerbStart, string(asking)+"/0"))
	}},
	{"the command of a submission without a key, with an unknown outcome and without a task ran", RuleRefused, func(w *world) {
		s := w.refused(client.ErrUnknown)
		s.Operations[0].Action, s.Operations[0].Token = procfleet.ActionStart, "run-4.0"
		w.Tasks = w.Tasks[:len(w.Tasks)-2]
		w.marks = append(w.marks, ran(4.1, one, "run-4.0", "daemon", VerbStart, string(asking)+"/0"))
	}},
	{"the task of an accepted submission without a key is missing", RuleExists, func(w *world) {
		s := w.byTask()[asking]
		s.Task, s.Err = "", client.ErrUnknown
	}},
	{"a response with an unknown outcome names no task", RuleNamed, func(w *world) {
		w.Responses = append(w.Responses, Response{Span: at(4), Key: "key", Dispatcher: "d1", Status: 503, Code: codeUnknown, Text: "unknown"})
	}},
	{"a task is open long after its deadline", RuleInTime, func(w *world) {
		late := w.TaskPolls[starting][2]
		w.TaskPolls[starting][1].Span = at(107)
		late.Span = at(108)
		w.TaskPolls[starting][2] = late
	}},
	{"a task is open long after a step back of the store's clock", RuleInTime, func(w *world) {
		w.StepsBack = []time.Time{at(50).From}
		w.TaskPolls[starting][1].Span, w.TaskPolls[starting][2].Span = at(300), at(301)
	}},
	{"a task is open long after its deadline and an earlier fail-over", RuleInTime, func(w *world) {
		w.Failovers = []Span{{at(20).From, at(50).From}}
		w.TaskPolls[starting][1].Span, w.TaskPolls[starting][2].Span = at(107), at(108)
	}},
	{"an event of a transition is missing", RuleNumbered, func(w *world) { w.Numbers = map[procfleet.TaskID][]int{w.Events[0].Task: {2, 3, 2, 5}} }},
	{"the end is published before a transition", RuleNumbered, func(w *world) { w.Numbers = map[procfleet.TaskID][]int{w.Events[0].Task: {3, 2}} }},
	{"the webhook omits a transition", RuleDelivered, func(w *world) { w.delivers([]int{2, 3, 4}, []int{1, 2, 4}) }},
	{"the webhook omits the end", RuleDelivered, func(w *world) { w.delivers([]int{2}, []int{1}) }},
	{"the webhook sends an event too early", RuleDelivered, func(w *world) { w.delivers([]int{2, 3}, []int{1, 3, 2}) }},
	{"the webhook sends nothing", RuleDelivered, func(w *world) { w.delivers([]int{2}, nil) }},
	{"a request of the webhook has a wrong signature", RuleDelivered, func(w *world) { w.Unverified = []string{"no matching signature"} }},
	{"an end has no event", RuleNotified, func(w *world) { w.Events = w.Events[1:] }},
	{"an end has no callback", RuleNotified, func(w *world) { w.Callbacks = w.Callbacks[2:] }},
	{"a failed callback is not repeated", RuleNotified, func(w *world) { w.Callbacks = slices.Delete(w.Callbacks, 1, 2) }},
	{"an event has another id", RuleEventID, func(w *world) { w.Events[0].Event = "1" }},
	{"each callback has another id", RuleEventID, func(w *world) { w.Callbacks[1].Event, w.Callbacks[1].Header = "2", "2" }},
	{"a callback has another key than its event", RuleEventID, func(w *world) { w.Callbacks[1].Header = "2" }},
	{"a callback goes to the submission of another task", RuleEventID, func(w *world) { w.Callbacks[0].Key = w.Callbacks[2].Key }},
	{"an event counts open items", RuleEventID, func(w *world) { w.Events[0].Counts = procfleet.Counts{procfleet.StateDelivered: 2} }},
	{"an event omits items", RuleEventID, func(w *world) { w.Events[0].Counts = procfleet.Counts{procfleet.StateSucceeded: 1} }},
	{"an older command runs after a newer one", RuleOrder, func(w *world) { w.marks[3], w.marks[5] = w.marks[5], w.marks[3] }},
	{"a command runs after its deadline", RuleExpired, func(w *world) { w.marks[1].At = at(70).From }},

	{"a command of a paused task is accepted and runs", RulePaused, func(w *world) {
		w.pause(starting, 1, 30)
		w.runsAt(starting, 20, 20)
	}},

	{"a rollout has no progress", RuleWindow, func(w *world) { w.gradual(1, 2, 0).Task.Rollout = nil }},
	{"a rollout has more hosts at work than its window", RuleWindow, func(w *world) { w.gradual(1, 2, 2) }},
	{"a command runs on a host that is not released", RuleWindow, func(w *world) { w.gradual(2, 1, 1) }},
	{"a stage is released early", RuleStage, func(w *world) {
		w.gradual(2, 2, 1).Task.Rollout.Stages = []v1.RolloutStage{{Hosts: 1}, {Hosts: 1}}
	}},
	{"a command of the next stage runs early", RuleStage, func(w *world) {
		w.gradual(2, 2, 1).Task.Rollout.Stages = []v1.RolloutStage{{Hosts: 1}, {Hosts: 1}}
		w.TaskPolls[starting][1].Task.Rollout.Released = 1
	}},
	{"commands run on more hosts than the window", RuleWindow, func(w *world) { w.gradual(1, 2, 1) }},

	{"hosts of two cloud areas are at work at once", RuleZone, func(w *world) {
		w.gradual(2, 2, 2)
		w.Submissions[0].Zones.AtOnce = 1
	}},
	{"two hosts of a cloud area are at work", RuleZone, func(w *world) {
		w.gradual(2, 2, 2)
		w.Submissions[0].Zones.MaxConcurrency = 1
		w.ResultsPolls[starting][0].Results[1].Host = beside
		w.marks = append(w.marks, ran(1.1, beside, "run-1.0", "once", VerbStart, string(starting)+"/1"))
	}},
	{"a host is released after the budget is exceeded", RuleBudget, func(w *world) {
		w.Submissions[0].Budget = true
		w.gradual(2, 1, 0).Task.Rollout.Failed = 1
	}},
	{"more hosts fail than are at work", RuleBudget, func(w *world) {
		w.Submissions[0].Budget = true
		w.gradual(1, 2, 1).Task.Rollout.Failed = 2
	}},
	{"an operation without a queue expires", RuleQueued, func(w *world) { w.expires(0, 90) }},
	{"an operation expires early", RuleQueued, func(w *world) { w.expires(2*time.Minute, 90) }},
	{"an operation expires and runs", RuleNotLost, func(w *world) { w.expires(time.Minute, 90) }},

	{"a task does not name its retry", RuleLinked, func(w *world) {
		w.retry()
		w.Tasks[len(w.Tasks)-2].RetriedBy = nil
	}},
	{"a retry does not name its task", RuleLinked, func(w *world) {
		w.retry()
		w.Tasks[len(w.Tasks)-1].RetryOf = "GSETASK:19700101000009:0"
	}},
	{"a retry lacks an item", RuleLinked, func(w *world) { w.retry().Items = nil }},
	{"a retry has an item twice", RuleLinked, func(w *world) {
		r := w.retry()
		r.Items = append(r.Items, r.Items...)
	}},
	{"a retry repeats an item that succeeded", RuleLinked, func(w *world) {
		r := w.retry()
		r.Before, r.After = nil, nil
	}},
	{"the command of a canceled item ran", RuleCanceled, func(w *world) {
		w.end(starting, 1, func(r *client.Result) {
			guess(r, procfleet.StateCancelled, procfleet.CodeFailed, procfleet.ReasonCancelled)
		})
	}},

	{"a running process is started a second time", RuleExplained, func(w *world) { w.Deaths = nil }},
	{"a process that does not run is stopped", RuleExplained, func(w *world) {
		w.marks = slices.Delete(w.marks, 4, 5)
	}},
	{"a status reports a stopped process as running", RuleExplained, func(w *world) {
		w.ends(asking, 0, func(r *client.Result) { r.Status.Running = true })
	}},
	{"a stop of a running process reports that it does not run", RuleExplained, func(w *world) {
		w.ends(stopping, 0, func(r *client.Result) {
			outcome(r, procfleet.StateUnchanged, procfleet.CodeNotRunning, procfleet.ReasonNotRunning)
		})
		w.drop("run-3.0", one)
		w.marks, w.Deaths = slices.Delete(w.marks, 4, 5), nil
	}},
	{"a start of a stopped process reports that it runs", RuleExplained, func(w *world) {
		w.Deaths = append(w.Deaths, Loss{at(1.9), one})
		w.ends(bringing, 0, func(r *client.Result) {
			outcome(r, procfleet.StateUnchanged, procfleet.CodeAlreadyRunning, procfleet.ReasonAlreadyRunning)
		})
		w.drop("run-2.0", one)
	}},
	{"the earlier of two commands on a process takes effect last", RuleExplained, func(w *world) {
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
				t.Errorf("no violation of rule %q in %v", d.rule, found)
			}
			for _, v := range found {
				if v.Text == "" || !strings.Contains(v.String(), string(v.Rule)) {
					t.Errorf("%q lacks the rule or the observation", v)
				}
			}
		})
	}
}

func TestExplainedFindsWhatViolationsFind(t *testing.T) {
	t.Parallel()
	for _, d := range defects {
		w := newWorld()
		d.do(w)
		found, undecided := w.Explained(w.marks, time.Minute)
		if is := len(found) > 0; undecided != 0 || d.rule == RuleExplained && !is {
			t.Errorf("%s: violations %v, %d undecided", d.name, found, undecided)
		}
		for _, v := range found {
			if v.Rule != RuleExplained {
				t.Errorf("%s: violation of another rule: %s", d.name, v)
			}
		}
	}
	w := newWorld()
	if found, undecided := w.Explained(w.marks, 0); len(found) > 0 || undecided > 0 {
		t.Errorf("correct history: violations %v, %d undecided", found, undecided)
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

// TestPermittedHistoriesHaveNoViolation checks that histories which the documentation permits
// violate no rule.
func TestPermittedHistoriesHaveNoViolation(t *testing.T) {
	t.Parallel()
	for name, allow := range map[string]func(w *world){
		"nothing is wrong": func(*world) {},
		"a task was rejected and the next attempt created another": func(w *world) {
			w.Tasks = append(w.Tasks, client.Task{ID: "GSETASK:19700101000009:0", Business: "run", State: procfleet.TaskRejected})
		},
		"a host had no agent": func(w *world) {
			w.end(starting, 1, unreachable)
			w.drop("run-1.0", two)
		},
		"an agent's result was late": func(w *world) {
			agents := w.ResultsPolls[starting][1].Results[1]
			w.end(starting, 1, timedOut)
			w.again(9, starting, func(l *TaskPoll, results []client.Result) {
				results[1], results[1].Late = agents, true
				l.Task.Counts = procfleet.Counts{procfleet.StateSucceeded: 2}
			})
		},
		"an agent's result arrived after a rejection of the whole command": func(w *world) {
			agents := w.ResultsPolls[starting][1].Results[1]
			w.end(starting, 1, func(r *client.Result) {
				guess(r, procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonRefused)
			})
			w.again(9, starting, func(l *TaskPoll, results []client.Result) {
				results[1], results[1].Late = agents, true
				l.Task.Counts = procfleet.Counts{procfleet.StateSucceeded: 2}
			})
		},
		"a start failed although its command ran": func(w *world) {
			w.end(starting, 1, func(r *client.Result) {
				outcome(r, procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonCommandFailed)
			})
		},
		"a task is retried": func(w *world) { w.retry() },
		"a late result ended that an item can be repeated": func(w *world) {
			r := w.retry()
			r.Items, r.After = nil, nil
		},
		"an item was canceled": func(w *world) {
			w.end(starting, 1, func(r *client.Result) {
				guess(r, procfleet.StateCancelled, procfleet.CodeFailed, procfleet.ReasonCancelled)
			})
			w.drop("run-1.0", two)
		},
		"a start was superseded": func(w *world) {
			w.end(starting, 1, func(r *client.Result) {
				guess(r, procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonRefused)
			})
			w.drop("run-1.0", two)
		},
		"a resident process was started automatically, not by its operation": func(w *world) {
			w.marks = slices.DeleteFunc(w.marks, func(m Mark) bool { return m.Token == "run-2.0" && m.Operation != automatic })
		},
		"an agent sends a result again with corrected times": func(w *world) {
			w.again(9, starting, func(_ *TaskPoll, results []client.Result) { results[0].AcceptedAt = at(1.5).From })
		},
		"a stop with an unknown outcome leaves the process in any state": func(w *world) {
			w.ends(stopping, 0, timedOut)
			w.end(stopping, 0, timedOut)
			w.drop("run-3.0", one)
			w.ends(asking, 0, func(r *client.Result) { r.Status.Running = true })
		},
		"a failed stop leaves the process running": func(w *world) {
			w.end(stopping, 0, func(r *client.Result) {
				outcome(r, procfleet.StateFailed, procfleet.CodeCheckFailed, procfleet.ReasonCheckFailed)
			})
			w.ends(asking, 0, func(r *client.Result) { r.Status.Running = true })
		},
		"a stop found that the process had just ended": func(w *world) {
			w.drop("run-3.0", one)
			w.Deaths = append(w.Deaths, Loss{at(3.1), one})
		},
		"a reloaded process continues to run": func(w *world) {
			s := w.byTask()[stopping]
			s.Operations[0].Action = procfleet.ActionReload
			for _, reading := range w.ResultsPolls[stopping] {
				reading.Results[0].Action = procfleet.ActionReload
			}
			w.marks[5].Verb = VerbReload
			w.ends(asking, 0, func(r *client.Result) { r.Status.Running = true })
			w.FinalStates[0].Running = true
		},
		"a restarted process is stopped and started": func(w *world) {
			s := w.byTask()[stopping]
			s.Operations[0].Action = procfleet.ActionRestart
			for _, reading := range w.ResultsPolls[stopping] {
				reading.Results[0].Action = procfleet.ActionRestart
			}
			w.marks = append(w.marks, ran(3.3, one, "run-3.0", "daemon", VerbStart, string(stopping)+"/0"))
			w.ends(asking, 0, func(r *client.Result) { r.Status.Running = true })
			w.FinalStates[0].Running = true
		},
		"an agent lost its data, including a result": func(w *world) {
			w.end(starting, 1, timedOut)
			w.Wipes = []Loss{{at(1.5), two}}
		},
		"an agent lost its data and no longer supervises a process": func(w *world) {
			w.ends(stopping, 0, func(r *client.Result) {
				outcome(r, procfleet.StateFailed, procfleet.CodeFailed, procfleet.ReasonRefused)
			})
			w.end(stopping, 0, func(*client.Result) {})
			w.drop("run-3.0", one)
			w.Deaths = append(w.Deaths, Loss{at(3.5), one})
			w.Wipes = []Loss{{at(3.5), one}}
		},
		"a submission without a key was rejected": func(w *world) {
			w.refused(client.ErrUnavailable)
			w.Tasks = slices.DeleteFunc(w.Tasks, func(t client.Task) bool { return t.ID == asking })
		},
		"a submission without a key has an unknown outcome and no task": func(w *world) {
			w.refused(client.ErrUnknown)
			w.Tasks = slices.DeleteFunc(w.Tasks, func(t client.Task) bool { return t.ID == asking })
		},
		"a response with an unknown outcome names the task": func(w *world) {
			w.Responses = append(w.Responses, Response{Span: at(1), Key: w.Responses[0].Key, Dispatcher: "d1", Status: 503, Code: codeUnknown, Task: starting})
		},
		"a fail-over delays an end": func(w *world) {
			w.Failovers = []Span{{at(50).From, at(100).From}}
			w.TaskPolls[starting][1].Span, w.TaskPolls[starting][2].Span = at(140), at(141)
		},
		"a step back of the store's clock delays an end": func(w *world) {
			w.StepsBack = []time.Time{at(50).From}
			w.TaskPolls[starting][1].Span, w.TaskPolls[starting][2].Span = at(140), at(141)
		},
		"a command that was accepted before a pause runs during it": func(w *world) {
			w.pause(starting, 1, 30)
			w.runsAt(starting, 1, 20)
		},
		"a command runs in the first seconds of a pause": func(w *world) {
			w.pause(starting, 1, 30)
			w.runsAt(starting, 10, 10)
		},
		"a command runs after an unconfirmed pause": func(w *world) {
			w.pause(starting, 1, 30)
			w.Holds[0].Confirmed = false
			w.runsAt(starting, 20, 20)
		},
		"a pause delays an end": func(w *world) {
			w.pause(starting, 1, 41)
			w.TaskPolls[starting][1].Span, w.TaskPolls[starting][2].Span = at(140), at(141)
			w.runsAt(starting, 90, 90)
		},
		"the events of a task are published again": func(w *world) {
			w.Numbers = map[procfleet.TaskID][]int{w.Events[0].Task: {2, 3, 2, 3, 4, 4}}
		},
		"a webhook sends the acceptance of a task late":                       func(w *world) { w.delivers([]int{2, 3}, []int{2, 3, 1}) },
		"a webhook sends the events of a task without that of its acceptance": func(w *world) { w.delivers([]int{2, 3, 2, 3}, []int{2, 3}) },
		"a callback comes twice":                                              func(w *world) { w.Callbacks = append(w.Callbacks, w.Callbacks...) },
		"a task that was taken back is notified as well": func(w *world) {
			n := w.Callbacks[0]
			n.Task, n.Event, n.State, n.Counts = "GSETASK:19700101000009:0", "GSETASK:19700101000009:0/finished", procfleet.TaskRejected, nil
			n.Header = n.Event
			w.Callbacks = append(w.Callbacks, n)
		},
		"a fail-over takes back what was just seen, and it comes again": func(w *world) {
			w.Failovers = []Span{{at(1).From, at(30).From}}
			w.again(9, starting, reopened)
			w.again(10, starting, func(l *TaskPoll, results []client.Result) {
				*l = w.TaskPolls[starting][2]
				l.Span = at(10)
				copy(results, w.ResultsPolls[starting][1].Results)
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

// delivers sets the numbers of the events of a task in the broker and of those that the webhook sent.
func (w *world) delivers(published, sent []int) {
	task := w.Events[0].Task
	w.Numbers = map[procfleet.TaskID][]int{task: published}
	w.Delivered = map[procfleet.TaskID][]int{task: sent}
}
