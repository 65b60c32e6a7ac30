package dispatcher

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestBadInputIsTheCallersAndLeavesNoTask(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Limits.Body = 1 << 20
	cfg.Limits.Items = 1000
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	many := make([]string, 1001)
	for i := range many {
		many[i] = fmt.Sprintf("10.0.%d.%d", i>>8, i&255)
	}
	deep := strings.Repeat(`{"a":`, 50_000) + "1" + strings.Repeat("}", 50_000)
	huge := `{"x":"` + strings.Repeat("x", 1<<20) + `"}`
	endless := func(list string) string { return `{"` + list + `":[` + strings.Repeat("{},", 10_000) + "{}]}" }
	bad, abnormal, job := esbCode(1306406), esbCode(1306000), esbCode(1241002)
	wrong, large := nativeCode(400, "invalid_request"), nativeCode(413, "too_large")
	multi := func(item string) string { return `{"proc_operate_req":[` + item + `]}` }
	swap := func(body, before, after string) string {
		if !strings.Contains(body, before) {
			t.Fatalf("%s is not in %s", before, body)
		}
		return strings.Replace(body, before, after, 1)
	}
	gse, jobGood, native := gseBody(2, "10.0.0.1"), jobBody("10.0.0.1"), nativeBody("0:10.0.0.1")
	for _, c := range []struct {
		name, path, body string
		want             func(answer) bool
	}{
		{"empty body", multiPath, "", bad},
		{"empty body", v2Path, "", bad},
		{"empty body", jobPath, "", job},
		{"empty body", nativePath, "", wrong},
		{"malformed", multiPath, `{"proc_operate_req":`, abnormal},
		{"malformed", jobPath, `{]`, abnormal},
		{"malformed", nativePath, `{]`, wrong},
		{"not an object", v2Path, `[1]`, bad},
		{"not an object", nativePath, `[1]`, wrong},
		{"deep nesting", multiPath, deep, bad},
		{"deep nesting", jobPath, deep, job},
		{"deep nesting", nativePath, deep, wrong},
		{"invalid UTF-8", v2Path, swap(gse, "web", "w\xffb"), bad},
		{"invalid UTF-8", jobPath, swap(jobGood, "nginx", "\xc3\x28"), job},
		{"invalid UTF-8", nativePath, swap(native, "web", "\xf0\x28"), wrong},
		{"over the body limit", multiPath, huge, bad},
		{"over the body limit", jobPath, huge, job},
		{"over the body limit", nativePath, huge, large},
		{"over the item limit", v2Path, gseBody(2, many...), bad},
		{"elements without end", multiPath, endless("proc_operate_req"), bad},
		{"elements without end", jobPath, endless("process_infos"), job},
		{"elements without end", nativePath, endless("operations"), large},
		{"over the item limit", nativePath, swap(native, `"0:10.0.0.1"`, `"0:`+strings.Join(many, `","0:`)+`"`), large},
		{"wrong type", multiPath, `{"proc_operate_req":{}}`, bad},
		{"wrong type", multiPath, multi(swap(gse, `"op_type":2`, `"op_type":"2"`)), bad},
		{"wrong type", v2Path, swap(gse, `"bk_cloud_id":0`, `"bk_cloud_id":"0"`), bad},
		{"wrong type", v2Path, swap(gse, `"op_type":2`, `"op_type":2.5`), bad},
		{"wrong type", v2Path, swap(gse, `"op_type":2`, `"op_type":99999999999999999999`), bad},
		{"wrong type", jobPath, swap(jobGood, `"bk_biz_id":1`, `"bk_biz_id":{}`), job},
		{"wrong type", jobPath, swap(jobGood, `"/srv"`, `7`), job},
		{"wrong type", nativePath, swap(native, `"status"`, `7`), wrong},
		{"wrong type", nativePath, swap(native, `["0:10.0.0.1"]`, `"0:10.0.0.1"`), wrong},
		{"missing field", multiPath, multi(swap(gse, `"namespace":"ns",`, ``)), bad},
		{"missing field", v2Path, swap(gse, `"op_type":2,`, ``), bad},
		{"missing field", v2Path, swap(gse, `"proc_name":"nginx",`, ``), bad},
		{"missing field", v2Path, swap(gse, `"spec"`, `"spek"`), bad},
		{"missing field", jobPath, swap(jobGood, `"bk_biz_id":1,`, ``), job},
		{"missing field", jobPath, swap(jobGood, `"pid_path":"/srv/p.pid",`, ``), job},
		{"missing field", nativePath, swap(native, `"proc_name":"nginx"`, `"x":1`), wrong},
		{"null required", multiPath, `{"proc_operate_req":[null]}`, bad},
		{"null required", v2Path, swap(gse, `"op_type":2`, `"op_type":null`), bad},
		{"null required", jobPath, `{"bk_biz_id":1,"op_type":2,"process_infos":[null]}`, job},
		{"null required", nativePath, `{"operations":[null]}`, wrong},
		{"empty array", multiPath, `{"proc_operate_req":[]}`, bad},
		{"empty array", v2Path, gseBody(2), bad},
		{"empty array", jobPath, `{"bk_biz_id":1,"op_type":2,"process_infos":[]}`, job},
		{"empty array", nativePath, `{"operations":[]}`, wrong},
		{"bad address", v2Path, gseBody(2, "10.0.0.1", "10.0.0"), bad},
		{"bad address", v2Path, gseBody(2, "fe80::1%eth0"), bad},
		{"bad address", v2Path, gseBody(2, "0.0.0.0"), bad},
		{"bad address", jobPath, jobBody("localhost"), job},
		{"bad address", nativePath, nativeBody("10.0.0.1"), wrong},
		{"bad address", nativePath, nativeBody("-1:10.0.0.1"), wrong},
		{"negative cloud", v2Path, swap(gse, `"bk_cloud_id":0`, `"bk_cloud_id":-1`), bad},
		{"unknown action", nativePath, swap(native, `"status"`, `"explode"`), wrong},
		{"a NUL in a name", v2Path, swap(gse, `"web"`, `"w\u0000b"`), bad},
		{"unknown Job op_type", jobPath, swap(jobBody("10.0.0.1"), `"op_type":2`, `"op_type":5`), job},
		{"a result without id", resultPath, `{}`, bad},
		{"a result of no task", resultPath, `{"task_id":"GSETASK:20200318203203:57196"}`, bad},
		{"a result of no task", jobGetPath, `{"bk_biz_id":1,"bk_gse_taskid":"GSETASK:20200318203203:57196"}`, job},
		{"a result of anything", resultPath, `{"task_id":"' OR 1=1"}`, bad},
	} {
		if a := d.call(http.MethodPost, c.path, c.body); !c.want(a) {
			t.Errorf("%s to %s: %d %s", c.name, c.path, a.status, a.text)
		}
	}
	for path, want := range map[string]func(answer) bool{
		"/v1/tasks/GSETASK:20200318203203:57196":         nativeCode(404, "not_found"),
		"/v1/tasks/x":                                    nativeCode(404, "not_found"),
		"/v1/tasks/GSETASK:20200318203203:57196/results": nativeCode(404, "not_found"),
		"/v1/tasks?limit=0":                              wrong,
		"/v1/tasks?cursor=7":                             wrong,
		"/v1/hosts?limit=x":                              wrong,
		"/v1/hosts?after=x":                              wrong,
	} {
		if a := d.call(http.MethodGet, path, ""); !want(a) {
			t.Errorf("GET %s: %d %s", path, a.status, a.text)
		}
	}
	if n := d.tasks(); n != 0 {
		t.Errorf("%d tasks were made of bad input", n)
	}
}

func TestWhatIsUnusualButAllowedIsAccepted(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	for name, c := range map[string]struct{ path, body string }{
		"unknown op_type":      {v2Path, gseBody(6, "10.0.0.1")},
		"the same host twice":  {v2Path, gseBody(2, "10.0.0.1", "10.0.0.1")},
		"null optionals":       {v2Path, strings.Replace(gseBody(2, "10.0.0.1"), `"spec":{`, `"spec":{"control":null,"resource":null,"monitor_policy":null,`, 1)},
		"no command":           {v2Path, gseBody(0, "10.0.0.1")},
		"no host with address": {v2Path, gseBody(2, "")},
		"unknown members":      {v2Path, strings.Replace(gseBody(2, "10.0.0.1"), `{`, `{"what":{"is":["this"]},`, 1)},
		"unknown parameters":   {v2Path + "?paln=true", gseBody(2, "10.0.0.1")},
	} {
		a := d.call(http.MethodPost, c.path, c.body)
		if a.body["result"] != true && a.status != http.StatusCreated {
			t.Errorf("%s: %d %s", name, a.status, a.text)
		}
	}
}
