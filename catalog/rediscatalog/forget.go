package rediscatalog

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/redisconn"
)

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

// ForgetReports removes the reports of hosts. It replaces each report by an empty one,
// which updates the indexes, and then removes the empty report. A report that a host
// sends in the meantime remains.
func (s *Catalog) ForgetReports(ctx context.Context, hosts []procfleet.Host) error {
	known, err := s.reportsOf(ctx, hosts)
	if err != nil || len(known) == 0 {
		return err
	}
	empty := make([]catalog.Report, 0, len(known))
	drops := make(map[string]*redisconn.Call)
	var calls []*redisconn.Call
	for host, report := range known {
		next := report.Number + 1 // a report that the host sends in the meantime has a larger number
		empty = append(empty, catalog.Report{Host: host, Number: next})
		key := s.keys.reports(host)
		c := drops[key]
		if c == nil {
			c = &redisconn.Call{Script: dropReportScript, Keys: []string{key}}
			drops[key], calls = c, append(calls, c)
		}
		c.Args = append(c.Args, host.Addr.String(), numberText(next))
	}
	if err := s.Report(ctx, empty); err != nil {
		return err
	}
	if err := s.conn.Run(ctx, calls...); err != nil {
		return fmt.Errorf("forget reports: %w", err)
	}
	return nil
}
