package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/specimport"
)

// specFileFlags determine where imported specs are written.
type specFileFlags struct {
	namespace, out string
	force          bool
}

func newImport() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Write spec files for programs of supervisord or units of systemd",
		Long: `Write a spec file NAME.yaml for each program of a supervisord configuration, or for each unit of systemd. Settings that a spec
cannot express are comments in the file and warnings. Stop the program where it runs now before procfleet starts it.`,
		Example: `  procfleet import supervisord /etc/supervisor/supervisord.conf --out specs
  procfleet import systemd redis-server nginx --out specs`,
	}
	var f specFileFlags
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.namespace, "namespace", "", "namespace of the processes (default: supervisord or systemd)")
	flags.StringVar(&f.out, "out", ".", "directory of the spec files, created if missing")
	flags.BoolVar(&f.force, "force", false, "replacement of existing files")
	cmd.AddCommand(&cobra.Command{
		Use: "supervisord FILE", Short: "Import the programs of a supervisord configuration, with its includes",
		Example: "  procfleet import supervisord /etc/supervisor/supervisord.conf --out specs --namespace shop",
		Args:    exactly("FILE of a configuration"),
		RunE: func(cmd *cobra.Command, args []string) error {
			specs, err := specimport.Supervisord(args[0], f.namespaceOr("supervisord"))
			return f.write(cmd, specs, err)
		},
	}, &cobra.Command{
		Use: "systemd UNIT...", Short: "Import service units of systemd, by name or file",
		Example: "  procfleet import systemd redis-server --out specs",
		Args:    atLeast("UNIT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var specs []*specimport.Spec
			for _, name := range args {
				spec, err := specimport.Systemd(name, f.namespaceOr("systemd"))
				if err != nil {
					return command.Usagef("%w", err)
				}
				specs = append(specs, spec)
			}
			return f.write(cmd, specs, nil)
		},
	})
	return cmd
}

func (f *specFileFlags) namespaceOr(source string) string {
	if f.namespace != "" {
		return f.namespace
	}
	return source
}

// write writes the specs, none if one is invalid or has a file already.
func (f *specFileFlags) write(cmd *cobra.Command, specs []*specimport.Spec, err error) error {
	if err != nil {
		return command.Usagef("%w", err)
	}
	files := make([]string, len(specs))
	for i, spec := range specs {
		if err := spec.Validate(procfleet.ActionStart); err != nil {
			return fmt.Errorf("the spec of %s would be invalid: %w", spec.Name, err)
		}
		files[i] = filepath.Join(f.out, strings.ReplaceAll(spec.Name, "/", "_")+".yaml")
		if _, err := os.Lstat(files[i]); !f.force && !errors.Is(err, fs.ErrNotExist) {
			return command.Usagef("%s exists; replace it with --force, or choose another --out", files[i])
		}
	}
	if err := os.MkdirAll(f.out, 0o750); err != nil {
		return err
	}
	for i, spec := range specs {
		if err := os.WriteFile(files[i], []byte(spec.YAML()), 0o600); err != nil {
			return err
		}
		fmt.Fprintln(cmd.OutOrStdout(), files[i])
		for _, warning := range spec.Warnings {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", spec.Name, oneLine(warning))
		}
	}
	return nil
}
