package catalog

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/label"
)

// Labeling changes labels of hosts: it removes labels by their keys, then sets labels.
type Labeling struct {
	Set    map[string]string
	Remove []string
}

// MaxLabels is the maximum number of labels of a host in [HostLabels].
var MaxLabels = label.Max - len(label.Facts())

// Validate returns a [procfleet.FieldError] if nothing changes, or if a key or value is
// invalid.
func (l Labeling) Validate() error {
	if len(l.Set) == 0 && len(l.Remove) == 0 {
		return &procfleet.FieldError{Field: "set", Problem: "is empty, and remove too: name the labels"}
	}
	if err := label.CheckOwn(l.Set); err != nil {
		return &procfleet.FieldError{Field: "set", Problem: err.Error()}
	}
	var errs []error
	for _, key := range l.Remove {
		if err := label.Check(key, ""); err != nil {
			errs = append(errs, &procfleet.FieldError{Field: "remove", Problem: err.Error()})
		}
	}
	return errors.Join(errs...)
}

// Apply returns labels after the change, or false if they were more than [MaxLabels].
func (l Labeling) Apply(labels map[string]string) (changed map[string]string, fits bool) {
	changed = make(map[string]string, len(labels)+len(l.Set))
	for key, value := range labels {
		if !slices.Contains(l.Remove, key) {
			changed[key] = value
		}
	}
	maps.Copy(changed, l.Set)
	return changed, len(changed) <= MaxLabels
}

// HostLabels stores labels of hosts that callers set, independent of the labels that agents
// announce.
type HostLabels interface {
	// LabelHosts changes labels and reports, for each host in order, whether it did: a
	// host that would have more than [MaxLabels] labels does not change.
	LabelHosts(ctx context.Context, hosts []procfleet.Host, l Labeling) (changed []bool, err error)
	// LabelsOf returns the labels of each host, in order; nil for a host without labels.
	LabelsOf(ctx context.Context, hosts []procfleet.Host) ([]map[string]string, error)
}
