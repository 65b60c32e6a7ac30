package check

import (
	"fmt"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
)

// Rule is a promise that can be broken.
type Rule string

// The rules.
const (
	// RuleAnswer: a submission comes to an answer, and none but a 2xx or "try
	// again" is the answer to a sound one.
	RuleAnswer Rule = "every sound submission is accepted in the end"
	RuleKept   Rule = "an accepted task is there"
	RuleOneKey Rule = "an idempotency key makes one task"
	RuleEnds   Rule = "every task ends"
	RuleItems  Rule = "a task has the items that were asked for"
	RuleSum    Rule = "counters add up to the number of items"
	RuleOnward Rule = "a task does not go back"
	RuleResult Rule = "every item has one final result"
	RuleFinal  Rule = "the agent's word is final"
	RuleTwice  Rule = "no command runs twice"
	RuleAsked  Rule = "only what was asked for is done"
	RuleTrue   Rule = "no result names an outcome that did not happen"
	RuleSilent Rule = "no result is silently missing"
	RuleStands Rule = "a process stands as the last operation left it"

	RuleOnce     Rule = "a submission without a key makes at most one task"
	RuleRefused  Rule = "what was refused is not done"
	RuleNamed    Rule = "an answer that does not know the outcome names the task"
	RuleInTime   Rule = "every task ends within its deadline and the slack"
	RuleNotified Rule = "every end is notified, as event and by callback"
	RuleEventID  Rule = "a notification has the id of its end, and shows the end"
	RuleOrder    Rule = "commands on a process begin in the order of acceptance"
	RuleExpired  Rule = "no command begins after its deadline"
	// RuleExplained is linearizability of each process on each host.
	RuleExplained Rule = "one order of its commands explains every result of a process"
)

// rules are all of them.
var rules = []Rule{
	RuleAnswer, RuleKept, RuleOneKey, RuleEnds, RuleItems, RuleSum, RuleOnward, RuleResult,
	RuleFinal, RuleTwice, RuleAsked, RuleTrue, RuleSilent, RuleStands,
	RuleOnce, RuleRefused, RuleNamed, RuleInTime, RuleNotified, RuleEventID, RuleOrder, RuleExpired, RuleExplained,
}

// Violation is a promise that was broken, with what was seen.
type Violation struct {
	Rule Rule
	Task procfleet.TaskID // empty if it is about none
	Item int              // in the task; -1 if it is about all of it
	Host procfleet.Host   // zero if it is about none
	Text string           // what was seen, and when
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
	// accepted is by when each task was accepted at the latest.
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

// judge judges a history by all rules but [RuleExplained].
func (h *History) judge(marks []Mark) *judge {
	j := h.newJudge()
	j.submissions()
	for _, s := range h.Submissions {
		if s.Task == "" {
			continue
		}
		j.looks(s)
		j.readings(s)
	}
	j.notices()
	j.marks(marks)
	j.order(marks)
	j.standings()
	return j
}

// Violations judges a history and the marks of all hosts. It is pure: the same
// history gives the same violations.
func (h *History) Violations(marks []Mark) []Violation {
	j := h.judge(marks)
	j.explained(marks, explainingTime, func(p process, s *story) {
		j.brokenItem(RuleExplained, "", -1, p.host, "%s: not decided in %s: %s", p.name, explainingTime, showOperations(s.operations))
	})
	return j.found
}

// Explained judges a history by [RuleExplained] alone. Processes that are not
// decided within the limit, which is for each, break nothing and are counted.
func (h *History) Explained(marks []Mark, limit time.Duration) (found []Violation, undecided int) {
	j := h.newJudge()
	j.explained(marks, limit, func(process, *story) { undecided++ })
	return j.found, undecided
}
