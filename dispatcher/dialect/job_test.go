package dialect

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Each request of Job's shorter calls has an equal request of operate_process.
func TestJobsCallsSayTheSameAsOperateProcess(t *testing.T) {
	t.Parallel()
	const (
		where    = `"ip_list":[{"ip":"10.0.0.1","bk_cloud_id":0}],"account":"www"`
		paths    = `"setup_path":"/srv","pid_path":"/srv/p.pid","proc_name":"nginx",`
		managed  = paths + `"type":1,"start_cmd":"a","stop_cmd":"b","op_timeout":20,"value_key":"k",` + where
		scripted = paths + `"type":1,"op_timeout":10,"start_check_end_time":1,"cpu_lmt":50,"mem_lmt":30,
			"start_cmd":"./start.sh nginx &","stop_cmd":"./stop.sh nginx &","restart_cmd":"./restart.sh nginx &","reload_cmd":"./reload.sh nginx &",` + where
	)
	body := func(op, info string) string {
		return `{"bk_scope_type":"biz","bk_scope_id":"1","op_type":` + op + `,"process_infos":[{` + info + `}]}`
	}
	for _, test := range []struct{ name, call, short, full string }{
		{"register", "job.manage_proc", body("1", `"proc_owner":"ops",`+managed), body("3", `"contact":"ops",`+managed)},
		{"unregister", "job.manage_proc", body("2", `"proc_owner":"ops",`+managed), body("4", `"contact":"ops",`+managed)},
		{"stop", "job.operate_proc", body("1", paths+where), body("1", scripted)},
	} {
		want, got := decode(t, "job.operate_process", test.full), decode(t, test.call, test.short)
		if diff := cmp.Diff(plainText(t, want.Operations), plainText(t, got.Operations)); diff != "" || want.Business != got.Business {
			t.Errorf("%s (-operate_process +%s):\n%s", test.name, test.call, diff)
		}
	}
}
