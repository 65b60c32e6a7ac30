package faults

import (
	"flag"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/agenttest"
)

var (
	churnFor  = flag.Duration("churn.for", 5*time.Second, "how long TestChurn stirs")
	churnSeed = flag.Uint64("churn.seed", 0, "seed of TestChurn's choices; 0 is a new one")
)

// churn starts, stops and kills many programs at random, and also kills their
// agent.
type churn struct {
	t        *testing.T
	host     *agenttest.Host
	random   *rand.Rand
	programs []*stirred

	kills, operations, restarts int
}

// stirred is one of the programs.
type stirred struct {
	*agenttest.Program
	action string // of the latest operation
	ids    []agenttest.ID
}

// TestChurn runs random operations on two hundred programs. At the end each program
// must have the state of its latest operation, no start command may have run twice
// for one operation, and no program may have run twice concurrently.
func TestChurn(t *testing.T) {
	seed := *churnSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d: -churn.seed %[1]d repeats the choices", seed)
	c := &churn{t: t, host: agenttest.New(t, testenv.StartNATS(t)), random: rand.New(rand.NewPCG(seed, 0))}
	c.start()
	for range 200 {
		c.programs = append(c.programs, &stirred{Program: c.program()})
	}
	for end := time.Now().Add(*churnFor); time.Now().Before(end); {
		c.stir()
	}
	t.Logf("%d operations, %d processes killed, %d agents killed", c.operations, c.kills, c.restarts)
	for _, p := range c.programs {
		c.settle(p)
	}
	for _, p := range c.programs {
		c.check(p)
	}
}

// start runs the agent with settings under which it never gives up a process.
func (c *churn) start() {
	c.host.Start(agenttest.QuickBut("flap_window=1ms,start_every=5ms,max_delay=1s"))
}

// program returns a program that records the operation of each start ("auto" for
// none). After its fork the process holds a lock as long as it lives; a second
// process fails to get the lock and records this in the file "twice". The start
// command ends when the process runs or has ended.
func (c *churn) program() *agenttest.Program {
	p := c.host.Sleeper()
	p.Spec.StartRetries = 1_000_000
	p.Spec.StopCheckMS = 3_000 // an interrupted stop waits for this time
	p.Spec.StartCmd = `echo "$PROCFLEET_OP" >>starts
setsid flock --no-fork --nonblock --verbose lock sleep 600 </dev/null >/dev/null 2>>twice &
echo $! >demo.pid
while read name </proc/$!/comm && [ "$name" != sleep ]; do sleep 0.02; done 2>/dev/null
true`
	return p
}

// stir executes one random action.
func (c *churn) stir() {
	p := c.programs[c.random.IntN(len(c.programs))]
	action := []string{"start", "stop", "restart", "kill", "start"}[c.random.IntN(5)]
	switch what := c.random.IntN(1000); {
	case what < 10:
		c.restarts++
		c.host.Agent.Kill()
		c.start()
	case what < 400:
		if pid := p.PID(); pid != 0 {
			c.kills++
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	default:
		c.operations++
		c.operate(p, action)
	}
	<-time.After(5 * time.Millisecond) // leaves processor time for others
}

func (c *churn) operate(p *stirred, action string) {
	p.action = action
	p.ids = append(p.ids, c.host.Submit(c.host.NewCommand(action, p.Spec))...)
}

// settle waits until the latest operation is finished. It repeats an operation that
// the end of the agent or the process interrupted.
func (c *churn) settle(p *stirred) {
	c.t.Helper()
	if len(p.ids) == 0 {
		return
	}
	for tries := 0; ; tries++ {
		r := c.host.Result(p.ids[len(p.ids)-1])
		if r.Code == agentproto.CodeSuccess || r.Code == agentproto.CodeAlreadyRunning || r.Code == agentproto.CodeNotRunning {
			return
		}
		c.t.Logf("%s %s: %d %s", p.action, p.Dir, r.Code, r.Message)
		if tries == 5 {
			c.t.Errorf("%s: %s fails repeatedly", p.Dir, p.action)
			return
		}
		c.operate(p, p.action)
	}
}

func (c *churn) check(p *stirred) {
	c.t.Helper()
	up := p.action == "start" || p.action == "restart"
	c.host.Becomes(p.Spec, "it is as the latest operation said: "+p.action, func(s agentproto.Status) bool {
		return s.Running == up && s.Supervised == up && (s.Phase == "running") == up
	})
	starts := read(c.t, p.Path("starts"))
	if twice := read(c.t, p.Path("twice")); twice != "" {
		c.t.Errorf("%s ran twice concurrently: %q; starts were for %q", p.Dir, twice, starts)
	}
	ran := map[string]int{}
	for op := range strings.Lines(starts) {
		if ran[op]++; ran[op] > 1 && op != "auto\n" {
			c.t.Errorf("%s: the start command of %s ran twice; starts were for %q", p.Dir, op, starts)
		}
	}
	for _, id := range p.ids {
		first := c.host.Result(id)
		for _, r := range c.host.Heard(id) {
			if r.Code != first.Code || r.Message != first.Message {
				c.t.Errorf("%v has two outcomes: %+v and %+v", id, first, r)
			}
		}
	}
}
