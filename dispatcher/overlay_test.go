package dispatcher

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/taskstore"
)

// leftOut returns a GSE operation on ns:web with the given spec; "" omits the spec.
func leftOut(op int, spec string, ips ...string) string {
	hosts := make([]string, len(ips))
	for i, ip := range ips {
		hosts[i] = fmt.Sprintf(`{"ip":%q,"bk_cloud_id":0}`, ip)
	}
	if spec != "" {
		spec = `,"spec":` + spec
	}
	return fmt.Sprintf(`{"meta":{"namespace":"ns","name":"web"},"op_type":%d,"hosts":[%s]%s}`, op, strings.Join(hosts, ","), spec)
}

// supervised returns a spec with the given start command, by which tests identify it, and with fields
// that no GSE request has.
func supervised(start string) procfleet.ProcessSpec {
	s := commanded("web", start)
	s.PidPath, s.Account, s.ArgsPattern = "/run/"+start+".pid", "www", "conf="+start
	s.Control.Stop, s.Control.Version = "stop "+start, "version "+start
	s.Alive.StopCheck, s.Alive.StartRetries = procfleet.Seconds(7), 2
	return s
}

// specsOf are the specs of a task's items by their target's key.
func specsOf(t *testing.T, store taskstore.Queries, id procfleet.TaskID) map[string]procfleet.ProcessSpec {
	t.Helper()
	task, err := store.Task(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]procfleet.ProcessSpec)
	for n := range task.Chunks {
		items, err := store.Chunk(t.Context(), id, n)
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range items {
			all[it.Item.Target.Key()] = *it.Spec
		}
	}
	return all
}

// submitted is the task that a GSE call makes.
func (d *testServer) submitted(way, body string, header ...string) procfleet.TaskID {
	d.t.Helper()
	method, path, _ := strings.Cut(way, " ")
	a := d.call(method, path, body, header...)
	data, _ := a.body["data"].(map[string]any)
	id, _ := data["task_id"].(string)
	if a.status != http.StatusOK || a.body["code"] != 0.0 || id == "" {
		d.t.Fatalf("%s: %d %s", way, a.status, a.text)
	}
	return procfleet.TaskID(id)
}

// A status request with the identity alone uses the paths of the registration. Without them it returned
// "stopped" for a supervised process that runs.
func TestAnIdentityAloneMeansTheRegisteredProcessOfEachHost(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	registered(t, store, supervised("a"), "0:10.0.0.1")
	registered(t, store, supervised("b"), "0:10.0.0.2")
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	ways := map[string][]string{
		"%s":                        waysTo("operate_proc_v2", "POST /procapi/v2/proc/operate"),
		`{"proc_operate_req":[%s]}`: waysTo("operate_proc_multi", "POST /procapi/v2/proc/multioperate"),
	}
	ops, n := []int{0, 1, 2, 3, 4, 7, 8, 9}, 0
	for body, families := range ways {
		for _, way := range families {
			op := ops[n%len(ops)]
			n++
			id := d.submitted(way, fmt.Sprintf(body, leftOut(op, `{"identity":{"proc_name":"other"}}`, "10.0.0.1", "10.0.0.2", "10.0.0.3")))
			specs := specsOf(t, store, id)
			for key, start := range map[string]string{"0:10.0.0.1": "a", "0:10.0.0.2": "b"} {
				got, want := specs[key], supervised(start)
				if want.ProcName = "other"; written(t, got) != written(t, want) {
					t.Fatalf("%s, op_type %d on %s: %s, want %s", way, op, key, written(t, got), written(t, want))
				}
			}
			if got := specs["0:10.0.0.3"]; !got.Unregistered || got.Key() != "ns:web" {
				t.Fatalf("%s, op_type %d where nothing is registered: %s", way, op, written(t, got))
			}
		}
	}
	if n < len(ops) {
		t.Errorf("only %d of %d op_types were sent", n, len(ops))
	}
	if got := startOf(t, store, "web", "0:10.0.0.3"); got != "" {
		t.Errorf("%q is registered where nothing was", got)
	}
}

// written is a spec as text.
func written(t *testing.T, s procfleet.ProcessSpec) string {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAStartThatLeavesMembersOutRegistersTheMergedSpec(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	registered(t, store, supervised("a"), "0:10.0.0.1")
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	const way = "POST /api/c/compapi/v2/gse/operate_proc_v2"
	d.submitted(way, leftOut(0, `{"identity":{"proc_name":"nginx"},"control":{"start_cmd":"new"},"monitor_policy":{"stop_check_secs":0,"op_timeout":0}}`, "10.0.0.1"))
	want := supervised("a")
	want.ProcName, want.Control.Start = "nginx", "new"
	if got := registration(t, store, "0:10.0.0.1"); written(t, got) != written(t, want) {
		t.Errorf("registered is %s, want %s", written(t, got), written(t, want))
	}
}

func registration(t *testing.T, store Store, on string) procfleet.ProcessSpec {
	t.Helper()
	at := hostsOf(targets(t, on))
	found, err := store.Registrations(t.Context(), at.processes("ns", "web"))
	if err != nil || found[0] == nil {
		t.Fatalf("%+v, %v", found, err)
	}
	return found[0].Spec
}

// Another request may replace the registration after the dispatcher has read it. A start without a
// changed member must not register the old spec again.
func TestAStartThatSaysNothingNewRegistersNothing(t *testing.T) {
	t.Parallel()
	store := &registryCalls{Store: openStore(t)}
	registered(t, store.Store, supervised("a"), "0:10.0.0.1", "0:10.0.0.2")
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	for _, spec := range []string{"", `{"identity":{"proc_name":"` + supervised("a").ProcName + `"}}`} {
		d.submitted("POST /api/v2/proc/operate_proc_v2", leftOut(0, spec, "10.0.0.1", "10.0.0.2", "10.0.0.3"))
	}
	if len(store.definitions) != 0 {
		t.Errorf("registered again: %+v", store.definitions)
	}
}

func TestWhatIsLeftOutIsLookedUpAtOnceAndOnlyThen(t *testing.T) {
	t.Parallel()
	store := &registryCalls{Store: openStore(t)}
	registered(t, store.Store, supervised("a"), "0:10.0.0.1")
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	const everything = `{"identity":{"proc_name":"n","setup_path":"/s","pid_path":"/p","config_path":"/c","log_path":"/l","user":"u"},
		"control":{"start_cmd":"1","stop_cmd":"2","restart_cmd":"3","reload_cmd":"4","kill_cmd":"5","version_cmd":"6","health_cmd":"7"},"resource":{"cpu":1,"mem":2},
		"monitor_policy":{"auto_type":1,"start_check_secs":1,"stop_check_secs":1,"start_retries":0,"start_interval":1,"crontab_rule":"","op_timeout":1}}`
	whole := strings.Replace(leftOut(2, everything, "10.0.0.1"), `"name":"web"`, `"name":"web","labels":{"a":"b"}`, 1)
	d.submitted("POST /api/v2/proc/operate_proc_v2", whole)
	if store.reads != 0 {
		t.Errorf("a request that says everything was looked up %d times", store.reads)
	}
	items := []string{whole}
	for i := range 300 {
		items = append(items, leftOut(2, `{"identity":{"proc_name":"n"}}`, fmt.Sprintf("10.0.%d.%d", i>>8, i&255)))
	}
	d.submitted("POST /api/v2/proc/operate_proc_multi", `{"proc_operate_req":[`+strings.Join(items, ",")+`]}`)
	if store.reads != 1 {
		t.Errorf("300 requests that leave something out were looked up %d times, want all at once", store.reads)
	}
}

func TestWhatNeitherTheRequestNorARegistrationHasIsMissing(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	registered(t, store, spec("other"), "0:10.0.0.1")
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	for spec, field := range map[string]string{
		"":                                   "spec",
		"{}":                                 "spec.identity",
		`{"identity":{}}`:                    "spec.identity.proc_name",
		`{"identity":{"proc_name":null}}`:    "spec.identity.proc_name",
		`{"identity":{"proc_name":"nginx"}}`: "spec.identity.setup_path",
	} {
		for way, body := range map[string]string{
			"/api/c/compapi/v2/gse/operate_proc_v2":              leftOut(2, spec, "10.0.0.1"),
			"/api/bk-gse/prod/api/v2/proc/operate_proc_multi":    `{"proc_operate_req":[` + leftOut(2, spec, "10.0.0.1") + `]}`,
			"/api/bk-gse/prod/api/v2/proc/operate_proc_multi/":   `{"proc_operate_req":[` + leftOut(2, spec, "10.0.0.9", "10.0.0.1") + `]}`,
			"/procapi/v2/proc/operate":                           leftOut(0, spec, "10.0.0.1"),
			"/c/compapi/v2/gse/api/v2/proc/operate_proc_v2/":     leftOut(7, spec, "10.0.0.1"),
			"/api/c/compapi/v2/gse/api/v2/proc/operate_proc_v2/": leftOut(1, spec, "10.0.0.1"),
		} {
			a := d.call(http.MethodPost, way, body)
			message, _ := a.body["message"].(string)
			if a.status != http.StatusOK || a.body["code"] != 1306406.0 || a.body["data"] != nil || !strings.Contains(message, field+": This field is required") {
				t.Errorf("%s with the spec %q: %d %s, want %s", way, spec, a.status, a.text, field)
			}
		}
	}
	if d.tasks() != 0 {
		t.Error("a task was made")
	}
}

// The registration may change between a request and its repeat. The repeat still finds its task.
func TestARepeatThatLeavesMembersOutFindsItsTask(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, store *stores.Bolt){
		"nothing is registered any more": unregisterWeb,
		"something else is registered": func(t *testing.T, store *stores.Bolt) {
			t.Helper()
			registered(t, store, supervised("b"), "0:10.0.0.1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := openStore(t)
			registered(t, store, supervised("a"), "0:10.0.0.1")
			d := startServer(t, testConfig(t), store, &fakeQueue{})
			const way = "POST /api/v2/proc/operate_proc_v2"
			body := leftOut(0, `{"identity":{"proc_name":"nginx"}}`, "10.0.0.1")
			first := d.submitted(way, body, "Idempotency-Key", "k")
			before := specsOf(t, store, first)
			change(t, store)
			if again := d.submitted(way, body, "Idempotency-Key", "k"); again != first {
				t.Errorf("the repeat is task %s, the first was %s", again, first)
			}
			if after := specsOf(t, store, first); !maps.EqualFunc(before, after, func(a, b procfleet.ProcessSpec) bool { return written(t, a) == written(t, b) }) {
				t.Errorf("the task was %+v and is %+v", before, after)
			}
		})
	}
}

func TestWhatCannotBeLookedUpIsNotAccepted(t *testing.T) {
	t.Parallel()
	store := &brokenStore{Store: openStore(t), registrations: taskstore.ErrUnavailable}
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	a := d.call(http.MethodPost, "/api/c/compapi/v2/gse/operate_proc_v2", leftOut(0, `{"identity":{"proc_name":"n","setup_path":"/s"}}`, "10.0.0.1"))
	if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || d.tasks() != 0 {
		t.Errorf("%d %s, %d tasks", a.status, a.text, d.tasks())
	}
}
