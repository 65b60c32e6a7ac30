package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

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
		Short: "Write the process catalogue of a business as YAML",
		Long: `Write the process catalogue of a business as YAML: a document for each process, by name, with what
differs from the defaults. What was written is read by import, of this business or another.`,
		Example: `  procfleet process export --biz 2 > shop.yaml
  procfleet process export --biz 2 --json`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := business.check(); err != nil {
				return err
			}
			return f.export(cmd, business.of)
		},
	}
	business.register(cmd.Flags())
	return cmd
}

func (f *processFlags) export(cmd *cobra.Command, b client.Business) error {
	c, err := f.server.client(cmd)
	if err != nil {
		return err
	}
	processes := []client.CatalogueProcess{}
	for p, err := range c.Catalogue(cmd.Context(), b, client.CatalogueQuery{}) {
		if err != nil {
			return err // rather nothing than a part, which looks like all
		}
		processes = append(processes, p)
	}
	if f.json {
		return writeJSON(cmd.OutOrStdout(), map[string]any{"processes": processes})
	}
	return writeCatalogue(cmd.OutOrStdout(), processes)
}

// writeCatalogue writes processes, each as a document of its own.
func writeCatalogue(out io.Writer, processes []client.CatalogueProcess) error {
	encoder := yaml.NewEncoder(out)
	encoder.SetIndent(2)
	for i := range processes {
		if err := writeCatalogueDocument(encoder, &processes[i]); err != nil {
			return err
		}
	}
	if len(processes) == 0 {
		return nil // an encoder that wrote nothing cannot be closed
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
		Short: "Make the process catalogue of a business what a file says",
		Long: `Make processes in the catalogue of a business, or change those that have the same names.

The file is what export writes: a YAML document for each process. An attribute that a document leaves
out has its default. The modules are the exact set; without them they stay as they are. Processes that
the file does not have are left alone. Importing again changes nothing.

At most 1000 processes are saved together: all of them or, if one is refused, none. With more there
are several such calls, in the order of the file.`,
		Example: `  procfleet process import --biz 2 -f shop.yaml --plan
  procfleet process export --biz 2 | procfleet process import --biz 3 -f -`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.business.register(cmd.Flags())
	cmd.Flags().StringVarP(&f.file, "file", "f", "", "YAML file of processes; - for standard input (required)")
	cmd.Flags().BoolVar(&f.plan, "plan", false, "preview without changes")
	cmd.Flags().BoolVar(&f.plan, "dry-run", false, "alias of --plan")
	return cmd
}

func (f *importFlags) run(cmd *cobra.Command) error {
	if err := f.business.check(); err != nil {
		return err
	}
	if f.file == "" {
		return command.Usagef("-f is missing: name the file with the processes")
	}
	data, err := readFileOr(cmd.InOrStdin(), f.file)
	if err != nil {
		return command.Usagef("-f: %w", err)
	}
	processes, err := readCatalogue(bytes.NewReader(data))
	switch {
	case err != nil:
		return command.Usagef("-f %s: %w", f.file, err)
	case len(processes) == 0:
		return command.Usagef("-f %s: there is no process in it", f.file)
	}
	saved, err := f.save(cmd, processes)
	if f.json {
		if writeErr := writeJSON(cmd.OutOrStdout(), map[string]any{"processes": saved.Processes, "tasks": saved.tasks}); err == nil {
			err = writeErr
		}
		return err
	}
	if writeErr := saved.write(cmd.OutOrStdout(), f.plan); err == nil {
		err = writeErr
	}
	return err
}

// imported is what became of the processes of all calls together.
type imported struct {
	client.CatalogueSaved
	tasks []procfleet.TaskID
}

// save makes as many calls as are needed. What the calls before a failure did
// is returned with it.
func (f *importFlags) save(cmd *cobra.Command, processes []client.CatalogueProcess) (imported, error) {
	done := imported{tasks: []procfleet.TaskID{}}
	done.Processes = []client.SavedProcess{}
	c, err := f.server.submitter(cmd)
	if err != nil {
		return done, err
	}
	call := c.SaveCatalogue
	if f.plan {
		call = c.PlanCatalogue
	}
	parts := importParts(processes)
	if len(parts) > 1 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%d processes are saved in %d calls, each as a whole or not at all\n", len(processes), len(parts))
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

// largestImport is about how many bytes of JSON one call has at most.
const largestImport = 8 << 20

// importParts divides processes into what one call can save.
func importParts(processes []client.CatalogueProcess) [][]client.CatalogueProcess {
	var parts [][]client.CatalogueProcess
	begin, size := 0, 0
	for i := range processes {
		text, _ := json.Marshal(processes[i]) // which was made of texts, numbers and truth values
		if i-begin == client.LargestSave || i > begin && size+len(text) > largestImport {
			parts = append(parts, processes[begin:i])
			begin, size = i, 0
		}
		size += len(text)
	}
	return append(parts, processes[begin:])
}

// write says what was done, or would be.
func (done *imported) write(out io.Writer, plan bool) error {
	counts := make(map[v1.SaveOutcome]int)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
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
		if _, err := fmt.Fprintf(out, "agents are told by task %s\n", task); err != nil {
			return err
		}
	}
	return nil
}
