package agentcmd

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/agent/local"
	"github.com/procfleet/procfleet/agentproto"
)

func writeTable(out io.Writer, a local.Reply) error {
	if len(a.Processes) == 0 {
		_, err := fmt.Fprintln(out, "no processes")
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KEY\tSTATE\tPID\tSINCE\tRESTARTS\tLAST EXIT\tLIMITS\tNEXT")
	for i := range a.Processes {
		p := &a.Processes[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", oneLine(p.Key), p.State, pidText(p), ago(a.At, p.Since),
			p.Restarts, exitText(a.At, p.LastExit), limitText(p.Limits), nextText(a.At, p))
	}
	return table.Flush()
}

// oneLine removes line breaks and control characters from the text of a table cell.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

const none = "-"

func pidText(p *local.Process) string {
	pids := p.PIDs
	if len(pids) == 0 && p.PID != 0 {
		pids = []int{p.PID}
	}
	if len(pids) == 0 {
		return none
	}
	texts := make([]string, len(pids))
	for i, pid := range pids {
		texts[i] = strconv.Itoa(pid)
	}
	return strings.Join(texts, ",")
}

func ago(now, at time.Time) string {
	if at.IsZero() {
		return none
	}
	return span(now.Sub(at)) + " ago"
}

// span formats a duration with its two largest units: "3m5s", "2d4h".
func span(d time.Duration) string {
	d = max(d, 0).Round(time.Second)
	const day = 24 * time.Hour
	switch {
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

func exitText(now time.Time, e *agentproto.LastExit) string {
	if e == nil {
		return none
	}
	text := "status unknown"
	switch {
	case e.Signal != "":
		text = e.Signal
	case e.Known:
		text = fmt.Sprint("exit ", e.Code)
	case e.Why != "":
		text = e.Why
	}
	if e.Why != "" && text != e.Why {
		text += " (" + e.Why + ")"
	}
	if e.At.IsZero() {
		return oneLine(text)
	}
	return oneLine(text) + ", " + ago(now, e.At)
}

func limitText(l local.Limits) string {
	var texts []string
	if l.CPU != 0 {
		texts = append(texts, fmt.Sprintf("cpu %g%%", l.CPU))
	}
	if l.Memory != 0 {
		texts = append(texts, fmt.Sprintf("memory %g%%", l.Memory))
	}
	if len(texts) == 0 {
		return none
	}
	return strings.Join(texts, ", ")
}

func nextText(now time.Time, p *local.Process) string {
	in := "soon"
	if d := p.NextAt.Sub(now); !p.NextAt.IsZero() && d > 0 {
		in = "in " + span(d)
	}
	switch p.NextAction {
	case local.NextNothing:
		return none
	case local.NextFinish:
		return "busy: " + p.Busy
	case local.NextSearch:
		return "search for it"
	case local.NextWatch:
		return "start again if it ends"
	case local.NextStart:
		if p.GivenUp != "" {
			return "rare attempt " + in + ", given up: " + oneLine(p.GivenUp)
		}
		return "start " + in
	case local.NextRun:
		return "run " + in
	case local.NextAdopt:
		return "adoption only, given up: " + oneLine(p.GivenUp)
	case local.NextUnconfirmed:
		return "suspended until an operation: journal damaged"
	case local.NextQuarantined:
		return "quarantined until the agent restarts"
	case local.NextFrozen:
		return "frozen until " + p.NextAt.Local().Format(time.DateTime)
	}
	return oneLine(p.NextAction) // an action that this release does not know
}

func newPS() *cobra.Command {
	var f localFlags
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "Show the processes of the local agent",
		Long: `Show the processes of the local agent: the state of each and the next action of the agent.

The command queries the running agent over a socket in its data directory, with or without NATS; the data directory of
procfleet up works too. It requires the user of the agent, or root.`,
		Example: "  procfleet-agent ps\n  procfleet agent ps --data ./procfleet-data --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := queryAgent(cmd.Context(), f.data)
			switch {
			case err != nil:
				return err
			case f.json:
				return writeJSON(cmd.OutOrStdout(), &a)
			}
			if a.Agent.Disconnected != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "the agent of %s is not connected to NATS: %s\n", a.Agent.Host, a.Agent.Disconnected)
			}
			return writeTable(cmd.OutOrStdout(), a)
		},
	}
	f.register(cmd)
	return cmd
}
