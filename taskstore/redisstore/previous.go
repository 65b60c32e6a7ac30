package redisstore

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// previousScript stores previous specs of a chunk, unless they are stored already.
//
// KEYS[1] head
// KEYS[2] previous specs of the chunk
// ARGV[1] first item
// ARGV[2] packed specs
// Returns 1, or 0 if the task does not exist.
var previousScript = redis.NewScript(`
local expires = redis.call('HGET', KEYS[1], 'expires')
if not expires then return 0 end
redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2])
redis.call('PEXPIREAT', KEYS[2], math.floor(expires / 1000))
return 1
`)

// KeepPrevious stores previous specs, in one round trip. It waits for replicas, because the caller
// then replaces the registrations.
func (s *Store) KeepPrevious(ctx context.Context, id procfleet.TaskID, specs []taskstore.PreviousSpecs) error {
	if _, err := number(id); err != nil {
		return err
	}
	keys := s.keys.task(id)
	calls := make([]*redisconn.Call, len(specs))
	for i := range specs {
		packed, err := pack.PreviousSpecs(specs[i].Specs)
		if err != nil {
			return err
		}
		calls[i] = &redisconn.Call{Script: previousScript, Keys: []string{keys.head(), keys.previous(specs[i].Chunk)}, Args: []any{specs[i].From, packed}}
	}
	if len(calls) == 0 {
		return nil
	}
	if err := s.conn.RunDurably(ctx, calls...); err != nil {
		return fmt.Errorf("keep previous specs of task %s: %w", id, err)
	}
	for _, c := range calls {
		if kept, err := c.Cmd.Int(); err != nil || kept == 0 {
			return fmt.Errorf("keep previous specs of task %s: %w", id, taskstore.ErrNotFound)
		}
	}
	return nil
}

// PreviousSpecs reads the previous specs of a chunk, in one round trip.
func (s *Store) PreviousSpecs(ctx context.Context, id procfleet.TaskID, chunk int) ([]taskstore.PreviousSpecs, error) {
	if _, err := number(id); err != nil {
		return nil, err
	}
	var answer *redis.MapStringStringCmd
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		answer = pipe.HGetAll(ctx, s.keys.task(id).previous(chunk))
	}); err != nil {
		return nil, fmt.Errorf("read previous specs of task %s: %w", id, err)
	}
	var found []taskstore.PreviousSpecs
	for from, packed := range answer.Val() {
		specs, err := pack.ReadPreviousSpecs([]byte(packed))
		if err != nil {
			return nil, fmt.Errorf("%w: task %s: %w", redisconn.ErrDamaged, id, err)
		}
		first, _ := strconv.Atoi(from) // only KeepPrevious writes the fields
		found = append(found, taskstore.PreviousSpecs{Chunk: chunk, From: first, Specs: specs})
	}
	taskstore.SortPrevious(found)
	return found, nil
}
