package dispatcher

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/stores"
)

// reported stores an agent's report on the process ns:name.
func reported(t *testing.T, store *stores.Bolt, on, agentID, name string) {
	t.Helper()
	err := store.Report(t.Context(), []catalog.Report{{
		Host: host(t, on), AgentID: agentID, Instance: "i", Number: time.Now().UnixMicro(), At: time.Now().UTC(),
		Processes: []catalog.ReportedProcess{{
			Key: "ns:" + name, Namespace: "ns", Name: name, ProcName: "p", Desired: catalog.DesiredUp,
			Status: procfleet.ProcessStatus{Running: true, Supervised: true, PID: 7},
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// seen returns a short text of an entry.
func seen(e *dialect.ProcessEntry) string {
	words := []string{e.Target.Key()}
	if e.Registration != nil {
		words = append(words, "registered")
	}
	if e.Reported != nil {
		words = append(words, "reported")
	}
	if e.Alive {
		words = append(words, "alive")
	}
	if e.AgentID != "" {
		words = append(words, "by "+e.AgentID)
	}
	return strings.Join(words, " ")
}

func TestShowingAProcessOnTargets(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startPlainServer(t, testConfig(t), store, &fakeQueue{})
	registered(t, store, spec("web"), "0:10.0.0.1", "0:10.0.0.2", "4:10.0.0.4")
	reported(t, store, "0:10.0.0.2", "old-id", "web")
	reported(t, store, "0:10.0.0.3", "", "web")
	announced(t, store, "4:10.0.0.4", "known")
	announced(t, store, "0:10.0.0.3", "three")
	q := dialect.ProcessQuery{Namespace: "ns", Name: "web", Targets: targets(t,
		"0:10.0.0.3", "agent unknown", "0:10.0.0.1", "agent known", "0:10.0.0.2", "0:10.0.0.9", "4:10.0.0.4")}
	want := []string{
		"0:10.0.0.3 reported alive by three",
		"unknown",
		"0:10.0.0.1 registered",
		"known registered alive by known",
		"0:10.0.0.2 registered reported by old-id",
		"0:10.0.0.9",
		"4:10.0.0.4 registered alive by known",
	}
	var got []string
	for _, e := range ask[[]dialect.ProcessEntry](d, "processes", q) {
		got = append(got, seen(&e))
		if e.Namespace != "ns" || e.Name != "web" || e.Host != e.Target.Host {
			t.Errorf("the entry of %s is of %+v on %+v", e.Target.Key(), e.Process, e.Target)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestPagingThroughANamespace(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startPlainServer(t, testConfig(t), store, &fakeQueue{})
	registered(t, store, spec("b"), "0:10.0.0.2", "0:10.0.0.1")
	registered(t, store, spec("a"), "0:10.0.0.1")
	reported(t, store, "0:10.0.0.3", "three", "c")
	announced(t, store, "0:10.0.0.1", "one")
	var all []string
	for start := 0; start < 5; start += 2 {
		page := ask[listed](d, "list", dialect.ProcessPage{Namespace: "ns", Start: start, Limit: 2})
		if page.Total != 4 {
			t.Errorf("total is %d", page.Total)
		}
		for _, e := range page.Found {
			if e.Target.AgentID != e.AgentID {
				t.Errorf("the target of %s has agent id %q", seen(&e), e.Target.AgentID)
			}
			all = append(all, e.Name+" "+seen(&e))
		}
	}
	want := []string{
		"a 0:10.0.0.1 registered alive by one", "b 0:10.0.0.1 registered alive by one",
		"b 0:10.0.0.2 registered", "c 0:10.0.0.3 reported by three",
	}
	if !slices.Equal(all, want) {
		t.Errorf("got  %q\nwant %q", all, want)
	}
}

func TestGroupsOfTargets(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startPlainServer(t, testConfig(t), store, &fakeQueue{})
	announced(t, store, "4:10.0.0.4", "known")
	group := catalog.HostGroups{Namespace: "ns", Groups: []catalog.Group{{ID: "g", CPULimit: 30, CPUByLimit: true}}}
	outcomes := ask[[]dialect.TargetOutcome](d, "set_groups", dialect.Grouping{
		Groups: group, Targets: targets(t, "0:10.0.0.1", "agent unknown", "agent known"),
	})
	if got := codes(t, outcomes); got != "0 117 0" {
		t.Errorf("set: %s", got)
	}
	q := dialect.GroupQuery{Namespace: "ns", Targets: targets(t, "agent known", "0:10.0.0.2", "agent unknown", "0:10.0.0.1")}
	found := ask[[]dialect.TargetGroups](d, "groups", q)
	for i, want := range []int{1, 0, 0, 1} {
		if got := found[i]; len(got.Groups.Groups) != want || got.Groups.Namespace != "ns" || got.Groups.Host != got.Target.Host {
			t.Errorf("target %d has %+v, want %d groups", i, got, want)
		}
	}
	if got := found[0].Groups.Groups[0]; got != group.Groups[0] {
		t.Errorf("the group is %+v", got)
	}
}

func TestAgentsOfTargets(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startPlainServer(t, testConfig(t), store, &fakeQueue{})
	announced(t, store, "4:10.0.0.4", "known")
	q := dialect.AgentQuery{Targets: targets(t, "agent unknown", "agent known", "0:10.0.0.1", "4:10.0.0.4")}
	found := ask[[]dialect.TargetAgent](d, "agents", q)
	for i, want := range []bool{false, true, false, true} {
		got := found[i]
		if got.Target.Key() != q.Targets[i].Key() || (got.Agent != nil) != want {
			t.Errorf("target %d is %+v", i, got)
		} else if want && (got.Agent.AgentID != "known" || got.Agent.Host != host(t, "4:10.0.0.4") || got.Agent.Version != "1") {
			t.Errorf("the agent of target %d is %+v", i, got.Agent)
		}
	}
}

func TestAnAgentIDIsBoundWhereTheAgentHasItOrNone(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startPlainServer(t, testConfig(t), store, &fakeQueue{})
	announced(t, store, "0:10.0.0.1", "")
	announced(t, store, "0:10.0.0.2", "two")
	announced(t, store, "0:10.0.0.3", "three")
	named := func(on, id string) procfleet.Target { return procfleet.Target{Host: host(t, on), AgentID: id} }
	bound := ask[[]bool](d, "bind", dialect.AgentBinding{Targets: []procfleet.Target{
		named("0:10.0.0.1", "one"), named("0:10.0.0.2", "two"), named("0:10.0.0.3", "another"), named("0:10.0.0.9", "nine"),
	}})
	if want := []bool{true, true, false, false}; !slices.Equal(bound, want) {
		t.Errorf("bound %v, want %v", bound, want)
	}
	hosts, err := store.Resolve(t.Context(), []string{"one", "two", "another", "nine"})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"0:10.0.0.1", "0:10.0.0.2", "", ""} {
		if got := hosts[i].String(); got != want {
			t.Errorf("id %d leads to %q, want %q", i, got, want)
		}
	}
}
