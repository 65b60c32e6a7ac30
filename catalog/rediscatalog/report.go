package rediscatalog

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/pack"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
)

// A stored report has a head, which the script reads, followed by the output of
// [pack.Report], which the script does not interpret:
//
//	number, 19 digits | digest, 16 letters
//
// The digest is a hash of the processes that have a namespace and a name, and of the
// hour that [news.hour] returns.
const (
	numberWidth = 19
	digestWidth = 16
	digestAt    = numberWidth
	packedAt    = digestAt + digestWidth
)

// reportScript writes reports that are newer than the stored ones, if the stored report
// names the processes that the writer expects. Then the index already contains the
// processes.
//
// KEYS[1] reports
// ARGV[1] "touched" if the writer has set dirty marks, else ""
// ARGV[2] microseconds until the reports of the shard expire
// ARGV[3..] for each report: address, report with its head, and, if touched, the
// expected digest of the stored report. If not touched, the expected digest is that of
// the report itself.
// Returns for each report that was not written: its position and the stored report, or
// "old" if the stored report is as new or newer. If not touched, it omits the reports
// for which the stored report is as new or newer.
var reportScript = redis.NewScript(redisconn.LuaNow + `
local sub, none, touched = string.sub, string.rep('0', 16), ARGV[1] ~= ''
local size = touched and 3 or 2
local addrs, put, open = {}, {}, {}
for i = 3, #ARGV, size do addrs[#addrs + 1] = ARGV[i] end
local at = 3
for n, old in ipairs(redis.call('HMGET', KEYS[1], unpack(addrs))) do
  local value = ARGV[at + 1]
  if old and sub(old, 1, 19) >= sub(value, 1, 19) then
    if touched then
      open[#open + 1] = n - 1
      open[#open + 1] = 'old'
    end
  elseif (old and sub(old, 20, 35) or none) ~= (touched and ARGV[at + 2] or sub(value, 20, 35)) then
    open[#open + 1] = n - 1
    open[#open + 1] = old or ''
  else
    put[#put + 1] = addrs[n]
    put[#put + 1] = value
  end
  at = at + size
end
if #put > 0 then
  redis.call('HSET', KEYS[1], unpack(put))
  redis.call('PEXPIREAT', KEYS[1], text(math.ceil((now() + ARGV[2]) / 1000)))
end
return open
`)

// reportMemory is the time in microseconds after which the reports of a shard expire if
// none of its hosts reports. It is long enough for [Catalog.ForgetReports] to remove single
// reports first, unless a whole cloud area stops reporting.
const reportMemory = int64((taskstore.InstanceMemory + 2*taskstore.PresenceTTL + 24*time.Hour) / time.Microsecond)

// reportAttempts is the maximum number of attempts to write a report while other
// callers write reports of the same host.
const reportAttempts = 12

// news is a report that is being written.
type news struct {
	report   *catalog.Report
	value    []byte // in stored form
	digest   string
	expected string            // digest that the stored report is expected to have
	old      []catalog.Process // processes of the stored report
}

// Report stores reports. It takes one round trip if each report names the same
// processes as the previous report of its host, with one script call for at most 500
// hosts of a shard. A report that names other processes costs three more round trips,
// which update the indexes of its namespaces before and after the report is written;
// see [touchScript].
func (s *Catalog) Report(ctx context.Context, reports []catalog.Report) error {
	all := newest(reports)
	changed, _, err := s.write(ctx, all, "")
	for attempt := 0; err == nil && len(changed) > 0; attempt++ {
		if attempt > 0 && (attempt == reportAttempts || !redisconn.Pause(ctx, attempt)) {
			return cmp.Or(ctx.Err(), fmt.Errorf("%w: others report of the same hosts again and again", taskstore.ErrUnavailable))
		}
		changed, err = s.rewrite(ctx, changed)
	}
	if err != nil {
		return fmt.Errorf("keep reports: %w", err)
	}
	return nil
}

func newest(reports []catalog.Report) []*news {
	byHost := make(map[procfleet.Host]*news, len(reports))
	list := make([]*news, 0, len(reports))
	for i := range reports {
		r := &reports[i]
		n := byHost[r.Host]
		switch {
		case r.Host.IsZero():
		case n == nil:
			n = &news{report: r}
			byHost[r.Host] = n
			list = append(list, n)
		case r.Number > n.report.Number:
			n.report = r
		}
	}
	for _, n := range list {
		n.digest = digest(processesOf(n.report), n.hour())
		n.expected = n.digest
		n.value = append([]byte(numberText(n.report.Number)+n.digest), pack.Report(n.report)...)
	}
	return list
}

// hour returns a number that is part of the digest and changes once per hour, at a
// different time for each host. The changed digest makes each host enter its processes
// into the index again, because a fail-over may have lost index entries on one server
// while the reports on another are complete.
func (n *news) hour() int64 {
	spread := time.Duration(crc32.ChecksumIEEE(n.report.Host.Addr.AsSlice())) * time.Microsecond // up to 71 minutes
	return (n.report.Number + spread.Microseconds()) / time.Hour.Microseconds()
}

// write writes each report if the stored report has the expected digest. It returns the
// reports that would change which processes belong in the index, and which reports were
// written. touched is passed to [reportScript].
func (s *Catalog) write(ctx context.Context, all []*news, touched string) (changed []*news, written map[*news]bool, err error) {
	parts := s.byShard(all)
	calls := make([]*redisconn.Call, len(parts))
	for i, part := range parts {
		calls[i] = part.call(touched)
	}
	if len(calls) == 0 {
		return nil, nil, nil
	}
	if err := s.conn.Run(ctx, calls...); err != nil {
		return nil, nil, err
	}
	written = make(map[*news]bool, len(all))
	for i, part := range parts {
		for _, n := range part.news {
			written[n] = true
		}
		answer, err := calls[i].Cmd.Slice()
		if err != nil {
			return nil, nil, fmt.Errorf("%w: answer about reports: %w", redisconn.ErrDamaged, err)
		}
		for j := 0; j+1 < len(answer); j += 2 {
			position, _ := answer[j].(int64)
			old, _ := answer[j+1].(string)
			if position < 0 || int(position) >= len(part.news) {
				return nil, nil, fmt.Errorf("%w: answer about reports", redisconn.ErrDamaged)
			}
			n := part.news[position]
			written[n] = false
			if old != "old" {
				n.found(old)
				changed = append(changed, n)
			}
		}
	}
	return changed, written, nil
}

// found records the stored report. If it cannot be parsed, no processes are removed
// from the index for it; reading a page detects the invalid entries.
func (n *news) found(old string) {
	n.expected, n.old = digest(nil, 0), nil
	if len(old) < packedAt {
		return
	}
	n.expected = old[digestAt:packedAt]
	if r, err := pack.ReadReport(n.report.Host, old[packedAt:]); err == nil {
		n.old = processesOf(&r)
	}
}

// rewrite writes reports that change which processes are reported: it sets dirty marks,
// writes the reports, and settles the marks. It returns the reports whose stored report
// has changed again in between.
func (s *Catalog) rewrite(ctx context.Context, changed []*news) ([]*news, error) {
	token := redisconn.NewToken()
	flux := byIndex(changed)
	if err := s.conn.Run(ctx, flux.calls(func(part *indexPart) *redisconn.Call { return part.touch(s, token) })...); err != nil {
		return nil, err
	}
	again, written, err := s.write(ctx, changed, "touched")
	if err != nil {
		return nil, err
	}
	// The next read of a page settles the dirty marks of reports that were not written.
	done := byIndex(slices.DeleteFunc(slices.Clone(changed), func(n *news) bool { return !written[n] }))
	err = s.conn.Run(ctx, done.calls(func(part *indexPart) *redisconn.Call { return part.settle(s, token) })...)
	return again, err
}

// shardPart holds the reports of one shard that fit into one script call.
type shardPart struct {
	key   string
	news  []*news
	bytes int
}

func (s *Catalog) byShard(all []*news) []*shardPart {
	var parts []*shardPart
	open := make(map[string]*shardPart)
	for _, n := range all {
		key := s.keys.reports(n.report.Host)
		part := open[key]
		if part == nil || len(part.news) == redisconn.ScriptItems || part.bytes+len(n.value) > redisconn.ScriptBytes {
			part = &shardPart{key: key}
			open[key] = part
			parts = append(parts, part)
		}
		part.news, part.bytes = append(part.news, n), part.bytes+len(n.value)
	}
	return parts
}

func (p *shardPart) call(touched string) *redisconn.Call {
	c := &redisconn.Call{Script: reportScript, Keys: []string{p.key}, Args: make([]any, 0, 2+3*len(p.news))}
	c.Args = append(c.Args, touched, reportMemory)
	for _, n := range p.news {
		c.Args = append(c.Args, n.report.Host.Addr.String(), n.value)
		if touched != "" {
			c.Args = append(c.Args, n.expected)
		}
	}
	return c
}

// numberText returns a report number as fixed-width text, which sorts like the number.
// Negative numbers do not occur and become 0.
func numberText(n int64) string { return fmt.Sprintf("%0*d", numberWidth, max(n, 0)) }

// indexPart holds the members of one namespace that fit into one script call.
type indexPart struct {
	namespace string
	reported  []string // named by the new reports
	gone      []string // named only by the stored reports
}

type indexParts []*indexPart

// byIndex groups the processes of stored and new reports by namespace.
func byIndex(changed []*news) indexParts {
	var parts indexParts
	open := make(map[string]*indexPart)
	part := func(namespace string) *indexPart {
		p := open[namespace]
		if p == nil || len(p.reported)+len(p.gone) == redisconn.ScriptItems {
			p = &indexPart{namespace: namespace}
			open[namespace] = p
			parts = append(parts, p)
		}
		return p
	}
	for _, n := range changed {
		now := processesOf(n.report)
		for _, process := range now {
			p := part(process.Namespace)
			p.reported = append(p.reported, member(process.Name, process.Host))
		}
		for _, process := range n.old {
			if _, still := slices.BinarySearchFunc(now, process, compareNames); !still {
				p := part(process.Namespace)
				p.gone = append(p.gone, member(process.Name, process.Host))
			}
		}
	}
	return parts
}

func (ps indexParts) calls(script func(*indexPart) *redisconn.Call) []*redisconn.Call {
	calls := make([]*redisconn.Call, len(ps))
	for i, p := range ps {
		calls[i] = script(p)
	}
	return calls
}

func (p *indexPart) touch(s *Catalog, token string) *redisconn.Call {
	keys := s.keys.namespace(p.namespace)
	c := &redisconn.Call{Script: touchScript, Keys: []string{keys.index(), keys.dirtyMarks()}, Args: []any{token, len(p.reported)}}
	for _, m := range slices.Concat(p.reported, p.gone) {
		c.Args = append(c.Args, m)
	}
	return c
}

func (p *indexPart) settle(s *Catalog, token string) *redisconn.Call {
	keys := s.keys.namespace(p.namespace)
	c := &redisconn.Call{Script: settleScript, Keys: []string{keys.registrations(), keys.index(), keys.dirtyMarks()}, Args: []any{redisconn.NewToken()}}
	for _, m := range p.reported {
		c.Args = append(c.Args, m, token, reportedWord(true))
	}
	for _, m := range p.gone {
		c.Args = append(c.Args, m, token, reportedWord(false))
	}
	return c
}

// processesOf returns the distinct processes of a report that have a namespace and a
// name, sorted by both.
func processesOf(r *catalog.Report) []catalog.Process {
	ps := make([]catalog.Process, 0, len(r.Processes))
	for i := range r.Processes {
		p := catalog.Process{Host: r.Host, Namespace: r.Processes[i].Namespace, Name: r.Processes[i].Name}
		if catalog.ValidName(p.Namespace) && catalog.ValidName(p.Name) {
			ps = append(ps, p)
		}
	}
	slices.SortFunc(ps, compareNames)
	return slices.Compact(ps)
}

func compareNames(a, b catalog.Process) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// digest returns a hash of the processes of one host and the hour. Without processes it
// consists of zeros.
func digest(ps []catalog.Process, hour int64) string {
	if len(ps) == 0 {
		return "0000000000000000"
	}
	sum := sha256.New()
	var length [4]byte
	sum.Write(strconv.AppendInt(nil, hour, 10))
	for i := range ps {
		for _, text := range []string{ps[i].Namespace, ps[i].Name} {
			binary.LittleEndian.PutUint32(length[:], uint32(len(text)))
			sum.Write(length[:])
			sum.Write([]byte(text))
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:digestWidth/2])
}

// knownReport is the last report of a host, indexed for looking up processes; nil means
// that there is none.
type knownReport struct {
	catalog.Report
	byName map[[2]string]int
}

// find returns the reported state of a process. If the report names the process more
// than once, the last one counts.
func (k *knownReport) find(p catalog.Process) *catalog.ReportedProcess {
	if k == nil || !catalog.ValidName(p.Namespace) || !catalog.ValidName(p.Name) {
		return nil
	}
	if k.byName == nil {
		k.byName = make(map[[2]string]int, len(k.Processes))
		for i := range k.Processes {
			k.byName[[2]string{k.Processes[i].Namespace, k.Processes[i].Name}] = i
		}
	}
	i, found := k.byName[[2]string{p.Namespace, p.Name}]
	if !found {
		return nil
	}
	reported := k.Processes[i]
	return &reported
}

// reportsOf reads the last reports of distinct hosts, in one round trip for each 500
// hosts.
func (s *Catalog) reportsOf(ctx context.Context, hosts []procfleet.Host) (map[procfleet.Host]*knownReport, error) {
	known := make(map[procfleet.Host]*knownReport, len(hosts))
	for some := range slices.Chunk(hosts, redisconn.ScriptItems) {
		if err := s.readReports(ctx, some, known); err != nil {
			return nil, err
		}
	}
	return known, nil
}

func (s *Catalog) readReports(ctx context.Context, hosts []procfleet.Host, known map[procfleet.Host]*knownReport) error {
	byKey := make(map[string][]procfleet.Host)
	for _, h := range hosts {
		if !h.IsZero() {
			key := s.keys.reports(h)
			byKey[key] = append(byKey[key], h)
		}
	}
	answers := make(map[string]*redis.SliceCmd, len(byKey))
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		for key, some := range byKey {
			addrs := make([]string, len(some))
			for i, h := range some {
				addrs[i] = h.Addr.String()
			}
			answers[key] = pipe.HMGet(ctx, key, addrs...)
		}
	}); err != nil {
		return fmt.Errorf("read reports: %w", err)
	}
	for key, some := range byKey {
		for i, v := range answers[key].Val() {
			value, ok := v.(string)
			if !ok {
				continue
			}
			if len(value) < packedAt {
				return fmt.Errorf("%w: report of host %s", redisconn.ErrDamaged, some[i])
			}
			r, err := pack.ReadReport(some[i], value[packedAt:])
			if err != nil {
				return fmt.Errorf("report of host %s: %w", some[i], err)
			}
			known[some[i]] = &knownReport{Report: r}
		}
	}
	return nil
}

// Reported reads the last reports of hosts, in one round trip for each 500 hosts.
func (s *Catalog) Reported(ctx context.Context, hosts []procfleet.Host) ([]catalog.Report, error) {
	known, err := s.reportsOf(ctx, slices.Compact(slices.SortedFunc(slices.Values(hosts), compareHosts)))
	if err != nil {
		return nil, err
	}
	reports := make([]catalog.Report, len(hosts))
	for i, h := range hosts {
		if k := known[h]; k != nil {
			reports[i] = k.Report
			reports[i].Processes = slices.Clone(k.Processes)
		}
	}
	return reports, nil
}

func compareHosts(a, b procfleet.Host) int {
	return cmp.Or(cmp.Compare(a.Cloud, b.Cloud), a.Addr.Compare(b.Addr))
}
