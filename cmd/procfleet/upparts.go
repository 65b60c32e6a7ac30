package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"runtime"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agent"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/agentcmd"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/cmd/internal/demo"
	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/cmd/internal/simulate"
	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
	"github.com/procfleet/procfleet/internal/crashpoint"
	"github.com/procfleet/procfleet/internal/destination"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/lifecycle"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/natsembed"
	"github.com/procfleet/procfleet/web"
	"github.com/procfleet/procfleet/worker"
)

// upFlags are the flags of `up`.
type upFlags struct {
	roleFlags
	httpFlags
	loadFlags
	data, natsListen string
	natsListenTLS    tlsflags.Server
	callbacks        receiverFlags
	natsAuth         string
	agent            bool
	demo             time.Duration // pause after each step; 0 = no demo
	labels           agentcmd.Labels
}

func (f *upFlags) register(flags *pflag.FlagSet) {
	f.embedded = true
	f.httpFlags.register(flags)
	flags.StringVar(&f.data, "data", "procfleet-data", "directory of all persistent data")
	flags.StringVar(&f.nats, "nats", "", "external NATS URLs, comma-separated (default: embedded NATS)")
	f.natsTLS.Register(flags, "nats", "NATS")
	flags.StringVar(&f.redis, "redis", "", "external Redis URL (default: embedded store)")
	f.redisTLS.Register(flags, "redis", "Redis")
	f.roleFlags.register(flags, 10*time.Second, "requests, deliveries and operations")
	f.natsListenTLS.Register(flags, "nats-listen")
	flags.StringVar(&f.natsListen, "nats-listen", "", "listen address of the embedded NATS, for example 127.0.0.1:4222")
	flags.StringVar(&f.natsAuth, "nats-auth", "", "directory of the NATS authority (default: nats-auth in --data)")
	flags.BoolVar(&f.agent, "agent", true, "agent for this host")
	f.labels.Register(flags)
	flags.DurationVar(&f.demo, "demo", 0, "demonstration: rollout, undo and crash, with this pause after each step")
	flags.Lookup("demo").NoOptDefVal = demo.Look.String()
	f.loadFlags.register(flags)
	f.callbacks.register(flags, "callback", "workers")
}

// supported reports whether an agent can run on this operating system.
const supported = runtime.GOOS == "linux"

// check rejects settings that expose the hosts or contradict each other.
func (f *upFlags) check(s *settings.Settings) {
	f.httpFlags.check(s)
	f.Apart(s, "http", f.listen)
	f.Apart(s, "nats-listen", f.natsListen)
	f.roleFlags.check(s)
	f.loadFlags.check(s)
	f.callbacks.check(s)
	f.labels.Check(s)
	if f.data == "" {
		s.Wrong("data", "a directory is required, for example procfleet-data")
	}
	f.checkParts(s)
	f.natsListenTLS.Check(s)
	// At the default level, the log would obscure the output of the demo.
	if f.demo != 0 && !s.Given("log-level") {
		f.Level = "warn"
	}
}

// checkParts reports settings for parts of `up` that are replaced or disabled.
func (f *upFlags) checkParts(s *settings.Settings) {
	if f.natsListen != "" {
		s.Check("nats-listen", daemon.CheckAddress(f.natsListen))
	}
	if f.natsAuth != "" {
		_, err := natsauth.Open(f.natsAuth)
		s.Check("nats-auth", err)
	}
	switch {
	case f.nats != "" && f.natsListen != "":
		s.Wrong("nats-listen", "is for the embedded NATS and excludes --nats")
	case f.nats != "" && f.natsAuth != "":
		s.Wrong("nats-auth", "is for the embedded NATS: with --nats give --nats-creds")
	case f.nats == "" && f.natsCreds != "":
		s.Wrong("nats-creds", "is for an external NATS: give --nats as well")
	case f.nats == "" && !f.natsTLS.None():
		s.Wrong("nats", "--nats-ca and --nats-cert are for an external NATS: give --nats as well, or --nats-listen-cert")
	case f.natsListen == "" && !f.natsListenTLS.None():
		s.Wrong("nats-listen", "is required with --nats-listen-cert, for example 127.0.0.1:4222")
	case f.nats == "" && f.streamReplicas > 1:
		s.Wrong("stream-replicas", "%d replicas require a cluster, and the embedded NATS is one server: give --nats as well", f.streamReplicas)
	}
	if f.demo < 0 {
		s.Wrong("demo", "a pause of %s is impossible: omit the value", f.demo)
	}
	if f.demo != 0 && f.apps != "" {
		s.Wrong("demo", "submits without an application: omit --apps or --demo")
	}
	if f.redis == "" && f.redisPassword != "" {
		s.Wrong("redis-password-file", "the embedded store has no password: give --redis as well, or omit this flag")
	}
	if f.redis == "" && f.waitReplicas != 0 {
		s.Wrong("redis-wait-replicas", "the embedded store has no replicas: give --redis as well, or omit this flag")
	}
	switch {
	case f.demo != 0 && !supported:
		s.Wrong("demo", "requires the local agent, and supervision requires Linux (this is %s)", runtime.GOOS)
	case f.demo != 0 && !f.agent:
		s.Wrong("demo", "requires the local agent: omit --agent=false")
	}
}

// warn logs risky and unsupported settings, and disables an unsupported agent.
func (f *upFlags) warn(log logrus.FieldLogger) {
	if f.allowUnauthenticated {
		log.Warn("--allow-unauthenticated: network clients control all hosts")
	}
	if f.agent && !supported {
		f.agent = false
		log.WithField("os", runtime.GOOS).Warn("supervision needs Linux: local agent not started")
	}
}

// receivers returns the permitted callback receivers. If only local callers can submit,
// it permits all: such callers can connect to local addresses anyway.
func (f *upFlags) receivers() destination.Policy {
	if f.apps == "" && !f.allowUnauthenticated && f.nats == "" && f.natsListen == "" {
		return destination.Anywhere()
	}
	return f.callbacks.policy()
}

// open opens the bus and the store, embedded or remote.
func (f *upFlags) open(ctx context.Context, p *daemon.Process) (_ *backends, err error) {
	if f.fleetKey == "" {
		if f.fleetKey, err = fleetKeyIn(f.data); err != nil {
			return nil, fmt.Errorf("--data: %w", err)
		}
	}
	cfg, err := f.natsConfig("up", p)
	if err != nil {
		return nil, err
	}
	var server *natsembed.Server
	var users *natsauth.Authority
	if f.nats == "" {
		if server, users, err = f.startNATS(ctx, p); err != nil {
			return nil, err
		}
		cfg.InProcess = server
	}
	if users != nil {
		if cfg.Credentials, err = serverUser(users); err != nil {
			server.Shutdown()
			return nil, err
		}
	}
	back, err := connectBus(ctx, cfg, &f.backendFlags, p.WaitFor)
	if err != nil {
		if server != nil {
			server.Shutdown()
		}
		return nil, err
	}
	back.embedded, back.users = server, users
	if err := f.openStore(ctx, back, p); err != nil {
		back.close(p.Log)
		return nil, err
	}
	return back, nil
}

// thisHost returns the host of the agent in `up`.
func thisHost() procfleet.Host {
	return procfleet.Host{Addr: netip.AddrFrom4([4]byte{127, 0, 0, 1})}
}

// addAgent adds the local agent, which has a separate connection to NATS.
func (f *upFlags) addAgent(group *lifecycle.Group, back *backends, p *daemon.Process) error {
	if !f.agent {
		return nil
	}
	conn, err := natsconn.Connect(agentLink(back))
	if err != nil {
		return err
	}
	a, err := agent.New(agent.Config{
		Conn: conn, Addr: thisHost().Addr, Version: command.Version(), Labels: f.labels.Map(), DataDir: filepath.Join(f.data, "agent"),
		Keys:         func() *fleetkey.Host { return back.keys().Host(thisHost().String()) },
		DrainTimeout: f.drain, Log: p.Log, Meter: p.Metrics.Meter("agent"), Crash: crashpoint.FromEnv(),
	})
	if err != nil {
		conn.Close()
		return err
	}
	group.Add("agent", func(ctx context.Context) error {
		defer conn.Close()
		return a.Run(ctx)
	})
	return nil
}

// ready returns nil if store and bus respond, the worker pulls chunks, and the agent has
// announced itself since started.
func (f *upFlags) ready(ctx context.Context, back *backends, w *worker.Worker, started time.Time) error {
	if err := back.ready(ctx); err != nil {
		return err
	}
	if err := workerReady(w); err != nil || !f.agent {
		return err
	}
	presences, err := back.store.Presences(ctx, []procfleet.Host{thisHost()})
	if err != nil {
		return fmt.Errorf("task store unavailable: %w", err)
	}
	if presences[0].SeenAt.Before(started) {
		return errors.New("the agent has not announced itself yet")
	}
	return nil
}

// greet waits until the system is ready, prints its URL, and runs the demo if --demo is
// set. A failed demo does not stop the system.
func (f *upFlags) greet(ctx context.Context, out io.Writer, url string, ready func(context.Context) error, log logrus.FieldLogger) error {
	for ready(ctx) != nil {
		if pause(ctx, readyPoll) != nil {
			return nil //nolint:nilerr // the system stops before it is ready
		}
	}
	options, base := "", url
	if f.apps != "" {
		options = ` -H "Authorization: Bearer <code>.<secret>"`
	}
	if path, is := f.socketPath(); is {
		options, base = options+" --unix-socket "+path, socketURL
	}
	if _, socket := f.socketPath(); !f.noConsole && !socket {
		fmt.Fprintf(out, "console: %s%s\n", url, web.Prefix)
	}
	fmt.Fprintf(out, "procfleet is ready at %s\n  try: curl -s%s %s/v1/hosts\n", url, options, base)
	if f.demo != 0 {
		f.showDemo(ctx, out, url, log)
	}
	<-ctx.Done()
	return nil
}

// The simulated hosts of the demo.
const (
	demoHosts   = 30
	demoArea    = 1
	demoLatency = 700 * time.Millisecond // of their operations
)

// addDemoHosts adds simulated agents for the demo.
func (f *upFlags) addDemoHosts(group *lifecycle.Group, back *backends, p *daemon.Process) error {
	link := back.natsConfig
	fleet, err := simulate.New(simulate.Config{
		Agents: demoHosts, Cloud: demoArea, Latency: demoLatency, Processes: 4,
		URL: link.URL, InProcess: link.InProcess, TLS: link.TLS, Credentials: link.Credentials,
		Keys: back.keys, Log: p.Log, Ready: func() {},
	})
	if err == nil {
		group.Add("simulated hosts", fleet.Run)
	}
	return err
}

// showDemo runs the demo, and removes at the end of the system what it has made. A failed demo does not
// stop the system.
func (f *upFlags) showDemo(ctx context.Context, out io.Writer, url string, log logrus.FieldLogger) {
	d, err := f.newDemo(out, url)
	if err != nil {
		log.WithError(err).Error("demo failed")
		return
	}
	if err := d.Run(ctx); err != nil && ctx.Err() == nil {
		log.WithError(err).Error("demo failed")
	}
	<-ctx.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.drain)
	defer cancel()
	if err := d.Clean(ctx); err != nil {
		log.WithError(err).Warn("demo not removed")
	}
}

func (f *upFlags) newDemo(out io.Writer, url string) (*demo.Demo, error) {
	c, err := (&serverFlags{url: url}).connect(client.Config{})
	if err != nil {
		return nil, err
	}
	cfg := demo.Config{Client: c, Server: url, Host: thisHost(), Dir: filepath.Join(f.data, "demo"), Look: f.demo, Out: out}
	for i := range demoHosts {
		cfg.Simulated = append(cfg.Simulated, procfleet.Host{Cloud: demoArea, Addr: simulate.Address(i)})
	}
	return demo.New(cfg)
}
