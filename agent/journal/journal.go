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
	// ReceivedAt is the same moment by the server's clock; zero in records of
	// agents that did not keep it.
	ReceivedAt time.Time `json:"received_at,omitzero"`
	// NotAfter is by the server's clock: later the operation must not begin.
	NotAfter time.Time `json:"not_after,omitzero"`
	Trace    string    `json:"trace,omitempty"` // traceparent of the command
}

// mutating reports whether the operation changes anything on the host.
// Unknown actions count, so that whatever guards changes guards them too.
func (o *Op) mutating() bool { return o.Action != agentproto.ActionStatus }

// Exec is what is known of an operation's command: before it is spawned
// without PID, afterwards with it.
type Exec struct {
	BootID string    `json:"boot_id"`
	At     time.Time `json:"at"`
	PID    int       `json:"pid,omitempty"` // also the process group
	Start  uint64    `json:"start,omitempty"`
	// Before is what ran before the command; opaque to the journal.
	Before json.RawMessage `json:"before,omitempty"`
}

// Verdict says what Receive made of an operation. The zero Verdict is a new
// operation that is now in the journal.
type Verdict struct {
	Known   bool               // a repeat; still open unless Result is set
	Result  *agentproto.Result // of a repeat that is over
	Refused *agentproto.Result // never accepted; this is its result
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

// Recovered is what an opened journal held.
type Recovered struct {
	Open           []OpenOp     // in the order of acceptance
	Unacknowledged []FinishedOp // in the order of acceptance
	Processes      map[string]json.RawMessage
	// Damage is the last one of this journal, nil if there was none. What it
	// holds may be out of date then: operations and processes may have been
	// forgotten, or be shown as they were before.
	Damage *Damage
}

// Errors of [Open] that leave all files as they are.
var (
	ErrNewerFormat = errors.New("journal was written by a newer procfleet agent")
	ErrDamaged     = errors.New("journal is damaged")
)

var errClosed = errors.New("journal is closed")

// Journal is an open journal. Its methods are safe for concurrent use, wait
// for the disk, and return errors that say why nothing was changed.
type Journal struct {
	dir    string
	disk   disk
	limits limits
	now    func() time.Time
	log    logrus.FieldLogger

	queueMu sync.Mutex
	queue   []*change

	// mu guards what follows and is held over disk writes: whoever gets it
	// writes everything that was queued meanwhile with one fsync.
	mu         sync.Mutex
	index      index
	generation int        // of current
	base       int        // generation of the snapshot in force; 0 is none
	current    *segment   // takes the records
	segments   []*segment // open for reading; current is the last
	synced     uint64     // fsynced groups so far; the next group carries synced+1
	rotateAt   int64      // size of current at which the next generation is due
	wrote      func(Write)
	damage     *Damage // found when it was opened
	aside      bool    // the damaged files have other names
	// trouble is why the latest change was not written; nil = it was.
	trouble  error
	troubled func(error)
	crash    func(point string)
	spent    error // why no room is set aside; nil = there is
	// failed is why current must not be written any more; the next change
	// begins a new generation or fails.
	failed error
	// unusable is why the journal never works again.
	unusable error
}

// Write is one write to the log, for the changes of all who waited for it.
type Write struct {
	Records int
	Bytes   int
	Sync    time.Duration // of the fsync; 0 = the write needed none
}

// OnWrite has fn told each write that succeeded. Call it before anything is
// written. fn must not block and must not call the journal.
func (j *Journal) OnWrite(fn func(Write)) { j.wrote = fn }

// OnTrouble has fn told when changes cannot be written any more, and nil when
// they can again. Call it before anything is written. fn must not block and
// must not call the journal.
func (j *Journal) OnTrouble(fn func(error)) { j.troubled = fn }

// Points of [Journal.OnCrash], each of beginning a new generation.
const (
	CrashNewLog       = "journal.new-log"       // its log is there, its snapshot is not
	CrashSnapshot     = "journal.snapshot"      // its snapshot is written and has no name yet
	CrashNewSnapshot  = "journal.new-snapshot"  // its snapshot has its name, the folder is not synced
	CrashBeforePruned = "journal.before-pruned" // it is in force, nothing of before is removed
)

// OnCrash has fn called at named points, for tests that kill the program there.
// Call it before anything is written.
func (j *Journal) OnCrash(fn func(point string)) { j.crash = fn }

// limits bound what is kept.
type limits struct {
	retain       time.Duration // of finished operations
	retainOps    int           // of finished operations
	retainFence  time.Duration // of fences of processes without a record
	retainFences int           // of fences of processes without a record
	rotateBytes  int64         // a log below this size is not rotated
	reserveBytes int64         // set aside for when the disk is full; 0 = none
}

func defaultLimits() limits {
	return limits{
		retain: 7 * 24 * time.Hour, retainOps: 100_000, retainFence: 30 * 24 * time.Hour, retainFences: 100_000,
		rotateBytes: 16 << 20, reserveBytes: 1 << 20,
	}
}

// Open opens the journal in dir, which is created if missing, and says what
// it holds. Only one process may have it open; the caller sees to that.
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
		_ = j.closeSegments() // nothing was left unwritten
		return nil, Recovered{}, fmt.Errorf("open journal %s: %w", dir, err)
	}
	if err := j.holdRoom(); err != nil {
		j.trouble = err
		log.WithError(err).Error("disk full, operations refused")
	}
	return j, recovered, nil
}

// Unavailable returns a journal that touches no file, refuses every operation
// that would change the host with cause, and keeps status operations in
// memory.
func Unavailable(cause error, log logrus.FieldLogger) *Journal {
	j := newJournal(defaultLimits(), log)
	j.unusable = cause
	return j
}

func newJournal(l limits, log logrus.FieldLogger) *Journal {
	return &Journal{
		disk: osDisk{}, limits: l, now: time.Now, log: log, index: newIndex(), rotateAt: l.rotateBytes,
		wrote: func(Write) {}, troubled: func(error) {}, crash: func(string) {},
	}
}

// Close gives the files back. Every change was written when its method
// returned; later calls fail.
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

// Result returns what is known of an operation: its result if it is over,
// open if it is not, known false if this journal never accepted it.
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

// Results returns the results of those of ids that are finished, in the
// order of ids.
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

// resultOf reads a result from disk. Code and reason are in memory, so that
// even a disk that cannot be read any more does not change an outcome.
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
