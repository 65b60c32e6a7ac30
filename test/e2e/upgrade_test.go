//go:build linux

package e2e

import (
	"encoding/json"
	"errors"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
)

// releaseBefore is the last commit whose agents publish results to a stream.
const releaseBefore = "5c05f04"

// resultsStream is the stream of results in that release.
const resultsStream = "PROCFLEET_RESULTS"

// ofReleaseBefore returns the same fleet for parts of the previous release, without
// agents.
func (f *fleet) ofReleaseBefore() *fleet {
	f.t.Helper()
	older := *f
	older.agents = nil
	older.programs.procfleet, older.programs.agent = buildReleaseBefore(f.t)
	older.programs.simulator, older.programs.ready = older.programs.procfleet, "taking commands"
	return &older
}

// buildReleaseBefore builds the programs from the history of the repository.
func buildReleaseBefore(t *testing.T) (procfleet, agent string) {
	t.Helper()
	sources, programs := t.TempDir(), t.TempDir()
	run := func(dir, name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build the previous release, commit %s (needs git and a clone with its history: git fetch --unshallow): %s: %v\n%s", releaseBefore, cmd, err, out)
		}
	}
	archive := filepath.Join(sources, "sources.tar")
	run(testenv.ModuleRoot(), "git", "archive", "--output", archive, releaseBefore)
	run(sources, "tar", "-xf", archive)
	run(sources, "go", "build", "-buildvcs=false", "-o", programs+"/", "./cmd/procfleet", "./cmd/procfleet-agent")
	return filepath.Join(programs, "procfleet"), filepath.Join(programs, "procfleet-agent")
}

// TestUpgradeFromThePreviousReleaseLosesNoResult upgrades a fleet under load in the
// order of docs/how-to/upgrade.md: first the worker, which finds results of small
// and big tasks in the stream, then the dispatcher, then one agent after the other.
func TestUpgradeFromThePreviousReleaseLosesNoResult(t *testing.T) {
	t.Parallel()
	u := startUpgrade(t)

	small, big := u.procs.grid(u.names, 1, "small"), u.procs.grid(u.names, 1, "big")
	smallTask, bigTask := u.c.submit(waitingStart(small, 0)), u.c.submit(waitingStart(big, light))
	u.accepted(smallTask)
	u.accepted(bigTask)
	stop(t, u.worker)
	release(t, small, big)
	u.untilWaiting(smallTask, bigTask)

	u.worker = u.newer.worker("")
	u.ends(smallTask, small, 0)
	u.ends(bigTask, big, light)
	u.streamRemoved()

	// An older dispatcher creates the stream again, while older and newer agents
	// run.
	restarted := u.procs.grid(u.names, 1, "restarted")
	u.runs(restarted)
	u.dispatcher.Kill()
	u.dispatcher, u.c = u.older.dispatcher("", "--slack", "10m")
	u.c.older = true
	u.runs(u.procs.grid(u.names, 1, "olderdispatcher"))
	restarted[0].kill(t)
	stop(t, u.dispatcher)
	u.dispatcher, u.c = u.newer.dispatcher("", "--slack", "10m")
	u.runs(u.procs.grid(u.names, 1, "newerdispatcher"))
	u.waitEvents("restarted", u.early, restarted[0])

	// Each agent has a result that it could not deliver before its upgrade.
	for i, a := range u.older.agents {
		held := u.procs.grid(u.names[i:i+1], 1, "held")
		task := u.c.submit(waitingStart(held, 0))
		u.accepted(task)
		u.worker.Freeze(t)
		release(t, held)
		testenv.Eventually(t, finishTimeout, func() bool { return started(held) == 1 }, "the start command ran")
		a.stop()
		a.fleet = u.newer
		a.start()
		u.worker.Signal(syscall.SIGCONT)
		a.waitReady()
		u.ends(task, held, 0)
		u.runs(u.procs.grid(u.names, 1, "upgraded"+string(rune('a'+i))))
	}
	u.newer.worker("") // a worker drains the stream at its start and once a minute
	u.streamRemoved()
	for _, p := range u.started {
		want := 1
		if p == u.early || p == restarted[0] {
			want = 2 // the process was killed
		}
		if p.starts() != want {
			t.Errorf("the start command of %s on %s ran %d times, want %d", p.name, p.host, p.starts(), want)
		}
	}
}

// light is the number of simulated hosts that makes a task big.
const light = 300

// upgrade is a fleet with parts of two releases.
type upgrade struct {
	t            *testing.T
	newer, older *fleet
	procs        *procs
	names        []string // hosts with real agents
	dispatcher   *testenv.Child
	worker       *testenv.Child
	c            *client
	js           jetstream.JetStream
	early        proc   // restarted before the upgrade
	started      []proc // all started processes
}

// startUpgrade starts a fleet of the previous release, in which a process was
// restarted.
func startUpgrade(t *testing.T) *upgrade {
	t.Helper()
	u := &upgrade{t: t, newer: newFleet(t, 0)}
	u.older, u.procs = u.newer.ofReleaseBefore(), u.newer.procs
	u.older.addAgents(2)
	u.names = u.older.hosts(2)
	u.dispatcher, u.c = u.older.dispatcher("", "--slack", "10m")
	u.c.older = true
	u.worker = u.older.worker("")
	u.older.simulate(light, "0s")
	u.older.waitListed(u.c, light+len(u.names))
	u.js = u.older.jetStream()
	all := u.procs.grid(u.names, 1, "early")
	u.runs(all)
	u.early = all[0]
	u.early.kill(t)
	u.waitEvents("restarted", u.early)
	return u
}

// waitingStart returns a task that starts processes whose commands wait, with
// further items on simulated hosts.
func waitingStart(all []proc, more int) map[string]any {
	var operations []map[string]any
	for _, p := range all {
		operations = append(operations, map[string]any{"action": "start", "process": p.waiting(), "hosts": []string{p.host}})
	}
	if more > 0 {
		operations = append(operations, map[string]any{"action": "start", "process": simulatedSpec(), "hosts": simulatedHosts(more)})
	}
	return map[string]any{"operations": operations}
}

func release(t *testing.T, groups ...[]proc) {
	t.Helper()
	for _, p := range slices.Concat(groups...) {
		p.release(t)
	}
}

func stop(t *testing.T, role *testenv.Child) {
	t.Helper()
	role.Signal(syscall.SIGTERM)
	role.Wait(t, startTimeout)
}

// accepted waits until agents have accepted a task, and only the waiting items are
// open.
func (u *upgrade) accepted(task string) {
	u.t.Helper()
	testenv.Eventually(u.t, finishTimeout, func() bool {
		at := u.c.task(task)
		return at.Counts["pending"] == 0 && at.Items-at.Counts["delivered"] == at.Counts["succeeded"] && at.Counts["delivered"] <= len(u.names)
	}, "agents have accepted task "+task)
}

// untilWaiting waits until the stream has the results of all hosts with real agents
// for tasks in both lanes.
func (u *upgrade) untilWaiting(small, big string) {
	u.t.Helper()
	want := map[string]int{"s " + small: len(u.names), "b " + big: len(u.names)}
	testenv.Eventually(u.t, finishTimeout, func() bool {
		return maps.Equal(want, u.waiting())
	}, "the results of both tasks wait in the stream")
}

// waiting counts the results in the stream by lane and task.
func (u *upgrade) waiting() map[string]int {
	u.t.Helper()
	stream, err := u.js.Stream(u.t.Context(), resultsStream)
	if err != nil {
		u.t.Fatal(err)
	}
	state := stream.CachedInfo().State
	counts := map[string]int{}
	for at := max(state.FirstSeq, 1); at <= state.LastSeq && state.Msgs > 0; at++ {
		msg, err := stream.GetMsg(u.t.Context(), at)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // a worker has collected it
		}
		var results agentproto.Results
		if err == nil {
			err = agentproto.Decode(msg.Data, agentproto.TypeResults, &results)
		}
		if err != nil {
			u.t.Fatal(err)
		}
		counts[strings.Split(msg.Subject, ".")[2]+" "+results.Task] += len(results.Results)
	}
	return counts
}

// streamRemoved waits until the stream does not exist.
func (u *upgrade) streamRemoved() {
	u.t.Helper()
	testenv.Eventually(u.t, finishTimeout, func() bool {
		_, err := u.js.Stream(u.t.Context(), resultsStream)
		return errors.Is(err, jetstream.ErrStreamNotFound)
	}, "the stream of results is removed")
}

// ends waits for a task and checks that it started the processes once, and
// succeeded on the simulated hosts.
func (u *upgrade) ends(task string, all []proc, more int) {
	u.t.Helper()
	u.started = append(u.started, all...)
	end := u.c.wait(task)
	if end.Counts["succeeded"] != len(all)+more {
		u.t.Errorf("task %s: %v", task, end.Counts)
	}
	results := slices.DeleteFunc(u.c.results(task, len(all)+more), func(r result) bool { return !slices.Contains(u.names, r.Host) })
	verifyResults(u.t, results, all)
	u.older.waitFinishedEvent(task)
}

// runs starts processes on the real agents, and operates on all simulated ones.
func (u *upgrade) runs(all []proc) {
	u.t.Helper()
	release(u.t, all)
	u.ends(u.c.submit(waitingStart(all, 0)), all, 0)
	if end := u.c.wait(u.c.submit(waitingStart(nil, light))); end.Counts["succeeded"] != light {
		u.t.Errorf("%d simulated hosts: %v", light, end.Counts)
	}
}

// waitEvents waits until the events contain one of a kind for each process.
func (u *upgrade) waitEvents(kind string, all ...proc) {
	u.t.Helper()
	for _, p := range all {
		testenv.Eventually(u.t, finishTimeout, func() bool {
			var page struct {
				Events []struct{ Kind, Host, Name string }
			}
			status, data, ok := u.c.call("GET", "/v1/events?kind="+kind, "", nil)
			if !ok || status != 200 || json.Unmarshal(data, &page) != nil {
				return false
			}
			for _, e := range page.Events {
				if e.Host == p.host && e.Name == p.name {
					return true
				}
			}
			return false
		}, "there is an event "+kind+" of "+p.name+" on "+p.host)
	}
}
