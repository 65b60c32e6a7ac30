package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

const (
	// purgeEvery is the interval at which expired tasks, forgotten hosts and ended
	// freezes are removed. Reads omit them earlier; purging only frees disk space.
	purgeEvery = 30 * time.Second
	// purgeStep is the maximum number of keys that one step reads or removes, so that
	// it hardly delays other writers.
	purgeStep = 1000
)

// purgeForever purges until ctx ends.
func (s *Store) purgeForever(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(purgeEvery + rand.N(purgeEvery/10)):
		}
		if err := s.purge(ctx); err != nil && ctx.Err() == nil {
			s.log.WithError(err).Error("expired tasks not removed")
		}
	}
}

// purge removes all expired data, and evicts the views of businesses that were not used
// recently from memory.
func (s *Store) purge(ctx context.Context) error {
	s.templates.Forget(s.now())
	s.topologies.Forget(s.now())
	for more := true; more; {
		var err error
		if more, err = update(ctx, s, (*tx).purgeTask); err != nil {
			return err
		}
	}
	for _, part := range []func(t *tx, from []byte) ([]byte, error){(*tx).purgeHosts, (*tx).purgeReports, (*tx).purgeFreezes} {
		for from := []byte{}; from != nil; {
			next, err := update(ctx, s, func(t *tx) ([]byte, error) { return part(t, from) })
			if err != nil {
				return err // stop, because the writer may still be reading the variable from
			}
			from = next
		}
	}
	return nil
}

// purgeTask removes a part of the task that expired first. It reports whether more may
// be left to remove. It removes the entry in the index last, so that the next call
// finds a task that was removed partly.
func (t *tx) purgeTask() (more bool, err error) {
	index := t.Bucket(bucketExpiry)
	key, _ := index.Cursor().First()
	if key == nil || int64(binary.BigEndian.Uint64(key)) > t.now.UnixMicro() {
		return false, nil
	}
	key = bytes.Clone(key)
	n := procfleet.Number(binary.BigEndian.Uint64(key[8:]))
	if err := t.forgetTask(n); err != nil {
		return false, err
	}
	left := purgeStep
	for _, bucket := range [][]byte{bucketChunks, bucketLegs, bucketResults} {
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
	found, err := t.get(bucketKeys, r.Key, &k)
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
func (t *tx) purgeHosts(from []byte) ([]byte, error) {
	c := t.Bucket(bucketHosts).Cursor()
	forgotten := map[string]string{} // host key → agent id
	looked := 0
	key, _ := c.Seek(from)
	for ; key != nil && looked < purgeStep; key, _ = c.Next() {
		r, err := t.host(key)
		if err != nil {
			return nil, err
		}
		if r != nil && r.forgotten(t.now) {
			forgotten[string(key)] = r.Last.AgentID
		}
		looked++
	}
	next := bytes.Clone(key)
	for host, agentID := range forgotten {
		if err := t.forgetHost([]byte(host), agentID); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// purgeReports makes reports expire whose hosts have no record: hosts that never
// announced themselves, or whose record was removed by a release that did not remove
// reports. It adds a record of a host whose presence ends now, so that purgeHosts later
// removes both.
func (t *tx) purgeReports(from []byte) ([]byte, error) {
	c := t.Bucket(bucketReports).Cursor()
	looked := 0
	key, _ := c.Seek(from)
	for ; key != nil && looked < purgeStep; key, _ = c.Next() {
		looked++
		if r, err := t.host(key); err != nil {
			return nil, err
		} else if r != nil {
			continue
		}
		host, err := readHostKey(key)
		if err != nil {
			return nil, err
		}
		r := &hostRecord{Last: taskstore.Announcement{Host: host}, Since: t.now, Until: t.now}
		if err := t.put(bucketHosts, key, r); err != nil {
			return nil, err
		}
	}
	return bytes.Clone(key), nil
}
