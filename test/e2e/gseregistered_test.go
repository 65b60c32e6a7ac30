//go:build linux

package e2e

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// procInfo has the fields that clients read of a process's state.
type procInfo struct {
	Meta struct {
		Name string `json:"name"`
	} `json:"meta"`
	Host struct {
		IP       string `json:"ip"`
		Cloud    *int   `json:"bk_cloud_id"`
		Supplier *int   `json:"bk_supplier_id"`
	} `json:"host"`
	AgentID *string `json:"bk_agent_id"`
	Flag    int     `json:"flag"`
	Status  int     `json:"status"`
	IsAuto  *bool   `json:"isauto"`
	PID     int     `json:"pid"`
	Version string  `json:"version"`
}

// processState has the fields that change.
type processState struct {
	flag, status, pid int
	auto              bool
}

// oldNodeman is bk-nodeman's GseClient: paths without a version, suppliers, and a
// spec that update_proc_info registers.
type oldNodeman struct {
	*gseClient
	p     proc
	hosts []map[string]any
}

func (c *oldNodeman) call(name string, members map[string]any, into any) {
	c.t.Helper()
	body := map[string]any{
		"meta":  map[string]any{"labels": map[string]any{"proc_name": c.p.name}, "namespace": "e2e", "name": c.p.name},
		"hosts": c.hosts,
	}
	maps.Copy(body, members)
	c.ask(http.MethodPost, "/api/c/compapi/gse/"+name+"/", body, into)
}

// outcome sends a request whose response contains the outcomes, and parses the key
// like bk-nodeman.
func (c *oldNodeman) outcome(name string, members map[string]any) int {
	c.t.Helper()
	var entries map[string]gseEntry
	c.call(name, members, &entries)
	for key, e := range entries {
		if parts := strings.SplitN(key, ":", 4); len(entries) != 1 || len(parts) != 4 || parts[0] != "0" || parts[1] != "0" || parts[2] != "127.0.0.1" {
			c.t.Fatalf("%s: %v", name, entries)
		}
		return e.Code
	}
	c.t.Fatalf("%s: no outcome", name)
	return 0
}

// operates returns the outcome of one op_type.
func (c *oldNodeman) operates(opType int) gseEntry {
	c.t.Helper()
	key := "0:0:127.0.0.1:e2e:" + c.p.name
	_, entries := c.do(map[string]any{
		"meta": map[string]any{"namespace": "e2e", "name": c.p.name}, "hosts": c.hosts, "op_type": opType,
	}, key)
	return entries[key]
}

// stands waits until the process has the wanted state.
func (c *oldNodeman) stands(want func() processState, what string) {
	c.t.Helper()
	var got []procInfo
	testenv.Eventually(c.t, finishTimeout, func() bool {
		var data struct {
			Infos []procInfo `json:"proc_infos"`
		}
		c.call("get_proc_status", nil, &data)
		if got = data.Infos; len(got) != 1 {
			return false
		}
		i := &got[0]
		if i.IsAuto == nil || i.AgentID == nil || i.Host.Cloud == nil || i.Host.Supplier == nil || i.Host.IP != "127.0.0.1" || i.Meta.Name != c.p.name {
			c.t.Fatalf("%s: a member is missing: %+v", what, *i)
		}
		return processState{flag: i.Flag, status: i.Status, pid: i.PID, auto: *i.IsAuto} == want()
	}, what)
}

// TestOldNodemanOperatesWhatItRegistered registers the spec before any operation.
// Every outcome must have a key with a supplier, and queries must show each state
// of the process.
func TestOldNodemanOperatesWhatItRegistered(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	p := newProcs(t).new("0:127.0.0.1", "registered")
	c := &oldNodeman{
		gseClient: u.gseAs("bk_nodeman", "/api/c/compapi/gse/operate_proc/", http.MethodPost, "/api/c/compapi/gse/get_proc_operate_result/"),
		p:         p, hosts: []map[string]any{{"ip": "127.0.0.1", "bk_supplier_id": 0, "bk_cloud_id": 0}},
	}
	spec := with(gseOperation(p, 0), nil, "monitor_policy")["spec"].(map[string]any)
	spec["resource"] = map[string]any{}

	if e := c.operates(0); e.Code != 65535 || !strings.Contains(e.Message, "not registered") {
		t.Errorf("start of an unregistered process: %+v", e)
	}
	if e := c.operates(1); e.Code != 829 {
		t.Errorf("stop of an unregistered process: %+v, want 829", e)
	}
	if code := c.outcome("update_proc_info", map[string]any{"spec": spec}); code != 0 {
		t.Fatalf("update_proc_info registers: %d", code)
	}
	if code := c.outcome("register_proc_info", map[string]any{"spec": spec}); code != 850 {
		t.Errorf("register_proc_info again: %d, want 850", code)
	}
	c.stands(func() processState { return processState{pid: -1} }, "it is only registered")

	if e := c.operates(0); e.Code != 0 || p.pid() == 0 {
		t.Fatalf("start: %+v, pid %d", e, p.pid())
	}
	c.stands(func() processState { return processState{1, 1, p.pid(), true} }, "it runs, supervised")
	if e := c.operates(4); e.Code != 0 {
		t.Errorf("release: %+v", e)
	}
	c.stands(func() processState { return processState{0, 1, p.pid(), false} }, "it runs, released")
	if e := c.operates(3); e.Code != 0 {
		t.Errorf("supervise: %+v", e)
	}
	checkContent(t, c.operates(2), p.pid())
	if e := c.operates(1); e.Code != 0 || len(p.running()) != 0 {
		t.Errorf("stop: %+v, %v run", e, p.running())
	}
	c.stands(func() processState { return processState{2, 2, -1, false} }, "it was stopped")
	if e := c.operates(1); e.Code != 829 {
		t.Errorf("stop again: %+v, want 829", e)
	}

	// bk-cmdb 3.2 omits zero values, and never names hosts.
	key := "0:0:127.0.0.1:e2e:" + p.name
	_, entries := c.do(map[string]any{"meta": map[string]any{"namespace": "e2e", "name": p.name}}, key)
	if e := entries[key]; e.Code != 0 || p.pid() == 0 {
		t.Errorf("bk-cmdb starts: %+v, pid %d", e, p.pid())
	}

	before := p.pid()
	if code := c.outcome("unregister_proc_info", nil); code != 0 {
		t.Errorf("unregister: %d", code)
	}
	c.stands(func() processState { return processState{0, 1, before, false} }, "it runs, and nobody keeps it alive")
	if p.pid() != before || before == 0 {
		t.Errorf("unregistering changed pid %d to %d", before, p.pid())
	}
	if code := c.outcome("unregister_proc_info", nil); code != 829 {
		t.Errorf("unregister again: %d, want 829", code)
	}
}

// TestNodemanQueriesAgents queries agents like both generations of bk-nodeman: by
// address, and by agent ids, of which some are addresses.
func TestNodemanQueriesAgents(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	testenv.Eventually(t, startTimeout, func() bool { return len(u.c.hosts()) == 1 }, "the agent is listed")
	c := u.gseAs("bk_nodeman", "", "", "")
	hosts := map[string]any{"hosts": []map[string]any{{"ip": "127.0.0.1", "bk_cloud_id": 0}, {"ip": "10.99.0.1", "bk_cloud_id": 0}}}
	var status map[string]struct {
		Alive *int `json:"bk_agent_alive"`
	}
	c.ask(http.MethodPost, "/api/c/compapi/v2/gse/get_agent_status/", hosts, &status)
	live, gone := status["0:127.0.0.1"].Alive, status["0:10.99.0.1"].Alive
	if len(status) != 2 || live == nil || *live != 1 || gone == nil || *gone != 0 {
		t.Errorf("get_agent_status: %v", status)
	}
	var info map[string]struct {
		IP      string  `json:"ip"`
		Version *string `json:"version"`
	}
	c.ask(http.MethodPost, "/api/c/compapi/v2/gse/get_agent_info/", hosts, &info)
	if i := info["0:127.0.0.1"]; len(info) != 2 || i.IP != "127.0.0.1" || i.Version == nil {
		t.Errorf("get_agent_info: %v", info)
	}

	const state = "/api/bk-gse/prod/api/v2/cluster/list_agent_state/"
	var states []struct {
		AgentID string `json:"bk_agent_id"`
		Status  int    `json:"status_code"`
	}
	c.ask(http.MethodPost, state, map[string]any{"agent_id_list": []string{"0:127.0.0.1", "nobody"}}, &states)
	if len(states) != 2 || states[0].AgentID != "0:127.0.0.1" || states[0].Status != 2 || states[1].AgentID != "nobody" || states[1].Status != -2 {
		t.Errorf("list_agent_state: %+v", states)
	}
	_, text, _ := c.call(http.MethodPost, state, "", map[string]any{"agent_id_list": []string{"nobody"}})
	var none struct {
		Result *bool `json:"result"`
		Code   int   `json:"code"`
	}
	if err := json.Unmarshal(text, &none); err != nil || none.Result == nil || *none.Result || none.Code != 1011003 {
		t.Errorf("list_agent_state of an unknown agent: %s", text)
	}
}
