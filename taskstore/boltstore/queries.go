package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// Task returns a task, or [taskstore.ErrNotFound].
func (s *Store) Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error) {
	return view(ctx, s, func(t *tx) (procfleet.Task, error) {
		r, err := t.task(id)
		if err != nil {
			return procfleet.Task{}, err
		}
		return r.Task, nil
	})
}

// Tasks returns a page of tasks in descending order of their numbers.
func (s *Store) Tasks(ctx context.Context, q taskstore.TaskQuery) ([]procfleet.Task, error) {
	return view(ctx, s, func(t *tx) ([]procfleet.Task, error) {
		c := t.Bucket(bucketTasks).Cursor()
		key, _ := c.Last()
		if q.Before > 0 {
			if found, _ := c.Seek(taskKey(q.Before)); found != nil {
				key, _ = c.Prev()
			}
		}
		var tasks []procfleet.Task
		for ; key != nil && len(tasks) < pack.Limit(q.Limit); key, _ = c.Prev() {
			r, err := t.taskNumbered(procfleet.Number(binary.BigEndian.Uint64(key)))
			if err != nil {
				return nil, err
			}
			if r != nil && t.Now.Before(r.ExpiresAt) {
				tasks = append(tasks, r.Task)
			}
		}
		return tasks, nil
	})
}

// Chunk returns all items of one chunk with their states and results.
func (s *Store) Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error) {
	return view(ctx, s, func(t *tx) ([]procfleet.ItemResult, error) {
		r, err := t.task(id)
		if err != nil {
			return nil, err
		}
		rd := &reader{legs: t.legs(r), views: map[int]*pack.View{}}
		l, err := rd.leg(chunk)
		if err != nil {
			return nil, err
		}
		items := make([]procfleet.ItemResult, len(l.Marks))
		for i := range items {
			if items[i], err = rd.item(l.First + i); err != nil {
				return nil, err
			}
		}
		return items, nil
	})
}

// Owners returns the host of each item, in order.
func (s *Store) Owners(ctx context.Context, id procfleet.TaskID, items []int) ([]procfleet.Host, error) {
	return view(ctx, s, func(t *tx) ([]procfleet.Host, error) {
		r, err := t.task(id)
		if err != nil {
			return nil, err
		}
		rd := &reader{legs: t.legs(r), views: map[int]*pack.View{}}
		hosts := make([]procfleet.Host, len(items))
		for i, item := range items {
			if item < 0 || item >= r.Items {
				continue
			}
			if hosts[i], err = rd.owner(item); err != nil {
				return nil, err
			}
		}
		return hosts, nil
	})
}

// owner returns the host of an item. The task must contain the item.
func (rd *reader) owner(index int) (procfleet.Host, error) {
	chunk, l, err := rd.holding(index)
	if err != nil {
		return procfleet.Host{}, err
	}
	v, err := rd.view(chunk)
	if err != nil {
		return procfleet.Host{}, err
	}
	item, err := v.Item(index - l.First)
	return item.Target.Host, err
}

// Results returns a page of items with their results, failures first.
func (s *Store) Results(ctx context.Context, id procfleet.TaskID, q taskstore.ResultQuery) ([]procfleet.ItemResult, string, error) {
	type page struct {
		items []procfleet.ItemResult
		next  string
	}
	p, err := view(ctx, s, func(t *tx) (page, error) {
		r, err := t.task(id)
		if err != nil {
			return page{}, err
		}
		rd := &reader{legs: t.legs(r), views: map[int]*pack.View{}}
		marks, err := rd.marks()
		if err != nil {
			return page{}, err
		}
		picked, next, err := pack.Page(marks, q)
		if err != nil {
			return page{}, err
		}
		p := page{items: make([]procfleet.ItemResult, len(picked)), next: next}
		for i, item := range picked {
			if p.items[i], err = rd.item(item); err != nil {
				return page{}, err
			}
		}
		return p, nil
	})
	return p.items, p.next, err
}

// DeliveredItems returns, for each task, its delivered items. It returns none for a
// task with more than one chunk.
func (s *Store) DeliveredItems(ctx context.Context, tasks []procfleet.Task) ([][]procfleet.ItemResult, error) {
	return view(ctx, s, func(t *tx) ([][]procfleet.ItemResult, error) {
		delivered := make([][]procfleet.ItemResult, len(tasks))
		for i := range tasks {
			r, err := t.task(tasks[i].ID)
			if errors.Is(err, taskstore.ErrNotFound) || err == nil && r.Chunks != 1 {
				continue
			}
			if err != nil {
				return nil, err
			}
			rd := &reader{legs: t.legs(r), views: map[int]*pack.View{}}
			marks, err := rd.marks()
			if err != nil {
				return nil, err
			}
			for n, mark := range marks {
				if pack.Mark(mark) != pack.Delivered {
					continue
				}
				item, err := rd.item(n)
				if err != nil {
					return nil, err
				}
				delivered[i] = append(delivered[i], item)
			}
		}
		return delivered, nil
	})
}

// reader builds item results from chunks, marks and results.
type reader struct {
	*legs
	views map[int]*pack.View
}

// marks returns the marks of all items of the task.
func (rd *reader) marks() ([]byte, error) {
	if rd.task.State == procfleet.TaskRejected {
		return bytes.Repeat([]byte{byte(pack.Rejected)}, rd.task.Items), nil
	}
	all, err := rd.all()
	if err != nil {
		return nil, err
	}
	marks := make([]byte, 0, rd.task.Items)
	for _, l := range all {
		marks = append(marks, l.Marks...)
	}
	return marks, nil
}

func (rd *reader) view(chunk int) (*pack.View, error) {
	if v := rd.views[chunk]; v != nil {
		return v, nil
	}
	v, err := pack.OpenChunk(string(rd.t.Bucket(bucketChunks).Get(partKey(rd.task.Number, chunk))))
	if err != nil {
		return nil, err
	}
	rd.views[chunk] = v
	return v, nil
}

// item returns one item with its result. The task must contain the item.
func (rd *reader) item(index int) (procfleet.ItemResult, error) {
	chunk, l, err := rd.holding(index)
	if err != nil {
		return procfleet.ItemResult{}, err
	}
	v, err := rd.view(chunk)
	if err != nil {
		return procfleet.ItemResult{}, err
	}
	item, err := v.Item(index - l.First)
	if err != nil {
		return procfleet.ItemResult{}, err
	}
	out := procfleet.ItemResult{Index: index, Item: item, Spec: &v.Specs[item.Spec]}
	mark := pack.Mark(l.Marks[index-l.First])
	switch {
	case rd.task.State == procfleet.TaskRejected:
		out.State, out.Result = procfleet.StateRejected, pack.Rejection(&rd.task.Task, index)
	case mark.Open():
		out.State = mark.State()
	default:
		out.State = mark.State()
		result := rd.t.Bucket(bucketResults).Get(partKey(rd.task.Number, index))
		if mark == pack.Cancelled && result == nil {
			out.Result = pack.Cancellation(&rd.task.Task, index)
			break
		}
		out.Result, err = pack.ReadResult(string(result))
		out.Result.Refusal = mark.Refusal()
	}
	return out, err
}
