package main

import (
	"fmt"
	"os/exec"
	"regexp"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

func TestAWorkerCanBeObserved(t *testing.T) {
	t.Parallel()
	redis, env := redistest.Start(t), testenv.StartNATS(t)
	address := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	worker := testenv.StartChild(t, nil, testenv.BuildBinary(t, "./cmd/procfleet"), "worker",
		"--observe", address, "--nats", env.URL, "--redis", "redis://"+redis.Addr+"/0")
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		worker.WaitHTTP(t, startTimeout, "http://"+address+path)
	}
	worker.Signal(syscall.SIGTERM)
	if code := worker.Wait(t, startTimeout); code != 0 {
		t.Errorf("exit %d after SIGTERM, want 0", code)
	}
}

// TestBenchFanout runs dispatcher, worker and simulated agents as separate
// processes on a real Redis; what it measured is not judged.
func TestBenchFanout(t *testing.T) {
	t.Parallel()
	redis, env := redistest.Start(t), testenv.StartNATS(t)
	cmd := exec.Command(testenv.BuildBinary(t, "./cmd/procfleet"), "bench", "fanout",
		"--hosts", "1,300", "--runs", "1", "--nats", env.URL, "--redis", "redis://"+redis.Addr+"/0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, row := range []string{`RATIO`, `(?m)^ +1( +[\d.]+){8}$`, `(?m)^ +300( +[\d.]+){8}$`} {
		if !regexp.MustCompile(row).Match(out) {
			t.Errorf("no %s in\n%s", row, out)
		}
	}
}
