package boltstore

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/taskstore"
)

// hostRecord is the stored presence of the agents of one host.
type hostRecord struct {
	Last  taskstore.Announcement
	Since time.Time
	// Until is the end of the presence of the agent that announced itself last.
	Until time.Time
	// Others are the earlier claimants, in the order of their last announcements.
	Others []sighting
	// ConflictUntil is the end of the conflict if no further announcement extends it.
	ConflictUntil time.Time
}

// sighting is a claimant of a host, which is an agent instance or an incarnation of
// one, with the end of its presence.
type sighting struct {
	Instance    string
	Incarnation string
	Until       time.Time
}

func (s sighting) of(a *taskstore.Announcement) bool {
	return s.Instance == a.Instance && s.Incarnation == a.Incarnation
}

func (r *hostRecord) last() sighting {
	return sighting{Instance: r.Last.Instance, Incarnation: r.Last.Incarnation, Until: r.Until}
}

// othersLimit is the maximum number of earlier claimants that are stored per host.
const othersLimit = 8

func (r *hostRecord) alive(now time.Time) bool { return now.Before(r.Until) }

func (r *hostRecord) forgotten(now time.Time) bool {
	return !now.Before(r.Until.Add(taskstore.InstanceMemory))
}

// living returns the claimants, the last one included, whose presence has not ended, in
// the order of their last announcements.
func (r *hostRecord) living(now time.Time) []sighting {
	all := append(slices.Clone(r.Others), r.last())
	return slices.DeleteFunc(all, func(s sighting) bool { return !now.Before(s.Until) })
}

// hear returns the new record of a host after the announcement of a live agent.
func (r *hostRecord) hear(a taskstore.Announcement, now time.Time) *hostRecord {
	until := now.Add(taskstore.PresenceTTL)
	switch {
	case r == nil || r.forgotten(now):
		return &hostRecord{Last: a, Since: now, Until: until}
	case r.last().of(&a):
		r.Last, r.Until = a, until
		return r
	}
	r.Others = r.living(now)
	if at := slices.IndexFunc(r.Others, func(o sighting) bool { return o.of(&a) }); at >= 0 {
		r.Others = slices.Delete(r.Others, at, at+1)
		if at < len(r.Others) {
			// This claimant announced itself, then another one, and now this one again:
			// both live. The conflict lasts until the presence of one of them ends.
			r.ConflictUntil = r.Others[len(r.Others)-1].Until
		}
	}
	r.Others = r.Others[max(0, len(r.Others)-othersLimit):]
	if a.Instance != r.Last.Instance {
		r.Since = now
	}
	r.Last, r.Until = a, until
	return r
}

// leave ends the presence of an agent that announced its shutdown.
func (r *hostRecord) leave(a *taskstore.Announcement, now time.Time) {
	r.Others = slices.DeleteFunc(r.Others, func(o sighting) bool { return o.of(a) })
	if r.last().of(a) && r.alive(now) {
		r.Until = now
	}
	if len(r.living(now)) < 2 {
		r.ConflictUntil = time.Time{}
	}
}

// presence returns the host's presence; the zero Presence if no agent is live.
func (r *hostRecord) presence(now time.Time) taskstore.Presence {
	if r == nil || !r.alive(now) {
		return taskstore.Presence{}
	}
	return taskstore.Presence{
		Announcement: r.Last, SeenAt: r.Until.Add(-taskstore.PresenceTTL), Since: r.Since,
		Conflict: now.Before(r.ConflictUntil),
	}
}

func (t *tx) host(key []byte) (*hostRecord, error) {
	var r hostRecord
	found, err := t.Get(bucketHosts, key, &r)
	if err != nil || !found {
		return nil, err
	}
	return &r, nil
}

// Announce stores announcements. It ignores an announcement without a host.
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
	key := boltdb.HostKey(a.Host)
	r, err := t.host(key)
	if err != nil {
		return err
	}
	if a.Leaving {
		if r == nil {
			return nil
		}
		r.leave(&a, t.Now)
		return t.Put(bucketHosts, key, r)
	}
	if r != nil && r.Last.AgentID != a.AgentID {
		if err := t.forgetAgent(key, r.Last.AgentID); err != nil {
			return err
		}
	}
	if a.AgentID != "" {
		if err := t.Bucket(bucketIDs).Put(slices.Concat(boltdb.Digest(a.AgentID), key), nil); err != nil {
			return err
		}
		if r == nil || r.Last.AgentID != a.AgentID {
			if err := t.unbindOthers(key, boltdb.Digest(a.AgentID)); err != nil {
				return err
			}
		}
	}
	return t.Put(bucketHosts, key, r.hear(a, t.Now))
}

// forgetHost removes a host whose presence ended long ago.
func (s *Store) forgetHost(t *tx, key []byte, agentID string) error {
	if err := t.forgetAgent(key, agentID); err != nil {
		return err
	}
	if s.opt.ForgetHost != nil {
		if err := s.opt.ForgetHost(t.Tx, key); err != nil {
			return err
		}
	}
	return t.Bucket(bucketHosts).Delete(key)
}

// forgetAgent removes the record that a host's agent announced an id.
func (t *tx) forgetAgent(host []byte, agentID string) error {
	return t.Bucket(bucketIDs).Delete(slices.Concat(boltdb.Digest(agentID), host))
}

// Presences returns the presence of each host, in order; the zero Presence if it has no
// live agent.
func (s *Store) Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error) {
	return view(ctx, s, func(t *tx) ([]taskstore.Presence, error) {
		out := make([]taskstore.Presence, len(hosts))
		for i, h := range hosts {
			r, err := t.host(boltdb.HostKey(h))
			if err != nil {
				return nil, err
			}
			out[i] = r.presence(t.Now)
		}
		return out, nil
	})
}

// Resolve returns the host of each agent id, in order; the zero Host if there is none.
func (s *Store) Resolve(ctx context.Context, agentIDs []string) ([]procfleet.Host, error) {
	return view(ctx, s, func(t *tx) ([]procfleet.Host, error) {
		out := make([]procfleet.Host, len(agentIDs))
		for i, id := range agentIDs {
			var err error
			if out[i], err = t.resolve(boltdb.Digest(id)); err != nil {
				return nil, err
			}
		}
		return out, nil
	})
}

// resolve returns the host to which an id is bound. If the id is not bound, it returns
// the host whose live agent announced the id, if there is exactly one.
func (t *tx) resolve(id []byte) (procfleet.Host, error) {
	if key := t.Bucket(bucketBound).Get(id); key != nil {
		return boltdb.ReadHostKey(key)
	}
	claimants, err := t.claimants(id)
	if err != nil || len(claimants) != 1 {
		return procfleet.Host{}, err
	}
	return claimants[0], nil
}

// Claimants returns the hosts whose live agents announce each id, in order.
func (s *Store) Claimants(ctx context.Context, agentIDs []string) ([][]procfleet.Host, error) {
	return view(ctx, s, func(t *tx) ([][]procfleet.Host, error) {
		out := make([][]procfleet.Host, len(agentIDs))
		for i, id := range agentIDs {
			var err error
			if out[i], err = t.claimants(boltdb.Digest(id)); err != nil {
				return nil, err
			}
		}
		return out, nil
	})
}

// claimants returns the hosts whose live agents named this agent id in their last
// announcement.
func (t *tx) claimants(id []byte) ([]procfleet.Host, error) {
	var hosts []procfleet.Host
	c := t.Bucket(bucketIDs).Cursor()
	for key, _ := c.Seek(id); bytes.HasPrefix(key, id) && len(hosts) < taskstore.MaxClaimants; key, _ = c.Next() {
		r, err := t.host(key[len(id):])
		if err != nil {
			return nil, err
		}
		if p := r.presence(t.Now); !p.Host.IsZero() {
			hosts = append(hosts, p.Host)
		}
	}
	return hosts, nil
}

// HostPage returns up to limit live agents, sorted by hostKey, beginning after a host.
func (s *Store) HostPage(ctx context.Context, after procfleet.Host, limit int) ([]taskstore.Presence, error) {
	return view(ctx, s, func(t *tx) ([]taskstore.Presence, error) {
		c := t.Bucket(bucketHosts).Cursor()
		key, _ := c.First()
		if !after.IsZero() {
			if key, _ = c.Seek(boltdb.HostKey(after)); bytes.Equal(key, boltdb.HostKey(after)) {
				key, _ = c.Next()
			}
		}
		var page []taskstore.Presence
		for ; key != nil && len(page) < limit; key, _ = c.Next() {
			r, err := t.host(key)
			if err != nil {
				return nil, err
			}
			if p := r.presence(t.Now); !p.Host.IsZero() {
				page = append(page, p)
			}
		}
		return page, nil
	})
}
