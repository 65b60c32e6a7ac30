package rediscatalog

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/redisconn"
)

// labelScript changes labels of hosts. Repeating it changes nothing further.
//
// KEYS[1] labels
// ARGV[1] JSON object of the labels to set
// ARGV[2] JSON array of the keys to remove first
// ARGV[3] maximum number of labels of a host
// ARGV[4..] hosts
// Returns a digit for each host: 1 if it was changed, 0 if it would have too many labels.
var labelScript = redis.NewScript(`
local set, remove, most = cjson.decode(ARGV[1]), cjson.decode(ARGV[2]), tonumber(ARGV[3])
local changed, put, gone = {}, {}, {}
for i, old in ipairs(redis.call('HMGET', KEYS[1], unpack(ARGV, 4))) do
  local labels, n = old and cjson.decode(old) or {}, 0
  for _, key in ipairs(remove) do labels[key] = nil end
  for key, value in pairs(set) do labels[key] = value end
  for _ in pairs(labels) do n = n + 1 end
  changed[i] = n <= most and '1' or '0'
  if n == 0 then
    gone[#gone + 1] = ARGV[i + 3]
  elseif n <= most then
    put[#put + 1] = ARGV[i + 3]
    put[#put + 1] = cjson.encode(labels)
  end
end
if #put > 0 then redis.call('HSET', KEYS[1], unpack(put)) end
if #gone > 0 then redis.call('HDEL', KEYS[1], unpack(gone)) end
return table.concat(changed)
`)

// LabelHosts changes labels in one round trip, with one script call for each key of hosts.
func (s *Catalog) LabelHosts(ctx context.Context, hosts []procfleet.Host, l catalog.Labeling) ([]bool, error) {
	if err := l.Validate(); err != nil {
		return nil, fmt.Errorf("label hosts: %w", err)
	}
	set, err := json.Marshal(nonNil(l.Set))
	if err != nil {
		return nil, fmt.Errorf("label hosts: %w", err)
	}
	remove, err := json.Marshal(append([]string{}, l.Remove...))
	if err != nil {
		return nil, fmt.Errorf("label hosts: %w", err)
	}
	parts := s.labelParts(hosts)
	calls := make([]*redisconn.Call, len(parts))
	for i, part := range parts {
		calls[i] = &redisconn.Call{Script: labelScript, Keys: []string{part.key}, Args: []any{set, remove, catalog.MaxLabels}}
		for _, field := range part.fields {
			calls[i].Args = append(calls[i].Args, field)
		}
	}
	changed := make([]bool, len(hosts))
	if len(calls) == 0 {
		return changed, nil
	}
	if err := s.conn.RunDurably(ctx, calls...); err != nil {
		return nil, fmt.Errorf("label hosts: %w", err)
	}
	for i, part := range parts {
		positions := make([]*bool, len(part.positions))
		for j, position := range part.positions {
			positions[j] = &changed[position]
		}
		if err := readExisted(calls[i], positions); err != nil {
			return nil, fmt.Errorf("label hosts: %w", err)
		}
	}
	return changed, nil
}

func nonNil(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return labels
}

// LabelsOf reads labels in one round trip.
func (s *Catalog) LabelsOf(ctx context.Context, hosts []procfleet.Host) ([]map[string]string, error) {
	parts := s.labelParts(hosts)
	if len(parts) == 0 {
		return nil, nil
	}
	var answers []*redis.SliceCmd
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		answers = answers[:0]
		for _, part := range parts {
			answers = append(answers, pipe.HMGet(ctx, part.key, part.fields...))
		}
	}); err != nil {
		return nil, fmt.Errorf("read labels: %w", err)
	}
	all := make([]map[string]string, len(hosts))
	for i, part := range parts {
		for j, value := range answers[i].Val() {
			text, found := value.(string)
			if !found {
				continue
			}
			if err := json.Unmarshal([]byte(text), &all[part.positions[j]]); err != nil {
				return nil, fmt.Errorf("%w: labels of host %s: %w", redisconn.ErrDamaged, part.fields[j], err)
			}
		}
	}
	return all, nil
}

// labelPart holds at most [redisconn.ScriptItems] hosts whose labels are in one key, with
// their positions in the caller's list.
type labelPart struct {
	key       string
	fields    []string
	positions []int
}

func (s *Catalog) labelParts(hosts []procfleet.Host) []*labelPart {
	var parts []*labelPart
	open := make(map[string]*labelPart)
	for i, h := range hosts {
		key := s.keys.labels(h)
		part := open[key]
		if part == nil || len(part.fields) == redisconn.ScriptItems {
			part = &labelPart{key: key}
			open[key] = part
			parts = append(parts, part)
		}
		part.fields, part.positions = append(part.fields, h.String()), append(part.positions, i)
	}
	return parts
}
