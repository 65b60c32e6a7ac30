package deploy_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/tlstest"
)

// node is a folder that replaces a node's root, and the recorded calls of the
// node's systemctl.
type node struct {
	root, path, asked, settings, ca string
}

func newNode(t *testing.T, settings map[string]string) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{root: filepath.Join(dir, "root"), path: filepath.Join(dir, "bin"), asked: filepath.Join(dir, "asked"), settings: filepath.Join(dir, "settings"), ca: filepath.Join(dir, "ca")}
	nsenter := "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift\necho \"$*\" >>" + n.asked + "\n"
	err := errors.Join(
		os.MkdirAll(n.path, 0o755), os.MkdirAll(n.settings, 0o755),
		os.WriteFile(filepath.Join(n.path, "nsenter"), []byte(nsenter), 0o755),
	)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range settings {
		n.set(t, name, value)
	}
	return n
}

func (n *node) set(t *testing.T, name, value string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.settings, name), []byte(value), 0o644); err != nil {
		t.Fatal(err)
	}
}

// enroll creates the identity of the host 0:10.0.0.1 for this node.
func (n *node) enroll(t *testing.T) (identity string) {
	t.Helper()
	identity = filepath.Join(n.root, n.read(t, filepath.Join(n.settings, "PROCFLEET_IDENTITY")))
	key := filepath.Join(t.TempDir(), "fleet-key.yaml")
	if err := fleetkey.Create(key); err != nil {
		t.Fatal(err)
	}
	ring, err := fleetkey.ReadRing(key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := (&fleetkey.Identity{Host: ring.Host("0:10.0.0.1")}).Text()
	if err = errors.Join(err, os.MkdirAll(filepath.Dir(identity), 0o755), os.WriteFile(identity, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	return identity
}

// command is the installer with the arguments of the pod and the paths of the test.
func (n *node) command(agent string) *exec.Cmd {
	cmd := exec.Command("sh", "kubernetes/agents/install.sh", n.settings, n.ca)
	cmd.Env = append(os.Environ(), "PATH="+n.path+":"+os.Getenv("PATH"), "NODE_ROOT="+n.root, "AGENT="+agent)
	return cmd
}

// install runs the installer until it has nothing left to do, and returns its calls
// of systemctl.
func (n *node) install(t *testing.T, agent string) string {
	t.Helper()
	if err := os.WriteFile(n.asked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	child := testenv.StartCommand(t, n.command(agent))
	child.WaitOutput(t, time.Minute, "done")
	child.Signal(15)
	if code := child.Wait(t, time.Minute); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	return n.read(t, n.asked)
}

func (n *node) read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestInstallerRestartsTheAgentOnlyForChanges(t *testing.T) {
	t.Parallel()
	all := manifests(t, "kubernetes/agents")
	pod := with(t, all, "DaemonSet")[0].Spec.Template.Spec
	agent := testenv.BuildBinary(t, "./cmd/procfleet-agent")
	n := newNode(t, configMap(t, all, pod.Volumes[0].ConfigMap.Name))
	unknown := testenv.StartCommand(t, n.command(agent))
	if code := unknown.Wait(t, time.Minute); code == 0 || !strings.Contains(unknown.WholeOutput(t, time.Minute), "enroll it") {
		t.Errorf("exit code %d on a node without an identity", code)
	}
	identity := n.enroll(t)

	const begin = "systemctl daemon-reload\nsystemctl enable --quiet procfleet-agent\n"
	const restarted, left = begin + "systemctl restart --no-block procfleet-agent\n", begin + "systemctl start --no-block procfleet-agent\n"
	if asked := n.install(t, agent); asked != restarted {
		t.Errorf("systemctl calls of the first run:\n%s", asked)
	}
	unit := n.read(t, filepath.Join(n.root, "etc/systemd/system/procfleet-agent.service"))
	if unit != n.read(t, "procfleet-agent.service") {
		t.Error("kubernetes/agents/procfleet-agent.service differs from deploy/procfleet-agent.service: copy it")
	}
	env := filepath.Join(n.root, "etc/procfleet/agent.env")
	if info, err := os.Stat(env); err != nil || info.Mode() != 0o600 || !strings.Contains(unit, "EnvironmentFile="+strings.TrimPrefix(env, n.root)) {
		t.Errorf("%v, mode %v", err, info.Mode())
	}
	checked := exec.Command(filepath.Join(n.root, "usr/local/bin/procfleet-agent"), "--check-config")
	checked.Env = append(append(os.Environ(), strings.Fields(n.read(t, env))...), "PROCFLEET_IDENTITY="+identity)
	if out, err := checked.CombinedOutput(); err != nil || strings.Contains(string(out), "warning") {
		t.Errorf("%v\n%s", err, out)
	}

	if asked := n.install(t, agent); asked != left {
		t.Errorf("systemctl calls without a change:\n%s", asked)
	}
	n.set(t, "PROCFLEET_LOG_LEVEL", "debug")
	if asked := n.install(t, agent); asked != restarted {
		t.Errorf("systemctl calls after a changed setting:\n%s", asked)
	}
}

// TestInstallerInstallsTheCAOfTheBrokers checks that with the optional secret
// the agent of the node connects to a broker with a certificate of that CA.
func TestInstallerInstallsTheCAOfTheBrokers(t *testing.T) {
	t.Parallel()
	all := manifests(t, "kubernetes/agents")
	pod := with(t, all, "DaemonSet")[0].Spec.Template.Spec
	c := pod.Containers[0]
	given := slices.IndexFunc(pod.Volumes, func(v volume) bool { return v.Secret.SecretName == "nats-ca" })
	if given < 0 || !pod.Volumes[given].Secret.Optional || len(pod.Volumes[given].Secret.Items) != 1 {
		t.Fatalf("no optional secret nats-ca in %+v", pod.Volumes)
	}
	mounted := slices.IndexFunc(c.VolumeMounts, func(m volumeMount) bool { return m.Name == "nats-ca" })
	if mounted < 0 || c.Command[3] != c.VolumeMounts[mounted].MountPath {
		t.Fatalf("%q does not name the mount path of %+v", c.Command, c.VolumeMounts)
	}

	agent := testenv.BuildBinary(t, "./cmd/procfleet-agent")
	n := newNode(t, configMap(t, all, pod.Volumes[0].ConfigMap.Name))
	n.enroll(t)
	n.install(t, agent)
	env := filepath.Join(n.root, "etc/procfleet/agent.env")
	if text := n.read(t, env); strings.Contains(text, "PROCFLEET_NATS_CA") {
		t.Errorf("settings contain a CA without the secret: %s", text)
	}
	ca := tlstest.NewCA(t, "brokers")
	if err := os.Mkdir(n.ca, 0o755); err != nil {
		t.Fatal(err)
	}
	copied(t, ca.File, filepath.Join(n.ca, pod.Volumes[given].Secret.Items[0].Path))
	if asked := n.install(t, agent); !strings.Contains(asked, "restart") {
		t.Errorf("systemctl calls after the CA was added:\n%s", asked)
	}

	broker, status := startTLSBroker(t, ca.Issue(t, "broker")), testenv.FreeAddress(t)
	settings := strings.Fields(strings.ReplaceAll(n.read(t, env), "=/etc/procfleet/", "="+n.root+"/etc/procfleet/"))
	settings = append(settings, "PROCFLEET_NATS=tls://"+broker, "PROCFLEET_STATUS_HTTP="+status, "PROCFLEET_DATA="+filepath.Join(t.TempDir(), "data"))
	testenv.StartChild(t, settings, filepath.Join(n.root, "usr/local/bin/procfleet-agent")).WaitHTTP(t, time.Minute, "http://"+status+"/readyz")
}

// startTLSBroker starts a NATS server that accepts only TLS.
func startTLSBroker(t *testing.T, own tlstest.Pair) (address string) {
	t.Helper()
	port := strconv.Itoa(testenv.FreePort(t))
	testenv.StartChild(t, nil, testenv.BuildBinary(t, "github.com/nats-io/nats-server/v2"), "-a", "127.0.0.1", "-p", port,
		"--tls", "--tlscert", own.Cert, "--tlskey", own.Key).WaitOutput(t, time.Minute, "Server is ready")
	return net.JoinHostPort("127.0.0.1", port)
}

// TestAgentPodProbesThePortOfTheAgent checks that the probe and Prometheus use the
// port on which the agent listens.
func TestAgentPodProbesThePortOfTheAgent(t *testing.T) {
	t.Parallel()
	all := manifests(t, "kubernetes/agents")
	set := with(t, all, "DaemonSet")[0]
	c := set.Spec.Template.Spec.Containers[0]
	if c.Image != "procfleet-agent:latest" {
		t.Errorf("image %s", c.Image)
	}
	if every := set.Spec.Template.Spec.Tolerations; len(every) != 1 || every[0].Operator != "Exists" || every[0].Key != "" || every[0].Effect != "" {
		t.Errorf("the DaemonSet does not tolerate all taints: %+v", every)
	}
	if !selects(set.chosen(t), set.Spec.Template.Metadata.Labels) {
		t.Error("the DaemonSet does not select its pods")
	}
	listens := configMap(t, all, set.Spec.Template.Spec.Volumes[0].ConfigMap.Name)["PROCFLEET_STATUS_HTTP"]
	for _, port := range []int{c.port(t, c.ReadinessProbe.HTTPGet.Port), atoi(t, set.Spec.Template.Metadata.Annotations["prometheus.io/port"])} {
		if listens != ":"+strings.TrimPrefix(listens, ":") || atoi(t, strings.TrimPrefix(listens, ":")) != port {
			t.Errorf("the agent listens on %s, but the probe uses port %d", listens, port)
		}
	}
}
