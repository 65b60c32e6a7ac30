package boltstore

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/boltdb"
)

// purgeTasks removes expired tasks.
func purgeTasks(b *boltdb.Tx, _ []byte) ([]byte, error) {
	more, err := (&tx{b}).purgeTask()
	if err != nil || !more {
		return nil, err
	}
	return []byte{}, nil
}

// purgeTask removes a part of the task that expired first. It reports whether more may
// be left to remove. It removes the entry in the index last, so that the next call
// finds a task that was removed partly.
func (t *tx) purgeTask() (more bool, err error) {
	index := t.Bucket(bucketExpiry)
	key, _ := index.Cursor().First()
	if key == nil || int64(binary.BigEndian.Uint64(key)) > t.Now.UnixMicro() {
		return false, nil
	}
	key = bytes.Clone(key)
	n := procfleet.Number(binary.BigEndian.Uint64(key[8:]))
	if err := t.forgetTask(n); err != nil {
		return false, err
	}
	left := boltdb.PurgeKeys
	for _, bucket := range [][]byte{bucketChunks, bucketLegs, bucketResults, bucketPrevious} {
		if left, err = t.deletePrefix(bucket, taskKey(n), left); err != nil {
			return false, err
		}
	}
	if left > 0 {
		err = index.Delete(key)
	}
	return true, err
}

// forgetTask removes a task's record, visit and idempotency key.
func (t *tx) forgetTask(n procfleet.Number) error {
	r, err := t.taskNumbered(n)
	if err != nil || r == nil {
		return err
	}
	if err := t.visit(r, time.Time{}); err != nil {
		return err
	}
	var k keyRecord
	found, err := t.Get(bucketKeys, r.Key, &k)
	if err != nil {
		return err
	}
	if found && k.Task == n { // otherwise the key belongs to a newer task
		if err := t.Bucket(bucketKeys).Delete(r.Key); err != nil {
			return err
		}
	}
	return t.Bucket(bucketTasks).Delete(taskKey(n))
}

// deletePrefix removes up to limit keys with a prefix and returns the rest of limit.
func (t *tx) deletePrefix(bucket, prefix []byte, limit int) (left int, err error) {
	b := t.Bucket(bucket)
	var keys [][]byte
	c := b.Cursor()
	for key, _ := c.Seek(prefix); bytes.HasPrefix(key, prefix) && len(keys) < limit; key, _ = c.Next() {
		keys = append(keys, bytes.Clone(key))
	}
	for _, key := range keys {
		if err := b.Delete(key); err != nil {
			return 0, err
		}
	}
	return limit - len(keys), nil
}

// purgeHosts removes hosts whose presence ended long ago, beginning at a key. It
// returns the key at which to continue; nil after the last host.
func (s *Store) purgeHosts(b *boltdb.Tx, from []byte) ([]byte, error) {
	t := &tx{b}
	c := t.Bucket(bucketHosts).Cursor()
	forgotten := map[string]string{} // host key → agent id
	looked := 0
	key, _ := c.Seek(from)
	for ; key != nil && looked < boltdb.PurgeKeys; key, _ = c.Next() {
		r, err := t.host(key)
		if err != nil {
			return nil, err
		}
		if r != nil && r.forgotten(t.Now) {
			forgotten[string(key)] = r.Last.AgentID
		}
		looked++
	}
	next := bytes.Clone(key)
	for host, agentID := range forgotten {
		if err := s.forgetHost(t, []byte(host), agentID); err != nil {
			return nil, err
		}
	}
	return next, nil
}
