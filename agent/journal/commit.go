package journal

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// change is what one caller wants written.
type change struct {
	// stage adds the change to the group. An error concerns this change alone.
	stage func(*group) error
	// withoutDisk is called instead when the group could not be written; nil
	// leaves it at the error.
	withoutDisk func(cause error) error

	over bool
	err  error
}

// group is changes that are written with one fsync. The index is changed
// while the group is put together and undone if it cannot be written; nobody
// sees it in between, because the journal's lock is held.
type group struct {
	journal *Journal
	buf     []byte
	records int
	sync    bool
	undo    []func()
}

// add appends a record and returns where it will stand.
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

func (g *group) rollback() {
	for _, undo := range slices.Backward(g.undo) {
		undo()
	}
}

// do has a change written and waits for it. The first caller to get the lock
// writes for all that have queued up behind it.
func (j *Journal) do(c *change) error {
	j.queueMu.Lock()
	j.queue = append(j.queue, c)
	j.queueMu.Unlock()

	j.mu.Lock()
	defer j.mu.Unlock()
	if !c.over {
		j.queueMu.Lock()
		changes := j.queue
		j.queue = nil
		j.queueMu.Unlock()
		j.commit(changes)
	}
	return c.err
}

// commit settles all changes: each is durable, or has its error.
func (j *Journal) commit(changes []*change) {
	cause := j.ready()
	if cause == nil {
		cause = j.write(changes)
	}
	j.trouble = cause
	for _, c := range changes {
		c.over = true
		if cause == nil {
			continue
		}
		c.err = fmt.Errorf("journal unavailable: %w", cause)
		if c.withoutDisk != nil && !errors.Is(cause, errClosed) {
			c.err = c.withoutDisk(c.err)
		}
	}
	if cause == nil && j.current.size >= j.rotateAt {
		j.rotateWhenDue()
	}
}

// Ready returns nil if changes can be written, else why not. A journal whose
// latest change was not written tries whether the disk is back.
func (j *Journal) Ready() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.unusable != nil || j.trouble == nil {
		return j.unusable
	}
	if err := j.rotate(); err != nil {
		return fmt.Errorf("%w; new generation: %w", j.trouble, err)
	}
	j.trouble = nil
	j.log.WithField("generation", j.generation).Info("journal works again")
	return nil
}

// ready reports why nothing can be written now. After a failure it tries to
// begin a new generation, which is how the journal comes back.
func (j *Journal) ready() error {
	if j.unusable != nil {
		return j.unusable
	}
	if j.failed == nil {
		return nil
	}
	if err := j.rotate(); err != nil {
		return fmt.Errorf("%w; new generation: %w", j.failed, err)
	}
	j.log.WithField("generation", j.generation).Info("journal works again")
	return nil
}

// write puts the changes on disk. On error none of them has happened.
func (j *Journal) write(changes []*change) error {
	g := &group{journal: j}
	for _, c := range changes {
		c.err = c.stage(g)
	}
	if len(g.buf) == 0 {
		return nil
	}
	took, err := j.writeOut(g)
	if err != nil {
		g.rollback()
		return err
	}
	j.wrote(Write{Records: g.records, Bytes: len(g.buf), Sync: took})
	j.current.size += int64(len(g.buf))
	if g.sync {
		j.synced++
	}
	return nil
}

// writeOut returns how long the fsync took.
func (j *Journal) writeOut(g *group) (time.Duration, error) {
	s := j.current
	if _, err := s.file.WriteAt(g.buf, s.size); err != nil {
		// What was written of it must not be taken for valid at the next
		// start, nor what a shorter group leaves of it.
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
		// The kernel may have dropped the pages: a later fsync that succeeds
		// says nothing about them.
		j.failed = fmt.Errorf("sync %s: %w", s.name, err)
		if cut := s.file.Truncate(s.size); cut != nil {
			return took, errors.Join(j.failed, cut)
		}
		return took, j.failed
	}
	return took, nil
}

// present reports an error when the file no longer is in the folder: what is
// written to a deleted file is gone with the process.
func (j *Journal) present(s *segment) error {
	there, err := j.disk.Stat(s.name)
	if err != nil {
		return err
	}
	ours, err := s.file.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(there, ours) {
		return errors.New("file was replaced by another")
	}
	return nil
}
