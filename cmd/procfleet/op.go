package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/apiclient"
)

// opFlags are the flags of `op`.
type opFlags struct {
	server, specFile, hostsFile, key string
	hosts                            []string
	timeout                          time.Duration
	wait, json                       bool
}

func newOp() *cobra.Command {
	var f opFlags
	cmd := &cobra.Command{
		Use:   "op ACTION",
		Short: "Submit one operation on processes of hosts",
		Long: `Submit one operation: an action on one process on each of the hosts.

The actions are start, stop, status, supervise, release, restart, reload and kill. The spec file has
the keys of the native API's "process", in YAML or JSON. With --wait the command shows the progress
and ends with exit code 3 when some host failed.`,
		Example: `  procfleet op start --host 0:10.0.0.1 --host 0:10.0.0.2 -f spec.yaml --wait
  procfleet op status --hosts-file hosts.txt -f spec.yaml --wait --json`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, procfleet.Action(args[0])) },
	}
	flags := cmd.Flags()
	serverFlag(flags, &f.server)
	flags.StringSliceVar(&f.hosts, "host", nil, "host as <cloud>:<ip>, for example 0:10.0.0.1; may be repeated")
	flags.StringVar(&f.hostsFile, "hosts-file", "", "file with one host per line; - reads standard input")
	flags.StringVarP(&f.specFile, "file", "f", "", "spec of the process, YAML or JSON; - reads standard input (required)")
	flags.DurationVar(&f.timeout, "timeout", 0, "give up silent hosts after this time instead of the computed one")
	flags.StringVar(&f.key, "idempotency-key", "", "repeat of an earlier call with this key finds its task (default: a new key)")
	flags.BoolVar(&f.wait, "wait", false, "show the progress until the task is finished")
	flags.BoolVar(&f.json, "json", false, "write JSON")
	return cmd
}

func (f *opFlags) run(cmd *cobra.Command, action procfleet.Action) error {
	if !action.Known() {
		return usageError("unknown action %q: use one of %v", action, procfleet.Actions())
	}
	if f.specFile == "-" && f.hostsFile == "-" {
		return usageError("only one of -f and --hosts-file can be standard input")
	}
	spec, err := readSpec(cmd.InOrStdin(), f.specFile, action)
	if err != nil {
		return err
	}
	hosts, err := f.allHosts(cmd)
	if err != nil {
		return err
	}
	client, err := newClient(f.server)
	if err != nil {
		return err
	}
	if f.key == "" {
		f.key = uuid.NewString()
	}
	id, err := client.Submit(cmd.Context(), apiclient.Submission{
		Action: action, Process: spec, Hosts: hosts, Timeout: procfleet.Duration(f.timeout),
	}, f.key)
	if err != nil {
		return f.howToRepeat(err)
	}
	if !f.wait {
		return f.accepted(cmd, id)
	}
	return f.watch(cmd, client, id)
}

// howToRepeat adds the key to an error after which the task may be there.
func (f *opFlags) howToRepeat(err error) error {
	if !errors.Is(err, apiclient.ErrUnknown) {
		return err
	}
	return fmt.Errorf("%w; repeat the command with --idempotency-key %s, which never makes a second task", err, f.key)
}

// accepted tells the id to a caller who does not wait.
func (f *opFlags) accepted(cmd *cobra.Command, id string) error {
	if f.json {
		return writeJSON(cmd.OutOrStdout(), map[string]string{"id": id})
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\nfollow it with: procfleet task watch %s%s\n", id, id, serverHint(f.server))
	return err
}

func (f *opFlags) watch(cmd *cobra.Command, client *apiclient.Client, id string) error {
	out := cmd.OutOrStdout()
	if f.json {
		out = cmd.ErrOrStderr() // progress must not mix with the document
	}
	fmt.Fprintln(out, id)
	task, err := watchTask(cmd, client, id, f.server, out)
	if err != nil {
		return err
	}
	if f.json {
		err = writeTaskJSON(cmd.Context(), cmd.OutOrStdout(), client, task)
	} else {
		err = writeOutcome(cmd.Context(), out, client, f.server, task)
	}
	if err != nil {
		return howToFollow(err, id, f.server)
	}
	if task.State != string(procfleet.TaskFinished) || task.Counts.Failed() > 0 {
		return errHostsFailed
	}
	return nil
}

// allHosts are those of --host and of --hosts-file, where '#' begins a
// comment, each once.
func (f *opFlags) allHosts(cmd *cobra.Command) ([]string, error) {
	names := f.hosts
	if f.hostsFile != "" {
		more, err := readHosts(cmd, f.hostsFile)
		if err != nil {
			return nil, usageError("--hosts-file: %w", err)
		}
		names = append(names, more...)
	}
	var hosts []string
	seen := make(map[procfleet.Host]bool, len(names))
	for _, name := range names {
		host, err := procfleet.ParseHost(name)
		if err != nil {
			return nil, usageError("%w", err)
		}
		if !seen[host] {
			seen[host] = true
			hosts = append(hosts, host.String())
		}
	}
	if len(hosts) == 0 {
		return nil, usageError("no hosts: give --host 0:10.0.0.1 or --hosts-file FILE")
	}
	return hosts, nil
}

func readHosts(cmd *cobra.Command, path string) ([]string, error) {
	in := cmd.InOrStdin()
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	var hosts []string
	scanner := bufio.NewScanner(in)
	for scanner.Scan() {
		line, _, _ := strings.Cut(scanner.Text(), "#")
		hosts = append(hosts, strings.Fields(line)...)
	}
	return hosts, scanner.Err()
}

// watchTask shows the progress of a task on out until it is finished.
func watchTask(cmd *cobra.Command, client *apiclient.Client, id, server string, out io.Writer) (apiclient.Task, error) {
	progress := newProgress(out)
	task, err := client.Watch(cmd.Context(), id, progress.show, func(err error) {
		progress.end()
		fmt.Fprintf(cmd.ErrOrStderr(), "%v; asking again for up to %v\n", err, client.Patience)
	})
	progress.end()
	return task, howToFollow(err, id, server)
}

// howToFollow adds to an error how to go on watching a task that it did not
// touch.
func howToFollow(err error, id, server string) error {
	if refusal, ok := errors.AsType[*apiclient.Error](err); err == nil || (ok && refusal.Status < http.StatusInternalServerError) {
		return err
	}
	return fmt.Errorf("%w; the task goes on, follow it with: procfleet task watch %s%s", err, id, serverHint(server))
}
