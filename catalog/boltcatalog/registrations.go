package boltcatalog

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/pack"
	"github.com/procfleet/procfleet/internal/boltdb"
)

// definition is a [catalog.Definition] in stored form.
type definition struct {
	spec  []byte    // key in bucketSpecs
	asked time.Time // zero means now
	keys  [][]byte  // keys in bucketProcesses, one per host
}

// packDefinitions packs definitions. Call it outside the transaction, which delays all
// other writers.
func packDefinitions(ds []catalog.Definition) (packed []definition, specs map[string][]byte, err error) {
	packed, specs = make([]definition, len(ds)), map[string][]byte{}
	for i := range ds {
		raw, err := pack.Spec(&ds[i].Spec)
		if err != nil {
			return nil, nil, err
		}
		d := definition{spec: boltdb.Digest(string(raw)), asked: ds[i].Asked, keys: make([][]byte, len(ds[i].Hosts))}
		for j, h := range ds[i].Hosts {
			p := ds[i].Process(h)
			if err := p.Validate(); err != nil {
				return nil, nil, fmt.Errorf("register a process on %q: %w", h, err)
			}
			d.keys[j] = processKey(p)
		}
		packed[i], specs[string(d.spec)] = d, raw
	}
	return packed, specs, nil
}

// Register stores definitions and reports for each host whether a registration existed.
func (s *Catalog) Register(ctx context.Context, ds []catalog.Definition, replace bool) ([][]bool, error) {
	packed, specs, err := packDefinitions(ds)
	if err != nil {
		return nil, err
	}
	return update(ctx, s, func(t *tx) ([][]bool, error) {
		existed, changed := make([][]bool, len(packed)), uses{}
		for i, d := range packed {
			existed[i] = make([]bool, len(d.keys))
			for j, key := range d.keys {
				takes := false
				before, err := t.setStanding(key, func(st *standing) { takes = st.register(&d, t.Now, replace) })
				if err != nil {
					return nil, err
				}
				existed[i][j] = before.registered()
				if takes {
					changed[string(d.spec)]++
				}
				if takes && before.registered() {
					changed[string(before.spec)]--
				}
			}
		}
		return existed, changed.settle(t, specs)
	})
}

// register replaces the spec by the definition's spec and returns true, or returns
// false and leaves the existing registration unchanged.
func (st *standing) register(d *definition, now time.Time, replace bool) bool {
	switch {
	case !st.registered():
		st.registeredAt = now
	case !replace, !d.asked.IsZero() && !st.askedAt.Before(d.asked):
		return false
	}
	if st.spec, st.askedAt = d.spec, d.asked; d.asked.IsZero() {
		st.askedAt = now
	}
	return true
}

// Unregister removes registrations and reports which existed.
func (s *Catalog) Unregister(ctx context.Context, ps []catalog.Process) ([]bool, error) {
	return s.unregister(ctx, ps, (*standing).registered)
}

// EndRegistrations removes the registrations that the request of a time made.
func (s *Catalog) EndRegistrations(ctx context.Context, ps []catalog.Process, asked time.Time) ([]bool, error) {
	return s.unregister(ctx, ps, func(st *standing) bool {
		return st.registered() && st.askedAt.Equal(asked) && !st.registeredAt.Before(asked)
	})
}

// unregister removes the selected registrations and reports which these were.
func (s *Catalog) unregister(ctx context.Context, ps []catalog.Process, selects func(*standing) bool) ([]bool, error) {
	keys := make([][]byte, len(ps)) // nil for an invalid process
	for i, p := range ps {
		if p.Validate() == nil {
			keys[i] = processKey(p)
		}
	}
	return update(ctx, s, func(t *tx) ([]bool, error) {
		existed, changed := make([]bool, len(keys)), uses{}
		for i, key := range keys {
			if key == nil {
				continue
			}
			before, err := t.setStanding(key, func(st *standing) {
				if existed[i] = selects(st); existed[i] {
					st.spec = nil
				}
			})
			if err != nil {
				return nil, err
			}
			if existed[i] {
				changed[string(before.spec)]--
			}
		}
		return existed, changed.settle(t, nil)
	})
}

// Registrations returns the registration of each process, in order; nil if it is not
// registered.
func (s *Catalog) Registrations(ctx context.Context, ps []catalog.Process) ([]*catalog.Registration, error) {
	return view(ctx, s, func(t *tx) ([]*catalog.Registration, error) {
		out, r := make([]*catalog.Registration, len(ps)), t.catalog()
		for i, p := range ps {
			var err error
			if out[i], err = r.registration(p, t.standing(p)); err != nil {
				return nil, err
			}
		}
		return out, nil
	})
}

// RegisteredHosts returns up to limit hosts on which a process is registered, sorted by
// hostKey, beginning after a host.
func (s *Catalog) RegisteredHosts(ctx context.Context, namespace, name string, after procfleet.Host, limit int) ([]procfleet.Host, error) {
	if !catalog.ValidName(namespace) || !catalog.ValidName(name) {
		return nil, ctx.Err()
	}
	return view(ctx, s, func(t *tx) ([]procfleet.Host, error) {
		prefix := names(namespace, name)
		c := t.Bucket(bucketProcesses).Cursor()
		key, raw := c.Seek(prefix)
		if !after.IsZero() {
			last := append(bytes.Clone(prefix), boltdb.HostKey(after)...)
			if key, raw = c.Seek(last); bytes.Equal(key, last) {
				key, raw = c.Next()
			}
		}
		var hosts []procfleet.Host
		for ; bytes.HasPrefix(key, prefix) && len(hosts) < limit; key, raw = c.Next() {
			if !readStanding(raw).registered() {
				continue
			}
			h, err := boltdb.ReadHostKey(key[len(prefix):])
			if err != nil {
				return nil, err
			}
			hosts = append(hosts, h)
		}
		return hosts, nil
	})
}
