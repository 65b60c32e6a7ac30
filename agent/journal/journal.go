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

// ID identifies an operation: one item of one task.
type ID struct {
	Task string `json:"task"`
	Item int    `json:"item"`
}

// Op is an accepted operation.
type Op struct {
	ID
	Lane   string          `json:"lane"` // lane to which the result is published
	Fence  int64           `json:"fence"`
	Action string          `json:"action"`
	Spec   agentproto.Spec `json:"spec"`
	// AcceptedAt is the time of acceptance by this host's clock.
	AcceptedAt time.Time `json:"accepted_at"`
	// ReceivedAt is the time of acceptance by the servers' clock.
	ReceivedAt time.Time `json:"received_at"`
	// NotAfter is the latest time to begin the operation, by the servers' clock.
	NotAfter time.Time `json:"not_after,omitzero"`
	Trace    string    `json:"trace,omitempty"` // traceparent of the command
}

// mutating reports whether the operation may change the host; unknown actions may.
func (o *Op) mutating() bool { return o.Action != agentproto.ActionStatus }

// Exec identifies an operation's command; PID is 0 before it is spawned.
type Exec struct {
	BootID string    `json:"boot_id"`
	At     time.Time `json:"at"`
	PID    int       `json:"pid,omitempty"` // also the id of the process group
	Start  uint64    `json:"start,omitempty"`
	// Before is the engine's record of the processes that ran before the command; opaque to
	// the journal.
	Before json.RawMessage `json:"before,omitempty"`
}

// Admission is the outcome of [Journal.Receive] for one operation. The zero Admission means
// a new operation, which is now in the journal.
type Admission struct {
	Known   bool               // true for a repeated operation; unfinished unless Result is set
	Result  *agentproto.Result // stored result of a repeated operation that is finished
	Refused *agentproto.Result // result of an operation that was not accepted
}

// OpenOp is an accepted operation that is not finished.
type OpenOp struct {
	Op
	Executing bool
	Exec      Exec // zero unless Executing
}

// FinishedOp is an operation whose result is not acknowledged yet. [Journal.Results] reads
// the result.
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
	// Damage is the last damage of this journal; nil = none. After a damage, operations and
	// processes may be missing or outdated.
	Damage *Damage
}

// Errors of [Open] after which all files are unchanged.
var (
	ErrFormat  = errors.New("journal has another format")
	ErrDamaged = errors.New("journal is damaged")
)

var errClosed = errors.New("journal is closed")

// Journal is an open journal. Its methods are safe for concurrent use and block on the
// disk. After an error of a method the journal is unchanged.
type Journal struct {
	dir    string
	disk   disk
	limits limits
	now    func() time.Time
	log    logrus.FieldLogger

	queueMu sync.Mutex
	queue   []*change

	// mu guards the fields below. It is held during disk writes: the holder writes all
	// changes that were queued meanwhile with one fsync.
	mu         sync.Mutex
	index      index
	generation int        // generation of current
	base       int        // generation of the loaded or latest snapshot; 0 = none
	current    *segment   // log to which records are appended
	segments   []*segment // files open for reading; the last one is current
	synced     uint64     // number of fsynced groups; the next group has number synced+1
	rotateAt   int64      // size of current at which the next generation is due
	damage     *Damage    // damage found when the journal was opened; nil = none
	renamed    bool       // true once the damaged files are renamed
	onWrite    func(Write)
	onWriteErr func(error)
	crash      func(point string)

	writeErr  error // error of the latest write; nil = success
	noReserve error // error that prevents a disk reserve; nil = none
	failed    error // error after which current must not be written; the next change rotates or fails
	unusable  error // permanent error of all changes, such as errClosed
}

// Write describes one successful write of a group of changes.
type Write struct {
	Records int
	Bytes   int
	Sync    time.Duration // duration of the fsync; 0 = none was needed
}

// OnWrite registers fn, which is called after each successful write. Call it before the
// first change. fn must not block and must not call the journal.
func (j *Journal) OnWrite(fn func(Write)) { j.onWrite = fn }

// OnWriteError registers fn, which is called with the error when writes begin to fail, and
// with nil when they succeed again. Call it before the first change. fn must not block and
// must not call the journal.
func (j *Journal) OnWriteError(fn func(error)) { j.onWriteErr = fn }

// Points of [Journal.OnCrash] during a rotation.
const (
	CrashNewLog       = "journal.new-log"       // the new log exists, its snapshot does not exist yet
	CrashSnapshot     = "journal.snapshot"      // the snapshot has its temporary name
	CrashNewSnapshot  = "journal.new-snapshot"  // the snapshot has its final name, the folder is not synced
	CrashBeforePruned = "journal.before-pruned" // the new generation is complete, the old files are not removed yet
)

// OnCrash registers fn, which is called at the points above. It is for tests that kill the
// program at these points. Call it before the first change.
func (j *Journal) OnCrash(fn func(point string)) { j.crash = fn }

// limits bounds the retained records and the file sizes.
type limits struct {
	retain       time.Duration // maximum age of finished operations
	retainOps    int           // maximum number of finished operations
	retainFence  time.Duration // maximum age of fences of processes without a record
	retainFences int           // maximum number of fences of processes without a record
	rotateBytes  int64         // minimum size of a log to rotate
	reserveBytes int64         // size of the disk reserve; 0 = none
}

func defaultLimits() limits {
	return limits{
		retain: 7 * 24 * time.Hour, retainOps: 100_000, retainFence: 30 * 24 * time.Hour, retainFences: 100_000,
		rotateBytes: 16 << 20, reserveBytes: 1 << 20,
	}
}

// Open opens the journal in dir, which is created if missing, and returns its content. The
// caller ensures that only one process has the journal open. Errors that wrap [ErrDamaged]
// or [ErrFormat] leave all files unchanged.
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
		_ = j.closeSegments() // all data is written
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

// Result returns the result of a finished operation. open is true if the operation is not
// finished; known is false if the operation is not in the journal.
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

// resultOf reads a result from disk. If the record cannot be read, it returns code and
// reason from memory, so that a failing disk does not change an outcome.
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
