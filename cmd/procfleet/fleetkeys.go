package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

func newFleetKey() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fleet-key",
		Short: "Keep the file of the fleet's keys",
		Long: `Keep the file of the keys by which servers and agents know each other's messages. Dispatchers and workers look
every second whether their copy has changed.

To replace a key without a gap: add one, and bring the file to every dispatcher and worker; enroll all
hosts again, and bring the identities to them; remove the old key, and bring the file to every dispatcher
and worker again; enroll all hosts once more, which believe the old key until then. While there are two,
servers sign with both and believe either.`,
		Example: `  procfleet fleet-key create --fleet-key fleet.key
  procfleet fleet-key add --fleet-key fleet.key
  procfleet fleet-key remove 20260102-150405 --fleet-key fleet.key`,
		Args: command.NoArgs,
		RunE: command.NameACommand,
	}
	var file string
	cmd.PersistentFlags().StringVar(&file, "fleet-key", "", "fleet key file, YAML")
	cmd.AddCommand(
		fleetKeyCommand(&file, &cobra.Command{Use: "create", Short: "Make the file with one key", Args: command.NoArgs}, createFleetKey),
		fleetKeyCommand(&file, &cobra.Command{Use: "add", Short: "Add a key, which becomes the newest", Args: command.NoArgs}, addFleetKey),
		fleetKeyCommand(&file, &cobra.Command{Use: "remove ID", Short: "Remove a key", Args: exactly("ID of a key, as procfleet fleet-key list shows it")}, removeFleetKey),
		fleetKeyCommand(&file, &cobra.Command{Use: "list", Short: "Show the ids of the keys, the newest first", Args: command.NoArgs}, listFleetKeys),
	)
	return cmd
}

// fleetKeyCommand gives a command what those of the file share.
func fleetKeyCommand(file *string, cmd *cobra.Command, run func(cmd *cobra.Command, file string, args []string) error) *cobra.Command {
	cmd.Example = "  procfleet fleet-key " + cmd.Use + " --fleet-key fleet.key"
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *file == "" {
			return command.Usagef("name the file with --fleet-key or PROCFLEET_FLEET_KEY, for example --fleet-key fleet.key")
		}
		if err := run(cmd, *file, args); err != nil {
			return fmt.Errorf("--fleet-key: %w", err)
		}
		return nil
	}
	return cmd
}

func createFleetKey(_ *cobra.Command, file string, _ []string) error { return fleetkey.Create(file) }

func addFleetKey(cmd *cobra.Command, file string, _ []string) error {
	var key fleetkey.Key
	err := fleetkey.Update(file, func(f *fleetkey.File) (err error) {
		at := time.Now()
		for f.Has(fleetkey.NewKeyID(at)) { // another key was added in this second
			at = at.Add(time.Second)
		}
		if key, err = fleetkey.NewKey(fleetkey.NewKeyID(at)); err == nil {
			f.Add(key)
		}
		return err
	})
	if err == nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "added key %s to %s\n", key.ID, file)
	}
	return err
}

func removeFleetKey(_ *cobra.Command, file string, args []string) error {
	return fleetkey.Update(file, func(f *fleetkey.File) error {
		switch {
		case !f.Remove(args[0]):
			return fmt.Errorf("there is no key %.70q in %s", args[0], file)
		case len(f.Keys) == 0:
			return fmt.Errorf("%s is the only key in %s: add another first", args[0], file)
		}
		return nil
	})
}

func listFleetKeys(cmd *cobra.Command, file string, _ []string) error {
	ring, err := fleetkey.ReadRing(file)
	if err != nil {
		return err
	}
	for _, id := range ring.IDs() {
		fmt.Fprintln(cmd.OutOrStdout(), id)
	}
	return nil
}
