package journal

import (
	"errors"
	"fmt"
	"io/fs"
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
	// urgent says that it belongs to what was begun already: it may use the room
	// that is set aside.
	urgent bool

	settled chan struct{} // closed when err is final
	err     error
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

// do writes a change and blocks until it is settled. The caller that opens a
// queue writes for all callers that join the queue before the lock is free.
// The others do not wait for the lock: a mutex with hundreds of waiters wakes
// them one by one, and new changes would wait behind settled ones.
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
	defer j.failUnsettled(changes)
	j.commit(changes)
}

// failUnsettled ends the wait of callers that a panic left behind: they must
// neither hang nor take their change for durable.
func (j *Journal) failUnsettled(changes []*change) {
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

// commit settles all changes: each is durable, or has its error.
func (j *Journal) commit(changes []*change) {
	if j.spent != nil {
		changes = j.urgentWithoutRoom(changes)
	}
	cause := j.attempt(changes)
	if noSpace(cause) {
		if urgent, rest := apart(changes); len(urgent) > 0 && j.giveRoom(cause) {
			j.settle(rest, full(cause))
			changes, cause = urgent, j.attempt(urgent)
		}
	}
	if errors.Is(cause, errVanished) {
		// Nothing is wrong with the disk: the folder is made again, once.
		j.log.WithError(cause).Warn("journal missing from its folder, starting new")
		cause = j.attempt(changes)
	}
	if noSpace(cause) && !errors.Is(cause, errNoSpace) {
		cause = full(cause)
	}
	j.settle(changes, cause)
	if cause == nil {
		cause = j.spent
	}
	j.setTrouble(cause)
	if j.failed == nil && j.unusable == nil && j.current.size >= j.rotateAt {
		j.rotateWhenDue()
	}
}

func (j *Journal) attempt(changes []*change) error {
	if err := j.ready(); err != nil {
		return err
	}
	return j.write(changes)
}

// urgentWithoutRoom tries to set room aside again, and if there is none
// refuses all changes but the urgent ones, which it returns.
func (j *Journal) urgentWithoutRoom(changes []*change) []*change {
	urgent, rest := apart(changes)
	if len(rest) == 0 {
		return urgent
	}
	if err := j.holdRoom(); err != nil {
		j.settle(rest, err)
		return urgent
	}
	return changes
}

func apart(changes []*change) (urgent, rest []*change) {
	for _, c := range changes {
		if c.urgent {
			urgent = append(urgent, c)
		} else {
			rest = append(rest, c)
		}
	}
	return urgent, rest
}

// setTrouble notes why changes are not written, and tells when that begins
// and ends.
func (j *Journal) setTrouble(cause error) {
	was := j.trouble
	j.trouble = cause
	if (was == nil) != (cause == nil) && !errors.Is(cause, errClosed) {
		j.troubled(cause)
	}
}

// settle ends the wait of the callers, with an error if cause is not nil.
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

// Ready returns nil if changes can be written, else why not. A journal whose
// latest change was not written tries whether the disk is back.
func (j *Journal) Ready() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.unusable != nil || j.trouble == nil {
		return j.unusable
	}
	if j.spent != nil {
		if err := j.holdRoom(); err != nil {
			return err
		}
	}
	if err := j.rotate(); err != nil {
		return fmt.Errorf("%w; new generation: %w", j.trouble, err)
	}
	j.setTrouble(nil)
	j.log.WithField("generation", j.generation).Info("journal writable again")
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
	j.log.WithField("generation", j.generation).Info("journal writable again")
	return nil
}

// write puts the changes on disk. On error none of them has happened.
func (j *Journal) write(changes []*change) error {
	g := &group{journal: j}
	written := false
	defer func() {
		if !written { // an error, or a panic
			g.rollback()
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

// errVanished is wrapped when a file is not where it was.
var errVanished = errors.New("file has vanished")

// present reports an error when the file no longer is in the folder: what is
// written to a deleted file is gone with the process.
func (j *Journal) present(s *segment) error {
	same, err := j.disk.Is(s.name, s.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", errVanished, err)
	case err == nil && !same:
		return fmt.Errorf("%w: it was replaced by another", errVanished)
	}
	return err
}
