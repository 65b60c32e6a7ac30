package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

func newTaskPause(f *taskFlags) *cobra.Command {
	cmd := newTaskControl(f, (*client.Client).PauseTask, f.planControl("paused"), always("paused"))
	cmd.Use, cmd.Short = "pause ID...", "Pause tasks: begin no further host until resumed"
	cmd.Long = `Pause tasks. No further host begins, and no agent accepts a command later than 10 s after the pause. Hosts whose agents
have accepted their commands go on. A task stays paused at the longest until half of its retention; then its pending hosts
fail as unreachable.`
	cmd.Example = `  procfleet task pause GSETASK:20260102030405:6789 --reason "errors on the first hosts"`
	return cmd
}

func newTaskResume(f *taskFlags) *cobra.Command {
	var hold, maxFailures string
	resume := func(c *client.Client, ctx context.Context, id procfleet.TaskID, control client.TaskControl) (client.Task, error) {
		r := client.TaskResume{Hold: procfleet.HoldKind(hold), TaskControl: control}
		var err error
		if maxFailures != "" {
			if r.MaxFailures, err = procfleet.ParseAmount(maxFailures); err != nil {
				return client.Task{}, command.Usagef("--max-failures: %w", err)
			}
		}
		return c.ResumeTask(ctx, id, r)
	}
	cmd := newTaskControl(f, resume, f.planControl("resumed"), always("resumed"))
	cmd.Use, cmd.Short = "resume ID...", "Resume paused tasks, or end a hold of a rollout"
	cmd.Long = `Resume paused tasks. With --hold, end a hold of rollouts: budget after too many failures, with a higher --max-failures, stalled
after a time without progress, unhealthy or inconclusive after the health check of a stage. A rollout that waits for an approval goes on with "procfleet task approve".`
	cmd.Example = `  procfleet task resume GSETASK:20260102030405:6789
  procfleet task resume GSETASK:20260102030405:6789 --hold budget --max-failures 5%`
	cmd.Flags().StringVar(&hold, "hold", "", "hold to end: operator, budget, stalled, unhealthy or inconclusive (default operator)")
	cmd.Flags().StringVar(&maxFailures, "max-failures", "", "failed hosts to tolerate, as a number or percentage")
	return cmd
}

func newTaskApprove(f *taskFlags) *cobra.Command {
	var stage int
	approve := func(c *client.Client, ctx context.Context, id procfleet.TaskID, control client.TaskControl) (client.Task, error) {
		number := stage
		if number == 0 {
			task, err := c.Task(ctx, id)
			if err != nil {
				return task, err
			}
			if task.Rollout == nil {
				return task, errors.New("the task has no rollout")
			}
			number, control.IfSeq = task.Rollout.Stage, &task.Seq
		}
		return c.ApproveTask(ctx, id, client.TaskApproval{Stage: number, TaskControl: control})
	}
	cmd := newTaskControl(f, approve, f.planControl("approved"), always("approved"))
	cmd.Use, cmd.Short = "approve ID...", "Approve the ended stage of rollouts"
	cmd.Long = `Approve the stage of rollouts that has ended, so that the next stage begins. The rollout must wait for an approval, see
--approve of the commands that operate processes.`
	cmd.Example = `  procfleet task approve GSETASK:20260102030405:6789 --reason "the canary is healthy"`
	cmd.Flags().IntVar(&stage, "stage", 0, "number of the stage, from 1 (default: the current one)")
	return cmd
}

func newTaskCancel(f *taskFlags) *cobra.Command {
	var interrupt bool
	var hosts hostFlags
	cancel := func(c *client.Client, ctx context.Context, id procfleet.TaskID, control client.TaskControl) (client.Task, error) {
		mode := procfleet.CancelDrain
		if interrupt {
			mode = procfleet.CancelInterrupt
		}
		on, err := parseHosts(hosts.names)
		if err != nil {
			return client.Task{}, err
		}
		return c.CancelTask(ctx, id, client.TaskCancel{Mode: mode, Hosts: on, TaskControl: control})
	}
	plan := func(cmd *cobra.Command, c *client.Client, id procfleet.TaskID) error {
		if len(hosts.names) > 0 {
			return f.planHostCancel(cmd, c, id, hosts.names)
		}
		return f.planControl("canceled")(cmd, c, id)
	}
	cmd := newTaskControl(f, cancel, plan, func() string {
		if n := len(hosts.names); n > 0 {
			return fmt.Sprintf("canceled on %d of its hosts", n)
		}
		return "canceled"
	})
	cmd.Use, cmd.Short = "cancel ID...", "Cancel tasks: hosts that have not begun do not run the command"
	cmd.Long = `Cancel tasks. Hosts that have not begun end as cancelled, and no command of them runs later. Commands that run end by
themselves, or are interrupted with --interrupt: they get SIGTERM, and SIGKILL after the stop grace of the process. Hosts
that do not reply within seconds end as unreachable. With --host the task goes on without these hosts.`
	cmd.Example = `  procfleet task cancel GSETASK:20260102030405:6789 --reason "wrong version"
  procfleet task cancel GSETASK:20260102030405:6789 --interrupt
  procfleet task cancel GSETASK:20260102030405:6789 --host 0:10.0.0.1`
	cmd.Flags().BoolVar(&interrupt, "interrupt", false, "terminate the commands that run")
	cmd.Flags().StringSliceVar(&hosts.names, "host", nil, "only this host, as <cloud area>:<ip>; repeatable")
	return cmd
}

func newTaskUndo(f *taskFlags) *cobra.Command {
	var speed string
	undo := func(c *client.Client, ctx context.Context, id procfleet.TaskID, control client.TaskControl) (client.Task, error) {
		return c.UndoTask(ctx, id, client.TaskUndo{Speed: procfleet.UndoSpeed(speed), TaskControl: control})
	}
	cmd := newTaskControl(f, undo, f.planControl("undone"), always("accepted"))
	cmd.Use, cmd.Short = "undo ID...", "Revert rollouts: restart processes with their previous specs"
	cmd.Long = `Revert rollouts of start, restart, supervise and reload. An open rollout is canceled first. A new task restarts the processes
on the released hosts with the specs that were registered before, the last released host first, and stops and unregisters
those that were not registered. Processes that later tasks have operated are left out. Files on the hosts stay as they are.`
	cmd.Example = `  procfleet task undo GSETASK:20260102030405:6789 --reason "errors after the release"
  procfleet task undo GSETASK:20260102030405:6789 --speed all`
	cmd.Flags().StringVar(&speed, "speed", "", "hosts at work: window of the rollout, or all (default window)")
	return cmd
}

func newTaskRetry(f *taskFlags) *cobra.Command {
	var states []string
	var hosts hostFlags
	request := func(control client.TaskControl) (client.TaskRetry, error) {
		request := client.TaskRetry{TaskControl: control}
		for _, state := range states {
			request.States = append(request.States, procfleet.State(state))
		}
		var err error
		request.Hosts, err = parseHosts(hosts.names)
		return request, err
	}
	retry := func(c *client.Client, ctx context.Context, id procfleet.TaskID, control client.TaskControl) (client.Task, error) {
		r, err := request(control)
		if err != nil {
			return client.Task{}, err
		}
		return c.RetryTask(ctx, id, r)
	}
	plan := func(cmd *cobra.Command, c *client.Client, id procfleet.TaskID) error {
		r, err := request(client.TaskControl{})
		if err != nil {
			return err
		}
		p, err := c.PlanRetry(cmd.Context(), id, r)
		if err != nil {
			return err
		}
		return f.print(cmd.OutOrStdout(), p, func(out io.Writer) error { return writePlan(out, &p) })
	}
	cmd := newTaskControl(f, retry, plan, always("accepted"))
	cmd.Use, cmd.Short = "retry ID...", "Repeat failed hosts of tasks as new tasks"
	cmd.Long = `Repeat hosts of tasks as new tasks, with the specs of the original tasks. By default these are all hosts that failed, timed out,
were unreachable or were canceled. Each task lists its retries. With --plan nothing changes: the preview names, per host,
the newest task that has operated the process since.`
	cmd.Example = `  procfleet task retry GSETASK:20260102030405:6789
  procfleet task retry GSETASK:20260102030405:6789 --state unreachable --host 0:10.0.0.1
  procfleet task retry GSETASK:20260102030405:6789 --plan`
	cmd.Flags().StringSliceVar(&states, "state", nil, "failed, unreachable, timed_out or cancelled (default all)")
	cmd.Flags().StringSliceVar(&hosts.names, "host", nil, "only this host, as <cloud area>:<ip>; repeatable")
	return cmd
}

// planHostCancel shows the items that a cancel of hosts would apply to.
func (f *taskFlags) planHostCancel(cmd *cobra.Command, c *client.Client, id procfleet.TaskID, names []string) error {
	hosts, err := parseHosts(names)
	if err != nil {
		return err
	}
	open := []client.Result{}
	for _, state := range []procfleet.State{procfleet.StatePending, procfleet.StateDelivered} {
		for r, err := range c.Results(cmd.Context(), id, client.Query{State: state}) {
			if err != nil {
				return err
			}
			if slices.Contains(hosts, r.Host) {
				open = append(open, r)
			}
		}
	}
	return f.print(cmd.OutOrStdout(), open, func(out io.Writer) error { return writeResults(out, open) })
}

func parseHosts(names []string) ([]procfleet.Host, error) {
	hosts := make([]procfleet.Host, len(names))
	for i, name := range names {
		var err error
		if hosts[i], err = procfleet.ParseHost(name); err != nil {
			return nil, command.Usagef("--host: %w", err)
		}
	}
	return hosts, nil
}

func always(text string) func() string { return func() string { return text } }

// newTaskControl returns a command that controls the tasks in its arguments. It goes on
// after an error, so that one task that has ended does not keep the others running. With
// --plan it calls plan instead.
func newTaskControl(f *taskFlags, control func(*client.Client, context.Context, procfleet.TaskID, client.TaskControl) (client.Task, error),
	plan func(*cobra.Command, *client.Client, procfleet.TaskID) error, done func() string,
) *cobra.Command {
	var reason string
	var planned bool
	cmd := &cobra.Command{
		Args:              atLeast("ID of a task"),
		ValidArgsFunction: completeTasks,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.client(cmd)
			if err != nil {
				return err
			}
			each := func(id procfleet.TaskID) error {
				if planned {
					return plan(cmd, c, id)
				}
				task, err := control(c, cmd.Context(), id, client.TaskControl{Reason: reason})
				if err != nil {
					return err
				}
				return f.writeControlled(cmd, task, done())
			}
			var failed error
			for _, id := range args {
				if err := each(procfleet.TaskID(id)); err != nil {
					failed = errors.Join(failed, fmt.Errorf("%s: %w", id, err))
				}
			}
			return failed
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason shown with the task and in the audit log")
	planFlags(cmd.Flags(), &planned, "preview without changes")
	return cmd
}

// planControl returns a function that shows what a pause, resume or cancel would apply to.
func (f *taskFlags) planControl(done string) func(*cobra.Command, *client.Client, procfleet.TaskID) error {
	return func(cmd *cobra.Command, c *client.Client, id procfleet.TaskID) error {
		task, err := c.Task(cmd.Context(), id)
		switch {
		case err != nil:
			return err
		case task.State.Done():
			return fmt.Errorf("the task is %s: only an open task can be controlled", task.State)
		}
		return f.writeControlled(cmd, task, "would be "+done)
	}
}

func (f *taskFlags) writeControlled(cmd *cobra.Command, task client.Task, done string) error {
	return f.print(cmd.OutOrStdout(), task, func(out io.Writer) error {
		_, err := fmt.Fprintf(out, "%s %s: %d pending, %d accepted by agents, %d of %d ended\n",
			task.ID, done, task.Counts[procfleet.StatePending], task.Counts[procfleet.StateDelivered], task.Items-task.Counts.Open(), task.Items)
		return err
	})
}
