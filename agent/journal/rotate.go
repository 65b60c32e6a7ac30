package journal

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// rotateWhenDue rotates a log that has grown. If that fails, writes continue in the log,
// and the next attempt follows after the same growth.
func (j *Journal) rotateWhenDue() {
	if err := j.rotate(); err != nil {
		j.rotateAt = j.current.size + j.limits.rotateBytes
		j.log.WithError(err).Warn("journal rotation failed, log continued")
	}
}

// rotate writes the index into the snapshot of a new generation and continues with an empty
// log. After an error the journal is unchanged.
//
// The order matters. The new log is durable before the snapshot is renamed, so every
// snapshot has a log that follows it. A log without a snapshot is read as the continuation
// of the previous log. After the rename only the new log may be written: a restart would
// read no other log.
func (j *Journal) rotate() error {
	if err := j.disk.MkdirAll(j.dir); err != nil {
		return err
	}
	next := j.generation + 1
	log, err := j.newLog(next)
	if err != nil {
		return fmt.Errorf("new log: %w", err)
	}
	j.crash(CrashNewLog)
	snapshot, apply, err := j.writeSnapshot(next)
	if err != nil {
		return errors.Join(fmt.Errorf("new snapshot: %w", err), log.file.Close())
	}
	j.crash(CrashSnapshot)
	if err := j.disk.Rename(snapshot.name, j.path(snapshotPrefix, next)); err != nil {
		return errors.Join(fmt.Errorf("new snapshot: %w", err), snapshot.file.Close(), log.file.Close())
	}
	snapshot.name = j.path(snapshotPrefix, next)
	before := j.base
	for _, change := range apply {
		change()
	}
	_ = j.closeSegments() // the index refers to the new segments only
	j.segments = []*segment{snapshot, log}
	j.current, j.generation, j.base, j.failed = log, next, next, nil
	j.synced++
	j.rotateAt = max(j.limits.rotateBytes, snapshot.size)

	j.crash(CrashNewSnapshot)
	if err := j.disk.SyncDir(j.dir); err != nil {
		// The rename may be lost in a power cut. Then the old generation with both logs has
		// the same content: retain it until the next rotation.
		j.log.WithError(err).Warn("journal folder sync failed, old generations retained")
		return nil
	}
	j.crash(CrashBeforePruned)
	j.afterDamage()
	if j.noReserve == nil {
		_ = j.ensureReserve() // the error is stored in noReserve for the next full disk
	}
	j.prune(before)
	return nil
}

// afterDamage renames the damaged files once their records are in the new generation.
func (j *Journal) afterDamage() {
	if j.damage == nil || j.renamed {
		return
	}
	if err := j.renameDamaged(j.generation, j.damage.ID); err != nil {
		j.log.WithError(err).Warn("damaged journal files not renamed")
	}
	j.renamed = true
}

// prune removes temporary files, the files of generations before oldest, and expired
// damaged files.
func (j *Journal) prune(oldest int) {
	names, err := j.disk.List(j.dir)
	if err != nil {
		return // old files are harmless, the next rotation retries
	}
	for _, name := range names {
		_, n, current := parseName(name)
		if current && n < oldest || strings.HasSuffix(name, tmpSuffix) || expired(name, j.now().Add(-j.limits.retain)) {
			_ = j.disk.Remove(filepath.Join(j.dir, name)) // the next rotation retries
		}
	}
}

func (x *index) inOrder() []ID {
	return slices.SortedFunc(maps.Keys(x.ops), func(a, b ID) int { return cmp.Compare(x.ops[a].order, x.ops[b].order) })
}

// snapshotWriter copies the retained records into a new file.
type snapshotWriter struct {
	segment *segment
	out     *bufio.Writer
	group   uint64
	records int
	apply   []func() // changes of the index, to be made when the snapshot replaces the previous one
}

func (w *snapshotWriter) add(rec *record) error {
	_, err := w.put(rec)
	return err
}

func (w *snapshotWriter) put(rec *record) (ref, error) {
	rec.Group = w.group
	payload, err := encodeRecord(rec)
	if err != nil {
		return ref{}, err
	}
	return w.copy(payload)
}

func (w *snapshotWriter) copy(payload []byte) (ref, error) {
	at := ref{segment: w.segment, off: w.segment.size + frameHeader, size: len(payload)}
	n, err := w.out.Write(appendFrame(nil, payload))
	w.segment.size += int64(n)
	w.records++
	return at, err
}

// move copies the record at *from. apply sets *from to the position of the copy.
func (w *snapshotWriter) move(from *ref) error {
	payload, err := from.payload()
	if err != nil {
		return err
	}
	at, err := w.copy(payload)
	w.apply = append(w.apply, func() { *from = at })
	return err
}

// writeSnapshot writes the snapshot of a generation under a temporary name. The file is
// durable, but the index does not refer to it yet.
func (j *Journal) writeSnapshot(generation int) (s *segment, apply []func(), err error) {
	name := j.path(snapshotPrefix, generation) + tmpSuffix
	f, err := j.disk.Open(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return nil, nil, err
	}
	w := &snapshotWriter{
		segment: &segment{file: f, name: name},
		out:     bufio.NewWriterSize(io.NewOffsetWriter(f, 0), 256<<10),
		group:   j.synced,
	}
	if err := j.fillSnapshot(w, generation); err != nil {
		return nil, nil, errors.Join(err, f.Close(), j.disk.Remove(name))
	}
	return w.segment, w.apply, nil
}

func (j *Journal) fillSnapshot(w *snapshotWriter, generation int) error {
	fences, floor := j.index.retainedFences(&j.limits)
	w.apply = append(w.apply, func() { j.index.fences, j.index.floor = fences, floor })
	head := j.head(generation)
	head.Floor = floor
	if err := w.add(&record{Head: head}); err != nil {
		return err
	}
	for _, mark := range fences {
		if err := w.add(&record{Fence: &mark}); err != nil {
			return err
		}
	}
	for _, part := range []func(*snapshotWriter) error{j.writeProcesses, j.writeOps} {
		if err := part(w); err != nil {
			return err
		}
	}
	if err := w.add(&record{End: &end{Records: w.records}}); err != nil {
		return err
	}
	if err := w.out.Flush(); err != nil {
		return err
	}
	return w.segment.file.Sync()
}

// retainedFences returns the retained fences, and the floor: the highest removed fence. It
// removes fences of processes without a record, the lowest first, if there are too many of
// them or they are too old compared with the newest command.
func (x *index) retainedFences(l *limits) (kept map[string]fenceMark, floor int64) {
	kept, floor = make(map[string]fenceMark, len(x.fences)), x.floor
	highestFirst := func(a, b fenceMark) int { return cmp.Compare(b.Fence, a.Fence) }
	oldest, others := x.newest-l.retainFence.Microseconds(), 0
	for _, mark := range slices.SortedFunc(maps.Values(x.fences), highestFirst) {
		if _, managed := x.processes[mark.Key]; !managed {
			if others++; others > l.retainFences || mark.Fence < oldest {
				floor = max(floor, mark.Fence)
				continue
			}
		}
		kept[mark.Key] = mark
	}
	return kept, floor
}

func (j *Journal) writeProcesses(w *snapshotWriter) error {
	processes := make(map[string]ref, len(j.index.processes))
	for key, at := range j.index.processes {
		payload, err := at.payload()
		if err != nil {
			return err
		}
		if processes[key], err = w.copy(payload); err != nil {
			return err
		}
	}
	w.apply = append(w.apply, func() { j.index.processes = processes })
	return nil
}

// ackedPerRecord is the maximum number of ids in one acked record.
const ackedPerRecord = 1000

func (j *Journal) writeOps(w *snapshotWriter) error {
	ids := j.index.inOrder()
	forgettable := j.forgettable(ids)
	var acked []ID
	for _, id := range ids {
		e := j.index.ops[id]
		if forgettable[id] {
			w.apply = append(w.apply, func() { delete(j.index.ops, id) })
			continue
		}
		if err := j.writeOp(w, id, e); err != nil {
			return err
		}
		if e.acked {
			acked = append(acked, id)
		}
	}
	for chunk := range slices.Chunk(acked, ackedPerRecord) {
		if err := w.add(&record{Acked: chunk}); err != nil {
			return err
		}
	}
	return nil
}

func (j *Journal) writeOp(w *snapshotWriter, id ID, e *entry) error {
	switch {
	case e.lost && e.volatile != nil:
		return w.putLost(id, e)
	case e.volatile != nil, e.received.zero() && !e.finished:
		return nil // in memory only
	case e.finished:
		return w.move(&e.done)
	}
	if err := w.move(&e.received); err != nil {
		return fmt.Errorf("operation %s/%d: %w", id.Task, id.Item, err)
	}
	if e.maybeExecuted {
		return w.putMaybeExecuted(id, e)
	}
	if e.executing.zero() {
		return nil
	}
	return w.move(&e.executing)
}

func (w *snapshotWriter) putMaybeExecuted(id ID, e *entry) error {
	exec, err := e.assumedExec()
	if err != nil {
		return err
	}
	at, err := w.put(&record{Executing: &execMark{ID: id, Exec: exec}})
	w.apply = append(w.apply, func() { e.executing, e.maybeExecuted = at, false })
	return err
}

func (w *snapshotWriter) putLost(id ID, e *entry) error {
	body, err := json.Marshal(e.volatile)
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	at, err := w.put(&record{Done: &done{ID: id, At: e.finishedAt.UTC(), Code: e.code, Reason: e.reason, Result: body}})
	w.apply = append(w.apply, func() { e.done, e.volatile, e.executing = at, nil, ref{} })
	return err
}

// forgettable returns the acknowledged operations to remove: operations that are too old,
// and if there are too many, the ones accepted first. Status operations are removed first.
func (j *Journal) forgettable(ids []ID) map[ID]bool {
	forgettable := map[ID]bool{}
	left := j.limits.retainOps
	for _, mutating := range []bool{true, false} {
		for _, id := range slices.Backward(ids) {
			e := j.index.ops[id]
			switch {
			case !e.finished || !e.acked || e.mutating() != mutating:
			case left == 0 || j.index.aged(e, j.limits.retain):
				forgettable[id] = true
			default:
				left--
			}
		}
	}
	return forgettable
}

// aged reports whether an operation is older than the newest command by more than retain.
// It compares fences, which are microseconds of the servers' clock, so that setting the
// host's clock removes no operation. A lost operation has no fence and never ages.
func (x *index) aged(e *entry, retain time.Duration) bool {
	return e.fence > 0 && e.fence < x.newest-retain.Microseconds()
}
