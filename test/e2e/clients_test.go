//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// Base paths of GSE for clients; gseESB is the third.
const (
	gseGateway = "/api/bk-gse/prod/api/v2/"
	gseBackend = "/procapi/"
)

// published is one running system for the tests of published clients. Each test has
// its own namespaces.
type published struct {
	t       *testing.T
	url     string
	here    string // address of the host whose agent has no agent id
	there   string // address of the host whose agent has an agent id
	agentID string // that agent id
	frozen  string // address of a host for the test that suspends its agent
	freezes *testenv.Child
	procs   *procs // each name is used once
}

// TestPublishedClients sends the requests of BlueKing's clients, and decodes the
// responses as they do.
func TestPublishedClients(t *testing.T) {
	t.Parallel()
	nats := testenv.FreeAddress(t)
	procs, u := newProcs(t), newUp(t, "--nats-listen", nats)
	u.start()
	e := &published{
		url: u.c.url, here: "127.0.0.1", there: "10.99.0.1", frozen: "10.99.0.2",
		agentID: "020000000242010a00002f17521298676503", procs: procs,
	}
	agent := func(identity string) *testenv.Child {
		return testenv.StartChild(t, nil, testenv.BuildBinary(t, "./cmd/procfleet-agent"),
			"--nats", "nats://"+nats, "--identity", identity, "--data", t.TempDir())
	}
	agent(u.keys().identityAs("0:"+e.there, e.agentID))
	e.freezes = agent(u.keys().identity("0:" + e.frozen))
	testenv.Eventually(t, startTimeout, func() bool { return len(u.c.hosts()) == 3 }, "all agents are known")

	for name, test := range map[string]func(*published){
		"bk-nodeman V1 operates plugins":                           nodemanOperatesPlugins,
		"bk-nodeman V1 installs a one-shot plugin":                 nodemanInstallsOneShot,
		"bk-nodeman V1 asks for the status of 2000":                nodemanAsksForStatus,
		"bk-nodeman V1 compares the version after a restart":       nodemanComparesVersions,
		"bk-nodeman V2 addresses agents by both kinds of id":       nodemanAddressesAgents,
		"bk-nodeman V2 upgrades to agent ids":                      nodemanUpgrades,
		"old bk-nodeman takes the keys from the first poll":        oldNodemanPollsOnce,
		"GSEKit runs a job":                                        gsekitRunsAJob,
		"GSEKit checks 1000 instances at once":                     gsekitChecks,
		"GSEKit pages through 1500 instances":                      gsekitPages,
		"bk-bscp operates by agent ids":                            bscpOperates,
		"bk-cmdb 3.2 operates what it registered":                  cmdbOperates,
		"a supervised process that was killed is shown with a new": showsRestart,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mine, samples := *e, *e.procs
			mine.t, samples.t = t, t
			mine.procs = &samples
			test(&mine)
		})
	}
}

// gseAt returns a client for paths below base. It names its application in the
// header only.
func gseAt(t *testing.T, url, base, operate, result string) *gseClient {
	t.Helper()
	return &gseClient{
		client: &client{t: t, url: url, header: http.Header{
			"X-Bkapi-Authorization": {`{"bk_app_code":"client","bk_app_secret":"s","bk_username":"admin"}`},
		}},
		operate: base + operate, resultMethod: http.MethodPost, result: base + result,
	}
}

// one executes an operation on one key.
func (c *gseClient) one(key string, body map[string]any) gseEntry {
	c.t.Helper()
	_, entries := c.do(body, key)
	return entries[key]
}

// multi returns the body of operate_proc_multi.
func multi(items ...map[string]any) map[string]any {
	return map[string]any{"proc_operate_req": items}
}

// instance returns the fields that clients read of a successful status.
func (e gseEntry) instance(t *testing.T) (pid int, isAuto bool) {
	t.Helper()
	if e.Code != 0 || e.Message != "success" {
		t.Fatalf("a status is %+v", e)
	}
	return instanceIn(t, []byte(e.Content))
}

// instanceIn decodes the only instance in the content of a status. Clients read its
// members without a check, so they must be present.
func instanceIn(t *testing.T, text []byte) (pid int, isAuto bool) {
	t.Helper()
	var content struct {
		Process []struct {
			Instance []struct {
				PID    *int  `json:"pid"`
				IsAuto *bool `json:"isAuto"`
			} `json:"instance"`
		} `json:"process"`
	}
	if err := json.Unmarshal(text, &content); err != nil || len(content.Process) != 1 || len(content.Process[0].Instance) != 1 {
		t.Fatalf("content is %s", text)
	}
	i := content.Process[0].Instance[0]
	if i.PID == nil || i.IsAuto == nil || *i.PID == 0 {
		t.Fatalf("pid or isAuto is missing, or the pid is 0: %s", text)
	}
	return *i.PID, *i.IsAuto
}

// infos queries processes. Every member that clients read without a check must be
// present.
func (c *gseClient) infos(path string, body map[string]any) []procInfo {
	c.t.Helper()
	var data struct {
		Infos []procInfo `json:"proc_infos"`
	}
	c.ask(http.MethodPost, path, body, &data)
	for _, i := range data.Infos {
		if i.IsAuto == nil || i.AgentID == nil || i.Host.Cloud == nil || i.Host.IP == "" || i.Meta.Name == "" || i.Status < 0 || i.Status > 2 {
			c.t.Fatalf("%s: a member is missing or has no meaning: %+v", path, i)
		}
	}
	return data.Infos
}

// waitShown waits until a query of one process returns the wanted state.
func (c *gseClient) waitShown(path string, body map[string]any, want func() processState, what string) {
	c.t.Helper()
	testenv.Eventually(c.t, finishTimeout, func() bool {
		found := c.infos(path, body)
		if len(found) != 1 {
			return false
		}
		i := found[0]
		return processState{flag: i.Flag, status: i.Status, pid: i.PID, auto: *i.IsAuto} == want()
	}, what)
}

// hostsV1 and hostsV2 return hosts in the forms of the two generations of calls.
func hostsV1(ips ...string) []map[string]any {
	hosts := hostsV2(ips...)
	for _, h := range hosts {
		h["bk_supplier_id"] = 0
	}
	return hosts
}

func hostsV2(ips ...string) []map[string]any {
	var hosts []map[string]any
	for _, ip := range ips {
		hosts = append(hosts, map[string]any{"ip": ip, "bk_cloud_id": 0})
	}
	return hosts
}

// addresses returns n addresses of hosts without an agent.
func addresses(n int) []string {
	ips := make([]string, n)
	for i := range ips {
		ips[i] = fmt.Sprintf("10.98.%d.%d", i/256, i%256)
	}
	return ips
}

// commands returns all commands of a sample process for GSE.
func (p proc) commands() map[string]any {
	start := p.spec()["control"].(map[string]any)["start"].(string)
	end := func(signal string) string { return fmt.Sprintf("kill -%s $(cat %s.pid)", signal, p.name) }
	return map[string]any{
		"start_cmd": start, "stop_cmd": end("TERM"), "restart_cmd": end("TERM") + " 2>/dev/null; " + start,
		"reload_cmd": "echo reloaded >> reloads", "kill_cmd": end("KILL"), "version_cmd": "echo 1.2.3", "health_cmd": "",
	}
}

// identity returns a sample process for GSE.
func (p proc) identity() map[string]any {
	return map[string]any{
		"index_key": "", "proc_name": p.name, "setup_path": p.dir, "pid_path": p.dir + "/" + p.name + ".pid", "user": "root",
	}
}

// showsRestart checks that queries show an automatic restart.
func showsRestart(e *published) {
	t := e.t
	c := gseAt(t, e.url, gseESB, "operate_proc_multi/", "get_proc_operate_result_v2/")
	p := e.procs.new("0:"+e.here, "killed")
	key := "0:" + e.here + ":e2e:" + p.name
	item := with(gseOperation(p, 0), map[string]any{"hosts": hostsV2(e.here)}, "alive_monitor_policy")
	item["spec"].(map[string]any)["alive_monitor_policy"].(map[string]any)["start_interval"] = 1
	if entry := c.one(key, multi(item)); entry.Code != 0 {
		t.Fatalf("start: %+v", entry)
	}
	question := map[string]any{"meta": map[string]any{"namespace": "e2e", "name": p.name}, "hosts": hostsV2(e.here)}
	runs := func() processState { return processState{1, 1, p.pid(), true} }
	c.waitShown(gseESB+"get_proc_status_v2/", question, runs, "it is shown to run")
	before := p.kill(t)
	p.waitRestarted(t, before)
	c.waitShown(gseESB+"get_proc_status_v2/", question, runs, "it is shown with its new pid")
	if after := p.pid(); after == before || after == 0 {
		t.Errorf("pid %d, before %d", after, before)
	}
}

// sortedKeys returns the keys of hosts for one process.
func sortedKeys(targets []string, process string) []string {
	var keys []string
	for _, target := range targets {
		keys = append(keys, target+":"+process)
	}
	slices.Sort(keys)
	return keys
}

// prefixed adds a prefix to each text.
func prefixed(prefix string, texts []string) []string {
	var all []string
	for _, text := range texts {
		all = append(all, prefix+text)
	}
	return all
}

// credentialsInBody moves a client's credentials from the header into a body.
func credentialsInBody(body map[string]any) map[string]any {
	body = maps.Clone(body)
	maps.Copy(body, map[string]any{"bk_app_code": "client", "bk_app_secret": "s", "bk_username": "admin", "bk_supplier_account": "0"})
	return body
}

// lastPart splits like Python's rsplit with maxsplit 1.
func lastPart(name string) (process, instance string) {
	i := strings.LastIndex(name, "_")
	return name[:max(i, 0)], name[i+1:]
}
