package dispatcher

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/taskstore"
)

const topologyPath = "/v1/topology/2"

// versioned fails unless the response is the given version.
func versioned(t *testing.T, a answer, want float64) {
	t.Helper()
	if a.status != http.StatusOK || a.body["version"] != want || a.header.Get("ETag") != fmt.Sprintf(`"%v"`, want) {
		t.Errorf("%d %s with ETag %s, want version %v", a.status, a.text, a.header.Get("ETag"), want)
	}
}

func TestATopologyIsReplacedChangedAndShown(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	shown := func(want string) {
		t.Helper()
		got := d.call(http.MethodGet, topologyPath, "")
		if got.status != http.StatusOK || strings.TrimSpace(got.text) != want {
			t.Errorf("%d %swant %s", got.status, got.text, want)
		}
	}
	shown(`{"version":0,"auto_register":false,"sets":[],"without_agent":[],"without_module":[]}`)
	announced(t, store, "0:10.0.0.1", "a-1")
	announced(t, store, "0:10.0.0.9", "")
	versioned(t, d.call(http.MethodPut, topologyPath, `{"version":0,"auto_register":true,"sets":[{"name":"s1","modules":[{"name":"web","hosts":["0:10.0.0.2","0:10.0.0.1"]},{"name":"db","hosts":["0:10.0.0.2"]}]}]}`), 1)
	const sets = `"sets":[{"name":"s1","modules":[{"name":"web","default":0,"hosts":[%s]},{"name":"db","default":0,"hosts":["0:10.0.0.2"]}]}]`
	shown(`{"version":1,"auto_register":true,` + fmt.Sprintf(sets, `"0:10.0.0.2","0:10.0.0.1"`) + `,"without_agent":["0:10.0.0.2"],"without_module":["0:10.0.0.9"]}`)
	versioned(t, d.call(http.MethodPatch, topologyPath, `{"set":"s1","module":"web","hosts":["0:10.0.0.9"]}`), 2)
	versioned(t, d.call(http.MethodPatch, topologyPath, `{"auto_register":false}`), 3)
	shown(`{"version":3,"auto_register":false,` + fmt.Sprintf(sets, `"0:10.0.0.9"`) + `,"without_agent":["0:10.0.0.2"],"without_module":["0:10.0.0.1"]}`)
	if got := d.call(http.MethodGet, topologyPath+"?agents=false", ""); got.body["without_agent"] != nil || got.body["without_module"] != nil || got.body["version"] != 3.0 {
		t.Errorf("without agents: %d %s", got.status, got.text)
	}

	read := d.call(http.MethodGet, topologyPath, "").text
	versioned(t, d.call(http.MethodPut, topologyPath, read), 4)
	for name, got := range map[string]answer{
		"what was read before":   d.call(http.MethodPut, topologyPath, read),
		"If-Match":               d.call(http.MethodPut, topologyPath, `{"sets":[]}`, "If-Match", `"3"`),
		"a topology that is new": d.call(http.MethodPut, topologyPath, "set,module,host\n", "Content-Type", "text/csv", "If-Match", "0"),
	} {
		if !nativeCode(http.StatusConflict, "conflict")(got) || !strings.Contains(got.text, "has version 4 now") {
			t.Errorf("%s: %d %s", name, got.status, got.text)
		}
	}
	planned := d.call(http.MethodPut, topologyPath+"?plan=true", `{"sets":[]}`)
	if versioned(t, planned, 5); planned.body["auto_register"] != false || fmt.Sprint(planned.body["sets"]) != "[]" {
		t.Errorf("planned: %s", planned.text)
	}
	if got := d.call(http.MethodPut, topologyPath+"?plan=true", `{"version":3,"sets":[]}`); !nativeCode(http.StatusConflict, "conflict")(got) {
		t.Errorf("a plan for an old version: %d %s", got.status, got.text)
	}
	versioned(t, d.call(http.MethodPut, topologyPath, "sets: [{name: s2}]", "Content-Type", "text/yaml", "If-Match", `"4"`), 5)
	versioned(t, d.call(http.MethodPut, topologyPath+"?auto_register=true", "set,module,host\ns3,web,0:10.0.0.1\n", "Content-Type", "text/csv; charset=utf-8"), 6)
	versioned(t, d.call(http.MethodPut, topologyPath, `{"sets":[]}`), 7) // registrations stay unchanged
	shown(`{"version":7,"auto_register":true,"sets":[],"without_agent":[],"without_module":["0:10.0.0.1","0:10.0.0.9"]}`)
	if got := d.call(http.MethodGet, topologyPath+"?account=acme", ""); got.body["version"] != 0.0 {
		t.Errorf("the business of another account is %s", got.text)
	}
}

func TestAChangeOfATopologyIsRefusedAsAWhole(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	versioned(t, d.call(http.MethodPut, topologyPath, `{"sets":[{"name":"s1","modules":[{"name":"web","hosts":["0:10.0.0.1"]}]}]}`), 1)
	refused := func(got answer, status int, code, field string) {
		t.Helper()
		if wrong, _ := got.body["error"].(map[string]any); !nativeCode(status, code)(got) || wrong["field"] != field {
			t.Errorf("%d %s, want %d about %s", got.status, got.text, status, field)
		}
	}
	refused(d.call(http.MethodPatch, topologyPath, `{"set":"s1","module":"db","hosts":[]}`), http.StatusNotFound, "not_found", "module")
	refused(d.call(http.MethodPatch, "/v1/topology/3", `{"set":"s1","module":"web","hosts":[]}`), http.StatusNotFound, "not_found", "module")
	refused(d.call(http.MethodPatch, topologyPath, `{"set":"s1","module":"web","hosts":["0:10.0.0.2","0:10.0.0.2"]}`), http.StatusBadRequest, "invalid_request", "hosts[1]")
	refused(d.call(http.MethodPut, topologyPath, "set,module,host\ns1,web,0:10.0.0.2\ns1,web,10.0.0.3\n", "Content-Type", "text/csv"), http.StatusBadRequest, "invalid_request", "line 3, host")
	refused(d.call(http.MethodPut, topologyPath, `{"sets":[{"name":"s1"},{"name":"s1"}]}`), http.StatusBadRequest, "invalid_request", "sets[1].name")
	if got := d.call(http.MethodDelete, topologyPath, ""); got.status != http.StatusMethodNotAllowed {
		t.Errorf("DELETE: %d %s", got.status, got.text)
	}
	if got := d.call(http.MethodGet, topologyPath, ""); got.body["version"] != 1.0 || !strings.Contains(got.text, `"hosts":["0:10.0.0.1"]`) {
		t.Errorf("afterwards it is %s", got.text)
	}
}

// A change without a version applies to the current topology. Concurrent changes are not lost.
func TestChangesOfATopologyAtTheSameTimeAllCount(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	versioned(t, d.call(http.MethodPut, topologyPath, `{"sets":[{"name":"s1","modules":[{"name":"a"},{"name":"b"},{"name":"c"}]}]}`), 1)
	var all sync.WaitGroup
	for _, change := range []string{
		`{"set":"s1","module":"a","hosts":["0:10.0.0.1"]}`, `{"set":"s1","module":"b","hosts":["0:10.0.0.2"]}`,
		`{"set":"s1","module":"c","hosts":["0:10.0.0.3"]}`, `{"auto_register":true}`,
	} {
		all.Go(func() {
			if got := d.call(http.MethodPatch, topologyPath, change); got.status != http.StatusOK {
				t.Errorf("%s: %d %s", change, got.status, got.text)
			}
		})
	}
	all.Wait()
	found, err := store.Topology(t.Context(), catalog.Business{Account: "0", ID: 2})
	if err != nil || found.Version != 5 || !found.AutoRegister {
		t.Fatalf("%v, %+v", err, found)
	}
	for i, m := range found.Sets[0].Modules {
		if want := fmt.Sprintf("[0:10.0.0.%d]", i+1); fmt.Sprint(m.Hosts) != want {
			t.Errorf("module %s has %v, want %s", m.Name, m.Hosts, want)
		}
	}
}

// An application with the right for one business cannot read other businesses or their hosts.
func TestATopologyIsOfThoseWhoMayActForTheBusiness(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startServer(t, guarded(t), store, &fakeQueue{})
	announced(t, store, "0:10.0.0.9", "")
	bodies := map[string]string{
		http.MethodPut:   `{"sets":[{"name":"s1","modules":[{"name":"web","hosts":["0:10.0.0.1"]}]}]}`,
		http.MethodPatch: `{"set":"s1","module":"web","hosts":[]}`,
	}
	for _, c := range []struct {
		who, method, path string
		status            int
	}{
		{"biz", http.MethodPut, "/v1/topology/2", http.StatusOK},
		{"biz", http.MethodPut, "/v1/topology/3", http.StatusForbidden},
		{"biz", http.MethodPut, "/v1/topology/2?account=acme", http.StatusForbidden},
		{"biz", http.MethodGet, "/v1/topology/3", http.StatusForbidden},
		{"biz", http.MethodPatch, "/v1/topology/3", http.StatusForbidden},
		{"reader", http.MethodPut, "/v1/topology/2", http.StatusForbidden},
		{"reader", http.MethodPatch, "/v1/topology/2", http.StatusForbidden},
		{"reader", http.MethodGet, "/v1/topology/2", http.StatusOK},
		{"starter", http.MethodGet, "/v1/topology/2", http.StatusForbidden},
	} {
		if got := d.call(c.method, c.path, bodies[c.method], bearer(c.who+".s3cret")...); got.status != c.status {
			t.Errorf("%s %s by %s: %d %s", c.method, c.path, c.who, got.status, got.text)
		}
	}
	for who, want := range map[string]string{"biz": `"without_agent":["0:10.0.0.1"],"without_module":null`, "reader": `"without_agent":["0:10.0.0.1"],"without_module":["0:10.0.0.9"]`} {
		if got := d.call(http.MethodGet, topologyPath, "", bearer(who+".s3cret")...); !strings.Contains(got.text, want) {
			t.Errorf("%s is told %s", who, got.text)
		}
	}
}

// The dispatcher looks up hosts in batches of a thousand, and lists at most a thousand hosts without a
// module.
func TestHostsOfManyModulesAreComparedWithAllAgents(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	const many = 2500
	var lines strings.Builder
	var live []taskstore.Announcement
	for i := range many {
		name := fmt.Sprintf("0:10.1.%d.%d", i>>8, i&255)
		fmt.Fprintf(&lines, "s1,m%d,%s\n", i%7, name)
		if i%10 != 0 {
			live = append(live, taskstore.Announcement{Host: host(t, name), Instance: "i"})
		}
		live = append(live, taskstore.Announcement{Host: host(t, fmt.Sprintf("1:10.1.%d.%d", i>>8, i&255)), Instance: "i"})
	}
	if err := store.Announce(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	versioned(t, d.call(http.MethodPut, topologyPath, "set,module,host\n"+lines.String(), "Content-Type", "text/csv"), 1)
	got := d.call(http.MethodGet, topologyPath, "")
	agents, _ := got.body["without_agent"].([]any)
	modules, _ := got.body["without_module"].([]any)
	if len(agents) != many/10 || len(modules) != dialect.MaxUnplaced || modules[0] != "1:10.1.0.0" {
		t.Errorf("%d hosts without an agent, %d without a module", len(agents), len(modules))
	}
}
