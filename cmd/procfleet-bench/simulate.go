package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/connflags"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/cmd/internal/simulate"
	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
)

// garbagePercent is the GC percentage of simulated agents: they share the machine
// with the system under test.
const garbagePercent = 400

func newSimulate() *cobra.Command {
	var cfg simulate.Config
	var logs daemon.Logs
	var keyFile, creds string
	var natsTLS tlsflags.Client
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Run many simulated agents for scale tests",
		Long: `Run many light agents in one process. They implement the agent protocol without processes: every operation succeeds
after --latency. With --processes each reports as many supervised processes. Agent i, counted from 0, is host
10.(i>>16).(i>>8&255).(i&255) of the cloud area. The command prints "ready N" when all N agents have announced themselves.`,
		Example: `  procfleet-bench simulate --agents 10000 --nats nats://127.0.0.1:4222
  procfleet-bench simulate --agents 5000 --connections 5000
  procfleet-bench simulate --agents 1000 --processes 3`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logs.Logger(cmd.ErrOrStderr())
			if err != nil {
				return command.Usagef("%w", err)
			}
			cfg.Log = log
			if cfg.Keys, err = connflags.OpenFleetKey(cmd.Context(), keyFile, log); err != nil {
				return command.Usagef("--fleet-key: %w", err)
			}
			if cfg.TLS, err = natsTLS.Open(log); err != nil {
				return command.Usagef("%w", err)
			}
			cfg.Credentials = connflags.Credentials(creds)
			cfg.Ready = func() { fmt.Fprintf(cmd.OutOrStdout(), "ready %d\n", cfg.Agents) }
			fleet, err := simulate.New(cfg)
			if err != nil {
				return command.Usagef("%w", err)
			}
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(garbagePercent)
			}
			return fleet.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&cfg.Agents, "agents", 1000, "simulated agents")
	flags.IntVar(&cfg.Connections, "connections", 8, "NATS connections shared by the agents, at most one per agent")
	flags.Int64Var(&cfg.Cloud, "cloud", 0, "cloud area of the agents")
	flags.DurationVar(&cfg.Latency, "latency", 0*time.Millisecond, "duration of every operation")
	flags.IntVar(&cfg.Processes, "processes", 0, "processes reported by each agent; 0 disables reports")
	flags.DurationVar(&cfg.ReportEvery, "report-every", 30*time.Second, "report interval of an agent; reports are spread over it")
	connflags.NATS(flags, &cfg.URL, &natsTLS)
	connflags.NATSCreds(flags, &creds)
	flags.StringVar(&keyFile, "fleet-key", "", "fleet key file for agent signatures (default: unsigned)")
	logs.Register(flags)
	return cmd
}
