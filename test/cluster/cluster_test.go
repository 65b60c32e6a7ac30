//go:build cluster && linux

package cluster

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/test/cluster/check"
	"github.com/procfleet/procfleet/test/cluster/fleet"
	"github.com/procfleet/procfleet/test/internal/images"
)

func buildImages(t *testing.T) fleet.Images {
	t.Helper()
	images.Require(t, "docker")
	tag := fmt.Sprintf(":cluster-test-%d", os.Getpid())
	made := fleet.Images{NATS: "procfleet-test-nats" + tag, Redis: "procfleet-test-redis" + tag}
	made.Server, made.Agent = images.Procfleet(t, tag, "id", "sleep", "cat", "cp", "mkdir")
	images.NATS(t, made.NATS)
	images.Redis(t, made.Redis)
	return made
}

// TestCluster is one test, because starting the fleet is what takes the time.
func TestCluster(t *testing.T) {
	f := fleet.Start(t, fleet.Config{Images: buildImages(t), WaitReplicas: 1})
	for i, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			play(t, f, fmt.Sprintf("s%d", i+1), &sc)
		})
	}
}

// play runs a scenario under a load of its own, which must come out of it
// without a violation.
func play(t *testing.T, f *fleet.Fleet, run string, sc *scenario) {
	t.Helper()
	s := &stage{Fleet: f, ctx: t.Context()}
	load := startLoad(t, f, run)
	defer load.Stop()
	over := func() {}
	if sc.failsOver {
		over = load.Failover()
	}
	began := time.Now()
	if err := sc.do(s); err != nil {
		t.Error(err)
	}
	if err := f.Heal(); err != nil {
		t.Fatal(err)
	}
	healed := time.Now()
	if err := s.settle(); err != nil {
		t.Fatal(err)
	}
	over()
	settled := time.Now()
	found, err := load.Settle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s; broken for %v, settled after %v, judged after %v", load.Summary(),
		healed.Sub(began).Round(time.Second), settled.Sub(healed).Round(time.Second), time.Since(settled).Round(time.Second))
	for _, v := range found {
		t.Error(v)
	}
}

// startLoad begins a load and waits until it has some commands run.
func startLoad(t *testing.T, f *fleet.Fleet, run string) *check.Load {
	t.Helper()
	marks := func() ([]check.Mark, error) { return marksOf(f) }
	load, err := check.Start(t.Context(), check.Config{
		Run: run, Seed: 1, Most: 200, Pause: 500 * time.Millisecond, Timeout: 40 * time.Second,
		Doors: f.Dispatchers(), Hosts: hostsOf(t, f), Absent: absentHosts(t), Folder: fleet.MarkFolder, Marks: marks,
		Publish: check.Publisher(testenv.Connect(t, strings.Join(f.NATSURLs(), ","))),
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

func hostsOf(t *testing.T, f *fleet.Fleet) []procfleet.Host {
	t.Helper()
	var hosts []procfleet.Host
	for _, n := range f.Nodes(fleet.Agent) {
		h, err := procfleet.ParseHost(n.Host)
		if err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, h)
	}
	return hosts
}

// absentHosts are one of each area that nobody announced.
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
