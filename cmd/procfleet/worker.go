package main

import (
	"context"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/internal/crashpoint"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/telemetry"
	"github.com/procfleet/procfleet/worker"
)

func newWorker() *cobra.Command {
	var natsURL, redisURL string
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
			return runWorker(cmd.Context(), natsURL, redisURL, log)
		},
	}
	flags := cmd.Flags()
	natsFlag(flags, &natsURL)
	redisFlag(flags, &redisURL)
	logs.register(flags)
	return cmd
}

func runWorker(ctx context.Context, natsURL, redisURL string, log logrus.FieldLogger) error {
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
	return w.Run(ctx)
}
