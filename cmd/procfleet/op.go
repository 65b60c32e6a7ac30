package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// opFlags are the flags of `op`.
type opFlags struct {
	server                   serverFlags
	specFile, hostsFile, key string
	hosts                    []string
	timeout                  time.Duration
	wait, json               bool
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
		Args: exactly("ACTION"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, procfleet.Action(args[0])) },
	}
	flags := cmd.Flags()
	f.server.register(flags)
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
	c, err := f.server.submitter(cmd)
	if err != nil {
		return err
	}
	id, err := c.Submit(cmd.Context(), client.Submission{
		Operations:     []client.Operation{{Action: action, Process: spec, Hosts: hosts}},
		Timeout:        procfleet.Duration(f.timeout),
		IdempotencyKey: f.key,
	})
	if err != nil {
		return err
	}
	if !f.wait {
		return f.accepted(cmd, id)
	}
	return f.watch(cmd, c, id)
}

// accepted tells the id to a caller who does not wait.
func (f *opFlags) accepted(cmd *cobra.Command, id procfleet.TaskID) error {
	if f.json {
		return writeJSON(cmd.OutOrStdout(), map[string]procfleet.TaskID{"id": id})
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\nfollow it with: %s\n", id, f.server.watchCommand(id))
	return err
}

func (f *opFlags) watch(cmd *cobra.Command, c *client.Client, id procfleet.TaskID) error {
	out := cmd.OutOrStdout()
	if f.json {
		out = cmd.ErrOrStderr() // progress must not mix with the document
	}
	fmt.Fprintln(out, id)
	task, err := f.server.showProgress(cmd, id, out)
	if err != nil {
		return err
	}
	if f.json {
		err = writeTaskJSON(cmd.Context(), cmd.OutOrStdout(), c, task)
	} else {
		err = writeOutcome(cmd.Context(), out, c, f.server.hint(), task)
	}
	if err != nil {
		return f.server.howToFollow(err, id)
	}
	return verdict(task)
}

// allHosts are those of --host and of --hosts-file, where '#' begins a
// comment, each once.
func (f *opFlags) allHosts(cmd *cobra.Command) ([]procfleet.Host, error) {
	var named []procfleet.Host
	for _, name := range f.hosts {
		host, err := procfleet.ParseHost(name)
		if err != nil {
			return nil, usageError("--host: %w", err)
		}
		named = append(named, host)
	}
	if f.hostsFile != "" {
		more, err := readHosts(cmd, f.hostsFile)
		if err != nil {
			return nil, usageError("--hosts-file: %w", err)
		}
		named = append(named, more...)
	}
	var hosts []procfleet.Host
	seen := make(map[procfleet.Host]bool, len(named))
	for _, host := range named {
		if !seen[host] {
			seen[host] = true
			hosts = append(hosts, host)
		}
	}
	if len(hosts) == 0 {
		return nil, usageError("no hosts: give --host 0:10.0.0.1 or --hosts-file FILE")
	}
	return hosts, nil
}

func readHosts(cmd *cobra.Command, path string) ([]procfleet.Host, error) {
	in := cmd.InOrStdin()
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	var hosts []procfleet.Host
	scanner := bufio.NewScanner(in)
	for number := 1; scanner.Scan(); number++ {
		line, _, _ := strings.Cut(scanner.Text(), "#")
		for name := range strings.FieldsSeq(line) {
			host, err := procfleet.ParseHost(name)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, number, err)
			}
			hosts = append(hosts, host)
		}
	}
	return hosts, scanner.Err()
}
