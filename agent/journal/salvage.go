package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// Damage says that records were lost that had been durable.
type Damage struct {
	ID     string // never that of another damage; copies of the files are journal.bad-<ID>-*
	Found  bool   // just now, not by an earlier run
	Detail string // what was found; empty unless Found
}

// badTime is the form of the time in the names of what was set aside.
const badTime = "20060102T150405.000000000"

// salvage takes from all files whatever is whole, because no generation can
// be read without gaps. Nothing that may have been executed will be executed
// again: operations that had not begun may have, and what is received with a
// fence of before may have been forgotten. It returns cause if there is
// nothing to take.
func (j *Journal) salvage(logs, snapshots []int, cause error) error {
	j.index, j.synced, j.base = newIndex(), 0, 0
	generations := slices.Concat(logs, snapshots)
	slices.Sort(generations)
	found := 0
	for _, n := range slices.Compact(generations) {
		for _, part := range []struct {
			prefix string
			in     []int
		}{{snapshotPrefix, snapshots}, {logPrefix, logs}} {
			if !slices.Contains(part.in, n) {
				continue
			}
			records, err := j.rescue(j.path(part.prefix, n))
			if err != nil {
				return err
			}
			found += records
		}
		j.generation = n
	}
	if found == 0 {
		return cause
	}
	mark := &damage{ID: j.now().UTC().Format(badTime), Fence: j.index.highestFence()}
	j.index.damage = mark
	j.index.doubtAll()
	j.index.giveUpLost(j.now())
	j.damage = &Damage{ID: mark.ID, Found: true, Detail: cause.Error()}
	j.log.WithError(cause).WithField("records", found).
		Error("journal damaged: intact part loaded, automatic starts suspended")
	// The files stay as they are until all that was found is in new ones.
	j.failed = cause
	if err := j.rotate(); err != nil {
		j.trouble = err
		j.log.WithError(err).Error("new journal not started, retrying")
	}
	return nil
}

// rescue applies all whole records of a file, wherever they stand, and
// returns their number.
func (j *Journal) rescue(name string) (int, error) {
	s, err := j.openSegment(name, os.O_RDONLY)
	if err != nil {
		return 0, err
	}
	data, err := readTail(s) // its size is zero: everything
	if err != nil {
		return 0, err
	}
	records := 0
	for off := 0; off < len(data); {
		payload, err := readFrame(bytes.NewReader(data[off:]), nil)
		if err == nil {
			if rec, err := decodeRecord(payload); err == nil && rec.known() {
				j.synced = max(j.synced, rec.Group)
				if err := j.index.rescue(rec, ref{segment: s, off: int64(off) + frameHeader, size: len(payload)}); err != nil {
					return records, err
				}
				records++
			}
			off += frameHeader + len(payload)
			continue
		}
		next := nextFrame(data, off+1)
		if next < 0 {
			break
		}
		off = next
	}
	return records, nil
}

// nextFrame returns the first offset, from the given one on, at which a record
// may stand; -1 if there is none.
func nextFrame(data []byte, from int) int {
	i := bytes.Index(data[min(from+frameHeader, len(data)):], recordMarker)
	if i < 0 {
		return -1
	}
	return from + i
}

// known reports whether the record says anything that this program knows.
func (r *record) known() bool {
	return r.Head != nil || r.Received != nil || r.Executing != nil || r.Done != nil || r.Acked != nil ||
		r.Process != nil || r.Fence != nil || r.End != nil
}

// rescue is like apply for records of which others may be missing or come
// again: an operation only ever moves on, and fences only rise.
func (x *index) rescue(rec *record, at ref) error {
	switch {
	case rec.Received != nil:
		op := rec.Received
		e, known := x.ops[op.ID]
		if known && (e.finished || !e.received.zero()) {
			return nil
		}
		mark := x.fences[op.Spec.Key]
		if err := x.apply(rec, at); err != nil {
			return err
		}
		if known {
			x.ops[op.ID].executing = e.executing
		}
		if mark.after(op.Fence, op.Item) {
			x.fences[op.Spec.Key] = mark
		}
		return nil
	case rec.Executing != nil:
		if _, known := x.ops[rec.Executing.ID]; !known {
			x.accepted++
			x.ops[rec.Executing.ID] = &entry{order: x.accepted}
		}
	case rec.Fence != nil:
		if mark := x.fences[rec.Fence.Key]; mark.after(rec.Fence.Fence, rec.Fence.Item) {
			return nil
		}
	}
	return x.apply(rec, at)
}

// highestFence is that of the latest command of which anything is known.
func (x *index) highestFence() int64 {
	highest := x.floor
	if x.damage != nil {
		highest = max(highest, x.damage.Fence)
	}
	for _, mark := range x.fences {
		highest = max(highest, mark.Fence)
	}
	for _, e := range x.ops {
		highest = max(highest, e.fence)
	}
	return highest
}

// doubtAll takes back what is known of operations that have not begun: that
// they had may have been lost.
func (x *index) doubtAll() {
	for _, e := range x.ops {
		e.doubt = !e.finished && e.executing.zero() && e.action != agentproto.ActionStatus
	}
}

// giveUpLost ends operations of which only that they had begun is left. What
// they were is not known, so nothing can be found out about them either.
func (x *index) giveUpLost(now time.Time) {
	for id, e := range x.ops {
		if e.finished || !e.received.zero() {
			continue
		}
		e.volatile = &agentproto.Result{
			Item: id.Item, Code: agentproto.CodeFailed, Reason: agentproto.ReasonCommandFailed, FinishedAt: now.UTC(),
			Message: "journal was damaged: the operation had begun, its outcome is not known",
		}
		e.finished, e.lost, e.finishedAt = true, true, now
		e.code, e.reason = e.volatile.Code, e.volatile.Reason
		e.acked = true // where its result belongs is lost as well; whoever asks again hears it
	}
}

// setAside gives the files of the generations before the given one the name
// of a damage, so that somebody can look at them.
func (j *Journal) setAside(before int, id string) error {
	names, err := j.disk.List(j.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		for _, prefix := range []string{logPrefix, snapshotPrefix} {
			if n, ok := generationOf(name, prefix); ok && n < before {
				errs = append(errs, j.disk.Rename(filepath.Join(j.dir, name), filepath.Join(j.dir, badPrefix+id+"-"+name)))
			}
		}
	}
	return errors.Join(errs...)
}

// expired reports whether a file that was set aside is older than what is
// kept. Its name says since when, it may not have been written for long then.
func expired(name string, cutoff time.Time) bool {
	text := strings.TrimPrefix(name, badPrefix)
	since, err := time.Parse(badTime, text[:min(len(text), len(badTime))])
	return err == nil && since.Before(cutoff)
}

// doubtCut makes it durable that operations may have begun that have not by
// the records which are left, when a tail is about to be cut off. A tail that
// was durable and is damaged looks like one that never was.
func (j *Journal) doubtCut() error {
	j.index.doubtAll()
	c := &change{stage: func(g *group) error {
		for _, id := range j.index.inOrder() {
			e := j.index.ops[id]
			if !e.doubt {
				continue
			}
			exec, err := e.supposed()
			if err != nil {
				return err
			}
			at, err := g.add(&record{Executing: &execMark{ID: id, Exec: exec}})
			if err != nil {
				return err
			}
			e.executing, e.doubt, g.sync = at, false, true
			g.onFailure(func() { e.executing, e.doubt = ref{}, true })
		}
		return nil
	}}
	if err := j.write([]*change{c}); err != nil {
		return err
	}
	return c.err
}

// supposed is what is known of the execution of an operation in doubt: that
// it was not before the operation was accepted.
func (e *entry) supposed() (Exec, error) {
	rec, err := e.received.read()
	if err != nil {
		return Exec{}, err
	}
	if rec.Received == nil {
		return Exec{}, fmt.Errorf("%w: no operation", errBadRecord)
	}
	return Exec{At: rec.Received.AcceptedAt}, nil
}

func readTail(s *segment) ([]byte, error) {
	size, err := s.file.Size()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(s.file, s.size, size-s.size))
}
