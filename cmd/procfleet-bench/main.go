// Command procfleet-bench is for developers of procfleet: each benchmark is a
// subcommand, and `simulate` runs agents that have no processes. Dispatcher and
// worker of a benchmark are processes of the program procfleet.
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
		Long: `Measure the system against the floor that this machine's NATS and Redis set, in the same run. Dispatcher and
worker are processes of procfleet (--procfleet), agents are simulated; NATS and Redis are those of --nats and --redis,
which should have nothing else to do, or started with --start. What --secure turns on there is on for the floor too,
but for signatures. Tables are written in Markdown.`,
		Example: "  procfleet-bench fanout --start --hosts 1000,10000",
	}
	command.Prepare(root, "")
	root.AddCommand(benchmarks()...)
	root.AddCommand(newSimulate(), newNATSServer())
	return root
}
