// Package taskstore is the contract of the task store, the truth about tasks.
// Implementations are boltstore (one machine) and redisstore (many); the
// suite in storetest checks both.
//
// All moments are by the store's own clock ([Clock.Now]), so that dispatchers,
// workers and sweeps agree however wrong their machines' clocks are. Every
// method is safe for concurrent use, returns when ctx ends, and either has
// its whole effect or none. A method that returns [ErrUnavailable] may have
// had its effect; all methods may be repeated.
package taskstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/procfleet/procfleet"
)

// Errors of a store.
var (
	// ErrNotFound means that there is no such task, or no longer.
	ErrNotFound = errors.New("taskstore: no such task")
	// ErrRejected means that the task was rejected.
	ErrRejected = errors.New("taskstore: the task was rejected")
	// ErrConflict means that the idempotency key was used with another body.
	ErrConflict = errors.New("taskstore: the idempotency key was used for another request")
	// ErrExpired means that a task was to be made after its draft's NotAfter.
	ErrExpired = errors.New("taskstore: it is too late to make the task")
	// ErrUnavailable means that the store cannot serve the call now: it is
	// unreachable, loading, read-only or out of memory, or it no longer accepts
	// the password or grants the rights. Try again later.
	ErrUnavailable = errors.New("taskstore: unavailable")
	// ErrFull means that the store keeps its remaining memory for the tasks that
	// it has, and made none. It wraps ErrUnavailable.
	ErrFull = fmt.Errorf("%w: too little memory left for new tasks", ErrUnavailable)
)

// Draft is a submission ready to become a task.
type Draft struct {
	Chunks []procfleet.Chunk
	Lane   procfleet.Lane
	// Timeout is from acceptance to the deadline, Retention from the deadline
	// to the moment when the store forgets everything about the task.
	Timeout   time.Duration
	Retention time.Duration

	Actions     []procfleet.Action
	Dialect     string
	Application string
	Business    string
	Callback    string
	Origin      procfleet.Origin
	Trace       string // see [procfleet.Task]; at most 64 bytes

	// IdempotencyKey, if not empty, makes a repeat by the same application
	// find the task of the first request; BodyHash distinguishes a repeat from
	// another request under the same key.
	IdempotencyKey string
	BodyHash       string

	// NotAfter, if not zero, is until when the task may be made. A repeat
	// finds the task of the first request at any time; its draft needs no
	// chunks for that.
	NotAfter time.Time
}

// Acceptance is the dispatcher's part of a store. The order Create, publish every
// chunk, Dispatched makes the store the outbox: until Dispatched the sweep
// publishes the chunks that a dead dispatcher left.
type Acceptance interface {
	// Create stores a task in state accepted, with its number, its chunks and
	// its visit in the sweep index, due after [FirstVisitOf] its timeout. If
	// the draft's idempotency key already has a task that was not rejected, it
	// returns that one and created is false, or ErrConflict if the body was
	// another. A key whose task was rejected, or was never written because its
	// dispatcher died, is free: the latter continues with the id that the key
	// remembers, with a visit of its own even if the sweep has settled that id
	// or does so meanwhile. The key is remembered as long as the task. After
	// NotAfter no task is made: ErrExpired. A task is made while its entry
	// in the index is certain to be visited, or not at all. With an error, t is
	// the task if it may have been made, or may yet be within FirstVisit; without
	// an id nothing was done.
	Create(ctx context.Context, d Draft) (t procfleet.Task, created bool, err error)
	// Dispatched records that every chunk is queued; sequences[i] is the
	// position of chunk i in the stream (see [SweepStore.Republished]). From then
	// on the task cannot be rejected. ErrRejected if it was rejected before.
	Dispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64) error
	// Reject ends a task that was not begun: every item becomes
	// rejected, with reason as message, and NotifyPending is not set. It
	// returns false, and changes nothing, if a chunk was begun or the task was
	// recorded as dispatched: then it is accepted. Rejecting again returns true.
	Reject(ctx context.Context, id procfleet.TaskID, reason string) (rejected bool, err error)
}

// Gate says whether a worker may deliver a chunk.
type Gate string

// The gates of [Delivery.Begin].
const (
	GateOpen     Gate = "open"     // deliver the pending items
	GateGone     Gate = "gone"     // no such task or chunk, or forgotten
	GateRejected Gate = "rejected" // the task was rejected
	GateOverdue  Gate = "overdue"  // the deadline has passed
	GateFinished Gate = "finished" // every item of the chunk has a final result, or the chunk is done
)

// Begun is what a worker needs to deliver a chunk. Only Gate and Now are set
// unless Gate is open.
type Begun struct {
	Gate  Gate
	Now   time.Time
	Task  procfleet.Task
	Chunk procfleet.Chunk
	// Open lists the items of the chunk without a final result, as indexes
	// into Chunk.Items, ascending.
	Open []int
	// Delivered lists those of Open that an agent has accepted. They may be
	// delivered again; their result comes from the agent or from the sweep.
	Delivered []int
	// FirstBegun is when this chunk was begun for the first time; equal to
	// Now if this is it.
	FirstBegun time.Time
}

// Batch is results of one task.
type Batch struct {
	Task    procfleet.TaskID
	Results []procfleet.Result
}

// Recorded says what a [Batch] changed.
type Recorded struct {
	// Known is false if the task does not exist, or no longer.
	Known bool
	// Applied counts results that became their item's result; the others
	// were repeats, of no higher rank, or of items the task does not have.
	Applied int
	// Completed is true for exactly one batch of a task: the one that made
	// the last open item final. The same step set NotifyPending.
	Completed bool
}

// Delivery is the worker's part of a store: chunks and results.
type Delivery interface {
	// Begin returns whether a chunk may be delivered; the first Begin of a task
	// moves it to running and excludes Reject.
	Begin(ctx context.Context, id procfleet.TaskID, chunk int) (Begun, error)
	// Delivered moves items (indexes in the task) of a chunk from pending to
	// delivered; items in another state stay as they are. With done the
	// chunk needs no further delivery: each of its items was accepted,
	// refused or recorded.
	Delivered(ctx context.Context, id procfleet.TaskID, chunk int, items []int, done bool) error
	// Record applies results by rank: a higher [procfleet.Rank] replaces a
	// lower one once (marked Late if it replaced a final one), an equal or
	// lower one changes nothing; state, counters and result move together.
	// It returns one entry per batch. Results of a rejected task are dropped. Content beyond [procfleet.MaxResult] is cut.
	Record(ctx context.Context, batches []Batch) ([]Recorded, error)
}

// TaskQuery selects tasks for a list, newest first.
type TaskQuery struct {
	Before procfleet.Number // exclusive; 0 begins with the newest
	Limit  int              // 1 to 1000
}

// ResultQuery selects items of one task in the order of [procfleet.States],
// failures first, and by index within a state.
type ResultQuery struct {
	State  procfleet.State // only this state; empty for all
	Cursor string          // from the page before; empty begins
	Limit  int             // 1 to 1000
}

// Queries are the reads for callers. The cost of a page depends on the page,
// not on the size of the task; counters are one read.
type Queries interface {
	Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error)
	// Tasks returns tasks in descending order of number.
	Tasks(ctx context.Context, q TaskQuery) ([]procfleet.Task, error)
	// Chunk returns all items of one chunk with where they stand; a whole
	// result map is read chunk by chunk. Items of a rejected task are
	// rejected. ErrNotFound if the task has no such chunk.
	Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error)
	// Owners returns the host of each of the items (indexes in the task); the
	// zero Host for items that the task does not have.
	Owners(ctx context.Context, id procfleet.TaskID, items []int) ([]procfleet.Host, error)
	// Results returns a page and the cursor of the next; next is empty after
	// the last. While a task runs, items move between states, so a walk over
	// all pages may miss or repeat those that moved. A cursor that this
	// store did not make is an error that wraps ErrCursor.
	Results(ctx context.Context, id procfleet.TaskID, q ResultQuery) (page []procfleet.ItemResult, next string, err error)
}

// ErrCursor means that a page cursor is not one that the store made.
var ErrCursor = errors.New("taskstore: cursor not understood")

// SweepShards is the number of parts of the sweep index; each is visited
// under a lease of its own.
const SweepShards = 16

// FirstVisit is how long after its acceptance the sweep first visits a task:
// by then its dispatcher has published every chunk, or is dead.
const FirstVisit = 10 * time.Second

// FirstVisitOf is how long after its acceptance the sweep first visits a
// task with the given timeout: [FirstVisit], or at the deadline if that comes
// before, so that an overdue task ends at once.
func FirstVisitOf(timeout time.Duration) time.Duration { return min(FirstVisit, timeout) }

// UndoneChunk is a chunk that needs further delivery.
type UndoneChunk struct {
	Chunk    int
	Sequence uint64    // in the stream when last published; 0 if never recorded
	Begun    time.Time // first begun; zero if never
}

// Bounds of visits and leases. The store's clock may step back, by hours when a
// wrong clock is corrected: a time further ahead than these bounds was written
// before such a step, and must not wait for the clock to catch up.
const (
	// MaxVisit is the longest time until a visit.
	MaxVisit = 2 * time.Minute
	// MaxLease is the longest lease.
	MaxLease = time.Minute
)

// Visit is an entry of the sweep index: a task and when its visit is due.
type Visit struct {
	Task procfleet.TaskID
	At   time.Time
}

// NextVisit says after how long a task is to be visited.
type NextVisit struct {
	Task  procfleet.TaskID
	After time.Duration // at most [MaxVisit]; a longer one counts as that
}

// SweepStore is the sweep's part of a store: every task that is open, or
// finished with its notification pending, has a visit in the index.
type SweepStore interface {
	// Lease takes or renews a named lease for holder and reports whether
	// holder has it. It ends by itself after ttl, which is at most [MaxLease];
	// a longer one counts as that. A lease that ends later than MaxLease from
	// now is over.
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (held bool, err error)
	// Release ends a lease of holder.
	Release(ctx context.Context, name, holder string) error
	// Due returns up to limit visits of a shard that are due, the longest
	// overdue first, then those that are later than [MaxVisit] from now. Visits
	// to tasks that were never written are among them.
	Due(ctx context.Context, shard, limit int) ([]Visit, error)
	// TasksByID returns tasks in the order of ids, the zero Task for an id
	// without a task.
	TasksByID(ctx context.Context, ids []procfleet.TaskID) ([]procfleet.Task, error)
	// DeliveredItems returns the delivered items, by index, of each of the tasks,
	// which [SweepStore.TasksByID] returned: those of tasks with one chunk, none of
	// other tasks and of tasks that are gone.
	DeliveredItems(ctx context.Context, tasks []procfleet.Task) ([][]procfleet.ItemResult, error)
	// Undone returns the chunks of a task that are not done, to be published:
	// the task is then as durable as Create promises.
	Undone(ctx context.Context, id procfleet.TaskID) ([]UndoneChunk, error)
	// Republished records a chunk's new position in the stream.
	Republished(ctx context.Context, id procfleet.TaskID, chunk int, sequence uint64) error
	// Revisit sets the next visits of tasks that have one.
	Revisit(ctx context.Context, next ...NextVisit) error
	// Settle removes visits from the sweep index: each task is finished and its
	// notification sent, or rejected, or gone. A visit as Due returned it is
	// removed only if its moment is still the same: a task that was created
	// since then keeps its visit. The zero moment removes any visit of the task.
	Settle(ctx context.Context, visits ...Visit) error
	// Published records that the finished event of a finished task was
	// published: it sets EventPublished and nothing else. A task that is open
	// after all, since a fail-over lost its end, stays as it is: its next end
	// has an event of its own.
	Published(ctx context.Context, id procfleet.TaskID) error
	// Notified records that the ends of finished tasks were notified: it clears
	// NotifyPending and removes the tasks from the sweep index. A task that is
	// open after all, since a fail-over lost its end, stays there. An id without
	// a task changes nothing. After an error some of the tasks may be recorded.
	Notified(ctx context.Context, ids ...procfleet.TaskID) error
}

const (
	// PresenceTTL is how long an announcement counts.
	PresenceTTL = 90 * time.Second
	// InstanceMemory is how long after the end of a host's presence it is
	// remembered which instance that was, and since when.
	InstanceMemory = 7 * 24 * time.Hour
)

// Announcement is an agent's report on itself.
type Announcement struct {
	Host     procfleet.Host
	AgentID  string
	Instance string
	// Incarnation is the process of the instance; "" of an older agent.
	Incarnation string
	Version     string
	OS, Arch    string
	StartedAt   time.Time // of the agent, by its own clock
	Supervised  int
	// CPU and Memory are how much of the host is in use, in percent of all of it.
	CPU, Memory float64
	// Leaving ends the presence of this instance, and of no other one, now.
	Leaving bool
}

// Presence is a live agent: its last announcement is at most [PresenceTTL] old,
// and was not Leaving.
type Presence struct {
	Announcement
	SeenAt time.Time
	// Since is when this instance first announced itself, unless another one of
	// the same host did in between. An instance that returns after it left or
	// was silent, within [InstanceMemory], is not a new one.
	Since time.Time
	// Conflict is true while two live agents claim the host, of two instances
	// or two incarnations of one: each announced itself again after the other,
	// within PresenceTTL. Agents that follow one another are no conflict, as
	// after a restart, even if the first returns: an agent that left or was
	// silent for longer is not live until its next announcement, and its earlier
	// ones do not count.
	Conflict bool
}

// AgentBinding is an agent id that callers use for a host.
type AgentBinding struct {
	AgentID string
	Host    procfleet.Host
}

// Bounds of bindings.
const (
	MaxAgentID   = 1 << 10 // bytes
	MaxHostBound = 8       // agent ids bound to one host; one more ends the first
	MaxClaimants = 8       // hosts of one cloud area that are remembered as claimants of one agent id
)

// Validate returns a [procfleet.FieldError] if b cannot be bound.
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

// Hosts stores announcements of agents.
type Hosts interface {
	// Announce stores announcements; the last one of a host that is not
	// Leaving counts.
	Announce(ctx context.Context, as []Announcement) error
	// Presences returns one entry per host, in order; the zero Presence for
	// hosts without a live agent.
	Presences(ctx context.Context, hosts []procfleet.Host) ([]Presence, error)
	// Bind binds agent ids to hosts, or rejects all if one cannot be bound.
	// A binding ends when the id is bound to another host, and when the host's
	// agent announces another id than before, which is neither empty nor the
	// bound one. It does not end by itself.
	Bind(ctx context.Context, bs []AgentBinding) error
	// Resolve returns the hosts of agent ids, in order: the host to which the id
	// is bound, else the one host whose live agent announced it, else the zero
	// Host. An id that is not bound and that the live agents of several hosts
	// announce is not resolved until all but one are gone.
	Resolve(ctx context.Context, agentIDs []string) ([]procfleet.Host, error)
	// Claimants returns for each agent id, in order, the hosts whose live agents
	// announce it, ordered by cloud area and address text. Beyond
	// [MaxClaimants] some may be left out.
	Claimants(ctx context.Context, agentIDs []string) ([][]procfleet.Host, error)
	// HostPage returns up to limit live agents ordered by cloud area and
	// address text, beginning after the given host (zero begins).
	HostPage(ctx context.Context, after procfleet.Host, limit int) ([]Presence, error)
}

// Clock is the store's clock.
type Clock interface {
	Now(ctx context.Context) (time.Time, error)
}

// Store is all parts together, for commands, implementations and the suite; a
// role declares the parts that it needs.
type Store interface {
	Acceptance
	Delivery
	Queries
	SweepStore
	Hosts
	Clock
	// Close closes the store; no confirmed change is lost.
	Close() error
}

// Shard returns the sweep shard of a task.
func Shard(n procfleet.Number) int { return int(uint64(n) % SweepShards) }
