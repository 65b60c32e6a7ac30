//go:build linux

package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet/internal/testenv"
)

// gsekitItem is one item of GSEKit's operations: a numeric label, no resource, and
// only this policy.
func gsekitItem(p proc, biz, instance, opType int, policy map[string]any, ips ...string) map[string]any {
	commands := p.commands()
	delete(commands, "version_cmd")
	delete(commands, "health_cmd")
	policy["auto_type"] = 1
	return map[string]any{
		"meta": map[string]any{
			"namespace": fmt.Sprintf("GSEKIT_BIZ_%d", biz), "name": fmt.Sprintf("%s_%d", p.name, instance),
			"labels": map[string]any{"bk_process_name": p.name, "bk_process_id": 4400 + instance},
		},
		"op_type": opType, "hosts": hostsV2(ips...),
		"spec": map[string]any{"identity": p.identity(), "control": commands, "alive_monitor_policy": policy},
	}
}

func gsekitClient(e *published) *gseClient {
	return gseAt(e.t, e.url, gseESB, "operate_proc_multi/", "get_proc_operate_result_v2/")
}

// gsekitRunsAJob executes the operations of a job on instances of one process.
func gsekitRunsAJob(e *published) {
	t := e.t
	const biz = 10
	c := gsekitClient(e)
	var all []proc
	for i := range 4 {
		all = append(all, e.procs.new("0:"+e.here, "java_"+strconv.Itoa(i)))
	}
	key := func(p proc) string { return fmt.Sprintf("0:%s:GSEKIT_BIZ_%d:%s_1", e.here, biz, p.name) }
	// does executes one operation on some instances, with other commands than the
	// sample's.
	does := func(opType int, commands map[string]any, on ...proc) map[string]gseEntry {
		t.Helper()
		var items []map[string]any
		var keys []string
		for _, p := range on {
			item := gsekitItem(p, biz, 1, opType, map[string]any{"start_check_secs": 1, "op_timeout": 20}, e.here)
			maps.Copy(item["spec"].(map[string]any)["control"].(map[string]any), commands)
			items, keys = append(items, item), append(keys, key(p))
		}
		_, entries := c.do(multi(items...), keys...)
		return entries
	}
	runs, down := all[:3], all[3]
	for k, entry := range does(0, nil, runs...) {
		if entry.Code != 0 {
			t.Fatalf("start of %s: %+v", k, entry)
		}
	}
	if entry := does(0, nil, runs[0])[key(runs[0])]; entry.Code != 828 {
		t.Errorf("start of a running instance: %+v, want 828", entry)
	}
	for _, p := range runs {
		if p.starts() != 1 {
			t.Errorf("%s was started %d times", p.name, p.starts())
		}
	}
	if entry := does(0, map[string]any{"start_cmd": "true"}, down)[key(down)]; entry.Code != 836 || strings.HasPrefix(entry.Message, "stop") {
		t.Errorf("a start without a process: %+v", entry)
	}
	if entry := does(0, map[string]any{"start_cmd": "echo no room left; exit 3"}, down)[key(down)]; entry.Code != 65535 || !strings.Contains(entry.Message, "no room left") {
		t.Errorf("a start that fails: %+v", entry)
	}
	if entry := does(1, map[string]any{"stop_cmd": "true"}, runs[0])[key(runs[0])]; entry.Code != 836 || !strings.HasPrefix(entry.Message, "stop") {
		t.Errorf("a stop without an effect: %+v", entry)
	}
	if entry := does(1, nil, runs[1])[key(runs[1])]; entry.Code != 0 {
		t.Errorf("stop: %+v", entry)
	}
	if entry := does(1, nil, runs[1])[key(runs[1])]; entry.Code != 829 {
		t.Errorf("stop of a stopped instance: %+v, want 829", entry)
	}

	// GSEKit queries all instances after each of these.
	want := map[string]int{key(all[0]): all[0].pid(), key(all[1]): -1, key(all[2]): all[2].pid(), key(all[3]): -1}
	for k, entry := range does(2, nil, all...) {
		if pid, _ := entry.instance(t); pid != want[k] {
			t.Errorf("%s has pid %d, want %d", k, pid, want[k])
		}
	}
	if _, isAuto := does(2, nil, all[2])[key(all[2])].instance(t); !isAuto {
		t.Error("a started instance is not supervised")
	}
	for k, entry := range does(9, nil, runs[0], runs[2]) {
		if entry.Code != 0 {
			t.Errorf("forced stop of %s: %+v", k, entry)
		}
	}
	for _, p := range all {
		if pids := p.running(); len(pids) != 0 {
			t.Errorf("%s runs as %v", p.name, pids)
		}
	}
	if entry := does(9, nil, runs[0])[key(runs[0])]; entry.Code != 829 {
		t.Errorf("forced stop of a stopped instance: %+v, want 829", entry)
	}
	if _, isAuto := does(2, nil, all[2])[key(all[2])].instance(t); isAuto {
		t.Error("a killed instance is still supervised")
	}
}

// gsekitChecks queries the state of 1000 instances. GSEKit looks up every key of
// every response in its map of them, and stops when no code is 115.
func gsekitChecks(e *published) {
	t := e.t
	const biz, instances = 11, 1000
	c := gsekitClient(e)
	idle, busy := e.procs.new("0:"+e.here, "idle"), e.procs.new("0:"+e.here, "busy")
	key := func(p proc, instance int) string {
		return fmt.Sprintf("0:%s:GSEKIT_BIZ_%d:%s_%d", e.here, biz, p.name, instance)
	}
	running := key(busy, 1)
	if entry := c.one(running, multi(gsekitItem(busy, biz, 1, 0, map[string]any{"start_check_secs": 1}, e.here))); entry.Code != 0 {
		t.Fatalf("start: %+v", entry)
	}
	items := []map[string]any{gsekitItem(busy, biz, 1, 2, map[string]any{"start_check_secs": 5, "op_timeout": nil}, e.here)}
	keys := []string{running}
	for i := 2; i <= instances; i++ {
		policy := map[string]any{"start_check_secs": 5, "op_timeout": nil}
		if i%2 == 0 {
			policy["start_check_secs"] = nil
		}
		items, keys = append(items, gsekitItem(idle, biz, i, 2, policy, e.here)), append(keys, key(idle, i))
	}
	slices.Sort(keys)
	_, entries := c.do(multi(items...), keys...)
	for k, entry := range entries {
		pid, isAuto := entry.instance(t)
		if k == running {
			if pid != busy.pid() || !isAuto {
				t.Errorf("the instance with pid %d has pid %d, isAuto %t", busy.pid(), pid, isAuto)
			}
		} else if pid != -1 || isAuto {
			t.Fatalf("%s has pid %d, isAuto %t", k, pid, isAuto)
		}
	}
}

// gsekitPages reads the states of 1500 registered instances in pages, while one of
// them starts.
func gsekitPages(e *published) {
	t := e.t
	const biz, page = 12, 500
	c := gsekitClient(e)
	namespace := fmt.Sprintf("GSEKIT_BIZ_%d", biz)
	p := e.procs.new("0:"+e.here, "web_server")
	ips := append([]string{e.here}, addresses(499)...)
	for instance := 1; instance <= 3; instance++ {
		item := gsekitItem(p, biz, instance, 0, map[string]any{"start_check_secs": 1}, ips...)
		var registered map[string]gseEntry
		c.ask(http.MethodPost, gseESB+"register_proc_info/", map[string]any{"meta": item["meta"], "hosts": hostsV1(ips...), "spec": map[string]any{
			"identity": p.identity(), "control": p.commands(), "resource": map[string]any{"cpu": 0, "mem": 0}, "monitor_policy": map[string]any{"auto_type": 1},
		}}, &registered)
		for key, entry := range registered {
			if len(registered) != len(ips) || entry.Code != 0 {
				t.Fatalf("register_proc_info: %s: %+v of %d", key, entry, len(registered))
			}
		}
	}
	// pages reads all pages like GSEKit, and calls between after the first.
	pages := func(path string, between func()) (instances []string, running []procInfo) {
		t.Helper()
		total := page
		for start := 0; start < total; start += page {
			var data struct {
				Count *int       `json:"count"`
				Infos []procInfo `json:"proc_infos"`
			}
			c.ask(http.MethodPost, path, map[string]any{
				"meta": map[string]any{"namespace": namespace},
				"page": map[string]any{"start": start, "limit": page, "return_total": start == 0},
			}, &data)
			if data.Count == nil || *data.Count != 3*len(ips) || len(data.Infos) != page {
				t.Fatalf("the page at %d has %d of %v", start, len(data.Infos), data.Count)
			}
			total = *data.Count
			for _, i := range data.Infos {
				if i.IsAuto == nil || i.Host.Cloud == nil || i.AgentID == nil {
					t.Fatalf("a member is missing: %+v", i)
				}
				process, instance := lastPart(i.Meta.Name)
				if n, err := strconv.Atoi(instance); err != nil || n < 1 || n > 3 || process != p.name || !slices.Contains(ips, i.Host.IP) {
					t.Fatalf("an instance is %+v", i)
				}
				instances = append(instances, fmt.Sprintf("%s-%d-%s", i.Host.IP, *i.Host.Cloud, instance))
				if i.Status == 1 {
					running = append(running, i)
				}
			}
			if between != nil {
				between()
				between = nil
			}
		}
		return instances, running
	}
	const atESB, atGateway = gseESB + "sync_proc_status/", gseGateway + "proc/sync_proc_status/"
	first, running := pages(atESB, nil)
	if distinct := slices.Compact(slices.Sorted(slices.Values(first))); len(distinct) != 3*len(ips) || len(running) != 0 {
		t.Fatalf("%d distinct instances of %d, %d run", len(distinct), len(first), len(running))
	}
	second, _ := pages(atESB, func() {
		start := gsekitItem(p, biz, 2, 0, map[string]any{"start_check_secs": 1}, e.here)
		if entry := c.one(fmt.Sprintf("0:%s:%s:%s_2", e.here, namespace, p.name), multi(start)); entry.Code != 0 {
			t.Fatalf("start: %+v", entry)
		}
	})
	if !slices.Equal(first, second) {
		t.Error("the order changed when one of them was started")
	}
	testenv.Eventually(t, finishTimeout, func() bool {
		_, running = pages(atGateway, nil)
		return len(running) == 1 && running[0].Host.IP == e.here && running[0].Meta.Name == p.name+"_2" && *running[0].IsAuto
	}, "the one that was started is shown to run")
}
