// Command procfleet operates processes on fleets of hosts. Each file of this
// package is one subcommand: it translates flags into the Config of the role
// or client that does the work, runs it, and turns the outcome into an exit
// code: 0 fine, 1 failed, 2 wrong usage; `op --wait` and `task watch` have 3
// when some host failed.
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
	exitFailed      = 1
	exitUsage       = 2
	exitHostsFailed = 3
	exitSecondCall  = 130 // the user insisted, as shells count SIGINT
)

func main() {
	ctx, stop := lifecycle.WithSignals(context.Background(), func() { os.Exit(exitSecondCall) })
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// errUsage is wrapped by errors of how the command was called.
var errUsage = settings.ErrUsage

// errHostsFailed ends `op --wait` and `task watch` when the task is finished
// but not every host did what was asked; the output has said so already.
var errHostsFailed = errors.New("some hosts failed")

func usageError(format string, args ...any) error {
	return fmt.Errorf("%w (%w)", fmt.Errorf(format, args...), errUsage)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	// What hosts and servers wrote does not steer the terminal.
	stdout, stderr = plaintext.NewWriter(stdout), plaintext.NewWriter(stderr)
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errHostsFailed):
		return exitHostsFailed
	}
	fmt.Fprintln(stderr, "procfleet:", err)
	if text := advice(err); text != "" {
		fmt.Fprintln(stderr, " ", text)
	}
	if errors.Is(err, errUsage) {
		return exitUsage
	}
	return exitFailed
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "procfleet",
		Short: "Operate processes on fleets of hosts",
		Long: `procfleet starts, stops, supervises and looks at processes on any number of hosts, through an agent on each.

Every flag can also be given as an environment variable: --nats-listen as PROCFLEET_NATS_LISTEN,
or in a YAML file of flag names and values, named by --config. A flag counts before the
environment, the environment before the file.`,
		Example: `  procfleet up --demo
  procfleet op status --host 0:127.0.0.1 -f spec.yaml --wait`,
		Args:              usageArgs(cobra.NoArgs),
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return settings.Fill(cmd)
		},
		RunE:    nameACommand,
		Version: version,
	}
	root.SetVersionTemplate(versionLine())
	root.PersistentFlags().String(settings.Flag, "", "YAML file of flag names and values")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError("%w", err) })
	root.AddCommand(
		newUp(), newDispatcher(), newWorker(), agentcmd.New(version),
		newOp(), newTask(), newProcess(), newRegistration(), newFreeze(), newEvents(), newAudit(), newTopology(),
		newApp(), newFleetKey(), newNATSAuth(), newEnroll(), newRevoke(), newRedisUsers(),
		newSimulate(), newBench(), newVersion(), newDemoProcess(), newNATSServer(),
		daemon.Healthcheck("procfleet", "http://127.0.0.1:8080/readyz"),
	)
	return root
}

// usageArgs makes the complaints of an argument check usage errors.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError("%w", err)
		}
		return nil
	}
}

// exactly wants one argument that is not empty, as an unset variable of a
// shell is.
func exactly(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return usageError("give one %s, got %q", name, args)
		}
		return nil
	}
}

// nameACommand is what a command does that only has subcommands.
func nameACommand(cmd *cobra.Command, _ []string) error {
	if err := cmd.Help(); err != nil {
		return err
	}
	return usageError("name a command of %q", cmd.CommandPath())
}
