package redisstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// directoryField holds the first item of each chunk, see [directory], and bodyField the
// hash of the request's body. publishedField records that the finished event was
// published.
const (
	publishedField   = "published"
	directoryField   = "directory"
	seqField         = "seq"         // see [procfleet.Task.Seq]; missing means 0
	transitionsField = "transitions" // number of transitions; missing means 0
	sentField        = "sent"        // number of published transitions; missing means 0
	itemCancelsField = "cancels"     // see [procfleet.Task.ItemCancels]; missing means 0
	holdField        = "hold"        // see [readHold]; missing while the task is not held
	cancelField      = "cancel"      // see [readCancel]; missing unless the task was canceled
	undoneField      = "undone"      // id of the task that reverts this one; missing without one
	retriedField     = "retried"     // ids of the retries, separated by spaces; missing without any
	releaseField     = "release"     // see [release]; missing without a rollout
	bodyField        = "body"
)

// countField returns the field that counts the items of a state: "n:" and the
// lower-case letter of its mark.
func countField(s procfleet.State) string { return "n:" + pack.Marks(s)[:1] }

// taskFields returns the head fields of a [procfleet.Task], in the order in which
// [readHead] reads them.
func taskFields() []string {
	fields := []string{
		"state", "lane", "items", "chunks", "created", "deadline", "expires",
		"finished", "dispatched", "notify", publishedField, "reason", seqField, transitionsField, sentField, holdField, cancelField, itemCancelsField, retriedField, undoneField, releaseField, "about",
	}
	for _, s := range procfleet.States() {
		fields = append(fields, countField(s))
	}
	return fields
}

// about holds the task fields that no script reads.
type about struct {
	Actions     []procfleet.Action `json:"a,omitempty"`
	Dialect     string             `json:"d,omitempty"`
	Application string             `json:"p,omitempty"`
	Business    string             `json:"b,omitempty"`
	Callback    string             `json:"c,omitempty"`
	Trace       string             `json:"t,omitempty"`
	Origin      procfleet.Origin   `json:"o,omitzero"`
	RetryOf     procfleet.TaskID   `json:"r,omitempty"`
	UndoOf      procfleet.TaskID   `json:"u,omitempty"`
	// Scripts of rollouts read the plan.
	Rollout *procfleet.RolloutPlan `json:"g,omitempty"`
}

// readHead builds a task from the values of [taskFields].
func readHead(id procfleet.TaskID, values []any) (procfleet.Task, error) {
	n, err := id.Number()
	if err != nil {
		return procfleet.Task{}, taskstore.ErrNotFound
	}
	h := head{values: values}
	t := procfleet.Task{
		ID: id, Number: n,
		State:         procfleet.TaskState(h.text()),
		Lane:          procfleet.Lane(h.text()),
		Items:         int(h.int()),
		Chunks:        int(h.int()),
		CreatedAt:     redisconn.Moment(h.int()),
		Deadline:      redisconn.Moment(h.int()),
		ExpiresAt:     redisconn.Moment(h.int()),
		FinishedAt:    redisconn.Moment(h.int()),
		Dispatched:    h.int() == 1,
		NotifyPending: h.int() == 1, EventPublished: h.int() == 1,
		RejectReason: h.text(), Seq: int(h.int()),
		Transitions: int(h.int()), TransitionsSent: int(h.int()),
		Hold: readHold(h.text()), Cancel: readCancel(h.text()), ItemCancels: int(h.int()),
		RetriedBy: readRetries(h.text()),
		UndoneBy:  procfleet.TaskID(h.text()),
		Counts:    make(procfleet.Counts, len(procfleet.States())),
	}
	if t.State == "" {
		return procfleet.Task{}, taskstore.ErrNotFound
	}
	if t.State.Done() {
		t.Hold = procfleet.Hold{}
	}
	progress := h.text()
	var a about
	if err := json.Unmarshal([]byte(h.text()), &a); err != nil {
		return procfleet.Task{}, fmt.Errorf("%w: head of task %s: %w", redisconn.ErrDamaged, id, err)
	}
	t.Actions, t.Dialect, t.Application, t.Business, t.Callback = a.Actions, a.Dialect, a.Application, a.Business, a.Callback
	t.Trace, t.Origin, t.RetryOf, t.UndoOf = a.Trace, a.Origin, a.RetryOf, a.UndoOf
	if t.Rollout, err = readRelease(progress, a.Rollout); err != nil {
		return procfleet.Task{}, fmt.Errorf("head of task %s: %w", id, err)
	}
	if t.Rollout != nil && t.State.Done() {
		t.Rollout.Hold = procfleet.Hold{}
	}
	for _, s := range procfleet.States() {
		t.Counts[s] = int(h.int())
	}
	return t, nil
}

// head iterates over field values; a missing value reads as zero.
type head struct{ values []any }

func (h *head) text() string {
	if len(h.values) == 0 {
		return ""
	}
	v, _ := h.values[0].(string)
	h.values = h.values[1:]
	return v
}

func (h *head) int() int64 {
	n, _ := strconv.ParseInt(h.text(), 10, 64) // missing fields are zero, and only scripts write these fields
	return n
}

// newHead returns the fields and values of a new task's head.
func newHead(t *procfleet.Task, d *taskstore.Draft) ([]any, error) {
	text, err := json.Marshal(about{t.Actions, t.Dialect, t.Application, t.Business, t.Callback, t.Trace, t.Origin, t.RetryOf, t.UndoOf, d.Rollout})
	if err != nil {
		return nil, fmt.Errorf("head of task %s: %w", t.ID, err)
	}
	fields := []any{
		"state", string(t.State), "lane", string(t.Lane), "items", t.Items, "chunks", t.Chunks,
		"created", t.CreatedAt.UnixMicro(), "deadline", t.Deadline.UnixMicro(), "expires", t.ExpiresAt.UnixMicro(),
		"about", text, bodyField, d.BodyHash, directoryField, directory(d.Chunks),
		countField(procfleet.StatePending), t.Items,
	}
	if t.Rollout == nil {
		return fields, nil
	}
	progress, err := releaseText(t.Rollout)
	if err != nil {
		return nil, fmt.Errorf("head of task %s: %w", t.ID, err)
	}
	fields = append(fields, releaseField, progress)
	for k := range d.Chunks {
		chunk := &d.Chunks[k]
		fields = append(fields, "units:"+strconv.Itoa(k), pack.Units(chunk.Items))
		if chunk.Zone > 0 {
			fields = append(fields, "zone:"+strconv.Itoa(k), chunk.Zone)
		}
	}
	return fields, nil
}

// entry is the width of a directory entry in bytes.
const entry = 8

// directory returns the item range of each chunk: the index of the first item of each
// chunk, followed by the number of all items, as eight digits each. With it a script
// finds the items of a chunk without reading the chunk.
func directory(chunks []procfleet.Chunk) []byte {
	dir := make([]byte, 0, entry*(len(chunks)+1))
	end := 0
	for i := range chunks {
		dir = fmt.Appendf(dir, "%0*d", entry, chunks[i].First)
		end = chunks[i].First + len(chunks[i].Items)
	}
	return fmt.Appendf(dir, "%0*d", entry, end)
}

// firsts parses a directory.
func firsts(dir string) ([]int, error) {
	list := make([]int, 0, len(dir)/entry)
	for ; len(dir) >= entry; dir = dir[entry:] {
		n, err := strconv.Atoi(dir[:entry])
		if err != nil {
			return nil, fmt.Errorf("%w: directory of a task", redisconn.ErrDamaged)
		}
		list = append(list, n)
	}
	return list, nil
}

// Task reads a task in one round trip, independent of its size.
func (s *Store) Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error) {
	if _, err := number(id); err != nil {
		return procfleet.Task{}, err
	}
	var fields *redis.SliceCmd
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		fields = pipe.HMGet(ctx, s.keys.task(id).head(), taskFields()...)
	}); err != nil {
		return procfleet.Task{}, fmt.Errorf("read task %s: %w", id, err)
	}
	return readHead(id, fields.Val())
}

// taskAndBody reads a task and the hash of the request's body.
func (s *Store) taskAndBody(ctx context.Context, id procfleet.TaskID) (procfleet.Task, string, error) {
	var fields *redis.SliceCmd
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		fields = pipe.HMGet(ctx, s.keys.task(id).head(), append(taskFields(), bodyField)...)
	}); err != nil {
		return procfleet.Task{}, "", err
	}
	values := fields.Val()
	t, err := readHead(id, values)
	if err != nil {
		return procfleet.Task{}, "", err
	}
	last := head{values: values[len(values)-1:]}
	return t, last.text(), nil
}

// Tasks reads numbers from the index and then the heads of their tasks. It skips
// numbers whose tasks were never created or have expired.
func (s *Store) Tasks(ctx context.Context, q taskstore.TaskQuery) ([]procfleet.Task, error) {
	limit, before := pack.Limit(q.Limit), q.Before
	var tasks []procfleet.Task
	for len(tasks) < limit {
		ids, err := s.numbersBefore(ctx, before, limit)
		if err != nil || len(ids) == 0 {
			return tasks, err
		}
		found, err := s.TasksByID(ctx, ids)
		if err != nil {
			return nil, err
		}
		for i := range found {
			if found[i].ID != "" {
				tasks = append(tasks, found[i])
			}
		}
		if before, err = ids[len(ids)-1].Number(); err != nil {
			return nil, err
		}
	}
	return tasks[:limit], nil
}

func (s *Store) numbersBefore(ctx context.Context, before procfleet.Number, limit int) ([]procfleet.TaskID, error) {
	end := "+inf"
	if before != 0 {
		end = "(" + strconv.FormatInt(int64(before), 10)
	}
	var members *redis.StringSliceCmd
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		members = pipe.ZRevRangeByScore(ctx, s.keys.tasks(), &redis.ZRangeBy{Min: "-inf", Max: end, Count: int64(limit)})
	}); err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	return taskIDs(members.Val())
}

// taskIDs converts members of an index to task ids.
func taskIDs(members []string) ([]procfleet.TaskID, error) {
	ids := make([]procfleet.TaskID, len(members))
	for i, m := range members {
		n, err := strconv.ParseInt(m, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: index member %.40q", redisconn.ErrDamaged, m)
		}
		ids[i] = procfleet.Number(n).TaskID()
	}
	return ids, nil
}

// number returns the number in a task id. For an invalid id the error is
// [taskstore.ErrNotFound].
func number(id procfleet.TaskID) (procfleet.Number, error) {
	n, err := id.Number()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", taskstore.ErrNotFound, err)
	}
	return n, nil
}

// expiry returns the expiry of a key in milliseconds since the Unix epoch, for
// PEXPIREAT.
func expiry(t time.Time) int64 { return t.UnixMilli() }
