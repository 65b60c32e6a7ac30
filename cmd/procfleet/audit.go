package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/connflags"
	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsconn"
)

// auditQuery are the flags of `audit`.
type auditQuery struct {
	nats, creds, file, since string
	event, application, task string
	follow, json             bool
	from                     time.Time
	out                      io.Writer
	tls                      tlsflags.Client
}

func newAudit() *cobra.Command {
	var q auditQuery
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show the audit log: submissions, rejections and ends of tasks",
		Long: `Show the audit log: callers and their operations, rejected requests, and the ends of tasks.

The command reads the streams PROCFLEET_AUDIT and PROCFLEET_EVENTS over NATS, with --nats-creds of a server if NATS has
users, or with --file the file of --audit-log. With --json it writes the stored records.`,
		Example: `  procfleet audit --since 1h
  procfleet audit --event refused --follow --nats-creds procfleet-data/nats-auth/server.creds
  procfleet audit --task GSETASK:20261121053522:123456 --json
  procfleet audit --file /var/log/procfleet/audit.jsonl --app shop`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := q.complete(); err != nil {
				return err
			}
			q.out = cmd.OutOrStdout()
			return q.show(cmd.Context(), cmd)
		},
	}
	flags := cmd.Flags()
	connflags.NATS(flags, &q.nats, &q.tls)
	connflags.NATSCreds(flags, &q.creds)
	flags.StringVar(&q.file, "file", "", "audit log file instead of the stream; - for standard input")
	flags.StringVar(&q.since, "since", "", "start, as age (2h) or time (2026-11-21T05:35:22Z)")
	flags.StringVar(&q.event, "event", "", "record kind: accepted, change, refused or finished")
	flags.StringVar(&q.application, "app", "", "application, authenticated or claimed")
	flags.StringVar(&q.task, "task", "", "task id")
	flags.BoolVar(&q.follow, "follow", false, "continuous output until Ctrl-C; not with --file")
	flags.BoolVar(&q.json, "json", false, "JSON output, one record per line")
	return cmd
}

// complete validates the flags and completes the query.
func (q *auditQuery) complete() (err error) {
	if q.file != "" && q.follow {
		return command.Usagef("--follow and --file exclude each other")
	}
	if q.event != "" && !slices.Contains(audit.Events(), audit.Event(q.event)) {
		return command.Usagef("--event: %q is not accepted, change, refused or finished", q.event)
	}
	q.from, err = sinceFlag(q.since)
	return err
}

// sinceFlag parses a time or an age; an empty text yields the zero time.
func sinceFlag(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil {
		return time.Now().Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, command.Usagef("--since: %q is neither an age, like 2h, nor a time, like 2026-11-21T05:35:22Z", text)
	}
	return at, nil
}

func (q *auditQuery) show(ctx context.Context, cmd *cobra.Command) error {
	if q.file != "" {
		return q.showFile(cmd.InOrStdin())
	}
	files, err := q.tls.OpenAtOnce()
	if err != nil {
		return err
	}
	conn, err := connectBriefly(ctx, natsconn.Config{
		URL: q.nats, TLS: files, Credentials: connflags.Credentials(q.creds), InboxPrefix: natsauth.ServerInbox, Name: "audit",
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := bus.JetStream(conn)
	if err != nil {
		return err
	}
	err = bus.New(js).ReadAudit(ctx, q.from, q.follow, q.visit)
	if q.follow && ctx.Err() != nil {
		return nil // Ctrl-C is the normal end of --follow
	}
	return err
}

// showFile shows the records of a file; a crash may have truncated its last line.
func (q *auditQuery) showFile(in io.Reader) error {
	file, err := openInput(in, q.file)
	if err != nil {
		return fmt.Errorf("--file: %w", err)
	}
	defer file.Close()
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 1 {
			if err := q.visit(line); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("--file: %w", err)
		}
	}
}

// visit shows a record if it matches the flags. It ignores invalid records.
func (q *auditQuery) visit(text []byte) error {
	var r audit.Record
	if err := json.Unmarshal(text, &r); err != nil || !q.wants(&r) {
		return nil //nolint:nilerr // a line truncated by a crash, or a foreign message
	}
	if q.json {
		_, err := fmt.Fprintf(q.out, "%s\n", strings.TrimSpace(string(text)))
		return err
	}
	return writeRecord(q.out, &r)
}

func (q *auditQuery) wants(r *audit.Record) bool {
	return (q.event == "" || q.event == string(r.Event)) &&
		(q.application == "" || q.application == r.Application || q.application == r.Claimed) &&
		(q.task == "" || q.task == string(r.Task)) &&
		!r.At.Before(q.from)
}

// writeRecord writes a record as one line, without columns: records arrive one by one.
func writeRecord(out io.Writer, r *audit.Record) error {
	who := cmp.Or(r.Application, r.Claimed+"?")
	if r.User != "" {
		who += " (" + r.User + ")"
	}
	if r.Address != "" {
		who += " from " + r.Address
	}
	_, err := fmt.Fprintf(out, "%s  %-8s  %s  %s\n", r.At.Local().Format(time.RFC3339), r.Event, oneLine(who), oneLine(strings.Join(details(r), "  ")))
	return err
}

// details returns the fields of a record, except time and caller, as texts.
func details(r *audit.Record) []string {
	var words []string
	add := func(format string, value any, there bool) {
		if there {
			words = append(words, fmt.Sprintf(format, value))
		}
	}
	add("%s", r.Task, r.Task != "")
	add("%s", r.State, r.State != "")
	add("%s", r.Change, r.Change != "")
	for _, action := range r.Actions {
		add("%s", action, true)
	}
	add("%s", strings.Join(r.Processes, ","), len(r.Processes) > 0)
	add("on %d hosts", r.Hosts, r.Hosts > 1)
	add("on %s", strings.Join(r.Targets, ""), r.Hosts == 1)
	add("%v", r.Counts, len(r.Counts) > 0)
	add("%s", r.Reason, r.Reason != "")
	add("at %s", r.Field, r.Field != "")
	add("for business %s", r.Business, r.Business != "")
	add("and %d more like it", r.Repeats, r.Repeats > 0)
	return words
}
