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
	// purgeEvery is how often expired tasks, long silent hosts and ended
	// freezes are removed. Calls do not return them any longer; this only frees
	// their disk space.
	purgeEvery = 30 * time.Second
	// purgeStep bounds the keys that one step reads or removes, so that it
	// hardly delays other writers.
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

// purge removes everything that has expired, and evicts from memory the
// businesses that were not used lately.
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
				return err // the writer may still read from
			}
			from = next
		}
	}
	return nil
}

// purgeTask removes a part of the task that expired first and reports whether
// there may be more to do. The entry in the index is removed last, so that a
// half removed task is found again.
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

// forgetTask removes a task's record, visit and key.
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
	if found && k.Task == n { // else the key has a newer task
		if err := t.Bucket(bucketKeys).Delete(r.Key); err != nil {
			return err
		}
	}
	return t.Bucket(bucketTasks).Delete(taskKey(n))
}

// deletePrefix removes up to limit keys that begin with prefix and returns
// what is left of limit.
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

// purgeHosts removes those among the hosts from a key on that are not to be
// remembered any longer, and returns the key to go on with; nil after the last
// host.
func (t *tx) purgeHosts(from []byte) ([]byte, error) {
	c := t.Bucket(bucketHosts).Cursor()
	forgotten := map[string]string{} // key to agent id
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

// purgeReports lets reports expire whose hosts are not remembered: they never
// announced themselves, or were forgotten by a release that kept their reports.
// It remembers such a host as silent from now on, and purgeHosts removes both.
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
