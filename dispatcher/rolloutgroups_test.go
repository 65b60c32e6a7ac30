package dispatcher

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/taskstore"
)

// onFour is an operation on four hosts of two cloud areas with a rollout policy.
func onFour(policy string) string {
	return strings.Replace(gradual(policy), `"hosts":["0:10.0.0.1","0:10.0.0.2","0:10.0.0.3"]`,
		`"business":"2","hosts":["0:10.0.0.1","3:10.0.0.2","0:10.0.0.3","3:10.0.0.4"]`, 1)
}

// stages returns the hosts of each chunk of a rollout, and the units of its stages.
func (c *controlled) stages() (hosts [][]string, units []int) {
	c.t.Helper()
	task, err := c.store.Task(c.t.Context(), c.id)
	if err != nil {
		c.t.Fatal(err)
	}
	for k := range task.Chunks {
		rows, err := c.store.Chunk(c.t.Context(), c.id, k)
		if err != nil {
			c.t.Fatal(err)
		}
		var list []string
		for i := range rows {
			list = append(list, rows[i].Item.Target.Host.String())
		}
		hosts = append(hosts, list)
	}
	for _, s := range task.Rollout.Plan.Stages {
		units = append(units, s.Units)
	}
	return hosts, units
}

func TestARolloutIsOrderedByGroups(t *testing.T) {
	t.Parallel()
	c := startControlled(t, testConfig(t))
	_, err := c.store.SetTopology(t.Context(), catalog.Business{Account: catalog.DefaultAccount, ID: 2}, catalog.Topology{Sets: []catalog.Set{{Name: "east", Modules: []catalog.Module{
		{Name: "web", Hosts: []procfleet.Host{host(t, "0:10.0.0.1"), host(t, "3:10.0.0.4")}},
		{Name: "canary", Hosts: []procfleet.Host{host(t, "3:10.0.0.4")}},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.store.LabelHosts(t.Context(), []procfleet.Host{host(t, "0:10.0.0.3")}, catalog.Labeling{Set: map[string]string{"rack": "r1"}}); err != nil {
		t.Fatal(err)
	}
	for policy, want := range map[string]struct {
		hosts [][]string
		units []int
	}{
		`{"by":"module","list":["canary","web"]}`:     {[][]string{{"3:10.0.0.4"}, {"0:10.0.0.1"}, {"3:10.0.0.2"}, {"0:10.0.0.3"}}, []int{1, 1, 2}},
		`{"by":"set","list":["east"]}`:                {[][]string{{"0:10.0.0.1"}, {"3:10.0.0.4"}, {"3:10.0.0.2"}, {"0:10.0.0.3"}}, []int{2, 2}},
		`{"by":"label","label":"rack","list":["r1"]}`: {[][]string{{"0:10.0.0.3"}, {"0:10.0.0.1"}, {"3:10.0.0.2", "3:10.0.0.4"}}, []int{1, 3}},
		`{"by":"cloud","list":["3"]}`:                 {[][]string{{"3:10.0.0.2", "3:10.0.0.4"}, {"0:10.0.0.1", "0:10.0.0.3"}}, []int{2, 2}},
	} {
		c.id = c.submit(onFour(`{"order":` + policy + `}`))
		hosts, units := c.stages()
		if !cmp.Equal(hosts, want.hosts) || !cmp.Equal(units, want.units) {
			t.Errorf("%s: %v in stages of %v", policy, hosts, units)
		}
	}
}

func TestZonesBoundTheHostsAtWork(t *testing.T) {
	t.Parallel()
	c := startControlled(t, testConfig(t))
	c.id = c.submit(onFour(`{"zones":{"by":"cloud","max_concurrency":1,"at_once":1}}`))
	if z := c.rollout().Zones; !cmp.Equal(z, &v1.RolloutZones{Window: 1, AtOnce: 1}) {
		t.Errorf("zones: %+v", z)
	}
	a := c.call(http.MethodPost, "/v1/tasks?plan=true", onFour(`{"zones":{"by":"cloud","max_concurrency":1,"at_once":1}}`))
	var plan v1.Plan
	if err := json.Unmarshal([]byte(a.text), &plan); err != nil || plan.Rollout == nil || !cmp.Equal(plan.Rollout.Zones, &v1.RolloutZones{
		Window: 1, AtOnce: 1, Groups: []v1.ZoneSize{{Name: "0", Hosts: 2}, {Name: "3", Hosts: 2}},
	}) {
		t.Errorf("plan: %d %s", a.status, a.text)
	}
	released := func() (n int) {
		a, err := c.store.AdvanceRollout(t.Context(), c.id, taskstore.Advance{})
		if err != nil {
			t.Fatal(err)
		}
		return a.Task.Rollout.Released
	}
	for n := 1; n <= 4; n++ {
		if got := released(); got != n {
			t.Errorf("%d hosts released after %d have ended", got, n-1)
		}
		b := taskstore.Batch{Task: c.id, Results: []procfleet.Result{{Item: n - 1, Reason: procfleet.ReasonSucceeded, Rank: procfleet.RankAgent}}}
		if _, err := c.store.Record(t.Context(), []taskstore.Batch{b}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAMistypedCanaryIsRefused(t *testing.T) {
	t.Parallel()
	c := startControlled(t, testConfig(t))
	body := onFour(`{"order":{"by":"cloud","list":["3","4"]}}`)
	if a := c.call(http.MethodPost, "/v1/tasks", body); a.status != http.StatusBadRequest || !strings.Contains(a.text, "rollout.order.list") {
		t.Errorf("%d %s", a.status, a.text)
	}
	a := c.call(http.MethodPost, "/v1/tasks?plan=true", body)
	var p v1.Plan
	if err := json.Unmarshal([]byte(a.text), &p); err != nil || !strings.Contains(p.Refusal, `cloud "4"`) || p.Rollout != nil {
		t.Errorf("plan: %d %s: %v", a.status, a.text, err)
	}
}

func TestARepeatFindsItsTaskAfterTheCanaryLeftItsModule(t *testing.T) {
	t.Parallel()
	c := startControlled(t, testConfig(t))
	place := func(version int64, module string) {
		_, err := c.store.SetTopology(t.Context(), catalog.Business{Account: catalog.DefaultAccount, ID: 2}, catalog.Topology{
			Version: version, Sets: []catalog.Set{{Name: "east", Modules: []catalog.Module{{Name: module, Hosts: []procfleet.Host{host(t, "0:10.0.0.1")}}}}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	place(0, "canary")
	body := onFour(`{"order":{"by":"module","list":["canary"]}}`)
	first := c.call(http.MethodPost, "/v1/tasks", body, "Idempotency-Key", "k")
	place(1, "web")
	if again := c.call(http.MethodPost, "/v1/tasks", body, "Idempotency-Key", "k"); again.status/100 != 2 || again.text != first.text {
		t.Errorf("first %d %s, again %d %s", first.status, first.text, again.status, again.text)
	}
	if other := c.call(http.MethodPost, "/v1/tasks", body, "Idempotency-Key", "other"); other.status != http.StatusBadRequest {
		t.Errorf("with another key: %d %s", other.status, other.text)
	}
}

func TestGroupsByModuleNeedABusiness(t *testing.T) {
	t.Parallel()
	c := startControlled(t, testConfig(t))
	a := c.call(http.MethodPost, "/v1/tasks", gradual(`{"zones":{"by":"module","at_once":1}}`))
	if a.status != http.StatusBadRequest || !strings.Contains(a.text, "rollout.zones.by") {
		t.Errorf("%d %s", a.status, a.text)
	}
}
