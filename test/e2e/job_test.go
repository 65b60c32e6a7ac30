//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// Base paths of Job.
const (
	jobBehindESB  = "/api/c/compapi/v2/job/"
	jobv3         = "/api/c/compapi/v2/jobv3/"
	jobForTheESB  = "/api/job/v2/job-execute/"
	jobForOldESBs = "/esb/api/v3/"
)

// jobClient calls Job like one of its real clients, for processes on one host.
type jobClient struct {
	*gseClient
	prefix string
	ip     string
}

// jobEntry is an entry of a result map. Content is nil if there is none.
type jobEntry struct {
	Code    int             `json:"error_code"`
	Message string          `json:"error_msg"`
	Content json.RawMessage `json:"content"`
}

func jobAt(t *testing.T, url, prefix, ip string) *jobClient {
	t.Helper()
	return &jobClient{gseClient: &gseClient{client: &client{t: t, url: url}}, prefix: prefix, ip: ip}
}

// do operates one process and, like bk-monitor, polls while the status of the task
// is 115. The only key must exist from the first poll on.
func (c *jobClient) do(call string, opType int, info map[string]any) jobEntry {
	c.t.Helper()
	info = maps.Clone(info)
	info["ip_list"] = []map[string]any{{"bk_cloud_id": 0, "ip": c.ip}}
	var made struct {
		TaskID string `json:"bk_gse_taskid"`
	}
	c.ask(http.MethodPost, c.prefix+call+"/", map[string]any{
		"bk_app_code": "bk_monitor", "bk_app_secret": "s", "bk_username": "admin", "bk_supplier_account": "0",
		"bk_scope_type": "biz", "bk_scope_id": "2", "op_type": opType, "process_infos": []any{info},
	}, &made)
	var last struct {
		Status int
		Result map[string]jobEntry
	}
	testenv.Eventually(c.t, finishTimeout, func() bool {
		c.ask(http.MethodPost, c.prefix+"get_proc_result", map[string]any{"bk_biz_id": 2, "bk_gse_taskid": made.TaskID}, &last)
		for key, e := range last.Result {
			fields := strings.Split(key, ":") // bk-monitor reads the last two fields
			if len(last.Result) != 1 || len(fields) < 3 || !slices.Equal(fields[len(fields)-2:], []string{"0", c.ip}) {
				c.t.Fatalf("the keys are %v", slices.Collect(maps.Keys(last.Result)))
			}
			if open := e.Code == 115; open != (last.Status == 115) || e.Content == nil {
				c.t.Fatalf("status %d with %+v", last.Status, e)
			}
			return e.Code != 115
		}
		c.t.Fatalf("no keys, status %d", last.Status)
		return false
	}, "the task "+made.TaskID+" is over")
	return slices.Collect(maps.Values(last.Result))[0]
}

// want executes an operation that must end with a code, and returns its entry.
func (c *jobClient) want(code int, call string, opType int, info map[string]any) jobEntry {
	c.t.Helper()
	e := c.do(call, opType, info)
	if e.Code != code || (code == 0) != (e.Message == "success") {
		c.t.Fatalf("%s with op_type %d of %v: %d %q, want %d", call, opType, info["proc_name"], e.Code, e.Message, code)
	}
	return e
}

// instance returns the fields of the process in an entry's content.
func (c *jobClient) instance(e jobEntry) (pid int, isAuto bool) {
	c.t.Helper()
	return instanceIn(c.t, e.Content)
}

// scripted creates the scripts that operate_proc runs in the folder of a sample
// process, and returns its process info. The scripts take the name from their
// argument.
func (p proc) scripted(t *testing.T) map[string]any {
	t.Helper()
	const start = `echo ran >> starts; "./$1" 3600 & echo $! > "$1.pid"`
	const stop = `kill $(cat "$1.pid")`
	for name, text := range map[string]string{
		"start.sh": start, "stop.sh": stop, "reload.sh": `echo "$1" >> reloads`,
		"restart.sh": stop + "\nwhile kill -0 $(cat \"$1.pid\"); do sleep 0.1; done 2>/dev/null\n" + start,
	} {
		p.script(t, name, text)
	}
	return map[string]any{"setup_path": p.dir, "proc_name": p.name, "pid_path": filepath.Join(p.dir, p.name+".pid"), "account": "root"}
}

func (p proc) script(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// inPlace returns a sample process for operate_process and manage_proc.
func (p proc) inPlace() map[string]any {
	return map[string]any{
		"setup_path": p.dir, "proc_name": p.name, "pid_path": filepath.Join(p.dir, p.name+".pid"), "account": "root",
		"start_cmd": p.spec()["control"].(map[string]any)["start"], "stop_cmd": "kill $(cat " + p.name + ".pid)",
		"type": 1, "start_check_begin_time": 1, "start_check_end_time": 1, "op_timeout": 20, "proc_owner": "admin",
	}
}

// kill ends the process like a crash, and returns its previous pid.
func (p proc) kill(t *testing.T) int {
	t.Helper()
	pid := p.pid()
	if pid == 0 {
		t.Fatalf("%s does not run", p.name)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	return pid
}

func (p proc) waitRestarted(t *testing.T, before int) {
	t.Helper()
	testenv.Eventually(t, finishTimeout, func() bool { pid := p.pid(); return pid != 0 && pid != before }, p.name+" runs again")
}

// TestJobClients operates processes with Job's calls on one system.
func TestJobClients(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	const ip = "127.0.0.1"
	for name, test := range map[string]func(c *jobClient, p proc){
		"a process with scripts by convention": conventionalScripts,
		"a script that fails says why":         failingScript,
		"an odd name is one argument":          oddName,
		"bat on Linux":                         batOnLinux,
		"bk-monitor polls while it is 115":     monitorPolls,
		"registered is kept alive":             registeredIsKeptAlive,
		"registered one-shot runs once":        registeredOneShot,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(jobAt(t, u.c.url, jobBehindESB, ip), newProcs(t).new("0:"+ip, "worker"))
		})
	}
}

func conventionalScripts(c *jobClient, p proc) {
	info := p.scripted(c.t)
	c.want(0, "operate_proc", 0, info)
	first := p.pid()
	if pid, isAuto := c.instance(c.want(0, "operate_proc", 2, info)); first == 0 || pid != first || !isAuto {
		c.t.Fatalf("status with pid %d, supervised %t; it runs as %d", pid, isAuto, first)
	}
	c.want(828, "operate_proc", 0, info)
	c.want(0, "operate_proc", 7, info)
	if pid := p.pid(); pid == 0 || pid == first || p.starts() != 2 {
		c.t.Errorf("restarted as pid %d after %d and %d starts", pid, first, p.starts())
	}
	c.want(0, "operate_proc", 8, info)
	if said, err := os.ReadFile(filepath.Join(p.dir, "reloads")); err != nil || string(said) != p.name+"\n" {
		c.t.Errorf("reload.sh wrote %q, %v", said, err)
	}
	c.want(0, "operate_proc", 1, info)
	if pids := p.running(); len(pids) != 0 {
		c.t.Errorf("stopped, and %v run", pids)
	}
	c.want(829, "operate_proc", 1, info)
	if pid, isAuto := c.instance(c.want(0, "operate_proc", 2, info)); pid != -1 || isAuto {
		c.t.Errorf("status of a stopped process with pid %d, supervised %t", pid, isAuto)
	}
	p.script(c.t, "stop.sh", "exit 1")
	c.want(0, "operate_proc", 0, info)
	if e := c.want(836, "operate_proc", 1, info); !strings.HasPrefix(e.Message, "stop") {
		c.t.Errorf("a stop that fails says %q", e.Message)
	}
	c.want(0, "operate_proc", 9, info)
	if pids := p.running(); len(pids) != 0 {
		c.t.Errorf("killed, and %v run", pids)
	}
}

func failingScript(c *jobClient, p proc) {
	info := p.scripted(c.t)
	p.script(c.t, "start.sh", "sleep 0.5; echo cannot bind port 80 >&2; exit 1")
	if e := c.want(836, "operate_proc", 0, info); !strings.Contains(e.Message, "cannot bind port 80") {
		c.t.Errorf("the failure says %q", e.Message)
	}
}

func oddName(c *jobClient, p proc) {
	odd := "it's $(touch pwned); a & b"
	if err := os.Rename(filepath.Join(p.dir, p.name), filepath.Join(p.dir, odd)); err != nil {
		c.t.Fatal(err)
	}
	p.name = odd
	c.want(0, "operate_proc", 0, p.scripted(c.t))
	if _, err := os.Stat(filepath.Join(p.dir, "pwned")); err == nil || p.pid() == 0 {
		c.t.Errorf("pid %d; the command in the name ran: %t", p.pid(), err == nil)
	}
	c.want(0, "operate_proc", 9, p.scripted(c.t))
}

func batOnLinux(c *jobClient, p proc) {
	info := p.scripted(c.t)
	c.want(0, "operate_proc", 0, info)
	pid := p.pid()
	for _, extension := range []string{"bat", "ps1"} {
		info["cmd_shell_ext"] = extension
		for _, op := range []int{0, 1, 7, 8} {
			if e := c.want(65535, "operate_proc", op, info); !strings.Contains(e.Message, `"`+extension+`" runs on Windows only`) {
				c.t.Errorf("op_type %d in %s: message %q", op, extension, e.Message)
			}
		}
	}
	if p.pid() != pid || p.starts() != 1 {
		c.t.Errorf("it runs as %d after %d starts, want %d untouched", p.pid(), p.starts(), pid)
	}
	info["cmd_shell_ext"] = "sh"
	c.want(0, "operate_proc", 9, info)
}

func monitorPolls(c *jobClient, p proc) {
	info := p.inPlace()
	c.want(0, "operate_process", 0, info)
	before := p.pid()
	if pid, isAuto := c.instance(c.want(0, "operate_process", 2, info)); pid != before || !isAuto {
		c.t.Errorf("status with pid %d, supervised %t; it runs as %d", pid, isAuto, before)
	}
	c.want(0, "operate_process", 1, info)
	c.want(829, "operate_process", 1, info)
	c.want(65535, "operate_process", 8, info) // without reload_cmd
}

func registeredIsKeptAlive(c *jobClient, p proc) {
	info := p.inPlace()
	if _, isAuto := c.instance(c.want(0, "manage_proc", 1, info)); !isAuto {
		c.t.Error("registered, but not supervised")
	}
	p.waitRestarted(c.t, 0)
	c.want(0, "manage_proc", 1, info)
	p.waitRestarted(c.t, p.kill(c.t))
	pid := p.pid()
	if _, isAuto := c.instance(c.want(0, "manage_proc", 2, info)); isAuto || p.pid() != pid {
		c.t.Errorf("unregistered: supervised %t, pid %d, want %d left running", isAuto, p.pid(), pid)
	}
}

func registeredOneShot(c *jobClient, p proc) {
	info := p.inPlace()
	info["type"], info["start_cmd"], info["cycle_time"], info["instance_num"] = 2, "echo ran >> starts", 10, 2
	for runs := 1; runs <= 2; runs++ {
		if pid, isAuto := c.instance(c.want(0, "manage_proc", 1, info)); pid != -1 || isAuto || p.starts() != runs {
			c.t.Errorf("pid %d, supervised %t after %d runs, want %d", pid, isAuto, p.starts(), runs)
		}
	}
	c.want(0, "manage_proc", 2, info)
}

// TestProcessWithOnlyAValueKeySurvivesTheAgent operates a process without paths,
// while another process of the same name runs on the host.
func TestProcessWithOnlyAValueKeySurvivesTheAgent(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	const ip = "127.0.0.1"
	procs := newProcs(t)
	p, namesake := procs.new("0:"+ip, "worker"), procs.new("elsewhere", "worker")
	other := exec.CommandContext(t.Context(), filepath.Join(namesake.dir, "worker"), "3600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })

	c := jobAt(t, u.c.url, jobv3, ip)
	info := map[string]any{
		"proc_name": p.name, "proc_owner": "admin", "value_key": "key of " + t.Name(), "type": 1,
		"start_cmd":              fmt.Sprintf("pwd > %s/cwd; cd %s; %s", p.dir, p.dir, p.spec()["control"].(map[string]any)["start"]),
		"start_check_begin_time": 1, "start_check_end_time": 1,
	}
	if pid, _ := c.instance(c.want(0, "manage_proc", 1, info)); pid != -1 {
		t.Fatalf("pid %d before its start; the other process has pid %d", pid, other.Process.Pid)
	}
	p.waitRestarted(t, 0)
	p.waitRestarted(t, p.kill(t))
	pid, starts := p.pid(), p.starts()
	home, err := os.UserHomeDir()
	if cwd, readErr := os.ReadFile(filepath.Join(p.dir, "cwd")); err != nil || readErr != nil || strings.TrimSpace(string(cwd)) != home {
		t.Errorf("the command ran in %q (%v, %v), want the home %s", cwd, readErr, err, home)
	}

	u.child.Kill()
	u.start()
	status := func() (found int) {
		id := u.c.submit(map[string]any{"action": "status", "hosts": []string{"0:" + ip}, "process": map[string]any{
			"value_key": info["value_key"], "proc_name": p.name, "account": "root",
		}})
		u.c.wait(id)
		r := u.c.results(id, 1)[0]
		if r.Status == nil {
			t.Fatalf("the status is %+v", r)
		}
		return r.Status.PID
	}
	if found := status(); found != pid || p.starts() != starts {
		t.Errorf("after the agent restarted the process is %d after %d starts, want %d after %d", found, p.starts(), pid, starts)
	}
	if found, isAuto := c.instance(c.want(0, "manage_proc", 2, info)); found != pid || isAuto || p.pid() != pid {
		t.Errorf("unregistered: pid %d, supervised %t, it runs as %d, want %d left running", found, isAuto, p.pid(), pid)
	}
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the other process with pid %s: %v", strconv.Itoa(other.Process.Pid), err)
	}
}

// TestJobBehindAnESBInSeparateRoles calls Job like an ESB in front, with
// dispatcher, worker and agent in separate processes and Redis.
func TestJobBehindAnESBInSeparateRoles(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	_, native := f.dispatcher("")
	f.worker("")
	f.waitListed(native, 1)
	ip, host := f.agents[0].ip, f.agents[0].host()
	header := http.Header{"Bk-Username": {"admin"}, "Bk-App-Code": {"bk_monitor"}}
	c := jobAt(t, native.url, jobForTheESB, ip)
	c.header = header
	p := f.procs.new(host, "scripted")
	c.want(0, "operate_proc", 0, p.scripted(t))
	if pid, isAuto := c.instance(c.want(0, "operate_proc", 2, p.scripted(t))); pid == 0 || pid != p.pid() || !isAuto {
		t.Errorf("status with pid %d, supervised %t; it runs as %d", pid, isAuto, p.pid())
	}
	c.want(0, "operate_proc", 9, p.scripted(t))

	c.prefix = jobForOldESBs
	p = f.procs.new(host, "managed")
	c.want(0, "operate_process", 0, p.inPlace())
	if _, isAuto := c.instance(c.want(0, "manage_proc", 2, p.inPlace())); isAuto || p.pid() == 0 {
		t.Errorf("unregistered: supervised %t, pid %d", isAuto, p.pid())
	}
	status, text, _ := c.call(http.MethodPost, c.prefix+"manage_proc", "", map[string]any{"bk_biz_id": 1, "op_type": 3})
	if status != http.StatusOK || !strings.Contains(string(text), "1241002") {
		t.Errorf("an op_type that manage_proc does not have: %d %s", status, text)
	}
}
