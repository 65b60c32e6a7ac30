//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/procfleet/procfleet/internal/testenv"
)

// bscpContent has the fields of a status that bk-bscp and bk-nodemgr decode. They
// are Go programs, which fail for a number that is a string.
type bscpContent struct {
	IP       string `json:"ip"`
	AgentID  string `json:"bk_agent_id"`
	UTCTime  string `json:"utctime"`
	UTCTime2 string `json:"utctime2"`
	Timezone int    `json:"timezone"`
	Value    []struct {
		FuncID     string `json:"funcID"`
		InstanceID string `json:"instanceID"`
		ProcName   string `json:"procName"`
		SetupPath  string `json:"setupPath"`
		Result     string `json:"result"`
		IsAuto     bool   `json:"isAuto"`
	} `json:"value"`
	Process []struct {
		ProcName string `json:"procname"`
		Instance []struct {
			Cmdline       string  `json:"cmdline"`
			ProcessName   string  `json:"processName"`
			Version       string  `json:"version"`
			Health        string  `json:"health"`
			IsAuto        bool    `json:"isAuto"`
			CPUUsage      float64 `json:"cpuUsage"`
			CPUUsageAve   float64 `json:"cpuUsageAve"`
			PhyMemUsage   float64 `json:"phyMemUsage"`
			UsePhyMem     int64   `json:"usePhyMem"`
			DiskSize      int64   `json:"diskSize"`
			PID           int     `json:"pid"`
			StartTime     string  `json:"startTime"`
			Stat          string  `json:"stat"`
			UTime         string  `json:"utime"`
			STime         string  `json:"stime"`
			FreeVMem      string  `json:"freeVMem"`
			ThreadCount   int     `json:"threadCount"`
			ElapsedTime   int64   `json:"elapsedTime"`
			RegisterTime  int64   `json:"register_time"`
			LastStartTime int64   `json:"last_start_time"`
			ReportTime    int64   `json:"report_time"`
		} `json:"instance"`
	} `json:"process"`
}

// bscpOperates uses paths without a trailing slash, agent ids without hosts, the
// other name of the policy, and no limits, and reads only the code of the envelope.
func bscpOperates(e *published) {
	t := e.t
	const biz = 3
	p := e.procs.new("0:"+e.there, "http-server-test1")
	c := &client{t: t, url: e.url, header: http.Header{
		"Content-Type":          {"application/json"},
		"X-Bkapi-Authorization": {`{"bk_app_code":"bk_bscp","bk_app_secret":"s","bk_username":"admin"}`},
	}}
	// ask considers any code except 0 as final.
	ask := func(call string, body, into any) {
		t.Helper()
		status, text, _ := c.call(http.MethodPost, gseGateway+"proc/"+call, "", body)
		var answer struct {
			Code    int             `json:"code"`
			Message string          `json:"message"`
			Data    json.RawMessage `json:"data"`
		}
		if err := json.Unmarshal(text, &answer); err != nil || status != http.StatusOK || answer.Code != 0 {
			t.Fatalf("%s: %d %s", call, status, text)
		}
		if err := json.Unmarshal(answer.Data, into); err != nil {
			t.Fatalf("%s: %v in %s", call, err, text)
		}
	}
	meta := map[string]any{"namespace": fmt.Sprintf("GSEKIT_BIZ_%d", biz), "name": p.name + "_1"}
	identity := p.identity()
	delete(identity, "index_key")
	spec := map[string]any{
		"identity": identity, "control": p.commands(), "resource": map[string]any{"cpu": 0, "mem": 0},
		"monitor_policy": map[string]any{"auto_type": 1, "start_check_secs": 1, "op_timeout": 20},
	}
	agents := []string{e.agentID}
	key := fmt.Sprintf("%s:GSEKIT_BIZ_%d:%s_1", e.agentID, biz, p.name)
	does := func(opType int) (code int, content bscpContent) {
		t.Helper()
		var made struct {
			TaskID string `json:"task_id"`
		}
		ask("operate_proc_multi", multi(map[string]any{"meta": meta, "agent_id_list": agents, "op_type": opType, "spec": spec}), &made)
		var entries map[string]gseEntry
		testenv.Eventually(t, finishTimeout, func() bool {
			ask("get_proc_operate_result_v2", map[string]any{"task_id": made.TaskID}, &entries)
			if _, ok := entries[key]; !ok || len(entries) != 1 {
				t.Fatalf("the entries are %+v", entries)
			}
			return entries[key].Code != 115
		}, "the outcome is there")
		if err := json.Unmarshal([]byte(entries[key].Content), &content); err != nil {
			t.Fatalf("op_type %d: %v in %q", opType, err, entries[key].Content)
		}
		return entries[key].Code, content
	}

	var updated map[string]gseEntry
	ask("update_proc_info", map[string]any{"meta": meta, "agent_id_list": agents, "spec": spec}, &updated)
	if entry, ok := updated[key]; !ok || entry.Code != 0 || len(updated) != 1 {
		t.Fatalf("update_proc_info: %+v", updated)
	}
	if code, content := does(0); code != 0 || len(content.Value) != 1 || content.Value[0].Result != "success" || content.Value[0].ProcName != p.name || !content.Value[0].IsAuto {
		t.Fatalf("start: %d %+v", code, content)
	}
	code, content := does(2)
	if code != 0 || len(content.Process) != 1 || len(content.Process[0].Instance) != 1 || content.AgentID != e.agentID || content.IP != e.there {
		t.Fatalf("status: %d %+v", code, content)
	}
	i := content.Process[0].Instance[0]
	if i.PID != p.pid() || !i.IsAuto || i.UsePhyMem <= 0 || i.ThreadCount <= 0 || i.ReportTime <= 0 || i.LastStartTime <= 0 || i.StartTime == "" || i.Cmdline == "" {
		t.Errorf("the status of pid %d is %+v", p.pid(), i)
	}
	before := p.pid()
	if code, _ := does(7); code != 0 || p.pid() == before || p.pid() == 0 {
		t.Errorf("restart: %d, pid %d after %d", code, p.pid(), before)
	}
	if code, _ := does(9); code != 0 || len(p.running()) != 0 {
		t.Errorf("kill: %d, %v run", code, p.running())
	}
	if code, content := does(2); code != 0 || content.Process[0].Instance[0].PID != -1 || content.Process[0].Instance[0].IsAuto {
		t.Errorf("status of the killed process: %d %+v", code, content)
	}

	var data struct {
		Count int `json:"count"`
		Infos []struct {
			AgentID    string            `json:"bk_agent_id"`
			Meta       map[string]any    `json:"meta"`
			Status     int               `json:"status"`
			PID        int               `json:"pid"`
			Version    string            `json:"version"`
			ReportTime int64             `json:"report_time"`
			CPUUsage   float64           `json:"cpu_usage"`
			MemUsage   float64           `json:"mem_usage"`
			Labels     map[string]string `json:"labels"`
		} `json:"proc_infos"`
	}
	testenv.Eventually(t, finishTimeout, func() bool {
		ask("sync_proc_status", map[string]any{"meta": map[string]any{"namespace": meta["namespace"]}, "page": map[string]any{"start": 0, "limit": 1000}}, &data)
		return data.Count == 1 && len(data.Infos) == 1 && data.Infos[0].AgentID == e.agentID && data.Infos[0].Status == 2 && data.Infos[0].PID == -1
	}, "it is shown as killed")
}
