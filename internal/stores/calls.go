package stores

import (
	"context"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/taskstore"
)

func (s *Instrumented) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	return two(ctx, s, "create", func(ctx context.Context) (procfleet.Task, bool, error) { return s.Full.Create(ctx, d) })
}

func (s *Instrumented) Dispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64) error {
	return s.call(ctx, "dispatched", func(ctx context.Context) error { return s.Full.Dispatched(ctx, id, sequences) })
}

func (s *Instrumented) Reject(ctx context.Context, id procfleet.TaskID, reason string) (bool, error) {
	return one(ctx, s, "reject", func(ctx context.Context) (bool, error) { return s.Full.Reject(ctx, id, reason) })
}

func (s *Instrumented) Begin(ctx context.Context, id procfleet.TaskID, chunk, upto int) (taskstore.Begun, error) {
	return one(ctx, s, "begin", func(ctx context.Context) (taskstore.Begun, error) { return s.Full.Begin(ctx, id, chunk, upto) })
}

func (s *Instrumented) Delivered(ctx context.Context, id procfleet.TaskID, chunk int, items []int, done bool) error {
	return s.call(ctx, "delivered", func(ctx context.Context) error { return s.Full.Delivered(ctx, id, chunk, items, done) })
}

func (s *Instrumented) Record(ctx context.Context, batches []taskstore.Batch) ([]taskstore.Recorded, error) {
	return one(ctx, s, "record", func(ctx context.Context) ([]taskstore.Recorded, error) { return s.Full.Record(ctx, batches) })
}

func (s *Instrumented) Pause(ctx context.Context, id procfleet.TaskID, reason string, seq int) (procfleet.Task, error) {
	return one(ctx, s, "pause", func(ctx context.Context) (procfleet.Task, error) { return s.Full.Pause(ctx, id, reason, seq) })
}

func (s *Instrumented) Resume(ctx context.Context, id procfleet.TaskID, seq int) (procfleet.Task, error) {
	return one(ctx, s, "resume", func(ctx context.Context) (procfleet.Task, error) { return s.Full.Resume(ctx, id, seq) })
}

func (s *Instrumented) Cancel(ctx context.Context, id procfleet.TaskID, mode procfleet.CancelMode, reason string, seq int) (procfleet.Task, error) {
	return one(ctx, s, "cancel", func(ctx context.Context) (procfleet.Task, error) { return s.Full.Cancel(ctx, id, mode, reason, seq) })
}

func (s *Instrumented) CancelItems(ctx context.Context, id procfleet.TaskID, items []taskstore.ChunkItems, mode procfleet.CancelMode, reason string, seq int) (procfleet.Task, error) {
	return one(ctx, s, "cancel_items", func(ctx context.Context) (procfleet.Task, error) {
		return s.Full.CancelItems(ctx, id, items, mode, reason, seq)
	})
}

func (s *Instrumented) ItemCancels(ctx context.Context, id procfleet.TaskID, chunk int) (taskstore.CanceledItems, error) {
	return one(ctx, s, "item_cancels", func(ctx context.Context) (taskstore.CanceledItems, error) { return s.Full.ItemCancels(ctx, id, chunk) })
}

func (s *Instrumented) ItemsCanceled(ctx context.Context, id procfleet.TaskID, chunk, seq int) error {
	return s.call(ctx, "items_canceled", func(ctx context.Context) error { return s.Full.ItemsCanceled(ctx, id, chunk, seq) })
}

func (s *Instrumented) Away(ctx context.Context, id procfleet.TaskID, chunk int, items []int, sent bool) error {
	return s.call(ctx, "away", func(ctx context.Context) error { return s.Full.Away(ctx, id, chunk, items, sent) })
}

func (s *Instrumented) AdvanceRollout(ctx context.Context, id procfleet.TaskID, o taskstore.Advance) (taskstore.Advanced, error) {
	return one(ctx, s, "advance_rollout", func(ctx context.Context) (taskstore.Advanced, error) { return s.Full.AdvanceRollout(ctx, id, o) })
}

func (s *Instrumented) EndHold(ctx context.Context, id procfleet.TaskID, kind procfleet.HoldKind, failures, seq int) (procfleet.Task, error) {
	return one(ctx, s, "end_hold", func(ctx context.Context) (procfleet.Task, error) {
		return s.Full.EndHold(ctx, id, kind, failures, seq)
	})
}

func (s *Instrumented) JudgeStage(ctx context.Context, id procfleet.TaskID, stage int, hold procfleet.Hold) (procfleet.Task, error) {
	return one(ctx, s, "judge_stage", func(ctx context.Context) (procfleet.Task, error) { return s.Full.JudgeStage(ctx, id, stage, hold) })
}

func (s *Instrumented) KeepPrevious(ctx context.Context, id procfleet.TaskID, specs []taskstore.PreviousSpecs) error {
	return s.call(ctx, "keep_previous", func(ctx context.Context) error { return s.Full.KeepPrevious(ctx, id, specs) })
}

func (s *Instrumented) PreviousSpecs(ctx context.Context, id procfleet.TaskID, chunk int) ([]taskstore.PreviousSpecs, error) {
	return one(ctx, s, "previous_specs", func(ctx context.Context) ([]taskstore.PreviousSpecs, error) {
		return s.Full.PreviousSpecs(ctx, id, chunk)
	})
}

func (s *Instrumented) LinkUndo(ctx context.Context, id, undo procfleet.TaskID) (procfleet.Task, error) {
	return one(ctx, s, "link_undo", func(ctx context.Context) (procfleet.Task, error) { return s.Full.LinkUndo(ctx, id, undo) })
}

func (s *Instrumented) Transitions(ctx context.Context, id procfleet.TaskID, after, upto int) ([]procfleet.Transition, error) {
	return one(ctx, s, "transitions", func(ctx context.Context) ([]procfleet.Transition, error) {
		return s.Full.Transitions(ctx, id, after, upto)
	})
}

func (s *Instrumented) TransitionsSent(ctx context.Context, id procfleet.TaskID, upto int) error {
	return s.call(ctx, "transitions_sent", func(ctx context.Context) error { return s.Full.TransitionsSent(ctx, id, upto) })
}

func (s *Instrumented) Retried(ctx context.Context, id, retry procfleet.TaskID) (procfleet.Task, error) {
	return one(ctx, s, "retried", func(ctx context.Context) (procfleet.Task, error) { return s.Full.Retried(ctx, id, retry) })
}

func (s *Instrumented) Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error) {
	return one(ctx, s, "task", func(ctx context.Context) (procfleet.Task, error) { return s.Full.Task(ctx, id) })
}

func (s *Instrumented) Tasks(ctx context.Context, q taskstore.TaskQuery) ([]procfleet.Task, error) {
	return one(ctx, s, "tasks", func(ctx context.Context) ([]procfleet.Task, error) { return s.Full.Tasks(ctx, q) })
}

func (s *Instrumented) Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error) {
	return one(ctx, s, "chunk", func(ctx context.Context) ([]procfleet.ItemResult, error) { return s.Full.Chunk(ctx, id, chunk) })
}

func (s *Instrumented) Owners(ctx context.Context, id procfleet.TaskID, items []int) ([]procfleet.Host, error) {
	return one(ctx, s, "owners", func(ctx context.Context) ([]procfleet.Host, error) { return s.Full.Owners(ctx, id, items) })
}

func (s *Instrumented) Results(ctx context.Context, id procfleet.TaskID, q taskstore.ResultQuery) ([]procfleet.ItemResult, string, error) {
	return two(ctx, s, "results", func(ctx context.Context) ([]procfleet.ItemResult, string, error) { return s.Full.Results(ctx, id, q) })
}

func (s *Instrumented) Due(ctx context.Context, shard, limit int) ([]taskstore.Visit, error) {
	return one(ctx, s, "due", func(ctx context.Context) ([]taskstore.Visit, error) { return s.Full.Due(ctx, shard, limit) })
}

func (s *Instrumented) TasksByID(ctx context.Context, ids []procfleet.TaskID) ([]procfleet.Task, error) {
	return one(ctx, s, "tasks_by_id", func(ctx context.Context) ([]procfleet.Task, error) { return s.Full.TasksByID(ctx, ids) })
}

func (s *Instrumented) DeliveredItems(ctx context.Context, tasks []procfleet.Task) ([][]procfleet.ItemResult, error) {
	return one(ctx, s, "delivered_items", func(ctx context.Context) ([][]procfleet.ItemResult, error) { return s.Full.DeliveredItems(ctx, tasks) })
}

func (s *Instrumented) Revisit(ctx context.Context, next ...taskstore.NextVisit) error {
	return s.call(ctx, "revisit", func(ctx context.Context) error { return s.Full.Revisit(ctx, next...) })
}

func (s *Instrumented) Published(ctx context.Context, id procfleet.TaskID) error {
	return s.call(ctx, "published", func(ctx context.Context) error { return s.Full.Published(ctx, id) })
}

func (s *Instrumented) Notified(ctx context.Context, ids ...procfleet.TaskID) error {
	return s.call(ctx, "notified", func(ctx context.Context) error { return s.Full.Notified(ctx, ids...) })
}

func (s *Instrumented) Announce(ctx context.Context, as []taskstore.Announcement) error {
	return s.call(ctx, "announce", func(ctx context.Context) error { return s.Full.Announce(ctx, as) })
}

func (s *Instrumented) Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error) {
	return one(ctx, s, "presences", func(ctx context.Context) ([]taskstore.Presence, error) { return s.Full.Presences(ctx, hosts) })
}

func (s *Instrumented) Bind(ctx context.Context, bs []taskstore.AgentBinding) error {
	return s.call(ctx, "bind", func(ctx context.Context) error { return s.Full.Bind(ctx, bs) })
}

func (s *Instrumented) Resolve(ctx context.Context, agentIDs []string) ([]procfleet.Host, error) {
	return one(ctx, s, "resolve", func(ctx context.Context) ([]procfleet.Host, error) { return s.Full.Resolve(ctx, agentIDs) })
}

func (s *Instrumented) HostPage(ctx context.Context, after procfleet.Host, limit int) ([]taskstore.Presence, error) {
	return one(ctx, s, "hosts", func(ctx context.Context) ([]taskstore.Presence, error) { return s.Full.HostPage(ctx, after, limit) })
}

func (s *Instrumented) Register(ctx context.Context, ds []catalog.Definition, replace bool) ([][]bool, error) {
	return one(ctx, s, "register", func(ctx context.Context) ([][]bool, error) { return s.Full.Register(ctx, ds, replace) })
}

func (s *Instrumented) EndRegistrations(ctx context.Context, ps []catalog.Process, asked time.Time) ([]bool, error) {
	return one(ctx, s, "end_registrations", func(ctx context.Context) ([]bool, error) { return s.Full.EndRegistrations(ctx, ps, asked) })
}

func (s *Instrumented) Unregister(ctx context.Context, ps []catalog.Process) ([]bool, error) {
	return one(ctx, s, "unregister", func(ctx context.Context) ([]bool, error) { return s.Full.Unregister(ctx, ps) })
}

func (s *Instrumented) Registrations(ctx context.Context, ps []catalog.Process) ([]*catalog.Registration, error) {
	return one(ctx, s, "registrations", func(ctx context.Context) ([]*catalog.Registration, error) { return s.Full.Registrations(ctx, ps) })
}

func (s *Instrumented) RegisteredHosts(ctx context.Context, namespace, name string, after procfleet.Host, limit int) ([]procfleet.Host, error) {
	return one(ctx, s, "registered_hosts", func(ctx context.Context) ([]procfleet.Host, error) {
		return s.Full.RegisteredHosts(ctx, namespace, name, after, limit)
	})
}

func (s *Instrumented) Report(ctx context.Context, reports []catalog.Report) error {
	return s.call(ctx, "report", func(ctx context.Context) error { return s.Full.Report(ctx, reports) })
}

func (s *Instrumented) Entries(ctx context.Context, ps []catalog.Process) ([]catalog.Entry, error) {
	return one(ctx, s, "entries", func(ctx context.Context) ([]catalog.Entry, error) { return s.Full.Entries(ctx, ps) })
}

func (s *Instrumented) EntryPage(ctx context.Context, namespace string, start, limit int) ([]catalog.Entry, int, error) {
	return two(ctx, s, "entry_page", func(ctx context.Context) ([]catalog.Entry, int, error) {
		return s.Full.EntryPage(ctx, namespace, start, limit)
	})
}

func (s *Instrumented) SetGroups(ctx context.Context, gs []catalog.HostGroups) error {
	return s.call(ctx, "set_groups", func(ctx context.Context) error { return s.Full.SetGroups(ctx, gs) })
}

func (s *Instrumented) Groups(ctx context.Context, namespace string, hosts []procfleet.Host) ([]catalog.HostGroups, error) {
	return one(ctx, s, "groups", func(ctx context.Context) ([]catalog.HostGroups, error) { return s.Full.Groups(ctx, namespace, hosts) })
}

func (s *Instrumented) LabelHosts(ctx context.Context, hosts []procfleet.Host, l catalog.Labeling) ([]bool, error) {
	return one(ctx, s, "label_hosts", func(ctx context.Context) ([]bool, error) { return s.Full.LabelHosts(ctx, hosts, l) })
}

func (s *Instrumented) LabelsOf(ctx context.Context, hosts []procfleet.Host) ([]map[string]string, error) {
	return one(ctx, s, "labels_of", func(ctx context.Context) ([]map[string]string, error) { return s.Full.LabelsOf(ctx, hosts) })
}

func (s *Instrumented) GroupsOf(ctx context.Context, hosts []procfleet.Host) ([][]catalog.HostGroups, error) {
	return one(ctx, s, "groups_of", func(ctx context.Context) ([][]catalog.HostGroups, error) { return s.Full.GroupsOf(ctx, hosts) })
}

func (s *Instrumented) SetPolicies(ctx context.Context, namespace string, p catalog.RolloutPolicies) error {
	return s.call(ctx, "set_policies", func(ctx context.Context) error { return s.Full.SetPolicies(ctx, namespace, p) })
}

func (s *Instrumented) SetSchedule(ctx context.Context, schedule catalog.Schedule) error {
	return s.call(ctx, "set_schedule", func(ctx context.Context) error { return s.Full.SetSchedule(ctx, schedule) })
}

func (s *Instrumented) RemoveSchedule(ctx context.Context, namespace, name string) (bool, error) {
	return one(ctx, s, "remove_schedule", func(ctx context.Context) (bool, error) { return s.Full.RemoveSchedule(ctx, namespace, name) })
}

func (s *Instrumented) Schedules(ctx context.Context) ([]catalog.Schedule, error) {
	return one(ctx, s, "schedules", func(ctx context.Context) ([]catalog.Schedule, error) { return s.Full.Schedules(ctx) })
}

func (s *Instrumented) SetWebhook(ctx context.Context, w catalog.Webhook) error {
	return s.call(ctx, "set_webhook", func(ctx context.Context) error { return s.Full.SetWebhook(ctx, w) })
}

func (s *Instrumented) RemoveWebhook(ctx context.Context, application, name string) (bool, error) {
	return one(ctx, s, "remove_webhook", func(ctx context.Context) (bool, error) { return s.Full.RemoveWebhook(ctx, application, name) })
}

func (s *Instrumented) Webhooks(ctx context.Context) ([]catalog.Webhook, error) {
	return one(ctx, s, "webhooks", func(ctx context.Context) ([]catalog.Webhook, error) { return s.Full.Webhooks(ctx) })
}

func (s *Instrumented) RecordDelivery(ctx context.Context, application, name string, state catalog.WebhookState, dead *catalog.DeadDelivery) error {
	return s.call(ctx, "record_delivery", func(ctx context.Context) error { return s.Full.RecordDelivery(ctx, application, name, state, dead) })
}

func (s *Instrumented) DeadDeliveries(ctx context.Context, application, name string) ([]catalog.DeadDelivery, error) {
	return one(ctx, s, "dead_deliveries", func(ctx context.Context) ([]catalog.DeadDelivery, error) {
		return s.Full.DeadDeliveries(ctx, application, name)
	})
}

func (s *Instrumented) RemoveDead(ctx context.Context, application, name string, position uint64) error {
	return s.call(ctx, "remove_dead", func(ctx context.Context) error { return s.Full.RemoveDead(ctx, application, name, position) })
}

func (s *Instrumented) RecordRun(ctx context.Context, namespace, name string, r catalog.ScheduleRun) error {
	return s.call(ctx, "record_run", func(ctx context.Context) error { return s.Full.RecordRun(ctx, namespace, name, r) })
}

func (s *Instrumented) Policies(ctx context.Context, namespaces []string) ([]catalog.RolloutPolicies, error) {
	return one(ctx, s, "policies", func(ctx context.Context) ([]catalog.RolloutPolicies, error) { return s.Full.Policies(ctx, namespaces) })
}

func (s *Instrumented) Freeze(ctx context.Context, scopes []catalog.Scope, f catalog.Freezing) (time.Time, error) {
	return one(ctx, s, "freeze", func(ctx context.Context) (time.Time, error) { return s.Full.Freeze(ctx, scopes, f) })
}

func (s *Instrumented) Lift(ctx context.Context, scopes []catalog.Scope) ([]bool, error) {
	return one(ctx, s, "lift", func(ctx context.Context) ([]bool, error) { return s.Full.Lift(ctx, scopes) })
}

func (s *Instrumented) FreezePage(ctx context.Context, after catalog.Scope, limit int) ([]catalog.Freeze, error) {
	return one(ctx, s, "freeze_page", func(ctx context.Context) ([]catalog.Freeze, error) { return s.Full.FreezePage(ctx, after, limit) })
}

func (s *Instrumented) FreezesOf(ctx context.Context, hosts []procfleet.Host) ([][]catalog.Freeze, error) {
	return one(ctx, s, "freezes_of", func(ctx context.Context) ([][]catalog.Freeze, error) { return s.Full.FreezesOf(ctx, hosts) })
}

func (s *Instrumented) EditTemplates(ctx context.Context, b catalog.Business, edits []catalog.Edit) ([]catalog.Edited, error) {
	return one(ctx, s, "edit_templates", func(ctx context.Context) ([]catalog.Edited, error) { return s.Full.EditTemplates(ctx, b, edits) })
}

func (s *Instrumented) DeleteTemplate(ctx context.Context, b catalog.Business, id int64) (bool, error) {
	return one(ctx, s, "delete_template", func(ctx context.Context) (bool, error) { return s.Full.DeleteTemplate(ctx, b, id) })
}

func (s *Instrumented) Templates(ctx context.Context, b catalog.Business, ids []int64) ([]*catalog.Template, error) {
	return one(ctx, s, "templates", func(ctx context.Context) ([]*catalog.Template, error) { return s.Full.Templates(ctx, b, ids) })
}

func (s *Instrumented) SearchTemplates(ctx context.Context, b catalog.Business, search catalog.Search) ([]catalog.Template, int, error) {
	return two(ctx, s, "search_templates", func(ctx context.Context) ([]catalog.Template, int, error) {
		return s.Full.SearchTemplates(ctx, b, search)
	})
}

func (s *Instrumented) FindTemplates(ctx context.Context, b catalog.Business, search catalog.Search) ([]int64, error) {
	return one(ctx, s, "find_templates", func(ctx context.Context) ([]int64, error) { return s.Full.FindTemplates(ctx, b, search) })
}

func (s *Instrumented) SetTopology(ctx context.Context, b catalog.Business, t catalog.Topology) (int64, error) {
	return one(ctx, s, "set_topology", func(ctx context.Context) (int64, error) { return s.Full.SetTopology(ctx, b, t) })
}

func (s *Instrumented) SetModuleHosts(ctx context.Context, b catalog.Business, set, module string, hosts []procfleet.Host) (int64, error) {
	return one(ctx, s, "set_module_hosts", func(ctx context.Context) (int64, error) { return s.Full.SetModuleHosts(ctx, b, set, module, hosts) })
}

func (s *Instrumented) Topology(ctx context.Context, b catalog.Business) (*catalog.Topology, error) {
	return one(ctx, s, "topology", func(ctx context.Context) (*catalog.Topology, error) { return s.Full.Topology(ctx, b) })
}
