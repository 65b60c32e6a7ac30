package dispatcher

import (
	"net/http"
	"testing"
)

// Calls that make no task look at who calls as well: for what, and, as GSE's
// calls are for no business, whether for all of them.
func TestCallsWithoutATaskAreForThoseWhoMay(t *testing.T) {
	t.Parallel()
	d := openDoor(t, guarded(t), openStore(t), &fakeQueue{})
	const (
		esb  = "/api/c/compapi/v2/gse/"
		body = `{"meta":{"namespace":"ns","name":"web"},"hosts":[{"ip":"10.0.0.1","bk_cloud_id":0}]}`
	)
	for call, want := range map[string]map[string]float64{
		"unregister_proc_info":   {"free": 0, "biz": 1306403, "reader": 1306403, "starter": 1306403},
		"get_proc_status":        {"free": 0, "biz": 1306403, "reader": 0, "starter": 1306403},
		"get_process_group_info": {"free": 0, "biz": 1306403, "reader": 0, "starter": 1306403},
		"get_agent_status":       {"free": 0, "biz": 1306403, "reader": 0, "starter": 1306403},
	} {
		for app, code := range want {
			header := bkapi("bk_app_code", app, "bk_app_secret", "s3cret", "bk_username", "admin")
			if got := d.call(http.MethodPost, esb+call+"/", body, header...); got.body["code"] != code {
				t.Errorf("%s by %s: %s, want code %v", call, app, got.text, code)
			}
		}
	}
}
