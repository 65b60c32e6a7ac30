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
		Short: "Say what on this host endangers the processes that an agent looks after",
		Long: `Say what on this host endangers the processes that an agent looks after, and what to do about it.

The running agent is looked at if there is one, else what an agent would find here; run it as the user
that the agent runs as. Nothing is changed. It ends with 1 if there is anything to do.`,
		Example: "  procfleet-agent check\n  procfleet agent check --data ./procfleet-data --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			host := hostcheck.Host{DataDir: f.data}
			running, err := askAgent(cmd.Context(), f.data)
			switch {
			case err == nil:
				host.PID = running.Agent.PID
			case !errors.Is(err, local.ErrNobody):
				return err
			}
			return report(cmd.OutOrStdout(), f.json, hostcheck.Check(cmd.Context(), host))
		},
	}
	f.register(cmd)
	return cmd
}

// checked is what check writes as JSON.
type checked struct {
	Safe     bool                `json:"safe"`
	Findings []hostcheck.Finding `json:"findings"`
}

// report writes what was found; an error says that there was anything.
func report(out io.Writer, asJSON bool, found []hostcheck.Finding) error {
	if err := writeFindings(out, asJSON, found); err != nil || len(found) == 0 {
		return err
	}
	if len(found) == 1 {
		return errors.New("1 thing on this host is unsafe")
	}
	return fmt.Errorf("%d things on this host are unsafe", len(found))
}

func writeFindings(out io.Writer, asJSON bool, found []hostcheck.Finding) error {
	if asJSON {
		if found == nil {
			found = []hostcheck.Finding{} // [] and not null
		}
		return writeJSON(out, checked{Safe: len(found) == 0, Findings: found})
	}
	if len(found) == 0 {
		_, err := fmt.Fprintln(out, "nothing on this host endangers the agent's processes")
		return err
	}
	for _, f := range found {
		if _, err := fmt.Fprintf(out, "%-13s %s\n%-13s why: %s\n%-13s do:  %s\n", f.Check, oneLine(f.What), "", f.Why, "", oneLine(f.Do)); err != nil {
			return err
		}
	}
	return nil
}
