package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"
)

// change is a change of the journal that a caller has requested.
type change struct {
	// stage adds the records of the change to the group. An error fails only this change.
	stage func(*group) error
	// withoutDisk, if set, is called with the error if the group could not be written. It
	// returns the error for the caller; nil = the change was made in memory.
	withoutDisk func(cause error) error
	// urgent is true for changes of operations that have begun; such changes may use the
	// disk reserve.
	urgent bool

	settled chan struct{} // closed when the change is written or has failed; err is final then
	err     error
}

// group collects the changes that are written with one fsync. Staging a change updates the
// index; a failed write undoes the updates. The caller holds Journal.mu.
type group struct {
	journal *Journal
	buf     []byte
	records int
	sync    bool
	undo    []func()
}

// add appends a record to the group and returns the position that it will have in the log.
func (g *group) add(rec *record) (ref, error) {
	rec.Group = g.journal.synced + 1
	payload, err := encodeRecord(rec)
	if err != nil {
		return ref{}, err
	}
	s := g.journal.current
	at := ref{segment: s, off: s.size + int64(len(g.buf)) + frameHeader, size: len(payload)}
	g.buf = appendFrame(g.buf, payload)
	g.records++
	return at, nil
}

func (g *group) onFailure(undo func()) { g.undo = append(g.undo, undo) }

// restoreOnFailure restores the present entry of a key if the group cannot be written.
func restoreOnFailure[K comparable, V any](g *group, entries map[K]V, key K) {
	was, present := entries[key]
	g.onFailure(func() {
		delete(entries, key)
		if present {
			entries[key] = was
		}
	})
}

// do writes a change and blocks until it is settled: durable or failed. The first caller in
// the queue locks the journal and writes the changes of all callers that were queued
// meanwhile. The other callers do not wait for the lock: a mutex with hundreds of waiters
// wakes them one by one, and new changes would wait for callers whose changes are settled.
func (j *Journal) do(c *change) error {
	c.settled = make(chan struct{})
	j.queueMu.Lock()
	j.queue = append(j.queue, c)
	opened := len(j.queue) == 1
	j.queueMu.Unlock()
	if opened {
		j.commitQueue()
	}
	<-c.settled
	return c.err
}

func (j *Journal) commitQueue() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.queueMu.Lock()
	changes := j.queue
	j.queue = nil
	j.queueMu.Unlock()
	defer failUnsettled(changes)
	j.commit(changes)
}

// failUnsettled fails the changes that a panic did not settle, so that their callers
// neither hang nor consider the change durable.
func failUnsettled(changes []*change) {
	for _, c := range changes {
		select {
		case <-c.settled:
		default:
			c.err = errPanicked
			close(c.settled)
		}
	}
}

var errPanicked = errors.New("journal unavailable: a write panicked")

// commit writes all changes and settles each of them: the change is durable, or err has its
// error.
func (j *Journal) commit(changes []*change) {
	if j.noReserve != nil {
		changes = j.refuseOthers(changes)
	}
	cause := j.attempt(changes)
	if noSpace(cause) {
		if urgent, rest := splitUrgent(changes); len(urgent) > 0 && j.releaseReserve(cause) {
			j.settle(rest, full(cause))
			changes, cause = urgent, j.attempt(urgent)
		}
	}
	if errors.Is(cause, errVanished) {
		// The disk works, only the file is missing: the second attempt recreates the folder.
		j.log.WithError(cause).Warn("journal missing from its folder, starting new")
		cause = j.attempt(changes)
	}
	if noSpace(cause) && !errors.Is(cause, errNoSpace) {
		cause = full(cause)
	}
	j.settle(changes, cause)
	if cause == nil {
		cause = j.noReserve
	}
	j.setWriteErr(cause)
	if j.failed == nil && j.unusable == nil && j.current.size >= j.rotateAt {
		j.rotateWhenDue()
	}
}

func (j *Journal) attempt(changes []*change) error {
	if j.unusable != nil {
		return j.unusable
	}
	if j.failed != nil {
		if err := j.resume(j.failed); err != nil {
			return err
		}
	}
	return j.write(changes)
}

// refuseOthers tries to restore the disk reserve and returns the changes to write: all, or
// only the urgent ones if the reserve cannot be restored. It fails the others.
func (j *Journal) refuseOthers(changes []*change) []*change {
	urgent, rest := splitUrgent(changes)
	if len(rest) == 0 {
		return urgent
	}
	if err := j.ensureReserve(); err != nil {
		j.settle(rest, err)
		return urgent
	}
	return changes
}

func splitUrgent(changes []*change) (urgent, rest []*change) {
	for _, c := range changes {
		if c.urgent {
			urgent = append(urgent, c)
		} else {
			rest = append(rest, c)
		}
	}
	return urgent, rest
}

// setWriteErr stores the error of the latest write, nil = success, and calls onWriteErr
// when writes begin to fail or succeed again.
func (j *Journal) setWriteErr(cause error) {
	was := j.writeErr
	j.writeErr = cause
	if (was == nil) != (cause == nil) && !errors.Is(cause, errClosed) {
		j.onWriteErr(cause)
	}
}

// settle wakes the callers of the changes. If cause is not nil, the changes fail.
func (j *Journal) settle(changes []*change, cause error) {
	for _, c := range changes {
		if cause != nil {
			c.err = fmt.Errorf("journal unavailable: %w", cause)
			if c.withoutDisk != nil && !errors.Is(cause, errClosed) {
				c.err = c.withoutDisk(c.err)
			}
		}
		close(c.settled)
	}
}

// Ready returns nil if changes can be written. If the latest write failed, it retries on
// the disk.
func (j *Journal) Ready() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.unusable != nil || j.writeErr == nil {
		return j.unusable
	}
	if j.noReserve != nil {
		if err := j.ensureReserve(); err != nil {
			return err
		}
	}
	if err := j.resume(j.writeErr); err != nil {
		return err
	}
	j.setWriteErr(nil)
	return nil
}

// resume continues in a new generation after cause, the error of earlier writes.
func (j *Journal) resume(cause error) error {
	if err := j.rotate(); err != nil {
		return fmt.Errorf("%w; new generation: %w", cause, err)
	}
	j.log.WithField("generation", j.generation).Info("journal writes resumed")
	return nil
}

// write writes the changes. After an error the index and the log are unchanged.
func (j *Journal) write(changes []*change) error {
	g := &group{journal: j}
	written := false
	defer func() {
		if !written { // an error, or a panic
			for _, undo := range slices.Backward(g.undo) {
				undo()
			}
		}
	}()
	for _, c := range changes {
		c.err = c.stage(g)
	}
	if len(g.buf) == 0 {
		written = true
		return nil
	}
	took, err := j.writeOut(g)
	if err != nil {
		return err
	}
	written = true
	j.onWrite(Write{Records: g.records, Bytes: len(g.buf), Sync: took})
	j.current.size += int64(len(g.buf))
	if g.sync {
		j.synced++
	}
	return nil
}

// writeOut writes the group to the log and returns the duration of the fsync; 0 = no fsync.
func (j *Journal) writeOut(g *group) (time.Duration, error) {
	s := j.current
	if _, err := s.file.WriteAt(g.buf, s.size); err != nil {
		// Remove the written part: the next start must not read it as valid, nor the rest
		// of it after a shorter group that replaces its beginning.
		if cut := errors.Join(s.file.Truncate(s.size), s.file.Sync()); cut != nil {
			j.failed = fmt.Errorf("%s: %w", s.name, err)
		}
		return 0, fmt.Errorf("write %s: %w", s.name, err)
	}
	if !g.sync {
		return 0, nil
	}
	began := time.Now()
	err := s.file.Sync()
	took := time.Since(began)
	if err == nil {
		err = j.present(s)
	}
	if err != nil {
		// The kernel may have dropped the unwritten pages: success of a later fsync would
		// not mean that they are on disk.
		j.failed = fmt.Errorf("sync %s: %w", s.name, err)
		if cut := s.file.Truncate(s.size); cut != nil {
			return took, errors.Join(j.failed, cut)
		}
		return took, j.failed
	}
	return took, nil
}

// errVanished is wrapped if a file is no longer in the folder.
var errVanished = errors.New("file has vanished")

// present returns an error if the segment's file was deleted or replaced: writes to a
// deleted file are lost when the agent ends.
func (j *Journal) present(s *segment) error {
	same, err := j.disk.Is(s.name, s.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", errVanished, err)
	case err == nil && !same:
		return fmt.Errorf("%w: it was replaced by another file", errVanished)
	}
	return err
}
