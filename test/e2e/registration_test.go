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
	supplierHost = "0:0:127.0.0.1:e2e:" // a key of GSE's first calls, without the name
)

// registrar calls GSE's first generation of calls, by which a process is
// registered once and then only named.
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

// registers makes one of the calls about registrations and returns the
// outcome of the one host.
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

// does operates on what is registered.
func (r *registrar) does(members map[string]any) gseEntry {
	r.t.Helper()
	_, entries := r.do(r.body(members), r.key)
	return entries[r.key]
}

// registeredInfo is what get_proc_status shows of the process.
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

// TestAProcessIsRegisteredOnceAndThenOnlyNamed goes through the life of a
// registration; the system is killed in the middle of it.
func TestAProcessIsRegisteredOnceAndThenOnlyNamed(t *testing.T) {
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
	if e := r.does(here()); e.Code != 0 || r.p.pid() == 0 { // no op_type is a start
		t.Fatalf("start by registration: %+v, pid %d", e, r.p.pid())
	}
	pid := r.p.pid()
	r.waitStatus(registeredInfo{Flag: 1, Status: 1, PID: pid, IsAuto: true})
	checkContent(t, r.does(map[string]any{"op_type": 2}), pid) // on every host where it is registered

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

// waitReleased waits until the process, which goes on, is left alone.
func (r *registrar) waitReleased(pid int) {
	r.t.Helper()
	testenv.Eventually(r.t, finishTimeout, func() bool {
		id := r.submit(operation("status", []proc{r.p}))
		r.wait(id)
		s := r.results(id, 1)[0].Status
		return s != nil && s.PID == pid && !s.Supervised
	}, "the process is released and runs on")
}

// TestKilledWhileUnregistering: what was released is still registered, so the
// caller, who got no answer, asks again.
func TestKilledWhileUnregistering(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.child = testenv.StartChild(t, crashAt("dispatcher.released"), u.program, u.args...)
	u.child.WaitHTTP(t, startTimeout, u.c.url+"/readyz")
	r := u.registrar(newProcs(t).new("0:127.0.0.1", "released"))
	u.c.wait(u.c.submit(operation("start", []proc{r.p}))) // registers as well
	pid := r.p.pid()
	if status, text, ok := r.call(http.MethodPost, gseESB+"unregister_proc_info/", "", r.body(here())); ok {
		t.Fatalf("answered %d %s, and should have died at dispatcher.released", status, text)
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
