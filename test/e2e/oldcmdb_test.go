//go:build linux

package e2e

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/procfleet/procfleet/internal/testenv"
)

// cmdbOperates operates like bk-cmdb 3.2, which omits zero values (op_type of a
// start, hosts of an operation) and sends empty objects.
func cmdbOperates(e *published) {
	t := e.t
	c := gseAt(t, e.url, gseESB, "operate_proc/", "get_proc_operate_result/")
	c.header = http.Header{"Content-Type": {"application/json"}, "X-Bkapi-Authorization": c.header["X-Bkapi-Authorization"]}
	p := e.procs.new("0:"+e.here, "nginx")
	const namespace = "2.37"
	key := "0:0:" + e.here + ":" + namespace + ":" + p.name
	commands := p.commands()
	request := func(members, identity, control map[string]any) map[string]any {
		body := map[string]any{
			"bk_biz_id": 2, "bk_module_id": 37, "bk_process_id": 45,
			"meta": map[string]any{"namespace": namespace, "name": p.name},
			"spec": map[string]any{
				"identity": identity, "control": control,
				"resource": map[string]any{}, "monitor_policy": map[string]any{}, "warn_report_policy": map[string]any{},
			},
		}
		maps.Copy(body, members)
		return body
	}
	empty := map[string]any{}
	host := map[string]any{"hosts": []any{map[string]any{"bk_host_id": 9, "ip": e.here, "bk_cloud_id": 0, "bk_supplier_id": 0}}}
	register := request(host, map[string]any{"setup_path": p.dir, "pid_path": p.identity()["pid_path"]}, map[string]any{
		"start_cmd": commands["start_cmd"], "stop_cmd": commands["stop_cmd"],
		"restart_cmd": commands["restart_cmd"], "reload_cmd": commands["reload_cmd"],
	})
	for range 2 { // it registers before every operation, and reads only the code of the response
		c.ask(http.MethodPost, gseESB+"register_proc_info/", register, &map[string]gseEntry{})
	}
	does := func(members map[string]any, want int) {
		t.Helper()
		var made map[string]any
		c.ask(http.MethodPost, c.operate, request(members, empty, empty), &made)
		id, ok := made["task_id"].(string)
		if !ok || !strings.HasPrefix(id, "GSETASK:") {
			t.Fatalf("the data of an operation is %v", made)
		}
		var entries map[string]struct {
			Code    *int    `json:"errcode"`
			Message *string `json:"errmsg"`
		}
		testenv.Eventually(t, finishTimeout, func() bool {
			c.ask(http.MethodPost, c.result, map[string]any{"task_id": id}, &entries)
			if got := slices.Collect(maps.Keys(entries)); !slices.Equal(got, []string{key}) || entries[key].Code == nil || entries[key].Message == nil {
				t.Fatalf("the entries are %v", entries)
			}
			return *entries[key].Code != 115
		}, "the outcome is there")
		if *entries[key].Code != want {
			t.Fatalf("%v: %d %q, want %d", members, *entries[key].Code, *entries[key].Message, want)
		}
	}
	does(nil, 0)
	if p.pid() == 0 || p.starts() != 1 {
		t.Errorf("after the start it runs as %v after %d starts", p.running(), p.starts())
	}
	question := map[string]any{"meta": map[string]any{"namespace": namespace, "name": p.name}, "hosts": host["hosts"]}
	c.waitShown(gseESB+"get_proc_status/", question, func() processState { return processState{1, 1, p.pid(), true} }, "it is shown to run")
	does(map[string]any{"op_type": 1}, 0)
	does(map[string]any{"op_type": 1}, 829)
	var unregistered map[string]gseEntry
	c.ask(http.MethodPost, gseESB+"unregister_proc_info/", request(host, empty, empty), &unregistered)
	if entry := unregistered[key]; entry.Code != 0 || len(unregistered) != 1 {
		t.Errorf("unregister: %+v", unregistered)
	}
}
