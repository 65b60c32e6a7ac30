//go:build linux

package transport

import (
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/internal/testenv/tlstest"
)

// startOn starts a system on a Redis that requires certificates of ca. ask runs a
// command that queries the process of one host.
func startOn(t *testing.T, url string, ca *tlstest.CA) (ask func() commandOutput) {
	t.Helper()
	dispatcher := testenv.FreeAddress(t)
	args := join([]string{"up", "--http", dispatcher, "--redis", url, "--data", t.TempDir()}, files("redis", ca, ca.Issue(t, "up")))
	up := testenv.StartChild(t, nil, program(t), args...)
	up.WaitHTTP(t, patience, "http://"+dispatcher+"/readyz")
	spec := someSpec(t)
	return func() commandOutput {
		return run(t, "op", "status", "--server", "http://"+dispatcher, "--host", "0:127.0.0.1", "-f", spec, "--wait")
	}
}

// refusesWithoutCertificate checks that the server requires TLS with a client
// certificate.
func refusesWithoutCertificate(t *testing.T, url string, ca *tlstest.CA) {
	t.Helper()
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"no certificate":    {[]string{"--redis", url, "--redis-ca", ca.File}, "certificate required"},
		"the CA is unknown": {[]string{"--redis", url}, "certificate signed by unknown authority"},
	} {
		stranger := testenv.StartChild(t, nil, program(t), join([]string{"up", "--http", testenv.FreeAddress(t), "--agent=false", "--data", t.TempDir()}, c.args)...)
		stranger.WaitOutput(t, patience, c.says)
		t.Logf("%s: connection rejected", name)
		stranger.Kill()
	}
}

// TestSentinelAndFailOverOverMutualTLS checks that a task is accepted and finishes
// before and after a fail-over. Sentinel, master and replica accept only mutual
// TLS.
func TestSentinelAndFailOverOverMutualTLS(t *testing.T) {
	t.Parallel()
	ca := tlstest.NewCA(t, "fleet")
	own := ca.Issue(t, "redis")
	server := redistest.TLS{CA: ca.File, Cert: own.Cert, Key: own.Key}
	master := redistest.Start(t, server.Args(t)...)
	redistest.Start(t, append(server.Args(t), "--replicaof", strings.Replace(master.TLSAddr, ":", " ", 1))...)
	sentinel := redistest.StartSentinel(t, "fleet", master, 1, server.Args(t)...)
	url := "rediss://" + sentinel.TLSAddr + "/0?master_name=fleet"
	ask := startOn(t, url, ca)
	if got := ask(); got.code != exitDown {
		t.Fatalf("before the fail-over: %+v", got)
	}
	refusesWithoutCertificate(t, url, ca)

	master.Stop(t)
	testenv.Eventually(t, patience, func() bool {
		got := ask()
		t.Logf("%+v", got)
		return got.code == exitDown
	}, "a task finishes on the replica that took over")
}

// TestClusterOverMutualTLS checks a cluster whose nodes accept only mutual TLS.
// procfleet connects to each node at its own address.
func TestClusterOverMutualTLS(t *testing.T) {
	t.Parallel()
	ca := tlstest.NewCA(t, "fleet")
	own := ca.Issue(t, "redis")
	nodes := redistest.StartTLSCluster(t, 3, redistest.TLS{CA: ca.File, Cert: own.Cert, Key: own.Key})
	url := "rediss://" + nodes[0].TLSAddr + "?cluster=true"
	ask := startOn(t, url, ca)
	for range 8 { // the slots of the tasks are on all nodes
		if got := ask(); got.code != exitDown {
			t.Fatalf("%+v", got)
		}
	}
	refusesWithoutCertificate(t, url, ca)
}
