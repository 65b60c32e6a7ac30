// Package simulate runs many light agents in one process, for scale tests.
// They speak the real protocol but have no processes: every known action
// succeeds after a fixed time.
package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/natsconn"
)

// MaxAgents is how many addresses 10.0.0.0/8 has.
const MaxAgents = 1 << 24

// Config of a simulated fleet.
type Config struct {
	Agents      int   // how many; 1 to MaxAgents
	Connections int   // to NATS, shared by the agents; default 8
	Cloud       int64 // cloud area of all agents
	// Latency is from the acceptance of a command to its result; default 0.
	Latency time.Duration
	URL     string
	Log     logrus.FieldLogger
	// Ready is called once when every agent listens and was announced. An
	// announcement reaches the store once a worker runs.
	Ready func()
}

// Fleet is a simulated fleet.
type Fleet struct {
	cfg     Config
	started time.Time
	agents  []agent
	links   []*link
}

// New returns a fleet that is not connected yet.
func New(cfg Config) (*Fleet, error) {
	cfg.Connections = min(cmp.Or(cfg.Connections, 8), max(cfg.Agents, 1))
	switch {
	case cfg.Agents < 1 || cfg.Agents > MaxAgents:
		return nil, fmt.Errorf("agents: %d is not from 1 to %d", cfg.Agents, MaxAgents)
	case cfg.Connections < 1:
		return nil, fmt.Errorf("connections: %d is less than 1", cfg.Connections)
	case cfg.Cloud < 0:
		return nil, fmt.Errorf("cloud: %d is negative", cfg.Cloud)
	case cfg.Latency < 0:
		return nil, fmt.Errorf("latency: %v is negative", cfg.Latency)
	case cfg.Log == nil || cfg.Ready == nil:
		return nil, errors.New("simulate: Config.Log and Config.Ready are required")
	}
	return &Fleet{cfg: cfg}, nil
}

// Run connects, subscribes, announces and answers until ctx ends.
func (f *Fleet) Run(ctx context.Context) error {
	f.started = time.Now()
	f.agents = make([]agent, f.cfg.Agents)
	defer func() {
		for _, l := range f.links {
			l.conn.Close()
		}
	}()
	for n := range f.cfg.Connections {
		l, err := f.open(n)
		if err != nil {
			return err
		}
		f.links = append(f.links, l)
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, l := range f.links {
		wg.Go(func() { l.run(ctx) })
	}
	for _, l := range f.links {
		if err := l.listening(ctx); err != nil {
			return err
		}
	}
	f.announce(ctx)
	return nil
}

// agent is one simulated agent. Its texts are made once: they are part of
// every message.
type agent struct {
	subject  string
	host     string
	instance string // another one in every run, as its memory is
	conn     *nats.Conn
}

// Address of agent i is 10.(i>>16).(i>>8&255).(i&255).
func Address(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// open connects link n and subscribes its agents: every Connections-th.
func (f *Fleet) open(n int) (*link, error) {
	conn, err := natsconn.Connect(natsconn.Config{URL: f.cfg.URL, Name: fmt.Sprintf("simulate-%d", n), Log: f.cfg.Log})
	if err != nil {
		return nil, err
	}
	l, err := newLink(f.cfg, conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	for i := n; i < f.cfg.Agents; i += f.cfg.Connections {
		a := &f.agents[i]
		*a = agent{
			subject:  agentproto.AgentSubject(f.cfg.Cloud, Address(i)),
			host:     fmt.Sprintf("%d:%s", f.cfg.Cloud, Address(i)),
			instance: fmt.Sprintf("sim-%d-%d", f.started.UnixNano(), i),
			conn:     conn,
		}
		if _, err := conn.ChanQueueSubscribe(a.subject, agentproto.AgentQueue, l.commands); err != nil {
			conn.Close()
			return nil, fmt.Errorf("subscribe to %s: %w", a.subject, err)
		}
		l.agents[a.subject] = a
	}
	return l, nil
}
