package agentcmd

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/agent/hostcheck"
	"github.com/procfleet/procfleet/agent/local"
)

func newCheck() *cobra.Command {
	var f localFlags
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check this host for risks to supervised processes",
		Long: `Check this host for risks to supervised processes, and show the remedies.

The command inspects the running agent, or the environment that an agent would have; run it as the user of the agent. It
changes nothing and exits with 1 if it finds a risk.`,
		Example: "  procfleet-agent check\n  procfleet agent check --data ./procfleet-data --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			host := hostcheck.Host{DataDir: f.data}
			running, err := queryAgent(cmd.Context(), f.data)
			switch {
			case err == nil:
				host.PID = running.Agent.PID
			case !errors.Is(err, local.ErrNoAgent):
				return err
			}
			return report(cmd.OutOrStdout(), f.json, hostcheck.Check(cmd.Context(), host))
		},
	}
	f.register(cmd)
	return cmd
}

// checked is the JSON output of the check command.
type checked struct {
	Safe     bool                `json:"safe"`
	Findings []hostcheck.Finding `json:"findings"`
}

// report writes the findings and returns an error if there are any.
func report(out io.Writer, asJSON bool, found []hostcheck.Finding) error {
	if err := writeFindings(out, asJSON, found); err != nil || len(found) == 0 {
		return err
	}
	return fmt.Errorf("unsafe host, findings: %d", len(found))
}

func writeFindings(out io.Writer, asJSON bool, found []hostcheck.Finding) error {
	if asJSON {
		if found == nil {
			found = []hostcheck.Finding{} // encode [] instead of null
		}
		return writeJSON(out, checked{Safe: len(found) == 0, Findings: found})
	}
	if len(found) == 0 {
		_, err := fmt.Fprintln(out, "this host has no risks to supervised processes")
		return err
	}
	for _, f := range found {
		if _, err := fmt.Fprintf(out, "%-13s %s\n%-13s why: %s\n%-13s do:  %s\n", f.Check, oneLine(f.Problem), "", f.Consequence, "", oneLine(f.Remedy)); err != nil {
			return err
		}
	}
	return nil
}
