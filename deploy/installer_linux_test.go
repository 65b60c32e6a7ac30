package deploy_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
)

// node is a folder in the place of a node's root, and what was asked of the
// node's systemd.
type node struct {
	root, path, asked, settings string
}

func newNode(t *testing.T, settings map[string]string) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{root: filepath.Join(dir, "root"), path: filepath.Join(dir, "bin"), asked: filepath.Join(dir, "asked"), settings: filepath.Join(dir, "settings")}
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

// enroll makes this node the host 0:10.0.0.1.
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

// command is the installer as the pod runs it, but for where things are.
func (n *node) command(agent string) *exec.Cmd {
	cmd := exec.Command("sh", "kubernetes/agents/install.sh", n.settings)
	cmd.Env = append(os.Environ(), "PATH="+n.path+":"+os.Getenv("PATH"), "NODE_ROOT="+n.root, "AGENT="+agent)
	return cmd
}

// install runs the installer until it has nothing left to do, and returns what
// it asked of systemd.
func (n *node) install(t *testing.T, agent string) string {
	t.Helper()
	if err := os.WriteFile(n.asked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	child := testenv.StartCommand(t, n.command(agent))
	child.WaitOutput(t, time.Minute, "done")
	child.Signal(15)
	if code := child.Wait(t, time.Minute); code != 0 {
		t.Errorf("told to stop, the installer ends with %d", code)
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

func TestInstallerPutsTheAgentOnTheNodeAndRestartsItForChangesAlone(t *testing.T) {
	t.Parallel()
	all := manifests(t, "kubernetes/agents")
	pod := with(t, all, "DaemonSet")[0].Spec.Template.Spec
	agent := testenv.BuildBinary(t, "./cmd/procfleet-agent")
	n := newNode(t, configMap(t, all, pod.Volumes[0].ConfigMap.Name))
	if out, err := n.command(agent).CombinedOutput(); err == nil || !strings.Contains(string(out), "enroll it") {
		t.Errorf("on a node without an identity: %v\n%s", err, out)
	}
	identity := n.enroll(t)

	const begin = "systemctl daemon-reload\nsystemctl enable --quiet procfleet-agent\n"
	const restarted, left = begin + "systemctl restart --no-block procfleet-agent\n", begin + "systemctl start --no-block procfleet-agent\n"
	if asked := n.install(t, agent); asked != restarted {
		t.Errorf("the first time systemd was asked:\n%s", asked)
	}
	unit := n.read(t, filepath.Join(n.root, "etc/systemd/system/procfleet-agent.service"))
	if unit != n.read(t, "procfleet-agent.service") {
		t.Error("kubernetes/agents/procfleet-agent.service is not what deploy/procfleet-agent.service is: copy it")
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
		t.Errorf("nothing changed, and systemd was asked:\n%s", asked)
	}
	n.set(t, "PROCFLEET_LOG_LEVEL", "debug")
	if asked := n.install(t, agent); asked != restarted {
		t.Errorf("a setting changed, and systemd was asked:\n%s", asked)
	}
}

// TestAgentPodAsksWhereItsAgentAnswers: the probe and Prometheus are sent to
// the port that the agent is told to listen on.
func TestAgentPodAsksWhereItsAgentAnswers(t *testing.T) {
	t.Parallel()
	all := manifests(t, "kubernetes/agents")
	set := with(t, all, "DaemonSet")[0]
	c := set.Spec.Template.Spec.Containers[0]
	if c.Image != "procfleet-agent:latest" {
		t.Errorf("image %s", c.Image)
	}
	if !selects(set.chosen(t), set.Spec.Template.Metadata.Labels) {
		t.Error("the DaemonSet does not select its pods")
	}
	listens := configMap(t, all, set.Spec.Template.Spec.Volumes[0].ConfigMap.Name)["PROCFLEET_STATUS_HTTP"]
	for _, port := range []int{c.port(t, c.ReadinessProbe.HTTPGet.Port), atoi(t, set.Spec.Template.Metadata.Annotations["prometheus.io/port"])} {
		if listens != ":"+strings.TrimPrefix(listens, ":") || atoi(t, strings.TrimPrefix(listens, ":")) != port {
			t.Errorf("the agent listens on %s and is asked at %d", listens, port)
		}
	}
}
