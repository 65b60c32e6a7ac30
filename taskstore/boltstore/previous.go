package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// KeepPrevious stores previous specs, unless they are stored already.
func (s *Store) KeepPrevious(ctx context.Context, id procfleet.TaskID, specs []taskstore.PreviousSpecs) error {
	packed := make([][]byte, len(specs))
	for i := range specs {
		var err error
		if packed[i], err = pack.PreviousSpecs(specs[i].Specs); err != nil {
			return err
		}
	}
	_, err := update(ctx, s, func(t *tx) (struct{}, error) {
		r, err := t.task(id)
		if err != nil {
			return struct{}{}, err
		}
		b := t.Bucket(bucketPrevious)
		for i := range specs {
			key := append(partKey(r.Number, specs[i].Chunk), boltdb.Number8(uint64(specs[i].From))...)
			if b.Get(key) != nil {
				continue
			}
			if err := b.Put(key, packed[i]); err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	return err
}

// PreviousSpecs returns the previous specs of a chunk.
func (s *Store) PreviousSpecs(ctx context.Context, id procfleet.TaskID, chunk int) ([]taskstore.PreviousSpecs, error) {
	return view(ctx, s, func(t *tx) (found []taskstore.PreviousSpecs, err error) {
		n, err := id.Number()
		if err != nil {
			return nil, taskstore.ErrNotFound
		}
		prefix := partKey(n, chunk)
		c := t.Bucket(bucketPrevious).Cursor()
		for key, raw := c.Seek(prefix); bytes.HasPrefix(key, prefix); key, raw = c.Next() {
			specs, err := pack.ReadPreviousSpecs(raw)
			if err != nil {
				return nil, fmt.Errorf("task %s: %w", id, err)
			}
			from := binary.BigEndian.Uint64(key[len(prefix):])
			found = append(found, taskstore.PreviousSpecs{Chunk: chunk, From: int(from), Specs: specs})
		}
		return found, nil
	})
}
