//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/procfleet/procfleet/internal/testenv"
)

const nodemanNamespace = "nodeman"

// nodemanItem is one item of bk-nodeman's GseOperateProcService: no labels, an
// additional member, and the policy under its documented name.
func nodemanItem(p proc, opType int, where map[string]any) map[string]any {
	item := map[string]any{
		"meta":         map[string]any{"namespace": nodemanNamespace, "name": p.name},
		"op_type":      opType,
		"nodeman_spec": map[string]any{"process_status_id": 1, "subscription_instance_id": 2},
		"spec": map[string]any{
			"identity": p.identity(), "control": p.commands(), "resource": map[string]any{"cpu": 10, "mem": 10.0},
			"alive_monitor_policy": map[string]any{"auto_type": 1, "start_check_secs": 1, "op_timeout": 20},
		},
	}
	maps.Copy(item, where)
	return item
}

// nodemanV1 is bk-nodeman's V1 helper, which polls with the ESB's name for the
// newer result call.
func nodemanV1(e *published) *gseClient {
	return gseAt(e.t, e.url, gseESB, "operate_proc_multi/", "get_proc_operate_result_v2/")
}

// nodemanBody is a whole request, with the additional members of bk-nodeman's
// client.
func nodemanBody(items ...map[string]any) map[string]any {
	body := multi(items...)
	body["no_request"], body["bk_supplier_account"] = true, "0"
	return body
}

func nodemanOperatesPlugins(e *published) {
	t := e.t
	c := nodemanV1(e)
	p := e.procs.new("0:"+e.here, "bkmonitorbeat")
	key := "0:" + e.here + ":nodeman:" + p.name
	does := func(opType, want int) gseEntry {
		t.Helper()
		entry := c.one(key, nodemanBody(nodemanItem(p, opType, map[string]any{"hosts": hostsV2(e.here)})))
		if entry.Code != want {
			t.Fatalf("op_type %d: %+v, want %d", opType, entry, want)
		}
		return entry
	}
	does(4, 0) // release of an unknown process
	does(0, 0)
	does(0, 828)
	before := p.pid()
	does(8, 0) // its PUSH_CONFIG for a supervised process
	does(3, 0)
	if pid, isAuto := does(2, 0).instance(t); pid != before || pid != p.pid() || !isAuto {
		t.Errorf("after the configuration was pushed the status has pid %d, isAuto %t; it runs as %d", pid, isAuto, p.pid())
	}
	does(7, 0)
	if after := p.pid(); after == 0 || after == before || len(p.running()) != 1 {
		t.Errorf("restarted, it runs as %v", p.running())
	}

	// One of two hosts has no agent; the other must have its own outcome.
	const nobody = "10.98.255.1"
	_, entries := c.do(nodemanBody(nodemanItem(p, 3, map[string]any{"hosts": hostsV2(e.here, nobody)})),
		"0:"+nobody+":nodeman:"+p.name, key)
	if entries[key].Code != 0 || entries["0:"+nobody+":nodeman:"+p.name].Code != 117 {
		t.Errorf("two hosts: %+v", entries)
	}

	older := &gseClient{client: &client{t: t, url: e.url}, operate: c.operate, result: c.result, resultMethod: c.resultMethod}
	var made struct {
		TaskID string `json:"task_id"`
	}
	older.ask(http.MethodPost, older.operate, credentialsInBody(nodemanBody(nodemanItem(p, 1, map[string]any{"hosts": hostsV2(e.here)}))), &made)
	older.waitOutcome(made.TaskID, key, 0)
	if pids := p.running(); len(pids) != 0 {
		t.Errorf("stopped, and %v run", pids)
	}
	does(1, 829)

	var unregistered map[string]gseEntry
	c.ask(http.MethodPost, gseESB+"unregister_proc_info/", map[string]any{
		"meta": map[string]any{"namespace": nodemanNamespace, "name": "nobody", "labels": map[string]any{"proc_name": "nobody"}}, "hosts": hostsV1(e.here),
	}, &unregistered)
	if entry := unregistered["0:0:"+e.here+":nodeman:nobody"]; len(unregistered) != 1 || entry.Code != 829 {
		t.Errorf("unregister of an unregistered process: %+v", unregistered)
	}
}

// waitOutcome polls and reads the raw envelope, in which only the code 1000115
// would have a special meaning.
func (c *gseClient) waitOutcome(id, key string, want int) {
	c.t.Helper()
	testenv.Eventually(c.t, finishTimeout, func() bool {
		_, text, _ := c.call(http.MethodPost, c.result, "", credentialsInBody(map[string]any{"task_id": id}))
		var answer struct {
			Result  *bool
			Code    *int
			Message *string
			Data    map[string]gseEntry
		}
		err := json.Unmarshal(text, &answer)
		if err != nil || answer.Result == nil || !*answer.Result || answer.Code == nil || *answer.Code != 0 || answer.Message == nil {
			c.t.Fatalf("response to a poll: %s", text)
		}
		entry, ok := answer.Data[key]
		if !ok || entry.Code != 115 && entry.Code != want {
			c.t.Fatalf("response to a poll: %s, want %d", text, want)
		}
		return entry.Code == want
	}, "the outcome of "+id)
}

// nodemanInstallsOneShot installs a plugin with a restart alone, and then releases
// it, so that the agent does not restart it.
func nodemanInstallsOneShot(e *published) {
	t := e.t
	c := nodemanV1(e)
	p := e.procs.new("0:"+e.here, "sub_870_host_1_host_exp002")
	key := "0:" + e.here + ":nodeman:" + p.name
	question := map[string]any{"meta": map[string]any{"namespace": nodemanNamespace, "name": p.name}, "hosts": hostsV2(e.here)}
	for _, step := range []struct {
		opType int
		then   func() processState
	}{
		{7, func() processState { return processState{1, 1, p.pid(), true} }},
		{4, func() processState { return processState{0, 1, p.pid(), false} }},
	} {
		entry := c.one(key, nodemanBody(nodemanItem(p, step.opType, map[string]any{"hosts": hostsV2(e.here)})))
		if entry.Code != 0 || p.pid() == 0 || p.starts() != 1 {
			t.Fatalf("op_type %d: %+v, pid %d after %d starts", step.opType, entry, p.pid(), p.starts())
		}
		c.waitShown(gseESB+"get_proc_status/", question, step.then, fmt.Sprintf("it is shown as op_type %d left it", step.opType))
	}
	p.kill(t)
	c.waitShown(gseESB+"get_proc_status/", question, func() processState { return processState{0, 2, -1, false} }, "it is shown dead")
	if p.starts() != 1 {
		t.Errorf("released, and started %d times", p.starts())
	}
}

// nodemanComparesVersions installs an upgraded plugin again, and repeats queries
// until they show its new version, without an operation. The spec has the zeros of
// typed clients; the status and the stop have only an identity.
func nodemanComparesVersions(e *published) {
	t := e.t
	c := nodemanV1(e)
	p := e.procs.new("0:"+e.here, "unixprocbeat")
	name := "plugin-" + p.name
	key := "0:" + e.here + ":nodeman:" + name
	does := func(opType int, spec map[string]any) gseEntry {
		t.Helper()
		entry := c.one(key, multi(map[string]any{
			"meta": map[string]any{"namespace": nodemanNamespace, "name": name}, "op_type": opType, "hosts": hostsV2(e.here), "spec": spec,
		}))
		if entry.Code != 0 {
			t.Fatalf("op_type %d: %+v", opType, entry)
		}
		return entry
	}
	commands := p.commands()
	commands["version_cmd"] = "cat VERSION"
	whole := map[string]any{
		"identity": p.identity(), "control": commands,
		"monitor_policy": map[string]any{"auto_type": 1, "start_check_secs": 0, "stop_check_secs": 0, "op_timeout": 0},
	}
	bare := map[string]any{"identity": map[string]any{"proc_name": p.name}}
	question := map[string]any{"meta": map[string]any{"namespace": nodemanNamespace, "name": name}, "hosts": hostsV2(e.here)}
	for _, step := range []struct {
		opType  int
		version string
	}{{0, "1.0.1"}, {7, "1.0.2"}} {
		if err := os.WriteFile(filepath.Join(p.dir, "VERSION"), []byte(step.version+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		does(step.opType, whole)
		testenv.Eventually(t, finishTimeout, func() bool {
			shown := c.infos(gseESB+"get_proc_status/", question)
			return len(shown) == 1 && shown[0].Version == step.version
		}, "version "+step.version+" is shown")
	}
	status := does(2, bare)
	if pid, isAuto := status.instance(t); pid != p.pid() || !isAuto {
		t.Errorf("a status by identity alone has pid %d, isAuto %t; it runs as %d", pid, isAuto, p.pid())
	}
	var content struct {
		Process []struct {
			Procname string `json:"procname"`
			Instance []struct {
				ProcessName string `json:"processName"`
			} `json:"instance"`
		} `json:"process"`
	}
	if err := json.Unmarshal([]byte(status.Content), &content); err != nil || content.Process[0].Procname != name || content.Process[0].Instance[0].ProcessName != name {
		t.Errorf("the status names %+v, %v; want %s", content, err, name)
	}
	does(1, bare)
	if pids := p.running(); len(pids) != 0 {
		t.Errorf("stopped, and %v run", pids)
	}
}

// nodemanAsksForStatus queries hosts that are only registered, one on which the
// process runs, and some unknown ones. It looks up each result by the host in it.
func nodemanAsksForStatus(e *published) {
	t := e.t
	const name, unknown = "gsecmdline", 100
	c := nodemanV1(e)
	p := e.procs.new("0:"+e.here, name)
	asked := append([]string{e.here}, addresses(1999)...)
	known := len(asked) - unknown
	var registered map[string]gseEntry
	c.ask(http.MethodPost, gseESB+"update_proc_info/", map[string]any{
		"meta":  map[string]any{"namespace": nodemanNamespace, "name": name, "labels": map[string]any{"proc_name": name}},
		"hosts": hostsV1(asked[:known]...),
		"spec": map[string]any{
			"identity": p.identity(), "control": p.commands(), "monitor_policy": map[string]any{"auto_type": 1},
			"resource": map[string]any{"mem": 10, "cpu": 10},
		},
	}, &registered)
	for key, entry := range registered {
		if parts := strings.Split(key, ":"); len(registered) != known || entry.Code != 0 || parts[0] != "0" || parts[1] != "0" || !slices.Contains(asked[:known], parts[2]) {
			t.Fatalf("update_proc_info: %s: %+v of %d", key, entry, len(registered))
		}
	}
	if entry := c.one("0:"+e.here+":nodeman:"+name, nodemanBody(nodemanItem(p, 0, map[string]any{"hosts": hostsV2(e.here)}))); entry.Code != 0 {
		t.Fatalf("start: %+v", entry)
	}
	question := map[string]any{
		"meta":  map[string]any{"namespace": nodemanNamespace, "name": name, "labels": map[string]any{"proc_name": name}},
		"hosts": hostsV2(asked...),
	}
	testenv.Eventually(t, finishTimeout, func() bool {
		running := 0
		byHost := map[string]procInfo{}
		for _, i := range c.infos(gseESB+"get_proc_status/", question) {
			byHost[fmt.Sprintf("%d:%s", *i.Host.Cloud, i.Host.IP)] = i
			if i.Status == 1 {
				running++
			}
		}
		if len(byHost) != known {
			t.Fatalf("%d hosts are shown, want %d", len(byHost), known)
		}
		for _, ip := range asked[:known] {
			if i, ok := byHost["0:"+ip]; !ok || i.Meta.Name != name || ip != e.here && (i.Status != 0 || *i.IsAuto) {
				t.Fatalf("host %s is shown as %+v", ip, i)
			}
		}
		here := byHost["0:"+e.here]
		return running == 1 && here.Status == 1 && here.PID == p.pid() && *here.IsAuto
	}, "the one that runs is shown so")

	v2 := maps.Clone(question)
	delete(v2, "hosts")
	v2["agent_id_list"] = prefixed("0:", asked)
	found := map[string]bool{}
	for _, i := range c.infos(gseGateway+"proc/get_proc_status_v2/", v2) {
		if *i.AgentID != "0:"+i.Host.IP {
			t.Fatalf("query by an alias: %+v with %q", i, *i.AgentID)
		}
		found[*i.AgentID] = true
	}
	if len(found) != known {
		t.Errorf("V2 shows %d hosts, want %d", len(found), known)
	}
}

// nodemanAddressesAgents names hosts without an agent id by address in the list of
// agent ids. It looks up each outcome by the name in the request.
func nodemanAddressesAgents(e *published) {
	t := e.t
	c := gseAt(t, e.url, gseGateway, "proc/operate_proc_multi/", "proc/get_proc_operate_result_v2/")
	p := e.procs.new("0:"+e.there, "processbeat")
	alias := "0:" + e.here
	both := map[string]any{"agent_id_list": []string{e.agentID, alias}}
	keys := sortedKeys([]string{e.agentID, alias}, "nodeman:"+p.name)
	_, entries := c.do(nodemanBody(nodemanItem(p, 2, both)), keys...)
	for key, entry := range entries {
		if pid, isAuto := entry.instance(t); pid != -1 || isAuto {
			t.Errorf("%s: pid %d, isAuto %t of a process that was not started", key, pid, isAuto)
		}
	}
	mine := e.agentID + ":nodeman:" + p.name
	if entry := c.one(mine, nodemanBody(nodemanItem(p, 0, map[string]any{"agent_id_list": []string{e.agentID}}))); entry.Code != 0 || p.pid() == 0 {
		t.Fatalf("start by agent id: %+v, pid %d", entry, p.pid())
	}
	// The same host by its address has another key.
	again := "0:" + e.there + ":nodeman:" + p.name
	if entry := c.one(again, nodemanBody(nodemanItem(p, 0, map[string]any{"agent_id_list": []string{"0:" + e.there}}))); entry.Code != 828 {
		t.Errorf("start by address: %+v, want 828", entry)
	}
	question := map[string]any{"meta": map[string]any{"namespace": nodemanNamespace, "name": p.name}, "agent_id_list": []string{e.agentID}}
	c.waitShown(gseGateway+"proc/get_proc_status_v2/", question, func() processState { return processState{1, 1, p.pid(), true} }, "it runs")
	if i := c.infos(gseGateway+"proc/get_proc_status_v2/", question)[0]; *i.AgentID != e.agentID || i.Host.IP != e.there || *i.Host.Cloud != 0 {
		t.Errorf("query by agent id: %+v with %q", i, *i.AgentID)
	}

	// Only the item of an unknown id fails.
	nobody := strings.Repeat("0", 36)
	_, entries = c.do(nodemanBody(nodemanItem(p, 1, map[string]any{"agent_id_list": []string{nobody, e.agentID}})),
		nobody+":nodeman:"+p.name, mine)
	if entries[mine].Code != 0 || entries[nobody+":nodeman:"+p.name].Code != 117 {
		t.Errorf("stop on the host and with an unknown id: %+v", entries)
	}

	// bk-nodeman accepts 0 or 836 for a one-shot process that ended before its
	// verification.
	once := nodemanItem(p, 0, map[string]any{"agent_id_list": []string{e.agentID}})
	once["meta"] = map[string]any{"namespace": nodemanNamespace, "name": "once"}
	once["spec"].(map[string]any)["control"] = map[string]any{"start_cmd": "echo once >> once"}
	once["spec"].(map[string]any)["alive_monitor_policy"] = map[string]any{"auto_type": 2, "start_check_secs": 1}
	if entry := c.one(e.agentID+":nodeman:once", nodemanBody(once)); entry.Code != 0 && entry.Code != 836 {
		t.Errorf("a one-shot: %+v", entry)
	}

	type agentState struct {
		AgentID string `json:"bk_agent_id"`
		Version string `json:"version"`
		Status  int    `json:"status_code"`
	}
	var states []agentState
	c.ask(http.MethodPost, gseGateway+"cluster/list_agent_state/", map[string]any{"agent_id_list": []string{e.agentID, nobody, alias}}, &states)
	slices.SortFunc(states, func(a, b agentState) int { return strings.Compare(a.AgentID, b.AgentID) })
	if len(states) != 3 || states[0] != (agentState{nobody, "", -2}) ||
		states[1].AgentID != e.agentID || states[1].Status != 2 || states[2].AgentID != alias || states[2].Status != 2 {
		t.Errorf("list_agent_state: %+v", states)
	}
	var infos []struct {
		AgentID string  `json:"bk_agent_id"`
		Code    *int    `json:"code"`
		IP      string  `json:"bk_host_ip"`
		Cloud   *int    `json:"bk_cloud_id"`
		CPU     float64 `json:"cpu_rate"`
		Report  int64   `json:"report_time"`
	}
	c.ask(http.MethodPost, gseGateway+"cluster/list_agent_info/", map[string]any{"agent_id_list": []string{e.agentID}}, &infos)
	if len(infos) != 1 || infos[0].AgentID != e.agentID || infos[0].IP != e.there || infos[0].Code == nil || *infos[0].Code != 0 || infos[0].Cloud == nil || infos[0].Report == 0 {
		t.Errorf("list_agent_info: %+v", infos)
	}
}

// nodemanUpgrades binds agent ids to hosts, and then uses the ids instead of
// addresses.
func nodemanUpgrades(e *published) {
	t := e.t
	const base = gseESB + "api/v2/" // base path without a gateway
	c := gseAt(t, e.url, base, "proc/operate_proc_multi/", "proc/get_proc_operate_result_v2/")
	const id, nobody = "02000000005254000b3dc91680054235f3a1", "10.98.255.2"
	host := func(ip, id string) map[string]any {
		return map[string]any{"ip": ip, "bk_cloud_id": 0, "bk_agent_id": id}
	}
	var upgraded struct{ Success, Failed []string }
	c.ask(http.MethodPost, base+"proc/upgrade_to_agent_id/", map[string]any{"no_request": true, "hosts": []any{
		host(e.here, id), host(nobody, "nobody"), host(e.there, "not the one that its agent has"),
	}}, &upgraded)
	slices.Sort(upgraded.Failed)
	if !slices.Equal(upgraded.Success, []string{"0:" + e.here}) || !slices.Equal(upgraded.Failed, []string{"0:" + nobody, "0:" + e.there}) {
		t.Fatalf("upgrade_to_agent_id: %+v", upgraded)
	}
	p := e.procs.new("0:"+e.here, "upgraded")
	key := id + ":nodeman:" + p.name
	if entry := c.one(key, nodemanBody(nodemanItem(p, 0, map[string]any{"agent_id_list": []string{id}}))); entry.Code != 0 || p.pid() == 0 {
		t.Errorf("start by the new id: %+v, pid %d", entry, p.pid())
	}
	question := map[string]any{"meta": map[string]any{"namespace": nodemanNamespace, "name": p.name}, "agent_id_list": []string{id}}
	c.waitShown(base+"proc/get_proc_status_v2/", question, func() processState { return processState{1, 1, p.pid(), true} }, "it runs")
	if i := c.infos(base+"proc/get_proc_status_v2/", question)[0]; *i.AgentID != id || i.Host.IP != e.here {
		t.Errorf("query: %+v with %q", i, *i.AgentID)
	}
}

// oldNodemanPollsOnce checks that the first poll has a key for a host that does not
// reply, because oldNodeman considers a missing key as done.
func oldNodemanPollsOnce(e *published) {
	t := e.t
	c := gseAt(t, e.url, gseESB, "operate_proc/", "get_proc_operate_result/")
	p := e.procs.new("0:"+e.here, "first")
	meta := map[string]any{"namespace": nodemanNamespace, "name": p.name, "labels": map[string]any{"proc_name": p.name}}
	hosts := hostsV1(e.here, e.frozen)
	var registered map[string]gseEntry
	c.ask(http.MethodPost, gseESB+"update_proc_info/", map[string]any{"meta": meta, "hosts": hosts, "spec": map[string]any{
		"identity": p.identity(), "control": p.commands(), "monitor_policy": map[string]any{"auto_type": 1, "start_check_secs": 1},
	}}, &registered)

	e.freezes.Freeze(t)
	var made struct {
		TaskID string `json:"task_id"`
	}
	c.ask(http.MethodPost, c.operate, map[string]any{"meta": meta, "hosts": hosts, "op_type": 2, "namespace": nodemanNamespace}, &made)
	entries := c.poll(made.TaskID)
	keys := prefixed("0:0:", sortedKeys([]string{e.frozen, e.here}, "nodeman:"+p.name))
	if got := slices.Sorted(maps.Keys(entries)); !slices.Equal(got, slices.Sorted(slices.Values(keys))) {
		t.Fatalf("the first poll has the keys %q, want %q", got, keys)
	}
	silent := "0:0:" + e.frozen + ":nodeman:" + p.name
	if entry := entries[silent]; entry.Code != 115 || entry.Content != "" {
		t.Errorf("entry of a host that does not reply: %+v", entry)
	}
	e.freezes.Signal(syscall.SIGCONT)
	testenv.Eventually(t, finishTimeout, func() bool {
		entries = c.poll(made.TaskID)
		return entries[silent].Code != 115 && entries["0:0:"+e.here+":nodeman:"+p.name].Code != 115
	}, "both hosts have outcomes")
	for key, entry := range entries {
		if pid, isAuto := entry.instance(t); pid != -1 || isAuto {
			t.Errorf("%s: %+v", key, entry)
		}
	}
}
