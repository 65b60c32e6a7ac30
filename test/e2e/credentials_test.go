//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// TestAnAgentReportsAnUnusableIdentityAndReadsANewOne starts an agent with
// an expired NATS user, then replaces its identity file by the identity of another
// host, and then by its own.
func TestAnAgentReportsAnUnusableIdentityAndReadsANewOne(t *testing.T) {
	t.Parallel()
	listen := testenv.FreeAddress(t)
	u := newUp(t, "--agent=false", "--nats-listen", listen)
	auth := filepath.Join(u.data, "nats-auth")
	u.args = append(u.args, "--nats-auth", auth)
	enroll := func(host string, more ...string) []byte {
		t.Helper()
		args := append([]string{"enroll", "--create", "--data", u.data, "--host", host}, more...)
		cmd := exec.Command(u.program, args...)
		cmd.Stderr = t.Output()
		text, err := cmd.Output()
		if err != nil {
			t.Fatalf("procfleet %v: %v", args, err)
		}
		return text
	}
	const host, other = "3:10.0.0.1", "3:10.0.0.2"
	ofOther := enroll(other)
	u.start()
	keys, identity := u.keys(), tempFile(t, "identity.yaml")
	keys.replace(identity, enroll(host, "--valid", "5s"))
	agent := testenv.StartChild(t, nil, testenv.BuildBinary(t, "./cmd/procfleet-agent"),
		"--nats", "nats://"+listen, "--identity", identity, "--data", tempFile(t, "agent"))
	agent.WaitOutput(t, startTimeout, "the credentials for NATS expired at")

	keys.replace(identity, ofOther)
	agent.WaitOutput(t, startTimeout, "it is the identity of host "+other+", and this agent runs for "+host)
	if hosts := u.c.hosts(); slices.Contains(hosts, other) {
		t.Errorf("the agent acts as the other host: %v", hosts)
	}

	if err := os.Remove(identity); err != nil {
		t.Fatal(err)
	}
	agent.WaitOutput(t, startTimeout, "no such file or directory")
	keys.replace(identity, enroll(host))
	agent.WaitOutput(t, startTimeout, "key file reloaded")
	agent.WaitOutput(t, startTimeout, "accepting commands")
	testenv.Eventually(t, startTimeout, func() bool { return slices.Contains(u.c.hosts(), host) }, "the host is listed")
	u.succeeds(operation("start", newProcs(t).grid([]string{host}, 1, "renewed")))
}

// TestStolenServerCredentialsAreRevoked revokes one of two users of the servers'
// role by its name. NATS must disconnect it, and it must reconnect with its new
// credentials.
func TestStolenServerCredentialsAreRevoked(t *testing.T) {
	t.Parallel()
	listen := testenv.FreeAddress(t)
	auth := tempFile(t, "nats-auth")
	u := newUp(t, "--agent=false", "--nats-listen", listen, "--nats-auth", auth)
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(u.program, append([]string{"nats-auth"}, append(args, "--nats-auth", auth)...)...)
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("procfleet %v: %v", args, err)
		}
		return string(out)
	}
	run("init")
	u.start()
	worker := testenv.StartChild(t, nil, u.program, "worker", "--nats", "nats://"+listen, "--nats-creds", filepath.Join(auth, "server.creds"),
		"--redis", redistest.Start(t).URL(), "--fleet-key", filepath.Join(u.data, "fleet.key"))
	worker.WaitOutput(t, startTimeout, "connected")
	other, err := nats.Connect("nats://"+listen, nats.UserCredentialBytes([]byte(run("user", "server", "--name", "other"))), nats.NoReconnect())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	stolen, err := os.ReadFile(filepath.Join(auth, "server.creds"))
	if err != nil {
		t.Fatal(err)
	}

	run("revoke", "--user", "server")
	worker.WaitOutput(t, startTimeout, "connection lost")
	worker.WaitOutput(t, startTimeout, "reconnected")
	if conn, err := nats.Connect("nats://"+listen, nats.UserCredentialBytes(stolen)); err == nil {
		conn.Close()
		t.Error("the stolen credentials still connect")
	}
	if err := other.FlushTimeout(startTimeout); err != nil {
		t.Errorf("another user of the same role: %v", err)
	}
	run("revoke", "--creds", filepath.Join(auth, "server.creds"))
	testenv.Eventually(t, startTimeout, func() bool { return strings.Count(worker.Output(), "reconnected") == 2 }, "the worker is connected again")
}
