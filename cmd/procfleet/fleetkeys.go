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
		Short: "Manage the fleet's signing keys",
		Long: `Manage the file of the keys with which servers and agents sign and verify messages. Dispatchers and workers read their
copy again within a second after a change.

To replace a key without an interruption:
  1. Add a key. Copy the file to every dispatcher and worker.
  2. Enroll all hosts again. Copy the identities to them.
  3. Remove the old key. Copy the file to every dispatcher and worker.
  4. Enroll all hosts once more: until then they accept the old key.
While the file has two keys, servers sign with both and accept either.`,
		Example: `  procfleet fleet-key create --fleet-key fleet.key
  procfleet fleet-key add --fleet-key fleet.key
  procfleet fleet-key remove 20260102-150405 --fleet-key fleet.key`,
	}
	var file string
	cmd.PersistentFlags().StringVar(&file, "fleet-key", "", "fleet key file, YAML")
	cmd.AddCommand(
		fleetKeyCommand(&file, &cobra.Command{Use: "create", Short: "Create a fleet key file with one new key"}, createFleetKey),
		fleetKeyCommand(&file, &cobra.Command{Use: "add", Short: "Add a new key"}, addFleetKey),
		fleetKeyCommand(&file, &cobra.Command{Use: "remove ID", Short: "Remove a key", Args: exactly("ID of a key, as procfleet fleet-key list shows it")}, removeFleetKey),
		fleetKeyCommand(&file, &cobra.Command{Use: "list", Short: "List the ids of the keys, newest first"}, listFleetKeys),
	)
	return cmd
}

// fleetKeyCommand adds the common checks and error handling to a command.
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
		for f.Has(fleetkey.NewKeyID(at)) { // two keys within one second need different ids
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
			return fmt.Errorf("key %.70q does not exist in %s", args[0], file)
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
