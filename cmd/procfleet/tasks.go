package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// tasksFlags are the flags of `tasks` and `task list`.
type tasksFlags struct {
	pageFlags
	repeat      repeatFlags
	states      []string
	action, age string
	biz         string
	application string
	host        string
	process     string
}

// newTasks returns the command `tasks`, which is `task list` under a shorter name.
func newTasks() *cobra.Command {
	var s serverFlags
	cmd := newTaskList(&s)
	cmd.Use = "tasks"
	cmd.Example = "  procfleet tasks\n  procfleet tasks --state running --watch\n  procfleet tasks --action restart --since 2h --application shop\n  procfleet tasks --host 0:10.0.0.1 --process shop:web"
	s.register(cmd.Flags())
	return cmd
}

func newTaskList(s *serverFlags) *cobra.Command {
	var f tasksFlags
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List tasks, newest first",
		Example: "  procfleet task list --limit 20\n  procfleet task list --state running",
		RunE: func(cmd *cobra.Command, _ []string) error {
			query, err := f.query()
			if err != nil {
				return err
			}
			return f.repeat.run(cmd, f.show(cmd, s, query))
		},
	}
	flags := cmd.Flags()
	f.register(flags)
	f.repeat.register(flags)
	flags.StringSliceVar(&f.states, "state", nil, "accepted, running, finished or rejected; repeatable")
	flags.StringVar(&f.action, "action", "", "action of an operation, for example restart")
	flags.StringVar(&f.biz, "biz", "", "business of the task")
	flags.StringVar(&f.application, "application", "", "application that created the task")
	flags.StringVar(&f.host, "host", "", "with an item on this host, <cloud area>:<ip>")
	flags.StringVar(&f.process, "process", "", "with an item of this process, name or namespace:name")
	flags.StringVar(&f.age, "since", "", "created since, as age (2h) or time (2026-11-21T05:35:22Z)")
	return cmd
}

func (f *tasksFlags) query() (q client.TaskQuery, err error) {
	if err := f.check(); err != nil {
		return q, err
	}
	if q.Action = procfleet.Action(f.action); f.action != "" && !q.Action.Known() {
		return q, command.Usagef("--action %.70q: use one of %v", f.action, procfleet.Actions())
	}
	for _, state := range f.states {
		q.States = append(q.States, procfleet.TaskState(state)) // the server checks them
	}
	if f.age != "" {
		if q.CreatedAfter, err = sinceFlag(f.age); err != nil {
			return q, err
		}
	}
	if f.host != "" {
		if q.Host, err = procfleet.ParseHost(f.host); err != nil {
			return q, command.Usagef("--host: %w", err)
		}
	}
	q.Business, q.Application, q.Process = f.biz, f.application, f.process
	return q, nil
}

func (f *tasksFlags) show(cmd *cobra.Command, s *serverFlags, query client.TaskQuery) func(context.Context, io.Writer) error {
	return func(ctx context.Context, out io.Writer) error {
		c, err := s.client(cmd)
		if err != nil {
			return err
		}
		tasks, next, err := collectPages(f.page, func(page client.Query) (client.Page[client.Task], error) {
			query.Query = page
			return c.TaskPage(ctx, query)
		})
		if err != nil {
			return err
		}
		return s.printTable(out, v1.TaskPage{Tasks: tasks, Next: next}, taskTable(tasks, s.more(cmd, next)))
	}
}

func taskTable(tasks []client.Task, footer string) *table {
	t := &table{
		header: []string{"ID", "ACTIONS", "STATE", "PROGRESS", "FAILED", "AGE", "CALLER", "BUSINESS", "CREATED", "DIALECT"}, wide: 2,
		empty: "no tasks; submit one with: procfleet op", footer: footer,
	}
	for i := range tasks {
		task := &tasks[i]
		t.add(string(task.ID), string(task.ID), actionsText(*task), taskStateText(task),
			fmt.Sprintf("%d/%d", task.Items-task.Counts.Open(), task.Items), strconv.Itoa(task.Counts.Failed()), ageText(task.CreatedAt),
			task.Application, task.Business, task.CreatedAt.Format(time.DateTime), task.Dialect)
	}
	return t
}

func newTaskShow(f *taskFlags) *cobra.Command {
	var repeat repeatFlags
	cmd := &cobra.Command{
		Use:               "show ID",
		Short:             "Show a task, with its failures grouped by message",
		Long:              "Show the state and counters of a task, and its failures: equal ones are one line, with their number and three hosts.",
		Example:           "  procfleet task show GSETASK:20260102030405:6789\n  procfleet task show GSETASK:20260102030405:6789 --watch",
		Args:              exactly("ID of a task"),
		ValidArgsFunction: completeTasks,
		RunE: func(cmd *cobra.Command, args []string) error {
			return repeat.run(cmd, func(ctx context.Context, out io.Writer) error {
				return f.showTask(ctx, cmd, out, procfleet.TaskID(args[0]))
			})
		},
	}
	repeat.register(cmd.Flags())
	return cmd
}

// shownTask is the JSON output of `task show`.
type shownTask struct {
	Task     client.Task `json:"task"`
	Failures []failure   `json:"failures"`
}

// failure is a group of failures with the same state and message.
type failure struct {
	State   procfleet.State  `json:"state"`
	Code    procfleet.Code   `json:"code"`
	Message string           `json:"message"`
	Count   int              `json:"count"`
	Hosts   []procfleet.Host `json:"hosts"` // the first ones
}

// shownFailedHosts is the number of hosts of a group of failures.
const shownFailedHosts = 3

func (f *taskFlags) showTask(ctx context.Context, cmd *cobra.Command, out io.Writer, id procfleet.TaskID) error {
	c, err := f.client(cmd)
	if err != nil {
		return err
	}
	task, err := c.Task(ctx, id)
	if err != nil {
		return err
	}
	shown := shownTask{Task: task}
	if shown.Failures, err = groupedFailures(ctx, c, task); err != nil {
		return err
	}
	return f.print(out, shown, func(out io.Writer) error {
		if err := writeTask(out, task); err != nil || len(shown.Failures) == 0 {
			return err
		}
		t := table{header: []string{"COUNT", "STATE", "CODE", "HOSTS", "MESSAGE"}}
		for _, group := range shown.Failures {
			t.add("", strconv.Itoa(group.Count), string(group.State), fmt.Sprint(int(group.Code)), group.hostsText(), group.Message)
		}
		fmt.Fprintln(out)
		return t.write(out, len(t.header))
	})
}

func (g *failure) hostsText() string {
	texts := make([]string, len(g.Hosts))
	for i, host := range g.Hosts {
		texts[i] = host.String()
	}
	if g.Count > len(g.Hosts) {
		texts = append(texts, "…")
	}
	return strings.Join(texts, " ")
}

// groupedFailures reads the failed items of a task and groups them by message, the largest group
// first.
func groupedFailures(ctx context.Context, c *client.Client, task client.Task) ([]failure, error) {
	groups, order := map[string]*failure{}, []*failure{}
	for _, state := range procfleet.States() {
		if !state.Failure() || task.Counts[state] == 0 {
			continue
		}
		for r, err := range c.Results(ctx, task.ID, client.Query{State: state}) {
			if err != nil {
				return nil, err
			}
			key := string(state) + "\x00" + sameMessage(&r)
			group := groups[key]
			if group == nil {
				group = &failure{State: state, Code: r.Code, Message: r.Message}
				groups[key], order = group, append(order, group)
			}
			if group.Count++; len(group.Hosts) < shownFailedHosts {
				group.Hosts = append(group.Hosts, r.Host)
			}
		}
	}
	slices.SortStableFunc(order, func(a, b *failure) int { return b.Count - a.Count })
	found := make([]failure, len(order))
	for i, group := range order {
		found[i] = *group
	}
	return found, nil
}

// sameMessage returns the message of a result without its host and without numbers, which
// differ between hosts with the same failure: pids, times and sizes.
func sameMessage(r *client.Result) string {
	text := r.Message
	if !r.Host.IsZero() {
		text = strings.ReplaceAll(text, r.Host.String(), "HOST")
		text = strings.ReplaceAll(text, r.Host.Addr.String(), "HOST")
	}
	return digits.ReplaceAllStringFunc(text, func(number string) string {
		if strings.HasPrefix(number, "exit=") {
			return number
		}
		return "#"
	})
}

var digits = regexp.MustCompile(`(exit=)?[0-9]+`)
