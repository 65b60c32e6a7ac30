package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

func newProcessExport(f *processFlags) *cobra.Command {
	var business businessFlags
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Export the process catalog of a business as YAML",
		Long: `Export the process catalog of a business as YAML: one document per process, by name, with the attributes that differ
from their defaults. Import it into the same or another business with procfleet process import.`,
		Example: `  procfleet process export --biz 2 > shop.yaml
  procfleet process export --biz 2 --json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.export(cmd, business.of) },
	}
	business.require(cmd)
	return cmd
}

func (f *processFlags) export(cmd *cobra.Command, b client.Business) error {
	c, err := f.client(cmd)
	if err != nil {
		return err
	}
	processes, err := collect(c.Catalog(cmd.Context(), b, client.CatalogQuery{}))
	if err != nil {
		return err // a partial export would look complete
	}
	return f.print(cmd.OutOrStdout(), map[string]any{"processes": processes}, func(out io.Writer) error { return writeCatalog(out, processes) })
}

func newProcessDelete(f *processFlags) *cobra.Command {
	var business businessFlags
	var plan bool
	cmd := &cobra.Command{
		Use:   "delete NAME...",
		Short: "Delete processes from the catalog of a business",
		Long: `Delete processes from the catalog of a business, by their exact names. A process that is bound to modules
is not deleted: import it with modules: [] before. Processes keep running on their hosts, and their registrations remain.`,
		Example: "  procfleet process delete web --biz 2",
		Args:    atLeast("NAME of a process"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.submitter(cmd)
			if err != nil {
				return err
			}
			for _, name := range args {
				if err := deleteFromCatalog(cmd, c, business.of, name, plan); err != nil {
					return err
				}
			}
			return nil
		},
	}
	business.require(cmd)
	planFlags(cmd.Flags(), &plan, "preview without changes")
	return cmd
}

func deleteFromCatalog(cmd *cobra.Command, c *client.Client, b client.Business, name string, plan bool) error {
	found, err := collect(c.Catalog(cmd.Context(), b, client.CatalogQuery{Name: name, Exact: true}))
	switch {
	case err != nil:
		return err
	case len(found) != 1:
		return fmt.Errorf("the catalog of business %d has no process %.70q", b.ID, name)
	case plan && len(found[0].Modules) > 0:
		return fmt.Errorf("%s is bound to modules, so it would not be deleted: import it with modules: [] before", oneLine(name))
	case plan:
		fmt.Fprintf(cmd.OutOrStdout(), "would delete %s\n", oneLine(name))
		return nil
	}
	if _, err := c.DeleteFromCatalog(cmd.Context(), b, found[0].ID); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "deleted %s\n", name)
	return nil
}

// writeCatalog writes one YAML document per process.
func writeCatalog(out io.Writer, processes []client.CatalogProcess) error {
	encoder := yaml.NewEncoder(out)
	encoder.SetIndent(2)
	for i := range processes {
		if err := writeCatalogDocument(encoder, &processes[i]); err != nil {
			return err
		}
	}
	if len(processes) == 0 {
		return nil // closing an unused encoder fails
	}
	return encoder.Close()
}

// importFlags are the flags of `process import`.
type importFlags struct {
	*processFlags
	business businessFlags
	file     string
	plan     bool
}

func newProcessImport(shared *processFlags) *cobra.Command {
	f := importFlags{processFlags: shared}
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Import processes into the catalog of a business",
		Long: `Create processes in the catalog of a business, or change those with the same names.

The file has the format of export: one YAML document per process. Missing attributes have their defaults. A list of
modules replaces the existing one; without it the modules stay unchanged. Processes that are not in the file stay
unchanged. A second import of the same file changes nothing.

Up to 1000 processes are saved atomically: if one is rejected, none is saved. Larger files take several such calls, in
the order of the file.`,
		Example: `  procfleet process import --biz 2 -f shop.yaml --plan
  procfleet process export --biz 2 | procfleet process import --biz 3 -f -`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.business.require(cmd)
	cmd.Flags().StringVarP(&f.file, "file", "f", "", "YAML file of processes; - for standard input (required)")
	planFlags(cmd.Flags(), &f.plan, "preview without changes")
	return cmd
}

func (f *importFlags) run(cmd *cobra.Command) error {
	if f.file == "" {
		return command.Usagef("-f is required: name the file with the processes")
	}
	data, err := readInput(cmd.InOrStdin(), f.file)
	if err != nil {
		return command.Usagef("-f: %w", err)
	}
	processes, err := readCatalog(bytes.NewReader(data))
	switch {
	case err != nil:
		return command.Usagef("-f %s: %w", f.file, err)
	case len(processes) == 0:
		return command.Usagef("-f %s: the file has no process", f.file)
	}
	saved, err := f.save(cmd, processes)
	printErr := f.print(cmd.OutOrStdout(), map[string]any{"processes": saved.Processes, "tasks": saved.tasks}, func(out io.Writer) error {
		return saved.write(out, f.plan)
	})
	return cmp.Or(err, printErr)
}

// imported is the combined outcome of all calls.
type imported struct {
	client.CatalogSaved
	tasks []procfleet.TaskID
}

// save makes as many calls as necessary. After an error it returns the outcome of the
// successful calls.
func (f *importFlags) save(cmd *cobra.Command, processes []client.CatalogProcess) (imported, error) {
	done := imported{tasks: []procfleet.TaskID{}}
	done.Processes = []client.SavedProcess{}
	c, err := f.submitter(cmd)
	if err != nil {
		return done, err
	}
	call := c.SaveCatalog
	if f.plan {
		call = c.PlanCatalog
	}
	parts := importParts(processes)
	if len(parts) > 1 {
		fmt.Fprintf(cmd.ErrOrStderr(), "saving %d processes in %d calls, each atomic\n", len(processes), len(parts))
	}
	for n, part := range parts {
		saved, err := call(cmd.Context(), f.business.of, part)
		if err != nil && len(parts) > 1 {
			err = fmt.Errorf("call %d of %d, for the processes %q to %q, failed; the calls after it were not made: %w", n+1, len(parts), part[0].Name(), part[len(part)-1].Name(), err)
		}
		if err != nil {
			return done, err
		}
		done.Processes = append(done.Processes, saved.Processes...)
		if saved.Task != nil {
			done.tasks = append(done.tasks, *saved.Task)
		}
	}
	return done, nil
}

// largestImport is the approximate maximum size of a call, in bytes of JSON.
const largestImport = 8 << 20

// importParts divides processes into parts of the size of one call.
func importParts(processes []client.CatalogProcess) [][]client.CatalogProcess {
	var parts [][]client.CatalogProcess
	begin, size := 0, 0
	for i := range processes {
		text, _ := json.Marshal(processes[i]) // cannot fail: strings, numbers and booleans
		if i-begin == client.LargestSave || i > begin && size+len(text) > largestImport {
			parts = append(parts, processes[begin:i])
			begin, size = i, 0
		}
		size += len(text)
	}
	return append(parts, processes[begin:])
}

// write prints the changes and their count.
func (done *imported) write(out io.Writer, plan bool) error {
	counts := make(map[v1.SaveOutcome]int)
	table := newTable(out)
	for _, p := range done.Processes {
		counts[p.Outcome]++
		if p.Outcome != v1.SavedSame {
			fmt.Fprintf(table, "%s\t%s\t%s\n", oneLine(p.Name), p.Outcome, strings.Join(p.Changes, ", "))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	summary := fmt.Sprintf("%d created, %d changed, %d unchanged", counts[v1.SavedNew], counts[v1.SavedChanged], counts[v1.SavedSame])
	if plan {
		summary = "planned: " + summary
	}
	if _, err := fmt.Fprintln(out, summary); err != nil {
		return err
	}
	for _, task := range slices.Compact(done.tasks) {
		if _, err := fmt.Fprintf(out, "task %s notifies the agents\n", task); err != nil {
			return err
		}
	}
	return nil
}
