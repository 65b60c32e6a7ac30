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

// Damage describes a loss of durable records.
type Damage struct {
	ID     string // unique; the files are renamed to journal.bad-<ID>-*
	Found  bool   // by this run, not by an earlier one
	Detail string // description; empty unless Found
}

// badTime is the format of the time in the names of damaged files.
const badTime = "20060102T150405.000000000"

// salvage loads the intact records of all files, because no generation is complete.
// Nothing that may have been executed is executed again: operations without a record
// of their begin may have begun, and those with an old fence may have been removed.
// It returns cause if no record is intact.
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
	j.index.markMaybeExecuted()
	j.index.endLost(j.now())
	j.damage = &Damage{ID: mark.ID, Found: true, Detail: cause.Error()}
	j.log.WithError(cause).WithField("records", found).
		Error("journal damaged: intact part loaded, automatic starts suspended")
	// The files stay unchanged until their records are in new files.
	j.failed = cause
	if err := j.rotate(); err != nil {
		j.writeErr = err
		j.log.WithError(err).Error("new journal not started, retrying")
	}
	return nil
}

// rescue applies all intact records of a file, at any offset, and returns their
// number.
func (j *Journal) rescue(name string) (int, error) {
	s, err := j.openSegment(name, os.O_RDONLY)
	if err != nil {
		return 0, err
	}
	data, err := readTail(s) // s.size is zero: the whole file
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

// nextFrame returns the offset of the next possible record, from the given offset
// on; -1 if there is none.
func nextFrame(data []byte, from int) int {
	i := bytes.Index(data[min(from+frameHeader, len(data)):], recordMarker)
	if i < 0 {
		return -1
	}
	return from + i
}

// known reports whether the record has a content that this program knows.
func (r *record) known() bool {
	return r.Head != nil || r.Received != nil || r.Executing != nil || r.Done != nil || r.Acked != nil ||
		r.Process != nil || r.Fence != nil || r.End != nil
}

// rescue is apply for incomplete and repeated records: an operation never returns to
// an earlier step, and fences only rise.
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

// highestFence returns the highest fence in the index.
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

// markMaybeExecuted marks all operations that have no record of their begin: that
// record may be lost.
func (x *index) markMaybeExecuted() {
	for _, e := range x.ops {
		e.maybeExecuted = !e.finished && e.executing.zero() && e.action != agentproto.ActionStatus
	}
}

// endLost ends operations of which only the record of their begin is left: without
// the spec their result cannot be determined.
func (x *index) endLost(now time.Time) {
	for id, e := range x.ops {
		if e.finished || !e.received.zero() {
			continue
		}
		e.volatile = &agentproto.Result{
			Item: id.Item, Code: agentproto.CodeFailed, Reason: agentproto.ReasonCommandFailed, FinishedAt: now.UTC(),
			Message: "journal was damaged: the operation had begun, its result is unknown",
		}
		e.finished, e.lost, e.finishedAt = true, true, now
		e.code, e.reason = e.volatile.Code, e.volatile.Reason
		e.acked = true // its lane is lost as well, so the result is only sent in replies to repeats
	}
}

// renameDamaged renames the files of the generations before the given one to the id
// of a damage, for inspection.
func (j *Journal) renameDamaged(before int, id string) error {
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

// expired reports whether a damaged file was renamed before cutoff, by the time in
// its name.
func expired(name string, cutoff time.Time) bool {
	text := strings.TrimPrefix(name, badPrefix)
	since, err := time.Parse(badTime, text[:min(len(text), len(badTime))])
	return err == nil && since.Before(cutoff)
}

// recordMaybeExecuted records operations without a record of their begin as
// executing, before the end of a log is cut off: a damaged end that was durable looks
// like one that never was.
func (j *Journal) recordMaybeExecuted() error {
	j.index.markMaybeExecuted()
	c := &change{stage: func(g *group) error {
		for _, id := range j.index.inOrder() {
			e := j.index.ops[id]
			if !e.maybeExecuted {
				continue
			}
			exec, err := e.assumedExec()
			if err != nil {
				return err
			}
			at, err := g.add(&record{Executing: &execMark{ID: id, Exec: exec}})
			if err != nil {
				return err
			}
			e.executing, e.maybeExecuted, g.sync = at, false, true
			g.onFailure(func() { e.executing, e.maybeExecuted = ref{}, true })
		}
		return nil
	}}
	if err := j.write([]*change{c}); err != nil {
		return err
	}
	return c.err
}

// assumedExec returns the execution to record for an operation that may have been
// executed: at the time of its acceptance at the earliest.
func (e *entry) assumedExec() (Exec, error) {
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
