package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// groupedPolicy is a rollout policy with the groups of the hosts.
type groupedPolicy struct {
	*procfleet.RolloutPolicy
	name         string // of a stored policy, or ""
	queue        *procfleet.HostQueue
	order, zones groups
}

// groups has the names of the groups of each host.
type groups func(procfleet.Host) []string

// groupedPolicy reads the groups of hosts that the policy of a submission needs; nil without a policy.
func (s *submitter) groupedPolicy(ctx context.Context, sub *procfleet.Submission, operations []procfleet.Operation) (*groupedPolicy, error) {
	if sub.Rollout == nil {
		return nil, nil //nolint:nilnil // most tasks have no rollout
	}
	g := &groupedPolicy{RolloutPolicy: sub.Rollout, name: sub.Policy, queue: sub.Queue}
	var err error
	if g.order, err = s.groups(ctx, sub, operations, "rollout.order.by", g.Order.HostGrouping); err == nil {
		g.zones, err = s.groups(ctx, sub, operations, "rollout.zones.by", g.Zones.HostGrouping)
	}
	return g, err
}

func (s *submitter) groups(ctx context.Context, sub *procfleet.Submission, operations []procfleet.Operation, field string, by procfleet.HostGrouping) (groups, error) {
	switch by.By {
	case procfleet.GroupByCloud:
		return func(h procfleet.Host) []string { return []string{strconv.Itoa(int(h.Cloud))} }, nil
	case procfleet.GroupByLabel:
		m := labelMatcher{store: s.store, known: map[procfleet.Host]map[string]string{}}
		err := m.read(ctx, operatedHosts(operations))
		return func(h procfleet.Host) []string { return []string{m.known[h][by.Label]} }, err
	case procfleet.GroupBySet, procfleet.GroupByModule:
		b, err := businessOf(sub, operations)
		if err != nil {
			return nil, &dialect.Error{Kind: dialect.InvalidField, Field: field, Problem: "needs the business of the hosts: " + err.Error()}
		}
		t, err := placed(ctx, s.store, b)
		if err != nil {
			return nil, err
		}
		return placesOf(t, by.By), nil
	}
	return nil, nil
}

// businessOf returns the business of a submission, or of the first process that has one.
func businessOf(sub *procfleet.Submission, operations []procfleet.Operation) (b catalog.Business, err error) {
	for _, namespace := range append(policyNamespaces(sub, operations), sub.Business) {
		if b, err = catalog.ParseBusiness(namespace); err == nil {
			break
		}
	}
	return b, err
}

func operatedHosts(operations []procfleet.Operation) []procfleet.Host {
	var targets []procfleet.Target
	for i := range operations {
		targets = append(targets, operations[i].Targets...)
	}
	return hostsOf(targets).hosts
}

// placesOf returns the names of the sets or modules of each host, in the order of the topology.
func placesOf(t *catalog.Topology, by procfleet.GroupBy) groups {
	names := map[procfleet.Host][]string{}
	for _, set := range t.Sets {
		for _, m := range set.Modules {
			name := m.Name
			if by == procfleet.GroupBySet {
				name = set.Name
			}
			for _, h := range m.Hosts {
				names[h] = append(names[h], name)
			}
		}
	}
	return func(h procfleet.Host) []string { return names[h] }
}

// missing returns an error if the order names a group without hosts: a mistyped canary must not let
// all hosts begin at once. A stored policy applies to tasks on parts of its groups.
func (g *groupedPolicy) missing(sizes []int) error {
	if g.name != "" {
		return nil
	}
	for i, name := range g.Order.List {
		if sizes[i] == 0 {
			return &dialect.Error{Kind: dialect.InvalidField, Field: "rollout.order.list", Problem: fmt.Sprintf(
				"no host of the request is in the %s %q, or it is in a group before it", g.Order.By, name)}
		}
	}
	return nil
}

// sort sorts hosts by the order of the policy, and returns the number of hosts of each group.
func (g *groupedPolicy) sort(works []hostWork) (sizes []int) {
	if g.Shuffle {
		rand.Shuffle(len(works), func(i, j int) { works[i], works[j] = works[j], works[i] }) //nolint:gosec // the order is not secret
	}
	if g.order == nil {
		return []int{len(works)}
	}
	ranks := make(map[place]int, len(works))
	sizes = make([]int, len(g.Order.List)+1)
	for i := range works {
		rank := len(g.Order.List)
		for _, name := range g.order(works[i].place.host) {
			if at := slices.Index(g.Order.List, name); at >= 0 {
				rank = min(rank, at)
			}
		}
		ranks[works[i].place] = rank
		sizes[rank]++
	}
	slices.SortStableFunc(works, func(a, b hostWork) int { return cmp.Compare(ranks[a.place], ranks[b.place]) })
	return sizes
}

// zoner numbers zones, from 1, in the order of first mention.
type zoner struct {
	of      groups
	numbers map[string]int
	sizes   []v1.ZoneSize
}

// divide returns the hosts of each zone. Without zones all hosts are in zone 0.
func (z *zoner) divide(works []hostWork) map[int][]hostWork {
	if z.of == nil {
		return map[int][]hostWork{0: works}
	}
	zones := map[int][]hostWork{}
	for i := range works {
		name := ""
		if names := z.of(works[i].place.host); len(names) > 0 {
			name = names[0]
		}
		if z.numbers[name] == 0 {
			z.sizes = append(z.sizes, v1.ZoneSize{Name: name})
			z.numbers[name] = len(z.sizes)
		}
		number := z.numbers[name]
		z.sizes[number-1].Hosts++
		zones[number] = append(zones[number], works[i])
	}
	return zones
}

// maxRolloutChunks is the maximum number of chunks of a task with a rollout, whose store keeps
// more for each.
const maxRolloutChunks = 3000

// addStages adds the hosts of each stage and zone of a rollout to chunks of their own. The hosts are
// sorted by groups of the sizes. It returns the zones, too.
func (c *cutter) addStages(works []hostWork, g *groupedPolicy, sizes []int) (*procfleet.RolloutPlan, []v1.ZoneSize, error) {
	for i := range works {
		if w := &works[i]; len(w.items) > procfleet.ChunkItems || c.bytes(w.items, nil) > chunkBytes {
			return nil, nil, tooLarge("%d processes on host %s in one rollout, at most %d are allowed; divide the request", len(w.items), w.place.host, procfleet.ChunkItems)
		}
	}
	plan := g.Plan(0, sizes...)
	plan.Policy = g.name
	if g.queue != nil {
		plan.Queue, plan.Coalesce = g.queue.For.Std(), g.queue.Coalesce
	}
	z := zoner{of: g.zones, numbers: map[string]int{}}
	for i := range plan.Stages {
		stage := &plan.Stages[i]
		zones := z.divide(works[:stage.Units])
		for _, number := range slices.Sorted(maps.Keys(zones)) {
			clear(c.open)
			c.zone = number
			c.addHosts(zones[number])
		}
		works, stage.Chunks = works[stage.Units:], len(c.chunks)
	}
	if len(c.chunks) > maxRolloutChunks {
		return nil, nil, tooLarge("the rollout has %d parts by stage, zone and cloud area, at most %d are allowed; divide the request", len(c.chunks), maxRolloutChunks)
	}
	return &plan, z.sizes, nil
}
