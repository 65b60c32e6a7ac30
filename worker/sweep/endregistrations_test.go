package sweep_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/sweep"
)

func webSpec(start string) procfleet.ProcessSpec {
	s := procfleet.DefaultSpec()
	s.Namespace, s.Name, s.ProcName, s.Control.Start = "shop", "web", "nginx", start
	return s
}

// The registrations of hosts whose commands were canceled after their release were lost: commands by
// name did not reach these hosts any more.
func TestACanceledCommandOfARolloutRestoresTheRegistration(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store, err := stores.OpenBolt(filepath.Join(t.TempDir(), "store"), boltdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// Of five released hosts the commands of four do not run. The second was not registered
	// before, the third is registered anew by a later request, the fourth was unregistered since.
	var hosts []procfleet.Host
	var items []procfleet.Item
	var ps []catalog.Process
	for _, text := range []string{"0:10.0.0.1", "0:10.0.0.2", "0:10.0.0.3", "0:10.0.0.4", "0:10.0.0.5"} {
		host, err := procfleet.ParseHost(text)
		must(err)
		hosts = append(hosts, host)
		items = append(items, procfleet.Item{Action: procfleet.ActionRestart, Target: procfleet.Target{Host: host}})
		ps = append(ps, catalog.Process{Host: host, Namespace: "shop", Name: "web"})
	}
	previous := webSpec("./old.sh")
	task, _, err := store.Create(ctx, taskstore.Draft{
		Lane: procfleet.LaneSmall, Timeout: time.Minute, Retention: time.Hour, Actions: []procfleet.Action{procfleet.ActionRestart},
		Chunks: []procfleet.Chunk{{Specs: []procfleet.ProcessSpec{webSpec("./new.sh")}, Items: items}},
		Rollout: &procfleet.RolloutPlan{
			Window: 5, Failures: procfleet.AnyFailures, UnitTimeout: time.Minute, Stages: []procfleet.RolloutStage{{Units: 5, Chunks: 1}},
		},
	})
	must(err)
	_, err = store.AdvanceRollout(ctx, task.ID, taskstore.Advance{})
	must(err)
	must(store.KeepPrevious(ctx, task.ID, []taskstore.PreviousSpecs{{Specs: []*procfleet.ProcessSpec{&previous, nil, &previous, &previous, &previous}}}))
	asked := task.Number.Time()
	for start, d := range map[string]catalog.Definition{
		"./new.sh":   {Hosts: []procfleet.Host{hosts[0], hosts[1], hosts[4]}, Asked: asked},
		"./later.sh": {Hosts: hosts[2:3], Asked: asked.Add(time.Microsecond)},
	} {
		d.Spec = webSpec(start)
		_, err = store.Register(ctx, []catalog.Definition{d}, true)
		must(err)
	}
	var results []procfleet.Result
	for i := range items {
		r := procfleet.Result{Item: i, Code: procfleet.CodeFailed, Reason: procfleet.ReasonCancelled, Rank: procfleet.RankAgent}
		if i == 4 {
			r.Code, r.Reason = procfleet.CodeSuccess, procfleet.ReasonSucceeded
		}
		results = append(results, r)
	}
	_, err = store.Record(ctx, []taskstore.Batch{{Task: task.ID, Results: results}})
	must(err)
	task, err = store.Task(ctx, task.ID)
	must(err)

	for range 2 { // it may be repeated
		must((&sweep.Registrations{Store: store, Registrar: store}).End(ctx, &task))
		registered, err := store.Registrations(ctx, ps)
		must(err)
		for i, want := range []string{"./old.sh", "", "./later.sh", "", "./new.sh"} {
			got := ""
			if registered[i] != nil {
				got = registered[i].Spec.Control.Start
			}
			if got != want {
				t.Errorf("%s is registered with %q, want %q", hosts[i], got, want)
			}
		}
	}
}
