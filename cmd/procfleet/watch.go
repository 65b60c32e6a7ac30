package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

func newTaskWatch(f *taskFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "watch ID",
		Short: "Show the progress of a task until it is finished",
		Long: `Show the progress of a task until it is finished, then its results, failures first. With --json the command writes the
task as one line of JSON at once and after every change. Ctrl-C ends the command, not the task. The exit code is 3 if
some host failed, and 4 if a status found a process that does not run.`,
		Example: `  procfleet task watch GSETASK:20260102030405:6789
  procfleet task watch GSETASK:20260102030405:6789 --json | jq .counts`,
		Args:              exactly("ID of a task"),
		ValidArgsFunction: completeTasks,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.json {
				return f.watchJSON(cmd, procfleet.TaskID(args[0]))
			}
			return f.watch(cmd, procfleet.TaskID(args[0]))
		},
	}
}

func (f *taskFlags) watch(cmd *cobra.Command, id procfleet.TaskID) error {
	c, err := f.client(cmd)
	if err != nil {
		return err
	}
	task, err := f.showProgress(cmd, id, cmd.OutOrStdout())
	if err != nil {
		return err
	}
	return writeOutcome(cmd.Context(), cmd.OutOrStdout(), c, f.hint(), task)
}

// watchJSON writes a line of JSON after every change of a task.
func (f *taskFlags) watchJSON(cmd *cobra.Command, id procfleet.TaskID) error {
	show := func(t client.Task) error { return f.writeLine(cmd.OutOrStdout(), t) }
	task, err := f.serverFlags.watch(cmd.Context(), id, show, reportTrouble(cmd, watchPatience))
	if err != nil {
		return err
	}
	return (&outcome{Task: task}).verdict()
}

// showProgress shows the progress of a task on out until the task is finished.
func (s *serverFlags) showProgress(cmd *cobra.Command, id procfleet.TaskID, out io.Writer) (client.Task, error) {
	progress := newProgress(out)
	defer progress.end()
	show := func(t client.Task) error { progress.show(t); return nil }
	report := reportTrouble(cmd, watchPatience)
	return s.watch(cmd.Context(), id, show, func(err error) { progress.end(); report(err) })
}

// watch calls show with the task after every change until the task is finished.
func (s *serverFlags) watch(ctx context.Context, id procfleet.TaskID, show func(client.Task) error, trouble func(error)) (last client.Task, err error) {
	c, err := s.watcher(trouble)
	if err != nil {
		return last, err
	}
	for task, err := range c.Watch(ctx, id) {
		if err != nil {
			return last, s.howToFollow(err, id)
		}
		if err := show(task); err != nil {
			return last, err
		}
		last = task
	}
	return last, nil
}

// reportTrouble returns a function that prints the cause of the client's retries.
func reportTrouble(cmd *cobra.Command, patience time.Duration) func(error) {
	return func(err error) {
		if !errors.Is(err, client.ErrNoEvents) {
			err = fmt.Errorf("%w; retrying for up to %v", err, patience)
		}
		fmt.Fprintln(cmd.ErrOrStderr(), err)
	}
}

// howToFollow adds the command for continuing the watch to an error, unless the error
// concerns the task itself.
func (s *serverFlags) howToFollow(err error, id procfleet.TaskID) error {
	if refusal, ok := errors.AsType[*client.Error](err); ok && !refusal.Retryable() {
		return err
	}
	return fmt.Errorf("%w; task %s continues, follow it with: %s", err, id, s.watchCommand(id))
}

func (s *serverFlags) watchCommand(id procfleet.TaskID) string {
	return fmt.Sprintf("procfleet task watch %s%s", id, s.hint())
}
