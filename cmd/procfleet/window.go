package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func newWindow() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "window",
		Short:   "Show the maintenance windows of a business",
		Example: "  procfleet window list 2",
	}
	var f serverFlags
	f.register(cmd.PersistentFlags())
	cmd.AddCommand(newWindowList(&f))
	return cmd
}

func newWindowList(f *serverFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "list BUSINESS",
		Short: "List the maintenance windows of a business",
		Long: `List the maintenance windows of a business or a namespace of processes, and whether they are open by the clock of this
machine. They are stored with the rollout policies: procfleet rollout apply replaces them.`,
		Example: `  procfleet window list 2`,
		Args:    exactly("BUSINESS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.client(cmd)
			if err != nil {
				return err
			}
			p, err := c.RolloutPolicies(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), p.Windows, func(out io.Writer) error { return writeWindows(out, p.Windows, time.Now()) })
		},
	}
}

func writeWindows(out io.Writer, windows []procfleet.MaintenanceWindow, now time.Time) error {
	if len(windows) == 0 {
		_, err := fmt.Fprintln(out, "no maintenance windows; add some with: procfleet rollout apply")
		return err
	}
	table := newTable(out)
	fmt.Fprintln(table, "NAME\tEFFECT\tOPEN\tUNTIL\tHOSTS")
	for i := range windows {
		w := &windows[i]
		open, until := catalog.WindowState(w, now)
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", w.Name, w.Effect, yesOrNo(open), timeOrNever(until), windowHosts(w))
	}
	return table.Flush()
}

func timeOrNever(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}

func windowHosts(w *procfleet.MaintenanceWindow) string {
	if w.ForAll() {
		return "all"
	}
	return cmp.Or(w.Label, string(w.By)) + " " + strings.Join(w.Groups, ", ")
}
