package redisstore

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
)

// The head of a host's entry, as [announceScript] writes it. Moments are microseconds
// as 16 digits; claimants are 16 letters.
//
//	until | since | claimant | conflict until | n | n × (other claimant | its until)
//
// A claimant is an agent instance, or an incarnation of one (see [claimantKey]).
// "until" is the end of its presence. The other claimants are live claimants whose
// announcements precede the last one, in order, at most eight. A conflict begins when
// one of them announces itself again after another live claimant has. The head is
// followed by the length of the agent id, the agent id, and the packed announcement.
const (
	countAt       = 4 * redisconn.StampWidth
	otherWidth    = 2 * redisconn.StampWidth
	idLengthWidth = 5
)

// readPresence parses a host's entry. It returns the zero Presence if the host has no
// entry or its presence has ended at now.
func readPresence(host procfleet.Host, value any, now time.Time) (taskstore.Presence, error) {
	entry, ok := value.(string)
	if !ok {
		return taskstore.Presence{}, nil
	}
	p, err := readEntry(host, entry, now)
	if err != nil {
		return taskstore.Presence{}, fmt.Errorf("presence of host %s: %w", host, err)
	}
	return p, nil
}

func readEntry(host procfleet.Host, entry string, now time.Time) (taskstore.Presence, error) {
	if len(entry) <= countAt {
		return taskstore.Presence{}, redisconn.ErrDamaged
	}
	until, err := redisconn.Stamp(entry[:redisconn.StampWidth])
	if err != nil || !until.After(now) {
		return taskstore.Presence{}, err
	}
	since, err := redisconn.Stamp(entry[redisconn.StampWidth : 2*redisconn.StampWidth])
	if err != nil {
		return taskstore.Presence{}, err
	}
	conflictUntil, err := redisconn.Stamp(entry[3*redisconn.StampWidth : 4*redisconn.StampWidth])
	if err != nil {
		return taskstore.Presence{}, err
	}
	idAt := countAt + 1 + otherWidth*int(entry[countAt]-'0')
	if len(entry) < idAt+idLengthWidth {
		return taskstore.Presence{}, redisconn.ErrDamaged
	}
	rest := entry[idAt+idLengthWidth:]
	idLength, err := strconv.Atoi(entry[idAt : idAt+idLengthWidth])
	if err != nil || idLength < 0 || idLength > len(rest) {
		return taskstore.Presence{}, redisconn.ErrDamaged
	}
	p := taskstore.Presence{SeenAt: until.Add(-taskstore.PresenceTTL), Since: since, Conflict: conflictUntil.After(now)}
	p.Host, p.AgentID = host, rest[:idLength]
	return p, readAnnouncement(rest[idLength:], &p.Announcement)
}

// packAnnouncement packs the part of an announcement that is not in the head of the
// entry: texts, each preceded by its length, then numbers. The store reads it for every
// host of every task, so parsing copies nothing. The labels follow the architecture, after a
// zero byte: programs of releases without labels read them as part of it.
func packAnnouncement(a *taskstore.Announcement) []byte {
	var out []byte
	for _, text := range []string{a.Instance, a.Version, a.OS, a.Arch + packLabels(a.Labels)} {
		out = binary.AppendUvarint(out, uint64(len(text)))
		out = append(out, text...)
	}
	started := int64(0)
	if !a.StartedAt.IsZero() {
		started = a.StartedAt.UnixNano()
	}
	out = binary.AppendVarint(out, started)
	out = binary.AppendVarint(out, int64(a.Supervised))
	for _, part := range []float64{a.CPU, a.Memory} {
		out = binary.LittleEndian.AppendUint64(out, math.Float64bits(part))
	}
	return append(out, a.Incarnation...)
}

// readAnnouncement parses what packAnnouncement returns. The texts share the memory of
// packed.
func readAnnouncement(packed string, a *taskstore.Announcement) error {
	for _, text := range []*string{&a.Instance, &a.Version, &a.OS, &a.Arch} {
		n, size := binary.Uvarint([]byte(packed[:min(len(packed), binary.MaxVarintLen64)]))
		if size <= 0 || n > uint64(len(packed)-size) {
			return redisconn.ErrDamaged
		}
		*text, packed = packed[size:size+int(n)], packed[size+int(n):]
	}
	a.Arch, a.Labels = readLabels(a.Arch)
	started, size := binary.Varint([]byte(packed))
	if size <= 0 {
		return redisconn.ErrDamaged
	}
	packed = packed[size:]
	supervised, size := binary.Varint([]byte(packed))
	if size <= 0 {
		return redisconn.ErrDamaged
	}
	if load := []byte(packed[size:]); len(load) >= 16 { // workers before 0.3 do not write the load
		a.CPU = math.Float64frombits(binary.LittleEndian.Uint64(load))
		a.Memory = math.Float64frombits(binary.LittleEndian.Uint64(load[8:]))
		a.Incarnation = packed[size+16:]
	}
	if started != 0 {
		a.StartedAt = time.Unix(0, started).UTC()
	}
	a.Supervised = int(supervised)
	return nil
}

const labelSeparator = "\x00"

func packLabels(labels map[string]string) string {
	var out strings.Builder
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		out.WriteString(labelSeparator + key + "=" + labels[key])
	}
	return out.String()
}

// readLabels splits an architecture from the labels that packLabels appended.
func readLabels(packed string) (arch string, labels map[string]string) {
	arch, rest, found := strings.Cut(packed, labelSeparator)
	if !found {
		return arch, nil
	}
	labels = make(map[string]string, 1+strings.Count(rest, labelSeparator))
	for pair := range strings.SplitSeq(rest, labelSeparator) {
		key, value, _ := strings.Cut(pair, "=")
		labels[key] = value
	}
	return arch, labels
}
