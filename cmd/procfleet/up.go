package main

import (
	"context"
	"net"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/dispatcher"
	"github.com/procfleet/procfleet/internal/crashpoint"
	"github.com/procfleet/procfleet/internal/lifecycle"
	"github.com/procfleet/procfleet/internal/telemetry"
	"github.com/procfleet/procfleet/taskstore/boltstore"
	"github.com/procfleet/procfleet/worker"
)

// upStopTimeout bounds an orderly end; what runs on hosts runs on anyway.
const upStopTimeout = 30 * time.Second

func newUp() *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run the whole system in this process: bus, store, dispatcher, worker, agent",
		Long: `Run the whole system in one process: NATS with JetStream, a task store, a dispatcher, a worker, and an
agent for this host, 0:127.0.0.1. Everything is kept in the data folder and survives a restart and
kill -9. Ctrl-C ends it in good order and leaves supervised processes alone; a second one at once.`,
		Example: `  procfleet up --demo
  procfleet up --http 127.0.0.1:9000 --data /var/lib/procfleet --redis redis://127.0.0.1:6379/0`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return unlessStopped(cmd.Context(), f.run(cmd)) },
	}
	f.register(cmd.Flags())
	return cmd
}

func (f *upFlags) run(cmd *cobra.Command) error {
	log, err := f.logger(cmd)
	if err != nil {
		return err
	}
	if err := f.guard(log); err != nil {
		return err
	}
	// What can be refused at once comes first, before anything is written.
	listener, err := listen(cmd.Context(), "--http", f.http)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // in case nobody serves it
	unlock, err := lockFolder(f.data)
	if err != nil {
		return err
	}
	defer unlock()
	back, closeAll, err := f.open(cmd.Context(), log)
	if err != nil {
		return err
	}
	defer closeAll()
	group, err := f.assemble(cmd, listener, back, log)
	if err != nil {
		return err
	}
	return group.Run(cmd.Context())
}

// assemble makes the roles. They know nothing of each other or of this
// command; they start in the order in which they need each other.
func (f *upFlags) assemble(cmd *cobra.Command, listener net.Listener, back *backends, log logrus.FieldLogger) (*lifecycle.Group, error) {
	metrics, err := telemetry.NewMetrics()
	if err != nil {
		return nil, err
	}
	w, err := worker.New(worker.Config{
		Conn: back.conn, Bus: back.bus, Store: back.store, Log: log,
		Meter: metrics.Meter("worker"), Reached: crashpoint.FromEnv(),
	})
	if err != nil {
		return nil, err
	}
	group := lifecycle.NewGroup(log, upStopTimeout)
	group.Add("worker", w.Run)
	if err := f.addAgent(group, back, log); err != nil {
		return nil, err
	}
	started, err := back.store.Now(cmd.Context())
	if err != nil {
		return nil, err
	}
	ready := func(ctx context.Context) error { return f.ready(ctx, back, w, started) }
	d, err := dispatcher.New(dispatcher.Config{
		Listen: f.http, Listener: listener, AllowUnauthenticated: f.allowUnauthenticated,
		Ready: ready, Metrics: metrics.Handler(),
		Log: log, Meter: metrics.Meter("dispatcher"), Reached: crashpoint.FromEnv(),
	}, back.store, back.bus)
	if err != nil {
		return nil, err
	}
	group.Add("dispatcher", d.Run)
	group.Add("console", func(ctx context.Context) error {
		return f.greet(ctx, cmd.OutOrStdout(), "http://"+listener.Addr().String(), ready, log)
	})
	return group, nil
}

// openStore opens the task store that the flags ask for.
func (f *upFlags) openStore(ctx context.Context, back *backends, log logrus.FieldLogger) (err error) {
	if f.redis != "" {
		return back.openRedis(ctx, f.redis, log)
	}
	back.store, err = boltstore.Open(filepath.Join(f.data, "tasks.db"), boltstore.Options{Log: log})
	return err
}
