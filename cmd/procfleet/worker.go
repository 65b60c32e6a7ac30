package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/connflags"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/internal/crashpoint"
	"github.com/procfleet/procfleet/internal/lifecycle"
	"github.com/procfleet/procfleet/taskstore/instrumented"
	"github.com/procfleet/procfleet/worker"
)

// stopTimeout limits the graceful stop of a role after --drain. The parts of the role
// have separate limits.
const stopTimeout = 20 * time.Second

// workerFlags are the flags of `worker`.
type workerFlags struct {
	daemon.Flags
	backendFlags
	loadFlags
	callbacks callbackFlags

	audits        auditFlags
	traces        traceFlags
	drain         time.Duration
	allowUnsigned bool // accept a non-loopback NATS without --fleet-key
}

func newWorker() *cobra.Command {
	var f workerFlags
	cmd := &cobra.Command{
		Use:         "worker",
		Short:       "Deliver operations to agents and collect results; any number may run",
		Example:     "  procfleet worker --nats nats://127.0.0.1:4222 --redis redis://127.0.0.1:6379/0",
		Args:        command.NoArgs,
		Annotations: command.Common("allow-unauthenticated audit-log fleet-key log-level nats nats-creds redis redis-password-file status-http"),
	}
	flags := cmd.Flags()
	connflags.NATS(flags, &f.nats, &f.natsTLS)
	connflags.Redis(flags, &f.redis, &f.redisTLS)
	f.registerRest(flags)
	f.audits.register(flags)
	f.traces.register(flags)
	f.register(flags)
	f.callbacks.register(flags)
	flags.BoolVar(&f.allowUnsigned, "allow-unauthenticated", false, "unsigned messages over a non-loopback NATS; test networks only")
	drainFlag(flags, &f.drain, worker.Config{}.WithDefaults().Timing.Drain, "deliveries")
	return daemon.Command(cmd, &f.Flags, daemon.Role{
		Version: version,
		Check:   f.check,
		Run:     func(ctx context.Context, p *daemon.Process) error { return unlessStopped(ctx, f.run(ctx, p)) },
	})
}

func (f *workerFlags) check(s *settings.Settings) {
	f.backendFlags.check(s)
	f.refuseUnsigned(s, f.allowUnsigned)
	f.loadFlags.check(s)
	f.callbacks.check(s)
	f.audits.check(s)
	f.traces.check(s)
	s.AtLeast(1, "drain")
}

func (f *workerFlags) run(ctx context.Context, p *daemon.Process) error {
	if f.allowUnsigned && f.fleetKey == "" {
		p.Log.Warn("--allow-unauthenticated: NATS clients control all hosts")
	}
	collectLater(workerGarbage)
	with, err := f.traces.open(ctx, "procfleet-worker", p)
	if err != nil {
		return err
	}
	defer with.Close()
	back, err := f.connect(ctx, "worker", p)
	if err != nil {
		return err
	}
	defer back.close(p.Log)
	audits, err := f.audits.open(back.bus, p)
	if err != nil {
		return err
	}
	defer audits.Close()
	callbacks, err := f.callbacks.tls.Open(p.Log)
	if err != nil {
		return err
	}
	meter, tracer := p.Metrics.Meter("worker"), with.Tracer("worker")
	store, err := instrumented.New(back.store, "worker", meter, tracer)
	if err != nil {
		return err
	}
	w, err := worker.New(worker.Config{
		Conn: back.conn, Bus: back.bus, Store: store, Keys: back.keys, Audit: audits, CallbackTLS: callbacks, Receivers: f.callbacks.receivers(), Log: p.Log,
		Meter: meter, Reached: crashpoint.FromEnv(),
		Tracer: tracer, AgentTracer: with.AgentTracer(),
		Limits: f.limits(), Timing: worker.Timing{Drain: f.drain},
	})
	if err != nil {
		return err
	}
	p.ReadyWhen(func(ctx context.Context) error { return errors.Join(back.ready(ctx), workerReady(w)) })
	group := lifecycle.NewGroup(p.Log, f.drain+stopTimeout)
	group.Add("worker", w.Run)
	return group.Run(ctx)
}

func workerReady(w *worker.Worker) error {
	if !w.Ready() {
		return errors.New("the worker does not pull from every lane yet")
	}
	return nil
}
