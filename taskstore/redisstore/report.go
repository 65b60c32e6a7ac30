package redisstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// A stored report has a head that the script reads and then the report as
// [pack.Report] made it, which the script does not look into:
//
//	number, 19 digits | when the index was touched, 16 digits | digest, 16 letters
//
// The digest is that of the processes that have a namespace and a name.
const (
	numberWidth = 19
	digestWidth = 16
	touchedAt   = numberWidth
	digestAt    = touchedAt + stampWidth
	packedAt    = digestAt + digestWidth
)

// reportScript writes reports of hosts that are newer than those that are
// there, if they name the processes that the writer expects: then the index
// has them already.
//
// KEYS[1] reports
// ARGV[1] microseconds for which the index is trusted
// ARGV[2] "" if the writer has not touched the index, else microseconds by
// which that counts as longer ago, so that not all come due at once
// ARGV[3..] for each report: address, number, digest, the digest that is
// expected to be there, packed report
// Returns for each report that was not written, unless it was too old for the
// writer's first look: its place and what is there, "old" for one that is as
// new.
var reportScript = redis.NewScript(luaNow + `
local sub = string.sub
local time, trust, touched = now(), tonumber(ARGV[1]), ARGV[2] ~= ''
local fresh = string.format('%016.0f', time - (touched and ARGV[2] or 0))
local none = string.rep('0', 16)
local addrs, put, open = {}, {}, {}
for i = 3, #ARGV, 5 do addrs[#addrs + 1] = ARGV[i] end
for n, old in ipairs(redis.call('HMGET', KEYS[1], unpack(addrs))) do
  local at = 5 * n - 2
  local stamp, has = fresh, none
  if old then
    has = sub(old, 36, 51)
    if not touched then stamp = sub(old, 20, 35) end
  end
  if old and sub(old, 1, 19) >= ARGV[at + 1] then
    if touched then
      open[#open + 1] = n - 1
      open[#open + 1] = 'old'
    end
  elseif has ~= ARGV[at + 3] or not touched and has ~= none and time - stamp > trust then
    open[#open + 1] = n - 1
    open[#open + 1] = old or ''
  else
    put[#put + 1] = ARGV[at]
    put[#put + 1] = ARGV[at + 1] .. stamp .. ARGV[at + 2] .. ARGV[at + 4]
  end
end
if #put > 0 then redis.call('HSET', KEYS[1], unpack(put)) end
return open
`)

const (
	// indexTrust is after how long a report touches the index though it names
	// the same processes as before: a fail-over may have lost the index what
	// the server of the reports still has.
	indexTrust = time.Hour
	// reportAttempts is how often a report is tried that others change under
	// its feet.
	reportAttempts = 12
)

// news is a report on its way.
type news struct {
	report   *catalog.Report
	packed   []byte
	digest   string
	expected string            // the digest that should be there
	old      []catalog.Process // what is there names these
}

// Report is one round trip as long as the reports name the processes that they
// named before, with one script call for at most 500 hosts of a shard. A host
// that names others costs three more, on the namespaces before and after its
// report is written; see [touchScript].
func (s *Store) Report(ctx context.Context, reports []catalog.Report) error {
	all := newest(reports)
	changed, _, err := s.write(ctx, all, "")
	for attempt := 0; err == nil && len(changed) > 0; attempt++ {
		if attempt > 0 && (attempt == reportAttempts || !pause(ctx, attempt)) {
			return cmp.Or(ctx.Err(), fmt.Errorf("%w: others report of the same hosts again and again", taskstore.ErrUnavailable))
		}
		changed, err = s.rewrite(ctx, changed)
	}
	if err != nil {
		return fmt.Errorf("keep reports: %w", err)
	}
	return nil
}

// newest returns the newest report of each host.
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
		n.packed = pack.Report(n.report)
		n.digest = digest(processesOf(n.report))
		n.expected = n.digest
	}
	return list
}

// write writes the news where what is there is as expected. It returns those
// that would change which processes the index must have, and whether each of
// all is written now; touched is as [reportScript] wants it.
func (s *Store) write(ctx context.Context, all []*news, touched string) (changed []*news, written map[*news]bool, err error) {
	parts := s.byShard(all)
	calls := make([]*call, len(parts))
	for i, part := range parts {
		calls[i] = part.call(touched)
	}
	if len(calls) == 0 {
		return nil, nil, nil
	}
	if err := s.run(ctx, calls...); err != nil {
		return nil, nil, err
	}
	written = make(map[*news]bool, len(all))
	for i, part := range parts {
		for _, n := range part.news {
			written[n] = true
		}
		answer, err := calls[i].cmd.Slice()
		if err != nil {
			return nil, nil, fmt.Errorf("%w: answer about reports: %w", errDamaged, err)
		}
		for j := 0; j+1 < len(answer); j += 2 {
			place, _ := answer[j].(int64)
			old, _ := answer[j+1].(string)
			if place < 0 || int(place) >= len(part.news) {
				return nil, nil, fmt.Errorf("%w: answer about reports", errDamaged)
			}
			n := part.news[place]
			written[n] = false
			if old != "old" {
				n.found(old)
				changed = append(changed, n)
			}
		}
	}
	return changed, written, nil
}

// found notes what is there. A report that cannot be read names nothing that
// could be taken out of an index; pages find that out.
func (n *news) found(old string) {
	n.expected, n.old = digest(nil), nil
	if len(old) < packedAt {
		return
	}
	n.expected = old[digestAt:packedAt]
	if r, err := pack.ReadReport(n.report.Host, old[packedAt:]); err == nil {
		n.old = processesOf(&r)
	}
}

// rewrite writes news that change which processes are reported: the index
// comes first and last. It returns those under which something changed again.
func (s *Store) rewrite(ctx context.Context, changed []*news) ([]*news, error) {
	token := newToken()
	flux := byIndex(changed)
	if err := s.run(ctx, flux.calls(func(part *indexPart) *call { return part.touch(s, token) })...); err != nil {
		return nil, err
	}
	spread := fmt.Sprint(rand.N(indexTrust / 2).Microseconds())
	again, written, err := s.write(ctx, changed, spread)
	if err != nil {
		return nil, err
	}
	// What was not written leaves its doubts to the next reader of a page.
	done := byIndex(slices.DeleteFunc(slices.Clone(changed), func(n *news) bool { return !written[n] }))
	err = s.run(ctx, done.calls(func(part *indexPart) *call { return part.settle(s, token) })...)
	return again, err
}

// shardPart is news of one shard, no more than a script call takes.
type shardPart struct {
	key   string
	news  []*news
	bytes int
}

func (s *Store) byShard(all []*news) []*shardPart {
	var parts []*shardPart
	open := make(map[string]*shardPart)
	for _, n := range all {
		key := s.keys.reports(n.report.Host)
		part := open[key]
		if part == nil || len(part.news) == scriptItems || part.bytes+len(n.packed) > scriptBytes {
			part = &shardPart{key: key}
			open[key] = part
			parts = append(parts, part)
		}
		part.news, part.bytes = append(part.news, n), part.bytes+len(n.packed)
	}
	return parts
}

func (p *shardPart) call(touched string) *call {
	c := &call{script: reportScript, keys: []string{p.key}, args: make([]any, 0, 2+5*len(p.news))}
	c.args = append(c.args, indexTrust.Microseconds(), touched)
	for _, n := range p.news {
		c.args = append(c.args, n.report.Host.Addr.String(), numberText(n.report.Number), n.digest, n.expected, n.packed)
	}
	return c
}

// numberText orders as text. Numbers count from 1970, so none is negative.
func numberText(n int64) string { return fmt.Sprintf("%0*d", numberWidth, max(n, 0)) }

// indexPart is members of one namespace, no more than a script call takes.
type indexPart struct {
	namespace string
	reported  []string // in the new reports
	gone      []string // in the old ones only
}

type indexParts []*indexPart

// byIndex divides what old and new reports name by namespace.
func byIndex(changed []*news) indexParts {
	var parts indexParts
	open := make(map[string]*indexPart)
	part := func(namespace string) *indexPart {
		p := open[namespace]
		if p == nil || len(p.reported)+len(p.gone) == scriptItems {
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

func (ps indexParts) calls(script func(*indexPart) *call) []*call {
	calls := make([]*call, len(ps))
	for i, p := range ps {
		calls[i] = script(p)
	}
	return calls
}

func (p *indexPart) touch(s *Store, token string) *call {
	keys := s.keys.namespace(p.namespace)
	c := &call{script: touchScript, keys: []string{keys.index(), keys.doubts()}, args: []any{token, len(p.reported)}}
	for _, m := range slices.Concat(p.reported, p.gone) {
		c.args = append(c.args, m)
	}
	return c
}

func (p *indexPart) settle(s *Store, token string) *call {
	keys := s.keys.namespace(p.namespace)
	c := &call{script: settleScript, keys: []string{keys.registrations(), keys.index(), keys.doubts()}, args: []any{newToken()}}
	for _, m := range p.reported {
		c.args = append(c.args, m, token, reportedWord(true))
	}
	for _, m := range p.gone {
		c.args = append(c.args, m, token, reportedWord(false))
	}
	return c
}

// processesOf returns the processes of a report that have a namespace and a
// name, each once, ordered by both.
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

// digest tells lists of processes of one host apart; it is all zeros for none.
func digest(ps []catalog.Process) string {
	if len(ps) == 0 {
		return "0000000000000000"
	}
	sum := sha256.New()
	var length [4]byte
	for i := range ps {
		for _, text := range []string{ps[i].Namespace, ps[i].Name} {
			binary.LittleEndian.PutUint32(length[:], uint32(len(text)))
			sum.Write(length[:])
			sum.Write([]byte(text))
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:digestWidth/2])
}

// knownReport is the last report of a host, made for looking up processes; nil
// if there is none.
type knownReport struct {
	catalog.Report
	byName map[[2]string]int
}

// find returns what was reported of a process; of two with the same name the
// last counts.
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

// reportsOf reads the last reports of hosts, each named once, 500 in a round
// trip.
func (s *Store) reportsOf(ctx context.Context, hosts []procfleet.Host) (map[procfleet.Host]*knownReport, error) {
	known := make(map[procfleet.Host]*knownReport, len(hosts))
	for some := range slices.Chunk(hosts, scriptItems) {
		if err := s.readReports(ctx, some, known); err != nil {
			return nil, err
		}
	}
	return known, nil
}

func (s *Store) readReports(ctx context.Context, hosts []procfleet.Host, known map[procfleet.Host]*knownReport) error {
	byKey := make(map[string][]procfleet.Host)
	for _, h := range hosts {
		if !h.IsZero() {
			key := s.keys.reports(h)
			byKey[key] = append(byKey[key], h)
		}
	}
	answers := make(map[string]*redis.SliceCmd, len(byKey))
	if err := s.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
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
				return fmt.Errorf("%w: report of host %s", errDamaged, some[i])
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

// Reported reads 500 hosts in a round trip.
func (s *Store) Reported(ctx context.Context, hosts []procfleet.Host) ([]catalog.Report, error) {
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
