package boltcatalog

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/boltdb"
)

// LabelHosts changes labels of hosts and reports which hosts it changed.
func (s *Catalog) LabelHosts(ctx context.Context, hosts []procfleet.Host, l catalog.Labeling) ([]bool, error) {
	if err := l.Validate(); err != nil {
		return nil, fmt.Errorf("label hosts: %w", err)
	}
	return update(ctx, s, func(t *tx) ([]bool, error) {
		changed := make([]bool, len(hosts))
		for i, h := range hosts {
			labels, err := t.labels(h)
			if err != nil {
				return nil, err
			}
			if labels, changed[i] = l.Apply(labels); !changed[i] {
				continue
			}
			if err := t.setLabels(h, labels); err != nil {
				return nil, err
			}
		}
		return changed, nil
	})
}

// LabelsOf returns the labels of each host, in order.
func (s *Catalog) LabelsOf(ctx context.Context, hosts []procfleet.Host) ([]map[string]string, error) {
	return view(ctx, s, func(t *tx) ([]map[string]string, error) {
		all := make([]map[string]string, len(hosts))
		for i, h := range hosts {
			var err error
			if all[i], err = t.labels(h); err != nil {
				return nil, err
			}
		}
		return all, nil
	})
}

func (t *tx) labels(h procfleet.Host) (labels map[string]string, err error) {
	raw := t.Bucket(bucketLabels).Get(boltdb.HostKey(h))
	if raw == nil {
		return nil, nil
	}
	if err := json.Unmarshal(raw, &labels); err != nil {
		return nil, fmt.Errorf("read labels of host %s: %w", h, err)
	}
	return labels, nil
}

func (t *tx) setLabels(h procfleet.Host, labels map[string]string) error {
	if len(labels) == 0 {
		return t.Bucket(bucketLabels).Delete(boltdb.HostKey(h))
	}
	raw, err := json.Marshal(labels)
	if err != nil {
		return fmt.Errorf("encode labels: %w", err)
	}
	return t.Bucket(bucketLabels).Put(boltdb.HostKey(h), raw)
}
