package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/taskstore"
)

// fleetHost returns host n of the fleet of startFleet.
func fleetHost(n int) procfleet.Host {
	return procfleet.Host{Cloud: procfleet.CloudArea(n % 2), Addr: netip.AddrFrom4([4]byte{10, byte(n / 10_000), byte(n / 100 % 100), byte(n % 100)})}
}

// startFleet returns a dispatcher whose store has n hosts, see fillFleet.
func startFleet(t *testing.T, n int) (*testServer, *stores.Bolt) {
	t.Helper()
	now := time.Now()
	store := openStoreAt(t, func() time.Time { return now }) // no host expires, however slow the machine is
	fillFleet(t, store, 0, n)
	return startServer(t, testConfig(t), store, &fakeQueue{}), store
}

// fillFleet stores the hosts first to end with two processes each. Every tenth host has the label
// zone=a, and its process db is down.
func fillFleet(tb testing.TB, store interface {
	Announce(ctx context.Context, as []taskstore.Announcement) error
	Report(ctx context.Context, rs []catalog.Report) error
}, first, end int,
) {
	tb.Helper()
	var announcements []taskstore.Announcement
	var reports []catalog.Report
	for i := first; i < end; i++ {
		host := fleetHost(i)
		a := taskstore.Announcement{Host: host, AgentID: fmt.Sprint("agent-", i), Instance: fmt.Sprint("i-", i), Version: "1.0.0", OS: "linux", Arch: "amd64"}
		db := catalog.ReportedProcess{Key: "shop:db", Namespace: "shop", Name: "db", ProcName: "db", Status: procfleet.ProcessStatus{Running: true, PID: 2, Phase: "running"}}
		if i%10 == 0 {
			a.Labels = map[string]string{"zone": "a"}
			db.Status = procfleet.ProcessStatus{Phase: "backoff", Restarts: 3}
		}
		announcements = append(announcements, a)
		reports = append(reports, catalog.Report{
			Host: host, AgentID: a.AgentID, Instance: a.Instance, Number: 1, At: time.Now().UTC(),
			Processes: []catalog.ReportedProcess{
				{Key: "shop:web", Namespace: "shop", Name: "web", ProcName: "web", Status: procfleet.ProcessStatus{Running: true, PID: 1, Phase: "running"}}, db,
			},
		})
	}
	if err := store.Announce(tb.Context(), announcements); err != nil {
		tb.Fatal(err)
	}
	if err := store.Report(tb.Context(), reports); err != nil {
		tb.Fatal(err)
	}
}

// pages reads all pages of a list and returns its entries, and the number of pages.
func pages[T any](t *testing.T, d *testServer, path, entries string, query url.Values) (all []T, n int) {
	t.Helper()
	for {
		a := d.call(http.MethodGet, path+"?"+query.Encode(), "")
		if a.status != http.StatusOK {
			t.Fatalf("%s: %d %s", path, a.status, a.text)
		}
		var page []T
		text, err := json.Marshal(a.body[entries])
		if err == nil {
			err = json.Unmarshal(text, &page)
		}
		if err != nil {
			t.Fatal(err)
		}
		all, n = append(all, page...), n+1
		next, _ := a.body["next"].(string)
		if next == "" || n > 1000 {
			return all, n
		}
		query.Set("after", next)
	}
}

func TestEveryPageOfAFilteredListContinuesThePrevious(t *testing.T) {
	t.Parallel()
	const hosts = 620 // more than one batch of a scan
	d, _ := startFleet(t, hosts)
	for query, want := range map[string]int{
		"limit=170": hosts, "limit=1000": hosts, "limit=7&label=zone=a": hosts / 10, "limit=100&label=zone=a&area=0": hosts / 10, "label=zone=a&area=1": 0,
		"label=os=linux&label=zone!=a&limit=500": hosts - hosts/10, "label=arch=arm*": 0, "conflict=true": 0, "area=1&limit=130": hosts / 2,
	} {
		values, _ := url.ParseQuery(query)
		found, _ := pages[v1.Agent](t, d, "/v1/hosts", "hosts", values)
		seen := map[procfleet.Host]bool{}
		for _, a := range found {
			seen[a.Host] = true
		}
		if len(found) != want || len(seen) != want {
			t.Errorf("hosts?%s: %d entries, %d hosts, want %d", query, len(found), len(seen), want)
		}
	}
	for query, want := range map[string]int{
		"limit=333": 2 * hosts, "state=down&limit=20": hosts / 10, "state=backoff": hosts / 10, "state=up&name=db&limit=1000": hosts - hosts/10,
		"restarted=true&label=zone=a": hosts / 10, "namespace=other": 0, "name=w*&area=1&limit=77": hosts / 2, "host=0:10.0.0.0&host=1:10.0.0.1": 4,
		"host=0:10.9.9.9": 0,
	} {
		values, _ := url.ParseQuery(query)
		found, _ := pages[v1.FleetProcess](t, d, "/v1/hosts/processes", "processes", values)
		seen := map[string]bool{}
		for _, p := range found {
			seen[p.Host.String()+p.Key] = true
		}
		if len(found) != want || len(seen) != want {
			t.Errorf("processes?%s: %d entries, %d processes, want %d", query, len(found), len(seen), want)
		}
	}
}

func TestHostsAreListedWithTheirProcessesIfRequested(t *testing.T) {
	t.Parallel()
	d, store := startFleet(t, 1)
	if _, err := store.Freeze(t.Context(), []catalog.Scope{{Host: fleetHost(0)}}, catalog.Freezing{TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	found, _ := pages[v1.Agent](t, d, "/v1/hosts", "hosts", url.Values{"processes": {"true"}})
	if a := found[0]; a.Processes == nil || *a.Processes != (v1.ProcessCounts{Up: 1, Down: 1}) || a.FrozenUntil == nil || a.Labels["zone"] != "a" || a.Labels["os"] != "linux" {
		t.Errorf("with processes: %+v", a)
	}
	found, _ = pages[v1.Agent](t, d, "/v1/hosts", "hosts", url.Values{})
	if a := found[0]; a.Processes != nil || a.FrozenUntil != nil {
		t.Errorf("without processes: %+v", a)
	}
}

func TestDriftIsTheDifferenceFromTheRegistration(t *testing.T) {
	t.Parallel()
	d, store := startFleet(t, 2)
	register := func(host procfleet.Host, name, program string) {
		t.Helper()
		spec := procfleet.ProcessSpec{Namespace: "shop", Name: name, ProcName: program}
		if _, err := store.Register(t.Context(), []catalog.Definition{{Spec: spec, Hosts: []procfleet.Host{host}}}, true); err != nil {
			t.Fatal(err)
		}
	}
	register(fleetHost(0), "web", "web")
	register(fleetHost(0), "db", "db") // in backoff
	register(fleetHost(1), "db", "postgres")
	found, _ := pages[v1.FleetProcess](t, d, "/v1/hosts/processes", "processes", url.Values{"drift": {"true"}})
	got := map[string]string{}
	for _, p := range found {
		got[p.Host.String()+" "+p.Name] = fmt.Sprint(p.Drift)
	}
	want := map[string]string{
		"0:10.0.0.0 web": "[]", "0:10.0.0.0 db": "[down]", "1:10.0.0.1 web": "[unregistered]", "1:10.0.0.1 db": "[spec_differs]",
	}
	if !maps.Equal(got, want) {
		t.Errorf("drift %v, want %v", got, want)
	}
	for _, limit := range []string{"1", "2", "100"} {
		found, _ = pages[v1.FleetProcess](t, d, "/v1/hosts/processes", "processes", url.Values{"drifted": {"true"}, "limit": {limit}})
		var drifted []string
		for _, p := range found {
			drifted = append(drifted, fmt.Sprint(p.Host, p.Name, p.Drift))
		}
		if want := []string{"0:10.0.0.0db[down]", "1:10.0.0.1db[spec_differs]"}; !slices.Equal(drifted, want) {
			t.Errorf("drifted processes in pages of %s: %q, want %q", limit, drifted, want)
		}
	}
	if found, _ = pages[v1.FleetProcess](t, d, "/v1/hosts/processes", "processes", url.Values{}); found[0].Drift != nil {
		t.Errorf("drift without a request: %v", found[0].Drift)
	}
}

func TestHostsOfABusinessAreListedWithoutAnAgent(t *testing.T) {
	t.Parallel()
	d, store := startFleet(t, 4)
	if err := store.Report(t.Context(), []catalog.Report{{ // of an agent that is gone
		Host: host(t, "0:10.9.0.1"), Number: 1, At: time.Now().UTC(), Processes: []catalog.ReportedProcess{{Key: "shop:web"}},
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := store.SetTopology(t.Context(), biz2, catalog.Topology{Version: -1, Sets: []catalog.Set{{Name: "s1", Modules: []catalog.Module{
		module(t, "web", "0:10.0.0.0", "0:10.9.0.1"), module(t, "db", "0:10.0.0.2", "0:10.9.0.2"),
	}}}}); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]string{
		"business=2":                         "0:10.0.0.0 0:10.0.0.2 0:10.9.0.1! 0:10.9.0.2!",
		"business=2&module=web&limit=1":      "0:10.0.0.0 0:10.9.0.1!",
		"business=2&missing=true":            "0:10.9.0.1! 0:10.9.0.2!",
		"business=2&label=zone=a":            "0:10.0.0.0",
		"business=3&processes=true":          "",
		"business=2&module=none":             "",
		"business=2&missing=true&module=db":  "0:10.9.0.2!",
		"business=2&processes=true&module=x": "",
	} {
		values, _ := url.ParseQuery(query)
		found, _ := pages[v1.Agent](t, d, "/v1/hosts", "hosts", values)
		var got []string
		for _, a := range found {
			text := a.Host.String()
			if a.Missing {
				text += "!"
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	found, _ := pages[v1.Agent](t, d, "/v1/hosts", "hosts", url.Values{"business": {"2"}, "module": {"web"}, "missing": {"true"}, "processes": {"true"}})
	if len(found) != 1 || found[0].SeenAt.IsZero() || found[0].Processes == nil || found[0].Processes.Down != 1 {
		t.Errorf("a host whose agent is gone: %+v", found)
	}
	if a := d.call(http.MethodGet, "/v1/hosts?missing=true", ""); a.status != http.StatusBadRequest || !strings.Contains(a.text, "business") {
		t.Errorf("missing without business: %d %s", a.status, a.text)
	}
	// A business without hosts has no processes, not those of all hosts.
	if found, _ := pages[v1.FleetProcess](t, d, "/v1/hosts/processes", "processes", url.Values{"business": {"3"}}); len(found) > 0 {
		t.Errorf("processes of a business without hosts: %d", len(found))
	}
}

func TestLabelsOfTheServerApplyInListsAndSelections(t *testing.T) {
	t.Parallel()
	d, store := startFleet(t, 12)
	ids := shopCatalog(t, store)
	label := func(body string, want ...float64) {
		t.Helper()
		a := d.call(http.MethodPut, "/v1/labels", body)
		results, _ := a.body["results"].([]any)
		for i, r := range results {
			if entry, _ := r.(map[string]any); i >= len(want) || entry["code"] != want[i] {
				t.Errorf("%s: %s", body, a.text)
			}
		}
		if a.status != http.StatusOK || len(results) != len(want) {
			t.Fatalf("%s: %d %s", body, a.status, a.text)
		}
	}
	hosts := func(filter string) (found []string) {
		t.Helper()
		agents, _ := pages[v1.Agent](t, d, "/v1/hosts", "hosts", url.Values{"label": {filter}})
		for _, a := range agents {
			found = append(found, a.Host.String())
		}
		return found
	}
	label(`{"set":{"zone":"b","canary":"yes"},"hosts":["0:10.0.0.0","3:10.0.0.4"]}`, 0, 0) // the second one has no agent
	if got := hosts("zone=b"); !slices.Equal(got, []string{"0:10.0.0.0"}) {
		t.Errorf("zone=b: %v", got)
	}
	if got := hosts("zone=a"); !slices.Equal(got, []string{"0:10.0.0.10"}) {
		t.Errorf("zone=a, which the server replaced on another host: %v", got)
	}
	plan := d.call(http.MethodPost, "/v1/tasks?plan=true", `{"action":"stop","business":"2","select":{"processes":[`+fmt.Sprint(ids["nginx"])+`],"labels":["canary=y*"]}}`)
	if plan.status != http.StatusOK || plan.body["hosts"] != 1.0 || !strings.Contains(plan.text, "3:10.0.0.4") {
		t.Errorf("selected by label: %d %s", plan.status, plan.text)
	}
	label(`{"remove":["zone"],"hosts":["0:10.0.0.0"]}`, 0)
	if got := hosts("zone=a"); !slices.Equal(got, []string{"0:10.0.0.0", "0:10.0.0.10"}) {
		t.Errorf("zone=a after the server's label was removed: %v", got)
	}
	var many []string
	for i := range catalog.MaxLabels {
		many = append(many, fmt.Sprintf(`"l%d":"x"`, i))
	}
	label(`{"set":{`+strings.Join(many, ",")+`},"hosts":["0:10.0.0.0","0:10.0.0.2"]}`, float64(procfleet.CodeFailed), 0)
}

// TestAModuleHasTheHostsWithItsLabels: a host that gets the label is in the module from then on.
func TestAModuleHasTheHostsWithItsLabels(t *testing.T) {
	t.Parallel()
	d, store := startFleet(t, 12)
	shopCatalog(t, store)
	set := d.call(http.MethodPut, "/v1/topology/2", `{"sets":[{"name":"s1","modules":[{"name":"web","hosts":["3:10.0.0.4"],"labels":["role=we*","zone"]}]}]}`)
	if set.status != http.StatusOK {
		t.Fatalf("%d %s", set.status, set.text)
	}
	planned := func() any {
		t.Helper()
		plan := d.call(http.MethodPost, "/v1/tasks?plan=true", `{"action":"stop","business":"2","select":{"name":"nginx","modules":["web"]}}`)
		if plan.status != http.StatusOK {
			t.Fatalf("%d %s", plan.status, plan.text)
		}
		return plan.body["hosts"]
	}
	if got := planned(); got != 1.0 {
		t.Errorf("before a host has the labels: %v hosts", got)
	}
	d.call(http.MethodPut, "/v1/labels", `{"set":{"role":"web","zone":"b"},"hosts":["0:10.0.0.0","0:10.0.0.2"]}`)
	if got := planned(); got != 3.0 {
		t.Errorf("with the labels: %v hosts", got)
	}
	shown := d.call(http.MethodGet, "/v1/topology/2", "")
	if !strings.Contains(shown.text, `"hosts":["3:10.0.0.4"],"labels":["role=we*","zone"]`) ||
		!strings.Contains(shown.text, `"labeled":[{"set":"s1","module":"web","hosts":["0:10.0.0.0","0:10.0.0.2"]}]`) {
		t.Errorf("shown: %s", shown.text)
	}
	if again := d.call(http.MethodPut, "/v1/topology/2", shown.text); again.status != http.StatusOK {
		t.Errorf("what was read is not accepted: %d %s", again.status, again.text)
	}
	refused := d.call(http.MethodPut, "/v1/topology/2", `{"sets":[{"name":"s1","modules":[{"name":"web","labels":["!"]}]}]}`)
	if refused.status != http.StatusBadRequest || !strings.Contains(refused.text, "sets[0].modules[0].labels[0]") {
		t.Errorf("refused: %d %s", refused.status, refused.text)
	}
}

// fakeAuditLog returns records, each at the position of its index.
type fakeAuditLog struct{ records []v1.AuditRecord }

func (l *fakeAuditLog) AuditPage(_ context.Context, _ time.Time, after bus.AuditPosition, visit func([]byte) bool) (bus.AuditPosition, error) {
	for i := int(after.Records); i < len(l.records); i++ {
		text, err := json.Marshal(l.records[i])
		if err != nil {
			return after, err
		}
		if after.Records++; !visit(text) {
			break
		}
	}
	return after, nil
}

// TestAnApplicationReadsOnlyItsPartOfTheAuditLog: "elsewhere" may act for business 3 only.
func TestAnApplicationReadsOnlyItsPartOfTheAuditLog(t *testing.T) {
	t.Parallel()
	cfg := guarded(t)
	addElsewhere(t, cfg.AppsFile)
	cfg.AuditLog = &fakeAuditLog{[]v1.AuditRecord{
		{ID: "1", Event: "accepted", Application: "free", Business: "2"},
		{ID: "2", Event: "accepted", Application: "free", Business: "3"},
		{ID: "3", Event: "refused", Application: "elsewhere"},
		{ID: "4", Event: "refused", Claimed: "elsewhere"},
		{ID: "5", Event: "change", Application: "free"},
	}}
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	read := func(app, query string) (ids []string) {
		a := d.call(http.MethodGet, "/v1/audit?"+query, "", "Authorization", "Bearer "+app+".s3cret")
		var page v1.AuditPage
		if err := json.Unmarshal([]byte(a.text), &page); err != nil || a.status != http.StatusOK {
			t.Fatalf("%s: %d %s", app, a.status, a.text)
		}
		for _, r := range page.Records {
			ids = append(ids, r.ID)
		}
		if page.More {
			ids = append(ids, "more after "+page.Next)
		}
		return ids
	}
	for _, test := range []struct {
		app, query string
		want       []string
	}{
		{"free", "", []string{"1", "2", "3", "4", "5"}},
		{"elsewhere", "", []string{"2", "3"}},
		{"free", "limit=2", []string{"1", "2", "more after 2-0"}},
		{"free", "limit=2&after=2-0", []string{"3", "4", "more after 4-0"}},
		{"free", "application=elsewhere", []string{"3", "4"}},
		{"free", "event=change", []string{"5"}},
		{"elsewhere", "business=2", nil},
	} {
		if got := read(test.app, test.query); !slices.Equal(got, test.want) {
			t.Errorf("%s reads %v with %q, want %v", test.app, got, test.query, test.want)
		}
	}
	if a := d.call(http.MethodGet, "/v1/audit?after=x", "", "Authorization", "Bearer free.s3cret"); a.status != http.StatusBadRequest {
		t.Errorf("a position that is none: %d %s", a.status, a.text)
	}
}
