package check

import (
	"fmt"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// seen is a result with when and where it was read.
type seen struct {
	Span
	door string
	client.Result
}

func (s *seen) String() string {
	late := ""
	if s.Late {
		late = ", late"
	}
	return fmt.Sprintf("%s at %s: %s %d %s %q%s", s.Span, s.door, s.State, s.Code, s.Reason, s.Message, late)
}

// served is whether the server made a final result, for want of the agent's
// word. The API does not say so; only agents know when they accepted a command.
// A refusal without that time is the server's: the agent refused, whenever it
// was asked, to accept the command, but an earlier request may have got no reply.
func served(r *client.Result) bool {
	switch r.State {
	case procfleet.StateUnreachable, procfleet.StateTimedOut, procfleet.StateCancelled, procfleet.StateRejected:
		return true
	case procfleet.StateFailed:
		return r.AcceptedAt.IsZero() && r.StartedAt.IsZero()
	case procfleet.StatePending, procfleet.StateDelivered, procfleet.StateSucceeded, procfleet.StateUnchanged:
		return false
	}
	return false
}

// word is what must not change of an agent's result. Times may: an agent that
// sends a result again may know the server's clock better.
func word(r *client.Result) string {
	return fmt.Sprintf("%s %d %s %q", r.State, r.Code, r.Reason, r.Message)
}

// readings judges all results that were read of a task.
func (j *judge) readings(s *Submission) {
	items := map[int][]*seen{}
	all := j.h.Readings[s.Task]
	for i := range all {
		for k := range all[i].Results {
			r := &all[i].Results[k]
			items[r.Item] = append(items[r.Item], &seen{Span: all[i].Span, door: all[i].Door, Result: *r})
		}
	}
	for item, history := range sorted(items) {
		j.item(s, item, history)
	}
	last := j.h.last(s.Task)
	if last == nil {
		j.broken(RuleResult, s.Task, "its results could not be read in the end")
		return
	}
	j.complete(s, last)
}

// sorted yields a map by its keys, so that violations come in order.
func sorted[V any](m map[int]V) func(yield func(int, V) bool) {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return func(yield func(int, V) bool) {
		for _, k := range keys {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// item judges what was seen of one item, one reading after the other.
func (j *judge) item(s *Submission, item int, history []*seen) {
	var before, agents *seen // the last final result, and the last that an agent made
	for _, now := range history {
		j.pair(s, now)
		switch {
		case !now.State.Final():
			if before != nil && !j.h.forgiven(before.Span, now.Span) {
				j.brokenItem(RuleFinal, s.Task, item, now.Host, "first %s; then %s", before, now)
			}
			continue
		case before != nil:
			j.replaced(s, item, before, now)
		}
		if agents != nil && !served(&now.Result) && word(&agents.Result) != word(&now.Result) {
			j.brokenItem(RuleFinal, s.Task, item, now.Host, "its agent's word was %s; then %s", agents, now)
		}
		before = now
		if !served(&now.Result) {
			agents = now
		}
	}
	if end := history[len(history)-1]; agents != nil && (served(&end.Result) || !end.State.Final()) {
		j.brokenItem(RuleSilent, s.Task, item, end.Host, "its agent's word was %s; in the end it is %s", agents, end)
	}
}

// replaced judges one final result after another one of the same item. That
// the agent's word changed is found elsewhere.
func (j *judge) replaced(s *Submission, item int, before, now *seen) {
	forgiven := j.h.forgiven(before.Span, now.Span)
	switch was, is := served(&before.Result), served(&now.Result); {
	case was && is && word(&before.Result) != word(&now.Result) && !forgiven,
		!was && is && !forgiven:
		j.brokenItem(RuleFinal, s.Task, item, now.Host, "first %s; then %s", before, now)
	case was && !is && !now.Late && !forgiven:
		j.brokenItem(RuleFinal, s.Task, item, now.Host, "first %s; then, not marked late, %s", before, now)
	}
}

// outcomes are the pairs of reason and codes of each final state.
var outcomes = map[procfleet.State]map[procfleet.Reason][]procfleet.Code{
	procfleet.StateSucceeded: {procfleet.ReasonSucceeded: {procfleet.CodeSuccess}},
	procfleet.StateUnchanged: {
		procfleet.ReasonAlreadyRunning: {procfleet.CodeAlreadyRunning},
		procfleet.ReasonNotRunning:     {procfleet.CodeNotRunning},
	},
	procfleet.StateFailed: {
		procfleet.ReasonCommandFailed: {procfleet.CodeFailed},
		procfleet.ReasonCheckFailed:   {procfleet.CodeCheckFailed},
		procfleet.ReasonRefused:       {procfleet.CodeFailed, procfleet.CodeUnknownAction, procfleet.CodeAgentAbnormal},
	},
	procfleet.StateUnreachable: {procfleet.ReasonUnreachable: {procfleet.CodeAgentAbnormal}},
	procfleet.StateTimedOut:    {procfleet.ReasonTimedOut: {procfleet.CodeFailed}},
	procfleet.StateCancelled:   {procfleet.ReasonCancelled: {procfleet.CodeFailed}},
	procfleet.StateRejected:    {procfleet.ReasonRejected: {procfleet.CodeFailed}},
}

// pair judges whether state, reason and code of a result belong together.
func (j *judge) pair(s *Submission, r *seen) {
	if !r.State.Final() {
		if r.Code != procfleet.CodeRunning || r.Reason != "" {
			j.brokenItem(RuleResult, s.Task, r.Item, r.Host, "%s: an open item has code 115 and no reason", r)
		}
		return
	}
	if !slices.Contains(outcomes[r.State][r.Reason], r.Code) {
		j.brokenItem(RuleResult, s.Task, r.Item, r.Host, "%s: these do not belong together", r)
	}
}

// place is one process on one host.
type place struct {
	process string
	host    procfleet.Host
	action  procfleet.Action
}

// complete judges the results of a task that is done: each item that was asked
// for is there once, is final, and is counted.
func (j *judge) complete(s *Submission, last *Reading) {
	wanted := map[place]int{}
	for _, a := range s.Asks {
		for _, h := range a.Hosts {
			wanted[place{a.Process, h, a.Action}]++
		}
	}
	numbers := map[int]bool{}
	counts := procfleet.Counts{}
	for i := range last.Results {
		r := &last.Results[i]
		at := place{r.Name, r.Host, r.Action}
		wanted[at]--
		counts[r.State]++
		switch {
		case numbers[r.Item]:
			j.brokenItem(RuleResult, s.Task, r.Item, r.Host, "%s at %s: it is listed twice", last.Span, last.Door)
		case wanted[at] < 0:
			j.brokenItem(RuleAsked, s.Task, r.Item, r.Host, "%s at %s: nobody asked for %s of %s there", last.Span, last.Door, r.Action, r.Name)
		case !r.State.Final():
			j.brokenItem(RuleResult, s.Task, r.Item, r.Host, "%s at %s: the task is done and the item is %s", last.Span, last.Door, r.State)
		}
		numbers[r.Item] = true
	}
	for _, a := range s.Asks {
		for _, h := range a.Hosts {
			if at := (place{a.Process, h, a.Action}); wanted[at] > 0 {
				j.brokenItem(RuleResult, s.Task, -1, h, "%s at %s: %s of %s has no result", last.Span, last.Door, a.Action, a.Process)
			}
		}
	}
	j.counted(s, last, counts)
}

// counted compares the counters with the results, both as read last.
func (j *judge) counted(s *Submission, last *Reading, counts procfleet.Counts) {
	looks := j.h.Looks[s.Task]
	if len(looks) == 0 {
		return
	}
	end := &looks[len(looks)-1]
	if countsText(end.Task.Counts) != countsText(counts) {
		j.broken(RuleSum, s.Task, "%s, but its results are %s (%s at %s)", end, countsText(counts), last.Span, last.Door)
	}
}
