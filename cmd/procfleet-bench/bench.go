package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/bench"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/connflags"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
)

func benchmarks() []*cobra.Command {
	return []*cobra.Command{
		newFanout(), newSafety(), newSmall(), newEmbedded(), newAccept(), newPoll(),
		newReports(), newFair(), newWorkers(), newPresence(), newSweep(), newSupervise(), newCancel(), newFleet(), newRollout(),
	}
}

// measurement is a benchmark with its settings.
type measurement interface {
	Validate() error
	Run(ctx context.Context) (bench.Report, error)
	Common() *bench.Config
}

// systemCommand completes the command of a benchmark that uses the NATS and Redis
// of flags, or starts them.
func systemCommand(m measurement, runs int, cmd *cobra.Command) (*cobra.Command, *pflag.FlagSet) {
	cfg := m.Common()
	cmd, flags := benchCommand(m, runs, cmd)
	flags.BoolVar(&cfg.Start, "start", false, "temporary NATS and redis-server (from PATH) for the benchmark")
	flags.Var(&cfg.Secure, "secure", "security of --start: keys, credentials, tls; comma-separated, all or none")
	connflags.NATS(flags, &cfg.NATS, &cfg.NATSTLS)
	connflags.NATSCreds(flags, &cfg.NATSCreds)
	flags.StringVar(&cfg.FleetKey, "fleet-key", "", "fleet key file for the started roles and agents")
	connflags.Redis(flags, &cfg.Redis, &cfg.RedisTLS)
	return cmd, flags
}

// benchCommand completes the command of any benchmark: its run and the shared
// flags.
func benchCommand(m measurement, runs int, cmd *cobra.Command) (*cobra.Command, *pflag.FlagSet) {
	var logs daemon.Logs
	var file string
	cfg := m.Common()
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log, err := logs.Logger(cmd.ErrOrStderr())
		if err != nil {
			return command.Usagef("%w", err)
		}
		cfg.Log = log
		if err := m.Validate(); err != nil {
			return command.Usagef("%w", err)
		}
		report, err := m.Run(cmd.Context())
		if err != nil {
			return err
		}
		if file != "" {
			if err := report.JSON(file); err != nil {
				return err
			}
		}
		return report.Markdown(cmd.OutOrStdout())
	}
	flags := cmd.Flags()
	flags.IntVar(&cfg.Runs, "runs", runs, "repetitions of each measurement; tables show medians")
	flags.StringVar(&file, "json", "", "output file for the tables as JSON")
	flags.StringVar(&cfg.Procfleet, "procfleet", "", "procfleet program for the roles (default: beside this program)")
	logs.Register(flags)
	flags.Lookup("log-level").DefValue = "warn"
	logs.Level = "warn"
	return cmd, flags
}

func connectionsFlag(flags *pflag.FlagSet, connections *int) {
	flags.IntVar(connections, "connections", 0, "NATS connections of the agents, at most one each; 0 for 8")
}

// smallTaskFlags are the flags of benchmarks of tasks on one host each.
func smallTaskFlags(flags *pflag.FlagSet, tasks, inFlight, agents *int, defaultTasks int) {
	flags.IntVar(tasks, "tasks", defaultTasks, "tasks of each run")
	flags.IntVar(inFlight, "in-flight", 256, "concurrent tasks, each on its own HTTP connection")
	flags.IntVar(agents, "agents", 1000, "simulated agents")
}

func newFanout() *cobra.Command {
	m := &bench.Fanout{}
	cmd, flags := systemCommand(m, 5, &cobra.Command{
		Use: "fanout", Short: "Measure one task on many hosts",
		Long: `Measure one task on N simulated hosts from POST to "finished" in Redis. The floor, measured in the same run, is N bare NATS
requests on N subjects, N more for results that are separate requests, and N results through one deduplicating Redis script in
batches of 500. Agents reply to status with the result; with --action stop the result is a request of its own.`,
		Example: `  procfleet-bench fanout --start --hosts 1000,10000
  procfleet-bench fanout --start --action stop --hosts 10000
  procfleet-bench fanout --start --hosts 5000 --connections 5000
  procfleet-bench fanout --nats nats://127.0.0.1:4222 --redis redis://127.0.0.1:6379/0 --runs 9`,
	})
	flags.IntSliceVar(&m.Hosts, "hosts", []int{1000, 10000}, "numbers of hosts, comma-separated")
	flags.StringVar((*string)(&m.Action), "action", string(procfleet.ActionStatus), "action of the task: status or stop")
	connectionsFlag(flags, &m.Connections)
	return cmd
}

func newCancel() *cobra.Command {
	m := &bench.Cancel{}
	cmd, flags := systemCommand(m, 5, &cobra.Command{
		Use: "cancel", Short: "Measure the pause and the cancel of a running task",
		Long: `Measure the cancel of a task whose commands run on N simulated hosts, against a stop on the same hosts in the same run, and the
response to a pause against one read of the task from the store.`,
		Example: "  procfleet-bench cancel --start --hosts 10000",
	})
	flags.IntVar(&m.Hosts, "hosts", 10000, "hosts of the task, one simulated agent each")
	return cmd
}

func newFleet() *cobra.Command {
	m := &bench.Fleet{}
	cmd, flags := systemCommand(m, 5, &cobra.Command{
		Use: "fleet", Short: "Measure the lists of hosts and processes",
		Long: `Measure the first pages of the lists of hosts and processes of N hosts with a report each, with and without filters, against a
page of one host in the same run.`,
		Example: "  procfleet-bench fleet --start --hosts 100000",
	})
	flags.IntVar(&m.Hosts, "hosts", 100000, "hosts with a live agent")
	flags.IntVar(&m.Processes, "processes", 5, "processes per host")
	return cmd
}

func newSafety() *cobra.Command {
	m := &bench.Safety{}
	cmd, flags := benchCommand(m, 5, &cobra.Command{
		Use: "safety", Short: "Measure the cost of signatures, credentials and TLS",
		Long: `Measure the task of fanout and its floor in five systems, one after the other: unsecured, with signed messages, with NATS
users, with mutual TLS to NATS and Redis, and with all three. The benchmark starts NATS and redis-server (from PATH).`,
		Example: "  procfleet-bench safety --hosts 10000",
	})
	flags.IntVar(&m.Hosts, "hosts", 10000, "hosts of the task, one simulated agent each")
	connectionsFlag(flags, &m.Connections)
	return cmd
}

func newSmall() *cobra.Command {
	m := &bench.Small{}
	cmd, flags := systemCommand(m, 3, &cobra.Command{
		Use: "small", Short: "Measure tasks on one host each",
		Long: `Measure the status tasks accepted and finished per second, on one simulated host each, and the latency of a single task on
an idle system and, with --beside, during a task on many hosts. A task ends when its event arrives, which is published after
the task is finished in Redis.`,
		Example: `  procfleet-bench small --start
  procfleet-bench small --start --tasks 1000 --beside 100000`,
	})
	smallTaskFlags(flags, &m.Tasks, &m.InFlight, &m.Agents, 20000)
	flags.IntVar(&m.Samples, "samples", 200, "single tasks measured for latency")
	flags.IntVar(&m.Beside, "beside", 0, "hosts of a concurrent big task; 0 for none")
	return cmd
}

func newEmbedded() *cobra.Command {
	m := &bench.Embedded{}
	cmd, flags := benchCommand(m, 3, &cobra.Command{
		Use: "embedded", Short: "Measure tasks on one host each in procfleet up",
		Long: `Measure the status tasks, on one simulated host each, that "procfleet up" finishes per second with its embedded NATS and
store. Messages are signed and NATS users have credentials, as is the default of up.`,
		Example: "  procfleet-bench embedded --tasks 5000",
	})
	smallTaskFlags(flags, &m.Tasks, &m.InFlight, &m.Agents, 5000)
	return cmd
}

func newAccept() *cobra.Command {
	m := &bench.Accept{}
	cmd, flags := systemCommand(m, 5, &cobra.Command{
		Use: "accept", Short: "Measure the time to accept a task",
		Long: `Measure the time from POST to task id for status tasks and for starts that register their process. The floor is the request
body written to Redis and one acknowledged JetStream publish per 256 hosts. The system is idle before each submission.`,
		Example: "  procfleet-bench accept --start --hosts 1,10000,100000",
	})
	flags.IntSliceVar(&m.Hosts, "hosts", []int{1, 10000, 100000}, "numbers of hosts, comma-separated")
	flags.IntVar(&m.Samples, "samples", 200, "submissions on one host; others are repeated --runs times")
	return cmd
}

func newPoll() *cobra.Command {
	m := &bench.Poll{}
	cmd, flags := systemCommand(m, 9, &cobra.Command{
		Use: "poll", Short: "Measure reads of counters and results",
		Long: `Measure reads of the counters, of a page of up to 1,000 results, and of all results of finished tasks in each published
shape, and the memory of the dispatcher meanwhile. The floor is a bare HTTP server that reads as many bytes from Redis with
one GET per response.`,
		Example: "  procfleet-bench poll --start --items 1,10000,100000",
	})
	flags.IntSliceVar(&m.Items, "items", []int{1, 10000, 100000}, "task sizes, comma-separated")
	flags.IntVar(&m.Samples, "samples", 200, "reads of counters and pages; others are repeated --runs times")
	return cmd
}

func newReports() *cobra.Command {
	m := &bench.Reports{}
	cmd, flags := systemCommand(m, 1, &cobra.Command{
		Use: "reports", Short: "Measure the cost of agents' process reports",
		Long: `Measure the processor time of worker, Redis and NATS for the reports of simulated agents: the time with reports less the
time without. The floor is bare NATS and Redis that forward and write as many bytes at the same rate. A run takes about
--every plus three times --for.`,
		Example: `  procfleet-bench reports --start
  procfleet-bench reports --start --agents 10000 --every 3s --for 10s`,
	})
	flags.IntVar(&m.Agents, "agents", 100000, "simulated agents")
	flags.IntVar(&m.Processes, "processes", 3, "processes in each report")
	flags.DurationVar(&m.Every, "every", 30*time.Second, "report interval of an agent")
	flags.DurationVar(&m.For, "for", 20*time.Second, "duration of each measurement of processor time")
	flags.StringVar(&m.PProf, "pprof", "", "loopback address of the worker's profiles")
	return cmd
}

func newFair() *cobra.Command {
	m := &bench.Fair{}
	cmd, flags := systemCommand(m, 3, &cobra.Command{
		Use: "fair", Short: "Measure the fairness between concurrent tasks",
		Long: `Measure the progress of big status tasks that start together on the same simulated hosts, the latency of a task on one host
meanwhile, and the duration of a task in one cloud area during a task in another area that has no agents, agents that do not
reply, or agents that disconnect and reconnect.`,
		Example: `  procfleet-bench fair --start
  procfleet-bench fair --start --tasks 4 --hosts 100000 --area 20000`,
	})
	flags.IntVar(&m.Tasks, "tasks", 4, "big tasks that start together")
	flags.IntVar(&m.Hosts, "hosts", 100000, "hosts of each task, one simulated agent each")
	flags.IntVar(&m.Samples, "samples", 200, "tasks on one host, measured on an idle system")
	flags.IntVar(&m.Area, "area", 20000, "hosts of the unavailable area and of each task beside it")
	return cmd
}

func newWorkers() *cobra.Command {
	m := &bench.Workers{}
	cmd, flags := systemCommand(m, 5, &cobra.Command{
		Use: "workers", Short: "Measure the effect of more workers",
		Long: `Measure one status task on many simulated hosts with different numbers of workers and different latencies of agents, and the
processor time of each part of the system.`,
		Example: "  procfleet-bench workers --start --workers 1,2,4 --latency 0s,100ms,1s",
	})
	flags.IntVar(&m.Hosts, "hosts", 10000, "hosts of the task, one simulated agent each")
	workersFlag(flags, &m.Workers, 1, 2, 4)
	flags.DurationSliceVar(&m.Latencies, "latency", []time.Duration{0, 100 * time.Millisecond, time.Second}, "agent latencies, comma-separated")
	return cmd
}

func newRollout() *cobra.Command {
	m := &bench.Rollout{}
	cmd, flags := systemCommand(m, 3, &cobra.Command{
		Use: "rollout", Short: "Measure gradual tasks",
		Long: `Measure gradual status tasks on many simulated hosts with different windows: how much of the window is in use, how soon a free
place is used again, and the whole rollout.`,
		Example: "  procfleet-bench rollout --start --windows 100,1000 --latency 1s",
	})
	flags.IntVar(&m.Hosts, "hosts", 10000, "hosts of the task, one simulated agent each")
	flags.IntSliceVar(&m.Windows, "windows", []int{100, 1000}, "hosts at work at most, comma-separated")
	flags.DurationVar(&m.Latency, "latency", time.Second, "latency of the agents")
	return cmd
}

func workersFlag(flags *pflag.FlagSet, workers *[]int, byDefault ...int) {
	flags.IntSliceVar(workers, "workers", byDefault, "numbers of workers, comma-separated")
}

func newPresence() *cobra.Command {
	m := &bench.Presence{}
	cmd, flags := systemCommand(m, 1, &cobra.Command{
		Use: "presence", Short: "Measure the cost of idle hosts and open tasks",
		Long: `Announce hosts to Redis in batches as a worker does, read them as for a chunk, list them, and find due tasks among open ones
as the sweep does. No roles are started; the figures are of single sequential calls.`,
		Example: "  procfleet-bench presence --start --hosts 1000000 --areas 50 --tasks 100000",
	})
	flags.IntVar(&m.Hosts, "hosts", 1000000, "announced hosts")
	flags.IntVar(&m.Areas, "areas", 50, "cloud areas of the hosts")
	flags.IntVar(&m.Tasks, "tasks", 100000, "open tasks on one host each; 1 % become due")
	return cmd
}

func newSweep() *cobra.Command {
	m := &bench.Sweep{}
	cmd, flags := systemCommand(m, 1, &cobra.Command{
		Use: "sweep", Short: "Measure the tasks that the sweep visits per second",
		Long: `Store tasks, make all of them due at once, and measure the time in which workers visit them: finished tasks and running
tasks. The floor is a bare pipelined read of the same tasks from the same Redis.`,
		Example: "  procfleet-bench sweep --start --tasks 50000 --workers 1,2",
	})
	flags.IntVar(&m.Tasks, "tasks", 50000, "tasks on one host each")
	workersFlag(flags, &m.Workers, 1, 2)
	return cmd
}

func newSupervise() *cobra.Command {
	m := &bench.Supervise{}
	cmd, flags := benchCommand(m, 3, &cobra.Command{
		Use: "supervise", Short: "Measure the cost and speed of supervision",
		Long: `Measure an agent that supervises idle processes: its processor time and memory, the delays until it detects a death and
restarts a killed process, the time to adopt all processes after it was killed itself, and a burst of operations. Measure
supervisord, where it has the function, and procfleet up likewise. The floor is a bare wait for a child and a bare start of
the same command. The benchmark starts NATS. Linux only.`,
		Example: `  procfleet-bench supervise
  procfleet-bench supervise --agent bin/procfleet-agent --supervisord /usr/bin/supervisord --json supervise.json
  procfleet-bench supervise --processes 20 --up-processes 5 --operations 40 --kills 10 --for 2s --runs 1`,
	})
	flags.StringVar(&m.Agent, "agent", "", "agent program (default: procfleet-agent beside this program, or procfleet agent)")
	flags.StringVar(&m.Supervisord, "supervisord", "supervisord", "supervisord program; empty or missing for none")
	flags.IntVar(&m.Processes, "processes", 1000, "supervised processes")
	flags.IntVar(&m.UpProcesses, "up-processes", 300, "supervised processes of procfleet up; 0 for none")
	flags.IntVar(&m.Operations, "operations", 5000, "operations in a burst")
	flags.IntVar(&m.Kills, "kills", 100, "processes killed for the detection delay, at most --processes")
	flags.DurationVar(&m.For, "for", 20*time.Second, "duration of each measurement of processor time")
	return cmd
}
