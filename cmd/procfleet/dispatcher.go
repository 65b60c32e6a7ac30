package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/connflags"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/dispatcher"
)

// dispatcherFlags are the flags of `dispatcher`.
type dispatcherFlags struct {
	roleFlags
	httpFlags
	submissions bool
}

func newDispatcher() *cobra.Command {
	var f dispatcherFlags
	cmd := &cobra.Command{
		Use:         "dispatcher",
		Short:       "Accept operations over HTTP and serve queries; any number may run",
		Example:     "  procfleet dispatcher --http 127.0.0.1:8080 --nats nats://127.0.0.1:4222 --redis redis://127.0.0.1:6379/0",
		Annotations: command.Common("allow-unauthenticated apps audit-log fleet-key http log-level nats nats-creds redis redis-password-file status-http"),
	}
	flags := cmd.Flags()
	f.httpFlags.register(flags)
	connflags.NATS(flags, &f.nats, &f.natsTLS)
	connflags.Redis(flags, &f.redis, &f.redisTLS)
	f.roleFlags.register(flags, dispatcher.Config{}.WithDefaults().Timeouts.Drain, "requests")
	flags.BoolVar(&f.submissions, "submissions", true, "acceptance of operations published on NATS to procfleet.submit")
	return f.command(cmd, f.check, f.run)
}

func (f *dispatcherFlags) check(s *settings.Settings) {
	f.httpFlags.check(s)
	f.Apart(s, "http", f.listen)
	f.roleFlags.check(s)
	f.refuseUnsigned(s, f.allowUnauthenticated)
}

func (f *dispatcherFlags) run(ctx context.Context, p *daemon.Process) error {
	collectLater(dispatcherGarbage)
	listener, err := f.httpFlags.open(ctx, p)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // for errors before serving begins
	handOver := p.ServeStarting(listener)
	defer handOver()
	parts, err := f.roleFlags.open(ctx, "dispatcher", p)
	if err != nil {
		return err
	}
	defer parts.close()
	cfg := f.config()
	cfg.Listener = listener
	if f.submissions {
		cfg.Submissions = parts.bus
	}
	d, err := parts.newDispatcher(cfg, &f.httpFlags)
	if err != nil {
		return err
	}
	p.ReadyWhen(parts.ready)
	handOver()
	return d.Run(ctx)
}
