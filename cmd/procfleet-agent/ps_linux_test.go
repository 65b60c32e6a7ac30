package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/local"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/internal/testenv"
)

// ps runs the command in this process and returns its exit code.
func ps(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"ps"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

func TestPSShowsWhatTheRunningAgentLooksAfter(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	s := newSleeper(t)
	s.spec.Key, s.spec.CPULimit = "shop:sleeper", 50
	h.start("")
	t.Cleanup(h.child.Kill) // before the sleeper, which it would start again
	h.supervise([]*sleeper{s})

	var p local.Process
	var a local.Reply
	testenv.Eventually(t, patience, func() bool {
		code, out, _ := ps(t, "--data", h.data, "--json")
		if code != 0 { // it may not listen yet
			return false
		}
		a = local.Reply{}
		if err := json.Unmarshal([]byte(out), &a); err != nil || len(a.Processes) != 1 {
			t.Fatalf("said %q: %v", out, err)
		}
		p = a.Processes[0]
		return p.State == "running"
	}, "ps shows that the process runs")
	if p.Key != "shop:sleeper" || p.Desired != agentproto.DesiredUp || p.State != "running" || p.PID != s.process() || p.Since.IsZero() ||
		p.Limits.CPU != 50 || p.NextAction != local.NextWatch {
		t.Errorf("process %+v", p)
	}
	if a.Agent.PID != h.child.PID() || a.Agent.Host != hostName || a.Agent.Disconnected != "" {
		t.Errorf("agent %+v", a.Agent)
	}
	code, out, errs := ps(t, "--data", h.data)
	for _, want := range []string{"KEY", "shop:sleeper", "running", strconv.Itoa(p.PID), "cpu 50%", "start again if it ends"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit code %d, said %q %q, want %q in it", code, out, errs, want)
		}
	}

	// The agent replies while NATS is unavailable, and reports that.
	h.nats.Server.Shutdown()
	testenv.Eventually(t, patience, func() bool {
		code, out, errs = ps(t, "--data", h.data)
		return code == 0 && strings.Contains(out, "shop:sleeper") && strings.Contains(errs, "is not connected to NATS")
	}, "the agent answers without NATS")

	h.child.Kill()
	code, _, errs = ps(t, "--data", h.data)
	if code != command.ExitFailed || !strings.Contains(errs, "no agent runs there") || !strings.Contains(errs, "--data") {
		t.Errorf("of a killed agent: exit code %d, said %q", code, errs)
	}
}

func TestPSFindsTheAgentOfUp(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	up := h.data
	h.data = filepath.Join(up, "agent")
	h.start("")
	testenv.Eventually(t, patience, func() bool {
		code, out, _ := ps(t, "--data", up)
		return code == 0 && strings.Contains(out, "no processes")
	}, "the agent answers")
	h.child.Signal(syscall.SIGTERM)
	h.child.Wait(t, time.Minute)
	if code, _, errs := ps(t, "--data", up); code != command.ExitFailed || !strings.Contains(errs, up+": no agent runs there") {
		t.Errorf("of an agent that was stopped: exit code %d, said %q", code, errs)
	}
}

// The environment belongs to the process, so this test is not parallel.
func TestPSTakesItsSettingsFromTheEnvironment(t *testing.T) {
	t.Setenv("PROCFLEET_DATA", filepath.Join(t.TempDir(), "elsewhere"))
	if code, _, errs := ps(t); code != command.ExitFailed || !strings.Contains(errs, "elsewhere") {
		t.Errorf("exit code %d, said %q", code, errs)
	}
	if code, _, errs := ps(t, "surplus"); code != command.ExitUsage || !strings.Contains(errs, "surplus") {
		t.Errorf("exit code %d, said %q", code, errs)
	}
}
