// Package deploy_test parses, builds or starts every file of this folder, so that
// an outdated file fails a test.
package deploy_test

import (
	"errors"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/testenv"
)

type service struct {
	Image   string   `json:"image"`
	Command []string `json:"command"`
	Ports   []string `json:"ports"`
}

// services returns the services of docker-compose.yml.
func services(t *testing.T) map[string]service {
	t.Helper()
	data, err := os.ReadFile("../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]service `json:"services"`
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	return file.Services
}

func TestComposeFileKeepsEverythingOnLoopback(t *testing.T) {
	t.Parallel()
	roles := map[string]int{}
	for name, s := range services(t) {
		roles[strings.TrimRight(name, "-0123456789")]++
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("service %s publishes %s, want a port on 127.0.0.1", name, port)
			}
		}
	}
	for role, n := range map[string]int{"nats": 1, "redis": 1, "dispatcher": 2, "worker": 3, "agent": 3} {
		if roles[role] != n {
			t.Errorf("%d services of role %s, want %d", roles[role], role, n)
		}
	}
}

// TestComposeCommandsExist runs each binary with --help and
// the flags of the file, which fails for an unknown flag.
func TestComposeCommandsExist(t *testing.T) {
	t.Parallel()
	binaries := map[string]string{
		"${PROCFLEET_IMAGE:-procfleet:latest}":             "./cmd/procfleet",
		"${PROCFLEET_AGENT_IMAGE:-procfleet-agent:latest}": "./cmd/procfleet-agent",
	}
	checked := 0
	for name, s := range services(t) {
		pkg, ours := binaries[s.Image]
		if !ours {
			continue
		}
		checked++
		args := append(append([]string{}, s.Command...), "--help")
		if out, err := exec.Command(testenv.BuildBinary(t, pkg), args...).CombinedOutput(); err != nil {
			t.Errorf("service %s: %v\n%s", name, err, out)
		}
	}
	if checked != 10 {
		t.Errorf("%d services run the module's binaries, want 10", checked)
	}
}

func TestComposeToolReadsTheFile(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "docker-compose", "apt-get install docker-compose")
	cmd := exec.Command("docker-compose", "config", "-q")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("docker-compose config: %v\n%s", err, out)
	}
}

// TestImagesHaveLabels reads the labels of each image from the Dockerfile: name,
// license, source and version. test/compose builds and runs the images.
func TestImagesHaveLabels(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), " AS server")
	server, agent, _ := strings.Cut(after, " AS agent")
	label := regexp.MustCompile(`org\.opencontainers\.image\.(\w+)="([^"]*)"`)
	for title, stage := range map[string]string{"procfleet": server, "procfleet-agent": agent} {
		labels := map[string]string{}
		for _, found := range label.FindAllStringSubmatch(stage, -1) {
			labels[found[1]] = found[2]
		}
		want := map[string]string{"title": title, "source": "https://github.com/procfleet/procfleet", "licenses": "Apache-2.0", "version": "$VERSION"}
		if !maps.Equal(labels, want) || !strings.Contains(stage, "\nARG VERSION\n") {
			t.Errorf("the labels of %s are %v, want %v, and VERSION as an argument", title, labels, want)
		}
	}
}

// natsFile copies a configuration and its included files into a folder for the
// server's data, and replaces pairs of old and new text.
func natsFile(t *testing.T, name string, authority *natsauth.Authority, oldnew ...string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	broker, err := authority.Broker()
	if err != nil {
		t.Fatal(err)
	}
	included, err := os.ReadFile(authority.BrokerPath())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	oldnew = append(oldnew, "/data", dir+"/data", "/var/lib/nats", dir+"/data", "0.0.0.0:4222", "127.0.0.1:-1", "account: ACCOUNT", "account: "+broker.Account)
	text := strings.NewReplacer(oldnew...).Replace(string(data))
	path := filepath.Join(dir, name)
	err = errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Mkdir(filepath.Join(dir, "broker"), 0o700),
		os.WriteFile(filepath.Join(dir, "broker", "broker.conf"), included, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestNATSReadsItsConfigurations(t *testing.T) {
	t.Parallel()
	authority, err := natsauth.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"nats.conf", "nats-cluster.conf", "nats-leaf.conf"} {
		options, err := server.ProcessConfigFile(natsFile(t, file, authority))
		if err != nil {
			t.Fatal(err)
		}
		if options.MaxPayload < 1<<20 {
			t.Errorf("%s: max_payload %d", file, options.MaxPayload)
		}
		if options.MaxConn != natsauth.BrokerConnections {
			t.Errorf("%s: max_connections %d", file, options.MaxConn)
		}
		if leaf := len(options.LeafNode.Remotes) > 0; options.JetStream == leaf {
			t.Errorf("%s: JetStream %v, leaf node %v", file, options.JetStream, leaf)
		}
		if cluster := file == "nats-cluster.conf"; cluster && (len(options.Routes) != 2 || options.LeafNode.Port == 0) {
			t.Errorf("%s: %d routes, leaf node port %d", file, len(options.Routes), options.LeafNode.Port)
		}
		if len(options.TrustedOperators) != 1 {
			t.Errorf("%s requires no credentials", file)
		}
		if _, keeps := options.AccountResolver.(*server.DirAccResolver); !keeps {
			t.Errorf("%s: the server receives no revocations while it runs, or does not store them: resolver %T", file, options.AccountResolver)
		}
		if options.Cluster.Port != 0 && (options.Cluster.Username == "" || options.Cluster.Password == "") {
			t.Errorf("%s: the cluster port requires no authentication", file)
		}
		if options.HTTPPort != 0 && options.HTTPHost != "127.0.0.1" {
			t.Errorf("%s: monitoring, which requires no credentials, listens on %s", file, options.HTTPHost)
		}
		if options.PingInterval != 20*time.Second || options.MaxPingsOut != 2 {
			t.Errorf("%s: a lost connection is detected after %d pings of %v", file, options.MaxPingsOut, options.PingInterval)
		}
	}
}

// startNATS starts a server with parsed options.
func startNATS(t *testing.T, options *server.Options) *server.Server {
	t.Helper()
	options.NoSigs, options.NoLog = true, true
	broker, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	go broker.Start()
	t.Cleanup(func() { broker.Shutdown(); broker.WaitForShutdown() })
	if !broker.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not start")
	}
	return broker
}

// TestALeafNodeForwardsOnlyItsArea starts nats.conf as the central
// server and nats-leaf.conf in area 3. A client with all rights is connected to the
// leaf node.
func TestALeafNodeForwardsOnlyItsArea(t *testing.T) {
	t.Parallel()
	authority, err := natsauth.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	user := func(role natsauth.Role) []byte {
		credentials, err := authority.NewUser(role, "x", 3, 0)
		if err != nil {
			t.Fatal(err)
		}
		return []byte(credentials)
	}
	connect := func(to *server.Server) *nats.Conn {
		conn, err := nats.Connect(to.ClientURL(), nats.UserCredentialBytes(user(natsauth.Server)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}
	options, err := server.ProcessConfigFile(natsFile(t, "nats.conf", authority))
	if err != nil {
		t.Fatal(err)
	}
	options.LeafNode.Host, options.LeafNode.Port = "127.0.0.1", testenv.FreePort(t)
	middle := startNATS(t, options)
	credentials := filepath.Join(t.TempDir(), "area-3.creds")
	if err := os.WriteFile(credentials, user(natsauth.Leaf), 0o600); err != nil {
		t.Fatal(err)
	}
	door := net.JoinHostPort("127.0.0.1", strconv.Itoa(options.LeafNode.Port))
	options, err = server.ProcessConfigFile(natsFile(t, "nats-leaf.conf", authority, "/etc/nats/area-3.creds", credentials,
		"nats-1.example:7422", door, "nats-2.example:7422", door, "nats-3.example:7422", door))
	if err != nil {
		t.Fatal(err)
	}
	area := startNATS(t, options)
	testenv.Eventually(t, time.Minute, func() bool { return middle.NumLeafNodes() == 1 }, "the leaf node is connected")

	inMiddle, inArea := connect(middle), connect(area)
	only := func(from, to *nats.Conn, listened []string, published []string, last string) {
		t.Helper()
		heard := make(chan *nats.Msg, 10_000)
		for _, subject := range append(listened, last) {
			sub, err := to.ChanSubscribe(subject, heard)
			if err != nil {
				t.Fatal(err)
			}
			defer sub.Unsubscribe()
		}
		arrived := false
		testenv.Eventually(t, time.Minute, func() bool { // until the interest is known
			for _, subject := range append(published, last) {
				if err := errors.Join(from.Publish(subject, []byte("x")), from.Flush()); err != nil {
					t.Fatal(err)
				}
			}
			for len(heard) > 0 {
				m := <-heard
				if m.Subject != last {
					t.Fatalf("the leaf node forwards %s", m.Subject)
				}
				arrived = true
			}
			return arrived
		}, last+" is passed on")
	}
	// When both servers have exchanged their subscriptions, messages arrive in
	// order.
	only(inMiddle, inArea, nil, nil, "procfleet.agent.3.10-0-0-2")
	only(inArea, inMiddle, nil, nil, "procfleet.event.3")
	only(inMiddle, inArea,
		[]string{"procfleet.agent.>", "procfleet.agent.4.10-0-0-1", "procfleet.result.>", "procfleet.task.finished"},
		[]string{"procfleet.agent.4.10-0-0-1", "procfleet.result.s.3", "procfleet.task.finished"}, "procfleet.agent.3.10-0-0-1")
	only(inArea, inMiddle,
		[]string{"procfleet.agent.>", "procfleet.presence.4", "procfleet.processes.4", "procfleet.settings.4", "procfleet.event.4", "procfleet.answer.4.>", "procfleet.op.>", "procfleet.hostevent.>"},
		[]string{"procfleet.agent.4.10-0-0-1", "procfleet.presence.4", "procfleet.processes.4", "procfleet.settings.4", "procfleet.event.4", "procfleet.answer.4.10-0-0-1.w.1", "procfleet.op.s.3", "procfleet.hostevent.3"},
		"procfleet.presence.3")
}

// TestNATSReceivesRevocationsWhileItRuns starts nats.conf and sends a revocation
// with the command for operators.
func TestNATSReceivesRevocationsWhileItRuns(t *testing.T) {
	t.Parallel()
	dir, procfleet := t.TempDir(), testenv.BuildBinary(t, "./cmd/procfleet")
	run := func(args ...string) string {
		out, err := exec.Command(procfleet, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("procfleet %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	keys, identities := filepath.Join(dir, "keys"), filepath.Join(dir, "identities")
	run("enroll", "--create", "--data", keys, "--host", "3:10.0.0.1,3:10.0.0.2", "--out", identities)
	authority, err := natsauth.Open(filepath.Join(keys, "nats-auth"))
	if err != nil {
		t.Fatal(err)
	}
	options, err := server.ProcessConfigFile(natsFile(t, "nats.conf", authority))
	if err != nil {
		t.Fatal(err)
	}
	broker := startNATS(t, options)
	agent := func(host string) *nats.Conn {
		identity, err := fleetkey.ReadIdentity(filepath.Join(identities, host+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := nats.Connect(broker.ClientURL(), nats.UserCredentialBytes([]byte(identity.NATS)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}
	stolen, other := agent("3-10.0.0.1"), agent("3-10.0.0.2")
	run("revoke", "--host", "3:10.0.0.1", "--data", keys, "--nats", broker.ClientURL())
	testenv.Eventually(t, time.Minute, func() bool { return !stolen.IsConnected() }, "the revoked agent is disconnected")
	if !other.IsConnected() {
		t.Error("another agent was disconnected as well")
	}
	run("enroll", "--data", keys, "--host", "3:10.0.0.1", "--out", identities+"/")
	if next := agent("3-10.0.0.1"); !next.IsConnected() {
		t.Error("a host that was enrolled again cannot connect")
	}
	if out := run("nats-auth", "push", "--nats", broker.ClientURL(), "--nats-auth", filepath.Join(keys, "nats-auth")); !strings.Contains(out, "1 NATS servers") {
		t.Errorf("output of push: %s", out)
	}
}

// TestUnitsAreValid verifies every unit with systemd, and checks that the
// binaries know the command in it.
func TestUnitsAreValid(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "systemd-analyze", "apt-get install systemd")
	binaries := map[string]string{
		"/usr/local/bin/procfleet": testenv.BuildBinary(t, "./cmd/procfleet"), "/usr/local/bin/procfleet-agent": testenv.BuildBinary(t, "./cmd/procfleet-agent"),
	}
	for _, name := range []string{"procfleet-agent", "procfleet-dispatcher", "procfleet-worker"} {
		data, err := os.ReadFile(name + ".service")
		if err != nil {
			t.Fatal(err)
		}
		line := regexp.MustCompile(`(?m)^ExecStart=(\S+)(.*)$`).FindStringSubmatch(string(data))
		if line == nil || binaries[line[1]] == "" {
			t.Errorf("%s starts %q", name, line)
			continue
		}
		unit := filepath.Join(t.TempDir(), name+".service")
		text := strings.Replace(string(data), "ExecStart="+line[1], "ExecStart="+binaries[line[1]], 1)
		if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("systemd-analyze", "verify", "--man=no", unit).CombinedOutput(); err != nil || strings.Contains(string(out), name) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		args := append(strings.Fields(line[2]), "--help")
		usage := "\n  " + filepath.Base(line[1]) + line[2] // usage of this command, not of all commands
		if out, err := exec.Command(binaries[line[1]], args...).CombinedOutput(); err != nil || !strings.Contains(string(out), usage) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		for _, want := range []string{"Type=notify", "TimeoutStartSec=infinity", "WatchdogSec=", "Restart=always", "StartLimitIntervalSec=0"} {
			if !strings.Contains(text, "\n"+want) {
				t.Errorf("%s lacks %s", name, want)
			}
		}
	}
}

// TestUnitsOfServersHaveLowExposure checks systemd's exposure level, 0 to 10, in
// tenths. The remaining exposure is necessary: the roles use the network and accept
// connections.
func TestUnitsOfServersHaveLowExposure(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "systemd-analyze", "apt-get install systemd")
	for _, unit := range []string{"procfleet-dispatcher.service", "procfleet-worker.service"} {
		if out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=12", unit).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", unit, err, out)
		}
	}
}

// TestAgentUnitLeavesProcessesAlone checks KillMode. With any other value a restart
// of the agent would kill every supervised process.
func TestAgentUnitLeavesProcessesAlone(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("procfleet-agent.service")
	if err != nil {
		t.Fatal(err)
	}
	unit := string(data)
	for _, line := range []string{
		"KillMode=process", "Restart=always", "RestartSec=2", "StartLimitIntervalSec=0", "Delegate=yes",
		"OOMPolicy=continue", "TasksMax=infinity", "LimitNOFILE=1048576", "OOMScoreAdjust=-500",
	} {
		if !strings.Contains(unit, "\n"+line+"\n") {
			t.Errorf("the unit lacks %s", line)
		}
	}
	for _, word := range []string{"PrivateTmp", "Protect", "MemoryMax", "NoNewPrivileges"} {
		if strings.Contains(unit, word) {
			t.Errorf("the unit sets %s, which would apply to every supervised process", word)
		}
	}
}

// TestHowTosNameExistingMetrics verifies that each metric named in docs/how-to
// exists.
func TestHowTosNameExistingMetrics(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../docs/how-to/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, page := range pages {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, content...)
	}
	known, err := os.ReadFile("../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	metrics := regexp.MustCompile(`procfleet_(?:dispatcher|worker|agent)_[a-z_]+`).FindAllString(string(text), -1)
	if len(metrics) < 10 {
		t.Errorf("only %d metrics are named", len(metrics))
	}
	for _, m := range metrics {
		if !strings.Contains(string(known), "`"+strings.TrimSuffix(m, "_count")+"`") {
			t.Errorf("metric %s is not in docs/reference/metrics.md", m)
		}
	}
}
