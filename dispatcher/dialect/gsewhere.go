package dialect

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
)

// gseMeta identifies the process of a request.
type gseMeta struct {
	Namespace string                     `json:"namespace"`
	Name      string                     `json:"name"`
	Labels    map[string]json.RawMessage `json:"labels"`
}

// missing returns the first member of the process's identity that is absent.
func (m *gseMeta) missing() string {
	return cmp.Or(m.missingNamespace(), absent(m != nil && m.Name == "", "meta.name"))
}

func (m *gseMeta) missingNamespace() string {
	return cmp.Or(absent(m == nil, "meta"), absent(m != nil && m.Namespace == "", "meta.namespace"))
}

// process returns the process of a call without a spec.
func (m *gseMeta) process() (procfleet.ProcessSpec, error) {
	if missing := m.missing(); missing != "" {
		return procfleet.ProcessSpec{}, required(missing)
	}
	process := procfleet.ProcessSpec{Namespace: m.Namespace, Name: m.Name}
	if err := process.ValidateIdentity(); err != nil {
		return procfleet.ProcessSpec{}, refused(err, metaField)
	}
	return process, nil
}

func (m *gseMeta) validate() error {
	s := procfleet.DefaultSpec()
	s.Namespace, s.Name, s.Labels = m.Namespace, m.Name, m.Labels
	if err := s.ValidateBounds(); err != nil {
		return refused(err, metaField)
	}
	return nil
}

func metaField(field string) string { return gseField(field, "") }

func absent(is bool, field string) string {
	if is {
		return field
	}
	return ""
}

// gseWhere is the hosts of a request. If both lists are present, agent_id_list counts.
type gseWhere struct {
	Hosts  []gseHost `json:"hosts"`
	Agents []string  `json:"agent_id_list"`
}

type gseHost struct {
	IP         string `json:"ip"`
	CloudID    *int64 `json:"bk_cloud_id"`
	SupplierID int64  `json:"bk_supplier_id"`
	AgentID    string `json:"bk_agent_id"`
}

// gseAddress and gseAddressAndSupplier write a host with a cloud area as a key:
// <cloud area>:<ip>, or <cloud>:<supplier>:<ip>.
func gseAddress(h *gseHost) string { return strconv.FormatInt(*h.CloudID, 10) + ":" + h.IP }

func gseAddressAndSupplier(h *gseHost) string {
	return strconv.FormatInt(*h.CloudID, 10) + ":" + strconv.FormatInt(h.SupplierID, 10) + ":" + h.IP
}

// nowhere returns the name of the missing field if the request has no host.
func (w *gseWhere) nowhere() string { return absent(len(w.Hosts) == 0 && len(w.Agents) == 0, "hosts") }

// where returns the targets of a call that requires at least one.
func (w *gseWhere) where(write func(*gseHost) string) ([]procfleet.Target, error) {
	if missing := w.nowhere(); missing != "" {
		return nil, required(missing)
	}
	return w.targets("", write)
}

// targets returns the hosts as targets; write returns the key of a host, and prefix is
// the path of the lists in the body.
func (w *gseWhere) targets(prefix string, write func(*gseHost) string) ([]procfleet.Target, error) {
	if len(w.Agents) > 0 {
		return agentTargets(w.Agents, prefix+"agent_id_list")
	}
	targets := make([]procfleet.Target, 0, len(w.Hosts))
	for i := range w.Hosts {
		h := &w.Hosts[i]
		t, err := addressTarget(h.CloudID, h.IP, prefix+"hosts", i)
		if err != nil {
			return nil, err
		}
		if t.Host.IsZero() {
			if t.AgentID = h.AgentID; !possibleKey(h.AgentID) {
				return nil, invalid(prefix+"hosts["+strconv.Itoa(i)+"].bk_agent_id", "is not an agent id")
			}
		}
		if t.Label = write(h); t.Label == t.Host.String() {
			t.Label = ""
		}
		targets = append(targets, t)
	}
	return targets, nil
}

// asked returns the targets of a query. A target that the caller named by agent id keeps
// the id even if it is the alias of an address, because the response repeats it.
func (w *gseWhere) asked(write func(*gseHost) string) ([]procfleet.Target, error) {
	targets, err := w.where(write)
	if err != nil {
		return nil, err
	}
	for i := range w.Agents {
		targets[i].AgentID = w.Agents[i]
	}
	return targets, nil
}

// gseHostInfo is the host in a response.
type gseHostInfo struct {
	IP         string              `json:"ip"`
	CloudID    procfleet.CloudArea `json:"bk_cloud_id"`
	SupplierID *int64              `json:"bk_supplier_id,omitempty"`
}

// hostAsked returns a host as the caller wrote it, with bk_supplier_id if supplier is
// set; host is the host that the dispatcher found for the target.
func hostAsked(t procfleet.Target, host procfleet.Host, supplier bool) gseHostInfo {
	h := gseHostInfo{CloudID: host.Cloud}
	if !host.IsZero() {
		h.IP = host.Addr.String()
	}
	if supplier {
		h.SupplierID = new(int64)
	}
	cloud, ip, _ := strings.Cut(t.Key(), ":")
	switch byAgent := byAgentID(t); {
	case byAgent && t.Host.IsZero():
		return h
	case !byAgent && supplier:
		var id string
		id, ip, _ = strings.Cut(ip, ":")
		*h.SupplierID, _ = strconv.ParseInt(id, 10, 64) // valid: gseAddressAndSupplier wrote it
	}
	area, _ := strconv.ParseInt(cloud, 10, 64) // valid: a key of this package, or the alias of a host
	h.CloudID, h.IP = procfleet.CloudArea(area), cmp.Or(ip, h.IP)
	return h
}

// byAgentID reports whether the caller named the target in agent_id_list.
func byAgentID(t procfleet.Target) bool {
	return t.AgentID != "" && (t.Label == "" || t.Label == t.AgentID)
}
