package dialect

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// accepting returns the Accept of a call.
func accepting(tb testing.TB, name string) Accept {
	tb.Helper()
	for _, d := range All() {
		for _, call := range d.Calls {
			if use, ok := call.Endpoint.(Accept); ok && call.Name == name {
				return use
			}
		}
	}
	tb.Fatalf("no call %s accepts operations", name)
	return Accept{}
}

func decode(t *testing.T, call, body string) procfleet.Submission {
	t.Helper()
	s, err := accepting(t, call).Decode(&Request{Method: http.MethodPost, Body: []byte(body)})
	if err != nil {
		t.Fatalf("%s: %v", call, err)
	}
	return s
}

// A stop of the native API kills the process after 30 s by default. The published calls never had this kill,
// so their default is no kill.
func TestOnlyStopsOfTheNativeAPIKill(t *testing.T) {
	t.Parallel()
	const (
		gse = `{"meta":{"namespace":"ns","name":"web"},"op_type":1,"hosts":[{"ip":"10.0.0.1","bk_cloud_id":0}],
			"spec":{"identity":{"proc_name":"nginx","setup_path":"/srv"},"control":{"stop_cmd":"b"}}}`
		job    = `{"bk_biz_id":1,"op_type":1,"process_infos":[{"proc_name":"nginx","setup_path":"/srv","pid_path":"/srv/p.pid","account":"www","stop_cmd":"b","ip_list":[{"ip":"10.0.0.1","bk_cloud_id":0}]}]}`
		native = `{"action":"stop","hosts":["0:10.0.0.1"],"process":{"proc_name":"nginx","setup_path":"/srv"}}`
	)
	for _, c := range []struct {
		call, body string
		want       procfleet.Duration
	}{
		{"native", native, procfleet.Seconds(30)},
		{"native", strings.Replace(native, `"proc_name"`, `"alive":{"stop_grace":0},"proc_name"`, 1), 0},
		{"gse.operate_proc_multi", `{"proc_operate_req":[` + gse + `]}`, 0},
		{"gse.operate_proc_v2", gse, 0},
		{"job.operate_process", job, 0},
		{"job.operate_proc", job, 0},
		{"oldjob.operate_process", olderJob(job), 0},
	} {
		if got := decode(t, c.call, c.body).Operations[0].Process.Alive.StopGrace; got != c.want {
			t.Errorf("%s: stop grace is %s, want %s", c.call, got, c.want)
		}
	}
}

// The same operation in the form of every dialect decodes into the same value. Dialects identify
// processes by different members, so the test ignores the identity.
func TestOneOperationIsTheSameInEveryShape(t *testing.T) {
	t.Parallel()
	const (
		gseOp = `{"meta":{"namespace":"ns","name":"web"},"op_type":7,"hosts":[{"ip":"10.0.0.1","bk_cloud_id":0},{"ip":"fd00::1","bk_cloud_id":3}],
			"spec":{"identity":{"proc_name":"nginx","setup_path":"/srv","pid_path":"/srv/p.pid","config_path":"/etc/n","log_path":"/log","user":"www"},
			"control":{"start_cmd":"a","stop_cmd":"b","restart_cmd":"c","reload_cmd":"d","kill_cmd":"e"},"resource":{"cpu":50,"mem":30.0},
			"alive_monitor_policy":{"auto_type":1,"start_check_secs":7,"op_timeout":20}}}`
		jobOp = `{"bk_biz_id":1,"op_type":7,"process_infos":[{"proc_name":"nginx","setup_path":"/srv","pid_path":"/srv/p.pid","cfg_path":"/etc/n","log_path":"/log",
			"account":"www","start_cmd":"a","stop_cmd":"b","restart_cmd":"c","reload_cmd":"d","kill_cmd":"e","cpu_lmt":50,"mem_lmt":30,"type":1,
			"start_check_begin_time":7,"start_check_end_time":7,"op_timeout":20,"ip_list":[{"ip":"10.0.0.1","bk_cloud_id":0},{"ip":"fd00::1","bk_cloud_id":3}]}]}`
		nativeOp = `{"action":"restart","hosts":["0:10.0.0.1","3:fd00::1"],"process":{"namespace":"ns","name":"web","proc_name":"nginx","setup_path":"/srv",
			"pid_path":"/srv/p.pid","config_path":"/etc/n","log_path":"/log","account":"www","control":{"start":"a","stop":"b","restart":"c","reload":"d","kill":"e"},
			"limits":{"cpu":50,"memory":30},"alive":{"start_check_begin":"7s","start_check_end":7,"op_timeout":"20s","stop_grace":0}}}`
	)
	want := decode(t, "native", nativeOp).Operations
	same := map[string]string{
		"gse.operate_proc_multi": `{"proc_operate_req":[` + gseOp + `]}`,
		"gse.operate_proc_v2":    gseOp,
		"job.operate_process":    jobOp,
		"oldjob.operate_process": olderJob(jobOp),
	}
	for call, body := range same {
		got := decode(t, call, body).Operations
		if diff := cmp.Diff(plainText(t, want), plainText(t, got)); diff != "" {
			t.Errorf("%s (-native +%s):\n%s", call, call, diff)
		}
	}
	// These calls have fewer members. The members that they have decode into the same values.
	owned := strings.NewReplacer(`"op_type":7`, `"op_type":1`, `"proc_name"`, `"proc_owner":"me","proc_name"`).Replace(jobOp)
	less := map[string]struct {
		body string
		said func(o *procfleet.Operation)
	}{
		"gse.operate_proc": {gseOp, func(o *procfleet.Operation) {
			o.Process, o.Registered = procfleet.ProcessSpec{}, false
			for i := range o.Targets {
				o.Targets[i].Label = "" // with a supplier
			}
		}},
		"job.operate_proc": {jobOp, func(o *procfleet.Operation) { // it makes the commands itself
			p := &o.Process
			o.Process = procfleet.ProcessSpec{ProcName: p.ProcName, SetupPath: p.SetupPath, PidPath: p.PidPath, Account: p.Account, Limits: p.Limits}
		}},
		"job.manage_proc": {owned, func(o *procfleet.Operation) {
			o.Action, o.Process.Contact = "", "" // it registers, and has a contact
		}},
	}
	for _, call := range []string{"operate_proc", "manage_proc"} {
		shape := less["job."+call]
		shape.body = olderJob(shape.body)
		less["oldjob."+call] = shape
	}
	for call, shape := range less {
		want, got := decode(t, "native", nativeOp).Operations, decode(t, call, shape.body).Operations
		shape.said(&want[0])
		shape.said(&got[0])
		if diff := cmp.Diff(plainText(t, want), plainText(t, got)); diff != "" {
			t.Errorf("%s (-native +%s):\n%s", call, call, diff)
		}
	}
	for _, d := range All() {
		for _, family := range d.Reached() {
			for _, call := range family.Calls {
				_, all := same[call.Name]
				_, some := less[call.Name]
				if _, accepts := call.Endpoint.(Accept); accepts && !all && !some && call.Name != "native" {
					t.Errorf("nothing is said in the shape of %s", call.Name)
				}
			}
		}
	}
}

// olderJob is a body of Job in the form of the version that had params.
func olderJob(body string) string {
	return strings.Replace(body, `{"bk_biz_id":1,`, `{"bk_biz_id":1,"params":{`, 1) + "}"
}

// plainText returns operations as text, without identities and without the members that the server
// completes.
func plainText(t *testing.T, ops []procfleet.Operation) string {
	t.Helper()
	for i := range ops {
		ops[i].Over = nil
		ops[i].Process.Namespace, ops[i].Process.Name = "", ""
	}
	text, err := json.MarshalIndent(ops, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestHostsThatNobodyNamedAreKeyedLikeThoseThatAreNamed(t *testing.T) {
	t.Parallel()
	host, err := procfleet.ParseHost("3:fd00::1")
	if err != nil {
		t.Fatal(err)
	}
	named := decode(t, "gse.operate_proc", `{"meta":{"namespace":"n","name":"m"},"hosts":[{"ip":"fd00::1","bk_cloud_id":3}]}`)
	if got, want := accepting(t, "gse.operate_proc").Label(host), named.Operations[0].Targets[0].Key(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestEveryActionAndProcessTypeHasANumber(t *testing.T) {
	t.Parallel()
	for i, n := range []int{0, 1, 2, 3, 4, 7, 8, 9} {
		if got := opAction(n); got != procfleet.Actions()[i] {
			t.Errorf("op_type %d is %s, want %s", n, got, procfleet.Actions()[i])
		}
	}
	for _, n := range []int{-1, 5, 6, 10} {
		if got := opAction(n); got.Known() {
			t.Errorf("op_type %d is %s, want an unknown action", n, got)
		}
	}
	numbers := make(map[procfleet.ProcessType]bool)
	for _, processType := range autoTypes {
		numbers[processType] = true
	}
	for _, want := range []procfleet.ProcessType{procfleet.Periodic, procfleet.Resident, procfleet.Once} {
		if !numbers[want] {
			t.Errorf("no auto_type means %s", want)
		}
	}
}

func TestEveryDialectWordsEveryFailure(t *testing.T) {
	t.Parallel()
	for _, d := range All() {
		for i, family := range d.Reached() {
			for kind := Internal; kind <= OutcomeUnknown; kind++ {
				reply := family.Fail(&Error{Kind: kind, Field: "f", Problem: "p", Task: testTask}, testRequestID)
				text, err := reply.JSON()
				if err != nil {
					t.Fatal(err)
				}
				var body map[string]any
				if err := json.Unmarshal(text, &body); err != nil {
					t.Fatalf("%s %d kind %d: %v in %s", d.Name, i, kind, err, text)
				}
				if reply.Status < 400 && body["code"] == 0.0 {
					t.Errorf("%s %d kind %d looks like a success: %d %s", d.Name, i, kind, reply.Status, text)
				}
				internal := kind == Internal
				if d.Name == "cmdb" { // the CMDB returns 500 for an unavailable database, too
					internal = internal || kind == Unavailable || kind == StoreFull || kind == OutcomeUnknown
				}
				if (reply.Status == http.StatusInternalServerError) != internal {
					t.Errorf("%s %d kind %d has status %d; only internal failures are 500", d.Name, i, kind, reply.Status)
				}
				if kind == OutcomeUnknown && !strings.Contains(string(text), string(testTask)) {
					t.Errorf("%s %d does not say which task is unknown: %s", d.Name, i, text)
				}
			}
		}
	}
}

func TestCallNamesAndPathsAreUnique(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	once := func(key string) {
		if seen[key] {
			t.Errorf("%s is there twice", key)
		}
		seen[key] = true
	}
	for _, d := range All() {
		for i, family := range d.Reached() {
			for _, call := range family.Calls {
				once(fmt.Sprintf("%s in family %d", call.Name, i))
				for _, path := range call.Paths {
					for _, method := range call.Methods {
						once(method + " " + path)
					}
				}
			}
		}
	}
}

func TestBadBodiesAreRefusedByEveryCallThatTakesOne(t *testing.T) {
	t.Parallel()
	const levels = 20_000 // encoding/json stops at 10,000
	deep := strings.Repeat(`{"a":`, levels) + "1" + strings.Repeat("}", levels)
	bodies := map[string]string{
		"nothing":        "",
		"an array":       "[]",
		"a string":       `"x"`,
		"an open object": "{",
		"deep nesting":   deep,
		"deep arrays":    `{"x":` + strings.Repeat("[", levels),
		"bad UTF-8":      "{\"meta\":{\"namespace\":\"\xff\xfe\"}}",
		"two values":     "{} {}",
		"null members":   `{"proc_operate_req":null,"meta":null,"process_infos":null,"operations":null}`,
		"huge number":    `{"op_type":1e400,"bk_biz_id":1,"action":"start"}`,
	}
	for _, d := range All() {
		for _, family := range d.Reached() {
			for _, call := range family.Calls {
				if !slices.Contains(call.Methods, http.MethodPost) {
					continue
				}
				for name, body := range bodies {
					if call.Name == "cmdb.search_process" && (name == "null members" || name == "huge number") {
						continue // which say nothing that it reads, and it needs nothing
					}
					err := refusal(t, call, &Request{Method: http.MethodPost, Body: []byte(body), Wildcards: someWildcards("1")})
					f, ok := errors.AsType[*Error](err)
					if !ok || f.Kind == Internal {
						t.Errorf("%s with %s: %v, want a failure of the caller", call.Name, name, err)
					}
				}
			}
		}
	}
}

func TestBracketsInStringsAreNoDepth(t *testing.T) {
	t.Parallel()
	body := `{"bk_gse_taskid":"` + strings.Repeat(`[{\"`, 100) + `"}`
	if f := outOfBounds([]byte(body), 0); f != nil {
		t.Errorf("brackets in a string counted as nesting: %v", f)
	}
	if outOfBounds([]byte(strings.Repeat("[", maxDepth)), 0) != nil || outOfBounds([]byte(strings.Repeat("[", maxDepth+1)), 0) == nil {
		t.Errorf("the limit is not %d", maxDepth)
	}
}

// A body of 40 MiB has room for 14 million elements, each of which becomes an
// operation of several hundred bytes.
func TestABodyOfElementsWithoutEndIsRefusedBeforeItIsDecoded(t *testing.T) {
	t.Parallel()
	const items = 1000
	list := func(elements int, element string) string {
		return "[" + strings.Repeat(element+",", elements-1) + element + "]"
	}
	object := func(members int) string {
		var b strings.Builder
		for i := range members {
			fmt.Fprintf(&b, `"%x":[],`, i)
		}
		return "{" + b.String() + `"":0}`
	}
	for body, want := range map[string]Kind{
		`{"a":` + list(2*leastObjects, "{}") + `}`:                      InvalidField,
		`{"a":` + list(maxElements(items)+2, `{"bk_cloud_id":0}`) + `}`: TooLarge,
		`{"a":` + list(maxElements(items)-2, `{"bk_cloud_id":0}`) + `}`: -1,
		`{"a":[{"b":` + list(maxElements(items), `""`) + `},0,0]}`:      TooLarge,
		`{"a":` + object(maxMembers) + `}`:                              InvalidField,
		`{"a":` + object(maxMembers-1) + `,"b":[{},{}]}`:                -1,
		`{"a":` + list(items, `{"h":["x"],"n":{"a":1,"b":2}}`) + `}`:    -1,
		`{"a":"` + strings.Repeat(",[{", 10*maxElements(items)) + `"}`:  -1,
	} {
		got := Kind(-1)
		if f := outOfBounds([]byte(body), items); f != nil {
			got = f.Kind
		}
		if got != want {
			t.Errorf("%.40s… of %d bytes: kind %d, want %d", body, len(body), got, want)
		}
	}
}

// FuzzDecode passes arbitrary input to the decoder of every call. No decoder may panic. It rejects
// input only with an [*Error], and the operations that it returns are within the limits.
func FuzzDecode(f *testing.F) {
	for _, body := range []string{
		`{"proc_operate_req":[{"meta":{"namespace":"n","name":"m","labels":{"a":1}},"op_type":0,"hosts":[{"ip":"10.0.0.1","bk_cloud_id":0}],"spec":{"identity":{"proc_name":"p","setup_path":"/s"}}}]}`,
		`{"meta":{"namespace":"n","name":"m"},"op_type":9,"agent_id_list":["a","0:10.0.0.1"],"spec":{"identity":{"proc_name":"p","setup_path":"/s"},"monitor_policy":{"auto_type":2}}}`,
		`{"bk_biz_id":1,"op_type":1,"process_infos":[{"setup_path":"/s","proc_name":"p","pid_path":"/p","ip_list":[{"bk_cloud_id":0,"ip":"::1"}]}]}`,
		`{"action":"stop","process":{"proc_name":"p","setup_path":"/s","alive":{"op_timeout":"3s"}},"hosts":["0:10.0.0.1"],"timeout":9}`,
		`{"meta":{"namespace":"n","name":"m"},"op_type":1,"hosts":[{"ip":"10.0.0.1","bk_cloud_id":0,"bk_supplier_id":3,"bk_agent_id":"a"},{"ip":"","bk_cloud_id":1}],"page":{"start":1,"limit":2},
			"spec":{"identity":{"proc_name":"p","setup_path":"/s"},"control":{},"resource":{"cpu":1},"monitor_policy":{},"process_group":[{"id":"g","resource":{"cpu_pool_limit":1,"mem_pool_limit":2,"cpu_pool_weight":0,"mem_pool_weight":1}}]}}`,
		`{"processes":[{"name":"nginx","port":8080,"instances":2,"auto_start":true,"modules":["web"]}]}`,
		`{"task_id":"GSETASK:20261121053522:123456","bk_gse_taskid":"x","bk_scope_type":"biz","bk_scope_id":"1"}`,
		`{"sets":[{"name":"s1","modules":[{"name":"web","hosts":["0:10.0.0.1"]}]}],"version":3,"auto_register":true}`,
		"sets:\n- &a {name: s1, modules: [{name: web, hosts: [0:10.0.0.1]}]}\n- {<<: *a, name: s2}\n",
		"set,module,host,default\ns1,web,0:10.0.0.1,1\ns1,\"w\"\"eb\",,\ns2,,,\n",
		`{"bk_process_name":"nginx","port":80,"bind_ip":"1","protocol":"1","auto_start":true,"proc_num":2,"user":null}`,
		`{"bk_process_id":"44,45","start_cmd":"./start.sh","port":"1-2,3"}`,
		`{"page":{"start":1,"limit":2,"sort":"-port"},"fields":["port"],"condition":{"port":{"$in":["80",81]},"bk_process_name":"n","create_time":{"$gte":"2026-01-31T12:00:00Z"}}}`,
	} {
		f.Add([]byte(body), "limit=3&state=failed", `{"bk_app_code":"x"}`)
	}
	var calls []Call
	at := make(map[string]int) // a call is the same in all families, but for its methods
	for _, d := range All() {
		for _, family := range d.Reached() {
			for _, call := range family.Calls {
				if i, known := at[call.Name]; known {
					methods := slices.Concat(calls[i].Methods, call.Methods)
					slices.Sort(methods)
					calls[i].Methods = slices.Compact(methods)
					continue
				}
				at[call.Name] = len(calls)
				calls = append(calls, call)
			}
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, query, header string) {
		for _, call := range calls {
			for _, method := range call.Methods {
				r := &Request{Method: method, Body: body, ID: query, BkapiAuthorization: header, Authorization: header}
				checkDecode(t, call, r)
				r.Wildcards = someWildcards(query)
				checkDecode(t, call, r)
				r.Wildcards = someWildcards("7")
				r.Query = map[string][]string{"limit": {query}, "cursor": {header}, "task_id": {query}}
				checkDecode(t, call, r)
				r.ID, r.IfMatch = "7", query
				checkDecode(t, call, r)
				if _, is := call.Endpoint.(SetTopology); is {
					r.IfMatch, r.ContentType = "", "application/yaml"
					checkDecode(t, call, r)
					r.ContentType = "text/csv"
					checkDecode(t, call, r)
				}
			}
		}
	})
}

// someWildcards returns the text as the value of every wildcard.
func someWildcards(text string) map[string]string {
	return map[string]string{"account": "0", "business": text, "biz": text, "process": text, "module": text, "set": text}
}

func checkDecode(t *testing.T, call Call, r *Request) {
	t.Helper()
	err := refusal(t, call, r)
	if err == nil {
		return
	}
	if f, ok := errors.AsType[*Error](err); !ok || f.Kind == Internal {
		t.Fatalf("%s refused with %T %v, want a failure of the caller", call.Name, err, err)
	}
}

// refusal decodes a request, checks the decoded value, and returns the error of a rejected
// request.
func refusal(t *testing.T, call Call, r *Request) error {
	t.Helper()
	var err error
	switch use := call.Endpoint.(type) {
	case Accept:
		var s procfleet.Submission
		if s, err = use.Decode(r); err == nil {
			checkAccepted(t, call.Name, s)
		}
	case Outcomes:
		_, err = use.Decode(r)
	case ShowTask:
		_, err = use.Decode(r)
	case ControlTask:
		_, err = use.Decode(r)
	case Watch:
		_, err = use.Decode(r)
	case FollowTasks:
		_, err = use.Decode(r)
	case ListTasks:
		_, err = use.Decode(r)
	case ListResults:
		_, err = use.Decode(r)
	case ListHosts:
		_, err = use.Decode(r)
	case ListAudit:
		_, err = use.Decode(r)
	case ShowOutput:
		_, err = use.Decode(r)
	case ListFleet:
		_, err = use.Decode(r)
	case Register:
		var q Registering
		if q, err = use.Decode(r); err == nil {
			checkQuestion(t, call.Name, q.Targets, q.Process.ValidateIdentity(), q.Process.Namespace != "")
		}
	case LabelHosts:
		var q LabelChange
		if q, err = use.Decode(r); err == nil {
			checkQuestion(t, call.Name, q.Targets, q.Labels.Validate(), true)
		}
	case SetGroups:
		var q Grouping
		if q, err = use.Decode(r); err == nil {
			checkQuestion(t, call.Name, q.Targets, nil, q.Groups.Namespace != "")
		}
	case ShowGroups:
		var q GroupQuery
		if q, err = use.Decode(r); err == nil {
			checkQuestion(t, call.Name, q.Targets, nil, q.Namespace != "")
		}
	case ShowProcesses:
		var q ProcessQuery
		if q, err = use.Decode(r); err == nil {
			checkQuestion(t, call.Name, q.Targets, nil, q.Namespace != "" && q.Name != "")
		}
	case ListProcesses:
		var p ProcessPage
		if p, err = use.Decode(r); err == nil {
			checkQuestion(t, call.Name, []procfleet.Target{{Label: "all"}}, nil, p.Namespace != "" && p.Start >= 0 && p.Limit >= 1 && p.Limit <= 1000)
		}
	case ShowAgents:
		var q AgentQuery
		if q, err = use.Decode(r); err == nil {
			checkQuestion(t, call.Name, q.Targets, nil, true)
		}
	case BindAgents:
		var q AgentBinding
		if q, err = use.Decode(r); err == nil {
			checkQuestion(t, call.Name, q.Targets, nil, q.Targets[0].AgentID != "")
		}
	case Freeze:
		var q Freezing
		if q, err = use.Decode(r); err == nil {
			checkFreezing(t, call.Name, &q)
		}
	case ListFreezes:
		var p FreezePage
		if p, err = use.Decode(r); err == nil && p.After != (catalog.Scope{}) && p.After.Validate() != nil {
			t.Fatalf("%s let through: %+v", call.Name, p)
		}
	case ListEvents:
		_, err = use.Decode(r)
	case ShowHealth:
		_, err = use.Decode(r)
	case EditTemplates:
		var q TemplateEdits
		if q, err = use.Decode(r); err == nil {
			checkEdits(t, call.Name, &q)
		}
	case DeleteTemplate:
		_, err = use.Decode(r)
	case ShowTemplate:
		_, err = use.Decode(r)
	case ShowModules:
		_, err = use.Decode(r)
	case SetPolicies:
		var q PolicyChange
		if q, err = use.Decode(r); err == nil {
			if invalid := catalog.CheckPolicies(q.Namespace, &q.Policies); invalid != nil {
				t.Errorf("%s accepts %v", call.Name, invalid)
			}
		}
	case SetSchedule:
		var q ScheduleChange
		if q, err = use.Decode(r); err == nil {
			if invalid := q.Schedule.Validate(); invalid != nil {
				t.Errorf("%s accepts %v", call.Name, invalid)
			}
		}
	case ListSchedules:
		_, err = use.Decode(r)
	case RemoveSchedule:
		_, err = use.Decode(r)
	case SetWebhook:
		_, err = use.Decode(r)
	case ListWebhooks:
		_, err = use.Decode(r)
	case RemoveWebhook:
		_, err = use.Decode(r)
	case ListDead:
		_, err = use.Decode(r)
	case Redeliver:
		_, err = use.Decode(r)
	case ShowPolicies:
		_, err = use.Decode(r)
	case SetTopology:
		var q TopologyChange
		if q, err = use.Decode(r); err == nil {
			topology := catalog.Topology{Sets: q.Sets}
			checkTopology(t, call.Name, errors.Join(topology.Validate(), q.Business.Validate()), q.Version >= -1)
		}
	case EditTopology:
		var q TopologyEdit
		if q, err = use.Decode(r); err == nil {
			checkTopology(t, call.Name, q.Business.Validate(), (q.AutoRegister == nil) == (q.Module != ""))
		}
	case ShowTopology:
		_, err = use.Decode(r)
	case SearchTemplates:
		var q TemplateSearch
		if q, err = use.Decode(r); err == nil {
			if q.Search.Limit == 0 && use.EncodeAll != nil {
				q.Search.Limit = catalog.MaxTemplatePage // all, in parts
			}
			if errors.Join(q.Business.Validate(), q.Search.Validate()) != nil {
				t.Fatalf("%s let through: %+v", call.Name, q)
			}
		}
	case SaveTemplates:
		var q NamedTemplates
		if q, err = use.Decode(r); err == nil {
			checkNamed(t, call.Name, &q)
		}
	case ShowDrift:
		var q DriftQuery
		if q, err = use.Decode(r); err == nil && (q.Business.Validate() != nil || q.ID < 1 || q.Limit < 0) {
			t.Fatalf("%s let through: %+v", call.Name, q)
		}
	default:
		t.Fatalf("%s has an endpoint that is not fuzzed: %T", call.Name, call.Endpoint)
	}
	return err
}

func checkTopology(t *testing.T, call string, invalid error, complete bool) {
	t.Helper()
	if invalid != nil || !complete {
		t.Fatalf("%s let through what is not valid: %v", call, invalid)
	}
}

// checkNamed verifies that decoded templates are valid for storage.
func checkNamed(t *testing.T, call string, q *NamedTemplates) {
	t.Helper()
	err := q.Business.Validate()
	for i := range q.Templates {
		err = errors.Join(err, catalog.Edit{Set: q.Templates[i].Set, Bind: q.Templates[i].Modules}.Validate())
	}
	if err != nil || len(q.Templates) == 0 || len(q.Templates) > catalog.MaxEdits {
		t.Fatalf("%s let through: %+v, %v", call, q, err)
	}
}

// checkQuestion verifies that a decoded query is valid and complete and has targets, each with a
// key.
func checkQuestion(t *testing.T, call string, targets []procfleet.Target, invalid error, complete bool) {
	t.Helper()
	if invalid != nil || !complete || len(targets) == 0 {
		t.Fatalf("%s let through: %v, complete %t, %d targets", call, invalid, complete, len(targets))
	}
	for _, target := range targets {
		if target.Key() == "" || len(target.AgentID) > procfleet.MaxKey {
			t.Fatalf("%s let through: %+v", call, target)
		}
	}
}

// checkFreezing verifies that a decoded freeze has a target and a permitted duration.
func checkFreezing(t *testing.T, call string, q *Freezing) {
	t.Helper()
	if q.Everywhere() {
		checkQuestion(t, call, []procfleet.Target{{Label: "all"}}, (catalog.Scope{Namespace: q.Namespace}).Validate(), true)
	} else {
		checkQuestion(t, call, q.Targets, nil, true)
	}
	if err := (catalog.Freezing{TTL: q.TTL.Std(), Reason: q.Reason}).Validate(); err != nil && !q.Lift {
		t.Fatalf("%s let through: %v", call, err)
	}
}

// checkEdits verifies that decoded edits are valid, except that a template may be missing.
func checkEdits(t *testing.T, call string, q *TemplateEdits) {
	t.Helper()
	err := catalog.ValidateEdits(q.Edits)
	if q.Business.Validate() != nil || len(q.Edits) == 0 || err != nil && !errors.Is(err, catalog.ErrNoTemplate) {
		t.Fatalf("%s let through: %+v, %v", call, q, err)
	}
}

func checkAccepted(t *testing.T, call string, s procfleet.Submission) {
	t.Helper()
	if err := s.Validate(); err != nil {
		t.Fatalf("%s let through: %v", call, err)
	}
	for _, o := range s.Operations {
		if err := o.ValidateBounds(); err != nil {
			t.Fatalf("%s let through: %v", call, err)
		}
	}
	if _, err := json.Marshal(s); err != nil {
		t.Fatalf("%s made something that does not encode: %v", call, err)
	}
}

func BenchmarkDecodeTenThousandHosts(b *testing.B) {
	hosts := make([]string, 10_000)
	for i := range hosts {
		hosts[i] = fmt.Sprintf(`{"ip":"10.0.%d.%d","bk_cloud_id":0}`, i>>8, i&255)
	}
	body := []byte(`{"meta":{"namespace":"n","name":"m"},"op_type":2,"hosts":[` + strings.Join(hosts, ",") +
		`],"spec":{"identity":{"proc_name":"p","setup_path":"/s"}}}`)
	use := accepting(b, "gse.operate_proc_v2")
	for b.Loop() {
		if _, err := use.Decode(&Request{Method: http.MethodPost, Body: body}); err != nil {
			b.Fatal(err)
		}
	}
}

// Which credential is missing or wrong is in the message; the status is that of all
// failed authentication.
func TestFailedAuthenticationHasOneStatusInEachFamily(t *testing.T) {
	t.Parallel()
	for _, d := range All() {
		for _, family := range d.Reached() {
			want := family.Fail(&Error{Kind: NoApplication}, testRequestID)
			messages := make(map[string]bool)
			for kind := NoApplication; kind <= BadToken; kind++ {
				reply := family.Fail(&Error{Kind: kind, Application: "shop"}, testRequestID)
				text, err := reply.JSON()
				if err != nil || reply.Status != want.Status {
					t.Errorf("%s %v: %v has the status %d, want %d: %v", d.Name, family.Prefixes, kind, reply.Status, want.Status, err)
				}
				messages[string(text)] = true
			}
			if len(messages) < 5 {
				t.Errorf("%s %v tells only %d failures apart", d.Name, family.Prefixes, len(messages))
			}
		}
	}
}

func TestADeniedActionIsNamedWithItsBusiness(t *testing.T) {
	t.Parallel()
	d := job()
	reply := d.Fail(&Error{Kind: Forbidden, Denied: Denied{Actions: []string{"stop"}, Business: "7"}}, testRequestID)
	text, err := reply.JSON()
	if err != nil || !strings.Contains(string(text), `"actions":[{"id":"stop"`) || !strings.Contains(string(text), `"id":"7","name":"7"`) {
		t.Errorf("%s, %v", text, err)
	}
}
