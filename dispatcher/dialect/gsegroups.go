package dialect

import (
	"cmp"
	"strconv"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// gseGroup is a process group in a request.
type gseGroup struct {
	ID       string            `json:"id"`
	Resource *gseGroupResource `json:"resource"`
}

// gseGroupResource has pointers to distinguish absent members from zero.
type gseGroupResource struct {
	CPULimit     *float64 `json:"cpu_pool_limit"`
	MemoryLimit  *float64 `json:"mem_pool_limit"`
	CPUWeight    *int     `json:"cpu_pool_weight"`
	MemoryWeight *int     `json:"mem_pool_weight"`
}

type gseGrouping struct {
	Meta *gseMeta `json:"meta"`
	gseWhere
	Process *struct {
		Groups []gseGroup `json:"process_group"`
	} `json:"spec"`
}

func decodeSetGroups(params *gseGrouping) (Grouping, error) {
	missing := cmp.Or(
		params.Meta.missingNamespace(), absent(params.Process == nil, "spec"),
		// An empty list is valid: it removes all groups.
		absent(params.Process != nil && params.Process.Groups == nil, "spec.process_group"),
	)
	if missing != "" {
		return Grouping{}, required(missing)
	}
	if err := params.Meta.validate(); err != nil {
		return Grouping{}, err
	}
	g := Grouping{Groups: catalog.HostGroups{
		Namespace: params.Meta.Namespace, Name: params.Meta.Name, Labels: params.Meta.Labels,
		Groups: make([]catalog.Group, 0, len(params.Process.Groups)),
	}}
	seen := make(map[string]bool)
	for i := range params.Process.Groups {
		at := "spec.process_group[" + strconv.Itoa(i) + "]."
		group, err := params.Process.Groups[i].group(at)
		if err != nil {
			return Grouping{}, err
		}
		if seen[group.ID] {
			return Grouping{}, invalid(at+"id", "%q is there twice", group.ID)
		}
		seen[group.ID] = true
		g.Groups.Groups = append(g.Groups.Groups, group)
	}
	var err error
	g.Targets, err = params.where(gseAddressAndSupplier)
	return g, err
}

// group validates a group and converts it; at is the path of the group in the body.
func (g *gseGroup) group(at string) (catalog.Group, error) {
	res := g.Resource
	if res == nil {
		res = &gseGroupResource{}
	}
	missing := cmp.Or(
		absent(g.ID == "", "id"), absent(g.Resource == nil, "resource"),
		absent(res.CPULimit == nil, "resource.cpu_pool_limit"), absent(res.MemoryLimit == nil, "resource.mem_pool_limit"),
		absent(res.CPUWeight == nil, "resource.cpu_pool_weight"), absent(res.MemoryWeight == nil, "resource.mem_pool_weight"),
	)
	if missing != "" {
		return catalog.Group{}, required(at + missing)
	}
	if !possibleKey(g.ID) {
		return catalog.Group{}, invalid(at+"id", "is longer than %d bytes, or has a NUL character in it", procfleet.MaxKey)
	}
	const noPercentage, noBit = "%v is not a percentage of 0 or more", "%d is neither 0 nor 1"
	switch at += "resource."; {
	case *res.CPULimit < 0:
		return catalog.Group{}, invalid(at+"cpu_pool_limit", noPercentage, *res.CPULimit)
	case *res.MemoryLimit < 0:
		return catalog.Group{}, invalid(at+"mem_pool_limit", noPercentage, *res.MemoryLimit)
	case *res.CPUWeight != 0 && *res.CPUWeight != 1:
		return catalog.Group{}, invalid(at+"cpu_pool_weight", noBit, *res.CPUWeight)
	case *res.MemoryWeight != 0 && *res.MemoryWeight != 1:
		return catalog.Group{}, invalid(at+"mem_pool_weight", noBit, *res.MemoryWeight)
	}
	return catalog.Group{
		ID: g.ID, CPULimit: *res.CPULimit, MemoryLimit: *res.MemoryLimit,
		CPUByLimit: *res.CPUWeight == 1, MemoryByLimit: *res.MemoryWeight == 1,
	}, nil
}

func gseGroupsSet(q *Grouping, outcomes []TargetOutcome, requestID string) Reply {
	return gseAnswer(gseTargetOutcomes(q.Targets, outcomes, q.Groups.Namespace), requestID)
}

type gseProcesses struct {
	Meta *gseMeta `json:"meta"`
	gseWhere
}

func decodeGetGroups(params *gseProcesses) (GroupQuery, error) {
	if missing := params.Meta.missingNamespace(); missing != "" {
		return GroupQuery{}, required(missing)
	}
	if err := params.Meta.validate(); err != nil {
		return GroupQuery{}, err
	}
	targets, err := params.asked(gseAddressAndSupplier)
	return GroupQuery{Namespace: params.Meta.Namespace, Targets: targets}, err
}

// gseGroupInfo is a process group on one host.
type gseGroupInfo struct {
	Meta     gseMetaInfo `json:"meta"`
	Host     gseHostInfo `json:"host"`
	ID       string      `json:"id"`
	Resource struct {
		CPULimit     float64 `json:"cpu_pool_limit"`
		MemoryLimit  float64 `json:"mem_pool_limit"`
		CPUWeight    int     `json:"cpu_pool_weight"`
		MemoryWeight int     `json:"mem_pool_weight"`
	} `json:"resource"`
}

func gseGroups(q *GroupQuery, found []TargetGroups, requestID string) Reply {
	data := struct {
		Infos []gseGroupInfo `json:"process_group_infos"` // never null
	}{Infos: []gseGroupInfo{}}
	for i := range found {
		on := &found[i].Groups
		for _, group := range on.Groups {
			info := gseGroupInfo{
				Meta: metaInfo(q.Namespace, on.Name, on.Labels),
				Host: hostAsked(q.Targets[i], found[i].Target.Host, true), ID: group.ID,
			}
			info.Resource.CPULimit, info.Resource.MemoryLimit = group.CPULimit, group.MemoryLimit
			info.Resource.CPUWeight, info.Resource.MemoryWeight = bit(group.CPUByLimit), bit(group.MemoryByLimit)
			data.Infos = append(data.Infos, info)
		}
	}
	return gseAnswer(data, requestID)
}

func bit(v bool) int {
	if v {
		return 1
	}
	return 0
}
