//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
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
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// business is a system with six hosts in three modules of business 2, and one
// definition of the process web for all of them.
type business struct {
	*up
	hosts []proc // processes of the hosts, two per module
	web   int    // id in the catalog
}

// ownFolder refers to the working directory of the reading process. All agents of
// the test share a machine and one definition, and each runs in its own folder.
const ownFolder = "/proc/self/cwd"

var modules = []string{"front", "api", "jobs"}

// newBusiness starts a system and its agents on loopback addresses from 127.0.0.11
// on, each in the folder of its process.
func newBusiness(t *testing.T, args ...string) *business {
	t.Helper()
	nats := testenv.FreeAddress(t)
	b := &business{up: newUp(t, append([]string{"--agent=false", "--nats-listen", nats}, args...)...)}
	b.start()
	procs := newProcs(t)
	for i := range 2 * len(modules) {
		ip := fmt.Sprintf("127.0.0.%d", 11+i)
		p := procs.new("0:"+ip, "web")
		b.hosts = append(b.hosts, p)
		cmd := exec.Command(testenv.BuildBinary(t, "./cmd/procfleet-agent"), "--nats", "nats://"+nats, "--identity", b.keys().identity("0:"+ip), "--data", t.TempDir())
		cmd.Dir, cmd.Env = p.dir, os.Environ()
		testenv.StartCommand(t, cmd)
	}
	testenv.Eventually(t, startTimeout, func() bool { return len(b.c.hosts()) == len(b.hosts) }, "all agents are listed")
	return b
}

// legacy calls the legacy CMDB process API, which must succeed.
func (b *business) legacy(method, path string, body any, into any) {
	b.t.Helper()
	c := *b.c
	c.header = http.Header{"Bk_user": {"admin"}, "Http_blueking_supplier_id": {"0"}}
	status, answer, ok := c.call(method, "/api/v3/proc/"+path, "", body)
	if !ok || status != http.StatusOK || json.Unmarshal(answer, into) != nil {
		b.t.Fatalf("%s %s: %d %s", method, path, status, answer)
	}
}

// define stores the topology with the hosts of the modules, and the process bound
// to all modules.
func (b *business) define() {
	b.t.Helper()
	sets := []map[string]any{{"name": "s1"}}
	var all []map[string]any
	for i, module := range modules {
		all = append(all, map[string]any{"name": module, "hosts": []string{b.hosts[2*i].host, b.hosts[2*i+1].host}})
	}
	sets[0]["modules"] = all
	if status, answer, ok := b.c.call(http.MethodPut, "/v1/topology/2", "", map[string]any{"sets": sets}); !ok || status != http.StatusOK {
		b.t.Fatalf("topology: %d %s", status, answer)
	}
	var made struct {
		ID int `json:"bk_process_id"`
	}
	b.legacy(http.MethodPost, "0/2", map[string]any{
		"bk_process_name": "web", "bk_func_name": "web", "work_path": ownFolder, "pid_file": ownFolder + "/web.pid",
		"start_cmd": "echo ran >> starts; ./web 3600 & echo $! > web.pid", "auto_start": true, "timeout": 20,
	}, &made)
	b.web = made.ID
	for _, module := range modules {
		b.legacy(http.MethodPut, fmt.Sprintf("module/0/2/%d/%s", b.web, module), nil, &struct{}{})
	}
}

// run runs a command of procfleet to its end and returns its output.
func (b *business) run(code int, args ...string) string {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), finishTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.program, append(args, "--server", b.c.url)...)
	out, err := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != code {
		b.t.Fatalf("procfleet %v: exit %d (%v), want %d\n%s", args, got, err, code, out)
	}
	return string(out)
}

// drifted returns the lines of the process status for hosts on which the process
// does not run.
func (b *business) drifted() []string {
	b.t.Helper()
	var d struct {
		Hosts []struct{ Host, State string }
	}
	b.c.get(fmt.Sprintf("/v1/processes/2/%d/status", b.web), &d)
	var words []string
	for _, h := range d.Hosts {
		if h.State != "running" {
			words = append(words, h.Host+" "+h.State)
		}
	}
	return words
}

func (b *business) becomes(want ...string) {
	b.t.Helper()
	var got []string
	testenv.Eventually(b.t, finishTimeout, func() bool {
		got = b.drifted()
		return slices.Equal(got, want)
	}, fmt.Sprintf("drifted are %v", want))
}

// TestAProcessIsOperatedByName operates a process that a business defines once:
// it is started on the hosts of its modules, dies unsupervised on one host, appears
// as drift, and is repaired by a restart of the host's module.
func TestAProcessIsOperatedByName(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) *business{
		"embedded": func(t *testing.T) *business { t.Helper(); return newBusiness(t) },
		"Redis":    func(t *testing.T) *business { t.Helper(); return newBusiness(t, "--redis", redistest.Start(t).URL()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t)
			b.define()
			lifeByMeaning(t, b)
			catalogueInAFile(t, b)
		})
	}
}

func lifeByMeaning(t *testing.T, b *business) {
	t.Helper()
	if out := b.run(3, "process", "status", "web", "--biz", "2"); !strings.Contains(out, "web (process "+strconv.Itoa(b.web)+"): 0 of 6 hosts running, 6 down") {
		t.Errorf("status before the start:\n%s", out)
	}
	b.run(0, "op", "start", "--biz", "2", "--process", "web", "--wait")
	for _, p := range b.hosts {
		if p.pid() == 0 || p.starts() != 1 {
			t.Errorf("on %s the process was started %d times and has pid %d", p.host, p.starts(), p.pid())
		}
	}
	b.becomes()

	// Release the process of one host and kill it, so that no agent restarts it.
	lost, mate := b.hosts[3], b.hosts[2]
	b.run(0, "op", "release", "--registered", "--namespace", "2", "--name", "web", "--host", lost.host, "--wait")
	b.becomes(lost.host + " unsupervised")
	if err := syscall.Kill(lost.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.becomes(lost.host + " down")
	out := b.run(3, "process", "status", "web", "--biz", "2")
	for _, want := range []string{"5 of 6 hosts running, 1 down\n", "s1/api    2      1"} {
		if !strings.Contains(out, want) {
			t.Errorf("without %q:\n%s", want, out)
		}
	}

	var before []int
	for _, p := range b.hosts {
		before = append(before, p.pid())
	}
	b.run(0, "op", "restart", "--biz", "2", "--process", "web", "--module", "api", "--wait")
	b.becomes()
	if out := b.run(0, "process", "status", "web", "--biz", "2"); !strings.Contains(out, "6 of 6 hosts running\n") {
		t.Errorf("final status:\n%s", out)
	}
	for i, p := range b.hosts {
		restarted := p == lost || p == mate
		if now := p.pid(); now == 0 || (now != before[i]) != restarted {
			t.Errorf("on %s pid %d became %d", p.host, before[i], now)
		}
	}
}

// catalogueInAFile imports the example twice and exports it. The second import must
// change nothing, and the export must equal the example.
func catalogueInAFile(t *testing.T, b *business) {
	t.Helper()
	file := filepath.Join(testenv.ModuleRoot(), "docs", "examples", "processes.yaml")
	for _, step := range []struct{ flag, says string }{
		{"--plan=true", "planned: 2 created, 0 changed, 0 unchanged"},
		{"--plan=false", "2 created, 0 changed, 0 unchanged"},
		{"--plan=false", "0 created, 0 changed, 2 unchanged"},
	} {
		if out := b.run(0, "process", "import", "--biz", "3", "-f", file, step.flag); !strings.HasSuffix(out, step.says+"\n") {
			t.Errorf("the output of the import lacks %q:\n%s", step.says, out)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.run(0, "process", "export", "--biz", "3"); got != string(want) {
		t.Errorf("second export:\n%s", got)
	}
	if out := b.run(0, "process", "export", "--biz", "4"); out != "" {
		t.Errorf("export of a business without processes:\n%s", out)
	}
}
