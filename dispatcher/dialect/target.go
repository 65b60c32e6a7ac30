package dialect

import (
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
)

// addressTarget returns the target for a cloud area and an address; list and i are its
// place in the body. Without an address the target has no host, and its items end as
// unreachable under the key "<cloud>:".
func addressTarget(cloud *int64, ip, list string, i int) (procfleet.Target, error) {
	at := func(name string) string { return list + "[" + strconv.Itoa(i) + "]." + name }
	switch {
	case cloud == nil:
		return procfleet.Target{}, required(at("bk_cloud_id"))
	case *cloud < 0:
		return procfleet.Target{}, invalid(at("bk_cloud_id"), "%d is negative", *cloud)
	case ip == "":
		return procfleet.Target{Label: strconv.FormatInt(*cloud, 10) + ":"}, nil
	}
	host, err := procfleet.NewHost(procfleet.CloudArea(*cloud), ip)
	if err != nil {
		return procfleet.Target{}, invalid(at("ip"), "%s", err.Error())
	}
	return labelled(host, strconv.FormatInt(*cloud, 10)+":"+ip), nil
}

// labelled returns the target for a host that the caller writes as label.
func labelled(host procfleet.Host, label string) procfleet.Target {
	t := procfleet.Target{Host: host}
	if label != host.String() {
		t.Label = label
	}
	return t
}

// agentTargets returns the targets of agent ids. The id "<cloud area>:<ip>" is an alias of
// that host.
func agentTargets(ids []string, field string) ([]procfleet.Target, error) {
	targets := make([]procfleet.Target, 0, len(ids))
	for i, id := range ids {
		if !possibleKey(id) {
			return nil, invalid(field+"["+strconv.Itoa(i)+"]", "is not an agent id")
		}
		if host, err := procfleet.ParseHost(id); err == nil {
			targets = append(targets, labelled(host, id))
			continue
		}
		targets = append(targets, procfleet.Target{AgentID: id, Label: id})
	}
	return targets, nil
}

// possibleKey reports whether id is valid as the id of an agent or a group.
func possibleKey(id string) bool {
	return len(id) <= procfleet.MaxKey && !strings.ContainsRune(id, 0)
}
