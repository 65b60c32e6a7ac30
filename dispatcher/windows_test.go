package dispatcher

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
)

// closedWindows denies operations for a day, and for hosts of cloud area 7 only if they are grouped.
func closedWindows(grouped string) string {
	until := time.Now().Add(24 * time.Hour).UTC().Format(time.RFC3339)
	return `{"policies":[],"windows":[{"name":"sale","effect":"deny","until":"` + until + `"` + grouped + `}]}`
}

const inCloud7 = `,"by":"cloud","groups":["7"]`

func TestOperationsOutsideOfMaintenanceWindowsAreRefused(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	d.setPolicies("2", closedWindows(""))
	d.setPolicies("3", closedWindows(inCloud7))
	business := func(biz string) string {
		return strings.Replace(startOn(""), `"business":"2"`, `"business":"`+biz+`"`, 1)
	}
	refused := func(name string, a answer) {
		t.Helper()
		if a.status != http.StatusConflict || !strings.Contains(a.text, `"outside_window"`) || !strings.Contains(a.text, "window sale denies operations until") {
			t.Errorf("%s: %d %s", name, a.status, a.text)
		}
	}
	refused("a start", d.call(http.MethodPost, nativePath, business("2")))
	refused("a rollout", d.call(http.MethodPost, nativePath, strings.Replace(business("2"), `"business"`, `"rollout":{"max":1},"business"`, 1)))
	if p := planOf(d, business("2")); !strings.Contains(p.Refusal, "window sale denies operations until") {
		t.Errorf("the plan has the refusal %q", p.Refusal)
	}
	for name, c := range map[string]struct {
		body   string
		header []string
	}{
		"a status":              {strings.ReplaceAll(business("2"), `"action":"start"`, `"action":"status"`), nil},
		"another business":      {business("4"), nil},
		"another cloud area":    {business("3"), nil},
		"an override":           {business("2"), []string{overrideHeader, "incident 7"}},
		"a rollout, overridden": {strings.Replace(business("2"), `"business"`, `"rollout":{"max":1},"business"`, 1), []string{overrideHeader, "incident 7"}},
	} {
		a := d.call(http.MethodPost, nativePath, c.body, c.header...)
		if a.status != http.StatusCreated && a.status != http.StatusOK && a.status != http.StatusAccepted {
			t.Errorf("%s: %d %s", name, a.status, a.text)
			continue
		}
		id, _ := a.body["id"].(string)
		task, err := store.Task(t.Context(), procfleet.TaskID(id))
		if err != nil {
			t.Fatal(err)
		}
		if want := len(c.header) > 0; (task.Origin.Override == "incident 7") != want || task.Rollout != nil && task.Rollout.Plan.Windows != nil {
			t.Errorf("%s: origin %+v, rollout %+v", name, task.Origin, task.Rollout)
		}
	}
	if a := d.call(http.MethodPost, nativePath, business("2"), overrideHeader, strings.Repeat("x", maxOverride+1)); a.status != http.StatusBadRequest || !strings.Contains(a.text, overrideHeader) {
		t.Errorf("a long reason: %d %s", a.status, a.text)
	}
	d.setPolicies("ns", closedWindows(""))
	if a := d.call(http.MethodPost, "/c/compapi/v2/gse/operate_proc_v2/", gseBody(7, "10.0.0.1")); !strings.Contains(a.text, "window sale denies operations until") {
		t.Errorf("a call of the GSE API on a process of the namespace: %s", a.text)
	}
}

func TestARolloutHasTheWindowsThatStopIt(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	windows := strings.Replace(closedWindows(`,"by":"cloud","groups":["0"]`), `"effect":"deny"`, `"effect":"deny","from":"`+time.Now().Add(23*time.Hour).UTC().Format(time.RFC3339)+`"`, 1)
	d.setPolicies("2", windows)
	a := d.call(http.MethodPost, nativePath, startOn(`,"rollout":{"max":1}`))
	id, _ := a.body["id"].(string)
	task, err := store.Task(t.Context(), procfleet.TaskID(id))
	if err != nil {
		t.Fatal(err)
	}
	if got := task.Rollout.Plan.Windows; len(got) != 2 || len(got["2"]) != 1 || got["2"][0] != "sale" || len(got["ns"]) != 0 {
		t.Errorf("the rollout is stopped by %v", got)
	}
}

// A window that closed between a request and its repeat refused the repeat, whose task existed.
func TestARepeatFindsItsTaskAfterAWindowClosed(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	made := d.call(http.MethodPost, nativePath, startOn(""), keyHeader, "k")
	d.setPolicies("2", closedWindows(""))
	if again := d.call(http.MethodPost, nativePath, startOn(""), keyHeader, "k"); made.body["id"] == nil || again.body["id"] != made.body["id"] {
		t.Errorf("%s, then %s", made.text, again.text)
	}
	if other := d.call(http.MethodPost, nativePath, startOn(""), keyHeader, "other"); other.status != http.StatusConflict {
		t.Errorf("another key: %d %s", other.status, other.text)
	}
}
