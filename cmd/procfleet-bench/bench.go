package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/bench"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/connflags"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
)

func benchmarks() []*cobra.Command {
	return []*cobra.Command{
		newFanout(), newSafety(), newSmall(), newEmbedded(), newAccept(), newPoll(),
		newReports(), newFair(), newWorkers(), newPresence(), newSweep(), newSupervise(),
	}
}

// measurement is a benchmark with its settings.
type measurement interface {
	Validate() error
	Run(ctx context.Context) (bench.Report, error)
}

// benchCommand gives a command what the benchmarks of servers share: the flags
// of cfg, and its run, which is m's.
func benchCommand(cmd *cobra.Command, runs int, cfg *bench.Config, m measurement) *cobra.Command {
	cmd = measureCommand(cmd, runs, cfg, m)
	flags := cmd.Flags()
	flags.BoolVar(&cfg.Start, "start", false, "start redis-server (from PATH) and NATS for the time of the benchmark")
	flags.Var(&cfg.Secure, "secure", "what is on in what --start starts: keys, credentials and tls, separated by commas, or all or none; every table says it")
	connflags.NATS(flags, &cfg.NATS, &cfg.NATSTLS)
	connflags.NATSCreds(flags, &cfg.NATSCreds)
	flags.StringVar(&cfg.FleetKey, "fleet-key", "", "file of the fleet's keys, of which the roles and agents that are started have theirs")
	connflags.Redis(flags, &cfg.Redis, &cfg.RedisTLS)
	return cmd
}

// measureCommand gives a command what all benchmarks share.
func measureCommand(cmd *cobra.Command, runs int, cfg *bench.Config, m measurement) *cobra.Command {
	var logs daemon.Logs
	var file string
	cmd.Args = command.NoArgs
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
	flags.IntVar(&cfg.Runs, "runs", runs, "times that everything is measured; tables show medians")
	flags.StringVar(&file, "json", "", "file for the tables as JSON")
	flags.StringVar(&cfg.Procfleet, "procfleet", "", "program that dispatchers, workers and up are started from; default: the procfleet beside this program")
	logs.Register(flags)
	flags.Lookup("log-level").DefValue = "warn"
	logs.Level = "warn"
	return cmd
}

func newFanout() *cobra.Command {
	m := &bench.Fanout{}
	cmd := benchCommand(&cobra.Command{
		Use:   "fanout",
		Short: "Measure one task on many hosts",
		Long: `Measure one task on N simulated hosts, from POST to "finished" in Redis, and, in the same run,
the floor: N bare NATS request/replies on N subjects, as many again for results that do not come in the replies, and N results
through one deduplicating Redis script in batches of 500. Beside it, for comparison, is the floor of results in a stream, which
procfleet no longer has. Agents reply to a status with the result; --action stop has results that are requests of their own.`,
		Example: `  procfleet-bench fanout --start --hosts 1000,10000
  procfleet-bench fanout --start --action stop --hosts 10000
  procfleet-bench fanout --start --hosts 5000 --connections 5000
  procfleet-bench fanout --nats nats://127.0.0.1:4222 --redis redis://127.0.0.1:6379/0 --runs 9`,
	}, 5, &m.Config, m)
	cmd.Flags().IntSliceVar(&m.Hosts, "hosts", []int{1000, 10000}, "numbers of hosts, separated by commas")
	cmd.Flags().IntVar(&m.Connections, "connections", 0, "connections to NATS that the agents share; 0 is 8, more than hosts one each")
	cmd.Flags().StringVar((*string)(&m.Action), "action", string(procfleet.ActionStatus), "what the task does: status or stop")
	return cmd
}

func newSafety() *cobra.Command {
	m := &bench.Safety{}
	cmd := measureCommand(&cobra.Command{
		Use:   "safety",
		Short: "Measure what signatures, credentials and TLS cost",
		Long: `Measure the task of fanout and its floor in five systems, one after the other: with nothing secure, with every message
signed, with users that NATS knows, with mutual TLS to NATS and Redis, and with all of it. NATS and Redis (redis-server, from
PATH) are started for the time of the benchmark.`,
		Example: "  procfleet-bench safety --hosts 10000",
	}, 5, &m.Config, m)
	cmd.Flags().IntVar(&m.Hosts, "hosts", 10000, "hosts of the task, on as many simulated agents")
	cmd.Flags().IntVar(&m.Connections, "connections", 0, "connections to NATS that the agents share; 0 is 8, more than hosts one each")
	return cmd
}

func newSmall() *cobra.Command {
	m := &bench.Small{}
	cmd := benchCommand(&cobra.Command{
		Use:   "small",
		Short: "Measure tasks on one host each",
		Long: `Measure how many status tasks on one simulated host each are accepted and finished per second, and how
long a single one takes while nothing else happens and, with --beside, while a task on many hosts runs.
The end of a task is when its event arrives, which is sent after the task is finished in Redis.`,
		Example: `  procfleet-bench small --start
  procfleet-bench small --start --tasks 1000 --beside 100000`,
	}, 3, &m.Config, m)
	flags := cmd.Flags()
	flags.IntVar(&m.Tasks, "tasks", 20000, "tasks of each run")
	flags.IntVar(&m.InFlight, "in-flight", 256, "tasks between POST and end at a time, each on a connection of its own")
	flags.IntVar(&m.Agents, "agents", 1000, "simulated agents over which the tasks are spread")
	flags.IntVar(&m.Samples, "samples", 200, "single tasks whose time is taken")
	flags.IntVar(&m.Beside, "beside", 0, "hosts of a big task beside which single tasks are measured too")
	return cmd
}

func newEmbedded() *cobra.Command {
	m := &bench.Embedded{}
	cmd := measureCommand(&cobra.Command{
		Use:   "embedded",
		Short: "Measure tasks on one host each in procfleet up alone",
		Long: `Measure how many status tasks on one simulated host each are finished per second by "procfleet up" with its embedded NATS and store.
Messages are signed and NATS users have credentials, as up makes them.`,
		Example: "  procfleet-bench embedded --tasks 5000",
	}, 3, &m.Config, m)
	flags := cmd.Flags()
	flags.IntVar(&m.Tasks, "tasks", 5000, "tasks of each run")
	flags.IntVar(&m.InFlight, "in-flight", 256, "tasks between POST and end at a time, each on a connection of its own")
	flags.IntVar(&m.Agents, "agents", 1000, "simulated agents over which the tasks are spread")
	return cmd
}

func newAccept() *cobra.Command {
	m := &bench.Accept{}
	cmd := benchCommand(&cobra.Command{
		Use:   "accept",
		Short: "Measure how long accepting takes",
		Long: `Measure the time from POST to id of status tasks, and of starts that register their process, against the bytes of
the request written to Redis and one acknowledged JetStream publish for each 256 hosts. The system is idle again
before each submission.`,
		Example: "  procfleet-bench accept --start --hosts 1,10000,100000",
	}, 5, &m.Config, m)
	cmd.Flags().IntSliceVar(&m.Hosts, "hosts", []int{1, 10000, 100000}, "numbers of hosts, separated by commas")
	cmd.Flags().IntVar(&m.Samples, "samples", 200, "submissions on one host; those on more are measured --runs times")
	return cmd
}

func newPoll() *cobra.Command {
	m := &bench.Poll{}
	cmd := benchCommand(&cobra.Command{
		Use:   "poll",
		Short: "Measure reading of counters and results",
		Long: `Measure how long it takes to read the counters, a page of up to 1,000 results, and all results of finished
tasks in each published shape, against a bare HTTP server that gets as many bytes from Redis with one GET
for each answer; and how much memory the dispatcher has meanwhile.`,
		Example: "  procfleet-bench poll --start --items 1,10000,100000",
	}, 9, &m.Config, m)
	cmd.Flags().IntSliceVar(&m.Items, "items", []int{1, 10000, 100000}, "sizes of the tasks that are read, separated by commas")
	cmd.Flags().IntVar(&m.Samples, "samples", 200, "reads of counters and of a page; all results are read --runs times")
	return cmd
}

func newReports() *cobra.Command {
	m := &bench.Reports{}
	cmd := benchCommand(&cobra.Command{
		Use:   "reports",
		Short: "Measure what agents' reports of their processes cost",
		Long: `Measure the processor time that worker, Redis and NATS spend on the reports of simulated agents, which is what
they spend with reports less what they spend without, against bare NATS and Redis that pass on and write as
many bytes at the same rate. It takes about as long as --every and three times --for, for each run.`,
		Example: `  procfleet-bench reports --start
  procfleet-bench reports --start --agents 10000 --every 3s --for 10s`,
	}, 1, &m.Config, m)
	flags := cmd.Flags()
	flags.IntVar(&m.Agents, "agents", 100000, "simulated agents")
	flags.IntVar(&m.Processes, "processes", 3, "processes in each report")
	flags.DurationVar(&m.Every, "every", 30*time.Second, "time between two reports of an agent")
	flags.DurationVar(&m.For, "for", 20*time.Second, "how long processor time is counted, each time")
	flags.StringVar(&m.PProf, "pprof", "", "address on loopback where the worker serves its profiles meanwhile")
	return cmd
}

func newFair() *cobra.Command {
	m := &bench.Fair{}
	cmd := benchCommand(&cobra.Command{
		Use:   "fair",
		Short: "Measure how tasks get on beside one another",
		Long: `Measure how evenly big status tasks on the same simulated hosts get on that begin at once, how long a task on one host
takes meanwhile, and how long a task in one cloud area takes beside one in another area that has no agents, whose agents
are silent, or whose agents come and go.`,
		Example: `  procfleet-bench fair --start
  procfleet-bench fair --start --tasks 4 --hosts 100000 --area 20000`,
	}, 3, &m.Config, m)
	flags := cmd.Flags()
	flags.IntVar(&m.Tasks, "tasks", 4, "big tasks that begin at once")
	flags.IntVar(&m.Hosts, "hosts", 100000, "hosts of each of them, on as many simulated agents")
	flags.IntVar(&m.Samples, "samples", 200, "tasks on one host whose time is taken while nothing else happens")
	flags.IntVar(&m.Area, "area", 20000, "hosts of the area that is away, and of the tasks beside it")
	return cmd
}

func newWorkers() *cobra.Command {
	m := &bench.Workers{}
	cmd := benchCommand(&cobra.Command{
		Use:   "workers",
		Short: "Measure what more workers bring",
		Long: `Measure one status task on many simulated hosts with different numbers of workers and with agents that take
different times, and what processor time each part of the system spends on it.`,
		Example: "  procfleet-bench workers --start --workers 1,2,4 --latency 0s,100ms,1s",
	}, 5, &m.Config, m)
	flags := cmd.Flags()
	flags.IntVar(&m.Hosts, "hosts", 10000, "hosts of the task, on as many simulated agents")
	flags.IntSliceVar(&m.Workers, "workers", []int{1, 2, 4}, "numbers of workers, separated by commas")
	flags.DurationSliceVar(&m.Latencies, "latency", []time.Duration{0, 100 * time.Millisecond, time.Second}, "times from acceptance to result, separated by commas")
	return cmd
}

func newPresence() *cobra.Command {
	m := &bench.Presence{}
	cmd := benchCommand(&cobra.Command{
		Use:   "presence",
		Short: "Measure what hosts and open tasks cost that nothing is done with",
		Long: `Announce hosts to Redis in batches as a worker does, look them up as for a chunk, list them, and look for due tasks
among open ones as the sweep does. No roles are started; the figures are of single calls, one after the other.`,
		Example: "  procfleet-bench presence --start --hosts 1000000 --areas 50 --tasks 100000",
	}, 1, &m.Config, m)
	flags := cmd.Flags()
	flags.IntVar(&m.Hosts, "hosts", 1000000, "hosts that announce themselves")
	flags.IntVar(&m.Areas, "areas", 50, "cloud areas over which they are spread")
	flags.IntVar(&m.Tasks, "tasks", 100000, "open tasks on one host each, of which 1 % become due")
	return cmd
}

func newSweep() *cobra.Command {
	m := &bench.Sweep{}
	cmd := benchCommand(&cobra.Command{
		Use:   "sweep",
		Short: "Measure how many visits a second the sweep makes",
		Long: `Store tasks, make all of them due at once, and measure how long workers take to visit them: tasks that are over,
and tasks that run. The floor is a bare pipelined read of the same tasks from the same Redis.`,
		Example: "  procfleet-bench sweep --start --tasks 50000 --workers 1,2",
	}, 1, &m.Config, m)
	flags := cmd.Flags()
	flags.IntVar(&m.Tasks, "tasks", 50000, "tasks on one host each")
	flags.IntSliceVar(&m.Workers, "workers", []int{1, 2}, "numbers of workers, separated by commas")
	return cmd
}

func newSupervise() *cobra.Command {
	m := &bench.Supervise{}
	cmd := measureCommand(&cobra.Command{
		Use:   "supervise",
		Short: "Measure what supervising processes costs, and how fast it is",
		Long: `Measure an agent that keeps idle processes alive: its processor time and memory, how soon it knows of a death, how
soon a killed process is back, how long it takes to find all of them after it was killed itself, and a burst
of operations; then the same of supervisord where it can do it, and of procfleet up as a whole. The floor is a
bare wait for a child, and a bare start of the same command. Nothing else is needed: NATS is started for
the time of the benchmark. Only on Linux.`,
		Example: `  procfleet-bench supervise
  procfleet-bench supervise --agent bin/procfleet-agent --supervisord /usr/bin/supervisord --json supervise.json
  procfleet-bench supervise --processes 20 --up-processes 5 --operations 40 --kills 10 --for 2s --runs 1`,
	}, 3, &m.Config, m)
	flags := cmd.Flags()
	flags.StringVar(&m.Agent, "agent", "", "program of the agent; default: the procfleet-agent beside this program, or else procfleet agent")
	flags.StringVar(&m.Supervisord, "supervisord", "supervisord", "program of supervisord; empty, or not found, leaves it out")
	flags.IntVar(&m.Processes, "processes", 1000, "processes that are supervised")
	flags.IntVar(&m.UpProcesses, "up-processes", 300, "processes that procfleet up supervises; 0 leaves it out")
	flags.IntVar(&m.Operations, "operations", 5000, "operations in a burst")
	flags.IntVar(&m.Kills, "kills", 100, "processes that are killed to see how soon it is known; at most --processes")
	flags.DurationVar(&m.For, "for", 20*time.Second, "how long processor time is counted, each time")
	return cmd
}
