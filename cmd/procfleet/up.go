package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/dispatcher"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/crashpoint"
	"github.com/procfleet/procfleet/internal/lifecycle"
	"github.com/procfleet/procfleet/internal/telemetry"
	"github.com/procfleet/procfleet/taskstore/boltstore"
	"github.com/procfleet/procfleet/taskstore/instrumented"
	"github.com/procfleet/procfleet/worker"
)

func newUp() *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run NATS, store, dispatcher, worker and agent in one process",
		Long: `Run NATS with JetStream, a task store, a dispatcher, a worker, and an agent for this host (0:127.0.0.1) in one
process. All data is in --data and survives kill -9. Ctrl-C stops gracefully and leaves supervised processes running;
a second Ctrl-C exits at once.`,
		Example: `  procfleet up --demo
  procfleet up --http 127.0.0.1:9000 --data /var/lib/procfleet --redis redis://127.0.0.1:6379/0`,
		Args:        command.NoArgs,
		Annotations: command.Common("agent allow-unauthenticated apps data demo http log-level nats nats-listen redis status-http"),
	}
	f.register(cmd.Flags())
	return daemon.Command(cmd, &f.Flags, daemon.Role{
		Version: version,
		Check:   f.check,
		Run: func(ctx context.Context, p *daemon.Process) error {
			return unlessStopped(ctx, f.run(ctx, p, cmd.OutOrStdout()))
		},
	})
}

func (f *upFlags) run(ctx context.Context, p *daemon.Process, out io.Writer) error {
	f.warn(p.Log)
	// Bind and lock before anything is written: both can fail.
	listener, err := f.httpFlags.open(ctx, p)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // for errors before serving begins
	unlock, err := lockFolder(f.data)
	if err != nil {
		return err
	}
	defer unlock()
	socket := f.openBeside(ctx, f.data, p)
	if socket != nil {
		defer func() { _ = socket.Close() }() // for errors before serving begins
	}
	handOver := p.Meanwhile(listener)
	defer handOver()
	back, closeAll, err := f.open(ctx, p)
	if err != nil {
		return err
	}
	defer closeAll()
	with, err := f.traces.open(ctx, "procfleet", p)
	if err != nil {
		return err
	}
	defer with.Close()
	audits, err := f.audits.open(back.bus, p)
	if err != nil {
		return err
	}
	defer audits.Close()
	group, err := f.assemble(ctx, p, listener, socket, back, audits, with, out)
	if err != nil {
		return err
	}
	handOver()
	return group.Run(ctx)
}

// assemble creates the roles, which run in one process, and adds them in the order of
// their dependencies.
func (f *upFlags) assemble(ctx context.Context, p *daemon.Process, listener *daemon.Listener, socket net.Listener, back *backends, audits *audit.Log, with *telemetry.Tracing, out io.Writer) (*lifecycle.Group, error) {
	callbacks, err := f.callbacks.tls.Open(p.Log)
	if err != nil {
		return nil, err
	}
	meter, tracer := p.Metrics.Meter("worker"), with.Tracer("worker")
	store, err := instrumented.New(back.store, "worker", meter, tracer)
	if err != nil {
		return nil, err
	}
	w, err := worker.New(worker.Config{
		Conn: back.conn, Bus: back.bus, Store: store, Keys: back.keys, Audit: audits, CallbackTLS: callbacks, Receivers: f.receivers(), Log: p.Log,
		Meter: meter, Reached: crashpoint.FromEnv(),
		Tracer: tracer, AgentTracer: with.AgentTracer(),
		Limits: f.limits(), Timing: worker.Timing{Drain: f.drain},
	})
	if err != nil {
		return nil, err
	}
	group := lifecycle.NewGroup(p.Log, 2*f.drain+stopTimeout) // worker and agent drain one after the other
	group.Add("worker", w.Run)
	if err := f.addAgent(group, back, p); err != nil {
		return nil, err
	}
	started, err := back.store.Now(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx) // not the store's error, see unlessStopped
	case err != nil:
		return nil, err
	}
	ready := func(ctx context.Context) error { return f.ready(ctx, back, w, started) }
	p.ReadyWhen(ready)
	cfg := f.config()
	if cfg.LoginTLS, err = f.loginTLS.Open(p.Log); err != nil {
		return nil, err
	}
	cfg.Listener, cfg.Socket, cfg.Timeouts.Drain = listener, socket, f.drain
	cfg.Hints, cfg.Submissions = back.bus, back.bus
	cfg.Log, cfg.Meter, cfg.Metrics = p.Log, p.Metrics.Meter("dispatcher"), p.Metrics.Handler()
	cfg.Agents, cfg.Events, cfg.Audit = back.bus, back.bus, audits
	cfg.Tracer = with.Tracer("dispatcher")
	cfg.Ready, cfg.Reached = p.Ready, crashpoint.FromEnv()
	if store, err = instrumented.New(back.store, "dispatcher", cfg.Meter, cfg.Tracer); err != nil {
		return nil, err
	}
	d, err := dispatcher.New(cfg, store, back.bus)
	if err != nil {
		return nil, err
	}
	group.Add("dispatcher", d.Run)
	group.Add("console", func(ctx context.Context) error {
		return f.greet(ctx, out, f.url(listener), ready, p.Log)
	})
	return group, nil
}

// openStore opens the Redis store if --redis is given, otherwise the embedded store.
func (f *upFlags) openStore(ctx context.Context, back *backends, p *daemon.Process) (err error) {
	if f.redis != "" {
		return f.openRedis(ctx, back, p)
	}
	back.store, err = boltstore.Open(filepath.Join(f.data, "tasks.db"), boltstore.Options{Log: p.Log})
	return err
}

// newDemoProcess returns the command of the sample process for `up --demo`: it writes
// its pid to a file and runs until a signal stops it.
func newDemoProcess() *cobra.Command {
	var pidFile string
	cmd := &cobra.Command{
		Use:     "demo-process",
		Short:   "Run the sample process of up --demo",
		Example: "  procfleet demo-process --pid-file demo.pid",
		Hidden:  true,
		Args:    command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := os.WriteFile(pidFile, fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
				return err
			}
			<-cmd.Context().Done()
			return nil
		},
	}
	cmd.Flags().StringVar(&pidFile, "pid-file", "demo.pid", "pid file of the process")
	return cmd
}
