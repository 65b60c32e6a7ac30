package journal

import (
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
	ID     string // unique id; the damaged files are renamed to journal.bad-<ID>-*
	Found  bool   // true if found by this run of the agent, false if by an earlier one
	Detail string // description; empty unless Found
}

// badTime is the time format in the names of damaged files.
const badTime = "20060102T150405.000000000"

// salvage loads the intact records of all files, because no generation is complete. No
// operation that may have been executed is executed again: operations without a record of
// their begin count as begun, and commands with an old fence are refused. It returns cause
// if no record is intact.
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
	mark := &damage{ID: j.now().UTC().Format(badTime), Fence: j.index.newest}
	if earlier := j.index.damage; earlier != nil {
		mark.Fence = max(mark.Fence, earlier.Fence)
	}
	j.index.damage = mark
	j.index.markMaybeExecuted()
	j.index.endLost(j.now())
	j.damage = &Damage{ID: mark.ID, Found: true, Detail: cause.Error()}
	j.log.WithError(cause).WithField("records", found).
		Error("journal damaged: intact part loaded, automatic starts suspended")
	// Do not change the damaged files before their records are in new files.
	j.failed = cause
	if err := j.rotate(); err != nil {
		j.writeErr = err
		j.log.WithError(err).Error("journal not created, retrying")
	}
	return nil
}

// rescue adds all intact records of a file, at any offset, to the index and returns their
// number.
func (j *Journal) rescue(name string) (int, error) {
	s, err := j.openSegment(name, os.O_RDONLY)
	if err != nil {
		return 0, err
	}
	data, err := readTail(s) // reads the whole file, because s.size is zero
	if err != nil {
		return 0, err
	}
	records := 0
	for at, rec := range intactRecords(data) {
		if !rec.known() {
			continue
		}
		j.synced = max(j.synced, rec.Group)
		at.segment = s
		if err := j.index.rescue(rec, at); err != nil {
			return records, err
		}
		records++
	}
	return records, nil
}

// known reports whether the record has content that this program knows.
func (r *record) known() bool {
	return r.Head != nil || r.Received != nil || r.Executing != nil || r.Done != nil || r.Acked != nil ||
		r.Process != nil || r.Fence != nil || r.End != nil
}

// rescue is a variant of apply for incomplete and repeated records: an operation never
// returns to an earlier step, and fences only rise.
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
		if mark.compare(op.Fence, op.Item) > 0 {
			x.fences[op.Spec.Key] = mark
		}
		return nil
	case rec.Executing != nil:
		if _, known := x.ops[rec.Executing.ID]; !known {
			x.accepted++
			x.ops[rec.Executing.ID] = &entry{order: x.accepted}
		}
	case rec.Fence != nil:
		if mark := x.fences[rec.Fence.Key]; mark.compare(rec.Fence.Fence, rec.Fence.Item) > 0 {
			return nil
		}
	}
	return x.apply(rec, at)
}

// markMaybeExecuted marks all unfinished operations without a record of their begin,
// because that record may be lost. Status operations are not marked.
func (x *index) markMaybeExecuted() {
	for _, e := range x.ops {
		e.maybeExecuted = !e.finished && e.executing.zero() && e.mutating()
	}
}

// endLost finishes operations of which only the record of their begin is left: without the
// spec their result cannot be determined.
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
		e.acked = true // the lane is lost, too, so only a repeated command can get the result
	}
}

// renameDamaged renames the files of generations below before: it adds the id of the damage
// to their names. They are retained for inspection.
func (j *Journal) renameDamaged(before int, id string) error {
	names, err := j.disk.List(j.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if _, n, ok := parseName(name); ok && n < before {
			errs = append(errs, j.disk.Rename(filepath.Join(j.dir, name), filepath.Join(j.dir, badPrefix+id+"-"+name)))
		}
	}
	return errors.Join(errs...)
}

// expired reports whether name is that of a damaged file, renamed before cutoff.
func expired(name string, cutoff time.Time) bool {
	text, damaged := strings.CutPrefix(name, badPrefix)
	since, err := time.Parse(badTime, text[:min(len(text), len(badTime))])
	return damaged && err == nil && since.Before(cutoff)
}

// recordMaybeExecuted writes executing records for operations without a record of their
// begin. It is needed before the end of a log is truncated: a damaged end that was durable
// looks like an end that was never durable.
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

// assumedExec returns the Exec to record for an operation that may have been executed. Its
// time is the acceptance, the earliest possible time.
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
