package boltstore

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"time"

	"go.etcd.io/bbolt"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// The buckets. Numbers in keys are big-endian, so that keys sort like the numbers.
// "task" in a key is the task's number.
var (
	bucketMeta    = []byte("meta")    // "format"; "number": the last number that was allotted
	bucketTasks   = []byte("tasks")   // task → taskRecord
	bucketChunks  = []byte("chunks")  // task, chunk → packed chunk, written once
	bucketLegs    = []byte("legs")    // task, chunk → leg
	bucketResults = []byte("results") // task, item → packed result
	bucketKeys    = []byte("keys")    // digest of application and idempotency key → keyRecord
	bucketVisits  = []byte("visits")  // shard, moment, task → nothing: the sweep index
	bucketExpiry  = []byte("expiry")  // moment, task → nothing: expiry of tasks
	bucketHosts   = []byte("hosts")   // cloud area, address text → hostRecord
	bucketIDs     = []byte("ids")     // digest of agent id, host key → nothing: hosts whose agents announced the id last
	bucketBound   = []byte("bound")   // digest of agent id → host key, as callers have bound it
	bucketAliases = []byte("aliases") // host key → digests of the agent ids that are bound to it

	bucketProcesses = []byte("processes") // namespace, name, host key → standing
	bucketSpecs     = []byte("specs")     // digest of the packed spec → number of its registrations, packed spec
	bucketReports   = []byte("reports")   // host key → packed report
	bucketGroups    = []byte("groups")    // host key, 0, namespace → packed groups
	bucketFreezes   = []byte("freezes")   // scopeKey → freezeRecord

	bucketTemplates  = []byte("templates")  // business, id → packed template; the bucket's sequence is the last id
	bucketClaims     = []byte("claims")     // business, digest of a claim → id of the template that has it
	bucketRevisions  = []byte("revisions")  // business → number of changes of its templates
	bucketTopologies = []byte("topologies") // business → version, packed topology

	keyFormat = []byte("format")
	keyNumber = []byte("number")
)

func buckets() [][]byte {
	return [][]byte{
		bucketMeta, bucketTasks, bucketChunks, bucketLegs, bucketResults,
		bucketKeys, bucketVisits, bucketExpiry, bucketHosts, bucketIDs, bucketBound, bucketAliases,
		bucketProcesses, bucketSpecs, bucketReports, bucketGroups, bucketFreezes,
		bucketTemplates, bucketClaims, bucketRevisions, bucketTopologies,
	}
}

// taskRecord is a stored task with its next visit and its idempotency key.
type taskRecord struct {
	procfleet.Task
	Visit time.Time // next visit of the sweep; zero if the task is settled
	Key   []byte    // key in bucketKeys; nil without an idempotency key
}

// leg is the delivery state of a chunk.
type leg struct {
	First    int
	Marks    []byte // one [pack.Mark] per item
	Sequence uint64
	Begun    time.Time
	Done     bool
}

func openMark(m byte) bool { return pack.Mark(m).Open() }

type keyRecord struct {
	Task     procfleet.Number
	BodyHash string
}

func number8(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func taskKey(n procfleet.Number) []byte { return number8(uint64(n)) }

// businessKey returns the key prefix of a business. No business's prefix is a prefix of
// another's.
func businessKey(b catalog.Business) []byte {
	key := append([]byte{byte(len(b.Account))}, b.Account...)
	return append(key, number8(uint64(b.ID))...)
}

// partKey returns the key of a chunk or an item of a task.
func partKey(n procfleet.Number, part int) []byte {
	return binary.BigEndian.AppendUint32(taskKey(n), uint32(part))
}

// momentKey returns the key of a task in an index by time.
func momentKey(at time.Time, n procfleet.Number) []byte {
	return append(number8(uint64(at.UnixMicro())), taskKey(n)...)
}

func visitKey(at time.Time, n procfleet.Number) []byte {
	return append([]byte{byte(taskstore.Shard(n))}, momentKey(at, n)...)
}

// digest returns a fixed-length key for texts of any length and origin. Different lists
// of parts have different digests.
func digest(parts ...string) []byte {
	h := sha256.New()
	for _, p := range parts {
		h.Write(number8(uint64(len(p))))
		h.Write([]byte(p))
	}
	return h.Sum(nil)
}

// tx is a transaction with operations on tasks, hosts and the catalog. They decode, and
// so copy, all data that they return, which bbolt permits to use only until the
// transaction ends.
type tx struct {
	*bbolt.Tx
	now time.Time
}

func (t *tx) get(bucket, key []byte, v any) (found bool, err error) {
	raw := t.Bucket(bucket).Get(key)
	if raw == nil {
		return false, nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return false, fmt.Errorf("%s %x: %w", bucket, key, err)
	}
	return true, nil
}

func (t *tx) put(bucket, key []byte, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s %x: %w", bucket, key, err)
	}
	return t.Bucket(bucket).Put(key, raw)
}

// task returns the record of a task. It returns ErrNotFound if the task does not exist,
// or has expired although it was not removed yet.
func (t *tx) task(id procfleet.TaskID) (*taskRecord, error) {
	n, err := id.Number()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", taskstore.ErrNotFound, err)
	}
	r, err := t.taskNumbered(n)
	if err == nil && (r == nil || !t.now.Before(r.ExpiresAt)) {
		return nil, fmt.Errorf("%w: %s", taskstore.ErrNotFound, id)
	}
	return r, err
}

// taskNumbered returns the record of a task, expired or not; nil if it does not exist.
func (t *tx) taskNumbered(n procfleet.Number) (*taskRecord, error) {
	var r taskRecord
	found, err := t.get(bucketTasks, taskKey(n), &r)
	if err != nil || !found {
		return nil, err
	}
	return &r, nil
}

func (t *tx) putTask(r *taskRecord) error { return t.put(bucketTasks, taskKey(r.Number), r) }

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
	found, err := ls.t.get(bucketLegs, partKey(ls.task.Number, chunk), l)
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
		if err := ls.t.put(bucketLegs, partKey(ls.task.Number, c), ls.read[c]); err != nil {
			return err
		}
	}
	return ls.t.putTask(ls.task)
}
