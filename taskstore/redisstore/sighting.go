package redisstore

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// sighting is the head of a host's entry, all of fixed width: three moments
// in microseconds of 16 digits and two instances of 16 letters, in the order
//
//	seen | since | instance | rival | rival seen | both
//
// The rival is the other instance that was last heard of, and both is "1" once
// either was heard of again after the other. The agent id (with its length as
// five digits) and the packed announcement follow.
const (
	sightingWidth = 81
	idLengthWidth = 5
)

// readPresence reads a host's entry; the zero Presence if there is none that
// counts at now.
func readPresence(host procfleet.Host, value any, now time.Time) (taskstore.Presence, error) {
	entry, ok := value.(string)
	if !ok {
		return taskstore.Presence{}, nil
	}
	p, err := readEntry(host, entry, now.Add(-taskstore.PresenceTTL))
	if err != nil {
		return taskstore.Presence{}, fmt.Errorf("presence of host %s: %w", host, err)
	}
	return p, nil
}

func readEntry(host procfleet.Host, entry string, oldest time.Time) (taskstore.Presence, error) {
	if len(entry) < sightingWidth+idLengthWidth {
		return taskstore.Presence{}, errDamaged
	}
	seen, err := stamp(entry[:16])
	if err != nil || !seen.After(oldest) {
		return taskstore.Presence{}, err
	}
	since, err := stamp(entry[16:32])
	if err != nil {
		return taskstore.Presence{}, err
	}
	rivalSeen, err := stamp(entry[64:80])
	if err != nil {
		return taskstore.Presence{}, err
	}
	rest := entry[sightingWidth:]
	idLength, err := strconv.Atoi(rest[:idLengthWidth])
	if rest = rest[idLengthWidth:]; err != nil || idLength > len(rest) {
		return taskstore.Presence{}, errDamaged
	}
	p := taskstore.Presence{SeenAt: seen, Since: since, Conflict: entry[80] == '1' && rivalSeen.After(oldest)}
	p.Host, p.AgentID = host, rest[:idLength]
	return p, readAnnouncement(rest[idLength:], &p.Announcement)
}

func stamp(digits string) (time.Time, error) {
	us, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return time.Time{}, errDamaged
	}
	return moment(us), nil
}

// packAnnouncement packs what is not in the head of the entry: texts with
// their length before them, then numbers. It is read for every host of every
// task, so it is made for reading without copies.
func packAnnouncement(a *taskstore.Announcement) []byte {
	var out []byte
	for _, text := range []string{a.Instance, a.Version, a.OS, a.Arch} {
		out = binary.AppendUvarint(out, uint64(len(text)))
		out = append(out, text...)
	}
	started := int64(0)
	if !a.StartedAt.IsZero() {
		started = a.StartedAt.UnixNano()
	}
	out = binary.AppendVarint(out, started)
	return binary.AppendVarint(out, int64(a.Supervised))
}

// readAnnouncement reads what packAnnouncement made. The texts share memory
// with packed.
func readAnnouncement(packed string, a *taskstore.Announcement) error {
	for _, text := range []*string{&a.Instance, &a.Version, &a.OS, &a.Arch} {
		n, size := binary.Uvarint([]byte(packed[:min(len(packed), binary.MaxVarintLen64)]))
		if size <= 0 || n > uint64(len(packed)-size) {
			return errDamaged
		}
		*text, packed = packed[size:size+int(n)], packed[size+int(n):]
	}
	started, size := binary.Varint([]byte(packed))
	if size <= 0 {
		return errDamaged
	}
	supervised, size := binary.Varint([]byte(packed[size:]))
	if size <= 0 {
		return errDamaged
	}
	if started != 0 {
		a.StartedAt = time.Unix(0, started).UTC()
	}
	a.Supervised = int(supervised)
	return nil
}
