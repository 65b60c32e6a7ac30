package main

import (
	"context"
	"errors"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/internal/crashpoint"
	"github.com/procfleet/procfleet/internal/lifecycle"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/telemetry"
	"github.com/procfleet/procfleet/worker"
)

// roleStopTimeout bounds the orderly end of a role, which bounds its parts
// by itself.
const roleStopTimeout = 30 * time.Second

func newWorker() *cobra.Command {
	var natsURL, redisURL, listen string
	var logs logFlags
	cmd := &cobra.Command{
		Use:     "worker",
		Short:   "Deliver operations to agents and collect results; start as many as you like",
		Example: "  procfleet worker --nats nats://127.0.0.1:4222 --redis redis://127.0.0.1:6379/0",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logs.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return unlessStopped(cmd.Context(), runWorker(cmd.Context(), natsURL, redisURL, listen, log))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&listen, "observe", "", "address for /healthz, /readyz and /metrics; empty serves none")
	natsFlag(flags, &natsURL)
	redisFlag(flags, &redisURL)
	logs.register(flags)
	return cmd
}

func runWorker(ctx context.Context, natsURL, redisURL, listen string, log logrus.FieldLogger) error {
	metrics, err := telemetry.NewMetrics()
	if err != nil {
		return err
	}
	back, err := connectBus(ctx, natsconn.Config{URL: natsURL, Name: "worker", Log: log})
	if err != nil {
		return err
	}
	defer back.close(log)
	if err := back.openRedis(ctx, redisURL, log); err != nil {
		return err
	}
	w, err := worker.New(worker.Config{
		Conn: back.conn, Bus: back.bus, Store: back.store, Log: log,
		Meter: metrics.Meter("worker"), Reached: crashpoint.FromEnv(),
	})
	if err != nil {
		return err
	}
	group := lifecycle.NewGroup(log, roleStopTimeout)
	if listen != "" {
		o := &observer{address: listen, metrics: metrics.Handler(), ready: func(ctx context.Context) error {
			return errors.Join(back.ready(ctx), workerReady(w))
		}}
		group.Add("observer", o.run)
	}
	group.Add("worker", w.Run)
	return group.Run(ctx)
}

func workerReady(w *worker.Worker) error {
	if !w.Ready() {
		return errors.New("the worker does not pull from every lane yet")
	}
	return nil
}
