package dialect

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
)

// Pages of the native lists.
const (
	defaultPage = 100
	maxPage     = 1000
)

// pageLimit reads the parameter limit.
func pageLimit(r *Request) (int, error) {
	text := r.Query.Get("limit")
	if text == "" {
		return defaultPage, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxPage {
		return 0, invalid("limit", "is not a number from 1 to %d", maxPage)
	}
	return n, nil
}

func decodeNativeTaskID(r *Request) (procfleet.TaskID, error) { return knownTaskID(r.ID, "id") }

func decodeTaskPage(r *Request) (TaskPage, error) {
	limit, err := pageLimit(r)
	if err != nil {
		return TaskPage{}, err
	}
	p := TaskPage{Limit: limit}
	if cursor := r.Query.Get("cursor"); cursor != "" {
		if p.Before, err = procfleet.TaskID(cursor).Number(); err != nil {
			return TaskPage{}, invalid("cursor", "is not the next of a page before")
		}
	}
	return p, nil
}

func decodeResultPage(r *Request) (ResultPage, error) {
	id, err := decodeNativeTaskID(r)
	if err != nil {
		return ResultPage{}, err
	}
	limit, err := pageLimit(r)
	if err != nil {
		return ResultPage{}, err
	}
	p := ResultPage{Task: id, State: procfleet.State(r.Query.Get("state")), Cursor: r.Query.Get("cursor"), Limit: limit}
	if p.State != "" && !slices.Contains(procfleet.States(), p.State) {
		return ResultPage{}, invalid("state", "is not one of %v", procfleet.States())
	}
	return p, nil
}

func decodeHostPage(r *Request) (HostPage, error) {
	limit, err := pageLimit(r)
	if err != nil {
		return HostPage{}, err
	}
	p := HostPage{Limit: limit}
	if after := r.Query.Get("after"); after != "" {
		if p.After, err = procfleet.ParseHost(after); err != nil {
			return HostPage{}, invalid("after", "%s", err.Error())
		}
	}
	return p, nil
}

// nativeTask is a task as callers see it.
type nativeTask struct {
	ID           procfleet.TaskID        `json:"id"`
	State        procfleet.TaskState     `json:"state"`
	Counts       map[procfleet.State]int `json:"counts"` // every state
	Items        int                     `json:"items"`
	Actions      []procfleet.Action      `json:"actions"`
	CreatedAt    time.Time               `json:"created_at"`
	Deadline     time.Time               `json:"deadline"`
	FinishedAt   *time.Time              `json:"finished_at"` // null while open
	ExpiresAt    time.Time               `json:"expires_at"`
	RejectReason string                  `json:"reject_reason,omitempty"`
	Dialect      string                  `json:"dialect"`
	Application  string                  `json:"application"`
	Business     string                  `json:"business"`
	Callback     string                  `json:"callback,omitempty"`
}

func newNativeTask(t *procfleet.Task) nativeTask {
	n := nativeTask{
		ID: t.ID, State: t.State, Counts: make(map[procfleet.State]int), Items: t.Items, Actions: t.Actions,
		CreatedAt: t.CreatedAt, Deadline: t.Deadline, ExpiresAt: t.ExpiresAt, RejectReason: t.RejectReason,
		Dialect: t.Dialect, Application: t.Application, Business: t.Business, Callback: t.Callback,
	}
	for _, s := range procfleet.States() {
		n.Counts[s] = t.Counts[s]
	}
	if n.Actions == nil {
		n.Actions = []procfleet.Action{}
	}
	if !t.FinishedAt.IsZero() {
		n.FinishedAt = &t.FinishedAt
	}
	return n
}

func nativeShowTask(t *procfleet.Task) Reply {
	return Reply{Status: http.StatusOK, Body: newNativeTask(t)}
}

func nativeTasks(p TaskPage, tasks []procfleet.Task) Reply {
	page := struct {
		Tasks []nativeTask     `json:"tasks"`
		Next  procfleet.TaskID `json:"next"`
	}{Tasks: make([]nativeTask, 0, len(tasks))}
	for i := range tasks {
		page.Tasks = append(page.Tasks, newNativeTask(&tasks[i]))
	}
	if len(tasks) > 0 && len(tasks) == p.Limit {
		page.Next = tasks[len(tasks)-1].ID
	}
	return Reply{Status: http.StatusOK, Body: page}
}

// nativeResult is one item of a task as callers see it.
type nativeResult struct {
	Item       int                      `json:"item"`
	Host       string                   `json:"host"` // "" if the agent id was not announced
	AgentID    string                   `json:"agent_id,omitempty"`
	Namespace  string                   `json:"namespace,omitempty"`
	Name       string                   `json:"name,omitempty"`
	Key        string                   `json:"key"`
	Action     procfleet.Action         `json:"action"`
	State      procfleet.State          `json:"state"`
	Code       procfleet.Code           `json:"code"`
	Reason     procfleet.Reason         `json:"reason,omitempty"`
	Message    string                   `json:"message"`
	Warnings   []string                 `json:"warnings,omitempty"`
	Status     *procfleet.ProcessStatus `json:"status,omitempty"`
	AcceptedAt time.Time                `json:"accepted_at,omitzero"`
	StartedAt  time.Time                `json:"started_at,omitzero"`
	FinishedAt time.Time                `json:"finished_at,omitzero"`
	Late       bool                     `json:"late,omitempty"`
}

func newNativeResult(it *procfleet.ItemResult) nativeResult {
	n := nativeResult{
		Item: it.Index, Host: it.Item.Target.Host.String(), AgentID: it.Item.Target.AgentID,
		Namespace: it.Spec.Namespace, Name: it.Spec.Name, Key: it.Spec.Key(),
		Action: it.Item.Action, State: it.State, Code: resultCode(it),
		Reason: it.Result.Reason, Warnings: it.Result.Warnings, Status: it.Result.Status,
		AcceptedAt: it.Result.AcceptedAt, StartedAt: it.Result.StartedAt, FinishedAt: it.Result.FinishedAt,
		Late: it.Result.Late,
	}
	if it.State.Final() {
		n.Message = resultMessage(it, n.Code)
	}
	return n
}

func nativeResults(items []procfleet.ItemResult, next string) Reply {
	page := struct {
		Results []nativeResult `json:"results"`
		Next    string         `json:"next"`
	}{make([]nativeResult, 0, len(items)), next}
	for i := range items {
		page.Results = append(page.Results, newNativeResult(&items[i]))
	}
	return Reply{Status: http.StatusOK, Body: page}
}

func nativeHosts(p HostPage, agents []Agent) Reply {
	page := struct {
		Hosts []Agent        `json:"hosts"`
		Next  procfleet.Host `json:"next"`
	}{Hosts: agents}
	if agents == nil {
		page.Hosts = []Agent{}
	}
	if len(agents) > 0 && len(agents) == p.Limit {
		page.Next = agents[len(agents)-1].Host
	}
	return Reply{Status: http.StatusOK, Body: page}
}
