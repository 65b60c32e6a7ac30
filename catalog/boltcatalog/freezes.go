package boltcatalog

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/boltdb"
)

// freezeRecord is a freeze without its scope.
type freezeRecord struct {
	Until  time.Time
	Reason string
	By     string
}

// Keys of freezes begin with one of these bytes, which sort them in the order that
// [catalog.Freezes] requires.
const (
	freezeEverywhere = 0 // followed by the namespace
	freezeOfHost     = 1 // followed by the host's key, a zero byte, the namespace
)

// scopeKey returns the key of a freeze. The key of the zero scope sorts before all
// others.
func scopeKey(s catalog.Scope) []byte {
	if s.Host.IsZero() {
		return append([]byte{freezeEverywhere}, s.Namespace...)
	}
	return append(append(append([]byte{freezeOfHost}, boltdb.HostKey(s.Host)...), 0), s.Namespace...)
}

// readScopeKey parses the result of scopeKey.
func readScopeKey(key []byte) (catalog.Scope, error) {
	if len(key) > 0 && key[0] == freezeEverywhere {
		return catalog.Scope{Namespace: string(key[1:])}, nil
	}
	const cloud = 8 // leading bytes of a host's key that may be zero
	if len(key) <= 1+cloud {
		return catalog.Scope{}, fmt.Errorf("%x is not the key of a freeze", key)
	}
	end := 1 + cloud + max(0, bytes.IndexByte(key[1+cloud:], 0))
	h, err := boltdb.ReadHostKey(key[1:end])
	if err != nil {
		return catalog.Scope{}, err
	}
	return catalog.Scope{Host: h, Namespace: string(key[end+1:])}, nil
}

// Freeze freezes each scope and returns the end of the freezes.
func (s *Catalog) Freeze(ctx context.Context, scopes []catalog.Scope, f catalog.Freezing) (time.Time, error) {
	if err := f.Validate(); err != nil {
		return time.Time{}, fmt.Errorf("freeze: %w", err)
	}
	keys := make([][]byte, len(scopes))
	for i, scope := range scopes {
		if err := scope.Validate(); err != nil {
			return time.Time{}, fmt.Errorf("freeze: %w", err)
		}
		keys[i] = scopeKey(scope)
	}
	return update(ctx, s, func(t *tx) (time.Time, error) {
		r := freezeRecord{Until: t.Now.Add(f.TTL), Reason: f.Reason, By: f.By}
		for _, key := range keys {
			if err := t.Put(bucketFreezes, key, r); err != nil {
				return time.Time{}, err
			}
		}
		return r.Until, nil
	})
}

// Lift lifts freezes and reports for each scope whether it was frozen.
func (s *Catalog) Lift(ctx context.Context, scopes []catalog.Scope) ([]bool, error) {
	keys := make([][]byte, len(scopes))
	for i, scope := range scopes {
		keys[i] = scopeKey(scope)
	}
	return update(ctx, s, func(t *tx) ([]bool, error) {
		existed := make([]bool, len(keys))
		for i, key := range keys {
			var r freezeRecord
			found, err := t.Get(bucketFreezes, key, &r)
			if err == nil && found {
				existed[i] = t.Now.Before(r.Until)
				err = t.Bucket(bucketFreezes).Delete(key)
			}
			if err != nil {
				return nil, err
			}
		}
		return existed, nil
	})
}

// FreezePage returns up to limit freezes in order, beginning after a scope.
func (s *Catalog) FreezePage(ctx context.Context, after catalog.Scope, limit int) ([]catalog.Freeze, error) {
	return view(ctx, s, func(t *tx) ([]catalog.Freeze, error) {
		return t.freezes(append(scopeKey(after), 0), nil, limit)
	})
}

// FreezesOf returns the freezes in effect on each host.
func (s *Catalog) FreezesOf(ctx context.Context, hosts []procfleet.Host) ([][]catalog.Freeze, error) {
	return view(ctx, s, func(t *tx) ([][]catalog.Freeze, error) {
		if len(hosts) == 0 {
			return nil, nil
		}
		everywhere, err := t.freezes([]byte{freezeEverywhere}, []byte{freezeEverywhere}, -1)
		if err != nil {
			return nil, err
		}
		out := make([][]catalog.Freeze, len(hosts))
		for i, h := range hosts {
			prefix := scopeKey(catalog.Scope{Host: h})
			if h.IsZero() {
				continue
			}
			own, err := t.freezes(prefix, prefix, -1)
			if err != nil {
				return nil, err
			}
			out[i] = append(slices.Clip(everywhere), own...)
		}
		return out, nil
	})
}

// freezes returns up to limit freezes in effect, all if limit is negative. It begins at
// the key from and ends at the first key without the prefix.
func (t *tx) freezes(from, prefix []byte, limit int) ([]catalog.Freeze, error) {
	var found []catalog.Freeze
	c := t.Bucket(bucketFreezes).Cursor()
	for key, _ := c.Seek(from); key != nil && bytes.HasPrefix(key, prefix) && len(found) != limit; key, _ = c.Next() {
		var r freezeRecord
		if _, err := t.Get(bucketFreezes, key, &r); err != nil {
			return nil, err
		}
		if !t.Now.Before(r.Until) {
			continue
		}
		scope, err := readScopeKey(key)
		if err != nil {
			return nil, err
		}
		found = append(found, catalog.Freeze{Scope: scope, Until: r.Until.UTC(), Reason: r.Reason, By: r.By})
	}
	return found, nil
}

// purgeFreezes removes ended freezes, beginning at a key. It returns the key at which
// to continue; nil after the last freeze.
func purgeFreezes(t *boltdb.Tx, from []byte) ([]byte, error) {
	b := t.Bucket(bucketFreezes)
	c := b.Cursor()
	var ended [][]byte
	looked := 0
	key, _ := c.Seek(from)
	for ; key != nil && looked < boltdb.PurgeKeys; key, _ = c.Next() {
		looked++
		var r freezeRecord
		if _, err := t.Get(bucketFreezes, key, &r); err != nil {
			return nil, err
		}
		if !t.Now.Before(r.Until) {
			ended = append(ended, bytes.Clone(key))
		}
	}
	next := bytes.Clone(key)
	for _, key := range ended {
		if err := b.Delete(key); err != nil {
			return nil, err
		}
	}
	return next, nil
}
