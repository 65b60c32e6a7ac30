package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/taskstore"
)

// target is a host by its text, or by the id of its agent.
func target(t *testing.T, name string) procfleet.Target {
	t.Helper()
	if id, isAgent := strings.CutPrefix(name, "agent "); isAgent {
		return procfleet.Target{AgentID: id, Label: id}
	}
	return procfleet.Target{Host: host(t, name)}
}

func targets(t *testing.T, names ...string) []procfleet.Target {
	t.Helper()
	all := make([]procfleet.Target, len(names))
	for i, name := range names {
		all[i] = target(t, name)
	}
	return all
}

// announced stores the presence of a host's agent.
func announced(t *testing.T, store *stores.Bolt, name, agentID string) {
	t.Helper()
	err := store.Announce(t.Context(), []taskstore.Announcement{{Host: host(t, name), AgentID: agentID, Instance: "i", Version: "1"}})
	if err != nil {
		t.Fatal(err)
	}
}

// commanded returns a spec with the given start command, by which tests identify it.
func commanded(name, start string) procfleet.ProcessSpec {
	s := spec(name)
	s.Control.Start = start
	return s
}

// registered registers a spec on hosts.
func registered(t *testing.T, store Store, s procfleet.ProcessSpec, hosts ...string) {
	t.Helper()
	d := catalog.Definition{Spec: s}
	for _, h := range hosts {
		d.Hosts = append(d.Hosts, host(t, h))
	}
	if _, err := store.Register(t.Context(), []catalog.Definition{d}, true); err != nil {
		t.Fatal(err)
	}
}

// startOf returns the registered start command of ns:name on a host; "" = not registered.
func startOf(t *testing.T, store Store, name, on string) string {
	t.Helper()
	found, err := store.Registrations(t.Context(), []catalog.Process{{Host: host(t, on), Namespace: "ns", Name: name}})
	if err != nil {
		t.Fatal(err)
	}
	if found[0] == nil {
		return ""
	}
	return found[0].Spec.Control.Start
}

// codes returns the codes of outcomes in order, and verifies the messages of successes.
func codes(t *testing.T, outcomes []dialect.TargetOutcome) string {
	t.Helper()
	var all []string
	for _, o := range outcomes {
		all = append(all, fmt.Sprint(int(o.Code)))
		if (o.Message == "success") != (o.Code == procfleet.CodeSuccess) || o.Message == "" {
			t.Errorf("code %d says %q", o.Code, o.Message)
		}
	}
	return strings.Join(all, " ")
}

func TestRegisteringTellsTheOutcomeOfEachTarget(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startPlainServer(t, testConfig(t), store, &fakeQueue{})
	announced(t, store, "4:10.0.0.9", "known")
	for _, step := range []struct {
		mode    dialect.RegisterMode
		start   string
		targets []string
		want    string
		now     string // registered on the first target afterwards
	}{
		{dialect.RegisterNew, "a", []string{"0:10.0.0.1", "0:10.0.0.2"}, "0 0", "a"},
		{dialect.RegisterNew, "b", []string{"0:10.0.0.1", "0:10.0.0.3"}, "850 0", "a"},
		{dialect.RegisterAny, "c", []string{"0:10.0.0.1", "0:10.0.0.4"}, "0 0", "c"},
		{dialect.RegisterNew, "d", []string{"4:10.0.0.9", "agent known", "agent unknown", "agent "}, "0 0 117 117", "d"},
		{dialect.RegisterAny, "e", []string{"0:10.0.0.3", "agent unknown"}, "0 117", "e"},
		{dialect.Unregister, "", []string{"0:10.0.0.3", "agent unknown", "0:10.9.9.9", "0:10.0.0.2"}, "0 117 829 0", ""},
		{dialect.Unregister, "", []string{"0:10.0.0.3"}, "829", ""},
		{dialect.RegisterNew, "f", []string{"0:10.0.0.3"}, "0", "f"},
	} {
		q := dialect.Registering{Mode: step.mode, Process: commanded("web", step.start), Targets: targets(t, step.targets...)}
		outcomes := ask[[]dialect.TargetOutcome](d, "register", q)
		if got := codes(t, outcomes); got != step.want {
			t.Errorf("%s %q on %v: %s, want %s", step.mode, step.start, step.targets, got, step.want)
		}
		for i := range outcomes {
			want := q.Targets[i]
			if want.AgentID == "known" {
				want.Host = host(t, "4:10.0.0.9")
			}
			if outcomes[i].Target != want {
				t.Errorf("outcome %d is of %+v, want %+v", i, outcomes[i].Target, want)
			}
		}
		if got := startOf(t, store, "web", step.targets[0]); got != step.now {
			t.Errorf("after %s %q on %v: %q is registered, want %q", step.mode, step.start, step.targets, got, step.now)
		}
	}
}

func TestRegisteringByAnAgentIDThatTwoHostsClaimSaysSo(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startPlainServer(t, testConfig(t), store, &fakeQueue{})
	announced(t, store, "4:10.0.0.9", "claimed")
	announced(t, store, "5:10.0.0.9", "claimed")
	q := dialect.Registering{Mode: dialect.RegisterNew, Process: spec("web"), Targets: targets(t, "agent claimed")}
	outcomes := ask[[]dialect.TargetOutcome](d, "register", q)
	if codes(t, outcomes) != "117" || !strings.Contains(outcomes[0].Message, "4:10.0.0.9") || !strings.Contains(outcomes[0].Message, "5:10.0.0.9") {
		t.Errorf("%+v", outcomes)
	}
}

func TestNoCallHasMoreTargetsThanARequestMay(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Limits.Items = 1
	d := startPlainServer(t, cfg, openStore(t), &fakeQueue{})
	two := targets(t, "0:10.0.0.1", "0:10.0.0.2")
	for call, question := range map[string]any{
		"register":   dialect.Registering{Mode: dialect.RegisterAny, Process: spec("web"), Targets: two},
		"set_groups": dialect.Grouping{Groups: catalog.HostGroups{Namespace: "ns"}, Targets: two},
		"groups":     dialect.GroupQuery{Namespace: "ns", Targets: two},
		"processes":  dialect.ProcessQuery{Namespace: "ns", Name: "web", Targets: two},
		"agents":     dialect.AgentQuery{Targets: two},
		"bind":       dialect.AgentBinding{Targets: two},
	} {
		if kind, problem := refusedBy(d, call, question); kind != "too_large" || !strings.Contains(problem, "at most 1 ") {
			t.Errorf("%s: %s, %s", call, kind, problem)
		}
	}
}

// Unregistering first releases the process on its agents, with the registered spec.
func TestUnregisteringReleases(t *testing.T) {
	t.Parallel()
	store, queue := openStore(t), &fakeQueue{}
	d := startPlainServer(t, testConfig(t), store, queue)
	registered(t, store, commanded("web", "a"), "0:10.0.0.1", "0:10.0.0.2")
	registered(t, store, commanded("web", "b"), "0:10.0.0.3")
	ask[[]dialect.TargetOutcome](d, "register", dialect.Registering{
		Business: "7", Mode: dialect.Unregister, Process: procfleet.ProcessSpec{Namespace: "ns", Name: "web"},
		Targets: targets(t, "0:10.0.0.1", "0:10.0.0.3", "0:10.0.0.4", "agent unknown"),
	})
	task := noted(t, store, onlyTask(t, store, procfleet.TaskAccepted).ID)
	if task.Dialect != "plain.register" || task.Application != "app" || task.Business != "7" || task.Items != 2 {
		t.Errorf("the task is %+v", task)
	}
	items, err := store.Chunk(t.Context(), task.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"0:10.0.0.1 a", "0:10.0.0.3 b"} {
		it := items[i]
		if got := it.Item.Target.Host.String() + " " + it.Spec.Control.Start; got != want || it.Item.Action != procfleet.ActionRelease {
			t.Errorf("item %d is %s of %s, want release of %s", i, it.Item.Action, got, want)
		}
	}
	if got := startOf(t, store, "web", "0:10.0.0.2"); got != "a" {
		t.Errorf("a host that was not named: %q", got)
	}
}

// A registration is removed only after the task of its release is stored and queued.
func TestWhatCannotBeReleasedStaysRegistered(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]struct {
		queue error
		store brokenStore
	}{
		"queue away":       {queue: bus.ErrUnavailable},
		"release unknown":  {queue: bus.ErrUnavailable, store: brokenStore{reject: taskstore.ErrUnavailable}},
		"not unregistered": {store: brokenStore{unregister: taskstore.ErrUnavailable}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, queue := broken.store, &fakeQueue{err: broken.queue}
			store.Store = openStore(t)
			d := startPlainServer(t, testConfig(t), &store, queue)
			registered(t, store.Store, commanded("web", "a"), "0:10.0.0.1")
			q := dialect.Registering{Mode: dialect.Unregister, Process: spec("web"), Targets: targets(t, "0:10.0.0.1")}
			if kind, problem := refusedBy(d, "register", q); kind != "unavailable" || !strings.Contains(problem, "try again") {
				t.Errorf("%s: %s", kind, problem)
			}
			if got := startOf(t, store.Store, "web", "0:10.0.0.1"); got != "a" {
				t.Errorf("registered is %q", got)
			}
			queue.fail(nil)
			store.reject, store.unregister = nil, nil
			if got := codes(t, ask[[]dialect.TargetOutcome](d, "register", q)); got != "0" {
				t.Errorf("the repeat: %s", got)
			}
		})
	}
}

func TestAcceptedOperationsRegister(t *testing.T) {
	t.Parallel()
	for _, action := range append(procfleet.Actions(), "5") {
		store := openStore(t)
		registered(t, store, commanded("web", "old"), "0:10.0.0.0")
		sub := submission(t, action, 2)
		sub.Operations[0].Process = commanded("web", "new")
		sub.Operations[0].Targets = append(sub.Operations[0].Targets, target(t, "agent unknown"))
		if _, err := testSubmitter(t, store, &fakeQueue{}).submit(t.Context(), sub, terms{}); err != nil {
			t.Fatal(err)
		}
		want := [2]string{"old", ""}
		if action == procfleet.ActionStart || action == procfleet.ActionSupervise || action == procfleet.ActionRestart {
			want = [2]string{"new", "new"}
		}
		if got := [2]string{startOf(t, store, "web", "0:10.0.0.0"), startOf(t, store, "web", "0:10.0.0.1")}; got != want {
			t.Errorf("after %s registered are %q, want %q", action, got, want)
		}
	}
}

func TestOfSeveralSpecsForAProcessTheLastIsRegistered(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	operation := func(action procfleet.Action, s procfleet.ProcessSpec, on ...string) procfleet.Operation {
		return procfleet.Operation{Action: action, Process: s, Targets: targets(t, on...)}
	}
	sub := submission(t, procfleet.ActionStart, 1)
	sub.Operations = []procfleet.Operation{
		operation(procfleet.ActionStart, commanded("web", "b"), "0:10.0.0.1", "0:10.0.0.2"),
		operation(procfleet.ActionStart, commanded("db", "x"), "0:10.0.0.1"),
		operation(procfleet.ActionRestart, commanded("web", "a"), "0:10.0.0.1", "0:10.0.0.3"),
		operation(procfleet.ActionRestart, commanded("web", "b"), "0:10.0.0.3"),
		operation(procfleet.ActionStop, commanded("web", "c"), "0:10.0.0.1"),
	}
	if _, err := testSubmitter(t, store, &fakeQueue{}).submit(t.Context(), sub, terms{}); err != nil {
		t.Fatal(err)
	}
	for on, want := range map[string]string{"0:10.0.0.1": "a", "0:10.0.0.2": "b", "0:10.0.0.3": "b"} {
		if got := startOf(t, store, "web", on); got != want {
			t.Errorf("on %s: %q, want %q", on, got, want)
		}
	}
	if got := startOf(t, store, "db", "0:10.0.0.1"); got != "x" {
		t.Errorf("the other process: %q", got)
	}
}

// registryCalls records the calls of the catalog during the acceptance of a request.
type registryCalls struct {
	Store
	definitions [][]catalog.Definition
	reads       int
}

func (s *registryCalls) Register(ctx context.Context, ds []catalog.Definition, replace bool) ([][]bool, error) {
	s.definitions = append(s.definitions, ds)
	return s.Store.Register(ctx, ds, replace)
}

func (s *registryCalls) Registrations(ctx context.Context, ps []catalog.Process) ([]*catalog.Registration, error) {
	s.reads++
	return s.Store.Registrations(ctx, ps)
}

func TestRegisteringCostsOneDefinitionForASpecOrNothing(t *testing.T) {
	t.Parallel()
	store := &registryCalls{Store: openStore(t)}
	s := testSubmitter(t, store, &fakeQueue{})
	one := submission(t, procfleet.ActionStart, 600)
	var each procfleet.Submission // the same, in as many operations
	for _, host := range one.Operations[0].Targets {
		each.Operations = append(each.Operations, procfleet.Operation{
			Action: procfleet.ActionStart, Process: spec("web"), Targets: []procfleet.Target{host},
		})
	}
	unnamed := submission(t, procfleet.ActionStart, 3)
	unnamed.Operations[0].Process.Namespace, unnamed.Operations[0].Process.Name = "", ""
	for _, sub := range []procfleet.Submission{one, each, unnamed, submission(t, procfleet.ActionStatus, 3)} {
		if _, err := s.submit(t.Context(), sub, terms{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(store.definitions) != 2 || store.reads != 0 {
		t.Fatalf("%d writes and %d reads, want 2 and none", len(store.definitions), store.reads)
	}
	for _, ds := range store.definitions {
		if len(ds) != 1 || len(ds[0].Hosts) != 600 {
			t.Errorf("%d definitions, the first of %d hosts", len(ds), len(ds[0].Hosts))
		}
	}
}

func TestWhatCannotBeRegisteredIsTakenBack(t *testing.T) {
	t.Parallel()
	store, queue := &brokenStore{Store: openStore(t), register: taskstore.ErrUnavailable}, &fakeQueue{}
	_, err := testSubmitter(t, store, queue).submit(t.Context(), submission(t, procfleet.ActionStart, 1), terms{})
	if !errors.Is(err, errNotRegistered) || failure(err).Kind != dialect.Unavailable {
		t.Errorf("answered %v", err)
	}
	onlyTask(t, store, procfleet.TaskRejected)
	if len(queue.rounds()) > 0 {
		t.Error("it was queued all the same")
	}
}

// The dispatcher stores the task, registers its processes and then queues it. So when a task runs,
// its registrations exist.
func TestRegisteredBeforeQueued(t *testing.T) {
	t.Parallel()
	store, queue := openStore(t), &fakeQueue{}
	queue.onPublish = func() {
		if startOf(t, store, "web", "0:10.0.0.0") != "run" {
			t.Error("queued before it was registered")
		}
		onlyTask(t, store, procfleet.TaskAccepted)
	}
	sub := submission(t, procfleet.ActionStart, 1)
	sub.Operations[0].Process = commanded("web", "run")
	if _, err := testSubmitter(t, store, queue).submit(t.Context(), sub, terms{}); err != nil {
		t.Fatal(err)
	}
}

func TestARepeatPutsNoOldSpecBack(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	s := testSubmitter(t, store, &fakeQueue{})
	yesterday := func() procfleet.Submission {
		sub := submission(t, procfleet.ActionStart, 2)
		sub.Operations[0].Process = commanded("web", "old")
		return sub
	}
	first, err := s.submit(t.Context(), yesterday(), terms{key: "key"})
	if err != nil {
		t.Fatal(err)
	}
	registered(t, store, commanded("web", "new"), "0:10.0.0.0")
	if _, err := store.Unregister(t.Context(), []catalog.Process{{Host: host(t, "0:10.0.0.1"), Namespace: "ns", Name: "web"}}); err != nil {
		t.Fatal(err)
	}
	again, err := s.submit(t.Context(), yesterday(), terms{key: "key"})
	if err != nil || again.ID != first.ID {
		t.Fatalf("the repeat is task %s, %v; the first was %s", again.ID, err, first.ID)
	}
	if got := startOf(t, store, "web", "0:10.0.0.0"); got != "new" {
		t.Errorf("registered is %q after the repeat", got)
	}
	if got := startOf(t, store, "web", "0:10.0.0.1"); got != "" {
		t.Errorf("registered is %q where it had been unregistered", got)
	}
}

func TestARepeatRegistersWhatADeadDispatcherLeft(t *testing.T) {
	t.Parallel()
	store, queue := openStore(t), &fakeQueue{}
	sub := submission(t, procfleet.ActionStart, 3)
	sub.Operations[0].Process = commanded("web", "mine")
	s := testSubmitter(t, store, queue)
	registered(t, store, commanded("web", "older"), "0:10.0.0.0", "0:10.0.0.2")
	draft, err := s.draft(t.Context(), sub, terms{key: "key"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := store.Create(t.Context(), draft.Draft); err != nil {
		t.Fatal(err)
	}
	registered(t, store, commanded("web", "newer"), "0:10.0.0.0")
	if _, err := s.submit(t.Context(), sub, terms{key: "key"}); err != nil {
		t.Fatal(err)
	}
	for on, want := range map[string]string{"0:10.0.0.0": "newer", "0:10.0.0.1": "mine", "0:10.0.0.2": "mine"} {
		if got := startOf(t, store, "web", on); got != want {
			t.Errorf("on %s: %q, want %q", on, got, want)
		}
	}
}
