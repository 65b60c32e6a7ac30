package web

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

const (
	rows       = 100 // maximum number of rows of a table
	resultRows = 60  // of items, whose rows have a timeline
)

// tasksView is the content of the list of tasks.
type tasksView struct {
	State, Action, Business, Application, Host, Process string
	Tasks                                               []client.Task
	Next                                                string // address of the next page; "" at the end
	Actions                                             []procfleet.Action
	States                                              []procfleet.TaskState
}

var (
	allActions = []procfleet.Action{
		procfleet.ActionStart, procfleet.ActionStop, procfleet.ActionRestart, procfleet.ActionReload,
		procfleet.ActionStatus, procfleet.ActionSupervise, procfleet.ActionRelease, procfleet.ActionKill,
	}
	taskStates = []procfleet.TaskState{
		procfleet.TaskAccepted, procfleet.TaskRunning, procfleet.TaskFinished, procfleet.TaskRejected,
	}
)

func listTasks(ctx context.Context, v *visit) (any, error) {
	view := tasksView{
		State: v.query("state"), Action: v.query("action"), Business: v.query("business"), Application: v.query("application"),
		Host: v.query("host"), Process: v.query("process"), Actions: allActions, States: taskStates,
	}
	host, err := v.host("host")
	if err != nil {
		return nil, err
	}
	q := client.TaskQuery{
		Action: procfleet.Action(view.Action), Business: view.Business, Application: view.Application, Host: host, Process: view.Process,
		Query: client.Query{PageSize: rows, Cursor: v.query("after")},
	}
	if view.State != "" {
		q.States = []procfleet.TaskState{procfleet.TaskState(view.State)}
	}
	page, err := v.api.TaskPage(ctx, q)
	view.Tasks, view.Next = page.Items, v.nextPage(page.Next)
	return view, err
}

// nextPage returns the address of this page with another cursor; "" for the end.
func (v *visit) nextPage(cursor string) string {
	if cursor == "" {
		return ""
	}
	query := v.r.URL.Query()
	query.Set("after", cursor)
	return v.r.URL.EscapedPath() + "?" + query.Encode()
}

// host returns the host in a parameter; the zero Host if the parameter is empty.
func (v *visit) host(name string) (procfleet.Host, error) {
	text := v.query(name)
	if text == "" {
		return procfleet.Host{}, nil
	}
	host, err := parseHost(text)
	if err != nil {
		return host, invalid(name, err.Error())
	}
	return host, nil
}

// parseHost parses a host that a viewer has typed: an IPv4 address without a cloud area is in area 0.
func parseHost(text string) (procfleet.Host, error) {
	if !strings.Contains(text, ":") {
		return procfleet.NewHost(0, text)
	}
	return procfleet.ParseHost(text)
}

// number returns the number in a parameter.
func (v *visit) number(name string) (int, error) {
	n, err := strconv.Atoi(v.query(name))
	if err != nil {
		return 0, invalid(name, "is not a number")
	}
	return n, nil
}

// invalid returns the error of the API for an invalid field.
func invalid(field, problem string) error {
	return &client.Error{Status: http.StatusBadRequest, Field: field, Message: problem}
}

// taskView is the content of the page of a task.
type taskView struct {
	client.Task
	Bar         []segment
	Stages      []stage
	Failures    *failures // nil without a failed item
	State       procfleet.State
	Results     []client.Result
	Next        string
	StateCounts []stateCount
	Buttons     buttonsOf
}

// segment is a part of a picture, in percent of its width.
type segment struct {
	Name     string
	Items    int
	X, Width float64
}

type stateCount struct {
	State procfleet.State
	Items int
}

// itemStates has the states in the order of the picture.
var itemStates = []procfleet.State{
	procfleet.StateSucceeded, procfleet.StateUnchanged, procfleet.StateFailed, procfleet.StateTimedOut, procfleet.StateUnreachable,
	procfleet.StateRejected, procfleet.StateCancelled, procfleet.StateDelivered, procfleet.StatePending,
}

// bar divides the items of a task by their state.
func bar(counts procfleet.Counts) []segment {
	total := max(counts.Total(), 1)
	var segments []segment
	at := 0.0
	for _, state := range itemStates {
		if n := counts[state]; n > 0 {
			width := 100 * float64(n) / float64(total)
			segments = append(segments, segment{string(state), n, at, width})
			at += width
		}
	}
	return segments
}

func showTask(ctx context.Context, v *visit) (any, error) {
	id := procfleet.TaskID(v.r.PathValue("task"))
	task, err := v.api.Task(ctx, id)
	if err != nil {
		return nil, err
	}
	view := taskView{Task: task, Bar: bar(task.Counts), Stages: stages(task.Rollout), State: procfleet.State(v.query("state"))}
	for _, state := range itemStates {
		if n := task.Counts[state]; n > 0 {
			view.StateCounts = append(view.StateCounts, stateCount{state, n})
		}
	}
	if task.State == procfleet.TaskRejected {
		return view, nil
	}
	page, err := v.api.ResultPage(ctx, id, client.Query{State: view.State, PageSize: resultRows, Cursor: v.query("after")})
	if err != nil {
		return nil, err
	}
	view.Results, view.Next = page.Items, v.nextPage(page.Next)
	if view.Failures, err = v.failuresOf(ctx, &task); err != nil {
		return nil, err
	}
	view.Buttons = buttonsFor(&task)
	return view, nil
}

// failuresOf returns the failures of the task of the page; nil without one.
func (v *visit) failuresOf(ctx context.Context, t *client.Task) (*failures, error) {
	number := t.Counts.Failed()
	if number == 0 {
		return nil, nil //nolint:nilnil // no failure
	}
	if v.failures != nil && v.failures.number == number {
		return v.failures, nil
	}
	var err error
	v.failures, err = groupFailures(ctx, v.api, t)
	return v.failures, err
}

// stage is a stage of a rollout in its picture.
type stage struct {
	segment
	Number   int
	Released float64 // share of its hosts that were released, in percent of the width of the picture
	State    string  // done, current or later
}

// stages divides the hosts of a rollout by stage; nil without a rollout.
func stages(r *client.Rollout) []stage {
	if r == nil {
		return nil
	}
	var all []stage
	before := 0
	for i, s := range r.Stages {
		part := 100 / float64(max(r.Hosts, 1))
		st := stage{Number: i + 1, segment: segment{Items: s.Hosts, X: float64(before) * part, Width: float64(s.Hosts) * part}}
		released := min(max(r.Released-before, 0), s.Hosts)
		st.Released = float64(released) * part
		switch {
		case i+1 < r.Stage:
			st.State = "done"
		case i+1 == r.Stage:
			st.State = "current"
		default:
			st.State = "later"
		}
		all = append(all, st)
		before += s.Hosts
	}
	return all
}

// control returns the part of a request that all buttons of a task have: the reason, and the state of the
// task that the viewer has seen.
func (v *visit) control() (client.TaskControl, error) {
	seq, err := v.number("if_seq")
	return client.TaskControl{Reason: v.query("reason"), IfSeq: &seq}, err
}

// onTask calls the API for a button of a task, and returns to the task, or to another that the button has
// created.
func onTask(v *visit, call func(id procfleet.TaskID, control client.TaskControl) (client.Task, error)) (string, error) {
	control, err := v.control()
	if err != nil {
		return "", err
	}
	task, err := call(procfleet.TaskID(v.r.PathValue("task")), control)
	return Prefix + "tasks/" + url.PathEscape(string(task.ID)), err
}

func pauseTask(ctx context.Context, v *visit) (string, error) {
	return onTask(v, func(id procfleet.TaskID, control client.TaskControl) (client.Task, error) {
		return v.api.PauseTask(ctx, id, control)
	})
}

func resumeTask(ctx context.Context, v *visit) (string, error) {
	return onTask(v, func(id procfleet.TaskID, control client.TaskControl) (client.Task, error) {
		resume := client.TaskResume{Hold: procfleet.HoldKind(v.query("hold")), TaskControl: control}
		if text := v.query("max_failures"); text != "" {
			var err error
			if resume.MaxFailures, err = procfleet.ParseAmount(text); err != nil {
				return client.Task{}, invalid("max_failures", err.Error())
			}
		}
		return v.api.ResumeTask(ctx, id, resume)
	})
}

func approveTask(ctx context.Context, v *visit) (string, error) {
	stage, err := v.number("stage")
	if err != nil {
		return "", err
	}
	return onTask(v, func(id procfleet.TaskID, control client.TaskControl) (client.Task, error) {
		return v.api.ApproveTask(ctx, id, client.TaskApproval{Stage: stage, TaskControl: control})
	})
}

func cancelTask(ctx context.Context, v *visit) (string, error) {
	return onTask(v, func(id procfleet.TaskID, control client.TaskControl) (client.Task, error) {
		return v.api.CancelTask(ctx, id, client.TaskCancel{Mode: procfleet.CancelMode(v.query("mode")), TaskControl: control})
	})
}

// retryView is the content of the page that shows the plan of a retry.
type retryView struct {
	Task    client.Task
	Planned *planned
}

func showRetry(ctx context.Context, v *visit) (any, error) {
	id := procfleet.TaskID(v.r.PathValue("task"))
	task, err := v.api.Task(ctx, id)
	if err != nil {
		return nil, err
	}
	plan, err := v.api.PlanRetry(ctx, id, client.TaskRetry{})
	return retryView{task, newPlanned(&plan)}, err
}

// retryTask submits the retry whose plan the viewer has confirmed.
func retryTask(ctx context.Context, v *visit) (string, error) {
	plan, err := v.api.PlanRetry(ctx, procfleet.TaskID(v.r.PathValue("task")), client.TaskRetry{})
	if err != nil {
		return "", err
	}
	if err := v.confirmed(&plan); err != nil {
		return "", err
	}
	return onTask(v, func(id procfleet.TaskID, control client.TaskControl) (client.Task, error) {
		return v.api.RetryTask(ctx, id, client.TaskRetry{TaskControl: control})
	})
}

func undoTask(ctx context.Context, v *visit) (string, error) {
	return onTask(v, func(id procfleet.TaskID, control client.TaskControl) (client.Task, error) {
		return v.api.UndoTask(ctx, id, client.TaskUndo{Speed: procfleet.UndoSpeed(v.query("speed")), TaskControl: control})
	})
}

// buttonsOf says which buttons a task has, and what they would do, in numbers of items or hosts.
type buttonsOf struct {
	Pause, Cancel, Interrupt, Undo bool
	Retry                          int                // items
	Resume                         procfleet.HoldKind // hold that a caller can end; "" without one
	Approve                        int                // stage that has ended; 0 if none waits
	Unbegun, Begun                 int                // open items
	NextStage                      int                // hosts of the stage after Approve
}

func buttonsFor(t *client.Task) buttonsOf {
	b := buttonsOf{Unbegun: t.Counts[procfleet.StatePending], Begun: t.Counts[procfleet.StateDelivered]}
	open := !t.Done()
	b.Cancel = open && t.Cancel == nil
	b.Interrupt = open && (t.Cancel == nil || t.Cancel.Mode != procfleet.CancelInterrupt)
	b.Pause = b.Cancel && t.Hold == nil
	for _, state := range []procfleet.State{procfleet.StateFailed, procfleet.StateUnreachable, procfleet.StateTimedOut, procfleet.StateCancelled} {
		b.Retry += t.Counts[state]
	}
	if open && t.Hold != nil {
		b.Resume = t.Hold.Kind
	}
	r := t.Rollout
	if r == nil {
		return b
	}
	b.Undo = t.UndoneBy == "" && r.Released > 0
	if !open || r.Hold == nil {
		return b
	}
	switch r.Hold.Kind {
	case procfleet.HoldApproval:
		b.Approve = r.Stage
		if r.Stage < len(r.Stages) {
			b.NextStage = r.Stages[r.Stage].Hosts
		}
	case procfleet.HoldWindow: // ends by itself
	default:
		if b.Resume == "" {
			b.Resume = r.Hold.Kind
		}
	}
	return b
}
