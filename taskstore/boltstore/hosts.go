package boltstore

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// hostRecord is what was heard of the agents of one host.
type hostRecord struct {
	Last   taskstore.Announcement
	SeenAt time.Time
	Since  time.Time
	// Others are the instances that were heard of before the last one.
	Others []sighting
	// ConflictUntil is when the conflict ends unless it is renewed.
	ConflictUntil time.Time
}

type sighting struct {
	Instance string
	SeenAt   time.Time
}

// othersLimit bounds how many instances of one host are remembered.
const othersLimit = 8

func alive(seen, now time.Time) bool { return now.Before(seen.Add(taskstore.PresenceTTL)) }

// hear returns the record after an announcement; nil if no agent is left.
// Whoever was heard of before the last one is older than it, so a record whose
// last one is silent is empty.
func (r *hostRecord) hear(a taskstore.Announcement, now time.Time) *hostRecord {
	if r == nil || !alive(r.SeenAt, now) {
		if a.Leaving {
			return nil
		}
		return &hostRecord{Last: a, SeenAt: now, Since: now}
	}
	if a.Instance == r.Last.Instance {
		if a.Leaving {
			return nil
		}
		r.Last, r.SeenAt = a, now
		return r
	}
	r.Others = slices.DeleteFunc(r.Others, func(o sighting) bool { return !alive(o.SeenAt, now) })
	living := len(r.Others)
	r.Others = slices.DeleteFunc(r.Others, func(o sighting) bool { return o.Instance == a.Instance })
	if a.Leaving {
		if len(r.Others) == 0 {
			r.ConflictUntil = time.Time{}
		}
		return r
	}
	if len(r.Others) < living {
		// It was heard of, then the last one, now it again: both live, until
		// one of them is silent for long enough.
		r.ConflictUntil = r.SeenAt.Add(taskstore.PresenceTTL)
	}
	r.Others = append(r.Others, sighting{Instance: r.Last.Instance, SeenAt: r.SeenAt})
	r.Others = r.Others[max(0, len(r.Others)-othersLimit):]
	r.Last, r.SeenAt, r.Since = a, now, now
	return r
}

// presence is what the record says now; zero if no agent is alive.
func (r *hostRecord) presence(now time.Time) taskstore.Presence {
	if r == nil || !alive(r.SeenAt, now) {
		return taskstore.Presence{}
	}
	return taskstore.Presence{
		Announcement: r.Last, SeenAt: r.SeenAt, Since: r.Since,
		Conflict: now.Before(r.ConflictUntil),
	}
}

// hostKey sorts by cloud area, then by address text.
func hostKey(h procfleet.Host) []byte {
	return append(number8(uint64(h.Cloud)), h.Addr.String()...)
}

func (t *tx) host(key []byte) (*hostRecord, error) {
	var r hostRecord
	found, err := t.get(bucketHosts, key, &r)
	if err != nil || !found {
		return nil, err
	}
	return &r, nil
}

// Announce stores announcements; one without a host is left out.
func (s *Store) Announce(ctx context.Context, as []taskstore.Announcement) error {
	as = slices.DeleteFunc(slices.Clone(as), func(a taskstore.Announcement) bool { return a.Host.IsZero() })
	return change(ctx, s, func(t *tx) error {
		for _, a := range as {
			if err := t.announce(a); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *tx) announce(a taskstore.Announcement) error {
	key := hostKey(a.Host)
	r, err := t.host(key)
	if err != nil {
		return err
	}
	before := ""
	if r != nil {
		before = r.Last.AgentID
	}
	r = r.hear(a, t.now)
	if r == nil {
		return t.forgetHost(key, before)
	}
	if before != r.Last.AgentID {
		if err := t.forgetAgent(key, before); err != nil {
			return err
		}
	}
	if r.Last.AgentID != "" {
		if err := t.Bucket(bucketAgents).Put(digest(r.Last.AgentID), key); err != nil {
			return err
		}
	}
	return t.put(bucketHosts, key, r)
}

func (t *tx) forgetHost(key []byte, agentID string) error {
	if err := t.forgetAgent(key, agentID); err != nil {
		return err
	}
	return t.Bucket(bucketHosts).Delete(key)
}

// forgetAgent forgets where an agent is, unless it is elsewhere by now.
func (t *tx) forgetAgent(host []byte, agentID string) error {
	agents := t.Bucket(bucketAgents)
	if !bytes.Equal(agents.Get(digest(agentID)), host) {
		return nil
	}
	return agents.Delete(digest(agentID))
}

// Presences returns one entry per host, in order.
func (s *Store) Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error) {
	return view(ctx, s, func(t *tx) ([]taskstore.Presence, error) {
		out := make([]taskstore.Presence, len(hosts))
		for i, h := range hosts {
			r, err := t.host(hostKey(h))
			if err != nil {
				return nil, err
			}
			out[i] = r.presence(t.now)
		}
		return out, nil
	})
}

// Resolve returns the hosts of agent ids, in order.
func (s *Store) Resolve(ctx context.Context, agentIDs []string) ([]procfleet.Host, error) {
	return view(ctx, s, func(t *tx) ([]procfleet.Host, error) {
		out := make([]procfleet.Host, len(agentIDs))
		for i, id := range agentIDs {
			key := t.Bucket(bucketAgents).Get(digest(id))
			if key == nil {
				continue
			}
			r, err := t.host(key)
			if err != nil {
				return nil, err
			}
			out[i] = r.presence(t.now).Host
		}
		return out, nil
	})
}

// HostPage returns live agents in the order of hostKey.
func (s *Store) HostPage(ctx context.Context, after procfleet.Host, limit int) ([]taskstore.Presence, error) {
	return view(ctx, s, func(t *tx) ([]taskstore.Presence, error) {
		c := t.Bucket(bucketHosts).Cursor()
		key, _ := c.First()
		if !after.IsZero() {
			if key, _ = c.Seek(hostKey(after)); bytes.Equal(key, hostKey(after)) {
				key, _ = c.Next()
			}
		}
		var page []taskstore.Presence
		for ; key != nil && len(page) < limit; key, _ = c.Next() {
			r, err := t.host(key)
			if err != nil {
				return nil, err
			}
			if p := r.presence(t.now); !p.Host.IsZero() {
				page = append(page, p)
			}
		}
		return page, nil
	})
}
