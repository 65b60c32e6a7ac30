package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/bus"
)

// fakeAgents records the hosts that are notified of changed settings.
type fakeAgents struct {
	mu   sync.Mutex
	told []string
	err  error
}

func (a *fakeAgents) SettingsChanged(hosts []procfleet.Host) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = append(a.told, fmt.Sprint(hosts))
	return a.err
}

func (a *fakeAgents) heard() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	told := a.told
	a.told = nil
	return told
}

// fakeEvents returns page and err, and records the query.
type fakeEvents struct {
	page  bus.HostEventPage
	err   error
	asked bus.HostEventQuery
}

func (e *fakeEvents) HostEvents(_ context.Context, q bus.HostEventQuery) (bus.HostEventPage, error) {
	e.asked = q
	return e.page, e.err
}

// coded returns key and code of each outcome.
func coded(outcomes []dialect.TargetOutcome) []string {
	var words []string
	for _, o := range outcomes {
		words = append(words, fmt.Sprint(o.Target.Key(), " ", int(o.Code)))
	}
	return words
}

func TestWhatIsFrozenIsKeptAndAgentsAreTold(t *testing.T) {
	t.Parallel()
	store, agents := openStore(t), &fakeAgents{}
	cfg := testConfig(t)
	cfg.Agents = agents
	d := startPlainServer(t, cfg, store, &fakeQueue{})
	announced(t, store, "4:10.0.0.4", "known")
	q := dialect.Freezing{Namespace: "shop", Targets: targets(t, "0:10.0.0.1", "agent known", "agent unknown", "0:10.0.0.1"), TTL: procfleet.Seconds(3600), Reason: "release"}
	before := time.Now()
	done := ask[dialect.Frozen](d, "freeze", q)
	if diff := cmp.Diff([]string{"0:10.0.0.1 0", "known 0", "unknown 117", "0:10.0.0.1 0"}, coded(done.Outcomes)); diff != "" || done.Until.Before(before.Add(59*time.Minute)) {
		t.Errorf("until %v\n%s", done.Until, diff)
	}
	registeredTargets := ask[dialect.Frozen](d, "freeze", dialect.Freezing{Namespace: "mall", TTL: procfleet.Seconds(60)})
	nobody := ask[dialect.Frozen](d, "freeze", dialect.Freezing{Namespace: "mall", Targets: targets(t, "agent unknown"), TTL: procfleet.Seconds(60)})
	if len(nobody.Outcomes) != 1 || nobody.Outcomes[0].Code != procfleet.CodeAgentAbnormal || !nobody.Until.IsZero() {
		t.Errorf("where nobody is: %+v", nobody)
	}
	want := []catalog.Freeze{
		{Scope: catalog.Scope{Namespace: "mall"}, Until: registeredTargets.Until, By: "app"},
		{Scope: catalog.Scope{Host: host(t, "0:10.0.0.1"), Namespace: "shop"}, Until: done.Until, Reason: "release", By: "app"},
		{Scope: catalog.Scope{Host: host(t, "4:10.0.0.4"), Namespace: "shop"}, Until: done.Until, Reason: "release", By: "app"},
	}
	found := ask[[]catalog.Freeze](d, "freezes", dialect.FreezePage{Limit: 10})
	if diff := cmp.Diff(want, found, cmp.Comparer(func(a, b procfleet.Host) bool { return a == b })); diff != "" {
		t.Errorf("what is frozen (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"[0:10.0.0.1 4:10.0.0.4]", "[]"}, agents.heard()); diff != "" {
		t.Errorf("told are %s", diff)
	}
	agents.err = errors.New("the bus is away") // the dispatcher lifts the freeze nevertheless
	lifted := ask[dialect.Frozen](d, "freeze", dialect.Freezing{Lift: true, Namespace: "shop", Targets: targets(t, "0:10.0.0.1", "0:10.0.0.2")})
	if diff := cmp.Diff([]string{"0:10.0.0.1 0", "0:10.0.0.2 829"}, coded(lifted.Outcomes)); diff != "" || lifted.Lifted != 1 {
		t.Errorf("lifted %d\n%s", lifted.Lifted, diff)
	}
	if lifted := ask[dialect.Frozen](d, "freeze", dialect.Freezing{Lift: true, Namespace: "mall"}); lifted.Lifted != 1 || len(lifted.Outcomes) != 0 {
		t.Errorf("lifted registeredTargets %+v", lifted)
	}
	if diff := cmp.Diff([]string{"[0:10.0.0.1 0:10.0.0.2]", "[]"}, agents.heard()); diff != "" {
		t.Errorf("told are %s", diff)
	}
}

func TestAgentsAreToldOfTheirGroups(t *testing.T) {
	t.Parallel()
	agents := &fakeAgents{}
	cfg := testConfig(t)
	cfg.Agents = agents
	d := startPlainServer(t, cfg, openStore(t), &fakeQueue{})
	q := dialect.Grouping{Groups: catalog.HostGroups{Namespace: "shop", Groups: []catalog.Group{{ID: "g"}}}, Targets: targets(t, "0:10.0.0.1", "agent unknown")}
	ask[[]dialect.TargetOutcome](d, "set_groups", q)
	q.Targets = targets(t, "agent unknown")
	ask[[]dialect.TargetOutcome](d, "set_groups", q)
	if diff := cmp.Diff([]string{"[0:10.0.0.1]"}, agents.heard()); diff != "" {
		t.Errorf("told are %s", diff)
	}
}

func TestEventsAreAskedForAsTheCallerSays(t *testing.T) {
	t.Parallel()
	events := &fakeEvents{page: bus.HostEventPage{Events: []procfleet.HostEvent{{Sequence: 7, Kind: "restarted"}}, Next: 9, More: true}}
	cfg := testConfig(t)
	cfg.Events = events
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	got := d.call(http.MethodGet, "/v1/events?host=3:10.0.0.1&namespace=shop&kind=restarted&since=2026-11-21T05:00:00Z&after=6&limit=2", "")
	want := bus.HostEventQuery{
		Host: host(t, "3:10.0.0.1"), Namespace: "shop", Kind: "restarted", Since: time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC), After: 6, Limit: 2,
	}
	if events.asked != want || got.status != http.StatusOK || got.body["next"] != "9" || got.body["more"] != true || len(got.body["events"].([]any)) != 1 {
		t.Errorf("asked %+v, answered %d %s", events.asked, got.status, got.text)
	}
	if d.call(http.MethodGet, "/v1/events", ""); events.asked != (bus.HostEventQuery{Newest: true, Limit: 100}) {
		t.Errorf("the newest are asked for with %+v", events.asked)
	}
	events.err = fmt.Errorf("read: %w", bus.ErrUnavailable)
	if got := d.call(http.MethodGet, "/v1/events", ""); got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
		t.Errorf("without a bus: %d %s", got.status, got.text)
	}
	cfg.Events = nil
	d = startServer(t, cfg, openStore(t), &fakeQueue{})
	if got := d.call(http.MethodGet, "/v1/events", ""); got.status != http.StatusServiceUnavailable {
		t.Errorf("without events: %d %s", got.status, got.text)
	}
}
