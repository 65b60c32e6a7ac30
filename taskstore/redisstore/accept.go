package redisstore

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// dispatchedScript records that all chunks of a task are queued. After that the task
// cannot be rejected.
//
// KEYS[1] head
// ARGV[1..] position of each chunk in the stream
// Returns 1, 0 if there is no such task, -1 if it was rejected.
var dispatchedScript = redis.NewScript(`
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return 0 end
if state == 'rejected' then return -1 end
local set = {'dispatched', 1}
for i, sequence in ipairs(ARGV) do
  set[#set + 1] = 'sequence:' .. (i - 1)
  set[#set + 1] = sequence
  if #set > 2000 then
    redis.call('HSET', KEYS[1], unpack(set))
    set = {'dispatched', 1}
  end
end
redis.call('HSET', KEYS[1], unpack(set))
return 1
`)

// rejectScript rejects a task that is neither begun nor marked as dispatched.
// Rejection, begin and dispatch all check and change the head, so they exclude each
// other.
//
// KEYS[1] head
// KEYS[2] marks
// ARGV[1] reason
// ARGV[2] mark of a rejected item
// ARGV[3] counter of pending items
// ARGV[4] counter of rejected items
// Returns 1 if the task is rejected, 0 if not, -1 if there is no such task.
var rejectScript = redis.NewScript(redisconn.LuaNow + `
local h = redis.call('HMGET', KEYS[1], 'state', 'items', 'dispatched')
if not h[1] then return -1 end
if h[1] == 'rejected' then return 1 end
if h[1] ~= 'accepted' or h[3] == '1' then return 0 end
redis.call('HSET', KEYS[1], 'state', 'rejected', 'reason', ARGV[1], 'finished', text(now()), ARGV[3], 0, ARGV[4], h[2])
redis.call('SETRANGE', KEYS[2], 0, string.rep(ARGV[2], tonumber(h[2])))
return 1
`)

// Dispatched marks the task as dispatched and records the position of each chunk in the
// stream.
func (s *Store) Dispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64) error {
	args := make([]any, len(sequences))
	for i, n := range sequences {
		args[i] = n
	}
	return s.change(ctx, id, "note as dispatched", dispatchedScript, args...)
}

// change runs a script on a task's head. The script replies 0 if the task does not
// exist, and -1 if the task was rejected, which excludes the change.
func (s *Store) change(ctx context.Context, id procfleet.TaskID, what string, script *redis.Script, args ...any) error {
	if _, err := number(id); err != nil {
		return err
	}
	c := &redisconn.Call{Script: script, Keys: []string{s.keys.task(id).head()}, Args: args}
	if err := s.conn.Run(ctx, c); err != nil {
		return fmt.Errorf("%s: task %s: %w", what, id, err)
	}
	n, err := c.Number()
	switch {
	case err != nil || n == 0:
		return fmt.Errorf("%s: task %s: %w", what, id, missing(err))
	case n < 0:
		return fmt.Errorf("%s: task %s: %w", what, id, taskstore.ErrRejected)
	}
	return nil
}

// missing returns [taskstore.ErrNotFound] for the reply "no such task", or err if the
// reply could not be read.
func missing(err error) error {
	if err != nil {
		return err
	}
	return taskstore.ErrNotFound
}

// Reject marks all items as rejected in one step. It stores only the reason; reads
// compute the results of the items from it.
func (s *Store) Reject(ctx context.Context, id procfleet.TaskID, reason string) (bool, error) {
	if _, err := number(id); err != nil {
		return false, err
	}
	keys := s.keys.task(id)
	c := &redisconn.Call{Script: rejectScript, Keys: []string{keys.head(), keys.marks()}, Args: []any{
		reason, string(rune(pack.Rejected)), countField(procfleet.StatePending), countField(procfleet.StateRejected),
	}}
	if err := s.conn.RunDurably(ctx, c); err != nil {
		return false, fmt.Errorf("reject task %s: %w", id, err)
	}
	n, err := c.Number()
	if err != nil || n < 0 {
		return false, fmt.Errorf("reject task %s: %w", id, missing(err))
	}
	return n == 1, nil
}
