package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// taskFlags are the flags common to the task commands.
type taskFlags struct{ serverFlags }

func newTask() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "task",
		Short:   "Query and control tasks",
		Example: "  procfleet task list\n  procfleet task watch GSETASK:20260102030405:6789",
	}
	var f taskFlags
	f.register(cmd.PersistentFlags())
	cmd.AddCommand(newTaskGet(&f), newTaskShow(&f), newTaskList(&f.serverFlags), newTaskResults(&f), newTaskWatch(&f), newTaskFollow(&f.serverFlags), newTaskPause(&f), newTaskResume(&f), newTaskApprove(&f), newTaskCancel(&f), newTaskRetry(&f), newTaskUndo(&f))
	return cmd
}

func newTaskGet(f *taskFlags) *cobra.Command {
	return &cobra.Command{
		Use:               "get ID",
		Short:             "Show the state of a task",
		Example:           "  procfleet task get GSETASK:20260102030405:6789",
		Args:              exactly("ID of a task"),
		ValidArgsFunction: completeTasks,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.client(cmd)
			if err != nil {
				return err
			}
			task, err := c.Task(cmd.Context(), procfleet.TaskID(args[0]))
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), task, func(out io.Writer) error { return writeTask(out, task) })
		},
	}
}

func checkLimit(n int) error {
	if n < 1 || n > client.LargestPage {
		return command.Usagef("--limit: %d is not from 1 to %d", n, client.LargestPage)
	}
	return nil
}

func newTaskResults(f *taskFlags) *cobra.Command {
	var query client.Query
	var state string
	cmd := &cobra.Command{
		Use:   "results ID",
		Short: "Show the results of a task, failures first",
		Example: `  procfleet task results GSETASK:20260102030405:6789
  procfleet task results GSETASK:20260102030405:6789 --state failed --json`,
		Args:              exactly("ID of a task"),
		ValidArgsFunction: completeTasks,
		RunE: func(cmd *cobra.Command, args []string) error {
			query.State = procfleet.State(state)
			if state != "" && !slices.Contains(procfleet.States(), query.State) {
				return command.Usagef("--state %q: use one of %v", state, procfleet.States())
			}
			if cmd.Flags().Changed("limit") {
				if err := checkLimit(query.PageSize); err != nil {
					return err
				}
			}
			return f.results(cmd, procfleet.TaskID(args[0]), query)
		},
	}
	cmd.Flags().StringVar(&state, "state", "", "item state, for example failed")
	cmd.Flags().IntVar(&query.PageSize, "limit", 0, "maximum results, 1 to 1000 (default: all)")
	cmd.Flags().StringVar(&query.Cursor, "cursor", "", "cursor of the next page, from the previous one")
	return cmd
}

// results shows one page of results, or all results if the query has no page size.
func (f *taskFlags) results(cmd *cobra.Command, id procfleet.TaskID, query client.Query) error {
	c, err := f.client(cmd)
	if err != nil {
		return err
	}
	if query.PageSize > 0 {
		return f.resultPage(cmd, c, id, query)
	}
	all := c.Results(cmd.Context(), id, query)
	if !f.json {
		return writeTables(cmd.OutOrStdout(), all, writeResults)
	}
	results, err := collect(all)
	if err != nil {
		return err
	}
	return f.writeDocument(cmd.OutOrStdout(), v1.ResultPage{Results: results})
}

// resultPage shows one page of results, and the command for the next page.
func (f *taskFlags) resultPage(cmd *cobra.Command, c *client.Client, id procfleet.TaskID, query client.Query) error {
	page, err := c.ResultPage(cmd.Context(), id, query)
	if err != nil {
		return err
	}
	return f.print(cmd.OutOrStdout(), v1.ResultPage{Results: page.Items, Next: page.Next}, func(out io.Writer) error {
		if err := writeResults(out, page.Items); err != nil || page.Next == "" {
			return err
		}
		flags := ""
		if query.State != "" {
			flags = " --state " + string(query.State)
		}
		_, err := fmt.Fprintf(out, "more: procfleet task results %s --cursor %s --limit %d%s%s\n", id, page.Next, query.PageSize, flags, f.hint())
		return err
	})
}
