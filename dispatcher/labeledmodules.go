package dispatcher

import (
	"context"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/label"
)

// placed returns the topology of a business with the hosts that its modules have because of
// their labels. Only if a module has labels, it reads all hosts with a live agent.
func placed(ctx context.Context, store Store, b catalog.Business) (*catalog.Topology, error) {
	t, err := store.Topology(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("read the topology of business %s: %w", b.Namespace(), err)
	}
	labeled, err := labeledHosts(ctx, store, t)
	if err != nil || len(labeled) == 0 {
		return t, err
	}
	all := *t
	all.Sets = slices.Clone(t.Sets)
	for i := range all.Sets {
		all.Sets[i].Modules = slices.Clone(all.Sets[i].Modules)
		for j := range all.Sets[i].Modules {
			m := &all.Sets[i].Modules[j]
			if found := labeled[[2]int{i, j}]; len(found) > 0 {
				m.Hosts = distinct(slices.Concat(m.Hosts, found))
			}
		}
	}
	return &all, nil
}

// labeledHosts returns the hosts that match the labels of modules, by the indexes of set and
// module.
func labeledHosts(ctx context.Context, store Store, t *catalog.Topology) (map[[2]int][]procfleet.Host, error) {
	filters := map[[2]int][]label.Filter{}
	for i, s := range t.Sets {
		for j, m := range s.Modules {
			for _, text := range m.Labels {
				f, err := label.ParseFilter(text)
				if err != nil {
					return nil, fmt.Errorf("labels of module %s/%s: %w", s.Name, m.Name, err)
				}
				filters[[2]int{i, j}] = append(filters[[2]int{i, j}], f)
			}
		}
	}
	if len(filters) == 0 {
		return nil, nil
	}
	found := map[[2]int][]procfleet.Host{}
	scan := hostScan{store: store, batch: scanHosts}
	for !scan.over {
		page, err := scan.next(ctx)
		if err != nil {
			return nil, err
		}
		for i := range page {
			labels := page[i].AllLabels()
			for module, all := range filters {
				if !slices.ContainsFunc(all, func(f label.Filter) bool { return !f.Matches(labels) }) {
					found[module] = append(found[module], page[i].Host)
				}
			}
		}
	}
	return found, nil
}

// showLabeled lists the hosts that modules have because of their labels.
func showLabeled(t *catalog.Topology, labeled map[[2]int][]procfleet.Host) []v1.LabeledModule {
	var shown []v1.LabeledModule
	for i, s := range t.Sets {
		for j, m := range s.Modules {
			if len(m.Labels) > 0 {
				hosts := append([]procfleet.Host{}, labeled[[2]int{i, j}]...)
				shown = append(shown, v1.LabeledModule{Set: s.Name, Module: m.Name, Hosts: hosts})
			}
		}
	}
	return shown
}
