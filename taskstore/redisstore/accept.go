package redisstore

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// dispatchedScript notes that all chunks are queued.
//
// KEYS[1] head
// ARGV[1..] position of each chunk in the stream
// Returns 1, or 0 if there is no such task.
var dispatchedScript = redis.NewScript(`
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'dispatched', 1)
for i, sequence in ipairs(ARGV) do redis.call('HSET', KEYS[1], 'sequence:' .. (i - 1), sequence) end
return 1
`)

// rejectScript ends a task of which nothing was begun. The state field is
// where it and the first begin exclude each other.
//
// KEYS[1] head
// KEYS[2] marks
// ARGV[1] reason
// ARGV[2] mark of a rejected item
// ARGV[3] counter of pending items
// ARGV[4] counter of rejected items
// Returns 1 if the task is rejected, 0 if not, -1 if there is no such task.
var rejectScript = redis.NewScript(luaNow + `
local h = redis.call('HMGET', KEYS[1], 'state', 'items')
if not h[1] then return -1 end
if h[1] == 'rejected' then return 1 end
if h[1] ~= 'accepted' then return 0 end
redis.call('HSET', KEYS[1], 'state', 'rejected', 'reason', ARGV[1], 'finished', text(now()), ARGV[3], 0, ARGV[4], h[2])
redis.call('SETRANGE', KEYS[2], 0, string.rep(ARGV[2], tonumber(h[2])))
return 1
`)

// Dispatched sets the task's flag and the positions of its chunks.
func (s *Store) Dispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64) error {
	args := make([]any, len(sequences))
	for i, n := range sequences {
		args[i] = n
	}
	return s.change(ctx, id, "note as dispatched", dispatchedScript, args...)
}

// change runs a script on a task's head that answers 0 if there is none.
func (s *Store) change(ctx context.Context, id procfleet.TaskID, what string, script *redis.Script, args ...any) error {
	if _, err := number(id); err != nil {
		return err
	}
	c := &call{script: script, keys: []string{s.keys.task(id).head()}, args: args}
	if err := s.run(ctx, c); err != nil {
		return fmt.Errorf("%s: task %s: %w", what, id, err)
	}
	if n, err := c.number(); err != nil || n == 0 {
		return fmt.Errorf("%s: task %s: %w", what, id, missing(err))
	}
	return nil
}

// missing is the error for an answer that says "no such task", unless the
// answer itself could not be read.
func missing(err error) error {
	if err != nil {
		return err
	}
	return taskstore.ErrNotFound
}

// Reject marks all items rejected in one step. Their results are made from
// the reason when they are asked for.
func (s *Store) Reject(ctx context.Context, id procfleet.TaskID, reason string) (bool, error) {
	if _, err := number(id); err != nil {
		return false, err
	}
	keys := s.keys.task(id)
	c := &call{script: rejectScript, keys: []string{keys.head(), keys.marks()}, args: []any{
		reason, string(rune(pack.Rejected)), countField(procfleet.StatePending), countField(procfleet.StateRejected),
	}}
	if err := s.runDurably(ctx, c); err != nil {
		return false, fmt.Errorf("reject task %s: %w", id, err)
	}
	n, err := c.number()
	if err != nil || n < 0 {
		return false, fmt.Errorf("reject task %s: %w", id, missing(err))
	}
	return n == 1, nil
}
