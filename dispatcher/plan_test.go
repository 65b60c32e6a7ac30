package dispatcher

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

// planOf returns the plan for a request body.
func planOf(d *testServer, body string, header ...string) (p v1.Plan) {
	d.t.Helper()
	a := d.call(http.MethodPost, nativePath+"?plan=true", body, header...)
	if err := json.Unmarshal([]byte(a.text), &p); err != nil || a.status != http.StatusOK {
		d.t.Errorf("plan of %s: %d %s: %v", body, a.status, a.text, err)
	}
	return p
}

// reasons are the problems of a plan as "reason process".
func reasons(p v1.Plan) []string {
	all := []string{}
	for _, problem := range p.Problems {
		all = append(all, strings.TrimSuffix(fmt.Sprintf("%d %s %s", problem.Index, problem.Reason, problem.Name), " "))
	}
	return all
}

// rows are the hosts of a plan as "process host modules alive".
func rows(p v1.Plan) []string {
	all := []string{}
	for _, o := range p.Operations {
		for _, h := range o.Hosts {
			all = append(all, fmt.Sprintf("%d %s %s %s%s %v %v", o.Index, o.Action, o.Name, h.Host, h.AgentID, h.Modules, h.Alive))
		}
	}
	return all
}

func TestAPlanShowsWhatWouldBeDoneHostByHostAndDoesNothing(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	ids := shopCatalog(t, store)
	announced(t, store, "0:10.0.0.1", "a-1")
	announced(t, store, "0:10.0.0.3", "a-3")
	queue := &fakeQueue{}
	d := startServer(t, testConfig(t), store, queue)
	body := selecting("restart", `{"name":"*","sets":["s1","s7"],"modules":["web","gone","empty"]}`)
	p := planOf(d, body, "Idempotency-Key", "k")
	if p.Refusal != "" || p.Items != 4 || p.Hosts != 2 || p.WithoutAgent != 1 {
		t.Errorf("refusal %q, %d items, %d hosts, %d without an agent", p.Refusal, p.Items, p.Hosts, p.WithoutAgent)
	}
	want := []string{
		"0 restart nginx 0:10.0.0.1 [s1/web] true", "0 restart nginx 0:10.0.0.2 [s1/web] false",
		"0 restart nginx-api 0:10.0.0.1 [s1/web] true", "0 restart nginx-api 0:10.0.0.2 [s1/web] false",
	}
	if diff := cmp.Diff(want, rows(p)); diff != "" {
		t.Error(diff)
	}
	want = []string{
		"0 unknown_set", "0 unknown_module", "0 unknown_module half", "0 no_hosts half", "0 no_hosts hostless", "0 not_bound loose",
		"0 unknown_module lost", "0 filtered_out mysql", "0 no_agent nginx", "0 no_agent nginx-api",
	}
	if diff := cmp.Diff(want, reasons(p)); diff != "" {
		t.Error(diff)
	}
	if got := p.Operations[0]; got.ProcessID != ids["nginx"] || got.Process.Key() != "2:nginx" || got.Process.SetupPath != "/srv/nginx" {
		t.Errorf("the first process is %+v", got)
	}
	if d.tasks() != 0 || len(queue.rounds()) != 0 {
		t.Error("something was done")
	}
	// The plan has not used the idempotency key.
	if a := d.call(http.MethodPost, nativePath, selecting("stop", `{"name":"nginx"}`), "Idempotency-Key", "k"); a.status != http.StatusCreated {
		t.Errorf("afterwards under the same key: %d %s", a.status, a.text)
	}
}

func TestAPlanIsWhatIsDone(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	shopCatalog(t, store)
	registered(t, store, commanded("web", "a"), "0:10.0.0.1", "0:10.0.0.2")
	registered(t, store, commanded("web", "b"), "0:10.0.0.3")
	announced(t, store, "0:10.0.0.9", "a-9")
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	for name, body := range map[string]string{
		"selected":   selecting("start", `{"name":"nginx*"}`),
		"named":      `{"action":"stop","process":{"namespace":"ns","name":"x","proc_name":"x"},"hosts":["0:10.0.0.1","0:10.0.0.1","0:10.0.0.2"]}`,
		"agents":     `{"action":"stop","process":{"namespace":"ns","name":"x","proc_name":"x"},"agents":["a-9","a-8","0:10.0.0.1"]}`,
		"registered": `{"action":"restart","registered":true,"process":{"namespace":"ns","name":"web"}}`,
		"not registered registeredTargets": `{"action":"restart","registered":true,"process":{"namespace":"ns","name":"web"},
			"hosts":["0:10.0.0.3","0:10.0.0.4"]}`,
		"all of that": `{"business":"2","operations":[{"action":"stop","select":{"name":"nginx"}},
			{"action":"stop","process":{"namespace":"ns","name":"x","proc_name":"x"},"hosts":["0:10.0.0.1"]},
			{"action":"restart","registered":true,"process":{"namespace":"ns","name":"web"}}]}`,
	} {
		p := planOf(d, body)
		var want []string
		for _, o := range p.Operations {
			for _, h := range o.Hosts {
				key := h.Host.String()
				if h.AgentID != "" {
					key = h.AgentID
				}
				want = append(want, fmt.Sprintf("%s %s %s", o.Action, o.Name, key))
			}
		}
		slices.Sort(want)
		a := d.call(http.MethodPost, nativePath, body)
		done := chosen(t, store, idOf(a))
		for i := range done {
			done[i] = strings.NewReplacer(" ns:", " ", " 2:", " ").Replace(done[i])
		}
		slices.Sort(done)
		if diff := cmp.Diff(want, done); diff != "" || p.Items != len(want) {
			t.Errorf("%s: %d items planned, %d %s: -planned +done\n%s", name, p.Items, a.status, a.text, diff)
		}
	}
}

func TestAPlanSaysWhyASubmissionWouldBeRefused(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	ids := shopCatalog(t, store)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	for name, c := range map[string]struct {
		body          string
		rows, reasons []string
	}{
		"a process that there is not": {
			selecting("stop", fmt.Sprintf(`{"processes":[99999,%d]}`, ids["mysql"])),
			[]string{"0 stop mysql 0:10.0.0.3 [s1/db] false"},
			[]string{"0 unknown_process", "0 no_agent mysql"},
		},
		"one that cannot be started": {selecting("start", `{"name":"mysql"}`), []string{}, []string{"0 unfit_spec mysql"}},
		"nothing at all":             {selecting("start", `{"name":"loose"}`), []string{}, []string{"0 not_bound loose"}},
		"not registered anywhere": {
			`{"action":"stop","registered":true,"process":{"namespace":"ns","name":"none"}}`, []string{}, []string{},
		},
		"one of two": {
			`{"business":"2","operations":[{"action":"stop","select":{"name":"lost"}},{"action":"stop","select":{"name":"mysql"}}]}`,
			[]string{"1 stop mysql 0:10.0.0.3 [s1/db] false"},
			[]string{"0 unknown_module lost", "1 no_agent mysql"},
		},
	} {
		p := planOf(d, c.body)
		if p.Refusal == "" || p.Items != 0 {
			t.Errorf("%s: refused by %q, %d items", name, p.Refusal, p.Items)
		}
		if diff := cmp.Diff(c.rows, rows(p)) + cmp.Diff(c.reasons, reasons(p)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		a := d.call(http.MethodPost, nativePath, c.body)
		if failure, _ := a.body["error"].(map[string]any); a.status != http.StatusBadRequest || failure["message"] != p.Refusal {
			t.Errorf("%s is planned to be refused by %q, and is by %d %s", name, p.Refusal, a.status, a.text)
		}
	}
}

func TestAPlanIsAskedForInNoOtherWayThanTrue(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	shopCatalog(t, store)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	for query, want := range map[string]int{
		"plan=true": 200, "plan=1": 200, "plan=false": 201, "plan=0": 201, "plan=": 400, "plan": 400, "plan=yes": 400, "plan=true&plan=false": 400, "x=y": 400, "": 201,
	} {
		d.described = nil // some of these are not, and need not be
		if a := d.call(http.MethodPost, nativePath+"?"+query, selecting("stop", `{"name":"nginx"}`)); a.status != want {
			t.Errorf("%s: %d %s, want %d", query, a.status, a.text, want)
		}
	}
}

func TestAPlanOfWhatIsInvalidIsTheSameError(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	for _, body := range []string{`{`, `{"action":"explode"}`, selecting("stop", `{}`), nativeBody("nowhere")} {
		planned, done := d.call(http.MethodPost, nativePath+"?plan=true", body), d.call(http.MethodPost, nativePath, body)
		if planned.status != http.StatusBadRequest || planned.text != done.text {
			t.Errorf("%s: %d %s, without a plan %d %s", body, planned.status, planned.text, done.status, done.text)
		}
	}
}

func TestAPlanCountsAsReading(t *testing.T) {
	t.Parallel()
	d := startServer(t, guarded(t), openStore(t), &fakeQueue{})
	body := strings.Replace(nativeBody("0:10.0.0.1"), "status", string(procfleet.ActionKill), 1)
	for app, want := range map[string]int{"free": 200, "reader": 200, "starter": 403, "biz": 403} {
		if a := d.call(http.MethodPost, nativePath+"?plan=true", body, bearer(app+".s3cret")...); a.status != want {
			t.Errorf("%s: %d %s", app, a.status, a.text)
		}
	}
	if n := d.tasks(); n != 0 {
		t.Errorf("%d tasks", n)
	}
}
