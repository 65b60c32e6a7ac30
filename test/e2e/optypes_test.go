//go:build linux

package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// Values of op_type.
const (
	opStart, opStop, opStatus, opSupervise, opRelease = 0, 1, 2, 3, 4
	opRestart, opReload, opKill                       = 7, 8, 9
)

// gseBatch operates many processes of one host in one request.
type gseBatch struct {
	*gseClient
	ip string
}

func batchOn(u *up) *gseBatch {
	return &gseBatch{
		u.gseAs("bk_nodeman", "/api/c/compapi/v2/gse/operate_proc_multi/", http.MethodPost, "/api/c/compapi/v2/gse/get_proc_operate_result_v2/"),
		"127.0.0.1",
	}
}

func (b *gseBatch) key(p proc) string { return "0:" + b.ip + ":e2e:" + p.name }

// request is an operation on one process, with its key.
type request struct {
	key  string
	item map[string]any
}

// commanded returns an operation on a process that has every command.
func (b *gseBatch) commanded(p proc, opType int) request {
	item := body(with(gseOperation(p, opType), nil, "alive_monitor_policy"), map[string]any{"hosts": []any{map[string]any{"ip": b.ip, "bk_cloud_id": 0}}})
	pid, start := p.name+".pid", p.spec()["control"].(map[string]any)["start"].(string)
	spec := item["spec"].(map[string]any)
	spec["control"] = map[string]any{
		"start_cmd": start, "stop_cmd": "kill $(cat " + pid + ")", "restart_cmd": "kill $(cat " + pid + "); " + start, "reload_cmd": "echo ran >> reloads",
	}
	spec["alive_monitor_policy"] = map[string]any{"auto_type": 1, "start_check_secs": 0, "stop_check_secs": 5, "op_timeout": 120}
	return request{b.key(p), item}
}

// all executes the requests as one task, and returns its id and its outcomes.
func (b *gseBatch) all(requests []request) (id string, entries map[string]gseEntry) {
	b.t.Helper()
	var items []any
	var keys []string
	for _, r := range requests {
		items, keys = append(items, r.item), append(keys, r.key)
	}
	slices.Sort(keys)
	return b.do(map[string]any{"proc_operate_req": items}, slices.Compact(keys)...)
}

// each executes one op_type on every process, which must succeed.
func (b *gseBatch) each(opType int, all []proc) map[string]gseEntry {
	b.t.Helper()
	if len(all) == 0 {
		return nil
	}
	var requests []request
	for _, p := range all {
		requests = append(requests, b.commanded(p, opType))
	}
	_, entries := b.all(requests)
	for key, e := range entries {
		if e.Code != 0 {
			b.t.Fatalf("op_type %d of %s: %+v", opType, key, e)
		}
	}
	return entries
}

// States of a process before an operation.
const (
	unknown    = iota // not registered and not managed
	supervised        // runs and is supervised
	released          // runs and is not supervised
	stopped
	states
)

var stateNames = [states]string{"unknown", "supervised", "released", "stopped"}

// after is the expected outcome of an operation, and the state of the process after
// it.
type after struct {
	code   int
	runs   bool
	auto   bool
	starts int  // number of start commands so far, including those of restarts
	anon   bool // the agent may start the process at any moment, so the test does not check whether it runs
}

// matrix is every op_type on a process in every state.
var matrix = map[int][states]after{
	opStart:     {{code: 0, runs: true, auto: true, starts: 1}, {code: 828, runs: true, auto: true, starts: 1}, {code: 828, runs: true, auto: true, starts: 1}, {code: 0, runs: true, auto: true, starts: 2}},
	opStop:      {{code: 829}, {code: 0, starts: 1}, {code: 0, starts: 1}, {code: 829, starts: 1}},
	opStatus:    {{code: 0}, {code: 0, runs: true, auto: true, starts: 1}, {code: 0, runs: true, starts: 1}, {code: 0, starts: 1}},
	opSupervise: {{code: 0, auto: true, anon: true}, {code: 0, runs: true, auto: true, starts: 1}, {code: 0, runs: true, auto: true, starts: 1}, {code: 0, auto: true, anon: true}},
	opRelease:   {{code: 0}, {code: 0, runs: true, starts: 1}, {code: 0, runs: true, starts: 1}, {code: 0, starts: 1}},
	opRestart:   {{code: 0, runs: true, auto: true, starts: 1}, {code: 0, runs: true, auto: true, starts: 2}, {code: 0, runs: true, auto: true, starts: 2}, {code: 0, runs: true, auto: true, starts: 2}},
	opReload:    {{code: 0}, {code: 0, runs: true, auto: true, starts: 1}, {code: 0, runs: true, starts: 1}, {code: 0, starts: 1}},
	opKill:      {{code: 829}, {code: 0, starts: 1}, {code: 0, starts: 1}, {code: 829, starts: 1}},
	5:           {{code: 832}, {code: 832, runs: true, auto: true, starts: 1}, {code: 832, runs: true, starts: 1}, {code: 832, starts: 1}},
	6:           {{code: 832}, {code: 832, runs: true, auto: true, starts: 1}, {code: 832, runs: true, starts: 1}, {code: 832, starts: 1}},
	42:          {{code: 832}, {code: 832, runs: true, auto: true, starts: 1}, {code: 832, runs: true, starts: 1}, {code: 832, starts: 1}},
}

// TestEveryOpTypeOnAProcessInEveryState checks the outcome and the state after it,
// and that no start command runs twice. The responses have their published form.
func TestEveryOpTypeOnAProcessInEveryState(t *testing.T) {
	t.Parallel()
	procs, u := newProcs(t), newUp(t)
	u.start()
	b := batchOn(u)
	type cell struct {
		p  proc
		op int
		in int
	}
	var cells []cell
	in := [states][]proc{}
	for _, op := range slices.Sorted(maps.Keys(matrix)) {
		for state := range states {
			c := cell{procs.new("0:"+b.ip, fmt.Sprintf("op%d-%s", op, stateNames[state])), op, state}
			cells, in[state] = append(cells, c), append(in[state], c.p)
		}
	}
	b.each(opStart, slices.Concat(in[supervised], in[released], in[stopped]))
	b.each(opRelease, in[released])
	b.each(opStop, in[stopped])
	pids := map[string]int{}
	var requests []request
	for _, c := range cells {
		pids[c.p.name] = c.p.pid()
		requests = append(requests, b.commanded(c.p, c.op))
	}
	id, entries := b.all(requests)
	b.shapes(id)
	for _, c := range cells {
		want, e := matrix[c.op][c.in], entries[b.key(c.p)]
		if e.Code != want.code || (e.Code == 0) != (e.Message == "success") || e.Message == "" || (e.Code == 832) != (e.Content == "") {
			t.Errorf("op_type %d in the state %s: %+v, want %d", c.op, stateNames[c.in], e, want.code)
		}
		if c.op == opStatus {
			checkPID(t, e, c.p.pid(), want.auto)
		}
	}
	seen := b.each(opStatus, slices.Concat(in[:]...))
	live := programs()
	for _, c := range cells {
		want, what := matrix[c.op][c.in], fmt.Sprintf("after op_type %d of what was %s", c.op, stateNames[c.in])
		if want.anon {
			if _, auto := instanceIn(t, []byte(seen[b.key(c.p)].Content)); !auto {
				t.Errorf("%s it is not supervised", what)
			}
			continue
		}
		pid := c.p.pid()
		if (pid > 0) != want.runs || len(live.of(c.p)) > 1 || c.p.starts() != want.starts {
			t.Errorf("%s pid %d of %v after %d starts, want running %t after %d", what, pid, live.of(c.p), c.p.starts(), want.runs, want.starts)
		}
		if before := pids[c.p.name]; want.runs && before != 0 && (pid == before) != (c.op != opRestart) {
			t.Errorf("%s it runs as %d, before as %d", what, pid, before)
		}
		checkPID(t, seen[b.key(c.p)], pid, want.auto)
	}
}

// checkPID compares a status with the pid of the process, 0 if it does not run.
func checkPID(t *testing.T, e gseEntry, pid int, auto bool) {
	t.Helper()
	if pid == 0 {
		pid = -1
	}
	if gotPID, gotAuto := instanceIn(t, []byte(e.Content)); gotPID != pid || gotAuto != auto {
		t.Errorf("status with pid %d, supervised %t, want %d, %t: %s", gotPID, gotAuto, pid, auto, e.Content)
	}
}

// failing is an operation that fails or has an unusual outcome.
type failing struct {
	name   string
	op     int
	runs   bool // the process runs supervised before the operation
	change func(item map[string]any)
	code   int
	says   string // text of the message
	down   bool   // the process does not run after the operation
}

func command(name, line string) func(map[string]any) {
	return func(item map[string]any) { member(item, "spec", "control")[name] = line }
}

func identity(name, text string) func(map[string]any) {
	return func(item map[string]any) { member(item, "spec", "identity")[name] = text }
}

func policy(item map[string]any, members map[string]any) {
	maps.Copy(member(item, "spec", "alive_monitor_policy"), members)
}

func member(item map[string]any, path ...string) map[string]any {
	for _, name := range path {
		item = item[name].(map[string]any)
	}
	return item
}

func hanging(name string) func(map[string]any) {
	return func(item map[string]any) {
		command(name, "sleep 60")(item)
		policy(item, map[string]any{"op_timeout": 1})
	}
}

// failings returns operations that fail because of commands, folders, accounts and
// checks.
func failings() []failing {
	return []failing{
		{"start whose script fails", opStart, false, command("start_cmd", "echo cannot bind port 80 >&2; exit 3"), 65535, "cannot bind port 80", true},
		{"start whose script hangs", opStart, false, hanging("start_cmd"), 65535, "timed out", true},
		{"start that starts nothing", opStart, false, command("start_cmd", "true"), 836, "", true},
		{"start by a script that is not there", opStart, false, command("start_cmd", "./no-such-script.sh"), 65535, "no-such-script", true},
		{"start without a command", opStart, false, command("start_cmd", ""), 65535, "start", true},
		{"start for nobody", opStart, false, identity("user", "no_such_account"), 65535, "no_such_account", true},
		{"start nowhere", opStart, false, identity("setup_path", "/no/such/path"), 65535, "/no/such/path", true},
		{"start somewhere", opStart, false, identity("setup_path", "some/where"), 65535, "setup_path", true},
		{"one-shot that ends well", opStart, false, func(item map[string]any) {
			command("start_cmd", "true")(item)
			policy(item, map[string]any{"auto_type": 2})
		}, 0, "success", true},
		{"stop that stops nothing", opStop, true, func(item map[string]any) {
			command("stop_cmd", "true")(item)
			policy(item, map[string]any{"stop_check_secs": 1})
		}, 836, "still running", false},
		{"stop whose script fails", opStop, true, func(item map[string]any) {
			command("stop_cmd", "echo not today; exit 1")(item)
			policy(item, map[string]any{"stop_check_secs": 0})
		}, 65535, "not today", false},
		{"stop whose script hangs", opStop, true, func(item map[string]any) {
			hanging("stop_cmd")(item)
			policy(item, map[string]any{"stop_check_secs": 0})
		}, 65535, "timed out", false},
		{"stop whose script fails, and it stops", opStop, true, command("stop_cmd", "kill $(cat *.pid); exit 1"), 0, "success", true},
		{"stop without a command", opStop, true, command("stop_cmd", ""), 0, "success", true},
		{"restart that replaces nothing", opRestart, true, command("restart_cmd", "true"), 836, "not replaced", false},
		{"restart whose script fails", opRestart, true, command("restart_cmd", "echo no memory; exit 1"), 65535, "no memory", false},
		{"restart without a command", opRestart, true, command("restart_cmd", ""), 0, "success", false},
		{"reload that ends it", opReload, true, func(item map[string]any) {
			command("reload_cmd", "kill $(cat *.pid)")(item)
			policy(item, map[string]any{"start_check_secs": 1}) // time until the verification
		}, 836, "died", true},
		{"reload whose script fails", opReload, true, command("reload_cmd", "echo bad configuration; exit 1"), 65535, "bad configuration", false},
		{"reload whose script fails on what is down", opReload, false, command("reload_cmd", "exit 7"), 65535, "7", true},
		{"reload without a command", opReload, true, command("reload_cmd", ""), 65535, "reload", false},
		{"kill that kills nothing", opKill, true, command("kill_cmd", "true"), 836, "still running", false},
		{"kill by a command", opKill, true, command("kill_cmd", "kill -9 $(cat *.pid)"), 0, "success", true},
		{"supervise somewhere", opSupervise, false, identity("setup_path", "some/where"), 65535, "setup_path", true},
	}
}

// verbs are the first words of messages after a failed operation.
var verbs = map[int]string{
	opStart: "start", opStop: "stop", opSupervise: "register", opRelease: "unregister", opRestart: "restart", opReload: "reload", opKill: "kill",
}

// TestFailedOperationsHaveMessages checks that every message except "success"
// begins with the operation and contains the output of the command.
func TestFailedOperationsHaveMessages(t *testing.T) {
	t.Parallel()
	procs, u := newProcs(t), newUp(t)
	u.start()
	b := batchOn(u)
	all := failings()
	var run []proc
	var requests []request
	made := make([]proc, len(all))
	for i, f := range all {
		made[i] = procs.new("0:"+b.ip, fmt.Sprintf("fails%d", i))
		if f.runs {
			run = append(run, made[i])
		}
		r := b.commanded(made[i], f.op)
		f.change(r.item)
		requests = append(requests, r)
	}
	b.each(opStart, run)
	id, entries := b.all(requests)
	b.shapes(id)
	for i, f := range all {
		e, p := entries[b.key(made[i])], made[i]
		if e.Code != f.code || !strings.Contains(e.Message, f.says) || (f.code == 0) != (e.Message == "success") ||
			f.code != 0 && !strings.HasPrefix(e.Message, verbs[f.op]+": ") {
			t.Errorf("%s: %d %q, want %d, %q, and first %q", f.name, e.Code, e.Message, f.code, f.says, verbs[f.op])
		}
		if down := len(p.running()) == 0; down != f.down && (f.op != opReload || f.code != 836) { // a process that died is restarted
			t.Errorf("%s: %v run", f.name, p.running())
		}
	}
}

// TestKeysOfHostsWithoutAgentAre117 uses all forms of a host's name, also with
// operations that no agent could execute.
func TestKeysOfHostsWithoutAgentAre117(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	b := batchOn(u)
	p := newProcs(t).new("0:10.99.0.9", "nowhere")
	var requests []request
	for _, op := range slices.Sorted(maps.Keys(matrix)) {
		for key, where := range map[string]map[string]any{
			"0:10.99.0.9":  {"hosts": []any{map[string]any{"ip": "10.99.0.9", "bk_cloud_id": 0}}},
			"7:127.0.0.1":  {"hosts": []any{map[string]any{"ip": "127.0.0.1", "bk_cloud_id": 7}}},
			"0:fd00::9":    {"hosts": []any{map[string]any{"ip": "fd00::9", "bk_cloud_id": 0}}},
			"0:":           {"hosts": []any{map[string]any{"ip": nil, "bk_cloud_id": 0}}},
			"nobody":       {"agent_id_list": []any{"nobody"}},
			"0:10.99.0.10": {"agent_id_list": []any{"0:10.99.0.10"}},
		} {
			r := b.commanded(p, op)
			name := fmt.Sprintf("op%d", op)
			member(r.item, "meta")["name"] = name
			maps.Copy(r.item, where)
			requests = append(requests, request{key + ":e2e:" + name, r.item})
		}
	}
	_, entries := b.all(requests)
	for key, e := range entries {
		if e.Code != 117 || e.Message == "" || e.Message == "success" || e.Content != "" {
			t.Errorf("%s: %+v, want 117", key, e)
		}
	}
}

// TestOperatingWithoutARegistration checks that such an operation is not
// sent to the host.
func TestOperatingWithoutARegistration(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	c := u.gseAs("bk_nodeman", "/api/c/compapi/v2/gse/operate_proc/", http.MethodPost, "/api/c/compapi/v2/gse/get_proc_operate_result/")
	for _, row := range []struct{ op, code int }{
		{opStart, 65535},
		{opStop, 829},
		{opStatus, 0},
		{opSupervise, 65535},
		{opRestart, 65535},
		{opReload, 65535},
		{opKill, 65535},
		{42, 832},
	} {
		for ip, name := range map[string]string{"127.0.0.1": "with an agent", "10.99.0.9": "without"} {
			key := "0:0:" + ip + ":e2e:nothing"
			_, entries := c.do(map[string]any{
				"meta": map[string]any{"namespace": "e2e", "name": "nothing"}, "op_type": row.op,
				"hosts": []any{map[string]any{"ip": ip, "bk_cloud_id": 0, "bk_supplier_id": 0}},
			}, key)
			e := entries[key]
			if e.Code != row.code || row.code != 0 && !strings.HasPrefix(e.Message, "process info not registered") {
				t.Errorf("op_type %d on a host %s: %+v, want %d", row.op, name, e, row.code)
			}
			if row.op == opStatus {
				checkPID(t, e, 0, false)
			}
		}
	}
}

// TestAStopEndsTheWaitForAnotherStart stops a process during the delay before an
// automatic start. The process counts as not running, and must not start any more.
func TestAStopEndsTheWaitForAnotherStart(t *testing.T) {
	t.Parallel()
	procs, u := newProcs(t), newUp(t)
	u.start()
	b := batchOn(u)
	for _, op := range []int{opStop, opKill} {
		p := procs.new("0:"+b.ip, fmt.Sprintf("waits%d", op))
		start := p.spec()["control"].(map[string]any)["start"].(string)
		do := func(opType int) gseEntry {
			t.Helper()
			r := b.commanded(p, opType)
			command("start_cmd", "test -e broken && exit 1; "+start)(r.item)
			policy(r.item, map[string]any{"start_interval": 3600})
			_, entries := b.all([]request{r})
			return entries[r.key]
		}
		if e := do(opStart); e.Code != 0 {
			t.Fatalf("start: %+v", e)
		}
		p.script(t, "broken", "")
		if err := syscall.Kill(p.pid(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, finishTimeout, func() bool {
			e := do(opStatus)
			_, auto := instanceIn(t, []byte(e.Content))
			return auto && strings.Contains(e.Content, "nextRetryAt")
		}, "it waits for another start")
		if e := do(op); e.Code != 829 {
			t.Errorf("op_type %d while it waits: %+v, want 829", op, e)
		}
		checkPID(t, do(opStatus), 0, false)
	}
}
