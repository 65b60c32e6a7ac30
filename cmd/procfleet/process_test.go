package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// scripted is a server that returns its responses in order and records the requests.
type scripted struct {
	*httptest.Server
	asked []string
}

func serveAnswers(t *testing.T, answers ...string) *scripted {
	t.Helper()
	s := &scripted{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || len(s.asked) == len(answers) {
			t.Errorf("%s %s: one question too many; %v", r.Method, r.URL, err)
			return
		}
		s.asked = append(s.asked, r.Method+" "+r.URL.RequestURI()+" "+string(body))
		_, _ = io.WriteString(w, answers[len(s.asked)-1])
	}))
	t.Cleanup(s.Close)
	return s
}

const (
	runningWeb = `{"host":"0:10.0.0.1","agent_id":"a-1","alive":true,"namespace":"shop","name":"web",
		"registration":{"process":{"proc_name":"nginx"},"registered_at":"2026-11-21T04:00:00Z"},
		"reported":{"proc_name":"nginx","desired":"up","status":{"at":"2026-11-21T05:35:00Z","running":true,"supervised":true,"pid":42},"reported_at":"2026-11-21T05:35:00Z"}}`
	stoppedWeb = `{"host":"0:10.0.0.2","alive":false,"namespace":"shop","name":"web","registration":null,
		"reported":{"proc_name":"nginx","desired":"down","status":{"at":"2026-11-21T05:35:00Z","running":false},"reported_at":"2026-11-21T05:35:00Z"}}`
	unknownWeb = `{"host":"0:10.0.0.3","alive":true,"namespace":"shop","name":"web","registration":null,"reported":null}`
)

func TestProcessesAreListedWithWhatIsKnownOfThem(t *testing.T) {
	t.Parallel()
	server := serveAnswers(t, `{"processes":[`+runningWeb+`,`+stoppedWeb+`],"next":"2"}`, `{"processes":[`+unknownWeb+`],"next":""}`)
	code, stdout, stderr := call(t, "process", "list", "--namespace", "shop", "--server", server.URL)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	want := `HOST        NAME  REGISTERED  STATE
0:10.0.0.1  web   yes         up, pid 42, supervised
0:10.0.0.2  web   no          down, stopped on purpose, as of 2026-11-21T05:35:00Z; no agent since
0:10.0.0.3  web   no          unknown to the agent
`
	if stdout != want {
		t.Errorf("listed\n%s", stdout)
	}
	if got := strings.Join(server.asked, "\n"); got != "GET /v1/processes?limit=1000&namespace=shop \nGET /v1/processes?limit=1000&namespace=shop&start=2 " {
		t.Errorf("asked\n%s", got)
	}
}

func TestAPageOfProcessesSaysHowToGoOn(t *testing.T) {
	t.Parallel()
	server := serveAnswers(t, `{"processes":[`+runningWeb+`],"next":"8"}`, `{"processes":[],"next":""}`)
	args := []string{"process", "list", "--namespace", "shop", "--limit", "1", "--server", server.URL}
	_, stdout, _ := call(t, append(args, "--start", "7")...)
	if !strings.HasSuffix(stdout, "more: procfleet process list --namespace shop --start 8 --limit 1 --server "+server.URL+"\n") {
		t.Errorf("listed\n%s", stdout)
	}
	if _, stdout, _ = call(t, args...); !strings.Contains(stdout, "no processes; register one with: procfleet registration add") {
		t.Errorf("of nothing said %q", stdout)
	}
}

func TestOneProcessIsShownOnTheHostsThatAreAskedFor(t *testing.T) {
	t.Parallel()
	server := serveAnswers(t, `{"processes":[`+runningWeb+`,`+unknownWeb+`]}`)
	code, stdout, stderr := call(t, "process", "show", "--namespace", "shop", "--name", "web", "--host", "0:10.0.0.1,0:10.0.0.3", "--json", "--server", server.URL)
	var shown processList
	if err := json.Unmarshal([]byte(stdout), &shown); err != nil || code != 0 {
		t.Fatalf("exit %d, %v: %s%s", code, err, stdout, stderr)
	}
	if len(shown.Processes) != 2 || shown.Processes[0].Reported.Status.PID != 42 || shown.Processes[1].Reported != nil {
		t.Errorf("shown %+v", shown.Processes)
	}
	if want := `POST /v1/processes/query {"process":{"namespace":"shop","name":"web"},"hosts":["0:10.0.0.1","0:10.0.0.3"]}`; server.asked[0] != want {
		t.Errorf("asked %s", server.asked[0])
	}
}

func TestARegistrationTellsWhatCameOfEveryHost(t *testing.T) {
	t.Parallel()
	const (
		fine    = `{"results":[{"host":"0:10.0.0.1","code":0,"message":"success"}]}`
		there   = `{"results":[{"host":"0:10.0.0.1","code":850,"message":"is registered already"}]}`
		gone    = `{"results":[{"host":"0:10.0.0.1","code":829,"message":"is not registered"}]}`
		failing = `{"results":[{"host":"0:10.0.0.1","code":117,"message":"the agent does not answer"}]}`
	)
	add := []string{"registration", "add", "-f", "testdata/spec.yaml", "--host", "0:10.0.0.1"}
	remove := []string{"registration", "remove", "--namespace", "test", "--name", "sleeper", "--host", "0:10.0.0.1"}
	for name, test := range map[string]struct {
		args   []string
		answer string
		asked  string
		code   int
		said   string
	}{
		"add":                     {add, fine, "PUT /v1/registrations ", 0, "0:10.0.0.1  0  success\n"},
		"add what is there":       {append(add, "--keep"), there, "POST /v1/registrations ", 0, "0:10.0.0.1  850  is registered already\n"},
		"remove":                  {remove, fine, `POST /v1/registrations/remove {"process":{"namespace":"test","name":"sleeper"},"hosts":["0:10.0.0.1"]}`, 0, "success"},
		"remove what is gone":     {remove, gone, "POST /v1/registrations/remove ", 0, "829"},
		"remove from a dead host": {append(remove, "--json"), failing, "POST /v1/registrations/remove ", exitHostsFailed, `"code": 117`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serveAnswers(t, test.answer)
			code, stdout, stderr := call(t, append(test.args, "--server", server.URL)...)
			if code != test.code || !strings.Contains(stdout, test.said) {
				t.Errorf("exit %d, want %d: %s%s", code, test.code, stdout, stderr)
			}
			if !strings.HasPrefix(server.asked[0], test.asked) {
				t.Errorf("asked %s", server.asked[0])
			}
		})
	}
}

func TestAnOperationOnWhatIsRegisteredNeedsNoSpecAndNoHosts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		body string
	}{
		"wherever it is": {nil, `"registered":true}`},
		"on hosts":       {[]string{"--host", "0:10.0.0.1"}, `"registered":true,"hosts":["0:10.0.0.1"]}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serveAnswers(t, `{"id":"GSETASK:1:2"}`)
			code, stdout, stderr := call(t, append([]string{"op", "restart", "--registered", "--namespace", "shop", "--name", "web", "--server", server.URL}, test.args...)...)
			if code != 0 || !strings.Contains(stdout, "GSETASK:1:2") {
				t.Errorf("exit %d: %s%s", code, stdout, stderr)
			}
			body := server.asked[0]
			if !strings.Contains(body, `"action":"restart","process":{"namespace":"shop","name":"web","proc_name":"",`) || !strings.HasSuffix(body, test.body) {
				t.Errorf("asked %s", body)
			}
		})
	}
}
