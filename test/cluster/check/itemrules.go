package check

import (
	"fmt"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// seen is a result with the time and dispatcher of its reading.
type seen struct {
	Span
	dispatcher string
	client.Result
}

func (s *seen) String() string {
	late := ""
	if s.Late {
		late = ", late"
	}
	return fmt.Sprintf("%s at %s: %s %d %s %q%s", s.Span, s.dispatcher, s.State, s.Code, s.Reason, s.Message, late)
}

// served reports whether the server set a final result because it had none from the
// agent. The API does not show this, but only results of agents have the time of
// acceptance. A rejection without that time counts as the server's: the agent
// rejected the command at the last attempt, but an earlier attempt may have had no
// reply.
func served(r *client.Result) bool {
	switch r.State {
	case procfleet.StateUnreachable, procfleet.StateTimedOut, procfleet.StateRejected:
		return true
	case procfleet.StateCancelled: // by the store, or by the agent
		return !r.Late
	case procfleet.StateFailed:
		return r.AcceptedAt.IsZero() && r.StartedAt.IsZero()
	case procfleet.StatePending, procfleet.StateDelivered, procfleet.StateSucceeded, procfleet.StateUnchanged:
		return false
	}
	return false
}

// word returns the part of an agent's result that must not change. Times may
// change, because an agent that sends a result again may have a better estimate of
// the server's clock.
func word(r *client.Result) string {
	return fmt.Sprintf("%s %d %s %q", r.State, r.Code, r.Reason, r.Message)
}

// readings checks all results that were read of a task.
func (j *judge) readings(s *Submission) {
	items := map[int][]*seen{}
	all := j.h.ResultsPolls[s.Task]
	for i := range all {
		for k := range all[i].Results {
			r := &all[i].Results[k]
			items[r.Item] = append(items[r.Item], &seen{Span: all[i].Span, dispatcher: all[i].Dispatcher, Result: *r})
		}
	}
	for item, history := range sorted(items) {
		j.item(s, item, history)
	}
	last := j.h.last(s.Task)
	if last == nil {
		j.broken(RuleResult, s.Task, "the final results could not be read")
		return
	}
	j.complete(s, last)
}

// sorted iterates over a map in the order of its keys, so that violations are in
// order.
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

// item checks the successive readings of one item.
func (j *judge) item(s *Submission, item int, history []*seen) {
	var before, agents *seen // last final result, and last result of an agent
	for _, now := range history {
		j.pair(s, now)
		switch {
		case !now.State.Final():
			if before != nil && !j.h.mayBeLost(before.Span, now.Span) {
				j.brokenItem(RuleFinal, s.Task, item, now.Host, "first %s; then %s", before, now)
			}
			continue
		case before != nil:
			j.replaced(s, item, before, now)
		}
		if agents != nil && !served(&now.Result) && word(&agents.Result) != word(&now.Result) {
			j.brokenItem(RuleFinal, s.Task, item, now.Host, "the agent's result was %s; then %s", agents, now)
		}
		before = now
		if !served(&now.Result) {
			agents = now
		}
	}
	if end := history[len(history)-1]; agents != nil && (served(&end.Result) || !end.State.Final()) {
		j.brokenItem(RuleNotLost, s.Task, item, end.Host, "the agent's result was %s; the final result is %s", agents, end)
	}
}

// replaced checks a final result that replaced another one of the same item. item
// checks that the agent's result does not change.
func (j *judge) replaced(s *Submission, item int, before, now *seen) {
	mayBeLost := j.h.mayBeLost(before.Span, now.Span)
	switch was, is := served(&before.Result), served(&now.Result); {
	case was && is && word(&before.Result) != word(&now.Result) && !mayBeLost,
		!was && is && !mayBeLost:
		j.brokenItem(RuleFinal, s.Task, item, now.Host, "first %s; then %s", before, now)
	case was && !is && !now.Late && !mayBeLost:
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

// pair checks that state, reason and code of a result match.
func (j *judge) pair(s *Submission, r *seen) {
	if !r.State.Final() {
		if r.Code != procfleet.CodeRunning || r.Reason != "" {
			j.brokenItem(RuleResult, s.Task, r.Item, r.Host, "%s: an open item has code 115 and no reason", r)
		}
		return
	}
	if !slices.Contains(outcomes[r.State][r.Reason], r.Code) {
		j.brokenItem(RuleResult, s.Task, r.Item, r.Host, "%s: state, reason and code do not match", r)
	}
}

// place is one process on one host.
type place struct {
	process string
	host    procfleet.Host
	action  procfleet.Action
}

// complete checks the results of a task that is done: each requested item exists
// once and is final and counted.
func (j *judge) complete(s *Submission, last *ResultsPoll) {
	wanted := map[place]int{}
	for _, a := range s.Operations {
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
			j.brokenItem(RuleResult, s.Task, r.Item, r.Host, "%s at %s: listed twice", last.Span, last.Dispatcher)
		case wanted[at] < 0:
			j.brokenItem(RuleRequested, s.Task, r.Item, r.Host, "%s at %s: %s of %s was not requested on this host", last.Span, last.Dispatcher, r.Action, r.Name)
		case !r.State.Final():
			j.brokenItem(RuleResult, s.Task, r.Item, r.Host, "%s at %s: the task is done but the item is %s", last.Span, last.Dispatcher, r.State)
		}
		numbers[r.Item] = true
	}
	for _, a := range s.Operations {
		for _, h := range a.Hosts {
			if at := (place{a.Process, h, a.Action}); wanted[at] > 0 {
				j.brokenItem(RuleResult, s.Task, -1, h, "%s at %s: %s of %s has no result", last.Span, last.Dispatcher, a.Action, a.Process)
			}
		}
	}
	j.counted(s, last, counts)
}

// counted compares the counters with the results, both as read last.
func (j *judge) counted(s *Submission, last *ResultsPoll, counts procfleet.Counts) {
	polls := j.h.TaskPolls[s.Task]
	if len(polls) == 0 {
		return
	}
	end := &polls[len(polls)-1]
	if countsText(end.Task.Counts) != countsText(counts) {
		j.broken(RuleSum, s.Task, "%s, but the results are %s (%s at %s)", end, countsText(counts), last.Span, last.Dispatcher)
	}
}
