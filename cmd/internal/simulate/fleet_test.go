package simulate_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/cmd/internal/simulate"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestEveryAgentCanHaveAConnectionOfItsOwn(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	heard := hearResults(t, env)
	const agents = 250
	startOn(t, env, agents, 1000, 0)
	for _, i := range []int{0, 9, agents - 1} {
		askCommand(t, env, i, command(i, i, agentproto.ActionStart))
		if got := heard.stored(); got.Host != host(i) {
			t.Errorf("results %+v", got)
		}
	}
}

func TestEveryAgentIsAnnouncedToTheFirstWorker(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	const agents = 450
	start(t, env, agents, 0) // no worker is subscribed yet
	heard := make(chan *nats.Msg, 10*agents)
	sub, err := env.Conn.ChanSubscribe(agentproto.PresenceAll, heard)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	hosts := map[string]bool{}
	deadline := time.After(20 * time.Second)
	for len(hosts) < agents {
		select {
		case msg := <-heard:
			if msg.Reply != "" {
				if err := msg.Respond(nil); err != nil {
					t.Fatal(err)
				}
			}
			var p agentproto.Presence
			if err := agentproto.Decode(msg.Data, agentproto.TypePresence, &p); err != nil {
				t.Fatal(err)
			}
			hosts[p.Host] = true
		case <-deadline:
			t.Fatalf("%d of %d agents were announced", len(hosts), agents)
		}
	}
}

func TestImpossibleFleetsAreRefused(t *testing.T) {
	t.Parallel()
	for _, cfg := range []simulate.Config{
		{Agents: 0},
		{Agents: simulate.MaxAgents + 1},
		{Agents: 1, Connections: -1},
		{Agents: 1, Cloud: -1},
		{Agents: 1, Latency: -1},
		{Agents: 1, Processes: -1},
		{Agents: 1, ReportEvery: -1},
		{Agents: 1},
	} {
		if _, err := simulate.New(cfg); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}

func TestEveryAgentReportsItsProcessesAgainAndAgain(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	heard := make(chan *nats.Msg, 10_000)
	if _, err := env.Conn.ChanSubscribe(agentproto.ProcessesSubject(cloud), heard); err != nil {
		t.Fatal(err)
	}
	if err := env.Conn.Flush(); err != nil {
		t.Fatal(err)
	}
	const agents = 700
	startWith(t, simulate.Config{
		Agents: agents, Connections: 2, Cloud: cloud, URL: env.URL, Processes: 2, ReportEvery: 200 * time.Millisecond,
	})
	numbers := map[string]int64{}
	for again := 0; again < agents; {
		select {
		case msg := <-heard:
			var r agentproto.Processes
			if err := agentproto.Decode(msg.Data, agentproto.TypeProcesses, &r); err != nil {
				t.Fatal(err)
			}
			if last, known := numbers[r.Host]; known {
				again++
				if r.Number <= last {
					t.Fatalf("%s: number %d after %d", r.Host, r.Number, last)
				}
			}
			if len(r.Processes) != 2 {
				t.Fatalf("report %+v", r)
			}
			numbers[r.Host] = r.Number
		case <-time.After(30 * time.Second):
			t.Fatal("no further report")
		}
	}
	if len(numbers) != agents {
		t.Errorf("%d agents reported", len(numbers))
	}
}
