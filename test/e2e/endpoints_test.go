//go:build linux

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/testenv"
)

// route is one method and path of a call.
type route struct{ method, path string }

func (r route) String() string { return r.method + " " + r.path }

// scene is a system with a supervised running process, and the task that started
// it.
type scene struct {
	*client
	ip   string
	p    proc
	task string
}

// set starts the process on a host with a live agent, and waits until its report
// shows it as running.
func set(t *testing.T, c *client, procs *procs, ip string) *scene {
	t.Helper()
	s := &scene{client: c, ip: ip, p: procs.new("0:"+ip, "endpoint")}
	s.task = c.submit(operation("start", []proc{s.p}))
	if end := c.wait(s.task); end.Counts["succeeded"] != 1 {
		t.Fatalf("the process did not start: %v", end.Counts)
	}
	testenv.Eventually(t, finishTimeout, func() bool {
		var data struct {
			Infos []procInfo `json:"proc_infos"`
		}
		s.dataOf(route{http.MethodPost, "/c/compapi/v2/gse/get_proc_status_v2"}, s.gse(nil), &data)
		return len(data.Infos) == 1 && data.Infos[0].Status == 1
	}, "the process is reported to run")
	return s
}

// as returns the scene for a subtest.
func (s *scene) as(t *testing.T) *scene {
	t.Helper()
	part := *s
	part.client = &client{t: t, url: s.url, header: s.header}
	return &part
}

// hosts returns the host for GSE and Job.
func (s *scene) hosts() []map[string]any { return []map[string]any{{"ip": s.ip, "bk_cloud_id": 0}} }

// gse returns a request about the process for GSE, with further members.
func (s *scene) gse(members map[string]any) map[string]any {
	return body(map[string]any{"meta": map[string]any{"namespace": "e2e", "name": s.p.name}, "hosts": s.hosts()}, members)
}

// spec returns the process for GSE.
func (s *scene) spec() any {
	spec := with(gseOperation(s.p, 0), nil, "monitor_policy")["spec"].(map[string]any)
	spec["resource"] = map[string]any{"cpu": 10, "mem": 10.5}
	return spec
}

func (s *scene) job(members map[string]any) map[string]any {
	return body(map[string]any{"bk_biz_id": 2}, members)
}

// oldJob returns a request of an older ESB to Job.
func (s *scene) oldJob(members map[string]any) map[string]any {
	return map[string]any{"bk_biz_id": 2, "params": members, "operator": "admin", "bk_app_code": "shop", "request_id": "r"}
}

func body(members, more map[string]any) map[string]any {
	maps.Copy(members, more)
	return members
}

// answered returns any response in JSON.
func (s *scene) answered(r route, body any) (status int, answer map[string]any) {
	s.t.Helper()
	status, text, ok := s.call(r.method, r.path, "", body)
	if !ok || json.Unmarshal(text, &answer) != nil {
		s.t.Fatalf("%s: %d %s", r, status, text)
	}
	return status, answer
}

var hex32 = regexp.MustCompile(`^[0-9a-f]{32}$`)

// dataOf decodes the data of a published call that must succeed, from the common
// envelope.
func (s *scene) dataOf(r route, body, into any) {
	s.t.Helper()
	status, answer := s.answered(r, body)
	id, _ := answer["request_id"].(string)
	message, isText := answer["message"].(string)
	if messages, old := answer["bk_error_msg"].(map[string]any); old { // for an older ESB
		message, isText = messages["en"].(string)
		answer["code"] = answer["bk_error_code"]
	}
	if status != http.StatusOK || answer["result"] != true || answer["code"] != 0.0 || !isText || message != "" && message != "success" || !hex32.MatchString(id) {
		s.t.Fatalf("%s: %d %v", r, status, answer)
	}
	s.decode(r, answer["data"], into)
}

// nativeOf decodes a native response with the given status.
func (s *scene) nativeOf(r route, body any, want int, into any) {
	s.t.Helper()
	status, answer := s.answered(r, body)
	if status != want {
		s.t.Fatalf("%s: %d %v, want %d", r, status, answer, want)
	}
	s.decode(r, answer, into)
}

func (s *scene) decode(r route, value, into any) {
	s.t.Helper()
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		s.t.Fatalf("%s: %v in %s", r, err, text)
	}
}

// checkStatus submits a status task with a call of GSE, which must find the process under
// the key.
func (s *scene) checkStatus(r route, request any, key string) {
	s.t.Helper()
	var made struct {
		TaskID string `json:"task_id"`
	}
	s.dataOf(r, request, &made)
	poll := route{http.MethodPost, "/api/c/compapi/v2/gse/get_proc_operate_result_v2/"}
	var entries map[string]gseEntry
	testenv.Eventually(s.t, finishTimeout, func() bool {
		entries = nil
		s.dataOf(poll, map[string]any{"task_id": made.TaskID}, &entries)
		if _, there := entries[key]; !there || len(entries) != 1 {
			s.t.Fatalf("%s made a task with %v, want the key %s", r, entries, key)
		}
		return entries[key].Code != 115
	}, "the task of "+r.String()+" is over")
	checkContent(s.t, entries[key], s.p.pid())
}

// checkJob submits a task with a call of Job, which must succeed.
func (s *scene) checkJob(r route, asks func(members map[string]any) map[string]any) {
	s.t.Helper()
	info := s.p.inPlace()
	info["ip_list"] = s.hosts()
	var made struct {
		TaskID string `json:"bk_gse_taskid"`
	}
	s.dataOf(r, asks(map[string]any{"op_type": 2, "process_infos": []any{info}}), &made)
	poll := route{http.MethodGet, "/api/c/compapi/v2/job/get_proc_result/?bk_biz_id=2&bk_gse_taskid=" + url.QueryEscape(made.TaskID)}
	testenv.Eventually(s.t, finishTimeout, func() bool { return s.jobFinished(poll, nil, s.p.dir+"/"+s.p.name+":0:"+s.ip) }, "the task of "+r.String()+" is over")
}

// jobFinished reports whether a task is finished; its only entry must be about the
// running process.
func (s *scene) jobFinished(r route, request any, key string) (over bool) {
	s.t.Helper()
	var data struct {
		Status int
		Result map[string]jobEntry
	}
	s.dataOf(r, request, &data)
	e, there := data.Result[key]
	switch {
	case !there || len(data.Result) != 1 || (e.Code == 115) != (data.Status == 115):
		s.t.Fatalf("%s: %+v, want the key %s", r, data, key)
	case e.Code == 115:
		return false
	}
	var content struct {
		Process []struct {
			Instance []struct {
				PID int `json:"pid"`
			} `json:"instance"`
		} `json:"process"`
	}
	if err := json.Unmarshal(e.Content, &content); err != nil || e.Code != 0 || len(content.Process) != 1 || content.Process[0].Instance[0].PID != s.p.pid() {
		s.t.Fatalf("%s: %d %q %s, want pid %d", r, e.Code, e.Message, e.Content, s.p.pid())
	}
	return true
}

// registered checks the outcome of a registration call for one process.
func (s *scene) registered(r route, request any, name string, want int) {
	s.t.Helper()
	var entries map[string]gseEntry
	s.dataOf(r, request, &entries)
	key := fmt.Sprintf("0:0:%s:e2e:%s", s.ip, name)
	if e, there := entries[key]; !there || len(entries) != 1 || e.Code != want || (want == 0) != (e.Message == "success") {
		s.t.Fatalf("%s: %+v, want %d for %s", r, entries, want, key)
	}
}

// nativeOutcome checks the outcome of a native call on the host.
func (s *scene) nativeOutcome(r route, request any, want int) {
	s.t.Helper()
	var answer struct {
		Results []struct {
			Host    string
			Code    int
			Message string
		}
	}
	s.nativeOf(r, request, http.StatusOK, &answer)
	if got := answer.Results; len(got) != 1 || got[0].Host != s.p.host || got[0].Code != want || got[0].Message == "" {
		s.t.Fatalf("%s: %+v, want %d", r, got, want)
	}
}

// onHost returns a native request about the host, with further members.
func (s *scene) onHost(members map[string]any) map[string]any {
	return body(map[string]any{"hosts": []string{s.p.host}}, members)
}

// other returns a process that no test starts.
func (s *scene) other(name string) map[string]any {
	return body(s.p.spec(), map[string]any{"name": name})
}

// row calls a call by one of its routes and checks the purpose of the response.
type row func(s *scene, r route)

// rows returns the rows of every call of every dialect.
func rows() map[string]row {
	all := map[string]row{}
	for _, some := range []map[string]row{
		operateRows(), statusRows(), registerRows(), groupRows(), agentRows(), jobRows(), nativeTaskRows(), nativeProcessRows(), nativeFreezeRows(), nativeCatalogueRows(), nativeTopologyRows(), nativeRolloutRows(), cmdbRows(),
	} {
		maps.Copy(all, some)
	}
	return all
}

func operateRows() map[string]row {
	results := func(names ...string) row {
		return func(s *scene, r route) {
			var entries map[string]map[string]any
			s.dataOf(r, map[string]any{"task_id": s.task}, &entries)
			key := "0:" + s.ip + ":e2e:" + s.p.name
			e := entries[key]
			content, _ := e["content"].(string)
			if len(entries) != 1 || len(e) != len(names) || !strings.Contains(content, `"result":"success"`) {
				s.t.Fatalf("%s: %v, want the members %q under %s", r, entries, names, key)
			}
			for _, name := range names {
				if v := e[name]; name != "content" && v != 0.0 && v != "success" {
					s.t.Errorf("%s: %s is %v", r, name, v)
				}
			}
		}
	}
	return map[string]row{
		"gse.operate_proc_multi": func(s *scene, r route) {
			item := body(with(gseOperation(s.p, 2), nil, "alive_monitor_policy"), map[string]any{"hosts": s.hosts()})
			s.checkStatus(r, map[string]any{"proc_operate_req": []any{item}}, "0:"+s.ip+":e2e:"+s.p.name)
		},
		"gse.operate_proc_v2": func(s *scene, r route) {
			item := body(with(gseOperation(s.p, 2), nil, "monitor_policy"), map[string]any{"agent_id_list": []string{"0:" + s.ip}})
			s.checkStatus(r, item, "0:"+s.ip+":e2e:"+s.p.name)
		},
		"gse.operate_proc": func(s *scene, r route) {
			s.checkStatus(r, s.gse(map[string]any{"op_type": 2}), "0:0:"+s.ip+":e2e:"+s.p.name)
		},
		"gse.get_proc_operate_result":    results("error_code", "error_msg", "content", "errcode", "errmsg"),
		"gse.get_proc_operate_result_v2": results("error_code", "error_msg", "content"),
	}
}

func statusRows() map[string]row {
	runs := func(s *scene, r route, infos []procInfo) {
		s.t.Helper()
		at := slices.IndexFunc(infos, func(i procInfo) bool { return i.Meta.Name == s.p.name })
		if at < 0 {
			s.t.Fatalf("%s: %+v", r, infos)
		}
		i := infos[at]
		if i.PID != s.p.pid() || i.Status != 1 || i.Flag != 1 || i.IsAuto == nil || !*i.IsAuto || i.AgentID == nil || i.Host.IP != s.ip || i.Host.Cloud == nil {
			s.t.Errorf("%s: %+v, want pid %d", r, i, s.p.pid())
		}
	}
	one := func(s *scene, r route) {
		var data struct {
			Infos []procInfo `json:"proc_infos"`
		}
		s.dataOf(r, s.gse(nil), &data)
		runs(s, r, data.Infos)
	}
	return map[string]row{
		"gse.get_proc_status":    one,
		"gse.get_proc_status_v2": one,
		"gse.sync_proc_status": func(s *scene, r route) {
			var data struct {
				Count int
				Infos []procInfo `json:"proc_infos"`
			}
			s.dataOf(r, map[string]any{"meta": map[string]any{"namespace": "e2e"}, "page": map[string]any{"start": 0, "limit": 1000}}, &data)
			if data.Count < 1 || data.Count != len(data.Infos) {
				s.t.Errorf("%s: %d entries, and a count of %d", r, len(data.Infos), data.Count)
			}
			runs(s, r, data.Infos)
		},
	}
}

func registerRows() map[string]row {
	named := func(s *scene, name string) map[string]any {
		return s.gse(map[string]any{"meta": map[string]any{"namespace": "e2e", "name": name}, "spec": s.spec()})
	}
	return map[string]row{
		"gse.register_proc_info": func(s *scene, r route) { s.registered(r, named(s, s.p.name), s.p.name, 850) },
		"gse.update_proc_info":   func(s *scene, r route) { s.registered(r, named(s, "updated"), "updated", 0) },
		"gse.unregister_proc_info": func(s *scene, r route) {
			name := fmt.Sprintf("leaves by %q", r)
			s.nativeOutcome(route{http.MethodPut, "/v1/registrations"}, s.onHost(map[string]any{"process": s.other(name)}), 0)
			s.registered(r, named(s, name), name, 0)
			s.registered(r, named(s, name), name, 829)
		},
	}
}

func groupRows() map[string]row {
	request := func(s *scene, groups ...map[string]any) map[string]any {
		return s.gse(map[string]any{"meta": map[string]any{"namespace": "grouped"}, "spec": map[string]any{"process_group": groups}})
	}
	group := map[string]any{"id": "g", "resource": map[string]any{
		"cpu_pool_limit": 12.5, "mem_pool_limit": 20.0, "cpu_pool_weight": 1, "mem_pool_weight": 0,
	}}
	return map[string]row{
		"gse.set_process_group_info": func(s *scene, r route) {
			var entries map[string]gseEntry
			s.dataOf(r, request(s, group), &entries)
			if e, there := entries["0:0:"+s.ip+":grouped"]; !there || len(entries) != 1 || e.Code != 0 || e.Message != "success" {
				s.t.Errorf("%s: %+v", r, entries)
			}
		},
		"gse.get_process_group_info": func(s *scene, r route) {
			var set map[string]gseEntry
			s.dataOf(route{http.MethodPost, "/api/c/compapi/v2/gse/set_process_group_info"}, request(s, group), &set)
			var data struct {
				Infos []struct {
					ID       string
					Resource map[string]float64
				} `json:"process_group_infos"`
			}
			s.dataOf(r, request(s), &data)
			if i := data.Infos; len(i) != 1 || i[0].ID != "g" || i[0].Resource["cpu_pool_limit"] != 12.5 || i[0].Resource["cpu_pool_weight"] != 1 {
				s.t.Errorf("%s: %+v", r, data)
			}
		},
	}
}

func agentRows() map[string]row {
	byHost := func(member string, is func(v any) bool) row {
		return func(s *scene, r route) {
			var agents map[string]map[string]any
			s.dataOf(r, map[string]any{"hosts": s.hosts()}, &agents)
			if a := agents["0:"+s.ip]; len(agents) != 1 || a["ip"] != s.ip || a["bk_cloud_id"] != 0.0 || !is(a[member]) {
				s.t.Errorf("%s: %v", r, agents)
			}
		}
	}
	byID := func(s *scene, r route) {
		var agents []map[string]any
		s.dataOf(r, map[string]any{"agent_id_list": []string{"0:" + s.ip, "nobody"}}, &agents)
		if len(agents) != 2 || agents[0]["bk_agent_id"] != "0:"+s.ip || agents[0]["status_code"] != 2.0 || agents[1]["status_code"] != -2.0 {
			s.t.Errorf("%s: %v", r, agents)
		}
	}
	return map[string]row{
		"gse.get_agent_status": byHost("bk_agent_alive", func(v any) bool { return v == 1.0 }),
		"gse.get_agent_info":   byHost("version", func(v any) bool { text, is := v.(string); return is && text != "" }),
		"gse.list_agent_state": byID,
		"gse.list_agent_info":  byID,
		"gse.upgrade_to_agent_id": func(s *scene, r route) {
			var bound struct{ Success, Failed []string }
			s.dataOf(r, map[string]any{"hosts": []any{map[string]any{"ip": s.ip, "bk_cloud_id": 0, "bk_agent_id": "02000000005254000b3dc9168005"}}}, &bound)
			if !slices.Equal(bound.Success, []string{"0:" + s.ip}) || len(bound.Failed) != 0 {
				s.t.Errorf("%s: %+v", r, bound)
			}
		},
	}
}

func jobRows() map[string]row {
	return map[string]row{
		"job.operate_proc":       func(s *scene, r route) { s.checkJob(r, s.job) },
		"job.operate_process":    func(s *scene, r route) { s.checkJob(r, s.job) },
		"oldjob.operate_proc":    func(s *scene, r route) { s.checkJob(r, s.oldJob) },
		"oldjob.operate_process": func(s *scene, r route) { s.checkJob(r, s.oldJob) },
		"oldjob.manage_proc":     func(s *scene, r route) { s.checkJob(r, s.oldJob) },
		"oldjob.get_proc_result": func(s *scene, r route) {
			if !s.jobFinished(r, s.oldJob(map[string]any{"bk_gse_taskid": s.task}), "0:"+s.ip+":e2e:"+s.p.name) {
				s.t.Errorf("%s: a finished task is 115", r)
			}
		},
		// Its op_type 2 releases the process of this key, which is not a key of
		// GSE.
		"job.manage_proc": func(s *scene, r route) { s.checkJob(r, s.job) },
		"job.get_proc_result": func(s *scene, r route) {
			if !s.jobFinished(r, s.job(map[string]any{"bk_gse_taskid": s.task}), "0:"+s.ip+":e2e:"+s.p.name) {
				s.t.Errorf("%s: a finished task is 115", r)
			}
		},
	}
}

func nativeTaskRows() map[string]row {
	return map[string]row{
		"native": func(s *scene, r route) {
			var made struct{ ID string }
			s.nativeOf(r, operation("status", []proc{s.p}), http.StatusCreated, &made)
			s.wait(made.ID)
			if got := s.results(made.ID, 1)[0]; got.Status == nil || got.Status.PID != s.p.pid() || !got.Status.Supervised {
				s.t.Errorf("%s: %+v, want pid %d", r, got, s.p.pid())
			}
		},
		"native.tasks": func(s *scene, r route) {
			var page struct{ Tasks []task }
			s.nativeOf(route{r.method, r.path + "?limit=1000"}, nil, http.StatusOK, &page)
			if !slices.ContainsFunc(page.Tasks, func(t task) bool { return t.ID == s.task }) {
				s.t.Errorf("%s: %d tasks without %s", r, len(page.Tasks), s.task)
			}
		},
		"native.task": func(s *scene, r route) {
			var shown task
			s.nativeOf(r, nil, http.StatusOK, &shown)
			if shown.ID != s.task || shown.State != "finished" || shown.Counts["succeeded"] != 1 {
				s.t.Errorf("%s: %+v", r, shown)
			}
		},
		"native.cancel": func(s *scene, r route) { s.nativeOf(r, nil, http.StatusConflict, new(any)) }, // the task is finished
		"native.undo":   func(s *scene, r route) { s.nativeOf(r, nil, http.StatusConflict, new(any)) }, // no rollout
		"native.retry":  func(s *scene, r route) { s.nativeOf(r, nil, http.StatusConflict, new(any)) }, // no item failed
		"native.pause":  func(s *scene, r route) { s.nativeOf(r, nil, http.StatusConflict, new(any)) }, // the task is finished
		"native.resume": func(s *scene, r route) { s.nativeOf(r, nil, http.StatusConflict, new(any)) },
		"native.approve": func(s *scene, r route) {
			s.nativeOf(r, map[string]any{"stage": 1}, http.StatusConflict, new(any)) // the task has no rollout
		},
		"native.events": func(s *scene, r route) {
			status, text, ok := s.call(r.method, r.path, "", nil)
			if !ok || status != http.StatusOK || !bytes.Contains(text, []byte(`"state":"finished"`)) || !bytes.Contains(text, []byte("data: {")) {
				s.t.Errorf("%s: %d %s", r, status, text)
			}
		},
		"native.task_events": func(s *scene, r route) { s.followed(r) },
		"native.results": func(s *scene, r route) {
			var page struct{ Results []result }
			s.nativeOf(r, nil, http.StatusOK, &page)
			if got := page.Results; len(got) != 1 || got[0].Code != 0 || got[0].Status == nil || got[0].Status.PID != s.p.pid() {
				s.t.Errorf("%s: %+v, want pid %d", r, page, s.p.pid())
			}
		},
		"native.fleet": func(s *scene, r route) {
			type process struct {
				Host, Name string
				Status     struct{ PID int }
			}
			var page struct{ Processes []process }
			s.nativeOf(r, nil, http.StatusOK, &page)
			at := slices.IndexFunc(page.Processes, func(p process) bool { return p.Name == s.p.name })
			if at < 0 || page.Processes[at].Host != s.p.host || page.Processes[at].Status.PID != s.p.pid() {
				s.t.Errorf("%s: %+v, want pid %d", r, page, s.p.pid())
			}
		},
		"native.output": func(s *scene, r route) {
			s.nativeOf(route{r.method, r.path + "?host=" + s.p.host + "&process=nobody/nothing"}, nil, http.StatusNotFound, new(any))
		},
		"native.audit": func(s *scene, r route) {
			var page struct {
				Records []struct{ Event, Task string }
				Next    string
			}
			s.nativeOf(r, nil, http.StatusOK, &page)
			if len(page.Records) == 0 || page.Records[0].Event == "" || page.Next == "" {
				s.t.Errorf("%s: %+v", r, page)
			}
		},
		"native.hosts": func(s *scene, r route) {
			var page struct{ Hosts []struct{ Host string } }
			s.nativeOf(r, nil, http.StatusOK, &page)
			if len(page.Hosts) != 1 || page.Hosts[0].Host != s.p.host {
				s.t.Errorf("%s: %+v", r, page)
			}
		},
	}
}

func nativeProcessRows() map[string]row {
	type process struct {
		Host, Name string
		Reported   *struct {
			Desired string
			Status  struct{ PID int }
		}
	}
	runs := func(s *scene, r route, found []process) {
		s.t.Helper()
		at := slices.IndexFunc(found, func(p process) bool { return p.Name == s.p.name && p.Host == s.p.host })
		if at < 0 || found[at].Reported == nil || found[at].Reported.Desired != "up" || found[at].Reported.Status.PID != s.p.pid() {
			s.t.Errorf("%s: %+v, want pid %d", r, found, s.p.pid())
		}
	}
	group := []any{map[string]any{"id": "g", "cpu_limit": 12.5}}
	return map[string]row{
		"native.register": func(s *scene, r route) {
			s.nativeOutcome(r, s.onHost(map[string]any{"process": s.other("registered")}), 0)
		},
		"native.register_new": func(s *scene, r route) {
			s.nativeOutcome(r, s.onHost(map[string]any{"process": s.p.spec()}), 850)
		},
		"native.unregister": func(s *scene, r route) {
			left := s.onHost(map[string]any{"process": s.other("left")})
			s.nativeOutcome(route{http.MethodPut, "/v1/registrations"}, left, 0)
			left["process"] = map[string]any{"namespace": s.p.spec()["namespace"], "name": "left"}
			s.nativeOutcome(r, left, 0)
			s.nativeOutcome(r, left, 829)
		},
		"native.processes": func(s *scene, r route) {
			var page struct {
				Processes []process
				Total     int
			}
			s.nativeOf(route{r.method, r.path + "?namespace=e2e&limit=1000"}, nil, http.StatusOK, &page)
			if page.Total != len(page.Processes) {
				s.t.Errorf("%s: %d entries, and a total of %d", r, len(page.Processes), page.Total)
			}
			runs(s, r, page.Processes)
		},
		"native.process": func(s *scene, r route) {
			var answer struct{ Processes []process }
			s.nativeOf(r, s.onHost(map[string]any{"process": map[string]any{"namespace": "e2e", "name": s.p.name}}), http.StatusOK, &answer)
			runs(s, r, answer.Processes)
		},
		"native.set_groups": func(s *scene, r route) {
			s.nativeOutcome(r, s.onHost(map[string]any{"namespace": "set", "groups": group}), 0)
		},
		"native.label_hosts": func(s *scene, r route) {
			s.nativeOutcome(r, s.onHost(map[string]any{"set": map[string]string{"owner": "e2e"}}), 0)
			var page struct {
				Hosts []struct{ Labels map[string]string }
			}
			s.nativeOf(route{http.MethodGet, "/v1/hosts?label=owner=e2e"}, nil, http.StatusOK, &page)
			if len(page.Hosts) != 1 || page.Hosts[0].Labels["owner"] != "e2e" {
				s.t.Errorf("%s: hosts with the label: %+v", r, page)
			}
		},
		"native.groups": func(s *scene, r route) {
			s.nativeOutcome(route{http.MethodPut, "/v1/groups"}, s.onHost(map[string]any{"namespace": "shown", "groups": group}), 0)
			var answer struct {
				Hosts []struct {
					Host   string
					Groups []struct{ ID string }
				}
			}
			s.nativeOf(r, s.onHost(map[string]any{"namespace": "shown"}), http.StatusOK, &answer)
			if h := answer.Hosts; len(h) != 1 || h[0].Host != s.p.host || len(h[0].Groups) != 1 || h[0].Groups[0].ID != "g" {
				s.t.Errorf("%s: %+v", r, answer)
			}
		},
		"native.agents": func(s *scene, r route) {
			var answer struct {
				Agents []struct {
					Host  string
					Agent *struct{ OS string }
				}
			}
			s.nativeOf(r, s.onHost(nil), http.StatusOK, &answer)
			if a := answer.Agents; len(a) != 1 || a[0].Host != s.p.host || a[0].Agent == nil || a[0].Agent.OS != "linux" {
				s.t.Errorf("%s: %+v", r, answer)
			}
		},
		"native.bind_agents": func(s *scene, r route) {
			var answer struct{ Results []struct{ Bound bool } }
			s.nativeOf(r, map[string]any{"bindings": []any{map[string]any{"host": s.p.host, "agent_id": "02000000005254000b3dc9168005"}}}, http.StatusOK, &answer)
			if len(answer.Results) != 1 || !answer.Results[0].Bound {
				s.t.Errorf("%s: %+v", r, answer)
			}
		},
	}
}

func nativeFreezeRows() map[string]row {
	type freeze struct{ Host, Namespace, Reason string }
	freezes := route{http.MethodPut, "/v1/freezes"}
	of := func(s *scene, namespace string) map[string]any {
		return s.onHost(map[string]any{"namespace": namespace})
	}
	frozen := func(s *scene, r route, namespace string) {
		s.t.Helper()
		s.nativeOutcome(r, body(of(s, namespace), map[string]any{"ttl": "10m", "reason": "release"}), 0)
	}
	return map[string]row{
		"native.freeze": func(s *scene, r route) { frozen(s, r, "frozen") },
		"native.lift": func(s *scene, r route) {
			frozen(s, freezes, "lifted")
			s.nativeOutcome(r, of(s, "lifted"), 0)
			s.nativeOutcome(r, of(s, "lifted"), 829)
		},
		"native.freezes": func(s *scene, r route) {
			frozen(s, freezes, "listed")
			var page struct{ Freezes []freeze }
			s.nativeOf(route{r.method, r.path + "?limit=1000"}, nil, http.StatusOK, &page)
			if !slices.Contains(page.Freezes, freeze{s.p.host, "listed", "release"}) {
				s.t.Errorf("%s: %+v", r, page)
			}
		},
		"native.health": func(s *scene, r route) {
			var health struct {
				NATS, Store, Sweep struct{ Problem string }
				Workers            struct {
					Problem string
					Running []struct{ Host string }
				}
			}
			s.nativeOf(r, nil, http.StatusOK, &health)
			if p := health.NATS.Problem + health.Store.Problem + health.Sweep.Problem + health.Workers.Problem; p != "" || len(health.Workers.Running) != 1 {
				s.t.Errorf("%s: %+v", r, health)
			}
		},
		"native.host_events": func(s *scene, r route) {
			var page struct {
				Events []struct{ Host, Kind string }
				Next   string
			}
			s.nativeOf(route{r.method, r.path + "?after=0&host=" + s.p.host}, nil, http.StatusOK, &page)
			for _, e := range page.Events {
				if e.Host != s.p.host || e.Kind == "" {
					s.t.Errorf("%s: %+v", r, e)
				}
			}
			if page.Next == "" {
				s.t.Errorf("%s: next is empty", r)
			}
		},
	}
}

func nativeCatalogueRows() map[string]row {
	type process struct {
		ID      int64
		Name    string
		Outcome string
		Modules []string
	}
	catalogue := route{http.MethodPut, "/v1/catalogue/2"}
	saved := func(s *scene, r route, name string) process {
		s.t.Helper()
		var answer struct{ Processes []process }
		one := map[string]any{"name": name, "work_path": s.p.dir, "modules": []string{"of " + name}}
		s.nativeOf(r, map[string]any{"processes": []any{one}}, http.StatusOK, &answer)
		if len(answer.Processes) != 1 || answer.Processes[0].Name != name || answer.Processes[0].Outcome != "created" {
			s.t.Fatalf("%s: %+v", r, answer)
		}
		return answer.Processes[0]
	}
	return map[string]row{
		"native.save_catalogue": func(s *scene, r route) { saved(s, r, "saved") },
		"native.delete_catalogue": func(s *scene, r route) {
			made := saved(s, catalogue, "deleted")
			s.nativeOf(route{r.method, fmt.Sprintf("/v1/catalogue/2/%d", made.ID)}, nil, http.StatusConflict, new(any)) // it is bound to a module
		},
		"native.catalogue": func(s *scene, r route) {
			made := saved(s, catalogue, "listed")
			var page struct{ Processes []process }
			s.nativeOf(route{r.method, r.path + "?exact=true&name=listed"}, nil, http.StatusOK, &page)
			if len(page.Processes) != 1 || page.Processes[0].ID != made.ID || !slices.Equal(page.Processes[0].Modules, []string{"of listed"}) {
				s.t.Errorf("%s: %+v", r, page)
			}
		},
		"native.drift": func(s *scene, r route) {
			made := saved(s, catalogue, "compared")
			var drift struct {
				Name    string
				Missing []string `json:"missing_modules"`
			}
			s.nativeOf(route{r.method, fmt.Sprintf("/v1/processes/2/%d/status", made.ID)}, nil, http.StatusOK, &drift)
			if drift.Name != "compared" || !slices.Equal(drift.Missing, []string{"of compared"}) {
				s.t.Errorf("%s: %+v", r, drift)
			}
		},
	}
}

// cmdbRows use a separate process for each route. The path gets its id.
func cmdbRows() map[string]row {
	asks := func(s *scene, r route, body string) (a cmdbAnswer, id, detail string) {
		s.t.Helper()
		c := &cmdb{t: s.t, url: s.url}
		id = c.define("0/2", fmt.Sprintf(`{"bk_process_name":%q}`, r))
		path := strings.NewReplacer("{process}", id, "{module}", "web").Replace(r.path)
		a = c.must(r.method+" "+path, strings.ReplaceAll(body, "$", id), http.StatusOK, 0)
		found := c.must("POST search/0/2", `{"condition":{"bk_process_id":`+id+`}}`, http.StatusOK, 0)
		return a, id, string(found.Data)
	}
	changes := func(body, shown string) row {
		return func(s *scene, r route) {
			a, _, found := asks(s, r, body)
			if string(a.Data) != `"success"` || !strings.Contains(found, shown) {
				s.t.Errorf("%s: %v, and then %s, want %s", r, a, found, shown)
			}
		}
	}
	tells := func(body string, words ...string) row {
		return func(s *scene, r route) {
			a, id, _ := asks(s, r, body)
			for _, word := range words {
				if word = strings.ReplaceAll(word, "$", id); !strings.Contains(string(a.Data), word) {
					s.t.Errorf("%s: %v, want %s", r, a, word)
				}
			}
		}
	}
	return map[string]row{
		"cmdb.create_process": func(s *scene, r route) {
			a, id, _ := asks(s, r, `{"bk_process_name":"after $"}`)
			if string(a.Data) != `"success"` || a.ID == 0 || fmt.Sprint(a.ID) == id {
				s.t.Errorf("%s: %v", r, a)
			}
		},
		"cmdb.search_process":          tells(`{"fields":["bk_process_id"],"condition":{"bk_process_id":$}}`, `{"count":1,"info":[{"bk_process_id":$}]}`),
		"cmdb.get_process_detail":      tells("", `{"bk_property_id":"bk_func_name","bk_property_name":"功能名","bk_property_value":"`),
		"cmdb.delete_process":          changes("", `"count":0`),
		"cmdb.update_process":          changes(`{"user":"ann"}`, `"user":"ann"`),
		"cmdb.batch_update_process":    changes(`{"bk_process_id":"$","user":"bob"}`, `"user":"bob"`),
		"cmdb.get_process_bind_module": tells("", `[`),
		"cmdb.bind_process_module": func(s *scene, r route) {
			_, id, _ := asks(s, r, "")
			(&cmdb{t: s.t, url: s.url}).must("DELETE 0/2/"+id, "", http.StatusInternalServerError, 1108013)
		},
		"cmdb.delete_process_module_binding": changes("", `"count":1`),
	}
}

// nativeTopologyRows use a separate account each, so that none changes another's
// topology.
func nativeTopologyRows() map[string]row {
	type version struct{ Version int }
	apply := func(s *scene, r route, account string) {
		s.t.Helper()
		module := map[string]any{"name": "m", "hosts": []string{s.p.host}}
		sets := []any{map[string]any{"name": "s", "modules": []any{module}}}
		var made version
		if s.nativeOf(route{r.method, r.path + "?account=" + account}, map[string]any{"sets": sets}, http.StatusOK, &made); made.Version != 1 {
			s.t.Errorf("%s: %+v", r, made)
		}
	}
	whole := route{http.MethodPut, "/v1/topology/2"}
	return map[string]row{
		"native.set_topology": func(s *scene, r route) { apply(s, r, "set") },
		"native.edit_topology": func(s *scene, r route) {
			apply(s, whole, "edited")
			var made version
			change := map[string]any{"set": "s", "module": "m", "hosts": []string{}}
			if s.nativeOf(route{r.method, r.path + "?account=edited"}, change, http.StatusOK, &made); made.Version != 2 {
				s.t.Errorf("%s: %+v", r, made)
			}
		},
		"native.topology": func(s *scene, r route) {
			apply(s, whole, "shown")
			var shown struct {
				Sets         []struct{ Modules []struct{ Hosts []string } }
				WithoutAgent []string `json:"without_agent"`
			}
			s.nativeOf(route{r.method, r.path + "?account=shown"}, nil, http.StatusOK, &shown)
			if len(shown.Sets) != 1 || !slices.Equal(shown.Sets[0].Modules[0].Hosts, []string{s.p.host}) || len(shown.WithoutAgent) != 0 {
				s.t.Errorf("%s: %+v", r, shown)
			}
		},
	}
}

func nativeRolloutRows() map[string]row {
	type policies struct {
		Default  string
		Policies []struct{ Name string }
	}
	set := func(s *scene, r route) {
		s.t.Helper()
		var made policies
		body := map[string]any{"policies": []any{map[string]any{"name": "careful", "rollout": map[string]any{"max": 1}}}}
		if s.nativeOf(r, body, http.StatusOK, &made); len(made.Policies) != 1 || made.Policies[0].Name != "careful" {
			s.t.Errorf("%s: %+v", r, made)
		}
	}
	schedule := func(s *scene, r route) {
		s.t.Helper()
		var made struct{ Name, Overlap string }
		task := map[string]any{"business": "2", "action": "status", "process": map[string]any{"namespace": "2", "name": "web", "proc_name": "web"}, "hosts": []string{"0:127.0.0.1"}}
		if s.nativeOf(r, map[string]any{"cron": "0 3 1 1 *", "task": task}, http.StatusOK, &made); made.Name != "nightly" || made.Overlap != "skip" {
			s.t.Errorf("%s: %+v", r, made)
		}
	}
	webhook := func(s *scene, r route) {
		s.t.Helper()
		var made struct{ Name string }
		if s.nativeOf(r, map[string]any{"url": "http://127.0.0.1:1/", "paused": true}, http.StatusOK, &made); made.Name != "nightly" {
			s.t.Errorf("%s: %+v", r, made)
		}
	}
	return map[string]row{
		"native.set_webhook": webhook,
		"native.webhooks": func(s *scene, r route) {
			webhook(s, route{http.MethodPut, r.path + "/nightly"})
			var shown struct{ Webhooks []struct{ Name string } }
			if s.nativeOf(r, nil, http.StatusOK, &shown); len(shown.Webhooks) != 1 || shown.Webhooks[0].Name != "nightly" {
				s.t.Errorf("%s: %+v", r, shown)
			}
		},
		"native.dead": func(s *scene, r route) {
			webhook(s, route{http.MethodPut, strings.TrimSuffix(r.path, "/dead")})
			var shown struct{ Dead []any }
			if s.nativeOf(r, nil, http.StatusOK, &shown); shown.Dead == nil || len(shown.Dead) != 0 {
				s.t.Errorf("%s: %+v", r, shown)
			}
		},
		"native.redeliver": func(s *scene, r route) {
			webhook(s, route{http.MethodPut, strings.TrimSuffix(r.path, "/redeliver")})
			s.nativeOf(r, map[string]any{"event": "GSETASK:20261121053522:1/2"}, http.StatusNotFound, &struct{}{})
		},
		"native.remove_webhook": func(s *scene, r route) {
			webhook(s, route{http.MethodPut, r.path})
			var removed struct{ Removed bool }
			if s.nativeOf(r, nil, http.StatusOK, &removed); !removed.Removed {
				s.t.Errorf("%s: %+v", r, removed)
			}
		},
		"native.set_schedule": schedule,
		"native.schedules": func(s *scene, r route) {
			schedule(s, route{http.MethodPut, r.path + "/nightly"})
			var shown struct{ Schedules []struct{ Name string } }
			if s.nativeOf(r, nil, http.StatusOK, &shown); len(shown.Schedules) != 1 || shown.Schedules[0].Name != "nightly" {
				s.t.Errorf("%s: %+v", r, shown)
			}
		},
		"native.remove_schedule": func(s *scene, r route) {
			schedule(s, route{http.MethodPut, r.path})
			var removed struct{ Removed bool }
			if s.nativeOf(r, nil, http.StatusOK, &removed); !removed.Removed {
				s.t.Errorf("%s: %+v", r, removed)
			}
		},
		"native.set_rollouts": set,
		"native.rollouts": func(s *scene, r route) {
			set(s, route{http.MethodPut, r.path})
			var shown policies
			if s.nativeOf(r, nil, http.StatusOK, &shown); len(shown.Policies) != 1 || shown.Default != "" {
				s.t.Errorf("%s: %+v", r, shown)
			}
		},
	}
}

// routes returns all routes of the calls of all dialects: every path of every
// family, with every method.
func routes(task string) map[string][]route {
	fill := strings.NewReplacer("{stage}", "prod", "{id}", url.PathEscape(task), "{$}", "", "{version}", "v3", "{account}", "0", "{business}", "2", "{biz}", "2", "{name}", "nightly")
	found := map[string][]route{}
	for _, d := range dialect.All() {
		for _, family := range d.Reached() {
			for _, c := range family.Calls {
				for _, path := range c.Paths {
					for _, method := range c.Methods {
						found[c.Name] = append(found[c.Name], route{method, fill.Replace(path)})
					}
				}
			}
		}
	}
	return found
}

// everyCall calls every call of every dialect by each of its routes.
func everyCall(t *testing.T, s *scene) {
	t.Helper()
	all, ways := rows(), routes(s.task)
	for name := range all {
		if len(ways[name]) == 0 {
			t.Errorf("no dialect has the call %s", name)
		}
	}
	for name, routes := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ask := all[name]
			if ask == nil {
				t.Fatal("this call has no row; add one that checks the purpose of its response")
			}
			for _, r := range routes {
				ask(s.as(t), r)
			}
		})
	}
}

// TestEveryCallByEveryRouteOnOneMachine uses a system in one process.
func TestEveryCallByEveryRouteOnOneMachine(t *testing.T) {
	t.Parallel()
	procs, u := newProcs(t), newUp(t)
	u.start()
	testenv.Eventually(t, startTimeout, func() bool { return len(u.c.hosts()) == 1 }, "the agent is listed")
	everyCall(t, set(t, u.c, procs, "127.0.0.1"))
}

// TestEveryCallByEveryRouteInSeparateRoles uses a dispatcher that shares only NATS
// and Redis with the worker and the agent.
func TestEveryCallByEveryRouteInSeparateRoles(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	_, c := f.dispatcher("")
	f.worker("")
	f.waitListed(c, 1)
	everyCall(t, set(t, c, f.procs, f.agents[0].ip))
}
