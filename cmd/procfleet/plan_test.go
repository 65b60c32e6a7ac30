package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

const (
	shopPlan = `{"items":3,"hosts":2,"without_agent":1,"operations":[
		{"index":0,"action":"restart","process_id":7,"name":"nginx","process":null,"hosts":[
			{"host":"0:10.0.0.1","modules":["s1/web","s2/web"],"alive":true},{"host":"3:10.0.0.2","modules":["s2/web"],"alive":false}]},
		{"index":0,"action":"restart","name":"api","process":null,"hosts":[{"host":"","agent_id":"a-9","alive":false}]}],
		"problems":[{"index":0,"reason":"not_bound","process_id":8,"name":"loose\n","message":"is bound to no module"},{"index":0,"reason":"unknown_set","message":"there is no set"}]}`
	noPlan = `{"refusal":"select: comes to nothing","items":0,"hosts":0,"without_agent":0,"operations":[],"problems":[]}`
)

func TestAnOperationOnWhatIsSelectedSaysWhatTheFlagsSay(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ args, asked string }{
		"by name": {
			"op restart --biz 2 --process nginx* --module web --module api --set s1",
			`POST /v1/tasks {"action":"restart","select":{"name":"nginx*","sets":["s1"],"modules":["web","api"]},"business":"2"}`,
		},
		"by id":              {"op stop --biz 2 --process-id 7,8 --process-id 9", `POST /v1/tasks {"action":"stop","select":{"processes":[7,8,9]},"business":"2"}`},
		"of another account": {"op stop --biz 2 --account acme --process a", `POST /v1/tasks {"action":"stop","select":{"name":"a"},"business":"acme.2"}`},
		"for a business":     {"op status --biz 3 --host 0:10.0.0.1 -f testdata/spec.yaml", `"hosts":["0:10.0.0.1"],"business":"3"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serveAnswers(t, `{"id":"GSETASK:1:2"}`)
			code, stdout, stderr := call(t, append(strings.Fields(test.args), "--server", server.URL)...)
			if code != 0 || !strings.Contains(stdout, "GSETASK:1:2") || !strings.Contains(server.asked[0], test.asked) {
				t.Errorf("exit %d: %s%s\nasked %s", code, stdout, stderr, server.asked[0])
			}
		})
	}
}

func TestAPlanIsShownAndNothingElseIsAskedFor(t *testing.T) {
	t.Parallel()
	server := serveAnswers(t, shopPlan)
	code, stdout, stderr := call(t, "op", "restart", "--biz", "2", "--process", "nginx*", "--plan", "--wait", "--server", server.URL)
	const want = `planned: 3 items on 2 hosts, 1 of them without an agent

ACTION   PROCESS  ID  HOSTS  MODULES
restart  nginx    7   2      s1/web (1), s2/web (2)
restart  api      -   1      -

HOST        PROCESS  MODULES         AGENT
3:10.0.0.2  nginx    s2/web          none
agent a-9   api      -               none
0:10.0.0.1  nginx    s1/web, s2/web  yes

PROBLEM      PROCESS    WHY
not_bound    loose (8)  is bound to no module
unknown_set  -          there is no set
`
	if code != 0 || stdout != want {
		t.Errorf("exit %d: %s\n%s", code, stderr, stdout)
	}
	if want := `POST /v1/tasks?plan=true {"action":"restart","select":{"name":"nginx*"},"business":"2"}`; server.asked[0] != want {
		t.Errorf("asked %s", server.asked[0])
	}
}

func TestAPlanOfNothingEndsWith1(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"refused": noPlan, "empty": `{"items":0,"hosts":0,"without_agent":0,"operations":[],"problems":[]}`,
	} {
		for _, format := range []string{"--json", "--json=false"} {
			server := serveAnswers(t, answer)
			code, stdout, stderr := call(t, "op", "stop", "--biz", "2", "--process", "a", "--plan", format, "--server", server.URL)
			if code != command.ExitFailed || !strings.Contains(stderr, "the task would have no items") || strings.Contains(stderr, "comes to nothing") != (name == "refused") {
				t.Errorf("%s %s: exit %d: %s", name, format, code, stderr)
			}
			if format == "--json" && json.Unmarshal([]byte(stdout), &client.Plan{}) != nil {
				t.Errorf("%s: not JSON: %s", name, stdout)
			}
		}
	}
}

func TestAPlanForManyHostsIsShownInPart(t *testing.T) {
	t.Parallel()
	p := client.Plan{Items: 20_000, Hosts: 20_000}
	o := client.PlannedOperation{Name: "nginx"}
	for i := range p.Hosts {
		o.Hosts = append(o.Hosts, client.PlannedHost{AgentID: fmt.Sprint(i), Modules: []string{fmt.Sprintf("s%d/web", i%9)}, Alive: i != 19_999})
		p.Problems = append(p.Problems, client.PlanProblem{Reason: "r"})
	}
	p.Operations = append(p.Operations, o)
	var out strings.Builder
	if err := writePlan(&out, &p); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"s4/web (2222), 4 more\n", "\nagent 19999", "\n100 of 20000 shown, those without an agent first", "\n100 of 20000 shown; all: --json\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q", want)
		}
	}
	if lines := strings.Count(out.String(), "\n"); lines > 220 {
		t.Errorf("%d lines", lines)
	}
}
