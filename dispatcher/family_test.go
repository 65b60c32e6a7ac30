package dispatcher

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// gateways are the addresses that clients may have for GSE's API gateway.
var gateways = []string{
	"", "/api/bk-gse/prod", "/api/bk-gse/stag", "/api/c/compapi/v2/gse", "/c/compapi/v2/gse",
}

// waysTo returns every method and path of a call, without a trailing slash.
func waysTo(call, backend string) []string {
	ways := []string{backend}
	for _, esb := range []string{"/api/c/compapi", "/c/compapi"} {
		ways = append(ways, "POST "+esb+"/v2/gse/"+call)
	}
	for _, gateway := range gateways {
		ways = append(ways, "POST "+gateway+"/api/v2/proc/"+call)
	}
	return ways
}

// TestEveryFamilyOfPathsLeadsToTheSameGSECalls: a task that was made anywhere
// has the same results everywhere, with and without a trailing slash.
func TestEveryFamilyOfPathsLeadsToTheSameGSECalls(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	ask := func(way, body string) map[string]any {
		t.Helper()
		method, path, _ := strings.Cut(way, " ")
		a := d.call(method, path, body)
		data, _ := a.body["data"].(map[string]any)
		if a.status != http.StatusOK || a.body["result"] != true || a.body["code"] != 0.0 || a.body["message"] != "success" || len(data) == 0 {
			t.Errorf("%s: %d %s", way, a.status, a.text)
		}
		return data
	}
	one := gseBody(2, "10.0.0.1")
	made := map[string]string{
		"operate_proc_v2":    one,
		"operate_proc_multi": `{"proc_operate_req":[` + one + `]}`,
	}
	backend := map[string]string{
		"operate_proc_v2":    "POST /procapi/v2/proc/operate",
		"operate_proc_multi": "POST /procapi/v2/proc/multioperate",
	}
	results := waysTo("get_proc_operate_result_v2", "GET /procapi/v2/proc/operate")
	results = append(results, "GET /procapi/v1/proc/operate",
		"POST /api/c/compapi/v2/gse/get_proc_operate_result", "POST /c/compapi/v2/gse/get_proc_operate_result")
	for call, body := range made {
		for n, way := range waysTo(call, backend[call]) {
			for _, slash := range []string{"", "/"} {
				id := ask(way+slash, body)["task_id"]
				polls := results
				if n > 0 { // one task has shown each path of results
					polls = results[n%len(results):][:1]
				}
				for _, result := range polls {
					found := slices.Collect(maps.Keys(ask(result+slash, fmt.Sprintf(`{"task_id":%q}`, id))))
					if !slices.Equal(found, []string{"0:10.0.0.1:ns:web"}) {
						t.Errorf("%s of a task of %s has the keys %q", result+slash, way+slash, found)
					}
				}
			}
		}
	}
}

func TestEveryFamilySaysInItsFormThatThereIsNoSuchPath(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	const id = "from-the-caller"
	gateway := func(method, path string) {
		t.Helper()
		a := d.call(method, path, "{}", "X-Bkapi-Request-Id", id)
		want := fmt.Sprintf(`{"code":1640401,"code_name":"API_NOT_FOUND","message":"API not found [method=\"%s\" path=\"%s\"]","result":false,"data":null}`, method, path)
		if a.status != http.StatusNotFound || strings.TrimSpace(a.text) != want || a.header.Get("X-Bkapi-Request-Id") != id {
			t.Errorf("%s %s: %d %v %s", method, path, a.status, a.header, a.text)
		}
	}
	for _, base := range gateways {
		gateway(http.MethodPost, base+"/api/v2/proc/no_such_call/")
		gateway(http.MethodPost, base+"/api/v2/cluster/no_such_call")
		gateway(http.MethodGet, base+"/api/v2/proc/operate_proc_multi/")
	}
	gateway(http.MethodPost, "/api/bk-gse/prod/api/v1/proc/operate")

	for way, status := range map[string]int{
		"POST /procapi/v2/proc/no_such_call": http.StatusNotFound,
		"GET /procapi/v2/proc/multioperate/": http.StatusMethodNotAllowed,
	} {
		method, path, _ := strings.Cut(way, " ")
		a := d.call(method, path, "{}", "X-Bkapi-Request-Id", id)
		if a.status != status || a.body["result"] != false || a.body["code"] != 1306404.0 || a.header.Get("X-Bkapi-Request-Id") != id {
			t.Errorf("%s: %d %v %s", way, a.status, a.header, a.text)
		}
	}
}

func TestABodyOverTheLimitIsRefusedInTheFormOfItsFamily(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Limits.Body = 1 << 10
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	body := `{"x":"` + strings.Repeat("x", 2<<10) + `"}`
	for _, path := range []string{multiPath, backendPath} {
		if a := d.call(http.MethodPost, path, body); !esbCode(1306406)(a) {
			t.Errorf("%s: %d %s", path, a.status, a.text)
		}
	}
	a := d.call(http.MethodPost, gatewayPath, body)
	if a.status != http.StatusRequestEntityTooLarge || a.body["code"] != 1641301.0 || a.body["result"] != false || a.body["code_name"] != "BODY_SIZE_LIMIT_EXCEED" {
		t.Errorf("%s: %d %s", gatewayPath, a.status, a.text)
	}
}

// The keys of results contain agent ids as the caller sent them, also if they are unknown, and
// hosts as cloud area, address, namespace and name.
func TestKeysRepeatWhatTheCallerSent(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	for _, c := range []struct {
		where string
		keys  []string
	}{
		{
			`"hosts":[{"ip":"10.0.0.1","bk_cloud_id":0},{"ip":"FD00::1","bk_cloud_id":3},{"ip":"fd00:0::1","bk_cloud_id":3},{"ip":null,"bk_cloud_id":5}]`,
			[]string{"0:10.0.0.1:ns:web", "3:FD00::1:ns:web", "3:fd00:0::1:ns:web", "5::ns:web"},
		},
		{
			`"hosts":[{"ip":"10.0.0.1","bk_cloud_id":0}],"agent_id_list":["0:10.0.0.2","0:10.0.0.2","02000000005254000b3dc91680054235f3a1","00:10.0.0.3","","0:10.0.0.999"]`,
			[]string{
				"00:10.0.0.3:ns:web", "02000000005254000b3dc91680054235f3a1:ns:web", "0:10.0.0.2:ns:web",
				"0:10.0.0.999:ns:web", ":ns:web",
			},
		},
		{`"hosts":[{"ip":"10.0.0.1","bk_cloud_id":0}],"agent_id_list":null`, []string{"0:10.0.0.1:ns:web"}},
	} {
		body := `{"meta":{"namespace":"ns","name":"web","labels":null},"op_type":2,"spec":{"identity":{"proc_name":"nginx","setup_path":"/srv"}},` + c.where + `}`
		id := esbID("task_id")(d.call(http.MethodPost, gatewayPath, `{"proc_operate_req":null,`+body[1:]))
		data, _ := d.call(http.MethodPost, resultPath, fmt.Sprintf(`{"task_id":%q}`, id)).body["data"].(map[string]any)
		if got := slices.Sorted(maps.Keys(data)); !slices.Equal(got, c.keys) {
			t.Errorf("%s has the keys %q, want %q", c.where, got, c.keys)
		}
	}
}

// If two items have the same key, by address or by agent id, both are executed, and the result map
// contains the second one.
func TestTwoItemsWithOneKeyAreTwoItemsUnderOneKey(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	item := func(op int, where string) string {
		return fmt.Sprintf(`{"meta":{"namespace":"ns","name":"web"},"op_type":%d,"spec":{"identity":{"proc_name":"nginx","setup_path":"/srv"}},%s}`, op, where)
	}
	for _, again := range []string{`"hosts":[{"ip":"10.0.0.1","bk_cloud_id":0}]`, `"agent_id_list":["0:10.0.0.1"]`} {
		body := `{"proc_operate_req":[` + item(1, `"hosts":[{"ip":"10.0.0.1","bk_cloud_id":0}]`) + `,` + item(0, again) + `]}`
		id := esbID("task_id")(d.call(http.MethodPost, "/api/v2/proc/operate_proc_multi", body))
		if shown := d.call(http.MethodGet, fmt.Sprint("/v1/tasks/", id), ""); shown.body["items"] != 2.0 {
			t.Errorf("%s: %s, want 2 items", again, shown.text)
		}
		poll := d.call(http.MethodPost, resultPath, fmt.Sprintf(`{"task_id":%q}`, id))
		if data, _ := poll.body["data"].(map[string]any); len(data) != 1 || data["0:10.0.0.1:ns:web"] == nil || strings.Count(poll.text, "ns:web") != 1 {
			t.Errorf("%s: %s, want one key", again, poll.text)
		}
	}
}

func TestAnAddressThatEndsInASlashLeadsToNoRedirect(t *testing.T) {
	t.Parallel()
	d, err := New(testConfig(t), openStore(t), &fakeQueue{})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"//api/c/compapi/v2/gse/operate_proc_v2/":             http.StatusOK,
		"/api/c/compapi/v2//gse/operate_proc_v2//":            http.StatusOK,
		"/api/bk-gse/prod//api/v2/proc/operate_proc_v2":       http.StatusOK,
		"//procapi/v2/proc/operate":                           http.StatusOK,
		"//v1/tasks":                                          http.StatusBadRequest,
		"//api/c/compapi/v2/gse/nothing/":                     http.StatusNotFound,
		"/v1/tasks/GSETASK%3A20200318203203%3A57196//results": http.StatusMethodNotAllowed,
	} {
		w := httptest.NewRecorder()
		d.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1"+path, strings.NewReader(gseBody(2, "10.0.0.1"))))
		if w.Code != want {
			t.Errorf("POST %s: %d %s", path, w.Code, w.Body)
		}
	}
}
