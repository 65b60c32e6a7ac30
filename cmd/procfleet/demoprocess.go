package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/command"
)

// newDemoProcess is the sample process of `up --demo`: it writes its pid and
// runs until it is told to stop.
func newDemoProcess() *cobra.Command {
	var pidFile string
	cmd := &cobra.Command{
		Use:     "demo-process",
		Short:   "The sample process of up --demo",
		Example: "  procfleet demo-process --pid-file demo.pid",
		Hidden:  true,
		Args:    command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := os.WriteFile(pidFile, fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
				return err
			}
			<-cmd.Context().Done()
			return nil
		},
	}
	cmd.Flags().StringVar(&pidFile, "pid-file", "demo.pid", "where to write the own pid")
	return cmd
}
