package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/client"
)

// Limits of a plan as text; --json shows everything.
const (
	shownPlanned  = 100 // hosts; hosts without an agent first
	shownProblems = 100
	shownModules  = 5 // modules per process
)

// errNothingPlanned is the error of `op --plan` if the plan has no items.
var errNothingPlanned = errors.New("the task would have no items")

// showPlan shows the task that a submission would create.
func (f *opFlags) showPlan(cmd *cobra.Command, s client.Submission) error {
	c, err := f.client(cmd)
	if err != nil {
		return err
	}
	p, err := c.Plan(cmd.Context(), s)
	if err != nil {
		return err
	}
	err = f.print(cmd.OutOrStdout(), p, func(out io.Writer) error { return writePlan(out, &p) })
	switch {
	case err != nil:
		return err
	case p.Refusal != "":
		return fmt.Errorf("%w: %s", errNothingPlanned, oneLine(p.Refusal))
	case p.Items == 0:
		return errNothingPlanned
	}
	return nil
}

// writePlan writes the totals, then processes, hosts and problems.
func writePlan(out io.Writer, p *client.Plan) error {
	_, err := fmt.Fprintf(out, "planned: %d items on %d hosts, %d of them without an agent\n", p.Items, p.Hosts, p.WithoutAgent)
	if p.Rollout != nil {
		_, wrote := fmt.Fprintln(out, "rollout: "+plannedRolloutText(p.Rollout))
		err = errors.Join(err, wrote)
	}
	if len(p.Operations) > 0 {
		err = errors.Join(err, writePlannedProcesses(out, p.Operations), writePlannedHosts(out, p.Operations))
	}
	if len(p.Problems) > 0 {
		err = errors.Join(err, writeProblems(out, p.Problems))
	}
	return err
}

// plannedRolloutText returns a text like "at most 20 hosts at work, 4 failed hosts tolerated, hosts by stage: 1, 9, 190".
func plannedRolloutText(r *client.PlannedRollout) string {
	failures := "all failures"
	if r.MaxFailures != nil {
		failures = fmt.Sprintf("%d failed hosts", *r.MaxFailures)
	}
	var stages []string
	for _, s := range r.Stages {
		stages = append(stages, fmt.Sprint(s.Hosts))
	}
	zones := ""
	if z := r.Zones; z != nil && z.Window > 0 {
		zones += fmt.Sprintf(", %d in each zone", z.Window)
	}
	if z := r.Zones; z != nil && z.AtOnce > 0 {
		zones += fmt.Sprintf(", %d of the zones at once", z.AtOnce)
	}
	groups := ""
	if z := r.Zones; z != nil && len(z.Groups) > 0 {
		groups = ", hosts by zone: " + zoneSizes(z.Groups)
	}
	policy := ""
	if r.Policy != "" {
		policy = "policy " + r.Policy + ", "
	}
	return fmt.Sprintf("%sat most %d hosts at work%s, %s tolerated, hosts by stage: %s%s", policy, r.Window, zones, failures, strings.Join(stages, ", "), groups)
}

// namedZones bounds the zones that a line names.
const namedZones = 10

func zoneSizes(zones []client.ZoneSize) string {
	var texts []string
	for _, z := range zones[:min(len(zones), namedZones)] {
		texts = append(texts, fmt.Sprintf("%s %d", cmp.Or(z.Name, "none"), z.Hosts))
	}
	if more := len(zones) - namedZones; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, ", ")
}

func writePlannedProcesses(out io.Writer, operations []client.PlannedOperation) error {
	table := newTable(out)
	fmt.Fprintln(table, "\nACTION\tPROCESS\tID\tHOSTS\tMODULES")
	for i := range operations {
		o := &operations[i]
		id := ""
		if o.ProcessID != 0 {
			id = fmt.Sprint(o.ProcessID)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\n", oneLine(string(o.Action)), oneLine(o.Name), orDash(id), len(o.Hosts), orDash(modulesText(o.Hosts)))
	}
	return table.Flush()
}

// orDash returns text, or "-" if text is empty.
func orDash(text string) string { return cmp.Or(oneLine(text), "-") }

// modulesText lists the modules with their numbers of hosts.
func modulesText(hosts []client.PlannedHost) string {
	counts := make(map[string]int)
	var modules []string
	for _, h := range hosts {
		for _, m := range h.Modules {
			if counts[m]++; counts[m] == 1 {
				modules = append(modules, m)
			}
		}
	}
	var texts []string
	for _, m := range modules[:min(shownModules, len(modules))] {
		texts = append(texts, fmt.Sprintf("%s (%d)", m, counts[m]))
	}
	if more := len(modules) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(texts, ", ")
}

// plannedRow is a host with one of its planned processes.
type plannedRow struct {
	process string
	client.PlannedHost
}

func writePlannedHosts(out io.Writer, operations []client.PlannedOperation) error {
	var dead, alive []plannedRow
	for i := range operations {
		for _, h := range operations[i].Hosts {
			if row := (plannedRow{operations[i].Name, h}); h.Alive {
				alive = append(alive, row)
			} else {
				dead = append(dead, row)
			}
		}
	}
	rows := slices.Concat(dead, alive)
	table := newTable(out)
	newer := slices.ContainsFunc(rows, func(row plannedRow) bool { return row.NewerTask != "" })
	fmt.Fprintln(table, "\nHOST\tPROCESS\tMODULES\tAGENT"+columnIf(newer, "NEWER TASK"))
	for _, row := range rows[:min(shownPlanned, len(rows))] {
		host := row.Host.String()
		if row.Host.IsZero() {
			host = "agent " + row.AgentID
		}
		agent := "yes"
		if !row.Alive {
			agent = "none"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s%s\n", oneLine(host), oneLine(row.process), orDash(strings.Join(row.Modules, ", ")), agent,
			columnIf(newer, orDash(string(row.NewerTask))))
	}
	if err := table.Flush(); err != nil || len(rows) <= shownPlanned {
		return err
	}
	_, err := fmt.Fprintf(out, "%d of %d shown, those without an agent first; all: --json\n", shownPlanned, len(rows))
	return err
}

// columnIf returns a further column of a line, or nothing.
func columnIf(shown bool, text string) string {
	if !shown {
		return ""
	}
	return "\t" + text
}

func writeProblems(out io.Writer, problems []client.PlanProblem) error {
	table := newTable(out)
	fmt.Fprintln(table, "\nPROBLEM\tPROCESS\tWHY")
	for _, p := range problems[:min(shownProblems, len(problems))] {
		process := p.Name
		if p.ProcessID != 0 {
			process = fmt.Sprintf("%s (%d)", p.Name, p.ProcessID)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", oneLine(string(p.Reason)), orDash(process), oneLine(p.Message))
	}
	if err := table.Flush(); err != nil || len(problems) <= shownProblems {
		return err
	}
	_, err := fmt.Fprintf(out, "%d of %d shown; all: --json\n", shownProblems, len(problems))
	return err
}
