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
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/internal/lifecycle"
	"github.com/procfleet/procfleet/internal/stores"
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
		Annotations: command.Common("agent allow-unauthenticated apps data demo http log-level nats nats-listen redis status-http"),
	}
	f.register(cmd.Flags())
	return f.command(cmd, f.check, func(ctx context.Context, p *daemon.Process) error { return f.run(ctx, p, cmd.OutOrStdout()) })
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
	socket := f.openSocket(ctx, f.data, p)
	if socket != nil {
		defer func() { _ = socket.Close() }() // for errors before serving begins
	}
	handOver := p.ServeStarting(listener)
	defer handOver()
	back, err := f.open(ctx, p)
	if err != nil {
		return err
	}
	parts, err := f.openParts(ctx, "procfleet", p, back)
	if err != nil {
		return err
	}
	defer parts.close()
	group, err := f.assemble(ctx, parts, listener, socket, out)
	if err != nil {
		return err
	}
	handOver()
	return group.Run(ctx)
}

// assemble creates the roles, which run in one process, and adds them in the order of
// their dependencies.
func (f *upFlags) assemble(ctx context.Context, parts *roleParts, listener *daemon.Listener, socket net.Listener, out io.Writer) (*lifecycle.Group, error) {
	w, err := parts.newWorker(f.limits(), &f.callbacks, f.receivers())
	if err != nil {
		return nil, err
	}
	p := parts.process
	group := lifecycle.NewGroup(p.Log, 2*f.drain+stopTimeout) // worker and agent drain one after the other
	group.Add("worker", w.Run)
	if err := f.addAgent(group, parts.backends, p); err != nil {
		return nil, err
	}
	if f.demo != 0 {
		if err := f.addDemoHosts(group, parts.backends, p); err != nil {
			return nil, err
		}
	}
	started, err := parts.store.Now(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx) // not the store's error, see unlessStopped
	case err != nil:
		return nil, err
	}
	ready := func(ctx context.Context) error { return f.ready(ctx, parts.backends, w, started) }
	p.ReadyWhen(ready)
	cfg := f.config()
	cfg.Listener, cfg.Socket, cfg.Submissions = listener, socket, parts.bus
	d, err := parts.newDispatcher(cfg, &f.httpFlags)
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
func (f *upFlags) openStore(ctx context.Context, back *backends, p *daemon.Process) error {
	if f.redis != "" {
		return f.openRedis(ctx, back, p)
	}
	store, err := stores.OpenBolt(filepath.Join(f.data, "tasks.db"), boltdb.Options{Log: p.Log})
	if err == nil {
		back.store = store
	}
	return err
}

// newDemoProcess returns the command of the sample process for `up --demo`: it writes
// its pid to a file and runs until a signal stops it.
func newDemoProcess() *cobra.Command {
	var pidFile string
	cmd := &cobra.Command{
		Use:     "demo-process",
		Short:   "Run a sample service of up --demo",
		Example: "  procfleet demo-process --pid-file demo.pid",
		Hidden:  true,
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
