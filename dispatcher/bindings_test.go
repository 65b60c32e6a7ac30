package dispatcher

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/taskstore"
)

// shop is a business with auto_register: binding a process registers it.
type shop struct {
	*testServer
	bolt *stores.Bolt
	b    catalog.Business
}

// openShop has the modules web on .1 and .2 of s1 and .3 of s2, api on .2 and
// .4, and many on .10 to .19.
func openShop(t *testing.T, cfg Config, store Store, bolt *stores.Bolt, queue Queue) *shop {
	t.Helper()
	s := &shop{startPlainServer(t, cfg, store, queue), bolt, catalog.Business{Account: "0", ID: 2}}
	module := func(name string, last ...int) catalog.Module {
		m := catalog.Module{Name: name}
		for _, n := range last {
			m.Hosts = append(m.Hosts, host(t, fmt.Sprintf("0:10.0.0.%d", n)))
		}
		return m
	}
	s.place(catalog.Topology{AutoRegister: true, Sets: []catalog.Set{
		{Name: "s1", Modules: []catalog.Module{module("web", 1, 2), module("api", 2, 4), module("many", 10, 11, 12, 13, 14, 15, 16, 17, 18, 19)}},
		{Name: "s2", Modules: []catalog.Module{module("web", 3)}},
	}})
	return s
}

func (s *shop) place(topology catalog.Topology) {
	s.t.Helper()
	topology.Version = -1
	if _, err := s.bolt.SetTopology(s.t.Context(), s.b, topology); err != nil {
		s.t.Fatal(err)
	}
}

// define creates a process with a start command.
func (s *shop) define(name string, set map[catalog.Attribute]catalog.Value) int64 {
	s.t.Helper()
	values := map[catalog.Attribute]catalog.Value{
		catalog.AttrName: catalog.Text(name), catalog.AttrFuncName: catalog.Text("nginx"),
		catalog.AttrWorkPath: catalog.Text("/srv/" + name), catalog.AttrStart: catalog.Text("./start.sh"), catalog.AttrAutoStart: catalog.Truth(true),
	}
	maps.Copy(values, set)
	return s.edit(catalog.Edit{Set: values}).Edits[0].ID
}

func (s *shop) edit(edits ...catalog.Edit) dialect.TemplatesEdited {
	s.t.Helper()
	return ask[dialect.TemplatesEdited](s.testServer, "edit", dialect.TemplateEdits{Business: s.b, Edits: edits})
}

// told returns the commands of the newest task, and verifies that it is the task of the response.
func (s *shop) told(done dialect.TemplatesEdited) string {
	s.t.Helper()
	tasks, err := s.bolt.Tasks(s.t.Context(), taskstore.TaskQuery{Limit: 1})
	if err != nil || len(tasks) != 1 || tasks[0].ID != done.Task {
		s.t.Fatalf("the answer has task %q, the store %v, %v", done.Task, tasks, err)
	}
	if task := noted(s.t, s.bolt, done.Task); task.Business != "2" || task.Application != "app" || task.Dialect != "plain.edit" {
		s.t.Errorf("the task is %+v", task)
	}
	var words []string
	for n := range tasks[0].Chunks {
		items, err := s.bolt.Chunk(s.t.Context(), tasks[0].ID, n)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, it := range items {
			words = append(words, fmt.Sprintf("%s %s %s %s", it.Item.Target.Host.Addr, it.Item.Action, it.Spec.Key(), it.Spec.Control.Start))
		}
	}
	slices.Sort(words)
	return strings.Join(words, "\n")
}

// registered returns the last numbers of the addresses on which a process is registered.
func (s *shop) registered(name string) string {
	s.t.Helper()
	hosts, err := s.bolt.RegisteredHosts(s.t.Context(), "2", name, procfleet.Host{}, 100)
	if err != nil {
		s.t.Fatal(err)
	}
	var last []string
	for _, h := range hosts {
		last = append(last, fmt.Sprint(h.Addr.As4()[3]))
	}
	return strings.Join(last, " ")
}

func TestBindingRegistersWhereTheBusinessWantsIt(t *testing.T) {
	t.Parallel()
	bolt := openStore(t)
	s := openShop(t, testConfig(t), bolt, bolt, &fakeQueue{})
	id := s.define("nginx", nil)
	step := func(e catalog.Edit, told, registered string) {
		t.Helper()
		before := s.tasks()
		done := s.edit(e)
		if told != "" {
			if diff := cmp.Diff(told, s.told(done)); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
		} else if done.Task != "" || s.tasks() != before {
			t.Errorf("task %s tells what is known", done.Task)
		}
		if got := s.registered("nginx"); got != registered {
			t.Errorf("registered on %q, want %q", got, registered)
		}
	}
	step(catalog.Edit{ID: id, Bind: []string{"web", "no such module"}},
		"10.0.0.1 supervise 2:nginx ./start.sh\n10.0.0.2 supervise 2:nginx ./start.sh\n10.0.0.3 supervise 2:nginx ./start.sh", "1 2 3")
	step(catalog.Edit{ID: id, Bind: []string{"web"}}, "", "1 2 3")
	step(catalog.Edit{ID: id, Set: map[catalog.Attribute]catalog.Value{catalog.AttrStart: catalog.Text("./new.sh")}}, "", "1 2 3")
	step(catalog.Edit{ID: id, Bind: []string{"api"}}, "10.0.0.4 supervise 2:nginx ./new.sh", "1 2 3 4")
	step(catalog.Edit{ID: id, Unbind: []string{"web"}},
		"10.0.0.1 release 2:nginx ./start.sh\n10.0.0.3 release 2:nginx ./start.sh", "2 4") // .2 is that of api as well
	step(catalog.Edit{ID: id, Unbind: []string{"web"}}, "", "2 4")
	step(catalog.Edit{ID: id, Bind: []string{"web"}, Unbind: []string{"api"}},
		"10.0.0.1 supervise 2:nginx ./new.sh\n10.0.0.3 supervise 2:nginx ./new.sh\n10.0.0.4 release 2:nginx ./new.sh", "1 2 3")

	s.place(catalog.Topology{Sets: []catalog.Set{{Name: "s1", Modules: []catalog.Module{{Name: "web", Hosts: []procfleet.Host{host(t, "0:10.0.0.1")}}}}}})
	step(catalog.Edit{ID: id, Unbind: []string{"web"}}, "", "1 2 3") // the business no longer wants it
}

// A process without a start command, or without a path that distinguishes it from other
// processes, is registered but not supervised: its agents receive a release.
func TestWhatCannotBeSupervisedIsRegisteredAllTheSame(t *testing.T) {
	t.Parallel()
	bolt := openStore(t)
	s := openShop(t, testConfig(t), bolt, bolt, &fakeQueue{})
	for name, c := range map[string]struct {
		set  map[catalog.Attribute]catalog.Value
		told string
	}{
		"manual":  {map[catalog.Attribute]catalog.Value{catalog.AttrAutoStart: catalog.Truth(false)}, "supervise 2:manual ./start.sh"},
		"silent":  {map[catalog.Attribute]catalog.Value{catalog.AttrStart: catalog.Text("")}, "release 2:silent "},
		"nowhere": {map[catalog.Attribute]catalog.Value{catalog.AttrWorkPath: catalog.Text("")}, "release 2:nowhere ./start.sh"},
	} {
		done := s.edit(catalog.Edit{ID: s.define(name, c.set), Bind: []string{"api"}})
		if got, want := s.told(done), "10.0.0.2 "+c.told+"\n10.0.0.4 "+c.told; got != want {
			t.Errorf("%s: told %q", name, got)
		}
		if got := s.registered(name); got != "2 4" {
			t.Errorf("%s is registered on %q", name, got)
		}
	}
}

// If a binding was stored but its task failed, a repeat of the call creates the task.
func TestABindingThatAgentsWereNotToldIsToldByARepeat(t *testing.T) {
	t.Parallel()
	bolt, queue := openStore(t), &fakeQueue{}
	store := &brokenStore{Store: bolt}
	s := openShop(t, testConfig(t), store, bolt, queue)
	id := s.define("nginx", nil)
	fails := func(e catalog.Edit) {
		t.Helper()
		if kind, problem := refusedBy(s.testServer, "edit", dialect.TemplateEdits{Business: s.b, Edits: []catalog.Edit{e}}); kind != "unavailable" || !strings.Contains(problem, "repeat the call") {
			t.Errorf("%s: %s", kind, problem)
		}
	}
	bind, unbind := catalog.Edit{ID: id, Bind: []string{"web"}}, catalog.Edit{ID: id, Unbind: []string{"web"}}
	queue.fail(errors.New("away"))
	fails(bind)
	queue.fail(nil)
	if done := s.edit(bind); len(done.Edits[0].Bound) != 0 || !strings.Contains(s.told(done), "supervise") {
		t.Errorf("the repeat did %+v", done)
	}
	store.unregister = fmt.Errorf("%w: away", taskstore.ErrUnavailable)
	fails(unbind)
	store.unregister = nil
	if done := s.edit(unbind); !strings.Contains(s.told(done), "release") || s.registered("nginx") != "" {
		t.Errorf("the repeat did %+v", done)
	}
}

// A binding of more hosts than a task may have creates several tasks.
func TestABindingOfManyHostsIsToldInParts(t *testing.T) {
	t.Parallel()
	bolt, cfg := openStore(t), testConfig(t)
	cfg.Limits.Items = 4
	s := openShop(t, cfg, bolt, bolt, &fakeQueue{})
	a, b := s.define("a", nil), s.define("b", nil)
	s.edit(catalog.Edit{ID: a, Bind: []string{"many"}}, catalog.Edit{ID: b, Bind: []string{"many"}})
	const all = "10 11 12 13 14 15 16 17 18 19"
	if s.tasks() != 5 || s.registered("a") != all || s.registered("b") != all {
		t.Errorf("%d tasks, registered on %q and %q", s.tasks(), s.registered("a"), s.registered("b"))
	}
}

// After concurrent bindings and unbindings of a process, it is registered on exactly the hosts to
// which it is bound.
func TestBindingAndUnbindingAtTheSameTimeAgree(t *testing.T) {
	t.Parallel()
	bolt := openStore(t)
	s := openShop(t, testConfig(t), bolt, bolt, &fakeQueue{})
	id := s.define("nginx", nil)
	for range 20 {
		var all sync.WaitGroup
		for _, e := range []catalog.Edit{{ID: id, Bind: []string{"web"}}, {ID: id, Unbind: []string{"web"}}} {
			all.Go(func() {
				body := text(t, dialect.TemplateEdits{Business: s.b, Edits: []catalog.Edit{e}})
				if got := s.call(http.MethodPost, "/edit", body); got.status != http.StatusOK {
					t.Errorf("%d %s", got.status, got.text)
				}
			})
		}
		all.Wait()
		found, err := bolt.Templates(t.Context(), s.b, []int64{id})
		if err != nil {
			t.Fatal(err)
		}
		want := ""
		if len(found[0].Modules) > 0 {
			want = "1 2 3"
		}
		if got := s.registered("nginx"); got != want {
			t.Fatalf("bound to %v, registered on %q", found[0].Modules, got)
		}
	}
}
