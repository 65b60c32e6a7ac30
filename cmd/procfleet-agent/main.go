// Command procfleet-agent is `procfleet agent` without the libraries of the servers.
package main

import (
	"context"
	"io"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/agentcmd"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
)

func main() {
	setGCPercent()
	command.Main(run)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := newCommand()
	return command.Exit(cmd, command.Execute(ctx, cmd, args, stdout, stderr), "")
}

func newCommand() *cobra.Command {
	cmd := agentcmd.New()
	cmd.Use = "procfleet-agent"
	command.Prepare(cmd)
	cmd.AddCommand(daemon.Healthcheck("procfleet-agent", "http://127.0.0.1:9090/readyz"))
	return cmd
}

// gcPercent is the GC percentage, half of the runtime's default: an agent is mostly
// idle and shares its host with the programs that it supervises.
const gcPercent = 50

// setGCPercent sets the GC percentage unless GOGC is set.
func setGCPercent() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
