package main

import (
	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/fanout"
)

func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "bench",
		Short:   "Measure this machine",
		Example: "  procfleet bench fanout --start --hosts 1000,10000",
		Args:    usageArgs(cobra.NoArgs),
		RunE:    nameACommand,
	}
	cmd.AddCommand(newBenchFanout())
	return cmd
}

func newBenchFanout() *cobra.Command {
	var cfg fanout.Config
	var logs logFlags
	cmd := &cobra.Command{
		Use:   "fanout",
		Short: "Measure one task on many hosts against the floor that NATS and Redis set",
		Long: `Measure one status task on N simulated hosts, from POST to "finished" in Redis, and, in the same run,
the floor: N bare NATS request/replies on N subjects, N bare JetStream publishes with a message id,
N messages pulled and acknowledged in batches, N results through one deduplicating Redis script in
batches of 500. Dispatcher, worker and agents are processes of this program; NATS and Redis are those
of --nats and --redis, which should have nothing else to do, or started with --start.`,
		Example: `  procfleet bench fanout --start --hosts 1000,10000
  procfleet bench fanout --nats nats://127.0.0.1:4222 --redis redis://127.0.0.1:6379/0 --runs 9`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logs.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			cfg.Log, cfg.Out = log, cmd.OutOrStdout()
			if err := cfg.Validate(); err != nil {
				return usageError("%w", err)
			}
			return fanout.Run(cmd.Context(), cfg)
		},
	}
	flags := cmd.Flags()
	flags.IntSliceVar(&cfg.Hosts, "hosts", []int{1000, 10000}, "numbers of hosts, separated by commas")
	flags.IntVar(&cfg.Runs, "runs", 5, "times that everything is measured; the table shows medians")
	flags.BoolVar(&cfg.Start, "start", false, "start redis-server (from PATH) and NATS for the time of the benchmark")
	natsFlag(flags, &cfg.NATS)
	redisFlag(flags, &cfg.Redis)
	logs.register(flags)
	flags.Lookup("log-level").DefValue = "warn"
	logs.level = "warn"
	return cmd
}
