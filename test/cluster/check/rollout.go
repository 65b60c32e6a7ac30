package check

import (
	"time"

	"github.com/procfleet/procfleet"
)

// timeLimit returns the time that a submission's task may take at most. The hosts of a rollout have
// the timeout one after the other, as many at a time as its window permits.
func (s *Submission) timeLimit() time.Duration {
	if s.Queue > 0 {
		return s.Queue + s.rolloutLimit()
	}
	return s.rolloutLimit()
}

func (s *Submission) rolloutLimit() time.Duration {
	if s.Window == 0 {
		return s.Timeout
	}
	waves := (s.units() + s.Window - 1) / s.Window
	if s.Zones != (procfleet.HostZones{}) {
		waves = s.units() // in the worst case all hosts are in one cloud area
	}
	if s.Ramp {
		waves += 2 // the first stages do not fill the window
	}
	return time.Duration(waves) * (s.Timeout + releaseSlack)
}

// releaseSlack is the time by which a host may be released later than its predecessor has ended, or
// end later than its timeout, while roles are dead.
const releaseSlack = 30 * time.Second

func (s *Submission) units() int {
	hosts := map[procfleet.Host]bool{}
	for _, a := range s.Operations {
		for _, h := range a.Hosts {
			hosts[h] = true
		}
	}
	return len(hosts)
}

// windows checks that no rollout had more hosts at work than its window: neither by its own counters
// nor by the commands that ran. Hosts whose commands began before a poll, and that had not ended by
// then, were at work at the begin of the poll. It also checks that a stage began after all hosts of
// the stages before it had ended.
func (j *judge) windows(marks []Mark) {
	begun := map[procfleet.TaskID]map[procfleet.Host]time.Time{}
	for _, m := range marks {
		if m.Operation == automatic {
			continue
		}
		of := begun[m.task()]
		if of == nil {
			of = map[procfleet.Host]time.Time{}
			begun[m.task()] = of
		}
		if first, known := of[m.Host]; !known || m.At.Before(first) {
			of[m.Host] = m.At
		}
	}
	for _, s := range j.h.Submissions {
		if s.Task == "" {
			continue
		}
		j.budget(s)
		j.queued(s)
		if s.Window == 0 {
			continue
		}
		polls := j.h.TaskPolls[s.Task]
		for i := range polls {
			if l := &polls[i]; !l.Missing {
				j.window(s, l, begun[s.Task])
			}
		}
		for i := range j.h.ResultsPolls[s.Task] {
			j.zones(s, &j.h.ResultsPolls[s.Task][i], begun[s.Task])
		}
	}
}

func (j *judge) window(s *Submission, l *TaskPoll, begun map[procfleet.Host]time.Time) {
	r := l.Task.Rollout
	if r == nil {
		j.broken(RuleWindow, s.Task, "%s: it has no rollout", l)
		return
	}
	if r.Active > s.Window {
		j.broken(RuleWindow, s.Task, "%s: %d hosts at work, the window is %d", l, r.Active, s.Window)
	}
	before := 0
	for _, at := range begun {
		if at.Before(l.From) {
			before++
		}
	}
	if before > r.Released {
		j.broken(RuleWindow, s.Task, "%s: commands began on %d hosts, %d are released", l, before, r.Released)
	}
	if len(s.Operations) > 1 {
		return // items are not hosts
	}
	ended := l.Task.Items - l.Task.Counts.Open() + r.Waiting
	if before-ended > s.Window {
		j.broken(RuleWindow, s.Task, "%s: commands began on %d hosts, %d have ended, the window is %d", l, before, ended, s.Window)
	}
	through := 0
	for i, stage := range r.Stages {
		if through += stage.Hosts; max(before, r.Released) > through && ended < through {
			j.broken(RuleStage, s.Task, "%s: %d hosts are released and commands began on %d, but of the %d hosts up to stage %d only %d have ended", l, r.Released, before, through, i+1, ended)
		}
	}
}

// zones checks the hosts at work in each cloud area, like those of the window.
func (j *judge) zones(s *Submission, l *ResultsPoll, begun map[procfleet.Host]time.Time) {
	if s.Zones == (procfleet.HostZones{}) {
		return
	}
	working := map[procfleet.CloudArea]int{}
	for i := range l.Results {
		r := &l.Results[i]
		if at, ran := begun[r.Host]; ran && at.Before(l.From) && !r.State.Final() {
			working[r.Host.Cloud]++
		}
	}
	if most := s.Zones.AtOnce; most > 0 && len(working) > most {
		j.broken(RuleZone, s.Task, "%s at %s: hosts of %d cloud areas are at work, the limit is %d", l.Span, l.Dispatcher, len(working), most)
	}
	for area, n := range working {
		if most := s.Zones.MaxConcurrency; most > 0 && n > most {
			j.broken(RuleZone, s.Task, "%s at %s: %d hosts of cloud area %d are at work, the limit is %d", l.Span, l.Dispatcher, n, area, most)
		}
	}
}

// budget checks that a rollout releases no host after its first failed one is recorded, and that no
// more hosts fail than those that were at work with it.
func (j *judge) budget(s *Submission) {
	var over *TaskPoll
	for i := range j.h.TaskPolls[s.Task] {
		l := &j.h.TaskPolls[s.Task][i]
		r := l.Task.Rollout
		if !s.Budget || r == nil {
			continue
		}
		if r.Failed > s.Window {
			j.broken(RuleBudget, s.Task, "%s: %d hosts have failed, %d at a time are at work and none may fail", l, r.Failed, s.Window)
		}
		if over != nil && r.Released > over.Task.Rollout.Released && !j.h.mayBeLost(over.Span, l.Span) {
			j.broken(RuleBudget, s.Task, "%s: %d hosts are released, and %d were when the first had failed, at %s", l, r.Released, over.Task.Rollout.Released, over)
		}
		if over == nil && r.Failed > 0 {
			over = l
		}
	}
}

// queued checks that only operations with a queue expire, and not before the end of it. That no command
// of an expired operation ran, or runs twice, is checked as for all.
func (j *judge) queued(s *Submission) {
	last := j.h.last(s.Task)
	if last == nil {
		return
	}
	for i := range last.Results {
		r := &last.Results[i]
		switch {
		case r.Refusal != procfleet.RefusalExpired:
		case s.Queue == 0:
			j.brokenItem(RuleQueued, s.Task, r.Item, r.Host, "%s: expired without a queue", last)
		case len(j.h.StepsBack) == 0 && r.FinishedAt.Before(s.At.Add(s.Queue)):
			j.brokenItem(RuleQueued, s.Task, r.Item, r.Host, "expired at %s, submitted at %s, the queue is %s",
				r.FinishedAt.Format(clockLayout), s.At.Format(clockLayout), s.Queue)
		}
	}
}
