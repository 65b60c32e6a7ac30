package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// fileOf writes a file and returns its path.
func fileOf(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestACatalogIsExportedInPages(t *testing.T) {
	t.Parallel()
	server := serveAnswers(t,
		`{"processes":[{"id":1,"name":"a","port":80,"protocol":"1","timeout":null,"modules":["web"],"created_at":"2026-11-21T04:00:00Z","changed_at":"2026-11-21T04:00:00Z"}],"total":2,"next":"1"}`,
		`{"processes":[{"id":2,"name":"b","auto_start":true,"start_cmd":"x\ny\n","modules":[]}],"total":2,"next":""}`)
	code, stdout, stderr := call(t, "process", "export", "--biz", "2", "--account", "x", "--server", server.URL)
	want := "name: a\nport: 80\nmodules: [web]\n---\nname: b\nstart_cmd: |\n  x\n  y\nauto_start: true\nmodules: []\n"
	if code != 0 || stdout != want {
		t.Errorf("exit %d: %s\n%s", code, stderr, stdout)
	}
	if got := strings.Join(server.asked, "\n"); got != "GET /v1/catalogue/2?account=x&limit=1000 \nGET /v1/catalogue/2?account=x&limit=1000&start=1 " {
		t.Errorf("asked\n%s", got)
	}
}

func TestAnImportSaysEverythingOfAProcess(t *testing.T) {
	t.Parallel()
	server := serveAnswers(t, `{"processes":[{"name":"a","id":1,"outcome":"changed","changes":["port","modules"]},{"name":"b","id":2,"outcome":"unchanged","changes":[]}],"task":"GSETASK:20261121053522:123456"}`)
	file := fileOf(t, "shop.yaml", "name: a\nport: 80\nmodules: [web]\n---\nname: b\n")
	code, stdout, stderr := call(t, "process", "import", "--biz", "2", "-f", file, "--server", server.URL)
	if code != 0 || stdout != "a  changed  port, modules\n0 created, 1 changed, 1 unchanged\ntask GSETASK:20261121053522:123456 notifies the agents\n" {
		t.Errorf("exit %d: %s\n%s", code, stderr, stdout)
	}
	const b = `{"args_pattern":"","auto_start":false,"auto_start_gap":null,"bind_ip":null,"description":"","func_id":"","func_name":"b","instances":null,` +
		`"kill_cmd":"","name":"b","pid_file":"","port":"","priority":null,"protocol":"1","reload_cmd":"","restart_cmd":"","start_cmd":"","stop_cmd":"","timeout":null,"user":"","work_path":""}`
	if !strings.HasPrefix(server.asked[0], `PUT /v1/catalogue/2 {"processes":[{"args_pattern":"",`) || !strings.HasSuffix(server.asked[0], b+"]}") || !strings.Contains(server.asked[0], `"modules":["web"]`) {
		t.Errorf("asked %s", server.asked[0])
	}
}

func TestAnImportIsPlannedOnRequest(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--plan", "--dry-run"} {
		server := serveAnswers(t, `{"processes":[{"name":"a","outcome":"created","changes":[]}],"task":null}`)
		code, stdout, stderr := call(t, "process", "import", "--biz", "2", "-f", fileOf(t, "a.yaml", "name: a\n"), flag, "--server", server.URL)
		if code != 0 || stdout != "a  created  \nplanned: 1 created, 0 changed, 0 unchanged\n" || !strings.HasPrefix(server.asked[0], "PUT /v1/catalogue/2?plan=true ") {
			t.Errorf("%s: exit %d: %s\n%s%s", flag, code, stderr, stdout, server.asked)
		}
	}
}

func TestALargeImportIsDivided(t *testing.T) {
	t.Parallel()
	var file strings.Builder
	answers := []string{`{"processes":[`, `{"processes":[`}
	for i := range 1001 {
		fmt.Fprintf(&file, "name: p%d\n---\n", i)
		if i > 0 && i < 1000 {
			answers[i/1000] += ","
		}
		answers[i/1000] += fmt.Sprintf(`{"name":"p%d","id":%d,"outcome":"unchanged","changes":[]}`, i, i+1)
	}
	server := serveAnswers(t, answers[0]+`],"task":null}`, answers[1]+`],"task":null}`)
	code, stdout, stderr := call(t, "process", "import", "--biz", "2", "-f", fileOf(t, "many.yaml", file.String()), "--server", server.URL)
	if code != 0 || stdout != "0 created, 0 changed, 1001 unchanged\n" || stderr != "saving 1001 processes in 2 calls, each atomic\n" {
		t.Errorf("exit %d: %s\n%s", code, stderr, stdout)
	}
	long := client.CatalogProcess{Attributes: map[string]any{"name": "p", "start_cmd": strings.Repeat("x", largestImport/3)}}
	if parts := importParts([]client.CatalogProcess{long, long, long, long, long}); len(parts) != 3 || len(parts[0]) != 2 || len(parts[2]) != 1 {
		t.Errorf("%d parts", len(parts))
	}
}

func TestAMistakeInAnImportIsToldBeforeAnythingIsSaved(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"name: a\nstart: x": "start: is no attribute of a process",
		"":                  "the file has no process",
	} {
		code, _, stderr := call(t, "process", "import", "--biz", "2", "-f", fileOf(t, "a.yaml", text), "--server", "http://127.0.0.1:1")
		if code != command.ExitUsage || !strings.Contains(stderr, says) {
			t.Errorf("%q: exit %d: %s", text, code, stderr)
		}
	}
	for _, args := range [][]string{{"import", "-f", "x"}, {"import", "--biz", "2"}, {"export"}, {"status", "nginx"}, {"status", "--biz", "2"}, {"status", "x", "--biz", "2", "--limit", "-1"}} {
		if code, _, stderr := call(t, append([]string{"process"}, args...)...); code != command.ExitUsage {
			t.Errorf("%v: exit %d: %s", args, code, stderr)
		}
	}
}

const (
	counts0  = `{"agent_missing":0,"down":0,"unsupervised":0,"spec_differs":0,"running":1}`
	drifting = `{"id":44,"namespace":"2","name":"nginx","total":3,"counts":{"agent_missing":1,"down":1,"unsupervised":0,"spec_differs":0,"running":1},
		"modules":[{"set":"s1","module":"web","total":3,"counts":{"agent_missing":1,"down":1,"unsupervised":0,"spec_differs":0,"running":1}}],
		"missing_modules":["proxy"],"elsewhere":["0:10.0.0.9"],"hosts":[
		{"host":"0:10.0.0.2","modules":["s1/web"],"state":"down","remarks":["down","unsupervised"],
		 "reported":{"proc_name":"nginx","desired":"none","status":{"at":"2026-11-21T05:35:00Z","running":false},"reported_at":"2026-11-21T05:35:00Z"}},
		{"host":"0:10.0.0.3","modules":["s1/web"],"state":"agent_missing","remarks":["agent_missing"],"reported":null}]}`
	steady = `{"id":44,"namespace":"2","name":"nginx","total":1,"counts":` + counts0 + `,"modules":[{"set":"s1","module":"web","total":1,"counts":` + counts0 + `}],
		"missing_modules":[],"elsewhere":[],"hosts":[{"host":"0:10.0.0.1","modules":["s1/web"],"state":"running","remarks":[],
		"reported":{"proc_name":"nginx","desired":"up","status":{"at":"2026-11-21T05:35:00Z","running":true,"supervised":true,"pid":42},"reported_at":"2026-11-21T05:35:00Z"}}]}`
	named44 = `{"processes":[{"id":44,"name":"nginx"}],"total":1,"next":""}`
	nobody  = `{"processes":[],"total":0,"next":""}`
)

func TestTheStatusOfAProcessShowsWhatDrifted(t *testing.T) {
	t.Parallel()
	server := serveAnswers(t, named44, drifting)
	code, stdout, stderr := call(t, "process", "status", "nginx", "--biz", "2", "--module", "web,proxy", "--limit", "2", "--server", server.URL)
	want := `nginx (process 44): 1 of 3 hosts running, 1 without an agent, 1 down
bound to modules missing in the topology: proxy
registered on 1 hosts outside its modules, the first is 0:10.0.0.9

MODULE  HOSTS  RUNNING  AGENT_MISSING  DOWN  UNSUPERVISED  SPEC_DIFFERS
s1/web  3      1        1              1     0             0

HOST        STATE              MODULES  REPORTED
0:10.0.0.2  down+unsupervised  s1/web   down
0:10.0.0.3  agent_missing      s1/web   no agent
and 1 more hosts; --limit lists more
`
	if code != exitHostsFailed || stdout != want {
		t.Errorf("exit %d: %s\n%s", code, stderr, stdout)
	}
	if got := strings.Join(server.asked, "\n"); got != "GET /v1/catalogue/2?exact=true&limit=1&name=nginx \nGET /v1/processes/2/44/status?limit=2&module=web&module=proxy " {
		t.Errorf("asked\n%s", got)
	}
}

func TestTheStatusOfAProcessThatRunsEverywhere(t *testing.T) {
	t.Parallel()
	server := serveAnswers(t, nobody, steady)
	code, stdout, stderr := call(t, "process", "status", "44", "--biz", "2", "--server", server.URL)
	if code != 0 || !strings.HasPrefix(stdout, "nginx (process 44): 1 of 1 hosts running\n") || !strings.Contains(stdout, "0:10.0.0.1  running  s1/web   up, pid 42, supervised\n") {
		t.Errorf("exit %d: %s\n%s", code, stderr, stdout)
	}
	server = serveAnswers(t, nobody)
	if code, _, stderr := call(t, "process", "status", "web", "--biz", "2", "--server", server.URL); code != command.ExitFailed || !strings.Contains(stderr, `business 2 has no process "web"`) {
		t.Errorf("exit %d: %s", code, stderr)
	}
	server = serveAnswers(t, named44, steady)
	if code, stdout, stderr := call(t, "process", "status", "nginx", "--biz", "2", "--module", "wbe", "--server", server.URL); code != command.ExitFailed || !strings.Contains(stderr, `"nginx" is not bound to module "wbe"`) {
		t.Errorf("of a module that is misspelt: exit %d: %s%s", code, stdout, stderr)
	}
	server = serveAnswers(t, named44, steady)
	if code, stdout, _ := call(t, "process", "status", "nginx", "--biz", "2", "--json", "--server", server.URL); code != 0 || !strings.Contains(stdout, `"missing_modules": []`) {
		t.Errorf("exit %d\n%s", code, stdout)
	}
}
