package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/taskstore"
)

// biz2 is the business of the tests' catalog.
var biz2 = catalog.Business{Account: catalog.DefaultAccount, ID: 2}

// defined stores a startable process in a catalog, with the attributes in set, and returns its id.
func defined(t *testing.T, store catalog.Templates, b catalog.Business, name string, set map[catalog.Attribute]catalog.Value, modules ...string) int64 {
	t.Helper()
	all := map[catalog.Attribute]catalog.Value{
		catalog.AttrName: catalog.Text(name), catalog.AttrWorkPath: catalog.Text("/srv/" + name), catalog.AttrStart: catalog.Text("./start"),
	}
	maps.Copy(all, set)
	done, err := store.EditTemplates(t.Context(), b, []catalog.Edit{{Set: all, Bind: modules}})
	if err != nil {
		t.Fatal(err)
	}
	return done[0].ID
}

func module(t *testing.T, name string, hosts ...string) catalog.Module {
	t.Helper()
	m := catalog.Module{Name: name}
	for _, h := range hosts {
		m.Hosts = append(m.Hosts, host(t, h))
	}
	return m
}

// shopTopology has a module web in two sets, which share a host.
func shopTopology(t *testing.T) catalog.Topology {
	t.Helper()
	return catalog.Topology{Version: -1, Sets: []catalog.Set{
		{Name: "s1", Modules: []catalog.Module{module(t, "web", "0:10.0.0.1", "0:10.0.0.2"), module(t, "db", "0:10.0.0.3"), module(t, "empty")}},
		{Name: "s2", Modules: []catalog.Module{module(t, "web", "0:10.0.0.2", "3:10.0.0.4")}},
	}}
}

// shopCatalog fills a store, and returns the ids of its processes by name.
func shopCatalog(t *testing.T, store *stores.Bolt) map[string]int64 {
	t.Helper()
	if _, err := store.SetTopology(t.Context(), biz2, shopTopology(t)); err != nil {
		t.Fatal(err)
	}
	noStart := map[catalog.Attribute]catalog.Value{catalog.AttrStart: catalog.Text("")}
	ids := map[string]int64{
		"nginx":     defined(t, store, biz2, "nginx", nil, "web"),
		"nginx-api": defined(t, store, biz2, "nginx-api", nil, "web", "db"),
		"mysql":     defined(t, store, biz2, "mysql", noStart, "db"),
		"loose":     defined(t, store, biz2, "loose", nil),
		"lost":      defined(t, store, biz2, "lost", nil, "gone"),
		"hostless":  defined(t, store, biz2, "hostless", nil, "empty"),
		"half":      defined(t, store, biz2, "half", nil, "db", "gone", "empty"),
	}
	// Processes of other businesses, which are never selected.
	defined(t, store, catalog.Business{Account: catalog.DefaultAccount, ID: 3}, "nginx", nil, "web")
	defined(t, store, catalog.Business{Account: "acme", ID: 2}, "nginx", nil, "web")
	return ids
}

// selecting returns a request body with a selection.
func selecting(action, selection string) string {
	return fmt.Sprintf(`{"action":%q,"business":"2","select":%s}`, action, selection)
}

// chosen lists the items of a task as "action process host".
func chosen(t *testing.T, store taskstore.Queries, id procfleet.TaskID) []string {
	t.Helper()
	task, err := store.Task(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for n := range task.Chunks {
		items, err := store.Chunk(t.Context(), id, n)
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range items {
			all = append(all, fmt.Sprintf("%s %s %s", it.Item.Action, it.Spec.Key(), it.Item.Target.Key()))
		}
	}
	slices.Sort(all)
	return all
}

func idOf(a answer) procfleet.TaskID {
	id, _ := a.body["id"].(string)
	return procfleet.TaskID(id)
}

func TestASelectionIsEveryHostOfTheModulesOfItsProcesses(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	ids := shopCatalog(t, store)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	one, two, three, four := "0:10.0.0.1", "0:10.0.0.2", "0:10.0.0.3", "3:10.0.0.4"
	on := func(action, name string, hosts ...string) (items []string) {
		for _, h := range hosts {
			items = append(items, action+" 2:"+name+" "+h)
		}
		return items
	}
	for name, c := range map[string]struct {
		body string
		want [][]string
	}{
		"by id": {selecting("restart", fmt.Sprintf(`{"processes":[%d]}`, ids["nginx"])), [][]string{on("restart", "nginx", one, two, four)}},
		"by id, said twice, and another": {
			selecting("stop", fmt.Sprintf(`{"processes":[%[1]d,%[2]d,%[1]d]}`, ids["nginx"], ids["mysql"])),
			[][]string{on("stop", "mysql", three), on("stop", "nginx", one, two, four)},
		},
		"by name":           {selecting("start", `{"name":"nginx"}`), [][]string{on("start", "nginx", one, two, four)}},
		"by pattern":        {selecting("start", `{"name":"nginx*"}`), [][]string{on("start", "nginx-api", one, two, three, four), on("start", "nginx", one, two, four)}},
		"by classes":        {selecting("start", `{"name":"[m-o]gin?"}`), [][]string{on("start", "nginx", one, two, four)}},
		"of a module":       {selecting("start", `{"name":"nginx*","modules":["db"]}`), [][]string{on("start", "nginx-api", three)}},
		"of a set":          {selecting("start", `{"name":"nginx*","sets":["s2"]}`), [][]string{on("start", "nginx-api", two, four), on("start", "nginx", two, four)}},
		"of both":           {selecting("start", `{"name":"nginx-api","sets":["s1"],"modules":["db","other"]}`), [][]string{on("start", "nginx-api", three)}},
		"the rest is there": {selecting("start", `{"name":"[lh]*"}`), [][]string{on("start", "half", three)}},
		"beside another": {
			`{"business":"2","operations":[{"action":"stop","select":{"name":"nginx","modules":["web"],"sets":["s1"]}},` +
				`{"action":"status","process":{"namespace":"2","name":"x","proc_name":"x"},"hosts":["0:10.0.0.9"]},{"action":"start","select":{"name":"mys*","sets":["s2","s1"]}}]}`,
			nil,
		},
	} {
		a := d.call(http.MethodPost, nativePath, c.body)
		if c.want == nil { // mysql cannot be started
			if a.status != http.StatusBadRequest || !strings.Contains(a.text, "operations[2].select") || !strings.Contains(a.text, "start_cmd") {
				t.Errorf("%s: %d %s", name, a.status, a.text)
			}
			continue
		}
		want := slices.Sorted(slices.Values(slices.Concat(c.want...)))
		if a.status != http.StatusCreated {
			t.Errorf("%s: %d %s", name, a.status, a.text)
		} else if diff := cmp.Diff(want, chosen(t, store, idOf(a))); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

func TestASelectionThatCannotBeDoneIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	ids := shopCatalog(t, store)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	id := func(format string, names ...string) string {
		all := make([]any, len(names))
		for i, name := range names {
			all[i] = ids[name]
		}
		return fmt.Sprintf(format, all...)
	}
	for name, c := range map[string]struct {
		action, selection string
		want              []string
	}{
		"an id that there is not":    {"stop", id(`{"processes":[%d,99999]}`, "nginx"), []string{"process 99999 is not in the catalogue of business 2"}},
		"an id of another business":  {"stop", fmt.Sprintf(`{"processes":[%d]}`, ids["half"]+1), []string{"is not in the catalogue of business 2"}},
		"a name that nothing has":    {"stop", `{"name":"apache*"}`, []string{`no process of business 2 has a name that matches "apache*"`}},
		"a case that nothing has":    {"stop", `{"name":"Nginx"}`, []string{`"Nginx"`}},
		"bound to nothing":           {"stop", `{"name":"loose"}`, []string{"selects no operation", "loose is bound to no module"}},
		"bound to what is not there": {"stop", `{"name":"lost"}`, []string{"lost is bound to gone, which the topology of business 2 does not contain"}},
		"without hosts":              {"stop", `{"name":"hostless"}`, []string{"hostless has no hosts in s1/empty"}},
		"a module that there is not": {"stop", `{"name":"nginx","modules":["wbe"]}`, []string{`there is no module "wbe"`, "exclude all of them"}},
		"a set that there is not":    {"stop", `{"name":"nginx","sets":["s9"]}`, []string{`there is no set "s9"`, "exclude all of them"}},
		"left out":                   {"stop", `{"name":"nginx","modules":["db"]}`, []string{"nginx is bound to web, and the requested sets and modules exclude all of them"}},
		"many reasons":               {"stop", `{"name":"[lh]o*"}`, []string{"loose is bound", "lost is bound", "hostless has no hosts"}},
		"nothing to start it by":     {"start", id(`{"processes":[%d,%d]}`, "nginx", "mysql"), []string{"mysql start is not possible: start_cmd: is required"}},
		"not kept alive":             {"supervise", `{"name":"nginx"}`, []string{"auto_start: is false"}},
	} {
		a := d.call(http.MethodPost, nativePath, selecting(c.action, c.selection))
		for _, want := range append(c.want, "select: ") {
			if a.status != http.StatusBadRequest || !strings.Contains(strings.ReplaceAll(a.text, `\"`, `"`), want) {
				t.Errorf("%s: %d %s\nlacks %q", name, a.status, a.text, want)
			}
		}
	}
	if n := d.tasks(); n != 0 {
		t.Errorf("%d tasks were made", n)
	}
}

func TestWithoutATopologyTheCallerIsToldSo(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	defined(t, store, biz2, "nginx", nil, "web")
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	a := d.call(http.MethodPost, nativePath, selecting("stop", `{"name":"nginx"}`))
	if a.status != http.StatusBadRequest || !strings.Contains(a.text, "business 2 has no topology") {
		t.Errorf("%d %s", a.status, a.text)
	}
}

func TestABusinessOfAnotherAccountIsOneOfItsOwn(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	shopCatalog(t, store)
	acme := catalog.Business{Account: "acme", ID: 2}
	if _, err := store.SetTopology(t.Context(), acme, catalog.Topology{Version: -1, Sets: []catalog.Set{{Name: "s1", Modules: []catalog.Module{module(t, "web", "0:10.0.0.77")}}}}); err != nil {
		t.Fatal(err)
	}
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	for name, body := range map[string]string{
		"in the selection": selecting("stop", `{"name":"nginx","account":"acme"}`),
		"in the business":  `{"action":"stop","business":"acme.2","select":{"name":"nginx"}}`,
	} {
		a := d.call(http.MethodPost, nativePath, body)
		if got := chosen(t, store, idOf(a)); !slices.Equal(got, []string{"stop acme.2:nginx 0:10.0.0.77"}) {
			t.Errorf("%s: %d %s: %q", name, a.status, a.text, got)
		}
		if task, err := store.Task(t.Context(), idOf(a)); err != nil || task.Business != "acme.2" {
			t.Errorf("%s: the task is for business %q, %v", name, task.Business, err)
		}
	}
}

func TestASelectedStartRegistersWhatTheCatalogueSays(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	ids := shopCatalog(t, store)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	if a := d.call(http.MethodPost, nativePath, selecting("start", `{"name":"nginx","sets":["s2"]}`)); a.status != http.StatusCreated {
		t.Fatalf("%d %s", a.status, a.text)
	}
	known, err := store.Templates(t.Context(), biz2, []int64{ids["nginx"]})
	if err != nil {
		t.Fatal(err)
	}
	found, err := store.Registrations(t.Context(), []catalog.Process{
		{Host: host(t, "3:10.0.0.4"), Namespace: "2", Name: "nginx"}, {Host: host(t, "0:10.0.0.1"), Namespace: "2", Name: "nginx"},
	})
	if err != nil || found[0] == nil || found[1] != nil {
		t.Fatalf("registered %+v, %v", found, err)
	}
	if diff := cmp.Diff(known[0].Spec(biz2), found[0].Spec); diff != "" {
		t.Error(diff)
	}
}

// A task keeps the processes that were selected at its acceptance: neither a later change of the
// catalog nor a repeat of the request changes them.
func TestARepeatOfASelectionIsTheSameTaskWhateverTheCatalogueIsByNow(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	ids := shopCatalog(t, store)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	body := selecting("stop", `{"name":"nginx"}`)
	post := func(body string) answer { return d.call(http.MethodPost, nativePath, body, "Idempotency-Key", "k") }
	first := post(body)
	want := chosen(t, store, idOf(first))
	change := func(name string, do func() error) {
		t.Helper()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		if a := post(body); a.status != http.StatusCreated || idOf(a) != idOf(first) {
			t.Errorf("after %s: %d %s", name, a.status, a.text)
		}
		if got := chosen(t, store, idOf(first)); !slices.Equal(got, want) {
			t.Errorf("after %s the task is %q, was %q", name, got, want)
		}
	}
	edit := func(e catalog.Edit) func() error {
		return func() error {
			_, err := store.EditTemplates(t.Context(), biz2, []catalog.Edit{e})
			return err
		}
	}
	change("nothing", func() error { return nil })
	change("a change of the modules' hosts", func() error {
		_, err := store.SetModuleHosts(t.Context(), biz2, "s1", "web", nil)
		return err
	})
	change("another spec", edit(catalog.Edit{ID: ids["nginx"], Set: map[catalog.Attribute]catalog.Value{catalog.AttrWorkPath: catalog.Text("relative")}}))
	change("unbinding", edit(catalog.Edit{ID: ids["nginx"], Unbind: []string{"web"}}))
	change("deletion", func() error {
		_, err := store.DeleteTemplate(t.Context(), biz2, ids["nginx"])
		return err
	})
	if a := post(selecting("stop", `{"name":"nginx?"}`)); a.status != http.StatusConflict {
		t.Errorf("another selection under the same key: %d %s", a.status, a.text)
	}
	if a := d.call(http.MethodPost, nativePath, body); a.status != http.StatusBadRequest {
		t.Errorf("without the key: %d %s", a.status, a.text)
	}
	if n := d.tasks(); n != 1 {
		t.Errorf("%d tasks", n)
	}
}

func TestASelectionIsNeverLargerThanARequestMayBe(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	shopCatalog(t, store)
	cfg := testConfig(t)
	cfg.Limits.Items = 3
	d := startServer(t, cfg, store, &fakeQueue{})
	large := nativeCode(http.StatusRequestEntityTooLarge, "too_large")
	for _, path := range []string{nativePath, nativePath + "?plan=true"} {
		for name, body := range map[string]string{
			"one process":   selecting("start", `{"name":"nginx-api"}`),
			"two processes": selecting("start", `{"name":"nginx*","sets":["s2"]}`),
			"two selections": `{"business":"2","operations":[{"action":"stop","select":{"name":"nginx"}},
				{"action":"stop","select":{"name":"mysql"}}]}`,
		} {
			if a := d.call(http.MethodPost, path, body); !large(a) {
				t.Errorf("%s, %s: %d %s", path, name, a.status, a.text)
			}
		}
	}
	many := strings.Repeat(`{"action":"stop","select":{"name":"mysql"}},`, procfleet.MaxSelectors)
	if a := d.call(http.MethodPost, nativePath, `{"business":"2","operations":[`+many+`{"action":"stop","select":{"name":"x"}}]}`); a.status != http.StatusBadRequest {
		t.Errorf("too many selections: %d %s", a.status, a.text)
	}
	if n := d.tasks(); n != 0 {
		t.Errorf("%d tasks were made", n)
	}
}

// pagedCatalog is a catalog that changes between the reads of its pages, and during the read of the first
// page, which lacks its last process.
type pagedCatalog struct {
	Store
	pages   int
	between func()
}

func (s *pagedCatalog) SearchTemplates(ctx context.Context, b catalog.Business, q catalog.Search) ([]catalog.Template, int, error) {
	if s.pages++; s.pages == 2 {
		s.between()
	}
	page, total, err := s.Store.SearchTemplates(ctx, b, q)
	if s.pages == 1 && len(page) > 0 {
		page = page[:len(page)-1]
	}
	return page, total, err
}

func TestAPatternMissesNothingWhileTheCatalogueChanges(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	if _, err := store.SetTopology(t.Context(), biz2, shopTopology(t)); err != nil {
		t.Fatal(err)
	}
	var edits []catalog.Edit
	for i := range catalog.MaxTemplatePage + 100 {
		edits = append(edits, catalog.Edit{Bind: []string{"db"}, Set: map[catalog.Attribute]catalog.Value{
			catalog.AttrName: catalog.Text(fmt.Sprintf("p-%04d", i)), catalog.AttrWorkPath: catalog.Text("/srv"),
		}})
	}
	var ids []int64
	for part := range slices.Chunk(edits, catalog.MaxEdits) {
		done, err := store.EditTemplates(t.Context(), biz2, part)
		if err != nil {
			t.Fatal(err)
		}
		for i := range done {
			ids = append(ids, done[i].ID)
		}
	}
	paged := &pagedCatalog{Store: store, between: func() {
		gone := catalog.Edit{ID: ids[0], Unbind: []string{"db"}}
		if _, err := store.EditTemplates(t.Context(), biz2, []catalog.Edit{gone}); err != nil {
			t.Error(err)
		}
		if _, err := store.DeleteTemplate(t.Context(), biz2, ids[0]); err != nil {
			t.Error(err)
		}
	}}
	d := startServer(t, testConfig(t), paged, &fakeQueue{})
	a := d.call(http.MethodPost, nativePath, selecting("stop", `{"name":"p-*"}`))
	if got := chosen(t, store, idOf(a)); len(got) != len(ids) || paged.pages != 2 {
		t.Errorf("%d %s: %d of %d processes in %d pages", a.status, a.text, len(got), len(ids), paged.pages)
	}
}

func TestEveryMatchOfAPatternContainsItsLiteralPart(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		"nginx": "is nginx", "nginx*": "contains nginx", "*": "", "??": "", "a*bcd?e": "contains bcd", `a\*b`: "", "a[bc]def": "", "": "is ",
	} {
		got := ""
		for _, c := range literally(pattern) {
			got = string(c.Comparison) + " " + c.Values[0].String()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", pattern, got, want)
		}
	}
}

// lostCatalog is a store whose catalog cannot be read.
type lostCatalog struct {
	Store
	search, topology error
}

func (s *lostCatalog) SearchTemplates(ctx context.Context, b catalog.Business, q catalog.Search) ([]catalog.Template, int, error) {
	if s.search != nil {
		return nil, 0, s.search
	}
	return s.Store.SearchTemplates(ctx, b, q)
}

func (s *lostCatalog) Topology(ctx context.Context, b catalog.Business) (*catalog.Topology, error) {
	if s.topology != nil {
		return nil, s.topology
	}
	return s.Store.Topology(ctx, b)
}

func TestACatalogueThatIsAwayAcceptsNothing(t *testing.T) {
	t.Parallel()
	away := fmt.Errorf("test: %w", taskstore.ErrUnavailable)
	for name, broken := range map[string]*lostCatalog{"search": {search: away}, "topology": {topology: away}} {
		store := openStore(t)
		shopCatalog(t, store)
		broken.Store = store
		d := startServer(t, testConfig(t), broken, &fakeQueue{})
		for _, path := range []string{nativePath, nativePath + "?plan=true"} {
			a := d.call(http.MethodPost, path, selecting("stop", `{"name":"nginx"}`), "Idempotency-Key", "k")
			if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
				t.Errorf("%s, %s: %d %s", name, path, a.status, a.text)
			}
		}
		if n := d.tasks(); n != 0 {
			t.Errorf("%s: %d tasks were made", name, n)
		}
	}
}

func TestALimitedApplicationSelectsOnlyInItsBusinesses(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	shopCatalog(t, store)
	d := startServer(t, guarded(t), store, &fakeQueue{})
	for _, c := range []struct {
		app, business, action string
		planned, made         bool
	}{
		{"biz", "2", "stop", true, true},
		{"biz", "3", "stop", false, false},
		{"biz", "acme.2", "stop", false, false},
		{"reader", "2", "stop", true, false},
		{"reader", "2", "status", true, true},
		{"starter", "2", "start", false, true},
	} {
		body := fmt.Sprintf(`{"action":%q,"business":%q,"select":{"name":"nginx"}}`, c.action, c.business)
		for path, allowed := range map[string]bool{nativePath: c.made, nativePath + "?plan=true": c.planned} {
			a := d.call(http.MethodPost, path, body, bearer(c.app+".s3cret")...)
			if (a.status == http.StatusForbidden) == allowed {
				t.Errorf("%s of %s for business %s at %s: %d %s", c.action, c.app, c.business, path, a.status, a.text)
			}
		}
	}
}

func TestASelectionIsPublishedOverNATSAsWell(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	shopCatalog(t, store)
	p := produce(t, testConfig(t), store)
	reply := p.ask(selecting("stop", `{"name":"nginx"}`))
	var id string
	if _, after, found := strings.Cut(string(reply.Data), `"id":"`); found {
		id, _, _ = strings.Cut(after, `"`)
	}
	if got := chosen(t, store, procfleet.TaskID(id)); len(got) != 3 {
		t.Errorf("%s: %q", reply.Data, got)
	}
}

func TestTheRefusalOfASelectionIsAnErrorOfTheCaller(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	sub := procfleet.Submission{Business: "none", Operations: []procfleet.Operation{{Action: procfleet.ActionStop, Selection: &procfleet.Selection{Name: "x"}}}}
	_, err := testSubmitter(t, store, &fakeQueue{}).submit(t.Context(), sub, terms{})
	if f, ok := errors.AsType[*dialect.Error](err); !ok || f.Kind != dialect.InvalidField {
		t.Errorf("a business that is none: %v", err)
	}
}
