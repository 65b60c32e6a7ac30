package redisstore

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// Registrations and the index of a namespace are in one slot, reports in
// others, so no script sees both. What is reported anew, or no longer, is
// first put in doubt, with a token, then the report is written, then the doubt
// is settled. Whoever is interrupted leaves doubts, and whoever reads pages
// settles those first. So each process in the index is registered, reported,
// or in doubt.
//
// Whoever settles a doubt knows what was reported after the doubt began, if the
// token is still the one that he saw. If it is not, someone else has begun or
// settled a doubt meanwhile, maybe on older knowledge. Then the one who wrote a
// report puts the process in doubt once more.

// touchScript puts processes of one namespace in doubt.
//
// KEYS[1] index
// KEYS[2] doubts
// ARGV[1] token
// ARGV[2] how many of the members are, or will be, reported; they come first
// ARGV[3..] members
// Returns 1.
var touchScript = redis.NewScript(`
local count, enter, doubt = tonumber(ARGV[2]), {}, {}
for i = 3, #ARGV do
  doubt[#doubt + 1] = ARGV[i]
  doubt[#doubt + 1] = ARGV[1]
  if i <= count + 2 then
    enter[#enter + 1] = '0'
    enter[#enter + 1] = ARGV[i]
  end
end
if #enter > 0 then redis.call('ZADD', KEYS[1], unpack(enter)) end
redis.call('HSET', KEYS[2], unpack(doubt))
return 1
`)

// settleScript ends doubts about processes of one namespace.
//
// KEYS[1] registrations
// KEYS[2] index
// KEYS[3] doubts
// ARGV[1] token for those that others have touched meanwhile, "" to leave them
// ARGV[2..] for each process: member, the token of its doubt, "reported" or ""
// Returns how many others have touched.
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

func newToken() string { return rand.Text() }

// doubts are processes of one namespace that are in doubt, with the tokens of
// their doubts.
type doubts struct {
	namespace string
	processes []catalog.Process
	tokens    []string
}

// settleDoubts looks whether the processes are reported and ends the doubts about
// them.
func (s *Store) settleDoubts(ctx context.Context, d doubts) error {
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
	c := &call{script: settleScript, keys: []string{keys.registrations(), keys.index(), keys.doubts()}, args: args}
	if err := s.run(ctx, c); err != nil {
		return fmt.Errorf("settle what is in doubt: %w", err)
	}
	return nil
}

func reportedWord(reported bool) string {
	if reported {
		return "reported"
	}
	return ""
}

// hostsOf returns the hosts of processes, each once.
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
