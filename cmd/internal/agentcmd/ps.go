package agentcmd

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newPS() *cobra.Command {
	var f localFlags
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "Show the processes that the agent of this host looks after",
		Long: `Show the processes that the agent of this host looks after: how each stands and what the agent does next.

The running agent is asked over a socket in its data folder, whether or not it reaches NATS. The data
folder of procfleet up will do as well. Only the user that the agent runs as, and root, may ask.`,
		Example: "  procfleet-agent ps\n  procfleet agent ps --data ./procfleet-data --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := askAgent(cmd.Context(), f.data)
			switch {
			case err != nil:
				return err
			case f.json:
				return writeJSON(cmd.OutOrStdout(), &a)
			}
			if a.Agent.Away != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "the agent of %s does not reach NATS: %s\n", a.Agent.Host, a.Agent.Away)
			}
			return writeTable(cmd.OutOrStdout(), a)
		},
	}
	f.register(cmd)
	return cmd
}
