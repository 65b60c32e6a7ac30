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

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
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
	serverFlags
	nats, creds, file, since string
	event, application, task string
	follow                   bool
	from                     time.Time
	out                      io.Writer
	tls                      tlsflags.Client
}

func newAudit() *cobra.Command {
	var q auditQuery
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show the audit log: submissions, rejections and ends of tasks",
		Long: `Show the audit log, oldest first: callers and their operations, rejected requests, and the ends of tasks.

The command queries a dispatcher, which returns the records that the application of --token may read. With --nats it reads
the streams PROCFLEET_AUDIT and PROCFLEET_EVENTS, with --nats-creds of a server if NATS has users, and with --file the file
of --audit-log. With --json it writes the records, one per line.`,
		Example: `  procfleet audit --since 1h
  procfleet audit --event refused --follow
  procfleet audit --task GSETASK:20261121053522:123456 --json
  procfleet audit --nats nats://127.0.0.1:4222 --nats-creds procfleet-data/nats-auth/server.creds
  procfleet audit --file /var/log/procfleet/audit.jsonl --app shop`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := q.complete(); err != nil {
				return err
			}
			q.out = cmd.OutOrStdout()
			return q.show(cmd)
		},
	}
	flags := cmd.Flags()
	q.register(flags)
	flags.Lookup("json").Usage = "JSON output, one record per line"
	connflags.NATS(flags, &q.nats, &q.tls)
	connflags.NATSCreds(flags, &q.creds)
	flags.StringVar(&q.file, "file", "", "audit log file; - for standard input")
	flags.StringVar(&q.since, "since", "", "start, as age (2h) or time (2026-11-21T05:35:22Z)")
	flags.StringVar(&q.event, "event", "", "record kind: accepted, change, refused or finished")
	flags.StringVar(&q.application, "app", "", "application, authenticated or claimed")
	flags.StringVar(&q.task, "task", "", "task id")
	flags.BoolVar(&q.follow, "follow", false, "continuous output until Ctrl-C; not with --file")
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

func (q *auditQuery) show(cmd *cobra.Command) error {
	ctx := cmd.Context()
	var err error
	switch flags := cmd.Flags(); {
	case q.file != "":
		return q.showFile(cmd.InOrStdin())
	case flags.Changed("nats"), flags.Changed("nats-creds"):
		err = q.showStream(ctx)
	default:
		err = q.showServer(cmd)
	}
	if q.follow && ctx.Err() != nil {
		return nil //nolint:nilerr // Ctrl-C is the normal end of --follow
	}
	return err
}

// showServer shows the records that a dispatcher returns.
func (q *auditQuery) showServer(cmd *cobra.Command) error {
	c, err := q.client(cmd)
	if q.follow {
		c, err = q.watcher(reportTrouble(cmd, watchPatience))
	}
	if err != nil {
		return err
	}
	query := client.AuditQuery{Event: q.event, Application: q.application, Task: procfleet.TaskID(q.task), Since: q.from}
	records := c.Audit(cmd.Context(), query)
	if q.follow {
		records = c.FollowAudit(cmd.Context(), query, followEvery)
	}
	for r, err := range records {
		if err == nil {
			err = q.write(&r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// showStream shows the records of the streams.
func (q *auditQuery) showStream(ctx context.Context) error {
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
	return bus.New(js).ReadAudit(ctx, q.from, q.follow, q.visit)
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
	var r client.AuditRecord
	if err := json.Unmarshal(text, &r); err != nil || !q.wants(&r) {
		return nil //nolint:nilerr // a line truncated by a crash, or a foreign message
	}
	if q.output == outputJSON { // as stored
		_, err := fmt.Fprintf(q.out, "%s\n", strings.TrimSpace(string(text)))
		return err
	}
	return q.write(&r)
}

func (q *auditQuery) write(r *client.AuditRecord) error {
	if q.json {
		return q.writeLine(q.out, r)
	}
	return writeRecord(q.out, r)
}

func (q *auditQuery) wants(r *client.AuditRecord) bool {
	return (q.event == "" || q.event == r.Event) &&
		(q.application == "" || q.application == r.Application || q.application == r.Claimed) &&
		(q.task == "" || q.task == string(r.Task)) &&
		!r.At.Before(q.from)
}

// writeRecord writes a record as one line of words, without columns: records arrive one by one.
func writeRecord(out io.Writer, r *client.AuditRecord) error {
	text := ""
	switch audit.Event(r.Event) {
	case audit.Accepted:
		text = fmt.Sprintf("%s submitted %s as task %s", caller(r), operationText(r), r.Task)
	case audit.Change:
		text = fmt.Sprintf("%s changed: %s", caller(r), operationText(r))
	case audit.Refused:
		text = fmt.Sprintf("%s was refused %s: %s", caller(r), cmp.Or(operationText(r), r.Call, "a call"), r.Reason)
		if r.Field != "" {
			text += ", at " + r.Field
		}
	case audit.Transition:
		text = fmt.Sprintf("task %s of %s: %s", r.Task, cmp.Or(r.Application, "an unauthenticated caller"), r.Change)
	case audit.Finished:
		text = fmt.Sprintf("task %s of %s %s: %s", r.Task, cmp.Or(r.Application, "an unauthenticated caller"), r.State, countsOf(r.Counts))
	}
	if r.Business != "" {
		text += ", for business " + r.Business
	}
	if r.Reason != "" && r.Event != string(audit.Refused) {
		text += ", reason: " + r.Reason
	}
	if r.Repeats > 0 {
		text += fmt.Sprintf("; %d more like it", r.Repeats)
	}
	_, err := fmt.Fprintf(out, "%s  %s\n", r.At.Local().Format(time.RFC3339), oneLine(text))
	return err
}

// caller names the caller of a record: application, user and address.
func caller(r *client.AuditRecord) string {
	who := r.Application
	switch {
	case who != "":
	case r.Claimed != "":
		who = r.Claimed + " (not authenticated)"
	default:
		who = "an unauthenticated caller"
	}
	if r.User != "" {
		who += ", user " + r.User + ","
	}
	if r.Address != "" {
		who += " from " + r.Address
	}
	return who
}

// operationText describes what a record is about: actions or a change, processes and hosts.
func operationText(r *client.AuditRecord) string {
	words := []string{}
	if r.Change != "" {
		words = append(words, r.Change)
	}
	for _, action := range r.Actions {
		words = append(words, string(action))
	}
	if len(r.Processes) > 0 {
		words = append(words, "of "+strings.Join(r.Processes, ", "))
	}
	switch {
	case r.Hosts == 1 && len(r.Targets) > 0:
		words = append(words, "on "+r.Targets[0])
	case r.Hosts > 1:
		words = append(words, fmt.Sprintf("on %d hosts", r.Hosts))
	}
	return strings.Join(words, " ")
}

func countsOf(counts procfleet.Counts) string {
	var texts []string
	for _, state := range procfleet.States() {
		if n := counts[state]; n > 0 {
			texts = append(texts, fmt.Sprintf("%d %s", n, state))
		}
	}
	return cmp.Or(strings.Join(texts, ", "), "no items")
}
