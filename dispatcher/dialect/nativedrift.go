package dialect

import (
	"net/http"
	"strconv"

	"github.com/procfleet/procfleet/catalog"
)

// driftHosts is how many hosts are listed unless the caller says otherwise.
const driftHosts = 1000

func decodeDriftQuery(r *Request) (DriftQuery, error) {
	b, err := nativeBusiness(r)
	if err != nil {
		return DriftQuery{}, err
	}
	q := DriftQuery{Business: b, Modules: r.Query["module"], Limit: driftHosts}
	if q.ID, err = strconv.ParseInt(r.ID, 10, 64); err != nil || q.ID < 1 {
		return DriftQuery{}, invalid("id", "is not the id of a process, a number of 1 or more")
	}
	if len(q.Modules) > catalog.MaxBound {
		return DriftQuery{}, invalid("module", "is there more than %d times", catalog.MaxBound)
	}
	if text := r.Query.Get("limit"); text != "" {
		if q.Limit, err = strconv.Atoi(text); err != nil || q.Limit < 0 {
			return DriftQuery{}, invalid("limit", "is not a number of 0 or more")
		}
	}
	return q, nil
}

// nativeModuleDrift is how a process stands in one module, as callers see it.
type nativeModuleDrift struct {
	Set    string             `json:"set"`
	Module string             `json:"module"`
	Total  int                `json:"total"`
	Counts map[DriftState]int `json:"counts"` // every state
}

// nativeHostDrift is how a process stands on one host, as callers see it.
type nativeHostDrift struct {
	Host     string          `json:"host"`
	AgentID  string          `json:"agent_id,omitempty"`
	Modules  []string        `json:"modules"`
	State    DriftState      `json:"state"`
	Remarks  []DriftState    `json:"remarks"`
	Reported *nativeReported `json:"reported"` // null if no agent reported it
}

func nativeDrift(_ *DriftQuery, d *Drift, _ string) Reply {
	answer := struct {
		ID        int64               `json:"id"`
		Namespace string              `json:"namespace"`
		Name      string              `json:"name"`
		Total     int                 `json:"total"`
		Counts    map[DriftState]int  `json:"counts"` // every state
		Modules   []nativeModuleDrift `json:"modules"`
		Missing   []string            `json:"missing_modules"`
		Elsewhere []string            `json:"elsewhere"`
		Hosts     []nativeHostDrift   `json:"hosts"`
	}{
		ID: d.ID, Namespace: d.Process.Namespace, Name: d.Process.Name, Total: d.Total, Counts: everyState(d.Counts),
		Modules: make([]nativeModuleDrift, len(d.Modules)), Missing: append([]string{}, d.Missing...),
		Elsewhere: make([]string, len(d.Elsewhere)), Hosts: make([]nativeHostDrift, len(d.Hosts)),
	}
	for i, m := range d.Modules {
		answer.Modules[i] = nativeModuleDrift{m.Set, m.Module, m.Hosts, everyState(m.Counts)}
	}
	for i, h := range d.Elsewhere {
		answer.Elsewhere[i] = h.String()
	}
	for i := range d.Hosts {
		answer.Hosts[i] = newNativeHostDrift(&d.Hosts[i])
	}
	return Reply{Status: http.StatusOK, Body: answer}
}

func everyState(counts map[DriftState]int) map[DriftState]int {
	all := make(map[DriftState]int)
	for _, state := range DriftStates() {
		all[state] = counts[state]
	}
	return all
}

func newNativeHostDrift(h *HostDrift) nativeHostDrift {
	n := nativeHostDrift{
		Host: h.Host.String(), AgentID: h.AgentID, Modules: h.Modules, State: h.State(), Remarks: append([]DriftState{}, h.Remarks...),
	}
	if r := h.Reported; r != nil {
		n.Reported = &nativeReported{r.ProcName, r.Desired, r.Status, h.ReportedAt}
	}
	return n
}
