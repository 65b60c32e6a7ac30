package boltdb

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// purgeEvery is the interval at which expired data is removed. Reads omit it
	// earlier; purging only frees disk space.
	purgeEvery = 30 * time.Second
	// PurgeKeys is the maximum number of keys that one step reads or removes, so that it
	// hardly delays other writers.
	PurgeKeys = 1000
)

// PurgeStep removes expired data, beginning at a key, and reads or removes at most
// [PurgeKeys] keys. It returns the key at which to continue; nil if nothing is left. The
// first step begins at the empty key.
type PurgeStep func(t *Tx, from []byte) (next []byte, err error)

// purgeForever purges until ctx ends.
func (db *DB) purgeForever(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(purgeEvery + rand.N(purgeEvery/10)):
		}
		if err := db.Purge(ctx); err != nil && ctx.Err() == nil {
			db.log.WithError(err).Error("expired tasks not removed")
		}
	}
}

// Purge removes all expired data, and evicts data from memory that was not used recently.
func (db *DB) Purge(ctx context.Context) error {
	parts := db.added()
	for _, p := range parts {
		if p.Evict != nil {
			p.Evict(db.Now())
		}
	}
	for _, p := range parts {
		for _, step := range p.Purge {
			for from := []byte{}; from != nil; {
				next, err := Update(ctx, db, func(t *Tx) ([]byte, error) { return step(t, from) })
				if err != nil {
					return err // stop, because the writer may still be reading the variable from
				}
				from = next
			}
		}
	}
	return nil
}
