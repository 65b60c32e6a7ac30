package boltstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/taskstore"
)

// Bind binds agent ids to hosts.
func (s *Store) Bind(ctx context.Context, bs []taskstore.AgentBinding) error {
	for i, b := range bs {
		if err := b.Validate(); err != nil {
			return fmt.Errorf("bind agent ids: binding %d: %w", i, err)
		}
	}
	bs = slices.Clone(bs)
	return change(ctx, s, func(t *tx) error {
		for _, b := range bs {
			if err := t.bind(boltdb.HostKey(b.Host), boltdb.Digest(b.AgentID)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *tx) bind(host, id []byte) error {
	bound := t.Bucket(bucketBound)
	if old := bytes.Clone(bound.Get(id)); old != nil {
		if err := t.setAliases(old, without(t.aliases(old), id)); err != nil {
			return err
		}
	}
	ids := append(without(t.aliases(host), id), id)
	for ; len(ids) > taskstore.MaxHostBound; ids = ids[1:] {
		if err := bound.Delete(ids[0]); err != nil {
			return err
		}
	}
	if err := bound.Put(id, host); err != nil {
		return err
	}
	return t.setAliases(host, ids)
}

// unbindOthers removes the bindings of other ids to a host.
func (t *tx) unbindOthers(host, id []byte) error {
	ids := t.aliases(host)
	var kept [][]byte
	for _, bound := range ids {
		if bytes.Equal(bound, id) {
			kept = append(kept, bound)
		} else if err := t.Bucket(bucketBound).Delete(bound); err != nil {
			return err
		}
	}
	if len(kept) == len(ids) {
		return nil
	}
	return t.setAliases(host, kept)
}

// aliases returns the digests of the ids that are bound to a host, oldest first.
func (t *tx) aliases(host []byte) [][]byte {
	return slices.Collect(slices.Chunk(bytes.Clone(t.Bucket(bucketAliases).Get(host)), sha256.Size))
}

func (t *tx) setAliases(host []byte, ids [][]byte) error {
	if len(ids) == 0 {
		return t.Bucket(bucketAliases).Delete(host)
	}
	return t.Bucket(bucketAliases).Put(host, bytes.Join(ids, nil))
}

func without(ids [][]byte, id []byte) [][]byte {
	return slices.DeleteFunc(ids, func(other []byte) bool { return bytes.Equal(other, id) })
}
