package redisstore

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// forgetScript removes the entries of hosts whose presence ended long ago.
//
// KEYS[1] hosts
// KEYS[2] gone
// ARGV[1] microseconds for which a host without presence is remembered
// ARGV[2..] addresses
// Returns 1.
var forgetScript = redis.NewScript(luaNow + `
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

// dropReportScript removes reports whose number is still the expected one.
//
// KEYS[1] reports
// ARGV    for each report: address, number (19 digits)
// Returns 1.
var dropReportScript = redis.NewScript(`
for i = 1, #ARGV, 2 do
  local report = redis.call('HGET', KEYS[1], ARGV[i])
  if report and string.sub(report, 1, 19) == ARGV[i + 1] then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
return 1
`)

// forget removes the keys of hosts whose presence ended long ago. It removes their
// reports first, so that a failed call is repeated for the same hosts. A new report of
// a host that returns in the meantime remains.
func (s *Store) forget(ctx context.Context, cloud procfleet.CloudArea, addrs []string) error {
	hosts := make([]procfleet.Host, len(addrs))
	keys := s.keys.presence(cloud)
	entries := &call{script: forgetScript, keys: []string{keys.hosts(), keys.gone()}, args: []any{instanceMemory}}
	for i, addr := range addrs {
		var err error
		if hosts[i], err = procfleet.NewHost(cloud, addr); err != nil {
			return fmt.Errorf("%w: address of a host: %w", errDamaged, err)
		}
		entries.args = append(entries.args, addr)
	}
	if err := s.forgetReports(ctx, hosts); err != nil {
		return err
	}
	if err := s.run(ctx, entries); err != nil {
		return fmt.Errorf("forget hosts: %w", err)
	}
	return nil
}

// forgetReports replaces each report by an empty one, which updates the indexes, and
// then removes the empty report.
func (s *Store) forgetReports(ctx context.Context, hosts []procfleet.Host) error {
	known, err := s.reportsOf(ctx, hosts)
	if err != nil || len(known) == 0 {
		return err
	}
	empty := make([]catalog.Report, 0, len(known))
	drops := make(map[string]*call)
	var calls []*call
	for host, report := range known {
		next := report.Number + 1 // a report that the host sends in the meantime has a larger number
		empty = append(empty, catalog.Report{Host: host, Number: next})
		key := s.keys.reports(host)
		c := drops[key]
		if c == nil {
			c = &call{script: dropReportScript, keys: []string{key}}
			drops[key], calls = c, append(calls, c)
		}
		c.args = append(c.args, host.Addr.String(), numberText(next))
	}
	if err := s.Report(ctx, empty); err != nil {
		return err
	}
	if err := s.run(ctx, calls...); err != nil {
		return fmt.Errorf("forget reports: %w", err)
	}
	return nil
}
