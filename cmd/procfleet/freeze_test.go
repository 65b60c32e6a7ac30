package main

import (
	"strings"
	"testing"
)

func TestFreezingSaysWhatIsFrozenAndUntilWhen(t *testing.T) {
	t.Parallel()
	const (
		until = `{"until":"2026-11-21T07:35:22Z","results":[]}`
		fine  = `{"until":"2026-11-21T07:35:22Z","results":[{"host":"0:10.0.0.1","code":0,"message":"success"}]}`
		none  = `{"until":null,"results":[{"host":"0:10.0.0.1","code":117,"message":"nobody"}]}`
		gone  = `{"lifted":0,"results":[{"host":"0:10.0.0.1","code":829,"message":"nothing was frozen"}]}`
		list  = `{"freezes":[{"host":"","namespace":"shop","until":"2026-11-21T07:35:22Z","reason":"release\n7","by":"ci"},{"host":"0:10.0.0.1","until":"2026-11-21T07:35:22Z","reason":"","by":""}],"next":""}`
	)
	for name, test := range map[string]struct {
		args   string
		answer string
		asked  string
		code   int
		said   string
	}{
		"hosts":              {"freeze --host 0:10.0.0.1 --for 90m --reason why", fine, `PUT /v1/freezes {"ttl":"1h30m0s","reason":"why","hosts":["0:10.0.0.1"]}`, 0, "0:10.0.0.1  0  success\n"},
		"a namespace":        {"freeze --namespace shop --for 1h", until, `PUT /v1/freezes {"namespace":"shop","ttl":"1h0m0s"}`, 0, "frozen until 2026-"},
		"both, as JSON":      {"freeze --host 0:10.0.0.1 --namespace shop --for 1h --json", fine, `PUT /v1/freezes {"namespace":"shop","ttl":"1h0m0s","hosts":["0:10.0.0.1"]}`, 0, `"until": "2026-11-21T07:35:22Z"`},
		"nobody":             {"freeze --host 0:10.0.0.1 --for 1h", none, "PUT /v1/freezes ", exitHostsFailed, "0:10.0.0.1  117  nobody\n"},
		"lift hosts":         {"freeze lift --host 0:10.0.0.1", gone, `DELETE /v1/freezes {"hosts":["0:10.0.0.1"]}`, 0, "0 lifted\n0:10.0.0.1  829"},
		"lift a namespace":   {"freeze lift --namespace shop", `{"lifted":1,"results":[]}`, `DELETE /v1/freezes {"namespace":"shop"}`, 0, "1 lifted\n"},
		"for a business":     {"freeze --host 0:10.0.0.1 --biz 2 --for 1h", fine, `PUT /v1/freezes {"ttl":"1h0m0s","hosts":["0:10.0.0.1"],"business":"2"}`, 0, "0:10.0.0.1  0  success\n"},
		"its namespace":      {"freeze --namespace shop --biz 2 --for 1h", until, `PUT /v1/freezes {"namespace":"shop","ttl":"1h0m0s","business":"2"}`, 0, "frozen until 2026-"},
		"lift for one":       {"freeze lift --host 0:10.0.0.1 --biz 2", gone, `DELETE /v1/freezes {"hosts":["0:10.0.0.1"],"business":"2"}`, 0, "0 lifted\n0:10.0.0.1  829"},
		"lift its namespace": {"freeze lift --namespace shop --biz 2", `{"lifted":1,"results":[]}`, `DELETE /v1/freezes {"namespace":"shop","business":"2"}`, 0, "1 lifted\n"},
		"list":               {"freeze list", list, "GET /v1/freezes?limit=1000", 0, "everywhere  shop"},
		"a list is readable": {"freeze list", list, "GET /v1/freezes?limit=1000", 0, "ci  release 7\n"},
		"a list as JSON":     {"freeze list --json", list, "GET /v1/freezes?limit=1000", 0, `"reason": "release\n7"`},
		"an empty list":      {"freeze list", `{"freezes":[],"next":""}`, "GET /v1/freezes?limit=1000", 0, "no freezes\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serveAnswers(t, test.answer)
			code, stdout, stderr := call(t, append(strings.Fields(test.args), "--server", server.URL)...)
			if code != test.code || !strings.Contains(stdout, test.said) {
				t.Errorf("exit %d, want %d: %s%s", code, test.code, stdout, stderr)
			}
			if !strings.HasPrefix(server.asked[0], test.asked) {
				t.Errorf("asked %s", server.asked[0])
			}
		})
	}
}

func TestEventsAreShownInOrderOfTimeWithTheExit(t *testing.T) {
	t.Parallel()
	const (
		late  = `{"sequence":1,"received_at":"2026-11-21T05:35:23Z","at":"2026-11-21T05:35:22Z","host":"0:10.0.0.1","kind":"gave_up","key":"shop:web","message":"pid 7 exited with code 3; it flaps","details":{"exit_code":3}}`
		early = `{"sequence":2,"received_at":"2026-11-21T05:40:00Z","at":"2026-11-21T05:30:00Z","host":"3:10.0.0.2","kind":"restarted","key":"shop:db","message":"the process was killed by SIGSEGV and was started again, pid 9","details":{"signal":"SIGSEGV"}}`
	)
	for _, pages := range [][]string{
		{`{"events":[` + late + `,` + early + `],"next":"2","more":false}`},
		{`{"events":[` + late + `],"next":"1","more":true}`, `{"events":[` + early + `],"next":"2","more":false}`},
	} {
		server := serveAnswers(t, pages...)
		code, stdout, stderr := call(t, "events", "--server", server.URL)
		lines := strings.Split(stdout, "\n")
		if code != 0 || len(lines) != 3 ||
			!strings.HasSuffix(lines[0], "  3:10.0.0.2  restarted  shop:db  the process was killed by SIGSEGV and was started again, pid 9") ||
			!strings.HasSuffix(lines[1], "  0:10.0.0.1  gave_up  shop:web  pid 7 exited with code 3; it flaps") {
			t.Errorf("exit %d\n%s%s", code, stdout, stderr)
		}
	}
}

func TestEventsThatWereReadBeforeAnErrorAreShown(t *testing.T) {
	t.Parallel()
	const page = `{"events":[{"sequence":1,"at":"2026-11-21T05:35:22Z","host":"0:10.0.0.1","kind":"starved","message":"late"}],"next":"1","more":true}`
	server := serveAnswers(t, page, `not JSON`)
	code, stdout, stderr := call(t, "events", "--server", server.URL)
	if code != 1 || strings.Count(stdout, "\n") != 1 || !strings.Contains(stdout, "starved  late") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

func TestEventsAreShownLineByLine(t *testing.T) {
	t.Parallel()
	const (
		first  = `{"events":[{"sequence":1,"received_at":"2026-11-21T05:35:23Z","at":"2026-11-21T05:35:22Z","host":"0:10.0.0.1","kind":"gave_up","key":"shop:web","message":"gave\nup"}],"next":"1","more":true}`
		second = `{"events":[{"sequence":7,"received_at":"2026-11-21T05:35:23Z","at":"2026-11-21T05:35:22Z","host":"3:10.0.0.2","kind":"starved","message":"late"}],"next":"9","more":false}`
	)
	server := serveAnswers(t, first, second)
	code, stdout, stderr := call(t, "events", "--since", "2026-11-21T05:00:00Z", "--kind", "x", "--namespace", "a b", "--host", "0:10.0.0.1", "--server", server.URL)
	lines := strings.Split(stdout, "\n")
	if code != 0 || len(lines) != 3 || !strings.HasSuffix(lines[0], "  0:10.0.0.1  gave_up  shop:web  gave up") || !strings.HasSuffix(lines[1], "  3:10.0.0.2  starved  late") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	const asked = "GET /v1/events?"
	const query = "host=0%3A10.0.0.1&kind=x&limit=1000&namespace=a+b&since=2026-11-21T05%3A00%3A00Z"
	if want := []string{asked + query, asked + "after=1&" + query}; len(server.asked) != 2 || strings.TrimSpace(server.asked[0]) != want[0] || strings.TrimSpace(server.asked[1]) != want[1] {
		t.Errorf("asked %q", server.asked)
	}
	server = serveAnswers(t, second)
	if code, stdout, _ := call(t, "events", "--limit", "7", "--json", "--server", server.URL); code != 0 || strings.Count(stdout, "\n") != 1 || !strings.HasPrefix(stdout, `{"sequence":7,`) {
		t.Errorf("exit %d, as JSON\n%s", code, stdout)
	}
	if want := "GET /v1/events?limit=7"; strings.TrimSpace(server.asked[0]) != want {
		t.Errorf("asked %q", server.asked)
	}
}
