package main

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// followEvery is the polling interval with --follow.
const followEvery = time.Second

// eventFlags are the flags of `events`.
type eventFlags struct {
	serverFlags
	host, since string
	query       client.EventQuery
	follow      bool
}

func newEvents() *cobra.Command {
	var f eventFlags
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show agent events: automatic restarts, crashes, limit actions",
		Long: `Show events of agents of the last 7 days: processes restarted, given up, over a limit or replaced by a successor, and
problems of hosts. The command shows the newest events, or all since --since, in the order of their times; with --follow it
shows them in the order of arrival and continues until Ctrl-C.`,
		Example: `  procfleet events
  procfleet events --follow --kind gave_up
  procfleet events --since 2h --host 0:10.0.0.1 --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.complete(cmd); err != nil {
				return err
			}
			return f.show(cmd)
		},
	}
	flags := cmd.Flags()
	f.register(flags)
	flags.Lookup("json").Usage = "JSON output, one event per line"
	flags.StringVar(&f.host, "host", "", "host as <cloud area>:<ip>")
	flags.StringVar(&f.query.Namespace, "namespace", "", "namespace of the processes")
	flags.StringVar(&f.query.Kind, "kind", "", "event kind, for example gave_up")
	flags.StringVar(&f.since, "since", "", "start, as age (2h) or time (2026-11-21T05:35:22Z)")
	flags.IntVar(&f.query.PageSize, "limit", 100, "number of newest events, 1 to 1000")
	flags.BoolVar(&f.follow, "follow", false, "continuous output until Ctrl-C")
	return cmd
}

// complete validates the flags and completes the query.
func (f *eventFlags) complete(cmd *cobra.Command) (err error) {
	if f.host != "" {
		if f.query.Host, err = procfleet.ParseHost(f.host); err != nil {
			return command.Usagef("--host: %w", err)
		}
	}
	if err := checkLimit(f.query.PageSize); err != nil {
		return err
	}
	if f.since == "" {
		return nil
	}
	if cmd.Flags().Changed("limit") {
		return command.Usagef("--limit and --since exclude each other")
	}
	f.query.PageSize = 0
	f.query.Since, err = sinceFlag(f.since)
	return err
}

func (f *eventFlags) show(cmd *cobra.Command) error {
	ctx := cmd.Context()
	c, err := f.client(cmd)
	if f.follow {
		c, err = f.watcher(reportTrouble(cmd, watchPatience))
	}
	if err != nil {
		return err
	}
	events := inOrder(c.Events(ctx, f.query))
	if f.follow {
		events = c.FollowEvents(ctx, f.query, followEvery)
	}
	write := writeEvent
	if f.json {
		write = func(out io.Writer, e *procfleet.HostEvent) error { return f.writeLine(out, e) }
	}
	for e, err := range events {
		if err != nil && f.follow && ctx.Err() != nil {
			return nil // Ctrl-C is the normal end of --follow
		}
		if err == nil {
			err = write(cmd.OutOrStdout(), &e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inOrder yields the events in the order of their times, and then the first error, if any. The
// server orders them by arrival, and a disconnected agent sends its events later.
func inOrder(events iter.Seq2[procfleet.HostEvent, error]) iter.Seq2[procfleet.HostEvent, error] {
	return func(yield func(procfleet.HostEvent, error) bool) {
		var all []procfleet.HostEvent
		var failed error
		for e, err := range events {
			if err != nil {
				failed = err
				break
			}
			all = append(all, e)
		}
		slices.SortStableFunc(all, func(a, b procfleet.HostEvent) int { return a.At.Compare(b.At) })
		for _, e := range all {
			if !yield(e, nil) {
				return
			}
		}
		if failed != nil {
			yield(procfleet.HostEvent{}, failed)
		}
	}
}

// writeEvent writes an event as one line, without columns: events arrive one by one.
func writeEvent(out io.Writer, e *procfleet.HostEvent) error {
	about := ""
	if what := cmp.Or(e.Key, e.ProcName); what != "" {
		about = "  " + oneLine(what)
	}
	_, err := fmt.Fprintf(out, "%s  %s  %s%s  %s\n", e.At.Local().Format(time.RFC3339), e.Host, oneLine(e.Kind), about, oneLine(e.Message))
	return err
}
