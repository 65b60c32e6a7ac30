package dialect

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/plaintext"
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

// decodeNativeWatch prefers the header: a browser that comes back sends it
// with the address it was given in the beginning.
func decodeNativeWatch(r *Request) (WatchedTask, error) {
	id, err := decodeNativeTaskID(r)
	return WatchedTask{Task: id, LastEventID: cmp.Or(r.LastEventID, r.Query.Get("last_event_id"))}, err
}

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
	// Callback is shown without what may hold a secret: others than its caller
	// read the task too.
	Callback string `json:"callback,omitempty"`
}

func newNativeTask(t *procfleet.Task) nativeTask {
	n := nativeTask{
		ID: t.ID, State: t.State, Counts: make(map[procfleet.State]int), Items: t.Items, Actions: t.Actions,
		CreatedAt: t.CreatedAt, Deadline: t.Deadline, ExpiresAt: t.ExpiresAt, RejectReason: t.RejectReason,
		Dialect: t.Dialect, Application: t.Application, Business: t.Business, Callback: plaintext.URL(t.Callback),
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

func nativeTasks(tasks []procfleet.Task, next procfleet.TaskID) Reply {
	page := struct {
		Tasks []nativeTask     `json:"tasks"`
		Next  procfleet.TaskID `json:"next"`
	}{Tasks: make([]nativeTask, 0, len(tasks)), Next: next}
	for i := range tasks {
		page.Tasks = append(page.Tasks, newNativeTask(&tasks[i]))
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

// render appends what is declared above.
func (n *nativeResult) render(b rendered) rendered {
	b = append(b, '{')
	b = b.number("item", int64(n.Item)).text("host", n.Host).given("agent_id", n.AgentID)
	b = b.given("namespace", n.Namespace).given("name", n.Name).text("key", n.Key)
	b = b.text("action", string(n.Action)).text("state", string(n.State)).number("code", int64(n.Code))
	b = b.given("reason", string(n.Reason)).text("message", n.Message).texts("warnings", n.Warnings)
	if n.Status != nil {
		b = renderStatus(b.name("status"), n.Status)
	}
	b = b.time("accepted_at", n.AcceptedAt).time("started_at", n.StartedAt).time("finished_at", n.FinishedAt)
	if n.Late {
		b = b.truth("late", true)
	}
	return append(b, '}')
}

func renderStatus(b rendered, s *procfleet.ProcessStatus) rendered {
	b = append(b, '{')
	b = b.alwaysTime("at", s.At).number("utc_offset_s", int64(s.UTCOffset))
	b = b.truth("running", s.Running).truth("supervised", s.Supervised)
	b = b.given("phase", s.Phase).given("agent_id", s.AgentID)
	b = b.nonzero("pid", int64(s.PID)).numbers("pids", s.PIDs).nonzero("instances", int64(s.Instances))
	b = b.given("command", s.Command).given("stat", s.Stat).nonzero("threads", int64(s.Threads))
	b = b.time("started_at", s.StartedAt).nonzero("elapsed_ms", s.ElapsedMS)
	b = b.nonzero("user_ms", s.UserMS).nonzero("system_ms", s.SystemMS)
	b = b.floatNonzero("cpu", s.CPU).floatNonzero("cpu_average", s.CPUAverage)
	b = b.nonzero("memory_bytes", s.MemoryBytes).floatNonzero("memory_percent", s.MemoryPercent).nonzero("host_free_kb", s.HostFreeKB)
	b = b.floatNonzero("tree_cpu", s.TreeCPU).nonzero("tree_memory_bytes", s.TreeMemoryBytes)
	b = b.given("version", s.Version).given("health", s.Health)
	b = b.time("registered_at", s.RegisteredAt).time("last_started_at", s.LastStartedAt)
	b = b.nonzero("failures", int64(s.Failures)).time("next_retry_at", s.NextRetryAt)
	b = b.time("next_run_at", s.NextRunAt).time("frozen_until", s.FrozenUntil).nonzero("restarts", int64(s.Restarts))
	if s.LastExit != nil {
		b = renderLastExit(b.name("last_exit"), s.LastExit)
	}
	return append(b.given("evidence", s.Evidence), '}')
}

func renderLastExit(b rendered, e *procfleet.LastExit) rendered {
	b = append(b, '{').alwaysTime("at", e.At)
	if e.Known {
		b = b.truth("known", true)
	}
	b = b.nonzero("code", int64(e.Code)).given("signal", e.Signal)
	return append(b.given("why", e.Why), '}')
}

func nativeResults(items []procfleet.ItemResult, next string) Reply {
	const each = 512 // bytes, of an ordinary result
	b := append(make(rendered, 0, each*(len(items)+1)), `{"results":[`...)
	for i := range items {
		n := newNativeResult(&items[i])
		b = n.render(b.comma())
	}
	b = append(b, ']')
	return Reply{Status: http.StatusOK, Body: append(b.text("next", next), '}')}
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
