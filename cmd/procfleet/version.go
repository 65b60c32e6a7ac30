package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/command"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  procfleet version",
		Args:    command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
}

func versionLine() string {
	return fmt.Sprintf("procfleet %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
