// Package command runs the root command of a binary, and handles signals, exit codes,
// usage errors and help.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/internal/lifecycle"
	"github.com/procfleet/procfleet/internal/plaintext"
)

// Exit codes of every binary.
const (
	ExitFailed = 1
	ExitUsage  = 2

	exitSecondSignal = 130 // the shells' exit code for SIGINT
)

// Main calls run with the arguments of this process, and exits with the code that run
// returns. The first SIGINT or SIGTERM ends ctx, the second exits at once.
func Main(run func(ctx context.Context, args []string, stdout, stderr io.Writer) int) {
	ctx, stop := lifecycle.WithSignals(context.Background(), func() { os.Exit(exitSecondSignal) })
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Prepare adds the parts common to all root commands: --config, --version, grouped
// help, and errors written by [Exit] instead of cobra. It adds the subcommands. A command
// without Args accepts no arguments; one without RunE requires a subcommand.
func Prepare(root *cobra.Command, subcommands ...*cobra.Command) {
	root.Version = Build()
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usagef("%w", err) })
	root.SetHelpFunc(help)
	root.PersistentFlags().String(settings.Flag, "", "YAML file of flag names and values")
	if root.RunE == nil {
		root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return settings.Fill(cmd) }
	}
	root.AddCommand(subcommands...)
	complete(root)
}

func complete(cmd *cobra.Command) {
	if cmd.Args == nil {
		cmd.Args = NoArgs
	}
	if cmd.RunE == nil {
		cmd.RunE = requireSubcommand
	}
	for _, sub := range cmd.Commands() {
		complete(sub)
	}
}

// Execute runs the root command. It escapes control characters in the output, since
// the output may contain text of hosts and servers.
func Execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) error {
	root.SetArgs(args)
	root.SetOut(plaintext.NewWriter(stdout))
	root.SetErr(plaintext.NewWriter(stderr))
	return root.ExecuteContext(ctx)
}

// Exit writes an error of [Execute], followed by the advice, and returns the exit
// code.
func Exit(root *cobra.Command, err error, advice string) int {
	if err == nil {
		return 0
	}
	stderr := root.ErrOrStderr()
	fmt.Fprintf(stderr, "%s: %v\n", root.Name(), err)
	if advice != "" {
		fmt.Fprintln(stderr, " ", advice)
	}
	if errors.Is(err, settings.ErrUsage) {
		return ExitUsage
	}
	return ExitFailed
}

// Usagef returns a formatted usage error, which wraps [settings.ErrUsage].
func Usagef(format string, args ...any) error {
	return fmt.Errorf("%w (%w)", fmt.Errorf(format, args...), settings.ErrUsage)
}

// NoArgs returns a usage error if there are arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasAvailableSubCommands():
		return Usagef("unknown command %q for %q", args[0], cmd.CommandPath())
	}
	return Usagef("unexpected argument %q", args[0])
}

// requireSubcommand is the RunE of a command that has only subcommands: it writes the
// help and returns a usage error.
func requireSubcommand(cmd *cobra.Command, _ []string) error {
	if err := cmd.Help(); err != nil {
		return err
	}
	return Usagef("name a command of %q", cmd.CommandPath())
}
