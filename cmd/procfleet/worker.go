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
	"github.com/procfleet/procfleet/internal/lifecycle"
	"github.com/procfleet/procfleet/worker"
)

// stopTimeout limits the graceful stop of a role after --drain. The parts of the role
// have separate limits.
const stopTimeout = 20 * time.Second

// workerFlags are the flags of `worker`.
type workerFlags struct {
	roleFlags
	loadFlags
	callbacks     receiverFlags
	allowUnsigned bool // accept a non-loopback NATS without --fleet-key
}

func newWorker() *cobra.Command {
	var f workerFlags
	cmd := &cobra.Command{
		Use:         "worker",
		Short:       "Deliver operations to agents and collect results; any number may run",
		Example:     "  procfleet worker --nats nats://127.0.0.1:4222 --redis redis://127.0.0.1:6379/0",
		Annotations: command.Common("allow-unauthenticated audit-log fleet-key log-level nats nats-creds redis redis-password-file status-http"),
	}
	flags := cmd.Flags()
	connflags.NATS(flags, &f.nats, &f.natsTLS)
	connflags.Redis(flags, &f.redis, &f.redisTLS)
	f.roleFlags.register(flags, worker.Config{}.WithDefaults().Timing.Drain, "deliveries")
	f.loadFlags.register(flags)
	f.callbacks.register(flags, "callback", "workers")
	flags.BoolVar(&f.allowUnsigned, "allow-unauthenticated", false, "unsigned messages over a non-loopback NATS; test networks only")
	return f.command(cmd, f.check, f.run)
}

func (f *workerFlags) check(s *settings.Settings) {
	f.roleFlags.check(s)
	f.refuseUnsigned(s, f.allowUnsigned)
	f.loadFlags.check(s)
	f.callbacks.check(s)
}

func (f *workerFlags) run(ctx context.Context, p *daemon.Process) error {
	if f.allowUnsigned && f.fleetKey == "" {
		p.Log.Warn("--allow-unauthenticated: NATS clients control all hosts")
	}
	collectLater(workerGarbage)
	parts, err := f.open(ctx, "worker", p)
	if err != nil {
		return err
	}
	defer parts.close()
	w, err := parts.newWorker(f.limits(), &f.callbacks, f.callbacks.policy())
	if err != nil {
		return err
	}
	p.ReadyWhen(func(ctx context.Context) error { return errors.Join(parts.ready(ctx), workerReady(w)) })
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
