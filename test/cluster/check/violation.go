package check

import (
	"fmt"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
)

// Rule is a guarantee that a fleet can violate.
type Rule string

// Rules.
const (
	// RuleAccepted: a submission gets a response, and every response to a valid one
	// is a 2xx or permits a retry.
	RuleAccepted  Rule = "every valid submission is accepted"
	RuleExists    Rule = "every accepted task exists"
	RuleOneKey    Rule = "an idempotency key creates one task"
	RuleEnds      Rule = "every task ends"
	RuleItems     Rule = "a task has the requested items"
	RuleSum       Rule = "counters add up to the number of items"
	RuleProgress  Rule = "the progress of a task does not decrease"
	RuleResult    Rule = "every item has one final result"
	RuleFinal     Rule = "an agent's result is final"
	RuleTwice     Rule = "no command runs twice"
	RuleRequested Rule = "only requested commands run"
	RuleTrue      Rule = "every result agrees with the commands that ran"
	RuleNotLost   Rule = "no agent's result is lost"
	RuleState     Rule = "a process has the state of its last operation"

	RuleOnce      Rule = "a submission without a key creates at most one task"
	RuleRefused   Rule = "no command of a rejected submission runs"
	RuleNamed     Rule = "a response with an unknown outcome names the task"
	RuleInTime    Rule = "every task ends within its deadline and the slack"
	RuleNotified  Rule = "every end is notified by event and callback"
	RuleNumbered  Rule = "the events of a task are published in order and without gaps"
	RuleDelivered Rule = "a webhook sends the events of a task in order, without gaps, and signed"
	RuleEventID   Rule = "a notification has the id and the counters of its end"
	RuleOrder     Rule = "commands on a process begin in the order of acceptance"
	RuleExpired   Rule = "no command begins after its deadline"
	// RulePaused: agents accept nothing of a task later than 10 s after it was paused.
	RulePaused   Rule = "a paused task begins nothing"
	RuleCanceled Rule = "no command of a canceled item ever ran"
	RuleLinked   Rule = "a task and its retries name each other, and a retry has the items that it repeats"
	RuleWindow   Rule = "a rollout has no more hosts at work than its window"
	RuleZone     Rule = "a rollout has no more hosts at work in a cloud area, and in no more areas, than its zones permit"
	RuleStage    Rule = "a stage of a rollout begins when the stages before it have ended"
	RuleBudget   Rule = "a rollout releases nothing after too many failures"
	RuleQueued   Rule = "only operations with a queue expire, and at its end"
	// RuleExplained is linearizability of each process on each host.
	RuleExplained Rule = "one order of its commands explains every result of a process"
)

// rules are all rules.
var rules = []Rule{
	RuleAccepted, RuleExists, RuleOneKey, RuleEnds, RuleItems, RuleSum, RuleProgress, RuleResult,
	RuleFinal, RuleTwice, RuleRequested, RuleTrue, RuleNotLost, RuleState,
	RuleOnce, RuleRefused, RuleNamed, RuleInTime, RuleNotified, RuleNumbered, RuleDelivered, RuleEventID, RuleOrder, RuleExpired, RulePaused, RuleCanceled, RuleLinked, RuleWindow, RuleZone, RuleStage, RuleBudget, RuleQueued, RuleExplained,
}

// Violation is a violated rule with the observation.
type Violation struct {
	Rule Rule
	Task procfleet.TaskID // empty if it concerns no task
	Item int              // in the task; -1 if it concerns the whole task
	Host procfleet.Host   // zero if it concerns no host
	Text string           // the observation and its time
}

func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "broken: %s", v.Rule)
	if v.Task != "" {
		fmt.Fprintf(&b, ": task %s", v.Task)
	}
	if v.Item >= 0 {
		fmt.Fprintf(&b, " item %d", v.Item)
	}
	if !v.Host.IsZero() {
		fmt.Fprintf(&b, " host %s", v.Host)
	}
	fmt.Fprintf(&b, ": %s", v.Text)
	return b.String()
}

// judge collects violations.
type judge struct {
	h     *History
	tasks map[procfleet.TaskID]*Submission
	// accepted is the latest possible acceptance of each task.
	accepted map[procfleet.TaskID]time.Time
	found    []Violation
}

func (j *judge) broken(rule Rule, task procfleet.TaskID, format string, args ...any) {
	j.found = append(j.found, Violation{Rule: rule, Task: task, Item: -1, Text: fmt.Sprintf(format, args...)})
}

func (j *judge) brokenItem(rule Rule, task procfleet.TaskID, item int, host procfleet.Host, format string, args ...any) {
	j.found = append(j.found, Violation{Rule: rule, Task: task, Item: item, Host: host, Text: fmt.Sprintf(format, args...)})
}

func (h *History) newJudge() *judge {
	return &judge{h: h, tasks: h.byTask(), accepted: h.acceptances()}
}

// judge checks a history with all rules but [RuleExplained].
func (h *History) judge(marks []Mark) *judge {
	j := h.newJudge()
	j.submissions()
	for _, s := range h.Submissions {
		if s.Task == "" {
			continue
		}
		j.checkPolls(s)
		j.readings(s)
	}
	j.notifications()
	j.marks(marks)
	j.order(marks)
	j.paused(marks)
	j.canceled(marks)
	j.linked()
	j.windows(marks)
	j.finalStates()
	return j
}

// Violations checks a history and the marks of all hosts. It is pure: the same
// history gives the same violations.
func (h *History) Violations(marks []Mark) []Violation {
	j := h.judge(marks)
	j.explained(marks, explainingTime, func(p process, s *processHistory) {
		j.brokenItem(RuleExplained, "", -1, p.host, "%s: not decided within %s: %s", p.name, explainingTime, showOperations(s.operations))
	})
	return j.found
}

// Explained checks a history with [RuleExplained] only. limit is per process.
// Processes that it cannot decide within the limit violate nothing and are counted.
func (h *History) Explained(marks []Mark, limit time.Duration) (found []Violation, undecided int) {
	j := h.newJudge()
	j.explained(marks, limit, func(process, *processHistory) { undecided++ })
	return j.found, undecided
}
