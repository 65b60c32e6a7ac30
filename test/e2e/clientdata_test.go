//go:build linux

package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"
)

// clientData is the data that clients stored in a system of one host, and that must exist
// after its processes were killed.
type clientData struct {
	t       *testing.T
	url     string
	ip      string
	p       proc   // started with its registered spec
	agentID string // bound to the host
	task    string // task of the start
}

const keptNamespace = "kept"

func (k *clientData) esb(operate, result string) *gseClient {
	k.t.Helper()
	return gseAt(k.t, k.url, gseESB, operate, result)
}

func (k *clientData) first() *gseClient { return k.esb("operate_proc/", "get_proc_operate_result/") }

// about returns a request about one process on the host.
func (k *clientData) about(name string, members ...any) map[string]any {
	body := map[string]any{"meta": map[string]any{"namespace": keptNamespace, "name": name}, "hosts": hostsV1(k.ip)}
	for i := 0; i < len(members); i += 2 {
		body[members[i].(string)] = members[i+1]
	}
	return body
}

func (k *clientData) key(name string) string { return "0:0:" + k.ip + ":" + keptNamespace + ":" + name }

func (k *clientData) spec() map[string]any {
	return map[string]any{
		"identity": k.p.identity(), "control": k.p.commands(), "resource": map[string]any{"cpu": 0, "mem": 0},
		"monitor_policy": map[string]any{"auto_type": 1, "start_check_secs": 1, "op_timeout": 20},
	}
}

// register registers one name and returns the code of the outcome.
func (k *clientData) register(name string) int {
	k.t.Helper()
	var entries map[string]gseEntry
	k.first().ask(http.MethodPost, gseESB+"register_proc_info/", k.about(name, "spec", k.spec()), &entries)
	entry, ok := entries[k.key(name)]
	if !ok || len(entries) != 1 {
		k.t.Fatalf("register_proc_info: %+v", entries)
	}
	return entry.Code
}

// store registers two processes, starts one of them, sets a group, and binds an
// agent id.
func (k *clientData) store() {
	k.t.Helper()
	c := k.first()
	for _, name := range []string{"idle", k.p.name} {
		if code := k.register(name); code != 0 {
			k.t.Fatalf("register_proc_info: %d", code)
		}
	}
	var grouped map[string]gseEntry
	c.ask(http.MethodPost, gseESB+"set_process_group_info/", k.about("", "spec", map[string]any{"process_group": []any{map[string]any{
		"id": "heavy", "resource": map[string]any{"cpu_pool_limit": 30.5, "mem_pool_limit": 20, "cpu_pool_weight": 0, "mem_pool_weight": 1},
	}}}), &grouped)
	if entry, ok := grouped["0:0:"+k.ip+":"+keptNamespace]; !ok || entry.Code != 0 || len(grouped) != 1 {
		k.t.Fatalf("set_process_group_info: %+v", grouped)
	}
	var bound struct{ Success []string }
	c.ask(http.MethodPost, gseGateway+"proc/upgrade_to_agent_id", map[string]any{
		"hosts": []any{map[string]any{"ip": k.ip, "bk_cloud_id": 0, "bk_agent_id": k.agentID}},
	}, &bound)
	if !slices.Equal(bound.Success, []string{"0:" + k.ip}) {
		k.t.Fatalf("upgrade_to_agent_id: %+v", bound)
	}
	var entries map[string]gseEntry
	k.task, entries = c.do(k.about(k.p.name, "op_type", 0), k.key(k.p.name))
	if entry := entries[k.key(k.p.name)]; entry.Code != 0 || k.p.pid() == 0 {
		k.t.Fatalf("start: %+v, pid %d", entry, k.p.pid())
	}
	k.shown(processState{1, 1, k.p.pid(), true})
}

func (k *clientData) shown(want processState) {
	k.t.Helper()
	k.first().waitShown(gseESB+"get_proc_status/", k.about(k.p.name), func() processState { return want },
		fmt.Sprintf("%s is shown as %+v", k.p.name, want))
}

// check verifies that all of this data exists.
func (k *clientData) check(pid int) {
	k.t.Helper()
	c := k.first()
	k.shown(processState{1, 1, pid, true})
	if k.p.pid() != pid || k.p.starts() != 1 {
		k.t.Errorf("pid %d after %d starts, want %d after one", k.p.pid(), k.p.starts(), pid)
	}
	if entry := c.poll(k.task)[k.key(k.p.name)]; entry.Code != 0 || entry.Message != "success" {
		k.t.Errorf("the start's outcome is %+v", entry)
	}
	for _, name := range []string{"idle", k.p.name} {
		if code := k.register(name); code != 850 {
			k.t.Errorf("register_proc_info of a registered process: %d, want 850", code)
		}
	}
	names := []string{}
	for _, i := range c.infos(gseESB+"sync_proc_status/", map[string]any{
		"meta": map[string]any{"namespace": keptNamespace}, "page": map[string]any{"start": 0, "limit": 500},
	}) {
		names = append(names, i.Meta.Name)
	}
	if slices.Sort(names); !slices.Equal(names, []string{"idle", k.p.name}) {
		k.t.Errorf("sync_proc_status has %q", names)
	}
	var groups struct {
		Infos []struct {
			ID       string             `json:"id"`
			Resource map[string]float64 `json:"resource"`
		} `json:"process_group_infos"`
	}
	c.ask(http.MethodPost, gseESB+"get_process_group_info/", k.about(""), &groups)
	if g := groups.Infos; len(g) != 1 || g[0].ID != "heavy" || g[0].Resource["cpu_pool_limit"] != 30.5 || g[0].Resource["mem_pool_weight"] != 1 {
		k.t.Errorf("get_process_group_info: %+v", g)
	}
	byID := map[string]any{"meta": map[string]any{"namespace": keptNamespace, "name": k.p.name}, "agent_id_list": []string{k.agentID}}
	if found := c.infos(gseGateway+"proc/get_proc_status_v2", byID); len(found) != 1 || *found[0].AgentID != k.agentID || found[0].Host.IP != k.ip {
		k.t.Errorf("query by the bound agent id: %+v", found)
	}
}

// operates continues to operate the process, with each family of GSE's paths.
func (k *clientData) operates() {
	k.t.Helper()
	item := func(opType int, where map[string]any) map[string]any {
		item := map[string]any{"meta": map[string]any{"namespace": keptNamespace, "name": k.p.name}, "op_type": opType, "spec": k.spec()}
		maps.Copy(item, where)
		return item
	}
	gateway := gseAt(k.t, k.url, gseGateway, "proc/operate_proc_multi", "proc/get_proc_operate_result_v2")
	key := k.agentID + ":" + keptNamespace + ":" + k.p.name
	before := k.p.pid()
	if entry := gateway.one(key, multi(item(7, map[string]any{"agent_id_list": []string{k.agentID}}))); entry.Code != 0 || k.p.pid() == before || k.p.pid() == 0 {
		k.t.Errorf("restart through the gateway: %+v, pid %d after %d", entry, k.p.pid(), before)
	}
	k.shown(processState{1, 1, k.p.pid(), true})

	backend := &gseClient{
		client:  &client{t: k.t, url: k.url, header: http.Header{"Bk-Username": {"admin"}, "Bk-App-Code": {"gsekit"}}},
		operate: gseBackend + "v1/proc/operate", result: gseBackend + "v1/proc/operate", resultMethod: http.MethodGet,
	}
	if pid, isAuto := backend.one(k.key(k.p.name), k.about(k.p.name, "op_type", 2)).instance(k.t); pid != k.p.pid() || !isAuto {
		k.t.Errorf("the status behind an ESB has pid %d, isAuto %t; it runs as %d", pid, isAuto, k.p.pid())
	}

	newer := k.esb("operate_proc_multi/", "get_proc_operate_result_v2/")
	key = "0:" + k.ip + ":" + keptNamespace + ":" + k.p.name
	if entry := newer.one(key, multi(item(1, map[string]any{"hosts": hostsV2(k.ip)}))); entry.Code != 0 || len(k.p.running()) != 0 {
		k.t.Errorf("stop through the ESB: %+v, %v run", entry, k.p.running())
	}
	k.shown(processState{2, 2, -1, false})
}

// TestClientDataSurvivesUp kills `up`. Its next agent must adopt the process.
func TestClientDataSurvivesUp(t *testing.T) {
	t.Parallel()
	procs, u := newProcs(t), newUp(t)
	u.start()
	k := &clientData{t: t, url: u.c.url, ip: "127.0.0.1", agentID: "agent of up", p: procs.new("0:127.0.0.1", "kept")}
	k.store()
	pid := k.p.pid()
	u.child.Kill()
	u.start()
	k.check(pid)
	k.operates()
}

// TestClientDataSurvivesTheRoles kills dispatcher and worker. Queries must
// return reported states before a new worker runs.
func TestClientDataSurvivesTheRoles(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	dispatcher, c := f.dispatcher("")
	worker := f.worker("")
	f.waitListed(c, 1)
	k := &clientData{t: t, url: c.url, ip: f.agents[0].ip, agentID: "agent of a fleet", p: f.procs.new(f.agents[0].host(), "kept")}
	k.store()
	pid := k.p.pid()
	dispatcher.Kill()
	worker.Kill()
	_, c = f.dispatcher("")
	k.url = c.url
	k.check(pid)
	f.worker("")
	k.operates()
}
