// Package taskstore defines the contract of the task store, the authoritative record
// of all tasks. Package boltstore implements it for one machine, package redisstore for
// many machines. The suite in package storetest checks both.
//
// All times are read from the store's own clock ([Clock.Now]), so that dispatchers,
// workers and sweeps agree even if the clocks of their machines are wrong. Every method
// is safe for concurrent use, returns when ctx ends, and has either its whole effect or
// none. A method that returns [ErrUnavailable] may have had its effect. Every method
// may be repeated.
package taskstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
)

// Errors of a store.
var (
	// ErrNotFound means that the task does not exist or was removed.
	ErrNotFound = errors.New("taskstore: no such task")
	// ErrRejected means that the task was rejected.
	ErrRejected = errors.New("taskstore: the task was rejected")
	// ErrConflict means that an earlier request with another body used the idempotency key.
	ErrConflict = errors.New("taskstore: the idempotency key was used for another request")
	// ErrExpired means that no task was created because the draft's NotAfter has passed.
	ErrExpired = errors.New("taskstore: it is too late to make the task")
	// ErrUnavailable means that the store cannot serve the call now: the store is
	// unreachable, loading, read-only or out of memory, or it rejects the password or
	// denies the required permissions. Retry later.
	ErrUnavailable = errors.New("taskstore: unavailable")
	// ErrSeq means that the task has another [procfleet.Task.Seq] than the caller expects.
	ErrSeq = errors.New("taskstore: the task was controlled by another caller")
	// ErrDone means that the task has ended and cannot be controlled any more.
	ErrDone = errors.New("taskstore: the task has ended")
	// ErrFailures means that a rollout has more failed units than it is to tolerate.
	ErrFailures = errors.New("taskstore: more units have failed than are to be tolerated")
	// ErrFull means that the store created no task because it reserves its remaining
	// memory for the existing tasks. ErrFull wraps ErrUnavailable.
	ErrFull = fmt.Errorf("%w: too little memory left for new tasks", ErrUnavailable)
)

// Draft is a submission from which [Acceptance.Create] creates a task.
type Draft struct {
	Chunks []procfleet.Chunk
	Lane   procfleet.Lane
	// Timeout is the time from acceptance to the deadline. Retention is the time from
	// the deadline until the store removes the task with all its data.
	Timeout   time.Duration
	Retention time.Duration

	Actions     []procfleet.Action
	Dialect     string
	Application string
	Business    string
	Callback    string
	Origin      procfleet.Origin
	RetryOf     procfleet.TaskID
	UndoOf      procfleet.TaskID
	Trace       string // as in [procfleet.Task]; at most 64 bytes
	// Rollout releases the items over time; nil releases them at once. Its stages cover all
	// chunks, and all items of a host are next to each other in one chunk.
	Rollout *procfleet.RolloutPlan

	// IdempotencyKey identifies repeats of a request: if it is not empty, a repeat by
	// the same application returns the task of the first request. BodyHash distinguishes
	// a repeat from another request with the same key.
	IdempotencyKey string
	BodyHash       string

	// NotAfter, if not zero, is the latest time at which the task may be created. A
	// repeat returns the task of the first request at any time, also after NotAfter, and
	// even if the draft of the repeat has no chunks.
	NotAfter time.Time
}

// UndoKey begins the idempotency key of a task that reverts another one. Keys of callers have no
// control characters.
const UndoKey = "\x00undo/"

// Acceptance is the part of a store that the dispatcher uses. The dispatcher calls
// Create, publishes every chunk and then calls Dispatched. Until Dispatched the store is
// the outbox: if the dispatcher dies, the sweep publishes the remaining chunks.
type Acceptance interface {
	// Create stores a task in state accepted, with its number, its chunks and its visit
	// in the sweep index. The visit is due [FirstVisitOf] the timeout after acceptance.
	//
	// If the draft's idempotency key already has a task that was not rejected, Create
	// returns that task with created false, or ErrConflict if its body was different.
	// The store retains the key as long as the task. A key is free if its task was
	// rejected or was never written because its dispatcher died. In the second case the
	// new task has the id that is stored with the key, and has a visit even if the sweep
	// settled that id before or settles it during Create.
	//
	// After NotAfter Create creates no task and returns ErrExpired. Create writes a task
	// only while the sweep is certain to visit its index entry. If Create returns an
	// error and t has an id, the task may have been created, or may still be created
	// within FirstVisit. If t has no id, Create had no effect.
	Create(ctx context.Context, d Draft) (t procfleet.Task, created bool, err error)
	// Dispatched records that every chunk is published; sequences[i] is the stream
	// sequence of chunk i (see [SweepStore.Republished]). After Dispatched the task
	// cannot be rejected. Dispatched returns ErrRejected if the task is already rejected.
	Dispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64) error
	// Reject rejects a task: every item becomes rejected, with reason as message, and
	// NotifyPending is not set. If a chunk was begun or Dispatched was recorded, the task
	// remains accepted: Reject changes nothing and returns false. Rejecting a rejected
	// task again returns true.
	Reject(ctx context.Context, id procfleet.TaskID, reason string) (rejected bool, err error)
}

// Gate is the decision of [Delivery.Begin] whether a worker may deliver a chunk.
type Gate string

// Gates that [Delivery.Begin] returns.
const (
	GateOpen     Gate = "open"     // deliver the pending items
	GateGone     Gate = "gone"     // the task or chunk does not exist or was removed
	GateRejected Gate = "rejected" // the task was rejected
	GateOverdue  Gate = "overdue"  // the deadline has passed
	GateCanceled Gate = "canceled" // the task was canceled: the open items must end
	GateHeld     Gate = "held"     // the task is held, and delivery resumes with [Control.Resume]
	GateFinished Gate = "finished" // every item of the chunk has a final result, or the chunk is done
)

// Begun is the result of [Delivery.Begin], with the data that a worker needs to deliver
// a chunk. Unless Gate is [GateOpen] or [GateCanceled], only Gate and Now are set.
type Begun struct {
	Gate  Gate
	Now   time.Time
	Task  procfleet.Task
	Chunk procfleet.Chunk
	// Open lists the items of the chunk without a final result, as indexes
	// into Chunk.Items, ascending.
	Open []int
	// Delivered lists the items of Open that an agent has accepted. These items may be
	// delivered again. The agent or the sweep provides their results.
	Delivered []int
	// FirstBegun is the time of the first Begin of this chunk: Now if this call was the
	// first.
	FirstBegun time.Time
	// Deadline is the time at which the open items fail: the deadline of the task or of their
	// grant.
	Deadline time.Time
}

// Grant is a release of items of a chunk by a rollout: those from the end of the grant before
// it up to Upto.
type Grant struct {
	Upto     int       // index into the items of the chunk
	At       time.Time // time of the release
	Deadline time.Time // time at which the items fail without a result
	Begun    time.Time // time of the first Begin of the grant; zero if it was never begun
}

// GrantedItems are the items of one [Grant].
type GrantedItems struct {
	Chunk, From int // the items of the chunk from From up to Grant.Upto
	First       int // index in the task of the first item
	Grant       Grant
	// Pending and Delivered are the numbers of items in these states, Waiting that of pending items
	// that wait for their hosts: either all open items of a grant wait, since Grant.At, or none.
	Pending, Delivered, Waiting int
	// New means that this call has released the items, and that they are to be published.
	New bool
}

// Advanced is the effect of [Rollouts.AdvanceRollout].
type Advanced struct {
	Task  procfleet.Task
	Items []GrantedItems
}

// Advance are the options of [Rollouts].AdvanceRollout.
type Advance struct {
	// All also returns the items of earlier grants that have no result.
	All bool
	// Returned has the first items of waiting units whose hosts have returned, ascending, as indexes in
	// the task. Those that the windows permit are released again, and the others keep waiting. While
	// a stage bakes or is at its gate, and with Closed, none is released.
	Returned []int
	// Closed says why maintenance windows permit no releases now; "" if they permit them. A rollout
	// with units to release gets the hold [procfleet.HoldWindow] with this reason, unless it has
	// another. Without Closed that hold ends.
	Closed string
}

// Rollouts is the part of a store that releases the items of tasks with a
// [procfleet.RolloutPlan], and that ends the holds of rollouts. The store releases units in
// the order of the items: as many as the window permits, at most up to the end of the current
// stage. It releases no unit while the task is held, after its deadline, or after it was canceled
// or has ended.
type Rollouts interface {
	// AdvanceRollout moves a rollout on as far as time and results permit: it releases units, ends
	// stages, and sets the holds of gates, of missing progress, and of failures during another
	// hold. It returns the items that it has released, which the caller publishes. Each transition
	// between stages, each hold, the end of a [procfleet.HoldWindow], and
	// [procfleet.TransitionSettled] increments Seq by one. A stage ends without its waiting units.
	// AdvanceRollout returns [ErrNotFound] for a task without a rollout.
	AdvanceRollout(ctx context.Context, id procfleet.TaskID, o Advance) (Advanced, error)
	// EndHold ends the hold of the given kind, as the calls of [Control] do. It succeeds and
	// changes nothing if the rollout has no such hold. The end of [procfleet.HoldApproval] ends the
	// stage, and that of a hold by JudgeStage lets it pass. The
	// end of [procfleet.HoldBudget] sets Failures; if more units have failed, EndHold returns
	// the unchanged task and [ErrFailures].
	EndHold(ctx context.Context, id procfleet.TaskID, kind procfleet.HoldKind, failures, seq int) (procfleet.Task, error)
	// JudgeStage ends the automatic gate of a stage, from 0: with a hold that has a Kind it sets
	// that hold, and otherwise the next AdvanceRollout goes on. It changes nothing if the
	// stage is not at its gate, was judged, or the rollout has a hold.
	JudgeStage(ctx context.Context, id procfleet.TaskID, stage int, hold procfleet.Hold) (procfleet.Task, error)
	// KeepPrevious stores previous specs until the task expires. It keeps those that are stored
	// for the same Chunk and From. The specs of one call are stored in part after an error.
	KeepPrevious(ctx context.Context, id procfleet.TaskID, specs []PreviousSpecs) error
	// PreviousSpecs returns the stored specs of a chunk, by From.
	PreviousSpecs(ctx context.Context, id procfleet.TaskID, chunk int) ([]PreviousSpecs, error)
	// LinkUndo sets the task's UndoneBy, unless it is set. It applies to tasks in any state, and to
	// any seq.
	LinkUndo(ctx context.Context, id, undo procfleet.TaskID) (procfleet.Task, error)
}

// PreviousSpecs are the specs that processes had before items were released.
type PreviousSpecs struct {
	Chunk, From int // chunk, and index in it of the first item
	// Specs has a spec for each item from From on; nil if its process was not registered.
	Specs []*procfleet.ProcessSpec
}

// SortPrevious sorts previous specs by From.
func SortPrevious(specs []PreviousSpecs) {
	slices.SortFunc(specs, func(a, b PreviousSpecs) int { return cmp.Compare(a.From, b.From) })
}

// ItemCancel is a cancel of some items of a chunk that no worker has carried out.
type ItemCancel struct {
	Seq    int   // [procfleet.Task.Seq] after the cancel
	Items  []int // as indexes into the items of the chunk
	Mode   procfleet.CancelMode
	Reason string
	Since  time.Time
}

// ChunkItems are items of a chunk, as indexes into the items of the chunk, ascending.
type ChunkItems struct {
	Chunk int
	Items []int
}

// CanceledItems are the cancels of items of a chunk, with the data that a worker needs to carry
// them out.
type CanceledItems struct {
	Cancels []ItemCancel // the oldest first; with none, the rest is not set
	Task    procfleet.Task
	Chunk   procfleet.Chunk
	// Open lists the items of the chunk without a final result, as in [Begun].
	Open []int
	// Unsent lists the items of Open that were not released, or that wait and were never sent.
	Unsent []int
	// FirstBegun is the time of the first Begin of the chunk; zero if it was never begun.
	FirstBegun time.Time
}

// Batch holds results of one task.
type Batch struct {
	Task    procfleet.TaskID
	Results []procfleet.Result
}

// Recorded is the effect of a [Batch].
type Recorded struct {
	// Known is false if the task does not exist or was removed.
	Known bool
	// Applied is the number of results that became the result of their item. The other
	// results were repeats, had no higher rank, or named items that the task does not have.
	Applied int
	// Completed is true for exactly one batch of a task: the batch that made the last
	// open item final. The same atomic change set NotifyPending.
	Completed bool
	// UnitsEnded is true if the last open item of a rollout's unit became final, so that
	// [Rollouts.AdvanceRollout] may have something to release.
	UnitsEnded bool
}

// Delivery is the part of a store with which workers deliver chunks and record results.
type Delivery interface {
	// Begin returns whether a chunk may be delivered. Of a held task no chunk may be
	// delivered, and none is overdue. The first Begin of a task changes
	// the task's state to running. From then on the task cannot be rejected. Open is without
	// the items of cancels that are to be carried out, see [Control.CancelItems], and without
	// the items that a rollout has not released. A chunk without released open items is
	// finished. upto selects the items of the [Grant] of a rollout; 0 selects all items.
	Begin(ctx context.Context, id procfleet.TaskID, chunk, upto int) (Begun, error)
	// Delivered changes items of a chunk from pending to delivered; items in another
	// state do not change. items are indexes in the task. done records that the chunk
	// needs no further delivery: an agent accepted or refused each item of the chunk, or
	// the store has its result. A chunk of a rollout is never done: its items are.
	Delivered(ctx context.Context, id procfleet.TaskID, chunk int, items []int, done bool) error
	// Away lets units of a rollout with a [procfleet.RolloutPlan] Queue wait for their hosts: no agent
	// of theirs is connected. items are indexes in the task. Each released unit with a pending one of
	// them and no delivered item stops being active, and its pending items wait: Begin does not
	// return them until [Advance].Returned names the unit. sent means that an agent may have accepted
	// items; otherwise a later Begin of the unit counts as its first. Nothing changes if the task is
	// canceled or has ended.
	Away(ctx context.Context, id procfleet.TaskID, chunk int, items []int, sent bool) error
	// Record applies results by rank and returns one entry per batch. A result of higher
	// [procfleet.Rank] replaces a result of lower rank once, and is marked Late if the
	// replaced result was final. A result of equal or lower rank changes nothing. State,
	// counters and result change atomically. Record ignores results of a rejected task
	// and truncates content to [procfleet.MaxResult].
	Record(ctx context.Context, batches []Batch) ([]Recorded, error)
	// ItemCancels returns the cancels of a chunk's items that are to be carried out. There are
	// none for a chunk that does not exist, and for a task that is canceled or has ended.
	ItemCancels(ctx context.Context, id procfleet.TaskID, chunk int) (CanceledItems, error)
	// ItemsCanceled records that the cancels of a chunk up to and including seq were carried out.
	ItemsCanceled(ctx context.Context, id procfleet.TaskID, chunk, seq int) error
}

// AnySeq lets a control call apply to a task with any [procfleet.Task.Seq].
const AnySeq = -1

// Control is the part of a store with which callers control open tasks. Each call that
// changes the task increments its Seq by one. A call applies only if the task has the
// expected seq; otherwise it returns [ErrSeq] and changes nothing. A call that has
// nothing to change succeeds with any seq, so that it may be repeated. A call returns
// [ErrDone] if the task is finished or rejected. With ErrSeq and ErrDone the returned
// task is the unchanged one.
type Control interface {
	// Pause holds a task: every Begin that starts after Pause has returned, or was
	// ordered after it, returns [GateHeld]. Results of delivered items are recorded as
	// before. The hold of a task that is held already remains.
	Pause(ctx context.Context, id procfleet.TaskID, reason string, seq int) (procfleet.Task, error)
	// Resume ends the hold. It moves the deadline, and those of grants with open items, by the
	// time for which the task was held, but not beyond its expiry. A task that is not held does
	// not change.
	Resume(ctx context.Context, id procfleet.TaskID, seq int) (procfleet.Task, error)
	// Cancel cancels a task and ends its hold. The items of chunks that were never begun
	// become canceled, with a result of rank [procfleet.RankServer] that names the reason;
	// if no item is open then, the task is finished. Every Begin that starts after Cancel
	// has returned, or was ordered after it, returns [GateCanceled] for a chunk with open
	// items; such chunks are not done again. The mode of a canceled task changes from drain
	// to interrupt only; otherwise a task that is canceled already does not change. Of a
	// rollout, all items that were not released or wait and were never sent
	// become canceled, and its hold ends.
	Cancel(ctx context.Context, id procfleet.TaskID, mode procfleet.CancelMode, reason string, seq int) (procfleet.Task, error)
	// CancelItems stores a cancel of those of the items that have no final result, for a worker to
	// carry out: each chunk of [procfleet.Task.ItemCancels] has one. Every Begin that starts after
	// CancelItems has returned, or was ordered after it, does not return the items in Open. If no
	// item is open, or the same cancel of the same items is stored, nothing changes. [Control.Cancel]
	// replaces the cancels of items.
	CancelItems(ctx context.Context, id procfleet.TaskID, items []ChunkItems, mode procfleet.CancelMode, reason string, seq int) (procfleet.Task, error)
	// Retried adds a retry to the task's RetriedBy, unless it is there already. It applies
	// to tasks in any state, and to any seq.
	Retried(ctx context.Context, id, retry procfleet.TaskID) (procfleet.Task, error)
}

// TransitionLog is the part of a store that has the transitions of tasks, and how many of them
// are published. The call that makes a transition also stores it, in one atomic change. A task
// has none after its end.
type TransitionLog interface {
	// Transitions returns the transitions after+1 to upto of a task, counted from 1. It returns
	// [ErrNotFound] if the task does not have them all.
	Transitions(ctx context.Context, id procfleet.TaskID, after, upto int) ([]procfleet.Transition, error)
	// TransitionsSent records that the first upto transitions of a task are published. A lower
	// number than the recorded one changes nothing.
	TransitionsSent(ctx context.Context, id procfleet.TaskID, upto int) error
}

// TaskQuery selects one page of the task list, newest task first.
type TaskQuery struct {
	Before procfleet.Number // exclusive upper bound; 0 selects from the newest task on
	Limit  int              // page size, 1 to 1000
}

// ResultQuery selects one page of the items of a task, in the order of
// [procfleet.States], failures first, and by index within a state.
type ResultQuery struct {
	State  procfleet.State // state of the selected items; empty for all states
	Cursor string          // cursor returned with the previous page; empty for the first page
	Limit  int             // page size, 1 to 1000
}

// Queries are the read operations for callers. The cost of a page depends on the size
// of the page, not on the size of the task. Counters are read in one operation.
type Queries interface {
	Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error)
	// Tasks returns tasks in descending order of number.
	Tasks(ctx context.Context, q TaskQuery) ([]procfleet.Task, error)
	// Chunk returns all items of one chunk with their states and results; to read a whole
	// task, call Chunk for every chunk. Items of a rejected task are rejected. Chunk
	// returns ErrNotFound if the task has no such chunk.
	Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error)
	// Owners returns the hosts of items, which are indexes in the task; the zero Host for
	// an index that the task does not have.
	Owners(ctx context.Context, id procfleet.TaskID, items []int) ([]procfleet.Host, error)
	// Results returns a page and the cursor of the next page; next is empty on the last
	// page. While a task runs, items change state, so that reading all pages may miss or
	// repeat such items. Results returns an error that wraps ErrCursor if this store did
	// not create the cursor.
	Results(ctx context.Context, id procfleet.TaskID, q ResultQuery) (page []procfleet.ItemResult, next string, err error)
}

// ErrCursor means that the store did not create the page cursor.
var ErrCursor = errors.New("taskstore: cursor not understood")

// SweepShards is the number of shards of the sweep index. Each shard has its own lease.
const SweepShards = 16

// FirstVisit is the time from the acceptance of a task to its first visit by the sweep.
// Within this time the dispatcher has published every chunk or is dead.
const FirstVisit = 10 * time.Second

// FirstVisitOf returns the time from the acceptance of a task to its first visit by the
// sweep: [FirstVisit], or timeout if that is shorter, so that an overdue task ends at
// its deadline.
func FirstVisitOf(timeout time.Duration) time.Duration { return min(FirstVisit, timeout) }

// UndoneChunk is a chunk that needs further delivery.
type UndoneChunk struct {
	Chunk    int
	Sequence uint64    // stream sequence of the last recorded publication; 0 if none was recorded
	Begun    time.Time // time of the first Begin; zero if the chunk was never begun
}

// Upper bounds of visits and leases. The store's clock may step back by hours when a
// wrong clock is corrected. A stored time further ahead than its bound was written
// before such a step. The store does not wait until its clock reaches that time.
const (
	// MaxVisit is the longest time from now until a visit is due.
	MaxVisit = 2 * time.Minute
	// MaxLease is the longest time to live of a lease.
	MaxLease = time.Minute
)

// Visit is an entry of the sweep index: a task and the time at which its visit is due.
type Visit struct {
	Task procfleet.TaskID
	At   time.Time
}

// NextVisit is a task and the time from now until its next visit.
type NextVisit struct {
	Task  procfleet.TaskID
	After time.Duration // time until the visit; values above [MaxVisit] count as MaxVisit
}

// SweepStore is the part of a store that the sweep uses. Every task that is open, and
// every finished task whose notification is pending, has a visit in the sweep index.
type SweepStore interface {
	// Lease acquires or renews a named lease for holder and reports whether holder has
	// the lease. The lease expires after ttl; a ttl above [MaxLease] counts as MaxLease.
	// A stored lease that would expire later than MaxLease from now counts as expired.
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (held bool, err error)
	// Release ends the named lease if holder has it.
	Release(ctx context.Context, name, holder string) error
	// Due returns up to limit visits of a shard: first the visits that are due, the
	// longest overdue first, then the visits later than [MaxVisit] from now. A returned
	// visit may name a task that was never written.
	Due(ctx context.Context, shard, limit int) ([]Visit, error)
	// TasksByID returns tasks in the order of ids, the zero Task for an id without a task.
	TasksByID(ctx context.Context, ids []procfleet.TaskID) ([]procfleet.Task, error)
	// DeliveredItems returns, for each of tasks, the items in state delivered, ordered by
	// index. tasks must be results of [SweepStore.TasksByID]. A task that has more than
	// one chunk or was removed has no entries.
	DeliveredItems(ctx context.Context, tasks []procfleet.Task) ([][]procfleet.ItemResult, error)
	// Undone returns the chunks of a task that are not done, which the caller publishes. Of a
	// rollout these are the chunks with open items.
	// When Undone returns without an error, the task is as durable as after Create.
	Undone(ctx context.Context, id procfleet.TaskID) ([]UndoneChunk, error)
	// Republished records the new stream sequence of a chunk.
	Republished(ctx context.Context, id procfleet.TaskID, chunk int, sequence uint64) error
	// Revisit sets the next visits of tasks. It ignores tasks without a visit.
	Revisit(ctx context.Context, next ...NextVisit) error
	// Settle removes visits from the sweep index. The caller passes visits of tasks that
	// are finished and notified, rejected, or nonexistent. A visit with the time At that
	// Due returned is removed only if the stored time is still At, so that a task created
	// after Due keeps its visit. A visit with a zero At removes any visit of its task.
	Settle(ctx context.Context, visits ...Visit) error
	// Published records that the finished event of a finished task was published: it sets
	// EventPublished and nothing else. Published does not change a task that is open
	// again because a fail-over lost its end: the next end has its own event.
	Published(ctx context.Context, id procfleet.TaskID) error
	// Notified records that the ends of finished tasks were notified: it clears
	// NotifyPending and removes the tasks' visits from the sweep index. A task that is
	// open again because a fail-over lost its end keeps its visit. An id without a task
	// changes nothing. If Notified returns an error, some tasks may be recorded.
	Notified(ctx context.Context, ids ...procfleet.TaskID) error
}

const (
	// PresenceTTL is how long an agent counts as live after its last announcement.
	PresenceTTL = 90 * time.Second
	// InstanceMemory is how long the store retains the last instance of a host, with its
	// Since, after the host's presence ended.
	InstanceMemory = 7 * 24 * time.Hour
)

// Announcement is an agent's report on itself.
type Announcement struct {
	Host     procfleet.Host
	AgentID  string
	Instance string
	// Incarnation identifies the process of the instance.
	Incarnation string
	Version     string
	OS, Arch    string
	// Labels are the labels of the host, without those of the fields above; nil = none. Keys
	// and values are valid by [label.Check].
	Labels     map[string]string
	StartedAt  time.Time // start of the agent, by the agent's clock
	Supervised int       // number of supervised processes
	// CPU and Memory are the host's utilization, in percent of its total capacity.
	CPU, Memory float64
	// Leaving announces a shutdown: it immediately ends the presence of this agent, and
	// of no other agent of the host.
	Leaving bool
}

// Presence describes a live agent: its last announcement is at most [PresenceTTL] old
// and was not Leaving.
type Presence struct {
	Announcement
	SeenAt time.Time // time of the last announcement
	// Since is the time of the first announcement in the current series of this instance.
	// Only two events start a new series: an announcement of another instance on the same
	// host, and an absence longer than [InstanceMemory]. A shorter absence, after Leaving
	// or without announcements, does not change Since.
	Since time.Time
	// Conflict is true while two live agents claim the host. The agents are two instances
	// or two incarnations of one instance, and each announced itself again after the
	// other, within PresenceTTL. Agents that replace one another, as after a restart, are
	// not in conflict, even if the first agent returns: an agent that announced Leaving,
	// or nothing for PresenceTTL, is not live until its next announcement, and its earlier
	// announcements do not count.
	Conflict bool
}

// AllLabels returns the labels of the host, including the facts that have fields.
func (a *Announcement) AllLabels() map[string]string {
	all := make(map[string]string, len(a.Labels)+3)
	maps.Copy(all, a.Labels)
	for key, fact := range map[string]string{"os": a.OS, "arch": a.Arch, "version": a.Version} {
		if fact != "" {
			all[key] = fact
		}
	}
	return all
}

// AgentBinding maps an agent id, which callers use, to a host.
type AgentBinding struct {
	AgentID string
	Host    procfleet.Host
}

// Bounds of bindings.
const (
	MaxAgentID   = 1 << 10 // maximum length of an agent id in bytes
	MaxHostBound = 8       // maximum number of agent ids bound to one host; a further one ends the oldest binding
	MaxClaimants = 8       // maximum number of hosts per cloud area stored as claimants of one agent id
)

// Validate returns a [procfleet.FieldError] if a field of b is missing or too long.
func (b AgentBinding) Validate() error {
	switch {
	case b.Host.IsZero():
		return &procfleet.FieldError{Field: "host", Problem: "is empty"}
	case b.AgentID == "":
		return &procfleet.FieldError{Field: "agent_id", Problem: "is empty"}
	case len(b.AgentID) > MaxAgentID:
		return &procfleet.FieldError{Field: "agent_id", Problem: fmt.Sprintf("is %d bytes long, at most %d are allowed", len(b.AgentID), MaxAgentID)}
	}
	return nil
}

// Hosts stores announcements of agents and bindings of agent ids.
type Hosts interface {
	// Announce stores announcements. The last announcement of a host that is not Leaving
	// describes the host.
	Announce(ctx context.Context, as []Announcement) error
	// Presences returns one entry per host, in the order of hosts; the zero Presence for
	// a host without a live agent.
	Presences(ctx context.Context, hosts []procfleet.Host) ([]Presence, error)
	// Bind binds agent ids to hosts, or rejects all bindings if one is invalid. A binding
	// ends when its id is bound to another host. It also ends when the host's agent
	// changes its announced id to an id that is neither empty nor the bound id. A binding
	// does not expire.
	Bind(ctx context.Context, bs []AgentBinding) error
	// Resolve returns the hosts of agent ids, in the order of agentIDs: the host to which
	// the id is bound, otherwise the only host whose live agent announced the id,
	// otherwise the zero Host. An unbound id that live agents of several hosts announce
	// resolves to the zero Host until only one of these agents is live.
	Resolve(ctx context.Context, agentIDs []string) ([]procfleet.Host, error)
	// Claimants returns, for each of agentIDs in order, the hosts whose live agents
	// announce the id, sorted by cloud area and address text. If an id has more than
	// [MaxClaimants] such hosts, Claimants may omit some.
	Claimants(ctx context.Context, agentIDs []string) ([][]procfleet.Host, error)
	// HostPage returns up to limit live agents, sorted by cloud area and address text,
	// starting after the given host. The zero Host starts with the first host.
	HostPage(ctx context.Context, after procfleet.Host, limit int) ([]Presence, error)
}

// Clock returns the time of the store's clock.
type Clock interface {
	Now(ctx context.Context) (time.Time, error)
}

// Store combines all parts, for commands, implementations and the suite. A role
// declares only the parts that it needs.
type Store interface {
	Acceptance
	Delivery
	Control
	Rollouts
	TransitionLog
	Queries
	SweepStore
	Hosts
	Clock
	// Close closes the store; no confirmed change is lost.
	Close() error
}

// Shard returns the sweep shard of a task.
func Shard(n procfleet.Number) int { return int(uint64(n) % SweepShards) }
