package dispatcher

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/taskstore"
)

// scheduledTask is the task of the schedules of the tests; scheduleBody is a request to set one.
var (
	scheduledTask = startOn("")
	scheduleBody  = `{"cron":"* * * * *","task":` + scheduledTask + `}`
)

// clockwork has dispatchers that handle a schedule, with times in the past.
type clockwork struct {
	t     *testing.T
	store *stores.Bolt
	*testServer
	firing []*firing
	now    time.Time
}

func newClockwork(t *testing.T, dispatchers int) *clockwork {
	t.Helper()
	c := &clockwork{t: t, store: openStore(t)}
	for range dispatchers {
		d, err := New(testConfig(t), c.store, &fakeQueue{})
		if err != nil {
			t.Fatal(err)
		}
		c.firing = append(c.firing, d.firing)
	}
	c.testServer = startServer(t, testConfig(t), c.store, &fakeQueue{})
	var err error
	if c.now, err = c.store.Now(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// schedule stores a schedule that was set an hour ago.
func (c *clockwork) schedule(rule procfleet.ScheduleRule) *catalog.Schedule {
	c.t.Helper()
	if rule.Cron == "" {
		rule.Cron = "* * * * *"
	}
	s := catalog.Schedule{Namespace: "2", Name: "nightly", ScheduleRule: rule, Task: json.RawMessage(scheduledTask), SetAt: c.now.Add(-time.Hour)}
	if err := c.store.SetSchedule(c.t.Context(), s); err != nil {
		c.t.Fatal(err)
	}
	return &s
}

// fire lets a dispatcher handle a time that was due some time ago, and returns the last run.
func (c *clockwork) fire(f *firing, s *catalog.Schedule, ago time.Duration) catalog.ScheduleRun {
	c.t.Helper()
	due := c.now.Add(-ago).Truncate(time.Second)
	if err := f.fire(c.t.Context(), s, due, due); err != nil {
		c.t.Fatal(err)
	}
	all, err := c.store.Schedules(c.t.Context())
	if err != nil || len(all) != 1 {
		c.t.Fatalf("%d schedules: %v", len(all), err)
	}
	s.Last = all[0].Last
	return s.Last
}

func (c *clockwork) task(id procfleet.TaskID) *procfleet.Task {
	c.t.Helper()
	task, err := c.store.Task(c.t.Context(), id)
	if err != nil {
		c.t.Fatal(err)
	}
	return &task
}

func (c *clockwork) tasks() int {
	c.t.Helper()
	return len(c.call(http.MethodGet, "/v1/tasks?limit=100", "").body["tasks"].([]any))
}

func TestEachTimeOfAScheduleHasOneTask(t *testing.T) {
	t.Parallel()
	c := newClockwork(t, 2)
	s := c.schedule(procfleet.ScheduleRule{})
	const recently = 2 * time.Second
	first := c.fire(c.firing[0], s, recently)
	if task := c.task(first.Task); task.Business != "2" || task.Items != 3 || task.Dialect != nativeCall {
		t.Errorf("the task is %+v", task)
	}
	before := *s
	before.Last = catalog.ScheduleRun{} // as another dispatcher has read it
	if again := c.fire(c.firing[1], &before, recently); again != first || c.tasks() != 1 {
		t.Errorf("%d tasks; the second dispatcher recorded %+v after %+v", c.tasks(), again, first)
	}
	// A dispatcher that is killed before it records the task leaves the time to one that handles it late.
	killed := *s
	killed.Overlap = procfleet.OverlapReplace
	due := c.now.Add(-time.Hour).Truncate(time.Second)
	made, problem, err := c.firing[0].submit(t.Context(), &killed, due, time.Time{})
	if err != nil || problem != "" {
		t.Fatal(problem, err)
	}
	if err := c.store.SetSchedule(t.Context(), *s); err != nil {
		t.Fatal(err)
	}
	if found, problem, err := c.firing[1].submit(t.Context(), &killed, due, due.Add(fireUntil)); found != made || problem != "" || err != nil {
		t.Errorf("found %s, %q, %v, and not %s", found, problem, err, made)
	}
}

func TestRoundsFindDueTimes(t *testing.T) {
	t.Parallel()
	c := newClockwork(t, 2)
	c.schedule(procfleet.ScheduleRule{Missed: procfleet.MissedRunOnce}) // the last minute may have begun long ago
	for range 2 {
		for _, f := range c.firing {
			if err := f.round(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := c.tasks(); n != 1 && n != 2 { // a minute may begin during the test
		t.Errorf("%d tasks", n)
	}
	c.schedule(procfleet.ScheduleRule{Paused: true})
	before := c.tasks()
	if err := c.firing[0].round(t.Context()); err != nil || c.tasks() != before {
		t.Errorf("a paused schedule has a task: %v", err)
	}
}

func TestOverlapsOfASchedule(t *testing.T) {
	t.Parallel()
	for overlap, check := range map[procfleet.Overlap]func(c *clockwork, first, second catalog.ScheduleRun){
		procfleet.OverlapSkip: func(c *clockwork, first, second catalog.ScheduleRun) {
			if second.Task != "" || !strings.Contains(second.Problem, string(first.Task)) || c.tasks() != 1 {
				c.t.Errorf("skip: %+v", second)
			}
		},
		procfleet.OverlapQueue: func(c *clockwork, first, second catalog.ScheduleRun) {
			if second != first || c.tasks() != 1 {
				c.t.Errorf("queue: %+v", second)
			}
		},
		procfleet.OverlapReplace: func(c *clockwork, first, second catalog.ScheduleRun) {
			if second.Task == "" || second.Task == first.Task || !c.task(first.Task).Canceled() {
				c.t.Errorf("replace: %+v, then %+v", first, second)
			}
		},
	} {
		c := newClockwork(t, 1)
		s := c.schedule(procfleet.ScheduleRule{Overlap: overlap})
		first := c.fire(c.firing[0], s, 4*time.Second)
		check(c, first, c.fire(c.firing[0], s, 2*time.Second))
	}
}

// A queued time counted as missed, because its minute had passed when the task before it ended.
func TestAQueuedTimeIsNotMissed(t *testing.T) {
	t.Parallel()
	c := newClockwork(t, 1)
	s := c.schedule(procfleet.ScheduleRule{Overlap: procfleet.OverlapQueue, Missed: procfleet.MissedRunOnce})
	first := c.fire(c.firing[0], s, 20*time.Minute)
	s.Missed = procfleet.MissedSkip
	c.fire(c.firing[0], s, 10*time.Minute)
	var results []procfleet.Result
	for item := range c.task(first.Task).Items {
		results = append(results, procfleet.Result{Item: item, Reason: procfleet.ReasonSucceeded, Rank: procfleet.RankAgent})
	}
	if _, err := c.store.Record(t.Context(), []taskstore.Batch{{Task: first.Task, Results: results}}); err != nil {
		t.Fatal(err)
	}
	if second := c.fire(c.firing[0], s, 10*time.Minute); second.Task == "" || second.Task == first.Task {
		t.Errorf("after the end of the first task: %+v", second)
	}
}

func TestMissedTimesOfASchedule(t *testing.T) {
	t.Parallel()
	for missed, want := range map[procfleet.Missed]bool{procfleet.MissedSkip: false, procfleet.MissedRunOnce: true} {
		c := newClockwork(t, 1)
		run := c.fire(c.firing[0], c.schedule(procfleet.ScheduleRule{Missed: missed}), 10*time.Minute)
		if (run.Task != "") != want || (run.Problem == "") != want {
			t.Errorf("%s: %+v", missed, run)
		}
	}
}

func TestARefusedTimeHasTheProblem(t *testing.T) {
	t.Parallel()
	c := newClockwork(t, 1)
	c.setPolicies("2", closedWindows(""))
	run := c.fire(c.firing[0], c.schedule(procfleet.ScheduleRule{}), time.Second)
	if run.Task != "" || !strings.Contains(run.Problem, "window sale denies operations") {
		t.Errorf("outside of the maintenance windows: %+v", run)
	}
}

func TestSchedulesAreShownAsTheyWereSet(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	const path = "/v1/schedules/2/nightly"
	a := d.call(http.MethodPut, path, strings.Replace(scheduleBody, `"cron"`, `"overlap":"queue","cron"`, 1))
	if a.status != http.StatusOK || a.body["name"] != "nightly" || a.body["overlap"] != "queue" || a.body["missed"] != "skip" || a.body["next_at"] == nil || a.body["last"] != nil {
		t.Errorf("%d %s", a.status, a.text)
	}
	list := d.call(http.MethodGet, "/v1/schedules/2", "")
	if all := list.body["schedules"].([]any); len(all) != 1 || all[0].(map[string]any)["overlap"] != "queue" {
		t.Errorf("%d %s", list.status, list.text)
	}
	if other := d.call(http.MethodGet, "/v1/schedules/3", ""); len(other.body["schedules"].([]any)) != 0 {
		t.Errorf("another business: %s", other.text)
	}
	for _, want := range []bool{true, false} {
		if a := d.call(http.MethodDelete, path, ""); a.status != http.StatusOK || a.body["removed"] != want {
			t.Errorf("%d %s, want %t", a.status, a.text, want)
		}
	}
}

// A schedule keeps the permissions of its application, as they are at each time.
func TestAScheduleHasThePermissionsOfItsApplication(t *testing.T) {
	t.Parallel()
	c := newClockwork(t, 0)
	cfg := testConfig(t)
	cfg.AppsFile = appsFile(t)
	d, err := New(cfg, c.store, &fakeQueue{})
	if err != nil {
		t.Fatal(err)
	}
	for application, want := range map[string]string{"starter": "", "reader": "start", "removed": "does not exist"} {
		s := c.schedule(procfleet.ScheduleRule{})
		s.Application = application
		id, problem, err := d.firing.submit(t.Context(), s, c.now, time.Time{})
		if err != nil || (want == "") != (id != "") || !strings.Contains(problem, want) || (want == "") != (problem == "") {
			t.Errorf("%s: %q, %q, %v", application, id, problem, err)
		}
	}
	if !passing(dialect.StoreFull) || passing(dialect.Forbidden) || passing(dialect.OutsideWindow) {
		t.Errorf("a full store passes, a missing right and a closed window do not")
	}
}
