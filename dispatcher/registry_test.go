package dispatcher

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/taskstore"
)

// byRegistration is an operation on ns:web with the spec that is registered.
func byRegistration(action procfleet.Action, on ...procfleet.Target) procfleet.Submission {
	return procfleet.Submission{Dialect: "test", Application: "app", Operations: []procfleet.Operation{{
		Action: action, Process: procfleet.ProcessSpec{Namespace: "ns", Name: "web"}, Targets: on, Registered: true,
	}}}
}

// contents lists the items of a task: the target's key, then the start command
// of the spec, or "none".
func contents(t *testing.T, store taskstore.Queries, task procfleet.Task) []string {
	t.Helper()
	var all []string
	for n := range task.Chunks {
		items, err := store.Chunk(t.Context(), task.ID, n)
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range items {
			start := it.Spec.Control.Start
			if it.Spec.Unregistered {
				start = "none"
			}
			if it.Spec.Key() != "ns:web" {
				t.Errorf("the process of %s is %s", it.Item.Target.Key(), it.Spec.Key())
			}
			all = append(all, it.Item.Target.Key()+" "+start)
		}
	}
	slices.Sort(all)
	return all
}

func TestAnOperationTakesWhatIsRegistered(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	registered(t, store, commanded("web", "a"), "0:10.0.0.1", "0:10.0.0.2")
	registered(t, store, commanded("web", "b"), "0:10.0.0.3")
	registered(t, store, commanded("other", "x"), "0:10.0.0.4")
	announced(t, store, "0:10.0.0.2", "known")
	sub := byRegistration(procfleet.ActionRestart, targets(t, "0:10.0.0.1", "agent known", "0:10.0.0.3", "0:10.0.0.4", "agent unknown")...)
	calls := &registryCalls{Store: store}
	task, err := testSubmitter(t, calls, &fakeQueue{}).submit(t.Context(), sub, terms{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"0:10.0.0.1 a", "0:10.0.0.3 b", "0:10.0.0.4 none", "known a", "unknown none"}
	if got := contents(t, store, task); !slices.Equal(got, want) {
		t.Errorf("the task is %q, want %q", got, want)
	}
	if len(calls.definitions) > 0 {
		t.Errorf("what was registered was registered again: %+v", calls.definitions)
	}
	if got := startOf(t, store, "web", "0:10.0.0.4"); got != "" {
		t.Errorf("%q is registered where nothing was", got)
	}
}

func TestBesideOthersAnOperationByRegistrationKeepsItsPlace(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	registered(t, store, commanded("web", "a"), "0:10.0.0.1")
	sub := submission(t, procfleet.ActionStart, 1)
	sub.Operations[0].Process, sub.Operations[0].Targets = commanded("web", "own"), targets(t, "0:10.0.0.1")
	sub.Operations = append(sub.Operations, byRegistration(procfleet.ActionStop, target(t, "0:10.0.0.1")).Operations...)
	sub.Operations = append(sub.Operations, sub.Operations[0])
	task, err := testSubmitter(t, store, &fakeQueue{}).submit(t.Context(), sub, terms{})
	if err != nil {
		t.Fatal(err)
	}
	items, err := store.Chunk(t.Context(), task.ID, 0)
	if err != nil || len(items) != 3 {
		t.Fatalf("%d items, %v", len(items), err)
	}
	for i, want := range []string{"start own", "stop a", "start own"} {
		if got := string(items[i].Item.Action) + " " + items[i].Spec.Control.Start; got != want {
			t.Errorf("item %d is %s, want %s", i, got, want)
		}
	}
}

func TestWithoutTargetsAnOperationIsOnEveryHostThatIsRegistered(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	var hosts []procfleet.Host
	for i := range 2*hostsAtOnce + 1 { // three pages
		hosts = append(hosts, host(t, fmt.Sprintf("%d:10.0.%d.%d", i%2, i>>8, i&255)))
	}
	if _, err := store.Register(t.Context(), []catalog.Definition{{Spec: commanded("web", "a"), Hosts: hosts}}, true); err != nil {
		t.Fatal(err)
	}
	d := startPlainServer(t, testConfig(t), store, &fakeQueue{})
	id := ask[procfleet.TaskID](d, "operate", byRegistration(procfleet.ActionStart))
	task, err := store.Task(t.Context(), id)
	if err != nil || task.Items != len(hosts) {
		t.Fatalf("the task has %d items, %v; want %d", task.Items, err, len(hosts))
	}
	if got := contents(t, store, task)[0]; got != "any:10.0.0.0 a" {
		t.Errorf("the first item is %q: not as its dialect writes a host that was not named", got)
	}
}

func TestRegisteredOnTooManyHostsIsTooLarge(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	registered(t, store, spec("web"), "0:10.0.0.1", "0:10.0.0.2")
	cfg := testConfig(t).WithDefaults()
	cfg.Limits.Items = 1
	_, err := newSubmitter(store, &fakeQueue{}, cfg).submit(t.Context(), byRegistration(procfleet.ActionStart), terms{})
	if f, is := errors.AsType[*dialect.Error](err); !is || f.Kind != dialect.TooLarge {
		t.Errorf("answered %v", err)
	}
}

func TestWithoutTargetsAndRegistrationsTheCallerIsToldWhichProcess(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	registered(t, store, spec("other"), "0:10.0.0.1")
	d := startPlainServer(t, testConfig(t), store, &fakeQueue{})
	kind, problem := refusedBy(d, "operate", byRegistration(procfleet.ActionStart))
	if kind != "invalid_request" || !strings.Contains(problem, `"ns"`) || !strings.Contains(problem, `"web"`) {
		t.Errorf("%s: %s", kind, problem)
	}
	if d.tasks() != 0 {
		t.Error("a task was made")
	}
}

// The registration may change between a request and its repeat. The repeat still finds its task.
func TestARepeatByRegistrationIsTheSameTask(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	s := testSubmitter(t, store, &fakeQueue{})
	registered(t, store, commanded("web", "a"), "0:10.0.0.1")
	first, err := s.submit(t.Context(), byRegistration(procfleet.ActionStart), terms{key: "key"})
	if err != nil {
		t.Fatal(err)
	}
	registered(t, store, commanded("web", "b"), "0:10.0.0.1", "0:10.0.0.2")
	again, err := s.submit(t.Context(), byRegistration(procfleet.ActionStart), terms{key: "key"})
	if err != nil || again.ID != first.ID {
		t.Errorf("the repeat is task %s, %v; the first was %s", again.ID, err, first.ID)
	}
	_, err = s.submit(t.Context(), byRegistration(procfleet.ActionStop), terms{key: "key"})
	if !errors.Is(err, taskstore.ErrConflict) {
		t.Errorf("another request under the key: %v", err)
	}
}

// A caller that lost the response receives it by a repeat, also if by then no process, or too many
// processes, are registered for a new task.
func TestARepeatFindsItsTaskWhateverIsRegisteredByNow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(t *testing.T, store *stores.Bolt)
		sole   bool
	}{
		"nothing is":                            {change: unregisterWeb},
		"nothing is, and a message comes again": {change: unregisterWeb, sole: true},
		"more is than a request may have": {change: func(t *testing.T, store *stores.Bolt) {
			t.Helper()
			registered(t, store, commanded("web", "a"), "0:10.0.0.2", "0:10.0.0.3")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, queue := openStore(t), &fakeQueue{}
			registered(t, store, commanded("web", "a"), "0:10.0.0.1")
			cfg := testConfig(t).WithDefaults()
			cfg.Limits.Items = 2
			s := newSubmitter(store, queue, cfg)
			dead, err := s.draft(t.Context(), byRegistration(procfleet.ActionStart), terms{key: "key", sole: c.sole})
			if err != nil {
				t.Fatal(err)
			}
			first, _, err := store.Create(t.Context(), dead.Draft)
			if err != nil {
				t.Fatal(err)
			}
			c.change(t, store)
			again, err := s.submit(t.Context(), byRegistration(procfleet.ActionStart), terms{key: "key", sole: c.sole})
			if err != nil || again.ID != first.ID {
				t.Fatalf("the repeat is task %q, %v; the first was %s", again.ID, err, first.ID)
			}
			if stored, err := store.Task(t.Context(), first.ID); err != nil || !stored.Dispatched || len(queue.rounds()) != 1 {
				t.Errorf("after the repeat: %+v, %v, queued %v", stored, err, queue.rounds())
			}
			if _, err := s.submit(t.Context(), byRegistration(procfleet.ActionStart), terms{key: "other", sole: c.sole}); !refuses(err) {
				t.Errorf("a new request: %v", err)
			}
			if c.sole {
				return
			}
			stop := byRegistration(procfleet.ActionStop)
			if _, err := s.submit(t.Context(), stop, terms{key: "key"}); !errors.Is(err, taskstore.ErrConflict) {
				t.Errorf("another request under the key: %v", err)
			}
		})
	}
}

func unregisterWeb(t *testing.T, store *stores.Bolt) {
	t.Helper()
	ps := []catalog.Process{{Host: host(t, "0:10.0.0.1"), Namespace: "ns", Name: "web"}}
	if _, err := store.Unregister(t.Context(), ps); err != nil {
		t.Fatal(err)
	}
}

func TestARegistryThatIsAwayAcceptsNothing(t *testing.T) {
	t.Parallel()
	store := &brokenStore{Store: openStore(t), registrations: taskstore.ErrUnavailable}
	d := startPlainServer(t, testConfig(t), store, &fakeQueue{})
	for call, question := range map[string]any{
		"operate":  byRegistration(procfleet.ActionStart, target(t, "0:10.0.0.1")),
		"register": dialect.Registering{Mode: dialect.Unregister, Process: spec("web"), Targets: targets(t, "0:10.0.0.1")},
	} {
		if kind, problem := refusedBy(d, call, question); kind != "unavailable" {
			t.Errorf("%s: %s, %s", call, kind, problem)
		}
	}
	if d.tasks() != 0 {
		t.Error("a task was made")
	}
}
