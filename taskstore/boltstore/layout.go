package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// The buckets. Numbers in keys are big-endian, so that keys sort like the numbers.
// "task" in a key is the task's number.
var (
	bucketTasks    = []byte("tasks")    // task → taskRecord
	bucketChunks   = []byte("chunks")   // task, chunk → packed chunk, written once
	bucketLegs     = []byte("legs")     // task, chunk → leg
	bucketResults  = []byte("results")  // task, item → packed result
	bucketPrevious = []byte("previous") // task, chunk, first item → packed previous specs
	bucketKeys     = []byte("keys")     // digest of application and idempotency key → keyRecord
	bucketVisits   = []byte("visits")   // shard, moment, task → nothing: the sweep index
	bucketExpiry   = []byte("expiry")   // moment, task → nothing: expiry of tasks
	bucketHosts    = []byte("hosts")    // cloud area, address text → hostRecord
	bucketIDs      = []byte("ids")      // digest of agent id, host key → nothing: hosts whose agents announced the id last
	bucketBound    = []byte("bound")    // digest of agent id → host key, as callers have bound it
	bucketAliases  = []byte("aliases")  // host key → digests of the agent ids that are bound to it

	keyNumber = []byte("number") // in [boltdb.BucketMeta]: the last number that was allotted
)

func buckets() [][]byte {
	return [][]byte{
		bucketTasks, bucketChunks, bucketLegs, bucketResults, bucketPrevious,
		bucketKeys, bucketVisits, bucketExpiry, bucketHosts, bucketIDs, bucketBound, bucketAliases,
	}
}

// taskRecord is a stored task with its next visit and its idempotency key.
type taskRecord struct {
	procfleet.Task
	// Noted are the transitions of the task; Task.Transitions is their number.
	Noted []procfleet.Transition `json:",omitempty"`
	Visit time.Time              // next visit of the sweep; zero if the task is settled
	Key   []byte                 // key in bucketKeys; nil without an idempotency key
	// Progressed is when a unit of a rollout was last released or ended.
	Progressed time.Time `json:",omitzero"`
	NextGrant  int       `json:",omitzero"` // first chunk of a rollout whose items are not all granted
	// Zones has the number of active units of each zone that has some.
	Zones map[int]int `json:",omitempty"`
	// Settled is set by [procfleet.TransitionSettled].
	Settled bool `json:",omitempty"`
}

// leg is the delivery state of a chunk.
type leg struct {
	First    int
	Marks    []byte // one [pack.Mark] per item
	Sequence uint64
	Begun    time.Time
	Done     bool
	Cancels  []taskstore.ItemCancel `json:",omitempty"`
	Units    string                 `json:",omitempty"` // see [pack.Units]; only of rollouts
	Grants   []taskstore.Grant      `json:",omitempty"` // only of rollouts
	Zone     int                    `json:",omitempty"` // see [procfleet.Chunk]
}

func openMark(m byte) bool { return pack.Mark(m).Open() }

func activeMark(m byte) bool { return pack.Mark(m).Active() }

type keyRecord struct {
	Task     procfleet.Number
	BodyHash string
}

func taskKey(n procfleet.Number) []byte { return boltdb.Number8(uint64(n)) }

// partKey returns the key of a chunk or an item of a task.
func partKey(n procfleet.Number, part int) []byte {
	return binary.BigEndian.AppendUint32(taskKey(n), uint32(part))
}

// momentKey returns the key of a task in an index by time.
func momentKey(at time.Time, n procfleet.Number) []byte {
	return append(boltdb.Number8(uint64(at.UnixMicro())), taskKey(n)...)
}

func visitKey(at time.Time, n procfleet.Number) []byte {
	return append([]byte{byte(taskstore.Shard(n))}, momentKey(at, n)...)
}

// tx is a transaction with operations on tasks and hosts. They decode, and so copy, all
// data that they return, which bbolt permits to use only until the transaction ends.
type tx struct{ *boltdb.Tx }

// task returns the record of a task. It returns ErrNotFound if the task does not exist,
// or has expired although it was not removed yet.
func (t *tx) task(id procfleet.TaskID) (*taskRecord, error) {
	n, err := id.Number()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", taskstore.ErrNotFound, err)
	}
	r, err := t.taskNumbered(n)
	if err == nil && (r == nil || !t.Now.Before(r.ExpiresAt)) {
		return nil, fmt.Errorf("%w: %s", taskstore.ErrNotFound, id)
	}
	return r, err
}

// taskNumbered returns the record of a task, expired or not; nil if it does not exist.
func (t *tx) taskNumbered(n procfleet.Number) (*taskRecord, error) {
	var r taskRecord
	found, err := t.Get(bucketTasks, taskKey(n), &r)
	if err != nil || !found {
		return nil, err
	}
	return &r, nil
}

func (t *tx) putTask(r *taskRecord) error { return t.Put(bucketTasks, taskKey(r.Number), r) }

// legs reads and writes the legs of one task. It reads and writes each leg at most
// once.
type legs struct {
	t     *tx
	task  *taskRecord
	read  map[int]*leg
	dirty map[int]bool
}

func (t *tx) legs(r *taskRecord) *legs {
	return &legs{t: t, task: r, read: map[int]*leg{}, dirty: map[int]bool{}}
}

// errNoChunk means that the task has no chunk of this number.
var errNoChunk = fmt.Errorf("%w: no such chunk", taskstore.ErrNotFound)

func (ls *legs) leg(chunk int) (*leg, error) {
	if l := ls.read[chunk]; l != nil {
		return l, nil
	}
	if chunk < 0 || chunk >= ls.task.Chunks {
		return nil, errNoChunk
	}
	l := new(leg)
	found, err := ls.t.Get(bucketLegs, partKey(ls.task.Number, chunk), l)
	if err == nil && !found {
		err = fmt.Errorf("leg %d of %s is missing", chunk, ls.task.ID)
	}
	if err != nil {
		return nil, err
	}
	ls.read[chunk] = l
	return l, nil
}

// all returns all legs of the task, in order.
func (ls *legs) all() ([]*leg, error) {
	all := make([]*leg, ls.task.Chunks)
	for c := range all {
		l, err := ls.leg(c)
		if err != nil {
			return nil, err
		}
		all[c] = l
	}
	return all, nil
}

// holding returns the chunk that contains an item of the task.
func (ls *legs) holding(item int) (chunk int, l *leg, err error) {
	after := sort.Search(ls.task.Chunks, func(c int) bool {
		l, e := ls.leg(c)
		err = errors.Join(err, e)
		return e == nil && l.First > item
	})
	if err != nil {
		return 0, nil, err
	}
	l, err = ls.leg(after - 1)
	return after - 1, l, err
}

// mark changes the mark of the i-th item of a chunk and the task's counters. save
// writes both.
func (ls *legs) mark(chunk, i int, m pack.Mark) {
	l := ls.read[chunk]
	ls.task.Counts[pack.Mark(l.Marks[i]).State()]--
	ls.task.Counts[m.State()]++
	l.Marks[i] = byte(m)
	ls.dirty[chunk] = true
}

// save writes the task's record and its changed legs.
func (ls *legs) save() error {
	for c := range ls.dirty {
		if err := ls.t.Put(bucketLegs, partKey(ls.task.Number, c), ls.read[c]); err != nil {
			return err
		}
	}
	return ls.t.putTask(ls.task)
}
