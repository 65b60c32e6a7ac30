//go:build linux

package e2e

import (
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

const (
	gseESB       = "/api/c/compapi/v2/gse/"
	supplierHost = "0:0:127.0.0.1:e2e:" // prefix of keys of GSE's first calls
)

// registrar calls GSE's first generation of calls, which register a process once
// and then name it.
type registrar struct {
	*gseClient
	p   proc
	key string
}

func (u *up) registrar(p proc) *registrar {
	return &registrar{
		gseClient: u.gseAs("bk_cmdb", gseESB+"operate_proc/", http.MethodPost, gseESB+"get_proc_operate_result/"),
		p:         p, key: supplierHost + p.name,
	}
}

func (r *registrar) body(members map[string]any) map[string]any {
	body := map[string]any{"meta": map[string]any{"namespace": "e2e", "name": r.p.name}}
	maps.Copy(body, members)
	return body
}

func here() map[string]any {
	return map[string]any{"hosts": []map[string]any{{"ip": "127.0.0.1", "bk_cloud_id": 0, "bk_supplier_id": 0}}}
}

// registers sends one of the calls about registrations and returns the outcome of
// the host.
func (r *registrar) registers(call string) gseEntry {
	r.t.Helper()
	body := r.body(here())
	if call != "unregister_proc_info" {
		operation := with(gseOperation(r.p, 0), nil, "monitor_policy")
		body["spec"] = operation["spec"]
		body["spec"].(map[string]any)["resource"] = map[string]any{"cpu": 0, "mem": 0}
	}
	var entries map[string]gseEntry
	r.ask(http.MethodPost, gseESB+call+"/", body, &entries)
	if len(entries) != 1 {
		r.t.Fatalf("%s: %+v", call, entries)
	}
	return entries[r.key]
}

// does executes an operation on the registered process.
func (r *registrar) does(members map[string]any) gseEntry {
	r.t.Helper()
	_, entries := r.do(r.body(members), r.key)
	return entries[r.key]
}

// registeredInfo has the state of the process in get_proc_status.
type registeredInfo struct {
	Flag, Status, PID int
	IsAuto            bool `json:"isauto"`
}

func (r *registrar) status() []registeredInfo {
	r.t.Helper()
	var data struct {
		ProcInfos []registeredInfo `json:"proc_infos"`
	}
	r.ask(http.MethodPost, gseESB+"get_proc_status/", r.body(here()), &data)
	return data.ProcInfos
}

func (r *registrar) waitStatus(want registeredInfo) {
	r.t.Helper()
	var got []registeredInfo
	testenv.Eventually(r.t, finishTimeout, func() bool {
		got = r.status()
		return len(got) == 1 && got[0] == want
	}, "the process is shown as it is")
}

// TestAProcessIsRegisteredOnceAndThenNamed tests the life of a registration;
// the system is killed during it.
func TestAProcessIsRegisteredOnceAndThenNamed(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	r := u.registrar(newProcs(t).new("0:127.0.0.1", "registered"))
	op := func(n int) map[string]any { return also(here(), "op_type", n) }

	if e := r.does(here()); e.Code != 65535 || !strings.Contains(e.Message, "process info not registered") {
		t.Errorf("start before it is registered: %+v", e)
	}
	if e := r.does(op(1)); e.Code != 829 {
		t.Errorf("stop before it is registered: %+v", e)
	}
	checkContent(t, r.does(op(2)), -1)
	if e := r.registers("register_proc_info"); e.Code != 0 || e.Message != "success" {
		t.Fatalf("register: %+v", e)
	}
	if e := r.registers("register_proc_info"); e.Code != 850 {
		t.Errorf("register again: %+v", e)
	}
	r.waitStatus(registeredInfo{PID: -1})

	u.child.Kill()
	u.start()
	if e := r.does(here()); e.Code != 0 || r.p.pid() == 0 { // the default of op_type is a start
		t.Fatalf("start by registration: %+v, pid %d", e, r.p.pid())
	}
	pid := r.p.pid()
	r.waitStatus(registeredInfo{Flag: 1, Status: 1, PID: pid, IsAuto: true})
	checkContent(t, r.does(map[string]any{"op_type": 2}), pid) // on every host with a registration

	if e := r.registers("unregister_proc_info"); e.Code != 0 {
		t.Errorf("unregister: %+v", e)
	}
	r.waitReleased(pid)
	if e := r.registers("unregister_proc_info"); e.Code != 829 {
		t.Errorf("unregister again: %+v", e)
	}
	if e := r.does(here()); e.Code != 65535 {
		t.Errorf("start after it was unregistered: %+v", e)
	}
}

func also(members map[string]any, name string, value any) map[string]any {
	members[name] = value
	return members
}

// waitReleased waits until the agent no longer supervises the running process.
func (r *registrar) waitReleased(pid int) {
	r.t.Helper()
	testenv.Eventually(r.t, finishTimeout, func() bool {
		id := r.submit(operation("status", []proc{r.p}))
		r.wait(id)
		s := r.results(id, 1)[0].Status
		return s != nil && s.PID == pid && !s.Supervised
	}, "the process is released and runs on")
}

// TestKilledWhileUnregistering kills the system after the release of a process and
// before its registration is removed. The caller, which got no response, repeats
// the request.
func TestKilledWhileUnregistering(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.child = testenv.StartChild(t, crashAt("dispatcher.released"), u.program, u.args...)
	u.child.WaitHTTP(t, startTimeout, u.c.url+"/readyz")
	r := u.registrar(newProcs(t).new("0:127.0.0.1", "released"))
	u.c.wait(u.c.submit(operation("start", []proc{r.p}))) // also registers it
	pid := r.p.pid()
	if status, text, ok := r.call(http.MethodPost, gseESB+"unregister_proc_info/", "", r.body(here())); ok {
		t.Fatalf("response %d %s, but the system should have died at dispatcher.released", status, text)
	}
	u.child.Wait(t, startTimeout)
	u.start()
	if got := r.status(); len(got) != 1 {
		t.Errorf("after the kill the process is %+v", got)
	}
	if e := r.registers("unregister_proc_info"); e.Code != 0 {
		t.Errorf("unregister again: %+v", e)
	}
	r.waitReleased(pid)
	if e := r.registers("unregister_proc_info"); e.Code != 829 {
		t.Errorf("and again: %+v", e)
	}
}
