// Command procfleet-agent is the host side of procfleet: `procfleet agent`
// without everything that a host does not need.
package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/agentcmd"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/cmd/internal/settings"
)

// version is set by the linker.
var version = "dev"

func main() {
	collectSooner()
	command.Main(run)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := newCommand()
	return command.Exit(cmd, command.Execute(ctx, cmd, args, stdout, stderr), "")
}

func newCommand() *cobra.Command {
	cmd := agentcmd.New(version)
	cmd.Use = "procfleet-agent"
	command.Prepare(cmd, version)
	cmd.Long += `

Every flag can also be given as an environment variable: --agent-id as PROCFLEET_AGENT_ID,
or in a YAML file of flag names and values, named by --config. A flag counts before the
environment, the environment before the file.`
	cmd.Flags().String(settings.Flag, "", "YAML file of flag names and values")
	cmd.AddCommand(daemon.Healthcheck("procfleet-agent", "http://127.0.0.1:9090/readyz"))
	return cmd
}
