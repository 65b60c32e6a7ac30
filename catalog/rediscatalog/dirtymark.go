package rediscatalog

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/redisconn"
)

// The registrations and the index of a namespace are in one slot, and reports are in
// others, so no script can access both. A report that changes which processes are
// reported is therefore stored in three steps: set a dirty mark with a token on each of
// these processes, write the report, settle the marks. If the writer is interrupted,
// the marks remain, and the next reader of a page settles them. So each process in the
// index is registered, reported, or marked.
//
// A caller that settles a mark reads after the mark was set whether the process is
// reported. That is valid if the mark still has the token that the caller read.
// Otherwise another caller has set or settled a mark in between, possibly based on
// older data, and the writer of a report marks the process again.

// touchScript marks processes of one namespace as dirty.
//
// KEYS[1] index
// KEYS[2] dirty marks
// ARGV[1] token
// ARGV[2] number of members that are, or will be, reported; they precede the others
// ARGV[3..] members
// Returns 1.
var touchScript = redis.NewScript(`
local count, enter, dirty = tonumber(ARGV[2]), {}, {}
for i = 3, #ARGV do
  dirty[#dirty + 1] = ARGV[i]
  dirty[#dirty + 1] = ARGV[1]
  if i <= count + 2 then
    enter[#enter + 1] = '0'
    enter[#enter + 1] = ARGV[i]
  end
end
if #enter > 0 then redis.call('ZADD', KEYS[1], unpack(enter)) end
redis.call('HSET', KEYS[2], unpack(dirty))
return 1
`)

// settleScript removes dirty marks of one namespace.
//
// KEYS[1] registrations
// KEYS[2] index
// KEYS[3] dirty marks
// ARGV[1] new token for members that other callers have marked in between; "" leaves
// those as they are
// ARGV[2..] for each process: member, the token of its mark, "reported" or ""
// Returns the number of members that other callers have marked.
var settleScript = redis.NewScript(`
local touched = 0
for i = 2, #ARGV, 3 do
  local member = ARGV[i]
  if redis.call('HGET', KEYS[3], member) == ARGV[i + 1] then
    redis.call('HDEL', KEYS[3], member)
    if ARGV[i + 2] == '' and redis.call('HEXISTS', KEYS[1], member) == 0 then
      redis.call('ZREM', KEYS[2], member)
    end
  else
    touched = touched + 1
    if ARGV[1] ~= '' then
      redis.call('ZADD', KEYS[2], 0, member)
      redis.call('HSET', KEYS[3], member, ARGV[1])
    end
  end
end
return touched
`)

// dirtyMarks holds the marked processes of one namespace with the tokens of their
// marks.
type dirtyMarks struct {
	namespace string
	processes []catalog.Process
	tokens    []string
}

// settleDirtyMarks reads whether the processes are reported and settles their marks
// accordingly.
func (s *Catalog) settleDirtyMarks(ctx context.Context, d dirtyMarks) error {
	if len(d.processes) == 0 {
		return nil
	}
	known, err := s.reportsOf(ctx, hostsOf(d.processes))
	if err != nil {
		return err
	}
	args := []any{""}
	for i, p := range d.processes {
		args = append(args, member(p.Name, p.Host), d.tokens[i], reportedWord(known[p.Host].find(p) != nil))
	}
	keys := s.keys.namespace(d.namespace)
	c := &redisconn.Call{Script: settleScript, Keys: []string{keys.registrations(), keys.index(), keys.dirtyMarks()}, Args: args}
	if err := s.conn.Run(ctx, c); err != nil {
		return fmt.Errorf("settle dirty marks: %w", err)
	}
	return nil
}

func reportedWord(reported bool) string {
	if reported {
		return "reported"
	}
	return ""
}

// hostsOf returns the distinct hosts of processes.
func hostsOf(ps []catalog.Process) []procfleet.Host {
	var hosts []procfleet.Host
	seen := make(map[procfleet.Host]bool)
	for _, p := range ps {
		if !seen[p.Host] {
			seen[p.Host] = true
			hosts = append(hosts, p.Host)
		}
	}
	return hosts
}
