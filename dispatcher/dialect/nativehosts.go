package dialect

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// readTargets returns the targets of hosts and agent ids, hosts first; prefix is the
// path of both lists in the body.
func readTargets(hosts, ids []string, prefix string) ([]procfleet.Target, error) {
	parsed, err := parseHosts(hosts, prefix+"hosts")
	targets := slices.Grow([]procfleet.Target(nil), len(hosts)+len(ids))
	for _, host := range parsed {
		targets = append(targets, procfleet.Target{Host: host})
	}
	for i, id := range ids {
		if id == "" {
			return targets, errors.Join(err, invalid(prefix+"agents["+strconv.Itoa(i)+"]", "is empty"))
		}
	}
	agents, badAgents := agentTargets(ids, prefix+"agents")
	return append(targets, agents...), errors.Join(err, badAgents)
}

// someTargets returns the targets of a request that requires at least one and at most
// limit targets; 0 is no limit.
func someTargets(hosts, ids []string, limit int) ([]procfleet.Target, error) {
	targets, err := readTargets(hosts, ids, "")
	switch {
	case err != nil:
		return nil, err
	case len(targets) == 0:
		return nil, invalid("hosts", "is empty; name at least one host as <cloud area>:<ip>, for example 0:10.0.0.1")
	case limit > 0 && len(targets) > limit:
		return nil, invalid("hosts", "are %d together with agents, at most %d may be asked for at a time", len(targets), limit)
	}
	return targets, nil
}

type nativeTargets struct {
	v1.Targets
	Hosts []string `json:"hosts"`
}

func decodeAgentQuery(params *nativeTargets) (AgentQuery, error) {
	targets, err := someTargets(params.Hosts, params.Agents, maxPage)
	return AgentQuery{Business: params.Business, Targets: targets}, errors.Join(tooLong("business", params.Business, procfleet.MaxKey), err)
}

func nativeShowAgents(_ *AgentQuery, found []TargetAgent, _ string) Reply {
	list := v1.AgentList{Agents: make([]v1.HostAgent, 0, len(found))}
	for _, f := range found {
		list.Agents = append(list.Agents, v1.HostAgent{Host: f.Target.Host, AgentID: f.Target.AgentID, Agent: f.Agent})
	}
	return ok(list)
}

type nativeBindings struct {
	v1.BindRequest
	Bindings []struct {
		v1.AgentName
		Host string `json:"host"`
	} `json:"bindings"`
}

func decodeAgentBinding(params *nativeBindings) (AgentBinding, error) {
	errs := []error{tooLong("business", params.Business, procfleet.MaxKey)}
	if len(params.Bindings) == 0 {
		errs = append(errs, required("bindings"))
	}
	q := AgentBinding{Business: params.Business, Targets: make([]procfleet.Target, 0, len(params.Bindings))}
	for i, b := range params.Bindings {
		at := "bindings[" + strconv.Itoa(i) + "]."
		host, err := procfleet.ParseHost(b.Host)
		if err != nil {
			errs = append(errs, invalid(at+"host", "%s", err.Error()))
		}
		if b.AgentID == "" || len(b.AgentID) > procfleet.MaxKey || strings.ContainsRune(b.AgentID, 0) {
			errs = append(errs, invalid(at+"agent_id", "is not an agent id"))
		}
		if len(errs) > maxProblems+1 {
			break
		}
		q.Targets = append(q.Targets, procfleet.Target{Host: host, AgentID: b.AgentID})
	}
	return q, errors.Join(errs...)
}

func nativeBound(q *AgentBinding, bound []bool, _ string) Reply {
	list := v1.BindingList{Results: make([]v1.Binding, 0, len(bound))}
	for i, t := range q.Targets[:len(bound)] {
		list.Results = append(list.Results, v1.Binding{Host: t.Host, AgentID: t.AgentID, Bound: bound[i]})
	}
	return ok(list)
}

// maxGroups is the maximum number of groups of a namespace on a host.
const maxGroups = 1000

type nativeGrouping struct {
	v1.GroupsRequest
	Hosts []string `json:"hosts"`
}

// decodeNativeGroups requires the member groups: an empty list removes the groups of the
// namespace, which an omitted member must not do.
func decodeNativeGroups(params *nativeGrouping) (Grouping, error) {
	q := Grouping{Business: params.Business, Groups: catalog.HostGroups{
		Namespace: params.Namespace, Name: params.Name, Labels: params.Labels, Groups: make([]catalog.Group, len(params.Groups)),
	}}
	for i, g := range params.Groups {
		q.Groups.Groups[i] = catalog.Group(g)
	}
	errs := []error{checkNamespace(params.Namespace, params.Business)}
	if params.Groups == nil {
		errs = append(errs, invalid("groups", "This field is required; an empty list removes the groups of the namespace."))
	}
	var err error
	q.Targets, err = someTargets(params.Hosts, params.Agents, 0)
	return q, errors.Join(append(errs, checkGroups(&q.Groups), err)...)
}

type nativeLabels struct {
	v1.LabelsRequest
	Hosts []string `json:"hosts"`
}

func decodeLabelChange(params *nativeLabels) (LabelChange, error) {
	q := LabelChange{Business: params.Business, Labels: catalog.Labeling{Set: params.Set, Remove: params.Remove}}
	var err error
	q.Targets, err = someTargets(params.Hosts, params.Agents, 0)
	return q, errors.Join(tooLong("business", params.Business, procfleet.MaxKey), q.Labels.Validate(), err)
}

// checkGroups validates the groups of a namespace. Errors name the fields of the native
// API.
func checkGroups(g *catalog.HostGroups) error {
	s := procfleet.DefaultSpec()
	s.Name, s.Labels = g.Name, g.Labels
	errs := []error{s.ValidateBounds()}
	if len(g.Groups) > maxGroups {
		errs = append(errs, &procfleet.FieldError{Field: "groups", Problem: "are more than " + strconv.Itoa(maxGroups)})
	}
	seen := make(map[string]bool, len(g.Groups))
	for i := range g.Groups {
		group, at := &g.Groups[i], "groups["+strconv.Itoa(i)+"]"
		wrong := func(field, problem string) {
			errs = append(errs, &procfleet.FieldError{Field: at + "." + field, Problem: problem})
		}
		switch {
		case group.ID == "":
			wrong("id", "is required")
		case seen[group.ID]:
			wrong("id", "is the id of a group before it")
		}
		seen[group.ID] = true
		errs = append(errs, tooLong(at+".id", group.ID, procfleet.MaxKey))
		if group.CPULimit < 0 {
			wrong("cpu_limit", "is not a percentage of 0 or more")
		}
		if group.MemoryLimit < 0 {
			wrong("memory_limit", "is not a percentage of 0 or more")
		}
	}
	return errors.Join(errs...)
}

type nativeGroupQuery struct {
	v1.GroupsQuery
	Hosts []string `json:"hosts"`
}

func decodeGroupQuery(params *nativeGroupQuery) (GroupQuery, error) {
	q := GroupQuery{Business: params.Business, Namespace: params.Namespace}
	var err error
	q.Targets, err = someTargets(params.Hosts, params.Agents, maxPage)
	return q, errors.Join(checkNamespace(q.Namespace, q.Business), err)
}

func nativeShowGroups(q *GroupQuery, found []TargetGroups, _ string) Reply {
	list := v1.HostGroupsList{Hosts: make([]v1.HostGroups, len(found))}
	for i := range found {
		t, g := found[i].Target, &found[i].Groups
		list.Hosts[i] = v1.HostGroups{Host: t.Host, AgentID: t.AgentID, Grouping: v1.Grouping{
			Namespace: q.Namespace, Name: g.Name, Labels: g.Labels, Groups: make([]v1.Group, len(g.Groups)),
		}}
		for j, group := range g.Groups {
			list.Hosts[i].Groups[j] = v1.Group(group)
		}
	}
	return ok(list)
}
