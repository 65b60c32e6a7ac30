package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agentproto"
)

// ID is the identity of an operation: one item of one task.
type ID struct {
	Task string `json:"task"`
	Item int    `json:"item"`
}

// Op is one operation as it was accepted.
type Op struct {
	ID
	Lane   string          `json:"lane"` // where its result is published
	Fence  int64           `json:"fence"`
	Action string          `json:"action"`
	Spec   agentproto.Spec `json:"spec"`
	// AcceptedAt is by this host's clock.
	AcceptedAt time.Time `json:"accepted_at"`
	// ReceivedAt is the same moment by the servers' clock; zero in records of earlier
	// releases.
	ReceivedAt time.Time `json:"received_at,omitzero"`
	// NotAfter, by the servers' clock, is the latest time to begin the operation.
	NotAfter time.Time `json:"not_after,omitzero"`
	Trace    string    `json:"trace,omitempty"` // traceparent of the command
}

// mutating reports whether the operation may change the host; unknown actions may.
func (o *Op) mutating() bool { return o.Action != agentproto.ActionStatus }

// Exec identifies an operation's command; PID is 0 before it is spawned.
type Exec struct {
	BootID string    `json:"boot_id"`
	At     time.Time `json:"at"`
	PID    int       `json:"pid,omitempty"` // also the process group
	Start  uint64    `json:"start,omitempty"`
	// Before is the engine's record of the processes before the command; opaque to
	// the journal.
	Before json.RawMessage `json:"before,omitempty"`
}

// Admission is the outcome of [Journal.Receive] for one operation. The zero
// Admission is a new operation that is now in the journal.
type Admission struct {
	Known   bool               // a repeat, not finished unless Result is set
	Result  *agentproto.Result // of a finished repeat
	Refused *agentproto.Result // result of an operation that was not accepted
}

// OpenOp is an operation that was accepted and is not finished.
type OpenOp struct {
	Op
	Executing bool
	Exec      Exec // zero unless Executing
}

// FinishedOp is an operation whose result is not acknowledged yet. The result
// itself is read with [Journal.Results] when it is needed.
type FinishedOp struct {
	ID
	Lane  string
	Trace string
}

// Recovered is the content of an opened journal.
type Recovered struct {
	Open           []OpenOp     // in the order of acceptance
	Unacknowledged []FinishedOp // in the order of acceptance
	Processes      map[string]json.RawMessage
	// Damage is the last damage of this journal, nil if there was none. After a
	// damage, operations and processes may be missing or outdated.
	Damage *Damage
}

// Errors of [Open] that leave all files as they are.
var (
	ErrNewerFormat = errors.New("journal was written by a newer procfleet agent")
	ErrDamaged     = errors.New("journal is damaged")
)

var errClosed = errors.New("journal is closed")

// Journal is an open journal. Its methods are safe for concurrent use and block on
// the disk. A method that returns an error has changed nothing.
type Journal struct {
	dir    string
	disk   disk
	limits limits
	now    func() time.Time
	log    logrus.FieldLogger

	queueMu sync.Mutex
	queue   []*change

	// mu guards the fields below and is held during disk writes: its holder writes
	// all changes that were queued meanwhile with one fsync.
	mu         sync.Mutex
	index      index
	generation int        // of current
	base       int        // generation of the snapshot in force; 0 is none
	current    *segment   // takes the records
	segments   []*segment // open for reading; current is the last
	synced     uint64     // number of fsynced groups; the next group has number synced+1
	rotateAt   int64      // size of current at which the next generation is due
	damage     *Damage    // found when the journal was opened
	renamed    bool       // the damaged files are renamed
	onWrite    func(Write)
	onWriteErr func(error)
	crash      func(point string)

	writeErr  error // why the latest change was not written; nil = it was
	noReserve error // why there is no disk reserve; nil = there is one
	failed    error // why current must not be written any more; the next change rotates or fails
	unusable  error // why the journal never works again
}

// Write describes one successful write of a group of changes.
type Write struct {
	Records int
	Bytes   int
	Sync    time.Duration // duration of the fsync; 0 = none was needed
}

// OnWrite registers fn to be called after each successful write. Call it before
// the first change. fn must not block and must not call the journal.
func (j *Journal) OnWrite(fn func(Write)) { j.onWrite = fn }

// OnWriteError registers fn to be called with the error when changes can no longer
// be written, and with nil when they can again. Call it before the first change. fn
// must not block and must not call the journal.
func (j *Journal) OnWriteError(fn func(error)) { j.onWriteErr = fn }

// Points of [Journal.OnCrash] during a rotation.
const (
	CrashNewLog       = "journal.new-log"       // the new log exists, its snapshot does not
	CrashSnapshot     = "journal.snapshot"      // the snapshot has its temporary name
	CrashNewSnapshot  = "journal.new-snapshot"  // the snapshot has its final name, the folder is not synced
	CrashBeforePruned = "journal.before-pruned" // the new generation is in force, old files exist
)

// OnCrash registers fn to be called at the points above, for tests that kill the
// program there. Call it before the first change.
func (j *Journal) OnCrash(fn func(point string)) { j.crash = fn }

// limits bound the retained records.
type limits struct {
	retain       time.Duration // of finished operations
	retainOps    int           // of finished operations
	retainFence  time.Duration // of fences of processes without a record
	retainFences int           // of fences of processes without a record
	rotateBytes  int64         // minimum size of a log to rotate
	reserveBytes int64         // size of the disk reserve; 0 = none
}

func defaultLimits() limits {
	return limits{
		retain: 7 * 24 * time.Hour, retainOps: 100_000, retainFence: 30 * 24 * time.Hour, retainFences: 100_000,
		rotateBytes: 16 << 20, reserveBytes: 1 << 20,
	}
}

// Open opens the journal in dir, which is created if missing, and returns its
// content. The caller ensures that one process at a time has it open. Errors that
// wrap [ErrDamaged] or [ErrNewerFormat] leave all files unchanged.
func Open(dir string, log logrus.FieldLogger) (*Journal, Recovered, error) {
	return open(dir, osDisk{}, defaultLimits(), log)
}

func open(dir string, d disk, l limits, log logrus.FieldLogger) (*Journal, Recovered, error) {
	j := newJournal(l, log)
	j.dir, j.disk = dir, d
	err := j.load()
	var recovered Recovered
	if err == nil {
		recovered, err = j.recovered()
	}
	if err != nil {
		_ = j.closeSegments() // nothing is unwritten
		return nil, Recovered{}, fmt.Errorf("open journal %s: %w", dir, err)
	}
	if err := j.ensureReserve(); err != nil {
		j.writeErr = err
		log.WithError(err).Error("disk full, operations refused")
	}
	return j, recovered, nil
}

// Unavailable returns a journal without files: it refuses all operations that change
// the host with cause, and stores status operations in memory.
func Unavailable(cause error, log logrus.FieldLogger) *Journal {
	j := newJournal(defaultLimits(), log)
	j.unusable = cause
	return j
}

func newJournal(l limits, log logrus.FieldLogger) *Journal {
	return &Journal{
		disk: osDisk{}, limits: l, now: time.Now, log: log, index: newIndex(), rotateAt: l.rotateBytes,
		onWrite: func(Write) {}, onWriteErr: func(error) {}, crash: func(string) {},
	}
}

// Close closes the files. Later changes fail.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.unusable = errClosed
	return j.closeSegments()
}

func (j *Journal) closeSegments() error {
	var errs []error
	for _, s := range j.segments {
		errs = append(errs, s.file.Close())
	}
	j.segments = nil
	return errors.Join(errs...)
}

// Result returns the result of a finished operation. open is true if the operation
// is not finished; known is false if the journal does not have it.
func (j *Journal) Result(id ID) (r agentproto.Result, open, known bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.index.ops[id]
	if !ok {
		return agentproto.Result{}, false, false
	}
	if !e.finished {
		return agentproto.Result{}, true, true
	}
	return j.resultOf(id, e), false, true
}

// Results returns the results of the finished operations among ids.
func (j *Journal) Results(ids []ID) map[ID]agentproto.Result {
	j.mu.Lock()
	defer j.mu.Unlock()
	results := make(map[ID]agentproto.Result, len(ids))
	for _, id := range ids {
		if e, ok := j.index.ops[id]; ok && e.finished {
			results[id] = j.resultOf(id, e)
		}
	}
	return results
}

// resultOf reads a result from disk. If it cannot be read, code and reason come
// from memory, so that a failing disk does not change an outcome.
func (j *Journal) resultOf(id ID, e *entry) agentproto.Result {
	if e.volatile != nil {
		return *e.volatile
	}
	rec, err := e.done.read()
	if err == nil && rec.Done != nil {
		var r agentproto.Result
		if err = json.Unmarshal(rec.Done.Result, &r); err == nil {
			return r
		}
	}
	return e.outline(id, err)
}
