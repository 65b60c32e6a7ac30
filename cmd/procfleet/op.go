package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// opFlags are the flags of `op`.
type opFlags struct {
	serverFlags
	hosts      hostFlags
	process    nameFlags
	selection  selectionFlags
	submission submissionFlags
	specFile   string
	registered bool
	wait       bool
}

// submissionFlags are the flags of a submission that do not select processes or hosts.
type submissionFlags struct {
	key      string
	override string
	timeout  time.Duration
	plan     bool
	yes      bool
	rollout  rolloutFlags
}

func (f *submissionFlags) register(flags *pflag.FlagSet) {
	planFlags(flags, &f.plan, "preview without a task")
	flags.BoolVarP(&f.yes, "yes", "y", false, "no confirmation of a stop, kill or release on many hosts")
	flags.DurationVar(&f.timeout, "timeout", 0, "time limit for hosts that do not reply (default: computed)")
	f.rollout.register(flags)
	flags.StringVar(&f.override, "override-windows", "", "reason to operate hosts outside of maintenance windows")
	flags.StringVar(&f.key, "idempotency-key", "", "key that prevents a second task on repetition (default: new)")
}

// planFlags registers --plan and its alias --dry-run.
func planFlags(flags *pflag.FlagSet, plan *bool, usage string) {
	flags.BoolVar(plan, "plan", false, usage)
	flags.BoolVar(plan, "dry-run", false, "alias of --plan")
}

func newOp() *cobra.Command {
	var f opFlags
	cmd := &cobra.Command{
		Use:   "op ACTION",
		Short: "Submit one operation on processes of hosts",
		Long: `Submit one operation: an action on one process on each of the hosts. Actions are start, stop, status, supervise,
release, restart, reload and kill. Name the process in one of three ways:

  -f FILE                    a spec with the keys of "process" in the native API, on --host or --hosts-file
  --registered               the process registered under --namespace and --name, on the given hosts or wherever it is registered
  --process, --process-id    processes of the catalog of --biz, on the hosts of their modules, limited by --set and --module

With --plan the command only previews the task and exits with 1 if the task would be empty. With --wait it shows the
progress and exits with 3 if some host failed, and after a status with 4 if some process is down.`,
		Example: `  procfleet op start --host 0:10.0.0.1 --host 0:10.0.0.2 -f spec.yaml --wait
  procfleet op status --hosts-file hosts.txt -f spec.yaml --wait --json
  procfleet op restart --registered --namespace shop --name web --wait
  procfleet op restart --biz 2 --process 'nginx*' --module web --plan`,
		Args:              exactly("ACTION"),
		ValidArgsFunction: completeActions,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, procfleet.Action(args[0])) },
	}
	flags := cmd.Flags()
	f.register(flags)
	f.hosts.register(flags)
	flags.StringVarP(&f.specFile, "file", "f", "", "process spec, YAML or JSON; - for standard input")
	flags.BoolVar(&f.registered, "registered", false, "process as registered under --namespace and --name, instead of a spec")
	f.process.register(flags, "with --registered")
	f.selection.register(flags)
	f.submission.register(flags)
	flags.BoolVar(&f.wait, "wait", false, "progress until the task is finished")
	return cmd
}

func (f *opFlags) run(cmd *cobra.Command, action procfleet.Action) error {
	if !action.Known() {
		return command.Usagef("unknown action %q: use one of %v", action, procfleet.Actions())
	}
	operation, err := f.operation(cmd, action)
	if err != nil {
		return err
	}
	return f.submit(cmd, operation)
}

// submit submits one operation, or shows its plan.
func (f *opFlags) submit(cmd *cobra.Command, operation client.Operation) error {
	business, err := f.selection.business()
	if err != nil {
		return err
	}
	rollout, err := f.submission.rollout.policy()
	if err != nil {
		return err
	}
	queue, err := f.submission.rollout.queue()
	if err != nil {
		return err
	}
	submission := client.Submission{
		Operations:     []client.Operation{operation},
		Rollout:        rollout,
		Queue:          queue,
		Policy:         f.submission.rollout.name,
		Override:       f.submission.override,
		Timeout:        procfleet.Duration(f.submission.timeout),
		IdempotencyKey: f.submission.key,
		Business:       business,
	}
	if f.submission.plan {
		return f.showPlan(cmd, submission)
	}
	if err := f.confirm(cmd, submission); err != nil {
		return err
	}
	c, err := f.submitter(cmd)
	if err != nil {
		return err
	}
	id, err := c.Submit(cmd.Context(), submission)
	if err != nil {
		return err
	}
	if !f.wait {
		return f.accepted(cmd, id)
	}
	return f.watch(cmd, c, id)
}

// operation returns the operation defined by the flags.
func (f *opFlags) operation(cmd *cobra.Command, action procfleet.Action) (o client.Operation, err error) {
	o = client.Operation{Action: action, Registered: f.registered}
	if f.selection.given(cmd) {
		if f.registered || f.specFile != "" || f.process != (nameFlags{}) || len(f.hosts.names) > 0 || f.hosts.file != "" {
			return o, command.Usagef("--process, --process-id, --set and --module select processes and hosts; they exclude --registered, --namespace, --name, -f, --host and --hosts-file")
		}
		o.Select, err = f.selection.selection()
		return o, err
	}
	if f.registered {
		if f.specFile != "" {
			return o, command.Usagef("--registered and -f exclude each other")
		}
		o.Process.Namespace, o.Process.Name = f.process.namespace, f.process.name
		if err := f.process.check(); err != nil {
			return o, err
		}
		o.Hosts, err = f.hosts.any(cmd)
		return o, err
	}
	if f.process != (nameFlags{}) {
		return o, command.Usagef("--namespace and --name require --registered; a spec file contains them")
	}
	if err := oneStandardInput(f.specFile, f.hosts.file); err != nil {
		return o, err
	}
	if o.Process, err = readSpec(cmd.InOrStdin(), f.specFile, action); err != nil {
		return o, err
	}
	o.Hosts, err = f.hosts.all(cmd)
	return o, err
}

// oneStandardInput returns an error if both files are "-", standard input.
func oneStandardInput(specFile, hostsFile string) error {
	if specFile == "-" && hostsFile == "-" {
		return command.Usagef("only one of -f and --hosts-file can be standard input")
	}
	return nil
}

// accepted prints the id of a task that the command does not wait for.
func (f *opFlags) accepted(cmd *cobra.Command, id procfleet.TaskID) error {
	return f.print(cmd.OutOrStdout(), map[string]procfleet.TaskID{"id": id}, func(out io.Writer) error {
		_, err := fmt.Fprintf(out, "%s\nfollow it with: %s\n", id, f.watchCommand(id))
		return err
	})
}

func (f *opFlags) watch(cmd *cobra.Command, c *client.Client, id procfleet.TaskID) error {
	out := cmd.OutOrStdout()
	if f.json {
		out = cmd.ErrOrStderr() // keep progress out of the JSON document
	}
	fmt.Fprintln(out, id)
	task, err := f.showProgress(cmd, id, out)
	if err != nil {
		return err
	}
	if f.json {
		err = f.writeOutcome(cmd.Context(), cmd.OutOrStdout(), c, task)
	} else {
		err = writeOutcome(cmd.Context(), out, c, f.hint(), task)
	}
	if err != nil && !errors.Is(err, errHostsFailed) && !errors.Is(err, errProcessesDown) {
		return f.howToFollow(err, id)
	}
	return err
}
