//go:build linux

package e2e

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// gseClient calls GSE like one of its real clients.
type gseClient struct {
	*client
	operate, result string // method and path
	resultMethod    string
}

// gseEntry is an entry of a result map.
type gseEntry struct {
	Code    int    `json:"error_code"`
	Message string `json:"error_msg"`
	Content string `json:"content"`
}

// gseAs returns a client with an application's name in the header, and without
// Content-Type.
func (u *up) gseAs(application, operate, resultMethod, result string) *gseClient {
	header := http.Header{"X-Bkapi-Authorization": {`{"bk_app_code":"` + application + `","bk_app_secret":"s","bk_username":"admin"}`}}
	return &gseClient{
		client:  &client{t: u.t, url: u.c.url, header: header},
		operate: operate, resultMethod: resultMethod, result: result,
	}
}

// ask sends a request that must succeed, and decodes its data.
func (c *gseClient) ask(method, path string, body, into any) {
	c.t.Helper()
	var answer struct {
		Result bool            `json:"result"`
		Code   int             `json:"code"`
		Data   json.RawMessage `json:"data"`
	}
	status, text, ok := c.call(method, path, "", body)
	if !ok || status != http.StatusOK || json.Unmarshal(text, &answer) != nil || !answer.Result || answer.Code != 0 {
		c.t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	if err := json.Unmarshal(answer.Data, into); err != nil {
		c.t.Fatalf("%s %s: %v in %s", method, path, err, text)
	}
}

// do executes an operation and polls until all keys, which must exist from the
// first poll on, have outcomes.
func (c *gseClient) do(body map[string]any, keys ...string) (id string, entries map[string]gseEntry) {
	c.t.Helper()
	var made struct {
		TaskID string `json:"task_id"`
	}
	c.ask(http.MethodPost, c.operate, body, &made)
	testenv.Eventually(c.t, finishTimeout, func() bool {
		entries = c.poll(made.TaskID)
		if got := slices.Sorted(maps.Keys(entries)); !slices.Equal(got, keys) {
			c.t.Fatalf("the keys are %q, want %q", got, keys)
		}
		return !slices.ContainsFunc(slices.Collect(maps.Values(entries)), func(e gseEntry) bool { return e.Code == 115 })
	}, "the task "+made.TaskID+" has its outcomes")
	return made.TaskID, entries
}

func (c *gseClient) poll(id string) (entries map[string]gseEntry) {
	c.t.Helper()
	c.ask(c.resultMethod, c.result, map[string]any{"task_id": id}, &entries)
	return entries
}

// gseOperation returns an operation on a sample process for GSE.
func gseOperation(p proc, opType int) map[string]any {
	control := p.spec()["control"].(map[string]any)
	return map[string]any{
		"meta":    map[string]any{"namespace": "e2e", "name": p.name},
		"op_type": opType,
		"spec": map[string]any{
			"identity": map[string]any{
				"index_key": "", "proc_name": p.name, "setup_path": p.dir, "pid_path": p.spec()["pid_path"], "user": "root",
			},
			"control": map[string]any{"start_cmd": control["start"]},
		},
	}
}

// with adds members to an operation, and renames the policy to the name that its
// client uses.
func with(operation, members map[string]any, policyName string) map[string]any {
	maps.Copy(operation, members)
	spec := operation["spec"].(map[string]any)
	spec[policyName] = map[string]any{"auto_type": 1, "start_check_secs": 1, "op_timeout": 20}
	return operation
}

// TestGSEClientsUseTheirOwnPaths operates one process like bk-nodeman,
// bk-bscp and an ESB in front, each with its own family of paths. Each must see the
// effects of the others.
func TestGSEClientsUseTheirOwnPaths(t *testing.T) {
	t.Parallel()
	nats := testenv.FreeAddress(t)
	u := newUp(t, "--agent=false", "--nats-listen", nats)
	u.start()
	const agentID, ip = "02000000005254000b3dc91680054235f3a1", "10.99.0.1"
	testenv.StartChild(t, nil, testenv.BuildBinary(t, "./cmd/procfleet-agent"),
		"--nats", "nats://"+nats, "--identity", u.keys().identityAs("0:"+ip, agentID), "--agent-id", agentID, "--data", t.TempDir())
	testenv.Eventually(t, startTimeout, func() bool { return len(u.c.hosts()) == 1 }, "the agent is listed")
	p := newProcs(t).new("0:"+ip, "families")
	hostKey, hosts := "0:"+ip+":e2e:"+p.name, []map[string]any{{"ip": ip, "bk_cloud_id": 0}}

	nodeman := u.gseAs("bk_nodeman", "/api/bk-gse/prod/api/v2/proc/operate_proc_multi/",
		http.MethodPost, "/api/bk-gse/prod/api/v2/proc/get_proc_operate_result_v2/")
	nodemanDoes := func(opType int) (string, gseEntry) {
		t.Helper()
		item := with(gseOperation(p, opType), map[string]any{
			"hosts":         hosts,
			"agent_id_list": []string{"0:" + ip},
			"nodeman_spec":  map[string]any{"process_status_id": 1, "subscription_instance_id": 2},
		}, "alive_monitor_policy")
		id, entries := nodeman.do(map[string]any{"no_request": true, "proc_operate_req": []any{item}}, hostKey)
		return id, entries[hostKey]
	}
	started, e := nodemanDoes(0)
	if e.Code != 0 || e.Message != "success" || p.pid() == 0 {
		t.Fatalf("bk-nodeman starts: %+v, pid %d", e, p.pid())
	}
	if _, e := nodemanDoes(0); e.Code != 828 {
		t.Errorf("bk-nodeman starts again: %+v, want 828", e)
	}

	bscp := u.gseAs("bk_bscp", "/api/bk-gse/prod/api/v2/proc/operate_proc_v2",
		http.MethodPost, "/api/bk-gse/prod/api/v2/proc/get_proc_operate_result_v2")
	agentKey := agentID + ":e2e:" + p.name
	_, entries := bscp.do(with(gseOperation(p, 2), map[string]any{"agent_id_list": []string{agentID}}, "monitor_policy"), agentKey)
	checkContent(t, entries[agentKey], p.pid())

	esb := u.gseAs("bk_cmdb", "/procapi/v2/proc/operate", http.MethodGet, "/procapi/v2/proc/operate")
	byHost := map[string]any{"hosts": hosts}
	if seen := esb.poll(started)[hostKey]; seen.Code != 0 {
		t.Errorf("an ESB reads the task of bk-nodeman: %+v", seen)
	}
	_, entries = esb.do(with(gseOperation(p, 1), byHost, "alive_monitor_policy"), hostKey)
	if entries[hostKey].Code != 0 || len(p.running()) != 0 {
		t.Errorf("an ESB stops: %+v, %v run", entries[hostKey], p.running())
	}
	if _, e := nodemanDoes(1); e.Code != 829 {
		t.Errorf("bk-nodeman stops a stopped process: %+v, want 829", e)
	}
	_, entries = esb.do(with(gseOperation(p, 2), byHost, "alive_monitor_policy"), hostKey)
	checkContent(t, entries[hostKey], -1)

	status, text, _ := bscp.call(http.MethodPost, "/api/bk-gse/prod/api/v2/proc/no_such_call", "", map[string]any{})
	var failure struct {
		Code     int    `json:"code"`
		CodeName string `json:"code_name"`
	}
	if err := json.Unmarshal(text, &failure); err != nil || status != http.StatusNotFound || failure.Code != 1640401 || failure.CodeName != "API_NOT_FOUND" {
		t.Errorf("unknown path: %d %s", status, text)
	}
}

// checkContent checks a successful status: the pid, and supervision if and only if
// there is one.
func checkContent(t *testing.T, e gseEntry, pid int) {
	t.Helper()
	if got, isAuto := e.instance(t); got != pid || isAuto != (pid > 0) {
		t.Errorf("status with pid %d, isAuto %t, want pid %d", got, isAuto, pid)
	}
}
