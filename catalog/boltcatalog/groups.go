package boltcatalog

import (
	"bytes"
	"context"
	"fmt"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/pack"
	"github.com/procfleet/procfleet/internal/boltdb"
)

// groupsKey returns the key of a host's groups of one namespace. A zero byte ends the
// host, because addresses contain none, so no host's key is a prefix of another's.
func groupsKey(namespace string, h procfleet.Host) []byte {
	return append(append(boltdb.HostKey(h), 0), namespace...)
}

// SetGroups replaces the process groups of each host and namespace.
func (s *Catalog) SetGroups(ctx context.Context, gs []catalog.HostGroups) error {
	type packed struct{ key, raw []byte } // nil raw removes the groups
	all := make([]packed, len(gs))
	for i := range gs {
		if err := gs[i].Validate(); err != nil {
			return fmt.Errorf("set groups of %q: %w", gs[i].Host, err)
		}
		all[i].key = groupsKey(gs[i].Namespace, gs[i].Host)
		if len(gs[i].Groups) == 0 {
			continue
		}
		var err error
		if all[i].raw, err = pack.Groups(&gs[i]); err != nil {
			return err
		}
	}
	return change(ctx, s, func(t *tx) error {
		b := t.Bucket(bucketGroups)
		for _, g := range all {
			err := b.Delete(g.key)
			if g.raw != nil {
				err = b.Put(g.key, g.raw)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Groups returns the process groups of one namespace for each host, in order.
func (s *Catalog) Groups(ctx context.Context, namespace string, hosts []procfleet.Host) ([]catalog.HostGroups, error) {
	return view(ctx, s, func(t *tx) ([]catalog.HostGroups, error) {
		out := make([]catalog.HostGroups, len(hosts))
		for i, h := range hosts {
			out[i] = catalog.HostGroups{Host: h, Namespace: namespace}
			if out[i].Validate() != nil {
				continue
			}
			raw := t.Bucket(bucketGroups).Get(groupsKey(namespace, h))
			if raw == nil {
				continue
			}
			var err error
			if out[i], err = pack.ReadGroups(h, namespace, raw); err != nil {
				return nil, err
			}
		}
		return out, nil
	})
}

// GroupsOf returns the process groups of all namespaces for each host, in order.
func (s *Catalog) GroupsOf(ctx context.Context, hosts []procfleet.Host) ([][]catalog.HostGroups, error) {
	return view(ctx, s, func(t *tx) ([][]catalog.HostGroups, error) {
		out := make([][]catalog.HostGroups, len(hosts))
		for i, h := range hosts {
			prefix := groupsKey("", h)
			c := t.Bucket(bucketGroups).Cursor()
			for key, raw := c.Seek(prefix); bytes.HasPrefix(key, prefix); key, raw = c.Next() {
				g, err := pack.ReadGroups(h, string(key[len(prefix):]), raw)
				if err != nil {
					return nil, err
				}
				out[i] = append(out[i], g)
			}
		}
		return out, nil
	})
}
