package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// directoryField holds where each chunk begins, see [directory]; bodyField
// the hash of the request's body. publishedField marks that the finished event
// was published. It is beside "notify" and not another value of it, because
// workers of the release before read only "notify": they ignore the new field,
// send the event again under the same id, then the callback, and clear
// "notify". A task without the field has an event to publish, so an end that
// such a worker recorded loses nothing.
const (
	publishedField = "published"
	directoryField = "directory"
	bodyField      = "body"
)

// countField is the counter of a state: "n:" and the small letter of its mark.
func countField(s procfleet.State) string { return "n:" + pack.Marks(s)[:1] }

// taskFields returns the fields of a head that make a [procfleet.Task], in the
// order in which [readHead] takes them.
func taskFields() []string {
	fields := []string{
		"state", "lane", "items", "chunks", "created", "deadline", "expires",
		"finished", "dispatched", "notify", publishedField, "reason", "about",
	}
	for _, s := range procfleet.States() {
		fields = append(fields, countField(s))
	}
	return fields
}

// about is what of a task only people and dialects read.
type about struct {
	Actions     []procfleet.Action `json:"a,omitempty"`
	Dialect     string             `json:"d,omitempty"`
	Application string             `json:"p,omitempty"`
	Business    string             `json:"b,omitempty"`
	Callback    string             `json:"c,omitempty"`
	Trace       string             `json:"t,omitempty"`
	Origin      procfleet.Origin   `json:"o,omitzero"`
}

var errDamaged = errors.New("redisstore: a stored value is missing or damaged")

// readHead makes a task from the values of [taskFields].
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
		CreatedAt:     moment(h.int()),
		Deadline:      moment(h.int()),
		ExpiresAt:     moment(h.int()),
		FinishedAt:    moment(h.int()),
		Dispatched:    h.int() == 1,
		NotifyPending: h.int() == 1, EventPublished: h.int() == 1,
		RejectReason: h.text(),
		Counts:       make(procfleet.Counts, len(procfleet.States())),
	}
	if t.State == "" {
		return procfleet.Task{}, taskstore.ErrNotFound
	}
	var a about
	if err := json.Unmarshal([]byte(h.text()), &a); err != nil {
		return procfleet.Task{}, fmt.Errorf("%w: head of task %s: %w", errDamaged, id, err)
	}
	t.Actions, t.Dialect, t.Application, t.Business, t.Callback = a.Actions, a.Dialect, a.Application, a.Business, a.Callback
	t.Trace, t.Origin = a.Trace, a.Origin
	for _, s := range procfleet.States() {
		t.Counts[s] = int(h.int())
	}
	return t, nil
}

// head takes one value after the other; missing ones are zero.
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
	n, _ := strconv.ParseInt(h.text(), 10, 64) // missing fields are zero, and only scripts write these
	return n
}

// newHead returns the fields and values of a new task's head.
func newHead(t *procfleet.Task, d *taskstore.Draft) ([]any, error) {
	text, err := json.Marshal(about{t.Actions, t.Dialect, t.Application, t.Business, t.Callback, t.Trace, t.Origin})
	if err != nil {
		return nil, fmt.Errorf("head of task %s: %w", t.ID, err)
	}
	return []any{
		"state", string(t.State), "lane", string(t.Lane), "items", t.Items, "chunks", t.Chunks,
		"created", t.CreatedAt.UnixMicro(), "deadline", t.Deadline.UnixMicro(), "expires", t.ExpiresAt.UnixMicro(),
		"about", text, bodyField, d.BodyHash, directoryField, directory(d.Chunks),
		countField(procfleet.StatePending), t.Items,
	}, nil
}

// entry is the width of one entry of a directory.
const entry = 8

// directory says which items each chunk has: the number of the first item of
// each chunk and at last the number of all items, each as eight digits, so
// that a script finds a chunk's items without reading the chunk.
func directory(chunks []procfleet.Chunk) []byte {
	dir := make([]byte, 0, entry*(len(chunks)+1))
	end := 0
	for i := range chunks {
		dir = fmt.Appendf(dir, "%0*d", entry, chunks[i].First)
		end = chunks[i].First + len(chunks[i].Items)
	}
	return fmt.Appendf(dir, "%0*d", entry, end)
}

// firsts reads a directory.
func firsts(dir string) ([]int, error) {
	list := make([]int, 0, len(dir)/entry)
	for ; len(dir) >= entry; dir = dir[entry:] {
		n, err := strconv.Atoi(dir[:entry])
		if err != nil {
			return nil, fmt.Errorf("%w: directory of a task", errDamaged)
		}
		list = append(list, n)
	}
	return list, nil
}

// Task reads a task in one round trip, whatever its size.
func (s *Store) Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error) {
	if _, err := number(id); err != nil {
		return procfleet.Task{}, err
	}
	var fields *redis.SliceCmd
	if err := s.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		fields = pipe.HMGet(ctx, s.keys.task(id).head(), taskFields()...)
	}); err != nil {
		return procfleet.Task{}, fmt.Errorf("read task %s: %w", id, err)
	}
	return readHead(id, fields.Val())
}

// taskAndBody reads a task and the hash of the request's body.
func (s *Store) taskAndBody(ctx context.Context, id procfleet.TaskID) (procfleet.Task, string, error) {
	var fields *redis.SliceCmd
	if err := s.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
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

// Tasks reads the numbers from the list and then the heads. Numbers of tasks
// that are not there, or no longer, are passed over.
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
	if err := s.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		members = pipe.ZRevRangeByScore(ctx, s.keys.tasks(), &redis.ZRangeBy{Min: "-inf", Max: end, Count: int64(limit)})
	}); err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	return taskIDs(members.Val())
}

// taskIDs makes ids from the members of an index.
func taskIDs(members []string) ([]procfleet.TaskID, error) {
	ids := make([]procfleet.TaskID, len(members))
	for i, m := range members {
		n, err := strconv.ParseInt(m, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: index member %.40q", errDamaged, m)
		}
		ids[i] = procfleet.Number(n).TaskID()
	}
	return ids, nil
}

// number is the task's number; an id that is none names no task.
func number(id procfleet.TaskID) (procfleet.Number, error) {
	n, err := id.Number()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", taskstore.ErrNotFound, err)
	}
	return n, nil
}

// expiry is the last moment of a key, as PEXPIREAT wants it.
func expiry(t time.Time) int64 { return t.UnixMilli() }
