package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/taskstore"
)

// cmdbHeaders returns the headers that the CMDB requires of every request.
func cmdbHeaders() []string { return []string{"BK_USER", "admin", "HTTP_BLUEKING_SUPPLIER_ID", "0"} }

// cmdb makes a call below /api/v3/proc/ and checks the envelope around the
// answer. Code 0 is a success.
func (d *testServer) cmdb(want, code int, method, path, body string, header ...string) answer {
	d.t.Helper()
	a := d.call(method, "/api/v3/proc/"+path, body, append(cmdbHeaders(), header...)...)
	message, _ := a.body["bk_error_msg"].(string)
	data, said := a.body["data"]
	if a.status != want || a.body["bk_error_code"] != float64(code) || a.body["result"] != (code == 0) ||
		(message == "") != (code == 0) || !said || code != 0 && data != nil {
		d.t.Errorf("%s %s %s: %d %s, want %d with %d", method, path, body, a.status, a.text, want, code)
	}
	return a
}

// defines creates a process and returns its id.
func (d *testServer) defines(business, name string) string {
	d.t.Helper()
	a := d.cmdb(http.StatusOK, 0, http.MethodPost, business, fmt.Sprintf(`{"bk_process_name":%q}`, name))
	return fmt.Sprint(a.body["bk_process_id"])
}

func TestAProcessIsDefinedBoundAndDeleted(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	id := d.defines("0/2", "nginx")
	for range 2 { // once more is the same
		d.cmdb(200, 0, http.MethodPut, "module/0/2/"+id+"/%E6%95%B0%2F%2Fa", "")
	}
	d.cmdb(500, 1108013, http.MethodDelete, "0/2/"+id, "")
	found := d.cmdb(200, 0, http.MethodPost, "search/0/2", `{"fields":["bk_process_name"],"condition":{"bk_module_name":"数//a"}}`)
	if !strings.Contains(found.text, `"data":{"count":1,"info":[{"bk_process_name":"nginx"}]}`) {
		t.Error(found.text)
	}
	for range 2 {
		d.cmdb(200, 0, http.MethodDelete, "module/0/2/"+id+"/%E6%95%B0%2F%2Fa", "")
	}
	for range 2 {
		d.cmdb(200, 0, http.MethodDelete, "0/2/"+id, "")
	}
	d.cmdb(500, 1108001, http.MethodGet, "0/2/"+id, "")
}

func TestAccountsDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	id := d.defines("0/2", "nginx")
	if other := d.defines("tencent/2", "nginx"); other == id {
		t.Errorf("two processes have the id %s", id)
	}
	d.cmdb(500, 1108001, http.MethodGet, "tencent/2/"+id, "")
	d.cmdb(400, 1199028, http.MethodPut, "tencent/2/"+id, `{"user":"x"}`)
	if a := d.cmdb(200, 0, http.MethodPost, "search/tencent/2", "{}"); !strings.Contains(a.text, `"count":1`) || !strings.Contains(a.text, `"bk_supplier_account":"tencent"`) {
		t.Error(a.text)
	}
}

func TestWhatIsRefusedIsNamedAsTheCMDBNamesIt(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	first, second := d.defines("0/2", "nginx"), d.defines("0/2", "apache")
	for body, want := range map[string]string{
		`{"bk_process_name":"nginx"}`: "Field value check does not pass: process " + second + ": process " + first + " has the same bk_process_name [1199014]",
		`{"proc_num":0}`:              "Field value check does not pass: proc_num: 0 is out of range: 1 to 10000 [1199015]",
	} {
		if a := d.cmdb(400, 1199028, http.MethodPut, "0/2/"+second, body); a.body["bk_error_msg"] != want {
			t.Errorf("%s: %s, want %s", body, a.text, want)
		}
	}
	a := d.cmdb(400, 1199041, http.MethodPut, "0/2", `{"bk_process_id":"`+first+`,99","user":"x"}`)
	if want := "the processes were not updated: process 99: there is no such process in the business [1199019]"; a.body["bk_error_msg"] != want {
		t.Errorf("%s, want %s", a.text, want)
	}
}

func TestPathsOfTheCMDBAreTheDialectsOwn(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	d.described = nil // there are no such calls
	for _, way := range []string{
		"GET /api/v3/proc", "GET /api/v3/proc/", "POST /api/v3/proc/nothing", "PATCH /api/v3/proc/0/2", "POST /api/v12/proc/operate/process/0/2/1",
		"GET /api/v3/proc/search/0/2", "POST /api/v3/proc/module/0/2/1", "OPTIONS /api/v3/proc/0/2/1/x/y/z", "GET /api/v2/proc/0/2",
	} {
		method, path, _ := strings.Cut(way, " ")
		a := d.call(method, path, "") // a missing path is reported before missing headers
		if a.status != http.StatusNotFound || a.body["bk_error_code"] != 1199019.0 || a.body["result"] != false {
			t.Errorf("%s: %d %s", way, a.status, a.text)
		}
	}
	for way, word := range map[string]string{
		"POST /api/v2/proc/nothing":  "API_NOT_FOUND", // GSE's
		"GET /api/vx/proc/0/2/1":     "not_found",
		"GET /api/v/proc/0/2/1":      "not_found",
		"GET /api/v3/process/0/2/1":  "not_found",
		"POST /api/bk-gse/proc/0/2/": "API_NOT_FOUND",
	} {
		method, path, _ := strings.Cut(way, " ")
		if a := d.call(method, path, "", cmdbHeaders()...); a.status != http.StatusNotFound || !strings.Contains(a.text, word) {
			t.Errorf("%s: %d %s", way, a.status, a.text)
		}
	}
	for _, path := range []string{"/api/v0/proc/0/2", "/api/v99/proc/0/2/", "//api//v2/proc//0/2"} {
		if a := d.call(http.MethodPost, path, "{}", cmdbHeaders()...); a.body["bk_error_code"] != 1199028.0 {
			t.Errorf("%s: %d %s", path, a.status, a.text)
		}
	}
}

func TestTheCMDBsHeadersAreNeeded(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	d.described = nil // a description has one name for a header
	for _, header := range [][]string{{}, {"BK_USER", "x"}, {"HTTP_BLUEKING_SUPPLIER_ID", "0"}, {"BK_USER", "", "HTTP_BLUEKING_SUPPLIER_ID", "0"}} {
		a := d.call(http.MethodPost, "/api/v3/proc/search/0/2", "{}", header...)
		if a.status != 500 || a.body["code"] != 1199027.0 || a.body["bk_error_code"] != 1199027.0 || a.body["message"] != a.body["bk_error_msg"] || a.body["message"] == "" {
			t.Errorf("%q: %d %s", header, a.status, a.text)
		}
	}
	for _, header := range [][]string{
		{"bk_user", "x", "Http_Blueking_Supplier_Id", "0"}, {"BK-USER", "x", "http-blueking-supplier-id", "0", "HTTP_BLUEKING_LANGUAGE", "zh"},
	} {
		if a := d.call(http.MethodPost, "/api/v3/proc/search/0/2", "{}", header...); a.status != 200 {
			t.Errorf("%q: %d %s", header, a.status, a.text)
		}
	}
}

// emptyHanded is a store whose catalog calls fail.
type emptyHanded struct {
	Store
	err error
}

func (s emptyHanded) EditTemplates(context.Context, catalog.Business, []catalog.Edit) ([]catalog.Edited, error) {
	return nil, s.err
}

func (s emptyHanded) DeleteTemplate(context.Context, catalog.Business, int64) (bool, error) {
	return false, s.err
}

func (s emptyHanded) Templates(context.Context, catalog.Business, []int64) ([]*catalog.Template, error) {
	return nil, s.err
}

func (s emptyHanded) SearchTemplates(context.Context, catalog.Business, catalog.Search) ([]catalog.Template, int, error) {
	return nil, 0, s.err
}

func (s emptyHanded) FindTemplates(context.Context, catalog.Business, catalog.Search) ([]int64, error) {
	return nil, s.err
}

func TestEachCallOfTheCMDBHasACodeForAStoreThatIsAway(t *testing.T) {
	t.Parallel()
	for _, away := range []error{taskstore.ErrUnavailable, errors.New("disk on fire")} {
		d := startServer(t, Config{Log: testConfig(t).Log}, emptyHanded{openStore(t), away}, &fakeQueue{})
		for way, code := range map[string]int{
			`POST 0/2 {"bk_process_name":"n"}`:               1108008,
			`POST search/0/2 {}`:                             1108006,
			`GET 0/2/7 `:                                     1108001,
			`DELETE 0/2/7 `:                                  1108007,
			`PUT 0/2/7 {"user":"x"}`:                         1108005,
			`PUT 0/2 {"bk_process_id":"7,8","user":"x"}`:     1108005,
			`GET module/0/2/7 `:                              1108004,
			`PUT module/0/2/7/web `:                          1108002,
			`DELETE module/0/2/7/web `:                       1108003,
			`DELETE /module/0/2/7/%77%65%62/?bk_biz_id=%20 `: 1108003,
		} {
			part := strings.SplitN(way, " ", 3)
			a := d.cmdb(500, code, part[0], part[1], part[2])
			if again := a.header.Get("Retry-After") != ""; again != errors.Is(away, taskstore.ErrUnavailable) {
				t.Errorf("%s with %v: Retry-After is %q", way, away, a.header.Get("Retry-After"))
			}
			if strings.Contains(a.text, "fire") {
				t.Errorf("%s tells of us: %s", way, a.text)
			}
		}
	}
}

func TestAnApplicationIsLimitedInTheCatalogue(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.AppsFile = filepath.Join(t.TempDir(), "apps.yaml")
	err := apps.Update(cfg.AppsFile, func(f *apps.File) error {
		for code, action := range map[string]string{"writer": apps.Catalogue, "reader": apps.Reading} {
			actions, err := apps.ParseActions([]string{action})
			if err != nil {
				return err
			}
			businesses, err := apps.ParseBusinesses([]string{"2"})
			if err != nil {
				return err
			}
			f.Put(apps.Application{Code: code, Secret: cheapHash("s"), Businesses: businesses, Actions: actions})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	as := func(code, secret string) []string { return bkapi("bk_app_code", code, "bk_app_secret", secret) }
	writer, reader := as("writer", "s"), as("reader", "s")
	id := fmt.Sprint(d.cmdb(200, 0, http.MethodPost, "0/2", `{"bk_process_name":"n"}`, writer...).body["bk_process_id"])
	d.cmdb(200, 0, http.MethodGet, "0/2/"+id, "", reader...)
	d.cmdb(200, 0, http.MethodPost, "search/0/2", "{}", reader...)
	for _, who := range [][]string{{}, as("writer", "other"), as("nobody", "s"), as("writer", "")} {
		d.cmdb(403, 9900403, http.MethodGet, "0/2/"+id, "", who...)
	}
	d.cmdb(400, 1199006, http.MethodGet, "0/2/"+id, "", "X-Bkapi-Authorization", "{")
	for _, business := range []string{"0/3", "other/2"} {
		d.cmdb(403, 9900403, http.MethodPost, business, `{"bk_process_name":"n"}`, writer...)
		d.cmdb(403, 9900403, http.MethodGet, business+"/"+id, "", reader...)
		d.cmdb(403, 9900403, http.MethodGet, "module/"+business+"/"+id, "", reader...)
		d.cmdb(403, 9900403, http.MethodPost, "search/"+business, "{}", reader...)
		d.cmdb(403, 9900403, http.MethodDelete, business+"/"+id, "", writer...)
	}
	for _, path := range []string{"0/2", "module/0/2/" + id + "/web", "0/2/" + id} {
		d.cmdb(403, 9900403, http.MethodPut, path, "{}", reader...)
	}
	d.cmdb(403, 9900403, http.MethodPost, "search/0/2", "{}", writer...)
}

// topologyAway is a store that cannot read topologies.
type topologyAway struct{ Store }

func (topologyAway) Topology(context.Context, catalog.Business) (*catalog.Topology, error) {
	return nil, taskstore.ErrUnavailable
}

// If a binding is stored but no task for the agents can be created, the call fails with a message that
// says so, and a repeat of the call succeeds.
func TestABindingOfWhichAgentsAreNotToldStands(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d, well := startServer(t, testConfig(t), topologyAway{store}, &fakeQueue{}), startServer(t, testConfig(t), store, &fakeQueue{})
	id := d.defines("0/2", "nginx")
	for _, call := range []struct {
		method string
		code   int
		bound  string
	}{{http.MethodPut, 1108002, `"count":1`}, {http.MethodDelete, 1108003, `"count":0`}} {
		a := d.cmdb(500, call.code, call.method, "module/0/2/"+id+"/web", "")
		if message, _ := a.body["bk_error_msg"].(string); !strings.Contains(message, "the binding is stored") || !strings.Contains(message, "repeat the call") || a.header.Get("Retry-After") == "" {
			t.Errorf("%s: %v %s", call.method, a.header, a.text)
		}
		if found := d.cmdb(200, 0, http.MethodPost, "search/0/2", `{"condition":{"bk_module_name":"web"}}`); !strings.Contains(found.text, call.bound) {
			t.Errorf("%s: %s, want %s", call.method, found.text, call.bound)
		}
		well.cmdb(200, 0, call.method, "module/0/2/"+id+"/web", "")
	}
}

func TestModulesAreNotShownWithoutATopology(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), topologyAway{openStore(t)}, &fakeQueue{})
	d.cmdb(500, 1108004, http.MethodGet, "module/0/2/7", "")
}

func TestModulesAreThoseOfTheTopology(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	b := catalog.Business{Account: "0", ID: 2}
	hosts := []procfleet.Host{host(t, "0:10.0.0.1")}
	_, err := store.SetTopology(t.Context(), b, catalog.Topology{Sets: []catalog.Set{
		{Name: "s1", Modules: []catalog.Module{{Name: "web", Hosts: hosts}, {Name: "idle", Default: 1, Hosts: hosts}}},
		{Name: "s2", Modules: []catalog.Module{{Name: "db"}, {Name: "web"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	id := d.defines("0/2", "nginx")
	d.cmdb(200, 0, http.MethodPut, "module/0/2/"+id+"/db", "")
	d.cmdb(200, 0, http.MethodPut, "module/0/2/"+id+"/nowhere", "")
	a := d.cmdb(200, 0, http.MethodGet, "module/0/2/"+id, "")
	if want := `"data":[{"bk_module_name":"web","set_num":2,"is_bind":0},{"bk_module_name":"db","set_num":1,"is_bind":1}]`; !strings.Contains(a.text, want) {
		t.Errorf("%s, want %s", a.text, want)
	}
}
