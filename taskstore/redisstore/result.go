package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// marksWindow is the number of marks that one command reads.
const marksWindow = 64 << 10

// chunkWindow is the number of chunks that one round trip reads for a page.
const chunkWindow = 64

// layout is a task with the first item of each chunk.
type layout struct {
	task   procfleet.Task
	firsts []int
}

// readLayout parses the values of [layoutFields].
func readLayout(id procfleet.TaskID, values []any) (layout, error) {
	t, err := readHead(id, values)
	if err != nil {
		return layout{}, err
	}
	last := head{values: values[len(values)-1:]}
	list, err := firsts(last.text())
	if err == nil && len(list) != t.Chunks+1 {
		err = fmt.Errorf("%w: directory of task %s", redisconn.ErrDamaged, id)
	}
	return layout{task: t, firsts: list}, err
}

func layoutFields() []string { return append(taskFields(), directoryField) }

// chunkOf returns the number of the chunk that contains an item.
func (l *layout) chunkOf(item int) int {
	n, begins := slices.BinarySearch(l.firsts, item)
	if begins {
		return n
	}
	return n - 1
}

// Chunk reads a chunk in two round trips: the packed chunk, then its marks and results.
func (s *Store) Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error) {
	if _, err := number(id); err != nil {
		return nil, err
	}
	t, view, err := s.openChunk(ctx, id, chunk)
	if err != nil {
		return nil, fmt.Errorf("read chunk %d of task %s: %w", chunk, id, err)
	}
	rows, err := s.rows(ctx, &t, view)
	if err != nil {
		return nil, fmt.Errorf("read chunk %d of task %s: %w", chunk, id, err)
	}
	return rows, nil
}

func (s *Store) openChunk(ctx context.Context, id procfleet.TaskID, chunk int) (procfleet.Task, *pack.View, error) {
	keys := s.keys.task(id)
	var fields *redis.SliceCmd
	var packed *redis.StringCmd
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		fields = pipe.HMGet(ctx, keys.head(), taskFields()...)
		packed = pipe.Get(ctx, keys.chunk(chunk))
	}); err != nil {
		return procfleet.Task{}, nil, err
	}
	t, err := readHead(id, fields.Val())
	if err != nil {
		return procfleet.Task{}, nil, err
	}
	if chunk < 0 || chunk >= t.Chunks || packed.Val() == "" {
		return procfleet.Task{}, nil, taskstore.ErrNotFound
	}
	view, err := pack.OpenChunk(packed.Val())
	return t, view, err
}

// rows reads the marks and results of all items of a chunk and combines them.
func (s *Store) rows(ctx context.Context, t *procfleet.Task, view *pack.View) ([]procfleet.ItemResult, error) {
	items := make([]int, view.Len())
	for i := range items {
		items[i] = view.First + i
	}
	var marks *redis.StringCmd
	results, err := s.results(ctx, t.ID, items, func(ctx context.Context, pipe redis.Pipeliner) {
		marks = pipe.GetRange(ctx, s.keys.task(t.ID).marks(), int64(view.First), int64(view.First+view.Len()-1))
	})
	if err != nil {
		return nil, err
	}
	if len(marks.Val()) != len(items) {
		return nil, taskstore.ErrNotFound // the task expired in the meantime
	}
	rows := make([]procfleet.ItemResult, len(items))
	for i, item := range items {
		if rows[i], err = row(t, view, item, pack.Mark(marks.Val()[i]), results[i]); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// row combines the parts of an item. The result was read after the mark, so if there is
// a result, it determines the final state.
func row(t *procfleet.Task, view *pack.View, item int, mark pack.Mark, result string) (procfleet.ItemResult, error) {
	it, err := view.Item(item - view.First)
	if err != nil {
		return procfleet.ItemResult{}, err
	}
	r := procfleet.ItemResult{Index: item, Item: it, Spec: &view.Specs[it.Spec], State: mark.State()}
	switch {
	case r.State == procfleet.StateRejected && result == "":
		r.Result = pack.Rejection(t, item)
	case r.State == procfleet.StateCancelled && result == "":
		r.Result = pack.Cancellation(t, item)
	case r.State.Final() && result == "":
		return procfleet.ItemResult{}, taskstore.ErrNotFound // the task expired in the meantime
	case r.State.Final():
		if r.Result, err = readStored(result); err != nil {
			return procfleet.ItemResult{}, fmt.Errorf("result of item %d: %w", item, err)
		}
		r.State, r.Result.Refusal = r.Result.State(), mark.Refusal()
	}
	return r, nil
}

// results reads the stored results of items in one round trip, together with the
// commands of also. The items need not be sorted. An item without a result gets "".
func (s *Store) results(ctx context.Context, id procfleet.TaskID, items []int, also func(context.Context, redis.Pipeliner)) ([]string, error) {
	type part struct {
		positions []int
		fields    []string
		answer    *redis.SliceCmd
	}
	parts := make(map[string]*part)
	keys := s.keys.task(id)
	for i, item := range items {
		key := keys.resultsOf(item)
		p := parts[key]
		if p == nil {
			p = new(part)
			parts[key] = p
		}
		p.positions = append(p.positions, i)
		p.fields = append(p.fields, strconv.Itoa(item))
	}
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		also(ctx, pipe)
		for key, p := range parts {
			p.answer = pipe.HMGet(ctx, key, p.fields...)
		}
	}); err != nil {
		return nil, err
	}
	results := make([]string, len(items))
	for _, p := range parts {
		for i, v := range p.answer.Val() {
			results[p.positions[i]], _ = v.(string)
		}
	}
	return results, nil
}

// Results reads all marks of the task, one byte per item, and then only the chunks and
// results of the items on the page.
func (s *Store) Results(ctx context.Context, id procfleet.TaskID, q taskstore.ResultQuery) ([]procfleet.ItemResult, string, error) {
	if _, err := number(id); err != nil {
		return nil, "", err
	}
	l, marks, err := s.marks(ctx, id)
	if err != nil {
		return nil, "", fmt.Errorf("read results of task %s: %w", id, err)
	}
	items, next, err := pack.Page(marks, q)
	if err != nil {
		return nil, "", err
	}
	rows, err := s.page(ctx, &l, marks, items)
	if err != nil {
		return nil, "", fmt.Errorf("read results of task %s: %w", id, err)
	}
	return rows, next, nil
}

// Owners returns the hosts of items in two round trips: one for the directory, one for
// the chunks that contain the items.
func (s *Store) Owners(ctx context.Context, id procfleet.TaskID, items []int) ([]procfleet.Host, error) {
	if _, err := number(id); err != nil {
		return nil, err
	}
	hosts, err := s.owners(ctx, id, items)
	if err != nil {
		return nil, fmt.Errorf("read the hosts of %d items of task %s: %w", len(items), id, err)
	}
	return hosts, nil
}

func (s *Store) owners(ctx context.Context, id procfleet.TaskID, items []int) ([]procfleet.Host, error) {
	var fields *redis.SliceCmd
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		fields = pipe.HMGet(ctx, s.keys.task(id).head(), layoutFields()...)
	}); err != nil {
		return nil, err
	}
	l, err := readLayout(id, fields.Val())
	if err != nil {
		return nil, err
	}
	var there []int
	for _, item := range items {
		if item >= 0 && item < l.task.Items {
			there = append(there, item)
		}
	}
	views, err := s.views(ctx, &l, there)
	if err != nil {
		return nil, err
	}
	hosts := make([]procfleet.Host, len(items))
	for i, item := range items {
		if item < 0 || item >= l.task.Items {
			continue
		}
		view := views[l.chunkOf(item)]
		it, err := view.Item(item - view.First)
		if err != nil {
			return nil, err
		}
		hosts[i] = it.Target.Host
	}
	return hosts, nil
}

// page reads items of any chunks of a task.
func (s *Store) page(ctx context.Context, l *layout, marks []byte, items []int) ([]procfleet.ItemResult, error) {
	views, err := s.views(ctx, l, items)
	if err != nil {
		return nil, err
	}
	results := make([]string, len(items))
	if slices.ContainsFunc(items, func(item int) bool { return hasResult(marks[item]) }) {
		if results, err = s.results(ctx, l.task.ID, items, func(context.Context, redis.Pipeliner) {}); err != nil {
			return nil, err
		}
	}
	rows := make([]procfleet.ItemResult, len(items))
	for i, item := range items {
		if rows[i], err = row(&l.task, views[l.chunkOf(item)], item, pack.Mark(marks[item]), results[i]); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// DeliveredItems reads the marks and the chunk of every task in one round trip.
func (s *Store) DeliveredItems(ctx context.Context, tasks []procfleet.Task) ([][]procfleet.ItemResult, error) {
	type answer struct{ marks, chunk *redis.StringCmd }
	answers := make([]answer, len(tasks))
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		for i := range tasks {
			if t := &tasks[i]; t.Chunks == 1 {
				keys := s.keys.task(t.ID)
				answers[i] = answer{pipe.GetRange(ctx, keys.marks(), 0, int64(t.Items)-1), pipe.Get(ctx, keys.chunk(0))}
			}
		}
	}); err != nil {
		return nil, fmt.Errorf("read delivered items of %d tasks: %w", len(tasks), err)
	}
	delivered := make([][]procfleet.ItemResult, len(tasks))
	for i, a := range answers {
		if a.chunk == nil || a.chunk.Val() == "" { // the task has several chunks, or it expired in the meantime
			continue
		}
		view, err := pack.OpenChunk(a.chunk.Val())
		if err != nil {
			return nil, fmt.Errorf("chunk of task %s: %w", tasks[i].ID, err)
		}
		for item, mark := range []byte(a.marks.Val()) {
			if pack.Mark(mark) != pack.Delivered {
				continue
			}
			r, err := row(&tasks[i], view, item, pack.Delivered, "")
			if err != nil {
				return nil, fmt.Errorf("item %d of task %s: %w", item, tasks[i].ID, err)
			}
			delivered[i] = append(delivered[i], r)
		}
	}
	return delivered, nil
}

func hasResult(mark byte) bool {
	return !pack.Mark(mark).Open()
}

// marks reads all marks of a task. It reads the first window in the same round trip as
// the head.
func (s *Store) marks(ctx context.Context, id procfleet.TaskID) (layout, []byte, error) {
	keys := s.keys.task(id)
	var fields *redis.SliceCmd
	var window *redis.StringCmd
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		fields = pipe.HMGet(ctx, keys.head(), layoutFields()...)
		window = pipe.GetRange(ctx, keys.marks(), 0, marksWindow-1)
	}); err != nil {
		return layout{}, nil, err
	}
	l, err := readLayout(id, fields.Val())
	if err != nil {
		return layout{}, nil, err
	}
	marks := []byte(window.Val())
	for len(marks) < l.task.Items {
		begin := int64(len(marks))
		if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
			window = pipe.GetRange(ctx, keys.marks(), begin, begin+marksWindow-1)
		}); err != nil {
			return layout{}, nil, err
		}
		if window.Val() == "" {
			return layout{}, nil, taskstore.ErrNotFound // the task expired in the meantime
		}
		marks = append(marks, window.Val()...)
	}
	return l, marks, nil
}

// views reads the chunks that contain the items, and returns them by chunk number.
func (s *Store) views(ctx context.Context, l *layout, items []int) (map[int]*pack.View, error) {
	views := make(map[int]*pack.View)
	var wanted []int
	for _, item := range items {
		n := l.chunkOf(item)
		if _, known := views[n]; !known {
			views[n] = nil
			wanted = append(wanted, n)
		}
	}
	keys := s.keys.task(l.task.ID)
	for window := range slices.Chunk(wanted, chunkWindow) {
		answers := make([]*redis.StringCmd, len(window))
		if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
			for i, n := range window {
				answers[i] = pipe.Get(ctx, keys.chunk(n))
			}
		}); err != nil {
			return nil, err
		}
		for i, n := range window {
			if answers[i].Val() == "" {
				return nil, taskstore.ErrNotFound // the task expired in the meantime
			}
			view, err := pack.OpenChunk(answers[i].Val())
			if err != nil {
				return nil, fmt.Errorf("chunk %d: %w", n, err)
			}
			views[n] = view
		}
	}
	return views, nil
}
