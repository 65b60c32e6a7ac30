//go:build cluster && linux

package cluster

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/tlsfiles"
	"github.com/procfleet/procfleet/test/cluster/check"
	"github.com/procfleet/procfleet/test/cluster/fleet"
	"github.com/procfleet/procfleet/test/internal/images"
)

func buildImages(t *testing.T, b images.Builder) fleet.Images {
	t.Helper()
	images.Require(t, "docker")
	tag := fmt.Sprintf(":cluster-test-%d", os.Getpid())
	if b.Clocks {
		tag += "-clocks"
	}
	made := fleet.Images{Bench: "procfleet-test-bench" + tag, NATS: "procfleet-test-nats" + tag, Redis: "procfleet-test-redis" + tag}
	made.Server, made.Agent = b.Procfleet(t, tag, "id", "sleep", "cat", "cp", "mkdir")
	b.Bench(t, made.Bench)
	b.NATS(t, made.NATS)
	b.Redis(t, made.Redis)
	return made
}

var (
	seed   = flag.Uint64("seed", 0, "seed of the random faults; 0 draws and prints one")
	random = flag.Duration("random", 10*time.Minute, "duration of the random faults")
	only   = flag.String("only", "", "regular expression for the names of scenarios to run (default: all)")
	cut    = flag.Bool("cut", false, "few scenarios, and few random faults from a fixed seed")
	write  = flag.String("write", "", "document that gets the list of outcomes")
)

// lightAgents is the number of simulated agents, for tasks of up to 5,000 items.
const lightAgents = 2000

// cutTime is the time after which -cut begins no further scenario.
const cutTime = 3 * time.Minute

// TestCluster is one test, because the start of a fleet takes most of the time.
func TestCluster(t *testing.T) {
	with := sync.OnceValue(func() fleet.Images { return buildImages(t, images.Builder{}) })
	outcomes := withSentinel(t, with)
	if !*cut {
		outcomes = append(outcomes, withClocksAndDisks(t)...)
		outcomes = append(outcomes, withRedisCluster(t, with)...)
		outcomes = append(outcomes, withoutConfirmation(t, with)...)
	}
	logOutcomes(t, outcomes)
	if *write != "" {
		if err := writeOutcomes(*write, outcomes); err != nil {
			t.Error(err)
		}
	}
}

// withSentinel runs every scenario, and then random faults.
func withSentinel(t *testing.T, with func() fleet.Images) (outcomes []*outcome) {
	t.Helper()
	if !anySelected(t, scenarios, "") && !selected(t, "random faults") {
		return nil
	}
	t.Run("Redis with Sentinel", func(t *testing.T) {
		f := fleet.Start(t, fleet.Config{Images: with(), WaitReplicas: 1, LightAgents: lightAgents, SmallDisks: *cut})
		began := time.Now()
		list := scenarios
		if *cut {
			list = slices.Concat(scenarios, clockAndDiskScenarios)
		}
		for i, sc := range list {
			switch {
			case *cut && !sc.cut, !selected(t, sc.name):
				continue
			case *cut && time.Since(began) > cutTime:
				t.Logf("left out, since this machine is slow: %s", sc.name)
				continue
			}
			o := &outcome{name: sc.name, story: sc.story}
			outcomes = append(outcomes, o)
			o.play(t, f, fmt.Sprintf("s%d", i+1), sc.run)
		}
		rs := randomFaults(f)
		if !selected(t, "random faults") {
			return
		}
		o := &outcome{name: fmt.Sprintf("random faults, seed %d", rs.schedule.Seed)}
		outcomes = append(outcomes, o)
		o.play(t, f, "random", rs.run)
		o.story = fmt.Sprintf("%d steps: in each, one or two nodes are killed, paused, cut off, delayed or restarted", rs.done)
	})
	return outcomes
}

// selected reports whether -only matches the name of a scenario.
func selected(t *testing.T, name string) bool {
	t.Helper()
	pattern, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal("-only:", err)
	}
	return pattern.MatchString(name)
}

func anySelected(t *testing.T, of []scenario, suffix string) bool {
	t.Helper()
	return slices.ContainsFunc(of, func(sc scenario) bool { return selected(t, sc.name+suffix) })
}

// withRedisCluster runs the scenarios with faults of Redis alone on a fleet with a
// Redis Cluster.
func withRedisCluster(t *testing.T, with func() fleet.Images) (outcomes []*outcome) {
	t.Helper()
	const suffix = ", Redis Cluster"
	if !anySelected(t, scenarios, suffix) {
		return nil
	}
	t.Run("Redis as a cluster", func(t *testing.T) {
		f := fleet.Start(t, fleet.Config{Images: with(), WaitReplicas: 1, RedisCluster: true})
		for i, sc := range scenarios {
			if sc.cluster != "" && selected(t, sc.name+suffix) {
				o := &outcome{name: sc.name + suffix, story: sc.cluster}
				outcomes = append(outcomes, o)
				o.play(t, f, fmt.Sprintf("c%d", i+1), sc.run)
			}
		}
	})
	return outcomes
}

// run causes the faults of the scenario.
func (sc *scenario) run(s *stage) error {
	if !sc.failsOver {
		return sc.do(s)
	}
	over := s.load.Failover()
	defer over()
	return errors.Join(sc.do(s), s.Repair(), s.settle())
}

// startLoad begins a load and waits until it has run some commands.
func startLoad(t *testing.T, f *fleet.Fleet, run string) *check.Load {
	t.Helper()
	marks := func() ([]check.Mark, error) { return marksOf(f) }
	load, err := check.Start(t.Context(), check.Config{
		Run: run, Seed: 1, Most: 5000, Pause: 500 * time.Millisecond, Timeout: 40 * time.Second,
		Dispatchers: f.Dispatchers(), Hosts: hostsOf(t, f), Absent: absentHosts(t), Light: parseHosts(t, f.LightHosts()),
		Folder: fleet.MarkFolder, Marks: marks,
		Deaths:  func() []check.Loss { return losses(t, f, (*fleet.Node).Deaths) },
		Wipes:   func() []check.Loss { return losses(t, f, (*fleet.Node).Wipes) },
		Publish: check.Publisher(connect(t, f, natsauth.Producer, f.Producer)), Events: check.TaskEvents(connect(t, f, natsauth.Server, f.Server)),
		Callbacks: net.JoinHostPort(f.Gateway(), "0"), Rollouts: true, Log: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, func() bool {
		all, err := marks()
		if err != nil {
			t.Fatal(err)
		}
		mine := 0
		for _, m := range all {
			if strings.HasPrefix(m.Token, run+"-") {
				mine++
			}
		}
		return mine > 10
	}, "start commands run")
	return load
}

// connect returns a connection to NATS with a user's credentials.
func connect(t *testing.T, f *fleet.Fleet, role natsauth.Role, user func() ([]byte, error)) *nats.Conn {
	t.Helper()
	ca, err := tlsfiles.Files{CA: f.CA()}.Client(testenv.Log(t))
	if err != nil {
		t.Fatal(err)
	}
	credentials, err := user()
	if err != nil {
		t.Fatal(err)
	}
	name, _, err := natsauth.ParseCredentials(credentials)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := natsconn.Connect(natsconn.Config{
		URL: strings.Join(f.NATSURLs(), ","), Name: t.Name(), Credentials: user, TLS: ca, Log: testenv.Log(t),
		InboxPrefix: natsauth.InboxPrefix(role, name),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func hostsOf(t *testing.T, f *fleet.Fleet) []procfleet.Host {
	t.Helper()
	var names []string
	for _, n := range f.Nodes(fleet.Agent) {
		names = append(names, n.Host)
	}
	return parseHosts(t, names)
}

func parseHosts(t *testing.T, names []string) []procfleet.Host {
	t.Helper()
	var hosts []procfleet.Host
	for _, name := range names {
		h, err := procfleet.ParseHost(name)
		if err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, h)
	}
	return hosts
}

// losses returns the deaths or the wipes of all hosts.
func losses(t *testing.T, f *fleet.Fleet, of func(*fleet.Node) []fleet.Span) []check.Loss {
	t.Helper()
	var all []check.Loss
	for i, host := range hostsOf(t, f) {
		for _, span := range of(f.Nodes(fleet.Agent)[i]) {
			all = append(all, check.Loss{Span: check.Span(span), Host: host})
		}
	}
	return all
}

// absentHosts returns one host of each area that no agent announces.
func absentHosts(t *testing.T) []procfleet.Host {
	t.Helper()
	var hosts []procfleet.Host
	for _, area := range []procfleet.CloudArea{0, fleet.FarArea} {
		h, err := procfleet.NewHost(area, "192.0.2.1")
		if err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, h)
	}
	return hosts
}

// marksOf reads the marks of all hosts.
func marksOf(f *fleet.Fleet) ([]check.Mark, error) {
	var marks []check.Mark
	for _, n := range f.Nodes(fleet.Agent) {
		host, err := procfleet.ParseHost(n.Host)
		if err != nil {
			return nil, err
		}
		lines, err := n.Marks(check.MarkFile)
		if err != nil {
			return nil, err
		}
		for _, line := range lines {
			m, err := check.ParseMark(host, line)
			if err != nil {
				return nil, err
			}
			marks = append(marks, m)
		}
	}
	return marks, nil
}
