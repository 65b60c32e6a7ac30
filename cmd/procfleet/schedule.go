package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

func newSchedule() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "schedule",
		Short:   "Manage the schedules of a business",
		Example: "  procfleet schedule set 2 nightly -f nightly.yaml\n  procfleet schedule list 2\n  procfleet schedule remove 2 nightly",
	}
	var f serverFlags
	f.register(cmd.PersistentFlags())
	cmd.AddCommand(newScheduleSet(&f), newScheduleList(&f), newScheduleRemove(&f))
	return cmd
}

func newScheduleSet(f *serverFlags) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "set BUSINESS NAME",
		Short: "Store a schedule from a file",
		Long: `Store a schedule from a YAML or JSON file, or replace the one of this name. The file has "cron" with a "time_zone", the
request that creates the "task" at each time, and may have "jitter", "overlap", "missed" and "paused".`,
		Example: `  procfleet schedule set 2 nightly -f nightly.yaml`,
		Args:    businessAndName,
		RunE: func(cmd *cobra.Command, args []string) error {
			var s client.ScheduleRequest
			if err := readDocument(cmd.InOrStdin(), file, &s); err != nil {
				return err
			}
			c, err := f.submitter(cmd)
			if err != nil {
				return err
			}
			stored, err := c.SetSchedule(cmd.Context(), args[0], args[1], s)
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), stored, func(out io.Writer) error { return writeSchedules(out, []client.Schedule{stored}) })
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with the schedule, YAML or JSON; - for standard input")
	return cmd
}

func newScheduleList(f *serverFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "list BUSINESS",
		Short:   "List the schedules of a business",
		Long:    `List the schedules of a business or a namespace of processes, with the next time and the outcome of the last one.`,
		Example: `  procfleet schedule list 2`,
		Args:    exactly("BUSINESS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.client(cmd)
			if err != nil {
				return err
			}
			all, err := c.Schedules(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), all, func(out io.Writer) error { return writeSchedules(out, all) })
		},
	}
}

func newScheduleRemove(f *serverFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "remove BUSINESS NAME",
		Short:   "Remove a schedule",
		Long:    `Remove a schedule. Its tasks go on.`,
		Example: `  procfleet schedule remove 2 nightly`,
		Args:    businessAndName,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.submitter(cmd)
			if err != nil {
				return err
			}
			existed, err := c.RemoveSchedule(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			if !existed {
				return command.Usagef("business %s has no schedule %s", args[0], args[1])
			}
			return nil
		},
	}
}

func writeSchedules(out io.Writer, all []client.Schedule) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(out, "no schedules; add one with: procfleet schedule set")
		return err
	}
	table := newTable(out)
	fmt.Fprintln(table, "NAME\tCRON\tTIME ZONE\tNEXT\tLAST\tOUTCOME")
	for i := range all {
		s := &all[i]
		next, last, outcome := "never", "never", "-"
		if s.NextAt != nil {
			next = timeOrNever(*s.NextAt)
		}
		if s.Paused {
			next = "paused"
		}
		if s.Last != nil {
			last, outcome = timeOrNever(s.Last.At), string(s.Last.Task)+s.Last.Problem
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, s.Cron, s.TimeZone, next, last, outcome)
	}
	return table.Flush()
}

// businessAndName accepts a business and the name of a schedule.
func businessAndName(_ *cobra.Command, args []string) error {
	if len(args) != 2 || args[0] == "" || args[1] == "" {
		return command.Usagef("give a BUSINESS and a NAME, got %q", args)
	}
	return nil
}
