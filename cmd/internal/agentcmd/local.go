package agentcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/agent/local"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/settings"
)

// defaultData is the default data directory of an agent.
const defaultData = "/var/lib/procfleet-agent"

// localFlags are the flags of commands that query the agent on this host.
type localFlags struct {
	data string
	json bool
}

// register adds the flags and loads their values from the environment and the file.
// It replaces the checks of the parent command, whose other settings are not used
// here.
func (f *localFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.data, "data", defaultData, "data directory of the agent, or of procfleet up")
	cmd.Flags().BoolVar(&f.json, "json", false, "JSON output")
	cmd.Args = command.NoArgs
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := settings.Fill(cmd); err != nil {
			return err
		}
		if f.data == "" {
			return command.Usagef("--data is empty")
		}
		return nil
	}
}

// queryAgent queries the local agent with the given data directory, or the agent of a
// `procfleet up` with that directory, which uses a subdirectory.
func queryAgent(ctx context.Context, data string) (local.Reply, error) {
	a, err := local.Query(ctx, data)
	if !errors.Is(err, local.ErrNoAgent) {
		return a, err
	}
	if a, inner := local.Query(ctx, filepath.Join(data, "agent")); !errors.Is(inner, local.ErrNoAgent) {
		return a, inner
	}
	return local.Reply{}, fmt.Errorf("%w; name the agent's data directory with --data", err)
}

func writeJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
