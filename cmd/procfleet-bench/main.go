// Command procfleet-bench runs benchmarks, one per subcommand, and simulated agents
// (`simulate`). The roles of a benchmark are processes of the program procfleet.
package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/command"
)

func main() { command.Main(run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	return command.Exit(root, command.Execute(ctx, root, args, stdout, stderr), "")
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "procfleet-bench",
		Short: "Measure procfleet on this machine",
		Long: `Measure the system and, in the same run, the floor: bare NATS and Redis calls on the same machine. Dispatcher and worker
are processes of --procfleet, agents are simulated. NATS and Redis are those of --nats and --redis, which should be idle,
or started with --start. The options of --secure apply to the floor too, except signatures. Tables are in Markdown.`,
		Example: "  procfleet-bench fanout --start --hosts 1000,10000",
	}
	command.Prepare(root, append(benchmarks(), newSimulate(), newNATSServer())...)
	return root
}
