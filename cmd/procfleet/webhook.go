package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

func newWebhook() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "webhook",
		Short:   "Send the events of tasks to URLs",
		Example: "  procfleet webhook set alerts https://hooks.example/procfleet\n  procfleet webhook list\n  procfleet webhook redeliver alerts",
	}
	var f serverFlags
	f.register(cmd.PersistentFlags())
	cmd.AddCommand(newWebhookSet(&f), newWebhookList(&f), newWebhookDead(&f), newWebhookRedeliver(&f), newWebhookRemove(&f))
	return cmd
}

func newWebhookSet(f *serverFlags) *cobra.Command {
	var w client.WebhookRequest
	cmd := &cobra.Command{
		Use:   "set NAME URL",
		Short: "Store a webhook, or try a failing one again",
		Long: `Store a webhook of the application, or replace the one of this name. It sends the events of all tasks that the application
may see to the URL, in their order, signed in the form of Standard Webhooks. A new webhook begins with the next event. The command
prints a secret that it has created, which is not shown again. To set a failing webhook again ends the pause before its next attempt.`,
		Example: "  procfleet webhook set alerts https://hooks.example/procfleet --biz 2",
		Args:    nameAndURL,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.submitter(cmd)
			if err != nil {
				return err
			}
			w.URL = args[1]
			stored, err := c.SetWebhook(cmd.Context(), args[0], w)
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), stored, func(out io.Writer) error {
				if stored.Secret != nil {
					fmt.Fprintln(out, "secret:", *stored.Secret)
				}
				return writeWebhooks(out, []client.Webhook{stored})
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&w.Business, "biz", "", "only events of tasks of this business")
	flags.BoolVar(&w.Paused, "paused", false, "send nothing until the webhook is set without it")
	flags.BoolVar(&w.RotateSecret, "rotate-secret", false, "replace the secret; the old one signs for 24 more hours")
	return cmd
}

func newWebhookList(f *serverFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the webhooks of the application",
		Long:    `List the webhooks of the application, with the number of events that they are behind, dead deliveries, and the last problem.`,
		Example: `  procfleet webhook list`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.client(cmd)
			if err != nil {
				return err
			}
			all, err := c.Webhooks(cmd.Context())
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), all, func(out io.Writer) error { return writeWebhooks(out, all) })
		},
	}
}

func newWebhookDead(f *serverFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "dead NAME",
		Short:   "List the dead deliveries of a webhook",
		Long:    `List the events whose delivery was given up after 72 hours, in their order.`,
		Example: `  procfleet webhook dead alerts`,
		Args:    exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.client(cmd)
			if err != nil {
				return err
			}
			dead, err := c.DeadDeliveries(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), dead, func(out io.Writer) error { return writeDead(out, dead) })
		},
	}
}

func newWebhookRedeliver(f *serverFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "redeliver NAME [EVENT...]",
		Short: "Send dead deliveries again",
		Long: `Send the dead deliveries of the events again, or all of them, in the order of the events. The command stops at the first that the
receiver does not accept; those that it accepts are no longer dead.`,
		Example: "  procfleet webhook redeliver alerts\n  procfleet webhook redeliver alerts GSETASK:20261121053522:123456/3",
		Args:    atLeast("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.submitter(cmd)
			if err != nil {
				return err
			}
			return redeliver(cmd.Context(), cmd.OutOrStdout(), c, args[0], args[1:])
		},
	}
}

func redeliver(ctx context.Context, out io.Writer, c *client.Client, name string, events []string) error {
	if len(events) == 0 {
		dead, err := c.DeadDeliveries(ctx, name)
		if err != nil {
			return err
		}
		for _, d := range dead {
			events = append(events, d.Event)
		}
	}
	for _, event := range events {
		problem, err := c.Redeliver(ctx, name, event)
		if err != nil {
			return err
		}
		if problem != "" {
			return fmt.Errorf("event %s is not delivered: %s", event, problem)
		}
		fmt.Fprintln(out, event, "delivered")
	}
	return nil
}

func newWebhookRemove(f *serverFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "remove NAME",
		Short:   "Remove a webhook and its dead deliveries",
		Long:    `Remove a webhook and its dead deliveries.`,
		Example: `  procfleet webhook remove alerts`,
		Args:    exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.submitter(cmd)
			if err != nil {
				return err
			}
			existed, err := c.RemoveWebhook(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if !existed {
				return command.Usagef("there is no webhook %s", args[0])
			}
			return nil
		},
	}
}

func writeWebhooks(out io.Writer, all []client.Webhook) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(out, "no webhooks; add one with: procfleet webhook set")
		return err
	}
	table := newTable(out)
	fmt.Fprintln(table, "NAME\tURL\tBUSINESS\tBEHIND\tMISSED\tDEAD\tSTATE")
	for i := range all {
		w := &all[i]
		business, behind := "all", "unknown"
		if w.Business != "" {
			business = w.Business
		}
		if w.Behind != nil {
			behind = strconv.FormatUint(*w.Behind, 10)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%s\n", w.Name, w.URL, business, behind, w.Missed, w.Dead, webhookState(w))
	}
	return table.Flush()
}

func webhookState(w *client.Webhook) string {
	switch f := w.Failure; {
	case w.Paused:
		return "paused"
	case f == nil:
		return "delivers"
	case f.NextAt == nil:
		return "ended: " + f.Problem
	default:
		return fmt.Sprintf("failing since %s, next attempt %s: %s", f.Since.Local().Format(time.DateTime), f.NextAt.Local().Format(time.DateTime), f.Problem)
	}
}

func writeDead(out io.Writer, dead []client.DeadDelivery) error {
	if len(dead) == 0 {
		_, err := fmt.Fprintln(out, "no dead deliveries")
		return err
	}
	table := newTable(out)
	fmt.Fprintln(table, "EVENT\tTYPE\tGIVEN UP\tPROBLEM")
	for i := range dead {
		d := &dead[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", d.Event, d.Message.Type, d.At.Local().Format(time.DateTime), d.Problem)
	}
	return table.Flush()
}

// nameAndURL accepts the name of a webhook and a URL.
func nameAndURL(_ *cobra.Command, args []string) error {
	if len(args) != 2 || args[0] == "" || args[1] == "" {
		return command.Usagef("give a NAME and a URL, got %q", args)
	}
	return nil
}
