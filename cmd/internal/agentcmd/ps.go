package agentcmd

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newPS() *cobra.Command {
	var f localFlags
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "Show the processes of the local agent",
		Long: `Show the processes of the local agent: the state of each and the next action of the agent.

The command queries the running agent over a socket in its data directory, with or without NATS; the data directory of
procfleet up works too. It requires the user of the agent, or root.`,
		Example: "  procfleet-agent ps\n  procfleet agent ps --data ./procfleet-data --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := queryAgent(cmd.Context(), f.data)
			switch {
			case err != nil:
				return err
			case f.json:
				return writeJSON(cmd.OutOrStdout(), &a)
			}
			if a.Agent.Away != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "the agent of %s is not connected to NATS: %s\n", a.Agent.Host, a.Agent.Away)
			}
			return writeTable(cmd.OutOrStdout(), a)
		},
	}
	f.register(cmd)
	return cmd
}
