package dialect

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// maxGroups is the most groups that a namespace may have on a host.
const maxGroups = 1000

// decodeNativeGroups wants groups to be there: an empty list takes those of
// the namespace away, and nobody should do that by leaving something out.
func decodeNativeGroups(r *Request) (Grouping, error) {
	var params struct {
		nativeTargets
		Namespace string                     `json:"namespace"`
		Name      string                     `json:"name"`
		Labels    map[string]json.RawMessage `json:"labels"`
		Groups    []catalog.Group            `json:"groups"`
		Business  string                     `json:"business"`
	}
	if err := decodeNativeBody(r, &params); err != nil {
		return Grouping{}, err
	}
	q := Grouping{Business: params.Business, Groups: catalog.HostGroups{
		Namespace: params.Namespace, Name: params.Name, Labels: params.Labels, Groups: params.Groups,
	}}
	if err := checkNamespace(params.Namespace, params.Business); err != nil {
		return Grouping{}, err
	}
	if params.Groups == nil {
		return Grouping{}, invalid("groups", "This field is required; an empty list takes the groups of the namespace away.")
	}
	if err := checkGroups(&q.Groups); err != nil {
		return Grouping{}, refused(err, same)
	}
	var err error
	q.Targets, err = params.some(0)
	return q, err
}

// checkGroups checks the bounds of what goes with a namespace's groups, in
// the words of the native API.
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

func nativeGrouped(_ *Grouping, outcomes []TargetOutcome, _ string) Reply {
	return nativeOutcomes(outcomes)
}

func decodeGroupQuery(r *Request) (GroupQuery, error) {
	var params struct {
		nativeTargets
		Namespace string `json:"namespace"`
		Business  string `json:"business"`
	}
	if err := decodeNativeBody(r, &params); err != nil {
		return GroupQuery{}, err
	}
	q := GroupQuery{Business: params.Business, Namespace: params.Namespace}
	if err := checkNamespace(q.Namespace, q.Business); err != nil {
		return GroupQuery{}, err
	}
	var err error
	q.Targets, err = params.some(maxPage)
	return q, err
}

// nativeHostGroups are the groups of a namespace on one host.
type nativeHostGroups struct {
	nativeTarget
	Namespace string                     `json:"namespace"`
	Name      string                     `json:"name,omitempty"`
	Labels    map[string]json.RawMessage `json:"labels,omitempty"`
	Groups    []catalog.Group            `json:"groups"` // empty if there are none
}

func nativeShowGroups(q *GroupQuery, found []TargetGroups, _ string) Reply {
	hosts := make([]nativeHostGroups, 0, len(found))
	for i := range found {
		g := &found[i].Groups
		n := nativeHostGroups{newNativeTarget(found[i].Target), q.Namespace, g.Name, g.Labels, g.Groups}
		if n.Groups == nil {
			n.Groups = []catalog.Group{}
		}
		hosts = append(hosts, n)
	}
	return Reply{Status: http.StatusOK, Body: struct {
		Hosts []nativeHostGroups `json:"hosts"`
	}{hosts}}
}
