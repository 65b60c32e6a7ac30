package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// maxLogHosts is the maximum number of hosts of one `logs`.
const maxLogHosts = 50

// logsFlags are the flags of `logs`.
type logsFlags struct {
	serverFlags
	places   placeFlags
	tail     int
	age      string
	since    time.Time
	logPath  bool
	follow   bool
	business string
}

func newLogs() *cobra.Command {
	var f logsFlags
	cmd := &cobra.Command{
		Use:   "logs PROCESS HOST...",
		Short: "Show the output of a process on one or many hosts",
		Long: `Show the standard output and standard error of a process and of its start command. PROCESS is NAMESPACE/NAME, and HOST an
address as <cloud area>:<ip>; -l selects hosts by labels. With several hosts, at most 50, each line begins with its host.

The agent keeps the last 8 to 16 MiB of a process that runs, and 64 KiB after its end. --since counts to the minute; if the
agent was restarted since, it begins earlier. With --log-path the command shows the file log_path of the process, as the
account of the process may read it. The command needs the right output.`,
		Example: `  procfleet logs shop/web 0:10.0.0.1
  procfleet logs shop/web 0:10.0.0.1 -f --tail 10
  procfleet logs shop/web 0:10.0.0.1 --since 10m
  procfleet logs shop/web -l zone=a1`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeProcesses,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	f.register(flags)
	f.places.register(flags)
	flags.IntVar(&f.tail, "tail", 200, "number of last lines, 0 to 10000")
	flags.StringVar(&f.age, "since", "", "output since an age (10m) or time (2026-11-21T05:35:22Z)")
	flags.BoolVar(&f.logPath, "log-path", false, "the file log_path of the process")
	flags.BoolVarP(&f.follow, "follow", "f", false, "continuous output until Ctrl-C")
	flags.StringVar(&f.business, "biz", "", "business that owns the hosts")
	return cmd
}

func (f *logsFlags) run(cmd *cobra.Command, args []string) error {
	names, hosts, err := splitTargets(args)
	switch {
	case err != nil:
		return err
	case len(names) != 1:
		return command.Usagef("name one PROCESS, for example: procfleet logs shop/web 0:10.0.0.1")
	}
	if f.age != "" {
		if f.since, err = sinceFlag(f.age); err != nil {
			return err
		}
	}
	if hosts, err = f.places.hosts(cmd, &f.serverFlags, hosts); err != nil {
		return err
	}
	switch {
	case len(hosts) == 0:
		return command.Usagef("name the hosts: 0:10.0.0.1 or -l key=value")
	case len(hosts) > maxLogHosts:
		return command.Usagef("%d hosts, at most %d are possible: select fewer", len(hosts), maxLogHosts)
	}
	c, err := f.client(cmd)
	if err != nil {
		return err
	}
	var (
		wait  sync.WaitGroup
		mu    sync.Mutex // serializes lines and errors
		errs  error
		lines = bufio.NewWriter(cmd.OutOrStdout())
	)
	for _, host := range hosts {
		prefix := ""
		if len(hosts) > 1 {
			prefix = host.String() + "  "
		}
		wait.Go(func() {
			err := f.show(cmd.Context(), c, host, names[0], func(text string) error {
				mu.Lock()
				defer mu.Unlock()
				return errors.Join(writePrefixed(lines, prefix, text), lines.Flush())
			})
			if err != nil && cmd.Context().Err() == nil {
				mu.Lock()
				errs = errors.Join(errs, fmt.Errorf("%s: %w", host, err))
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	return errs
}

// show passes the output of a process on one host to write, in whole lines except for the last
// one.
func (f *logsFlags) show(ctx context.Context, c *client.Client, host procfleet.Host, process string, write func(string) error) error {
	query := client.OutputQuery{Host: host, Process: process, Business: f.business, Tail: f.tail, Since: f.since, Log: f.logPath, Follow: f.follow}
	rest := ""
	for {
		page, err := c.OutputPage(ctx, query)
		if err != nil {
			return err
		}
		if page.Lost {
			if err := write("(output is missing here)\n"); err != nil {
				return err
			}
		}
		text := rest + page.Data
		end := strings.LastIndexByte(text, '\n') + 1
		if rest = text[end:]; !page.More && !f.follow {
			return write(text)
		}
		if err := write(text[:end]); err != nil {
			return err
		}
		query.Cursor = page.Next
	}
}

// writePrefixed writes text with the prefix before each line.
func writePrefixed(out io.Writer, prefix, text string) error {
	for line := range strings.SplitAfterSeq(text, "\n") {
		if line == "" {
			continue
		}
		if _, err := io.WriteString(out, prefix+line); err != nil {
			return err
		}
	}
	return nil
}
