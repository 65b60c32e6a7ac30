// Command procfleet-agent is the host side of procfleet: `procfleet agent`
// without everything that a host does not need.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/agentcmd"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/internal/lifecycle"
	"github.com/procfleet/procfleet/internal/plaintext"
)

// version is set by the linker.
var version = "dev"

// Exit codes.
const (
	exitFailed     = 1
	exitUsage      = 2
	exitSecondCall = 130 // the user insisted, as shells count SIGINT
)

func main() {
	collectSooner()
	ctx, stop := lifecycle.WithSignals(context.Background(), func() { os.Exit(exitSecondCall) })
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	// What is on the host does not steer the terminal.
	stdout, stderr = plaintext.NewWriter(stdout), plaintext.NewWriter(stderr)
	cmd := newCommand()
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "procfleet-agent:", err)
	if errors.Is(err, settings.ErrUsage) {
		return exitUsage
	}
	return exitFailed
}

func newCommand() *cobra.Command {
	cmd := agentcmd.New(version)
	cmd.Use = "procfleet-agent"
	cmd.Version = version
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.CompletionOptions.HiddenDefaultCmd = true
	cmd.Long += `

Every flag can also be given as an environment variable: --agent-id as PROCFLEET_AGENT_ID,
or in a YAML file of flag names and values, named by --config. A flag counts before the
environment, the environment before the file.`
	cmd.Flags().String(settings.Flag, "", "YAML file of flag names and values")
	cmd.AddCommand(daemon.Healthcheck("procfleet-agent", "http://127.0.0.1:9090/readyz"))
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w (%w)", err, settings.ErrUsage) })
	return cmd
}
