package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/connflags"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/dispatcher"
	"github.com/procfleet/procfleet/internal/crashpoint"
	"github.com/procfleet/procfleet/taskstore/instrumented"
)

// dispatcherFlags are the flags of `dispatcher`.
type dispatcherFlags struct {
	daemon.Flags
	backendFlags
	httpFlags
	audits      auditFlags
	traces      traceFlags
	drain       time.Duration
	submissions bool
}

func newDispatcher() *cobra.Command {
	var f dispatcherFlags
	cmd := &cobra.Command{
		Use:         "dispatcher",
		Short:       "Accept operations over HTTP and serve queries; any number may run",
		Example:     "  procfleet dispatcher --http 127.0.0.1:8080 --nats nats://127.0.0.1:4222 --redis redis://127.0.0.1:6379/0",
		Args:        command.NoArgs,
		Annotations: command.Common("allow-unauthenticated apps audit-log fleet-key http log-level nats nats-creds redis redis-password-file status-http"),
	}
	flags := cmd.Flags()
	f.register(flags)
	connflags.NATS(flags, &f.nats, &f.natsTLS)
	connflags.Redis(flags, &f.redis, &f.redisTLS)
	f.registerRest(flags)
	flags.BoolVar(&f.submissions, "submissions", true, "acceptance of operations published on NATS to procfleet.submit")
	f.audits.register(flags)
	f.traces.register(flags)
	drainFlag(flags, &f.drain, dispatcher.Config{}.WithDefaults().Timeouts.Drain, "requests")
	return daemon.Command(cmd, &f.Flags, daemon.Role{
		Version: version,
		Check:   f.check,
		Run:     func(ctx context.Context, p *daemon.Process) error { return unlessStopped(ctx, f.run(ctx, p)) },
	})
}

func (f *dispatcherFlags) check(s *settings.Settings) {
	f.httpFlags.check(s)
	f.Apart(s, "http", f.listen)
	f.backendFlags.check(s)
	f.refuseUnsigned(s, f.allowUnauthenticated)
	f.audits.check(s)
	f.traces.check(s)
	s.AtLeast(1, "drain")
}

func (f *dispatcherFlags) run(ctx context.Context, p *daemon.Process) error {
	collectLater(dispatcherGarbage)
	listener, err := f.open(ctx, p)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // for errors before serving begins
	handOver := p.Meanwhile(listener)
	defer handOver()
	with, err := f.traces.open(ctx, "procfleet-dispatcher", p)
	if err != nil {
		return err
	}
	defer with.Close()
	back, err := f.connect(ctx, "dispatcher", p)
	if err != nil {
		return err
	}
	defer back.close(p.Log)
	audits, err := f.audits.open(back.bus, p)
	if err != nil {
		return err
	}
	defer audits.Close()
	cfg := f.config()
	if cfg.LoginTLS, err = f.loginTLS.Open(p.Log); err != nil {
		return err
	}
	cfg.Listener, cfg.Timeouts.Drain = listener, f.drain
	cfg.Log, cfg.Meter, cfg.Metrics = p.Log, p.Metrics.Meter("dispatcher"), p.Metrics.Handler()
	cfg.Tracer = with.Tracer("dispatcher")
	cfg.Hints, cfg.Agents, cfg.Events, cfg.Audit = back.bus, back.bus, back.bus, audits
	cfg.Ready, cfg.Reached = p.Ready, crashpoint.FromEnv()
	if f.submissions {
		cfg.Submissions = back.bus
	}
	store, err := instrumented.New(back.store, "dispatcher", cfg.Meter, cfg.Tracer)
	if err != nil {
		return err
	}
	d, err := dispatcher.New(cfg, store, back.bus)
	if err != nil {
		return err
	}
	p.ReadyWhen(back.ready)
	handOver()
	return d.Run(ctx)
}
