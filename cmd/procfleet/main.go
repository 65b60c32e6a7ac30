// Command procfleet operates processes on fleets of hosts. Most files of this package
// implement one subcommand: it translates flags into the Config of a role or a client,
// runs it, and maps the outcome to an exit code: 0 success, 1 failure, 2 wrong usage,
// 3 some host failed, 4 some process is down (for example `op status --wait`).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	_ "time/tzdata" // embeds the time zones of maintenance windows, which a system may lack

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/agentcmd"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
)

// Errors of commands that succeeded themselves, and their exit codes. No message is printed
// for them: the output already lists the hosts.
var (
	errHostsFailed   = errors.New("some hosts failed")
	errProcessesDown = errors.New("some processes do not run")
)

const (
	exitHostsFailed   = 3
	exitProcessesDown = 4
)

func main() { command.Main(run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	err := command.Execute(ctx, root, args, stdout, stderr)
	switch {
	case errors.Is(err, errHostsFailed):
		return exitHostsFailed
	case errors.Is(err, errProcessesDown):
		return exitProcessesDown
	}
	return command.Exit(root, err, advice(err))
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "procfleet",
		Short: "Operate processes on fleets of hosts",
		Long:  `Start, stop, supervise and query processes on any number of hosts, through an agent on each host.`,
		Example: `  procfleet up --demo
  procfleet status shop/web`,
		Annotations: map[string]string{
			command.ExitCodes: "0 success, 1 failure, 2 wrong usage, 3 some host failed, 4 some process is down, 130 second signal",
		},
	}
	command.Prepare(root, append(newVerbs(),
		newHosts(), newPS(), newTasks(), newLogs(), newContext(), newImport(),
		newUp(), newDispatcher(), newWorker(), agentcmd.New(),
		newOp(), newTask(), newProcess(), newRegistration(), newLabel(), newFreeze(), newEvents(), newAudit(), newTopology(), newRollout(), newWindow(), newSchedule(), newWebhook(),
		newApp(), newFleetKey(), newNATSAuth(), newEnroll(), newRevoke(), newRedisUsers(),
		newVersion(), newDemoProcess(),
		daemon.Healthcheck("procfleet", "http://127.0.0.1:8080/readyz"),
	)...)
	return root
}

// exactly requires one non-empty argument: an unset shell variable yields an empty one.
func exactly(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return command.Usagef("give one %s, got %q", name, args)
		}
		return nil
	}
}

// atLeast accepts one or more arguments of the given name.
func atLeast(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 || slices.Contains(args, "") {
			return command.Usagef("give at least one %s, got %q", name, args)
		}
		return nil
	}
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  procfleet version",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "procfleet", command.Build())
			return err
		},
	}
}
