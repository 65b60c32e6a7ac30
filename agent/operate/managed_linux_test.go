package operate

import (
	"fmt"
	"io"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// desired returns, by key, the desired state that the engine reports, and whether it runs.
func (g *rig) desired() map[string]string {
	all := map[string]string{}
	for _, p := range g.engine.Processes() {
		text := p.Desired
		if p.Status.Running {
			text += " running"
		}
		all[p.Key] = text
	}
	return all
}

func (g *rig) wantDesired(when string, want map[string]string) {
	g.t.Helper()
	if diff := cmp.Diff(want, g.desired()); diff != "" {
		g.t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// shop sets the names that reports show.
func shop(key string) func(*agentproto.Spec) {
	return func(s *agentproto.Spec) { s.Key, s.Namespace, s.Name = "shop:"+key, "shop", key }
}

func TestWhatWasStoppedStaysDownUntilItIsWantedAgain(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	web, db := g.spec(shop("web")), g.spec(shop("db"))
	db.SetupPath, db.PidPath = t.TempDir(), ""
	g.want("start", web, 0, "")
	g.wantDesired("started", map[string]string{"shop:web": "up running"})
	g.want("stop", web, 0, "")
	g.want("stop", db, agentproto.CodeNotRunning, "stop: ")
	down := map[string]string{"shop:web": "down", "shop:db": "down"}
	g.wantDesired("stopped", down)
	before := g.engine.Processes()

	g.crash()
	g.open()
	g.wantDesired("after the agent's restart", down)
	for i, p := range g.engine.Processes() {
		b := before[i]
		if p.Namespace != "shop" || p.Name != b.Name || p.ProcName != demoName || p.Status.Phase != "stopped" {
			t.Errorf("got %+v, want as before %+v", p, b)
		}
		if off := p.Status.At.Sub(b.Status.At).Abs(); p.Status.At.IsZero() || off > time.Second {
			t.Errorf("%s was seen last at %v, before the restart at %v", p.Key, p.Status.At, b.Status.At)
		}
	}
	if n := len(g.engine.snapshots()) - len(g.engine.resting); n != 0 {
		t.Errorf("%d stopped processes have an actor after a restart", n)
	}

	// A failed operation does not change the desired state "stopped".
	broken := web
	broken.StartCmd = "false"
	g.want("start", broken, agentproto.CodeFailed, "start: ")
	g.wantDesired("after a start that failed", down)
	g.want("start", web, 0, "")
	g.want("release", db, 0, "")
	up := map[string]string{"shop:web": "up running"}
	g.wantDesired("wanted again", up)
	g.crash()
	g.open()
	g.eventually("the process is found again", func() bool { return maps.Equal(g.desired(), up) })
}

func TestStoppingWhatIsStoppedWritesNothing(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(shop("web"))
	record := func() string {
		g.want("stop", spec, agentproto.CodeNotRunning, "stop: ")
		g.ledger.mu.Lock()
		defer g.ledger.mu.Unlock()
		return string(g.ledger.processes[spec.Key])
	}
	first := record()
	g.crash()
	g.open()
	if again := record(); again != first || first == "" {
		t.Errorf("the record changed from %s to %s", first, again)
	}
}

func TestOnlySoManyStoppedProcessesAreRemembered(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.DownLimit = 2 })
	for i := range 4 {
		g.want("stop", g.spec(shop(fmt.Sprint(i))), agentproto.CodeNotRunning, "stop: ")
	}
	latest := map[string]string{"shop:2": "down", "shop:3": "down"}
	g.eventually("the oldest are forgotten", func() bool { return maps.Equal(g.desired(), latest) })
	g.cfg.DownLimit = 1
	g.crash()
	g.open()
	g.eventually("the limit holds for what was remembered", func() bool {
		g.ledger.mu.Lock()
		defer g.ledger.mu.Unlock()
		return maps.Equal(g.desired(), map[string]string{"shop:3": "down"}) && len(g.ledger.processes) == 1
	})
}

func TestReleasedProcessIsFollowedToItsEnd(t *testing.T) {
	t.Parallel()
	changed := make(chan struct{}, 1)
	g := newRig(t, func(c *Config) {
		c.Changed = func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	})
	spec := g.spec(shop("web"))
	g.want("start", spec, 0, "")
	g.want("release", spec, 0, "")
	released := map[string]string{"shop:web": "none running"}
	g.wantDesired("released", released)
	g.crash()
	g.open()
	g.eventually("it is found again", func() bool { return maps.Equal(g.desired(), released) })
	drain := func() {
		select {
		case <-changed:
		default:
		}
	}
	drain()
	sigkill(t, g.engine.Processes()[0].Status.PID)
	g.wantDesired("the figures are read fresh", map[string]string{"shop:web": "none"})
	select {
	case <-changed:
	case <-time.After(patience):
		t.Error("its end was not reported")
	}
}

func TestChangesOfASupervisedProcessAreTold(t *testing.T) {
	t.Parallel()
	changed := make(chan struct{}, 1000)
	g := newRig(t, func(c *Config) { c.Changed = func() { changed <- struct{}{} } })
	spec := g.spec(shop("web"))
	g.want("start", spec, 0, "")
	first := g.engine.Processes()[0]
	if s := first.Status; !s.Running || s.PID == 0 || s.MemoryBytes == 0 || s.StartedAt.IsZero() || s.Command != "" || s.Evidence != "" {
		t.Errorf("status is %+v", s)
	}
	for len(changed) > 0 {
		<-changed
	}
	sigkill(t, first.Status.PID)
	g.eventually("it runs again", func() bool {
		s := g.engine.Processes()[0].Status
		return s.Running && s.PID != first.Status.PID && s.Failures == 1
	})
	if len(changed) < 2 { // death and restart
		t.Errorf("%d changes reported", len(changed))
	}
	for len(changed) > 0 {
		<-changed
	}
	for range 3 {
		g.status(spec)
		g.engine.Processes()
	}
	if len(changed) != 0 {
		t.Errorf("%d changes reported without any", len(changed))
	}
}

// BenchmarkReport measures the cost of one report of 1,000 supervised processes before the
// report is published.
func BenchmarkReport(b *testing.B) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	e, err := New(testConfig(Config{Ledger: newLedger(), Log: log, RunDir: b.TempDir(), Finished: func(journal.Op, agentproto.Result) {}}))
	if err != nil {
		b.Fatal(err)
	}
	defer e.Stop(b.Context())
	own, err := proc.Identify(os.Getpid())
	if err != nil {
		b.Fatal(err)
	}
	for i := range 1000 {
		e.resting[fmt.Sprint(i)] = resting{snapshot: &snapshot{
			desired: supervise.Up, phase: supervise.Running, specStored: true,
			spec:  agentproto.Spec{Namespace: "shop", Name: fmt.Sprint(i), ProcName: "demo"},
			known: procop.Knowledge{Main: own}, registeredAt: time.Now(), startedAt: time.Now(),
		}}
	}
	for b.Loop() {
		r := agentproto.Processes{Processes: e.Processes()}
		data, err := agentproto.Encode(&r)
		if err != nil || len(r.Processes) != 1000 {
			b.Fatal(err)
		}
		b.ReportMetric(float64(len(data)), "bytes")
	}
}
