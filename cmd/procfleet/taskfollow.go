package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

func newTaskFollow(f *serverFlags) *cobra.Command {
	var q client.TaskEventQuery
	var task string
	cmd := &cobra.Command{
		Use:   "follow",
		Short: "Show the events of all tasks until Ctrl-C",
		Long: `Show each event of the tasks of the application, and of the businesses that it may read: accepted, stage, held, resumed,
approved, cancelled, items_cancelled, finished or rejected. The command begins with the next event and ends with Ctrl-C.`,
		Example: `  procfleet task follow --biz 2
  procfleet task follow --task GSETASK:20260102030405:6789 --json`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if task != "" {
				var err error
				if q.Task, err = procfleet.ParseTaskID(task); err != nil {
					return command.Usagef("--task: %w", err)
				}
			}
			c, err := f.watcher(reportTrouble(cmd, watchPatience))
			if err != nil {
				return err
			}
			for event, err := range c.FollowTasks(cmd.Context(), q) {
				if err != nil && cmd.Context().Err() != nil {
					return nil // Ctrl-C is the normal end
				}
				if err == nil {
					err = f.writeTaskEvent(cmd, &event)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&q.Business, "biz", "", "business of the tasks")
	flags.StringVar(&task, "task", "", "only this task")
	return cmd
}

// taskEventText describes an event in one line, without its time.
func taskEventText(e *client.TaskEvent) string {
	words := []string{string(e.Task), e.Kind}
	if e.Stage > 0 {
		words = append(words, fmt.Sprint("stage ", e.Stage))
	}
	for _, word := range []string{string(e.Hold), string(e.Mode)} {
		if word != "" {
			words = append(words, word)
		}
	}
	if e.State != "" {
		words = append(words, countsOf(e.Counts))
	}
	text := strings.Join(words, "  ")
	if e.Reason != "" {
		text += "  reason: " + e.Reason
	}
	return text
}

func (f *serverFlags) writeTaskEvent(cmd *cobra.Command, e *client.FollowedEvent) error {
	if f.json {
		return f.writeLine(cmd.OutOrStdout(), &e.TaskEvent)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s  %s\n", e.At.Local().Format(time.RFC3339), oneLine(taskEventText(&e.TaskEvent)))
	return err
}
