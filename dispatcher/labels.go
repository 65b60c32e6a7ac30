package dispatcher

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/label"
	"github.com/procfleet/procfleet/taskstore"
)

// labelHosts changes the labels of hosts that the server stores.
func (e *exchange) labelHosts(ctx context.Context, q *dialect.LabelChange, at *targetHosts) ([]dialect.TargetOutcome, error) {
	ctx, cancel := e.detached(ctx)
	defer cancel()
	if err := e.auditChange(ctx, changeOf("label hosts", q.Business, at.hosts)); err != nil {
		return nil, err
	}
	changed, err := e.api.store.LabelHosts(ctx, at.hosts, q.Labels)
	if err != nil {
		return nil, fmt.Errorf("label %d hosts: %w", len(at.hosts), err)
	}
	e.log().WithFields(logrus.Fields{"application": e.who.Application, "user": e.who.User, "hosts": len(at.hosts)}).Info("labels of hosts changed")
	return outcomesOf(q.Targets, at, func(n int) (procfleet.Code, string) {
		if !changed[n] {
			return procfleet.CodeFailed, fmt.Sprintf("the host would have more than %d labels: remove others", catalog.MaxLabels)
		}
		return success(n)
	}), nil
}

// addLabels adds the labels that the server stores to the presences of hosts. They replace
// labels of the same keys.
func addLabels(ctx context.Context, store Store, presences []taskstore.Presence) error {
	hosts := make([]procfleet.Host, len(presences))
	for i := range presences {
		hosts[i] = presences[i].Host
	}
	stored, err := store.LabelsOf(ctx, hosts)
	if err != nil {
		return fmt.Errorf("read the labels of %d hosts: %w", len(hosts), err)
	}
	for i, labels := range stored {
		if len(labels) > 0 {
			presences[i].Labels = merged(presences[i].Labels, labels)
		}
	}
	return nil
}

func merged(labels, over map[string]string) map[string]string {
	all := make(map[string]string, len(labels)+len(over))
	maps.Copy(all, labels)
	maps.Copy(all, over)
	return all
}

// labelMatcher reports which hosts the filters match, over the labels of agents and of the
// server, and the facts. It reads each host once.
type labelMatcher struct {
	store Store
	known map[procfleet.Host]map[string]string
}

// read reads the labels of hosts that are not known.
func (m *labelMatcher) read(ctx context.Context, hosts []procfleet.Host) error {
	hosts = slices.DeleteFunc(hosts, func(h procfleet.Host) bool { return m.known[h] != nil })
	for part := range slices.Chunk(hosts, scanHosts) {
		presences, err := m.store.Presences(ctx, part)
		if err != nil {
			return fmt.Errorf("look up the agents of %d hosts: %w", len(part), err)
		}
		stored, err := m.store.LabelsOf(ctx, part)
		if err != nil {
			return fmt.Errorf("read the labels of %d hosts: %w", len(part), err)
		}
		for i, h := range part {
			m.known[h] = merged(presences[i].AllLabels(), stored[i])
		}
	}
	return nil
}

func (m *labelMatcher) matches(h procfleet.Host, filters []label.Filter) bool {
	return !slices.ContainsFunc(filters, func(f label.Filter) bool { return !f.Matches(m.known[h]) })
}
