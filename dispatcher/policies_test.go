package dispatcher

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/taskstore"
)

const carefulPolicies = `{"policies":[{"name":"careful","rollout":{"max_concurrency":1,"order":{"by":"module","list":["canary"]}}},{"name":"quick","rollout":{"max":2}}],
	"default":"careful","required_above":2}`

func (d *testServer) setPolicies(namespace, body string) {
	d.t.Helper()
	if a := d.call(http.MethodPut, "/v1/rollouts/"+namespace, body); a.status != http.StatusOK {
		d.t.Fatalf("%d %s", a.status, a.text)
	}
}

// policy returns the name of the stored policy of a task, or "none" without a rollout.
func policy(t *testing.T, store taskstore.Queries, id procfleet.TaskID) string {
	t.Helper()
	task, err := store.Task(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if task.Rollout == nil {
		return "none"
	}
	return task.Rollout.Plan.Policy
}

// startOn is a request to start a process on three hosts.
func startOn(members string) string {
	return strings.Replace(gradual("null"), `"rollout":null`, `"business":"2"`+members, 1)
}

func TestTheDefaultPolicyProtectsPublishedCallsToo(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	gse := func(op int, hosts ...string) procfleet.TaskID {
		return d.submitted("POST /c/compapi/v2/gse/operate_proc_v2/", gseBody(op, hosts...))
	}
	before := gse(7, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	d.setPolicies("ns", strings.Replace(carefulPolicies, `,"order":{"by":"module","list":["canary"]}`, "", 1))
	d.setPolicies("1", strings.Replace(carefulPolicies, `"required_above":2`, `"required_above":0`, 1))
	job := func(ips string) procfleet.TaskID {
		a := d.call(http.MethodPost, "/c/compapi/v2/job/operate_process/", strings.NewReplacer(`{"bk_cloud_id":0,"ip":"10.0.0.1"}`, ips, `"op_type":2`, `"op_type":1`).Replace(jobBody("10.0.0.1")))
		var made struct {
			Data struct {
				GSETaskID procfleet.TaskID `json:"bk_gse_taskid"`
			}
		}
		if err := json.Unmarshal([]byte(a.text), &made); err != nil || made.Data.GSETaskID == "" {
			t.Fatalf("%d %s: %v", a.status, a.text, err)
		}
		return made.Data.GSETaskID
	}
	const one, two = `{"bk_cloud_id":0,"ip":"10.0.0.1"}`, `{"bk_cloud_id":0,"ip":"10.0.0.1"},{"bk_cloud_id":0,"ip":"10.0.0.2"}`
	for what, c := range map[string]struct {
		id   procfleet.TaskID
		want string
	}{
		"GSE before the policy":         {before, "none"},
		"GSE on three hosts":            {gse(7, "10.0.0.1", "10.0.0.2", "10.0.0.3"), "careful"},
		"GSE on two hosts":              {gse(7, "10.0.0.1", "10.0.0.2"), "none"},
		"GSE on two hosts, named twice": {gse(7, "10.0.0.1", "10.0.0.2", "10.0.0.1"), "none"},
		"a status":                      {gse(2, "10.0.0.1", "10.0.0.2", "10.0.0.3"), "none"},
		"Job on two hosts":              {job(two), "careful"},
		"Job on one host":               {job(one), "none"},
	} {
		if got := policy(t, store, c.id); got != c.want {
			t.Errorf("%s has the policy %q, want %q", what, got, c.want)
		}
	}
}

func TestTheHeaderSelectsAStoredPolicy(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	d.setPolicies("2", carefulPolicies)
	for name, c := range map[string]struct{ body, header, want string }{
		"the default":            {startOn(""), "", "careful"},
		"by name":                {startOn(""), "quick", "quick"},
		"a policy of the task":   {startOn(`,"rollout":{"max":1}`), "", ""},
		"both":                   {startOn(`,"rollout":{"max":1}`), "quick", "Procfleet-Rollout"},
		"an unknown one":         {startOn(""), "slow", "policies: careful, quick"},
		"a business without any": {strings.Replace(startOn(""), `"business":"2"`, `"business":"3"`, 1), "quick", "there are none"},
	} {
		var header []string
		if c.header != "" {
			header = []string{policyHeader, c.header}
		}
		a := d.call(http.MethodPost, nativePath, c.body, header...)
		if a.status == http.StatusBadRequest {
			if c.want == "" || !strings.Contains(a.text, c.want) {
				t.Errorf("%s: %s", name, a.text)
			}
			continue
		}
		id, _ := a.body["id"].(string)
		if got := policy(t, store, procfleet.TaskID(id)); got != c.want {
			t.Errorf("%s: policy %q, want %q", name, got, c.want)
		}
	}
	p := planOf(d, startOn(""), policyHeader, "quick")
	if p.Rollout == nil || p.Rollout.Policy != "quick" || p.Rollout.Window != 2 {
		t.Errorf("planned: %+v", p.Rollout)
	}
	if a := d.call(http.MethodPost, nativePath+"?plan=true", startOn(""), policyHeader, "slow"); a.status != http.StatusBadRequest {
		t.Errorf("the plan of an unknown policy: %d %s", a.status, a.text)
	}
}

// A default that changed between a request and its repeat made another task of the repeat, or none.
func TestARepeatFindsItsTaskAfterThePoliciesChanged(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	d.setPolicies("2", carefulPolicies)
	submit := func(header ...string) answer { return d.call(http.MethodPost, nativePath, startOn(""), header...) }
	named := []string{keyHeader, "named", policyHeader, "quick"}
	made, byName := submit(keyHeader, "k"), submit(named...)
	d.setPolicies("2", `{"policies":[]}`)
	for name, pair := range map[string][2]answer{"default": {made, submit(keyHeader, "k")}, "named": {byName, submit(named...)}} {
		if pair[0].body["id"] == nil || pair[0].body["id"] != pair[1].body["id"] {
			t.Errorf("%s: %s, then %s", name, pair[0].text, pair[1].text)
		}
	}
	if a := submit(keyHeader, "named", policyHeader, "careful"); a.status != http.StatusConflict {
		t.Errorf("the key of another policy: %d %s", a.status, a.text)
	}
}

func TestPoliciesAreShownAsTheyWereSet(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	d.setPolicies("acme.2", carefulPolicies)
	var p v1.RolloutPolicies
	a := d.call(http.MethodGet, "/v1/rollouts/acme.2", "")
	if err := json.Unmarshal([]byte(a.text), &p); err != nil || len(p.Policies) != 2 || p.Policies[1].Name != "quick" || p.Default != "careful" || p.RequiredAbove != 2 {
		t.Errorf("%d %s: %v", a.status, a.text, err)
	}
	if a := d.call(http.MethodPut, "/v1/rollouts/acme.2", `{"policies":[],"default":"careful"}`); a.status != http.StatusBadRequest || !strings.Contains(a.text, "default") {
		t.Errorf("%d %s", a.status, a.text)
	}
	if a := d.call(http.MethodGet, "/v1/rollouts/2", ""); a.status != http.StatusOK || !strings.Contains(a.text, `"policies":[]`) {
		t.Errorf("%d %s", a.status, a.text)
	}
}
