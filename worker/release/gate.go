package release

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

const (
	// reportWait is the time from the begin of a gate until an agent without a report counts as
	// silent: three times the interval of reports.
	reportWait = 90 * time.Second
	// namedHosts bounds the hosts that the reason of a hold names.
	namedHosts = 5
)

// judge judges the automatic gate of a rollout's stage, if it is at one. It reports whether the
// rollout can go on. Reports that arrive later do not change the verdict.
func (r *Releaser) judge(ctx context.Context, task *procfleet.Task) (passed bool, err error) {
	p := task.Rollout
	last := p.Stage == len(p.Plan.Stages)-1
	if !p.Plan.Auto || p.Phase != procfleet.PhaseGate || p.Judged > p.Stage || p.Hold.Kind != "" || task.Held() || task.Canceled() || task.State.Done() || last {
		return false, nil
	}
	v, err := r.examine(ctx, task)
	if err != nil {
		return false, err
	}
	if v.silent.hosts > 0 && r.cfg.Clock.Now().Sub(p.Since) < reportWait {
		return false, nil // the sweep judges it again
	}
	hold := v.hold(&p.Plan)
	judged, err := r.cfg.Store.JudgeStage(ctx, task.ID, p.Stage, hold)
	if err != nil {
		return false, fmt.Errorf("judge stage %d: %w", p.Stage+1, err)
	}
	*task = judged
	return hold.Kind == "", nil
}

// verdict has the hosts of a stage that do not pass its gate.
type verdict struct{ unhealthy, silent findings }

// findings counts hosts and describes the first of them.
type findings struct {
	hosts int
	texts []string
}

func (f *findings) add(host procfleet.Host, text string) {
	if f.hosts++; f.hosts <= namedHosts {
		f.texts = append(f.texts, host.String()+" "+text)
	}
}

func (f *findings) String() string {
	text := strings.Join(f.texts, ", ")
	if more := f.hosts - len(f.texts); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// hold returns the hold of the stage; zero if it passes.
func (v *verdict) hold(plan *procfleet.RolloutPlan) procfleet.Hold {
	switch {
	case v.unhealthy.hosts > plan.Unhealthy:
		return procfleet.Hold{Kind: procfleet.HoldUnhealthy, Reason: fmt.Sprintf("%d hosts are unhealthy, %d are tolerated: %s", v.unhealthy.hosts, plan.Unhealthy, &v.unhealthy)}
	case v.silent.hosts > 0 && !plan.PassInconclusive:
		return procfleet.Hold{Kind: procfleet.HoldInconclusive, Reason: fmt.Sprintf("%d hosts have not reported since the stage: %s", v.silent.hosts, &v.silent)}
	}
	return procfleet.Hold{}
}

// examine compares the results of a stage's items with the last reports of the agents.
func (r *Releaser) examine(ctx context.Context, task *procfleet.Task) (v verdict, err error) {
	p := task.Rollout
	first := 0
	if p.Stage > 0 {
		first = p.Plan.Stages[p.Stage-1].Chunks
	}
	for chunk := first; chunk < p.Plan.Stages[p.Stage].Chunks; chunk++ {
		rows, err := r.chunk(ctx, task.ID, chunk)
		if err != nil {
			return v, err
		}
		var hosts []procfleet.Host
		var units [][]procfleet.ItemResult
		for begin, i := 0, 1; i <= len(rows); i++ {
			if i == len(rows) || rows[i].Item.Target.Host != rows[begin].Item.Target.Host {
				hosts, units, begin = append(hosts, rows[begin].Item.Target.Host), append(units, rows[begin:i]), i
			}
		}
		reports, err := r.cfg.Registrar.Reported(ctx, hosts)
		if err != nil {
			return v, fmt.Errorf("read reports: %w", err)
		}
		for i := range units {
			v.judge(units[i], &reports[i], p.Since)
		}
	}
	return v, nil
}

// judge judges the items of one host. A report from before since says nothing.
func (v *verdict) judge(unit []procfleet.ItemResult, report *catalog.Report, since time.Time) {
	for i := range unit {
		if !judged(&unit[i]) {
			continue
		}
		if !report.At.After(since) {
			v.silent.add(unit[i].Item.Target.Host, "has not reported")
			return
		}
		if why := unhealthy(&unit[i], report); why != "" {
			v.unhealthy.add(unit[i].Item.Target.Host, unit[i].Spec.Key()+" "+why)
			return
		}
	}
}

// judged reports whether an item left its process running under supervision. Other items have
// failed, which the budget counts, or have no effect that lasts.
func judged(it *procfleet.ItemResult) bool {
	up := it.Item.Action == procfleet.ActionReload || it.Item.Action.Registers()
	return up && (it.State == procfleet.StateSucceeded || it.State == procfleet.StateUnchanged) && !it.Item.Target.Host.IsZero()
}

// unhealthy returns why the process of an item is not healthy; "" if it is.
func unhealthy(it *procfleet.ItemResult, report *catalog.Report) string {
	key := it.Spec.Key()
	for i := range report.Processes {
		if report.Processes[i].Key != key {
			continue
		}
		now := &report.Processes[i].Status
		switch {
		case now.Phase == "fatal":
			return "was given up after failed restarts"
		case !now.Running && now.NextRunAt.IsZero(): // a periodic process runs at times
			return "does not run"
		case it.Result.Status != nil && now.Restarts > it.Result.Status.Restarts:
			return fmt.Sprintf("was restarted %d times since", now.Restarts-it.Result.Status.Restarts)
		case strings.HasPrefix(now.Health, "failed"):
			return "is not healthy: " + now.Health
		}
		return ""
	}
	return "is not reported by its agent"
}
