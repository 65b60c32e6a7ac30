// Package command runs the root command of a binary: its signals, its exit
// codes, and errors of wrong usage.
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

	exitSecondSignal = 130 // as shells count SIGINT
)

// Main calls run with the arguments of this process, and ends the process with
// the exit code that run returns. The first SIGINT or SIGTERM ends the context,
// the second one the process.
func Main(run func(ctx context.Context, args []string, stdout, stderr io.Writer) int) {
	ctx, stop := lifecycle.WithSignals(context.Background(), func() { os.Exit(exitSecondSignal) })
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Prepare gives a root command what all roots have: a version, errors of flags
// that are errors of usage, and no output of errors by cobra, but by [Exit].
func Prepare(root *cobra.Command, version string) {
	root.Version = version
	root.SilenceUsage, root.SilenceErrors = true, true
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usagef("%w", err) })
}

// Execute runs the root command. Control characters in what hosts and servers
// wrote do not reach the terminal.
func Execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) error {
	root.SetArgs(args)
	root.SetOut(plaintext.NewWriter(stdout))
	root.SetErr(plaintext.NewWriter(stderr))
	return root.ExecuteContext(ctx)
}

// Exit writes an error of [Execute] and what the user can do about it, and
// returns the exit code.
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

// Usagef returns an error of how the command was called; it wraps
// [settings.ErrUsage].
func Usagef(format string, args ...any) error {
	return fmt.Errorf("%w (%w)", fmt.Errorf(format, args...), settings.ErrUsage)
}

// NoArgs refuses arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if err := cobra.NoArgs(cmd, args); err != nil {
		return Usagef("%w", err)
	}
	return nil
}

// NameACommand is the RunE of a command that only has subcommands.
func NameACommand(cmd *cobra.Command, _ []string) error {
	if err := cmd.Help(); err != nil {
		return err
	}
	return Usagef("name a command of %q", cmd.CommandPath())
}
