package redisstore

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
)

// forgetScript removes the entries of hosts whose presence ended long ago.
//
// KEYS[1] hosts
// KEYS[2] gone
// ARGV[1] microseconds for which a host without presence is remembered
// ARGV[2..] addresses
// Returns 1.
var forgetScript = redis.NewScript(redisconn.LuaNow + `
local past = now() - ARGV[1]
for i = 2, #ARGV do
  local ended = redis.call('ZSCORE', KEYS[2], ARGV[i])
  if ended and tonumber(ended) <= past then
    redis.call('HDEL', KEYS[1], ARGV[i])
    redis.call('ZREM', KEYS[2], ARGV[i])
  end
end
return 1
`)

// forget removes the keys of hosts whose presence ended long ago. It calls
// [Options.ForgetHosts] first, so that a failed call is repeated for the same hosts.
func (s *Store) forget(ctx context.Context, cloud procfleet.CloudArea, addrs []string) error {
	hosts := make([]procfleet.Host, len(addrs))
	keys := s.keys.presence(cloud)
	entries := &redisconn.Call{Script: forgetScript, Keys: []string{keys.hosts(), keys.gone()}, Args: []any{instanceMemory}}
	for i, addr := range addrs {
		var err error
		if hosts[i], err = procfleet.NewHost(cloud, addr); err != nil {
			return fmt.Errorf("%w: address of a host: %w", redisconn.ErrDamaged, err)
		}
		entries.Args = append(entries.Args, addr)
	}
	if s.opt.ForgetHosts != nil {
		if err := s.opt.ForgetHosts(ctx, hosts); err != nil {
			return err
		}
	}
	if err := s.conn.Run(ctx, entries); err != nil {
		return fmt.Errorf("forget hosts: %w", err)
	}
	return nil
}
