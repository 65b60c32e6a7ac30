//go:build linux

package transport

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/internal/testenv/tlstest"
)

// files returns the TLS flags of a client.
func files(of string, ca *tlstest.CA, own tlstest.Pair) []string {
	return []string{"--" + of + "-ca", ca.File, "--" + of + "-cert", own.Cert, "--" + of + "-key", own.Key}
}

// listening returns the TLS flags of a listener.
func listening(of string, ca *tlstest.CA, own tlstest.Pair) []string {
	return []string{"--" + of + "-client-ca", ca.File, "--" + of + "-cert", own.Cert, "--" + of + "-key", own.Key}
}

func join(lists ...[]string) []string {
	var all []string
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// startTLSBroker starts a nats-server that requires client certificates of ca.
func startTLSBroker(t *testing.T, ca *tlstest.CA, own tlstest.Pair) (address string) {
	t.Helper()
	address = testenv.FreeAddress(t)
	_, port, _ := net.SplitHostPort(address) // address has a port
	child := testenv.StartChild(t, nil, testenv.BuildBinary(t, "github.com/nats-io/nats-server/v2"), "-a", "127.0.0.1", "-p", port,
		"-js", "-sd", t.TempDir(), "--tls", "--tlscert", own.Cert, "--tlskey", own.Key, "--tlscacert", ca.File, "--tlsverify")
	child.WaitOutput(t, patience, "Server is ready")
	return address
}

// startTLSRedis starts a redis-server with such a port.
func startTLSRedis(t *testing.T, ca *tlstest.CA, own tlstest.Pair) (address string) {
	t.Helper()
	address = testenv.FreeAddress(t)
	_, port, _ := net.SplitHostPort(address) // address has a port
	redistest.Start(t, "--tls-port", port, "--tls-cert-file", own.Cert, "--tls-key-file", own.Key, "--tls-ca-cert-file", ca.File, "--tls-auth-clients", "yes")
	return address
}

// TestSystemWithMutualTLS starts dispatcher, worker, agent, commands, NATS and
// Redis, each with a certificate. Clients without a certificate must be rejected.
func TestSystemWithMutualTLS(t *testing.T) {
	t.Parallel()
	ca, foreign := tlstest.NewCA(t, "fleet"), tlstest.NewCA(t, "foreign")
	own := func(name string) tlstest.Pair { return ca.Issue(t, name) }
	broker, redis, dispatcher, status := startTLSBroker(t, ca, own("nats")), startTLSRedis(t, ca, own("redis")), testenv.FreeAddress(t), testenv.FreeAddress(t)
	backends := func(role string) []string {
		return join([]string{"--nats", "nats://" + broker, "--redis", "rediss://" + redis}, files("nats", ca, own(role)), files("redis", ca, own(role)))
	}
	person := own("person")
	testenv.StartChild(t, nil, program(t), join([]string{"dispatcher", "--http", dispatcher}, backends("dispatcher"), listening("http", ca, own("door")))...)
	testenv.StartChild(t, nil, program(t), join([]string{"worker", "--status-http", status}, backends("worker"), listening("status-http", ca, own("status")))...)
	ip := "10.99.9.1"
	agent := testenv.BuildBinary(t, "./cmd/procfleet-agent")
	testenv.StartChild(t, nil, agent, join([]string{"--nats", "nats://" + broker, "--ip", ip, "--data", t.TempDir()}, files("nats", ca, own("agent")))...)
	stranger := testenv.StartChild(t, nil, agent, join([]string{"--nats", "nats://" + broker, "--ip", "10.99.9.2", "--data", t.TempDir()}, files("nats", foreign, foreign.Issue(t, "agent")))...)
	stranger.WaitOutput(t, patience, "certificate signed by unknown authority")

	for _, url := range []string{"https://" + dispatcher + "/readyz", "https://" + status + "/readyz"} {
		testenv.Eventually(t, patience, func() bool {
			return run(t, join([]string{"healthcheck", url}, files("server", ca, person))...).code == 0
		}, url+" is ready for those with a certificate")
		if got := run(t, "healthcheck", url); got.code != 1 || !strings.Contains(got.err, "certificate required") {
			t.Errorf("%s without a certificate: %+v", url, got)
		}
	}
	server := []string{"--server", "https://" + dispatcher}
	testenv.Eventually(t, patience, func() bool {
		got := run(t, join([]string{"op", "status", "--host", "0:" + ip, "-f", someSpec(t), "--wait"}, server, files("server", ca, person))...)
		t.Logf("%+v", got)
		return got.code == exitDown
	}, "the agent answers a command's question")
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"no certificate":    {[]string{"--server-ca", ca.File}, "certificate required"},
		"a foreign one":     {files("server", ca, foreign.Issue(t, "person")), "certificate"},
		"the CA is unknown": {nil, "certificate signed by unknown authority"},
		"without TLS":       {[]string{"--server", "http://" + dispatcher}, "HTTP request to an HTTPS server"},
	} {
		if got := run(t, join([]string{"task", "list"}, server, c.args)...); got.code == 0 || !strings.Contains(got.err, c.says) {
			t.Errorf("%s: %+v; want … %s …", name, got, c.says)
		}
	}
}

func someSpec(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(name, []byte("namespace: transport\nname: nothing\nproc_name: nothing\nsetup_path: /nonexistent\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestCertificatesAreRenewedWhileTheSystemRuns replaces the CA and all its
// certificates while the system runs. A new agent must then be able to connect.
func TestCertificatesAreRenewedWhileTheSystemRuns(t *testing.T) {
	t.Parallel()
	ca := tlstest.NewCA(t, "first")
	server, first := ca.Issue(t, "server"), ca.Issue(t, "first")
	dispatcher, bus := testenv.FreeAddress(t), testenv.FreeAddress(t)
	data := filepath.Join(t.TempDir(), "data")
	up := testenv.StartChild(t, nil, program(t), join([]string{"up", "--http", dispatcher, "--nats-listen", bus, "--data", data, "--agent=false"},
		listening("http", ca, server), listening("nats-listen", ca, server))...)
	ask := func(by *tlstest.CA, own tlstest.Pair) commandOutput {
		return run(t, join([]string{"healthcheck", "https://" + dispatcher + "/readyz"}, files("server", by, own))...)
	}
	testenv.Eventually(t, patience, func() bool { return ask(ca, first).code == 0 }, "ready with the first certificates")
	agent := join([]string{"--nats", "nats://" + bus, "--data", t.TempDir()}, files("nats", ca, first))
	binary := testenv.BuildBinary(t, "./cmd/procfleet-agent")
	enroll := func(host string) string {
		file := filepath.Join(t.TempDir(), "identity.yaml")
		if got := run(t, "enroll", "--data", data, "--host", host, "--out", file); got.code != 0 {
			t.Fatalf("%+v", got)
		}
		return file
	}
	old := testenv.StartChild(t, nil, binary, append(agent, "--identity", enroll("0:10.99.8.1"))...)
	old.WaitOutput(t, patience, "accepting commands")

	next := tlstest.NewCA(t, "second")
	second := next.Issue(t, "second")
	renewed := next.Issue(t, "server")
	tlstest.Replace(t, server.Key, renewed.Key)
	testenv.Eventually(t, patience, func() bool { ask(ca, first); return strings.Contains(up.Output(), "keeping the previous certificates") }, "an incomplete renewal is logged")
	tlstest.Replace(t, server.Cert, renewed.Cert)
	tlstest.Replace(t, ca.File, next.File)
	testenv.Eventually(t, patience, func() bool { return ask(next, second).code == 0 }, "the second certificates are in use")
	if got := ask(next, first); got.code == 0 {
		t.Errorf("the first certificate is still accepted: %+v", got)
	}
	fresh := testenv.StartChild(t, nil, binary, join([]string{"--nats", "nats://" + bus, "--identity", enroll("0:10.99.8.2"), "--data", t.TempDir()}, files("nats", next, second))...)
	fresh.WaitOutput(t, patience, "accepting commands")
	select {
	case <-old.Done():
		t.Error("the connected agent has ended")
	default:
	}
}

// TestUnusableCertificatesAreReportedAtTheStart checks that a role with an
// unusable certificate names flag, file and cause, and exits with the code of wrong
// settings.
func TestUnusableCertificatesAreReportedAtTheStart(t *testing.T) {
	t.Parallel()
	ca := tlstest.NewCA(t, "fleet")
	good, other, expired := ca.Issue(t, "good"), ca.Issue(t, "other"), ca.Issue(t, "expired", tlstest.Expired)
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"expired":       {[]string{"dispatcher", "--http-cert", expired.Cert, "--http-key", expired.Key}, []string{"--http-cert", expired.Cert, "expired at"}},
		"another's key": {[]string{"worker", "--nats-cert", good.Cert, "--nats-key", other.Key}, []string{"--nats-key", other.Key, "is not the key of"}},
		"no file":       {[]string{"worker", "--redis", "rediss://127.0.0.1:1", "--redis-ca", "/no/such.pem"}, []string{"--redis-ca", "/no/such.pem", "no such file"}},
		"no TLS":        {[]string{"worker", "--redis-ca", ca.File}, []string{"--redis", "rediss://"}},
		"half a pair":   {[]string{"up", "--http-cert", good.Cert}, []string{"--http-key", "is missing"}},
		"nobody's":      {[]string{"up", "--http-client-ca", ca.File}, []string{"--http-client-ca", "without a certificate of this server"}},
		"no address":    {[]string{"up", "--nats-listen-cert", good.Cert, "--nats-listen-key", good.Key}, []string{"--nats-listen"}},
		"no status":     {[]string{"agent", "--ip", "10.0.0.1", "--status-http-cert", good.Cert, "--status-http-key", good.Key}, []string{"--status-http"}},
		"not https":     {[]string{"task", "list", "--server-ca", ca.File}, []string{"--server", "https://"}},
		"no collector":  {[]string{"worker", "--otlp", "http://127.0.0.1:1", "--otlp-ca", ca.File}, []string{"--otlp", "https://"}},
		"no login":      {[]string{"dispatcher", "--login-url-ca", ca.File}, []string{"--login-url", "https://"}},
		"called back":   {[]string{"worker", "--callback-cert", good.Cert, "--callback-key", other.Key}, []string{"--callback-key", other.Key, "is not the key of"}},
		"a person's":    {[]string{"task", "list", "--server", "https://127.0.0.1:1", "--server-cert", expired.Cert, "--server-key", expired.Key}, []string{"--server-cert", "expired at"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := run(t, c.args...)
			if got.code != 2 {
				t.Errorf("exit code %d", got.code)
			}
			for _, says := range c.says {
				if !strings.Contains(got.err, says) {
					t.Errorf("output %q, want … %s …", got.err, says)
				}
			}
		})
	}
	// An agent starts with an expired certificate, because it supervises processes
	// also without NATS.
	args := join([]string{"agent", "--check-config", "--nats", "tls://127.0.0.1:1", "--ip", "10.0.0.1"}, files("nats", ca, expired))
	if got := run(t, args...); got.code != 0 {
		t.Errorf("an agent with an expired certificate does not start: %+v", got)
	}
}
