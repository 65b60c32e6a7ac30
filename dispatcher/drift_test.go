package dispatcher

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/stores"
)

func TestRemarks(t *testing.T) {
	t.Parallel()
	want := commanded("web", "./start.sh")
	manual := want
	manual.Alive.Type = procfleet.Manual
	three := want
	three.Alive.Instances = 3
	reports := func(s procfleet.ProcessStatus) dialect.ProcessEntry {
		return dialect.ProcessEntry{Alive: true, Entry: catalog.Entry{
			Registration: &catalog.Registration{Spec: want}, Reported: &catalog.ReportedProcess{ProcName: "p", Status: s},
		}}
	}
	kept := procfleet.ProcessStatus{Running: true, Supervised: true, PID: 7}
	with := func(e dialect.ProcessEntry, change func(e *dialect.ProcessEntry)) dialect.ProcessEntry {
		change(&e)
		return e
	}
	for name, c := range map[string]struct {
		want procfleet.ProcessSpec
		is   dialect.ProcessEntry
		says string
	}{
		"as it should be":                       {want, reports(kept), ""},
		"nothing is known":                      {want, dialect.ProcessEntry{}, "agent_missing"},
		"nothing was reported":                  {want, dialect.ProcessEntry{Alive: true}, "down unsupervised"},
		"a manual one that was never started":   {manual, dialect.ProcessEntry{Alive: true}, "down"},
		"it died, and nothing keeps it alive":   {want, reports(procfleet.ProcessStatus{}), "down unsupervised"},
		"it died, and will be started":          {want, reports(procfleet.ProcessStatus{Supervised: true}), "down"},
		"it runs, and nothing keeps it alive":   {want, reports(procfleet.ProcessStatus{Running: true, PID: 7}), "unsupervised"},
		"a manual one needs nothing but to run": {manual, with(reports(procfleet.ProcessStatus{Running: true, PID: 7}), func(e *dialect.ProcessEntry) { e.Registration.Spec = manual }), ""},
		"registered as something else":          {want, with(reports(kept), func(e *dialect.ProcessEntry) { e.Registration.Spec.Control.Start = "./old.sh" }), "spec_differs"},
		"registered by another hand":            {want, with(reports(kept), func(e *dialect.ProcessEntry) { e.Registration = nil }), ""},
		"reported as another program":           {want, with(reports(kept), func(e *dialect.ProcessEntry) { e.Reported.ProcName = "q" }), "spec_differs"},
		"empty is as nothing": {want, with(reports(kept), func(e *dialect.ProcessEntry) {
			e.Registration.Spec.Control.Environment = map[string]string{}
		}), ""},
		"what a lost agent said is old": {want, with(reports(procfleet.ProcessStatus{}), func(e *dialect.ProcessEntry) { e.Alive, e.Reported.ProcName = false, "q" }), "agent_missing"},
		"of three, one runs": {three, with(reports(procfleet.ProcessStatus{Running: true, Supervised: true, PID: 7, PIDs: []int{7}}), func(e *dialect.ProcessEntry) {
			e.Registration.Spec = three
		}), "down"},
		"of three, three run": {three, with(reports(procfleet.ProcessStatus{Running: true, Supervised: true, PID: 7, PIDs: []int{7, 8, 9}}), func(e *dialect.ProcessEntry) {
			e.Registration.Spec = three
		}), ""},
		"everything at once": {want, with(reports(procfleet.ProcessStatus{}), func(e *dialect.ProcessEntry) { e.Registration.Spec.SetupPath = "/old" }), "down unsupervised spec_differs"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var words []string
			for _, r := range remarks(&c.want, &c.is) {
				words = append(words, string(r))
			}
			if got := strings.Join(words, " "); got != c.says {
				t.Errorf("remarks are %q, want %q", got, c.says)
			}
		})
	}
}

// fleetOf2 returns a store with the topology of business 2 and its process web, which is bound to
// the module web and to the missing module gone.
func fleetOf2(t *testing.T) (*stores.Bolt, *catalog.Template) {
	t.Helper()
	store := openStore(t)
	b := catalog.Business{Account: catalog.DefaultAccount, ID: 2}
	done, err := store.EditTemplates(t.Context(), b, []catalog.Edit{{Bind: []string{"web", "gone"}, Set: map[catalog.Attribute]catalog.Value{
		catalog.AttrName: catalog.Text("web"), catalog.AttrWorkPath: catalog.Text("/srv/web"), catalog.AttrStart: catalog.Text("./start.sh"), catalog.AttrAutoStart: catalog.Truth(true),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = store.SetTopology(t.Context(), b, catalog.Topology{Version: -1, Sets: []catalog.Set{
		{Name: "s1", Modules: []catalog.Module{
			{Name: "web", Hosts: []procfleet.Host{host(t, "0:10.0.0.2"), host(t, "0:10.0.0.1")}},
			{Name: "db", Hosts: []procfleet.Host{host(t, "0:10.0.0.7")}},
		}},
		{Name: "s2", Modules: []catalog.Module{{Name: "web", Hosts: []procfleet.Host{host(t, "0:10.0.0.3"), host(t, "0:10.0.0.1"), host(t, "0:10.0.0.4")}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	found, err := store.Templates(t.Context(), b, []int64{done[0].ID})
	if err != nil {
		t.Fatal(err)
	}
	return store, found[0]
}

// webReported stores the presence of a host's agent and its report on the process web of
// business 2.
func webReported(t *testing.T, store *stores.Bolt, on string, status procfleet.ProcessStatus) {
	t.Helper()
	announced(t, store, on, "")
	err := store.Report(t.Context(), []catalog.Report{{
		Host: host(t, on), Instance: "i", Number: time.Now().UnixMicro(), At: time.Now().UTC(),
		Processes: []catalog.ReportedProcess{{Key: "2:web", Namespace: "2", Name: "web", ProcName: "web", Desired: catalog.DesiredUp, Status: status}},
	}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDriftIsToldByHostAndCountedByModule(t *testing.T) {
	t.Parallel()
	store, web := fleetOf2(t)
	spec := web.Spec(catalog.Business{Account: catalog.DefaultAccount, ID: 2})
	registered(t, store, spec, "0:10.0.0.1", "0:10.0.0.2", "0:10.0.0.3", "0:10.0.0.4", "0:10.0.0.9", "0:10.0.0.7")
	old := spec
	old.Control.Start = "./old.sh"
	registered(t, store, old, "0:10.0.0.4")
	up := procfleet.ProcessStatus{Running: true, Supervised: true, PID: 7}
	webReported(t, store, "0:10.0.0.1", up)
	webReported(t, store, "0:10.0.0.3", procfleet.ProcessStatus{})
	webReported(t, store, "0:10.0.0.4", up)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	path := fmt.Sprintf("/v1/processes/2/%d/status", web.ID)
	told := func(query string) (hosts []string, body map[string]any) {
		t.Helper()
		got := d.call(http.MethodGet, path+query, "")
		if got.status != http.StatusOK {
			t.Fatalf("%s: %d %s", query, got.status, got.text)
		}
		for _, h := range got.body["hosts"].([]any) {
			h := h.(map[string]any)
			hosts = append(hosts, fmt.Sprint(h["host"], " ", h["modules"], " ", h["state"], " ", h["remarks"]))
		}
		return hosts, got.body
	}
	hosts, body := told("")
	if diff := cmp.Diff([]string{
		"0:10.0.0.2 [s1/web] agent_missing [agent_missing]",
		"0:10.0.0.3 [s2/web] down [down unsupervised]",
		"0:10.0.0.4 [s2/web] spec_differs [spec_differs]",
		"0:10.0.0.1 [s1/web s2/web] running []",
	}, hosts); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
	counted := func(counts any) string {
		var words []string
		for _, state := range dialect.DriftStates() {
			words = append(words, fmt.Sprint(counts.(map[string]any)[string(state)]))
		}
		return strings.Join(words, " ")
	}
	got := []string{fmt.Sprint(body["total"], ": ", counted(body["counts"]))}
	for _, m := range body["modules"].([]any) {
		m := m.(map[string]any)
		got = append(got, fmt.Sprint(m["set"], "/", m["module"], " ", m["total"], ": ", counted(m["counts"])))
	}
	if want := []string{"4: 1 1 0 1 1", "s1/web 2: 1 0 0 0 1", "s2/web 3: 0 1 0 1 1"}; !slices.Equal(got, want) {
		t.Errorf("counts are %q, want %q", got, want)
	}
	if fmt.Sprint(body["missing_modules"], body["elsewhere"]) != "[gone] [0:10.0.0.7 0:10.0.0.9]" {
		t.Errorf("missing are %v, elsewhere %v", body["missing_modules"], body["elsewhere"])
	}
	if hosts, body := told("?limit=1"); len(hosts) != 1 || body["total"] != 4.0 {
		t.Errorf("of %v one is asked for: %v", body["total"], hosts)
	}
	if hosts, body := told("?module=gone"); len(hosts) != 0 || len(body["modules"].([]any)) != 0 || len(body["elsewhere"].([]any)) != 2 {
		t.Errorf("of a module without hosts: %v", body)
	}
	if hosts, body := told("?module=db"); len(hosts) != 0 || len(body["missing_modules"].([]any)) != 0 {
		t.Errorf("of a module that it is not bound to: %v", body)
	}
	for path, status := range map[string]int{
		"/v1/processes/2/999/status": 404, "/v1/processes/3/1/status": 404, path + "?account=x": 404, "/v1/processes/2/x/status": 400,
	} {
		if got := d.call(http.MethodGet, path, ""); got.status != status {
			t.Errorf("%s: %d %s, want %d", path, got.status, got.text, status)
		}
	}
}

// The dispatcher reads the hosts in pages, and applies the limit of items to their sum.
func TestDriftOfManyHosts(t *testing.T) {
	t.Parallel()
	store, web := fleetOf2(t)
	b := catalog.Business{Account: catalog.DefaultAccount, ID: 2}
	var hosts []procfleet.Host
	for i := range 2*hostsAtOnce + 1 {
		hosts = append(hosts, host(t, fmt.Sprintf("7:10.1.%d.%d", i>>8, i&255)))
	}
	if _, err := store.Register(t.Context(), []catalog.Definition{{Spec: web.Spec(b), Hosts: hosts}}, true); err != nil {
		t.Fatal(err)
	}
	if _, err := store.SetModuleHosts(t.Context(), b, "s1", "web", hosts[:len(hosts)-1]); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t)
	cfg.Limits.Items = 2*hostsAtOnce + 3
	d := startServer(t, cfg, store, &fakeQueue{})
	path := fmt.Sprintf("/v1/processes/2/%d/status", web.ID)
	got := d.call(http.MethodGet, path, "")
	if got.status != http.StatusOK || got.body["total"] != float64(2*hostsAtOnce+3) || len(got.body["hosts"].([]any)) != 1000 || fmt.Sprint(got.body["elsewhere"]) != "["+hosts[2*hostsAtOnce].String()+"]" {
		t.Errorf("%d, %v hosts, elsewhere %v", got.status, got.body["total"], got.body["elsewhere"])
	}
	cfg.Limits.Items--
	d = startServer(t, cfg, store, &fakeQueue{})
	if got := d.call(http.MethodGet, path, ""); got.status != http.StatusRequestEntityTooLarge {
		t.Errorf("over the limit: %d %s", got.status, got.text)
	}
}
