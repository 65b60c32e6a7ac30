package dialect

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/internal/plaintext"
)

func decodeNativeTaskID(r *Request) (procfleet.TaskID, error) { return knownTaskID(r.ID, "id") }

// decodeNativeWatch prefers the header Last-Event-ID to the parameter: a browser that
// reconnects repeats the URL of its first request and adds the header.
func decodeNativeWatch(r *Request) (WatchedTask, error) {
	id, err := decodeNativeTaskID(r)
	return WatchedTask{Task: id, LastEventID: cmp.Or(r.LastEventID, r.Query.Get("last_event_id"))}, err
}

func decodeTaskFeed(r *Request) (TaskFeed, error) {
	f := TaskFeed{Business: r.Query.Get("business")}
	if last := cmp.Or(r.LastEventID, r.Query.Get("last_event_id")); last != "" {
		after, err := strconv.ParseUint(last, 10, 64)
		if err != nil {
			return f, &Error{Kind: InvalidField, Field: "last_event_id", Problem: "is not the id of an event"}
		}
		f.After = &after
	}
	if id := r.Query.Get("task"); id != "" {
		var err error
		if f.Task, err = procfleet.ParseTaskID(id); err != nil {
			return f, &Error{Kind: InvalidField, Field: "task", Problem: err.Error()}
		}
	}
	return f, nil
}

func nativeTaskEvent(_ *TaskFeed, e v1.TaskEvent, _ string) Reply { return ok(e) }

func decodeResultPage(r *Request) (ResultPage, error) {
	id, err := decodeNativeTaskID(r)
	if err != nil {
		return ResultPage{}, err
	}
	from := queryReader{Request: r}
	p := ResultPage{Task: id, State: procfleet.State(r.Query.Get("state")), Cursor: r.Query.Get("cursor"), Limit: from.limit()}
	if p.State != "" && !slices.Contains(procfleet.States(), p.State) {
		from.fail("state", "is not one of %v", procfleet.States())
	}
	return p, from.err
}

func newNativeTask(t *procfleet.Task) v1.Task {
	n := v1.Task{
		ID: t.ID, State: t.State, Counts: make(procfleet.Counts), Items: t.Items, Actions: t.Actions,
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
	n.Seq = t.Seq
	if t.Held() {
		n.Hold = &v1.Hold{Kind: t.Hold.Kind, Reason: t.Hold.Reason, Since: t.Hold.Since}
	}
	n.Rollout = newNativeRollout(t.Rollout)
	n.RetryOf, n.RetriedBy = t.RetryOf, t.RetriedBy
	n.UndoOf, n.UndoneBy = t.UndoOf, t.UndoneBy
	if parts := strings.Split(t.Trace, "-"); len(parts) > 1 { // a traceparent: version, trace id, ...
		n.TraceID = parts[1]
	}
	if t.Canceled() {
		n.Cancel = &v1.Cancel{Mode: t.Cancel.Mode, Reason: t.Cancel.Reason, Since: t.Cancel.Since}
	}
	return n
}

func newNativeRollout(r *procfleet.Rollout) *v1.Rollout {
	if r == nil {
		return nil
	}
	n := &v1.Rollout{
		PlannedRollout: *PlannedRollout(&r.Plan),
		Hosts:          r.Plan.Units(), Released: r.Released, Active: r.Active, Waiting: r.Waiting, Failed: r.Failed,
		Stage: r.Stage + 1, Phase: r.Phase, Since: r.Since, OnFailure: cmp.Or(r.Plan.OnFailure, procfleet.OnFailureHold),
	}
	n.Window, n.MaxFailures = r.Window, tolerated(r.Failures)
	if r.Hold.Kind != "" {
		n.Hold = &v1.Hold{Kind: r.Hold.Kind, Reason: r.Hold.Reason, Since: r.Hold.Since}
	}
	return n
}

// PlannedRollout returns the limits and stages of a rollout; nil without one.
func PlannedRollout(p *procfleet.RolloutPlan) *v1.PlannedRollout {
	if p == nil {
		return nil
	}
	planned := &v1.PlannedRollout{Policy: p.Policy, Window: p.Window, MaxFailures: tolerated(p.Failures)}
	for _, s := range p.Stages {
		planned.Stages = append(planned.Stages, v1.RolloutStage{Hosts: s.Units})
	}
	if z := p.Zones; z != (procfleet.ZoneLimits{}) {
		planned.Zones = &v1.RolloutZones{Window: z.Window, AtOnce: z.AtOnce}
	}
	if p.Queue > 0 {
		planned.Queue = &procfleet.HostQueue{For: procfleet.Duration(p.Queue), Coalesce: p.Coalesce}
	}
	return planned
}

func tolerated(failures int) *int {
	if failures == procfleet.AnyFailures {
		return nil
	}
	return &failures
}

func nativeShowTask(_ *procfleet.TaskID, t *procfleet.Task, _ string) Reply { return nativeEvent(t) }

func nativeEvent(t *procfleet.Task) Reply { return ok(newNativeTask(t)) }

func nativeTasks(_ *TaskPage, found Tasks, _ string) Reply {
	page := v1.TaskPage{Tasks: make([]v1.Task, 0, len(found.Tasks)), Next: string(found.Next)}
	for i := range found.Tasks {
		page.Tasks = append(page.Tasks, newNativeTask(&found.Tasks[i]))
	}
	return ok(page)
}

func newNativeResult(it *procfleet.ItemResult) v1.Result {
	n := v1.Result{
		Item: it.Index, Host: it.Item.Target.Host, AgentID: it.Item.Target.AgentID,
		Namespace: it.Spec.Namespace, Name: it.Spec.Name, Key: it.Spec.Key(),
		Action: it.Item.Action, State: it.State, Code: resultCode(it),
		Reason: it.Result.Reason, Refusal: it.Result.Refusal, Warnings: nativeWarnings(it.Result.Warnings), Status: it.Result.Status,
		AcceptedAt: it.Result.AcceptedAt, StartedAt: it.Result.StartedAt, FinishedAt: it.Result.FinishedAt,
		Late: it.Result.Late,
	}
	if it.State.Final() {
		n.Message = nativeNames(resultMessage(it, n.Code))
	}
	return n
}

// nativeResults renders a [v1.ResultPage] without reflection, which takes most of the
// time of a page with 1000 results.
func nativeResults(_ *ResultPage, found Results, _ string) Reply {
	const each = 512 // size of a typical result in bytes
	b := append(make(rendered, 0, each*(len(found.Items)+1)), `{"results":[`...)
	for i := range found.Items {
		n := newNativeResult(&found.Items[i])
		b = renderResult(b.comma(), &n)
	}
	return ok(append(append(b, ']').text("next", found.Next), '}'))
}

func renderResult(b rendered, n *v1.Result) rendered {
	b = append(b, '{')
	b = b.number("item", int64(n.Item)).text("host", n.Host.String()).given("agent_id", n.AgentID)
	b = b.given("namespace", n.Namespace).given("name", n.Name).text("key", n.Key)
	b = b.text("action", string(n.Action)).text("state", string(n.State)).number("code", int64(n.Code))
	b = b.given("reason", string(n.Reason)).given("refusal", string(n.Refusal)).text("message", n.Message).texts("warnings", n.Warnings)
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
