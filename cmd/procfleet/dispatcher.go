package main

import (
	"context"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/dispatcher"
	"github.com/procfleet/procfleet/internal/crashpoint"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/telemetry"
)

func newDispatcher() *cobra.Command {
	var cfg dispatcher.Config
	var natsURL, redisURL string
	var logs logFlags
	cmd := &cobra.Command{
		Use:     "dispatcher",
		Short:   "Accept operations over HTTP and answer queries; start as many as you like",
		Example: "  procfleet dispatcher --http 127.0.0.1:8080 --nats nats://127.0.0.1:4222 --redis redis://127.0.0.1:6379/0",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logs.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if err := cfg.WithDefaults().Validate(); err != nil {
				return usageError("%w", err)
			}
			return unlessStopped(cmd.Context(), runDispatcher(cmd.Context(), cfg, natsURL, redisURL, log))
		},
	}
	flags := cmd.Flags()
	httpFlags(flags, &cfg.Listen, &cfg.AllowUnauthenticated)
	natsFlag(flags, &natsURL)
	redisFlag(flags, &redisURL)
	logs.register(flags)
	return cmd
}

func runDispatcher(ctx context.Context, cfg dispatcher.Config, natsURL, redisURL string, log logrus.FieldLogger) error {
	listener, err := listen(ctx, "--http", cfg.Listen)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // in case nobody serves it
	metrics, err := telemetry.NewMetrics()
	if err != nil {
		return err
	}
	back, err := connectBus(ctx, natsconn.Config{URL: natsURL, Name: "dispatcher", Log: log})
	if err != nil {
		return err
	}
	defer back.close(log)
	if err := back.openRedis(ctx, redisURL, log); err != nil {
		return err
	}
	cfg.Listener = listener
	cfg.Log, cfg.Meter, cfg.Metrics = log, metrics.Meter("dispatcher"), metrics.Handler()
	cfg.Ready, cfg.Reached = back.ready, crashpoint.FromEnv()
	d, err := dispatcher.New(cfg, back.store, back.bus)
	if err != nil {
		return err
	}
	return d.Run(ctx)
}
