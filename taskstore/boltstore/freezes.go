package boltstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// freezeRecord is a freeze without its scope.
type freezeRecord struct {
	Until  time.Time
	Reason string
	By     string
}

// Keys of freezes begin with one of these, so that they are in the order of
// the contract.
const (
	freezeEverywhere = 0 // then the namespace
	freezeOfHost     = 1 // then the key in hosts, 0, the namespace
)

// scopeKey is the key of a freeze; that of the zero scope is before all.
func scopeKey(s catalog.Scope) []byte {
	if s.Host.IsZero() {
		return append([]byte{freezeEverywhere}, s.Namespace...)
	}
	return append(append(append([]byte{freezeOfHost}, hostKey(s.Host)...), 0), s.Namespace...)
}

// readScopeKey reads what scopeKey wrote.
func readScopeKey(key []byte) (catalog.Scope, error) {
	if len(key) > 0 && key[0] == freezeEverywhere {
		return catalog.Scope{Namespace: string(key[1:])}, nil
	}
	const cloud = 8 // bytes of a host's key that may be zero
	if len(key) <= 1+cloud {
		return catalog.Scope{}, fmt.Errorf("%x is not the key of a freeze", key)
	}
	end := 1 + cloud + max(0, bytes.IndexByte(key[1+cloud:], 0))
	h, err := readHostKey(key[1:end])
	if err != nil {
		return catalog.Scope{}, err
	}
	return catalog.Scope{Host: h, Namespace: string(key[end+1:])}, nil
}

// Freeze freezes each scope.
func (s *Store) Freeze(ctx context.Context, scopes []catalog.Scope, f catalog.Freezing) (time.Time, error) {
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
		r := freezeRecord{Until: t.now.Add(f.TTL), Reason: f.Reason, By: f.By}
		for _, key := range keys {
			if err := t.put(bucketFreezes, key, r); err != nil {
				return time.Time{}, err
			}
		}
		return r.Until, nil
	})
}

// Lift ends freezes and returns which existed.
func (s *Store) Lift(ctx context.Context, scopes []catalog.Scope) ([]bool, error) {
	keys := make([][]byte, len(scopes))
	for i, scope := range scopes {
		keys[i] = scopeKey(scope)
	}
	return update(ctx, s, func(t *tx) ([]bool, error) {
		existed := make([]bool, len(keys))
		for i, key := range keys {
			var r freezeRecord
			found, err := t.get(bucketFreezes, key, &r)
			if err == nil && found {
				existed[i] = t.now.Before(r.Until)
				err = t.Bucket(bucketFreezes).Delete(key)
			}
			if err != nil {
				return nil, err
			}
		}
		return existed, nil
	})
}

// FreezePage returns freezes in order, beginning after a scope.
func (s *Store) FreezePage(ctx context.Context, after catalog.Scope, limit int) ([]catalog.Freeze, error) {
	return view(ctx, s, func(t *tx) ([]catalog.Freeze, error) {
		return t.freezes(append(scopeKey(after), 0), nil, limit)
	})
}

// FreezesOf returns the freezes that hold for each host.
func (s *Store) FreezesOf(ctx context.Context, hosts []procfleet.Host) ([][]catalog.Freeze, error) {
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

// freezes reads up to limit freezes that have not ended, all if it is
// negative, from a key on, as long as keys begin with prefix.
func (t *tx) freezes(from, prefix []byte, limit int) ([]catalog.Freeze, error) {
	var found []catalog.Freeze
	c := t.Bucket(bucketFreezes).Cursor()
	for key, _ := c.Seek(from); key != nil && bytes.HasPrefix(key, prefix) && len(found) != limit; key, _ = c.Next() {
		var r freezeRecord
		if _, err := t.get(bucketFreezes, key, &r); err != nil {
			return nil, err
		}
		if !t.now.Before(r.Until) {
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

// purgeFreezes removes those among the freezes from a key on that have ended,
// and returns the key to go on with; nil after the last.
func (t *tx) purgeFreezes(from []byte) ([]byte, error) {
	b := t.Bucket(bucketFreezes)
	c := b.Cursor()
	var ended [][]byte
	looked := 0
	key, _ := c.Seek(from)
	for ; key != nil && looked < purgeStep; key, _ = c.Next() {
		looked++
		var r freezeRecord
		if _, err := t.get(bucketFreezes, key, &r); err != nil {
			return nil, err
		}
		if !t.now.Before(r.Until) {
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
