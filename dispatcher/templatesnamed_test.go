package dispatcher

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

const catalogueOf2 = "/v1/catalogue/2"

// saved returns the outcomes of processes as text.
func saved(t *testing.T, got answer) []string {
	t.Helper()
	if got.status != http.StatusOK {
		t.Fatalf("%d %s", got.status, got.text)
	}
	var words []string
	for _, p := range got.body["processes"].([]any) {
		p := p.(map[string]any)
		words = append(words, fmt.Sprint(p["name"], " ", p["outcome"], " ", p["changes"]))
	}
	return words
}

func TestProcessesAreSavedByName(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	for _, step := range []struct {
		query, body string
		want        []string
	}{
		{"?plan=true", `{"processes":[{"name":"a"}]}`, []string{"a created []"}},
		{"", `{"processes":[{"name":"b","port":80,"modules":["web","db"]},{"name":"a"}]}`, []string{"b created []", "a created []"}},
		{"", `{"processes":[{"name":"b","port":80,"modules":["db","web","db"]},{"name":"a"}]}`, []string{"b unchanged []", "a unchanged []"}},
		{"", `{"processes":[{"name":"a","modules":[]},{"name":"b"}]}`, []string{"a unchanged []", "b unchanged []"}},
		{"?plan=true", `{"processes":[{"name":"b","port":"80","timeout":9}]}`, []string{"b changed [port timeout]"}},
		{"", `{"processes":[{"name":"b","port":"80","timeout":9,"modules":["web","cache"]},{"name":"c"}]}`, []string{"b changed [port timeout modules]", "c created []"}},
		{"", `{"processes":[{"name":"b","timeout":null}]}`, []string{"b changed [timeout]"}},
		{"?account=other", `{"processes":[{"name":"b"}]}`, []string{"b created []"}},
	} {
		got := saved(t, d.call(http.MethodPut, catalogueOf2+step.query, step.body))
		if !slices.Equal(got, step.want) {
			t.Errorf("%s %s: %v, want %v", step.query, step.body, got, step.want)
		}
	}
	list := d.call(http.MethodGet, catalogueOf2, "")
	var found []string
	for _, p := range list.body["processes"].([]any) {
		p := p.(map[string]any)
		found = append(found, fmt.Sprint(p["name"], " ", p["port"], " ", p["timeout"], " ", p["func_name"], " ", p["modules"]))
	}
	if diff := cmp.Diff([]string{"a  <nil> a []", "b 80 <nil> b [cache web]", "c  <nil> c []"}, found); diff != "" || list.body["total"] != 3.0 {
		t.Errorf("the catalogue is %s:\n%s", list.text, diff)
	}
	// The list of processes is a valid request that changes nothing.
	again := fmt.Sprintf(`{"processes":%s}`, text(t, list.body["processes"]))
	if got := saved(t, d.call(http.MethodPut, catalogueOf2, again)); !slices.Equal(got, []string{"a unchanged []", "b unchanged []", "c unchanged []"}) {
		t.Errorf("what was listed, sent back, is %v", got)
	}
}

func TestTheCatalogueIsListedAsAskedFor(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	saved(t, d.call(http.MethodPut, catalogueOf2, `{"processes":[{"name":"web-2"},{"name":"db"},{"name":"web","modules":["m"]},{"name":"web-1","modules":["m"]}]}`))
	for query, want := range map[string]string{
		"":                              "db web web-1 web-2",
		"?name=web":                     "web web-1 web-2",
		"?name=web&exact=true":          "web",
		"?module=m":                     "web web-1",
		"?name=-1&module=m":             "web-1",
		"?name=WEB":                     "",
		"?limit=2&start=1":              "web web-1",
		"?account=other":                "",
		"?start=9":                      "",
		"?name=none&module=m&limit=100": "",
	} {
		got := d.call(http.MethodGet, catalogueOf2+query, "")
		var names []string
		for _, p := range got.body["processes"].([]any) {
			names = append(names, p.(map[string]any)["name"].(string))
		}
		if strings.Join(names, " ") != want {
			t.Errorf("%s: %v, want %s", query, names, want)
		}
	}
	if got := d.call(http.MethodGet, catalogueOf2+"?limit=2&start=1", ""); got.body["next"] != "3" || got.body["total"] != 4.0 {
		t.Errorf("the page goes on at %v of %v", got.body["next"], got.body["total"])
	}
}

// If one process is rejected, none is stored, and the error names the process.
func TestProcessesAreSavedTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	saved(t, d.call(http.MethodPut, catalogueOf2, `{"processes":[{"name":"a","func_id":"f"}]}`))
	got := d.call(http.MethodPut, catalogueOf2, `{"processes":[{"name":"b"},{"name":"c","func_id":"f"}]}`)
	if got.status != http.StatusConflict || !strings.Contains(got.text, "func_id") {
		t.Errorf("a function id that is taken: %d %s", got.status, got.text)
	}
	if got := d.call(http.MethodGet, catalogueOf2, ""); got.body["total"] != 1.0 {
		t.Errorf("afterwards there are %s", got.text)
	}
	many := make([]string, catalog.MaxEdits+1)
	for i := range many {
		many[i] = fmt.Sprintf(`{"name":"p%d"}`, i)
	}
	got = d.call(http.MethodPut, catalogueOf2, `{"processes":[`+strings.Join(many, ",")+`]}`)
	if got.status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d processes: %d %s", len(many), got.status, got.text)
	}
}

// Concurrent requests that save the same names create each process once.
func TestNamesThatManySaveAreMadeOnce(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	var wait sync.WaitGroup
	outcomes := make([][]string, 20)
	for i := range outcomes {
		wait.Go(func() {
			got := d.call(http.MethodPut, catalogueOf2, fmt.Sprintf(`{"processes":[{"name":"a","description":"by %d"},{"name":"b"}]}`, i))
			if got.status != http.StatusOK {
				t.Errorf("%d %s", got.status, got.text)
				return
			}
			for _, p := range got.body["processes"].([]any) {
				outcomes[i] = append(outcomes[i], p.(map[string]any)["outcome"].(string))
			}
		})
	}
	wait.Wait()
	made := 0
	for _, words := range outcomes {
		if slices.Contains(words, "created") {
			made++
		}
	}
	if got := d.call(http.MethodGet, catalogueOf2, ""); got.body["total"] != 2.0 || made != 1 {
		t.Errorf("%d have made them, and the catalogue is %s", made, got.text)
	}
}

// overtakenStore calls before between the dispatcher's lookup of names and its edit, as a concurrent
// request would.
type overtakenStore struct {
	Store
	before func(round int)
	rounds int
}

func (s *overtakenStore) EditTemplates(ctx context.Context, b catalog.Business, edits []catalog.Edit) ([]catalog.Edited, error) {
	s.rounds++
	s.before(s.rounds)
	return s.Store.EditTemplates(ctx, b, edits)
}

func TestWhoIsOvertakenLooksAgain(t *testing.T) {
	t.Parallel()
	b := catalog.Business{Account: catalog.DefaultAccount, ID: 2}
	store := &overtakenStore{Store: openStore(t)}
	edit := func(e catalog.Edit) int64 {
		done, err := store.Store.EditTemplates(t.Context(), b, []catalog.Edit{e})
		if err != nil {
			t.Error(err)
			return 0
		}
		return done[0].ID
	}
	remove := func(id int64) {
		if _, err := store.DeleteTemplate(t.Context(), b, id); err != nil {
			t.Error(err)
		}
	}
	named := map[catalog.Attribute]catalog.Value{catalog.AttrName: catalog.Text("a")}
	var id int64
	store.before = func(round int) {
		switch round {
		case 1: // another request creates the missing process
			id = edit(catalog.Edit{Set: named})
		case 2: // and removes it again
			remove(id)
		}
	}
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	body := `{"processes":[{"name":"a","description":"mine"}]}`
	if got := saved(t, d.call(http.MethodPut, catalogueOf2, body)); !slices.Equal(got, []string{"a created []"}) || store.rounds != 3 {
		t.Errorf("after %d rounds: %v", store.rounds, got)
	}
	// The dispatcher gives up if another request changes the process in every round.
	present := d.call(http.MethodGet, catalogueOf2, "").body["processes"].([]any)[0].(map[string]any)["id"].(float64)
	id = int64(present)
	store.before = func(int) {
		if id != 0 {
			remove(id)
			id = 0
		} else {
			id = edit(catalog.Edit{Set: named})
		}
	}
	body = `{"processes":[{"name":"a","description":"other"}]}`
	if got := d.call(http.MethodPut, catalogueOf2, body); got.status != http.StatusServiceUnavailable {
		t.Errorf("without an end: %d %s", got.status, got.text)
	}
}

func TestNamedEdits(t *testing.T) {
	t.Parallel()
	is := &catalog.Template{
		ID: 7, Modules: []string{"a", "b"},
		Values: catalog.WithDefaults(map[catalog.Attribute]catalog.Value{catalog.AttrName: catalog.Text("p"), catalog.AttrPort: catalog.Number(80)}),
	}
	set := func(port catalog.Value) map[catalog.Attribute]catalog.Value {
		return map[catalog.Attribute]catalog.Value{catalog.AttrName: catalog.Text("p"), catalog.AttrPort: port}
	}
	edits, done := namedEdits([]dialect.NamedTemplate{
		{Set: set(catalog.Number(80))},
		{Set: set(catalog.Text("80")), Modules: []string{"b", "c"}},
		{Set: map[catalog.Attribute]catalog.Value{catalog.AttrName: catalog.Text("new")}, Modules: []string{"m"}},
	}, map[string]*catalog.Template{"p": is})
	want := []catalog.Edit{
		{ID: 7, Set: map[catalog.Attribute]catalog.Value{}},
		{ID: 7, Set: map[catalog.Attribute]catalog.Value{catalog.AttrPort: catalog.Text("80")}, Bind: []string{"b", "c"}, Unbind: []string{"a"}},
		{Set: map[catalog.Attribute]catalog.Value{catalog.AttrName: catalog.Text("new")}, Bind: []string{"m"}},
	}
	if diff := cmp.Diff(want, edits, cmp.Comparer(func(a, b catalog.Value) bool { return a == b })); diff != "" {
		t.Errorf("edits (-want +got):\n%s", diff)
	}
	outcomes := []dialect.TemplateSaved{
		{ID: 7, Outcome: v1.SavedSame},
		{ID: 7, Outcome: v1.SavedChanged, Changes: []catalog.Attribute{catalog.AttrPort, catalog.AttrModule}},
		{Outcome: v1.SavedNew},
	}
	if diff := cmp.Diff(outcomes, done); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}
