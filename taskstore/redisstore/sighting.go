package redisstore

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/packing"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
)

// The head of a host's entry, as [announceScript] writes it. Moments are microseconds
// as 16 digits; claimants are 16 letters.
//
//	until | since | claimant | conflict until | n | n × (other claimant | its until)
//
// A claimant is an incarnation of an agent instance (see [claimantKey]).
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
// entry.
func packAnnouncement(a *taskstore.Announcement) []byte {
	f := packing.Writing(128)
	announcementFields(f, a)
	return f.Out
}

// readAnnouncement parses what packAnnouncement returns. The store reads it for every
// host of every task, so the texts share the memory of packed.
func readAnnouncement(packed string, a *taskstore.Announcement) error {
	f, err := packing.Reading(packed)
	if err != nil {
		return err
	}
	announcementFields(f, a)
	return f.Err
}

func announcementFields(f *packing.Fields, a *taskstore.Announcement) {
	for _, text := range []*string{&a.Instance, &a.Incarnation, &a.Version, &a.OS, &a.Arch} {
		packing.Text(f, text)
	}
	f.Time(&a.StartedAt)
	packing.Num(f, &a.Supervised)
	f.Float(&a.CPU)
	f.Float(&a.Memory)
	labelFields(f, &a.Labels)
}

// labelFields writes or reads labels as alternating keys and values.
func labelFields(f *packing.Fields, labels *map[string]string) {
	pairs := make([]string, 0, 2*len(*labels))
	for _, key := range slices.Sorted(maps.Keys(*labels)) {
		pairs = append(pairs, key, (*labels)[key])
	}
	f.Texts(&pairs)
	if !f.Reading || len(pairs) == 0 {
		return
	}
	if len(pairs)%2 == 1 {
		f.Fail()
		return
	}
	*labels = make(map[string]string, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		(*labels)[pairs[i]] = pairs[i+1]
	}
}
