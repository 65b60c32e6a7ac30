// Package simulate runs many lightweight agents in one process, for scale tests. The agents
// implement the agent protocol but run no processes: every known action succeeds after a
// fixed time.
package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/tlsfiles"
)

// maxLinks is the maximum number of links. Each link handles messages in one goroutine.
const maxLinks = 8

// maxProcesses is the maximum number of processes in one report.
const maxProcesses = 1000

// MaxAgents is the number of addresses in 10.0.0.0/8.
const MaxAgents = 1 << 24

// Config holds the settings of a simulated fleet.
type Config struct {
	Agents      int   // number of agents, 1 to MaxAgents
	Connections int   // number of NATS connections, shared by the agents; default 8, at most one per agent
	Cloud       int64 // cloud area of all agents
	// Latency is the time from the acceptance of a command to its result; default 0.
	Latency time.Duration
	// Processes is the number of processes in the reports of each agent; 0, the default,
	// disables reports. ReportEvery is the interval of the reports; default 30 s.
	Processes   int
	ReportEvery time.Duration
	URL         string
	// InProcess, if not nil, is the server to which the agents connect instead of URL.
	InProcess nats.InProcessConnProvider
	// Keys returns the current keys of the fleet, from which host keys are derived. If Keys
	// is nil, messages are unsigned.
	Keys func() *fleetkey.Ring
	TLS  *tlsfiles.Client // TLS settings; nil: TLS as the scheme of URL requires
	// Credentials returns the credentials of a NATS user with the permissions of all agents,
	// as in [natsconn.Config].
	Credentials func() ([]byte, error)
	Log         logrus.FieldLogger
	// Ready is called once, after every agent has subscribed and announced itself. Workers
	// may not have stored the announcements yet.
	Ready func()
}

// Fleet is a simulated fleet.
type Fleet struct {
	cfg     Config
	started time.Time
	agents  []agent
	conns   []connection
	links   []*link
}

// New validates cfg and returns a fleet. The fleet connects in [Fleet.Run].
func New(cfg Config) (*Fleet, error) {
	cfg.Connections = min(cmp.Or(cfg.Connections, 8), max(cfg.Agents, 1))
	cfg.ReportEvery = cmp.Or(cfg.ReportEvery, 30*time.Second)
	if cfg.Keys == nil {
		cfg.Keys = func() *fleetkey.Ring { return nil }
	}
	switch {
	case cfg.Agents < 1 || cfg.Agents > MaxAgents:
		return nil, fmt.Errorf("agents: %d is not from 1 to %d", cfg.Agents, MaxAgents)
	case cfg.Connections < 1:
		return nil, fmt.Errorf("connections: %d is less than 1", cfg.Connections)
	case cfg.Cloud < 0:
		return nil, fmt.Errorf("cloud: %d is negative", cfg.Cloud)
	case cfg.Latency < 0:
		return nil, fmt.Errorf("latency: %v is negative", cfg.Latency)
	case cfg.Processes < 0 || cfg.Processes > maxProcesses:
		return nil, fmt.Errorf("processes: %d is not from 0 to %d", cfg.Processes, maxProcesses)
	case cfg.ReportEvery < 0:
		return nil, fmt.Errorf("report-every: %v is negative", cfg.ReportEvery)
	case cfg.Log == nil || cfg.Ready == nil:
		return nil, errors.New("simulate: Config.Log and Config.Ready are required")
	}
	return &Fleet{cfg: cfg}, nil
}

// Run connects, subscribes and announces the agents, and replies to commands until ctx ends.
func (f *Fleet) Run(ctx context.Context) error {
	f.started = time.Now()
	f.makeAgents()
	defer func() {
		for i := range f.conns {
			f.conns[i].close()
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, l := range f.links {
		wg.Go(func() { l.run(ctx) })
	}
	if err := f.connect(ctx); err != nil {
		return err
	}
	wg.Go(func() { f.report(ctx) })
	f.announce(ctx)
	return nil
}

// makeAgents creates agents, connections and links. Agents are distributed over the
// connections round-robin, and connections over the links.
func (f *Fleet) makeAgents() {
	for range min(f.cfg.Connections, maxLinks) {
		f.links = append(f.links, newLink(f.cfg))
	}
	f.conns = make([]connection, f.cfg.Connections)
	f.agents = make([]agent, f.cfg.Agents)
	for i := range f.agents {
		n := i % len(f.conns)
		a := &f.agents[i]
		host := fmt.Sprintf("%d:%s", f.cfg.Cloud, Address(i))
		*a = agent{
			subject:  agentproto.AgentSubject(f.cfg.Cloud, Address(i)),
			host:     host,
			instance: fmt.Sprintf("sim-%d-%d", f.started.UnixNano(), i),
			conn:     &f.conns[n],
			keys:     hostKeys{ring: f.cfg.Keys, host: host},
		}
		f.links[n%len(f.links)].agents[a.subject] = a
	}
}

// agent is one simulated agent. Its strings are created once and reused in all messages.
type agent struct {
	subject  string
	host     string
	instance string // unique per run, because each run starts with an empty memory; also the incarnation
	conn     *connection
	keys     hostKeys
	resume   map[string]time.Time // end of the pause that workers requested, by lane; accessed only by the link
}

// wait pauses sending results of the agent in a lane until the given time.
func (a *agent) wait(lane string, until time.Time) {
	if a.resume == nil {
		a.resume = make(map[string]time.Time, 1)
	}
	a.resume[lane] = until
}

// hostKeys caches the keys of one host. They are derived again when the fleet's keys change.
type hostKeys struct {
	ring    func() *fleetkey.Ring
	host    string
	derived atomic.Pointer[derivedKeys]
}

type derivedKeys struct {
	from *fleetkey.Ring
	keys *fleetkey.Host
}

// current returns the current keys of the host, or nil if the fleet has no keys.
func (h *hostKeys) current() *fleetkey.Host {
	ring := h.ring()
	if ring == nil {
		return nil
	}
	d := h.derived.Load()
	if d == nil || d.from != ring {
		d = &derivedKeys{ring, ring.Host(h.host)}
		h.derived.Store(d)
	}
	return d.keys
}

// signed returns a signed message of the agent.
func (a *agent) signed(subject, messageType, answers string, data []byte) *nats.Msg {
	return &nats.Msg{Subject: subject, Data: data, Header: a.sign(nil, messageType, answers, data)}
}

// sign adds signatures to the headers of a message of the agent.
func (a *agent) sign(header nats.Header, messageType, answers string, data []byte) nats.Header {
	keys := a.keys.current()
	if keys == nil {
		return header
	}
	if header == nil {
		header = make(nats.Header, 1)
	}
	keys.Sign(header, &fleetkey.Message{Purpose: messageType, Answers: answers, Body: data})
	return header
}

// Address returns the address of agent i in 10.0.0.0/8: 10.0.0.0 plus i.
func Address(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) //nolint:gosec // the conversion selects the lower bytes
}
