package check

import (
	"strconv"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
)

// process is one process on one host.
type process struct {
	name string
	host procfleet.Host
}

// fence is the position of an operation in the order of acceptance.
type fence struct {
	task procfleet.Number
	item int
}

func (f fence) before(o fence) bool {
	return f.task < o.task || f.task == o.task && f.item < o.item
}

// fence returns the fence of the operation that ran the mark's command. It returns false for
// an automatic start, which has no operation.
func (m *Mark) fence() (fence, bool) {
	task, item, _ := strings.Cut(m.Operation, "/")
	number, err := procfleet.TaskID(task).Number()
	if err != nil {
		return fence{}, false
	}
	n, err := strconv.Atoi(item)
	return fence{number, n}, err == nil
}

// clockError is the maximum difference between the clock of marks and of the test
// and the clock by which agents check deadlines.
const clockError = 5 * time.Second

// order checks that commands on one process ran in the order of acceptance, and
// none after its deadline.
func (j *judge) order(marks []Mark) {
	last, begun := map[process]Mark{}, map[string]bool{}
	for _, m := range marks {
		at, ok := m.fence()
		switch {
		case m.Operation == automatic:
			continue
		case !ok:
			j.brokenItem(RuleRequested, "", -1, m.Host, "%s of %s ran for %q, which is not an operation", m.Verb, m.Token, m.Operation)
			continue
		}
		p := process{m.Process, m.Host}
		if before, ok := last[p]; ok {
			if f, _ := before.fence(); at.before(f) {
				j.brokenItem(RuleOrder, m.task(), at.item, m.Host, "%s of %s ran at %s, after %s of %s of the later task %s",
					m.Verb, m.Process, m.At.Format(clockLayout), before.Verb, before.Token, before.Operation)
			}
		}
		last[p] = m
		operation := m.Host.String() + " " + m.Operation
		// An operation that began in time may run further commands.
		if s := j.tasks[m.task()]; s != nil && !begun[operation] {
			if end := j.deadline(s).Add(clockError); m.At.After(end) {
				j.brokenItem(RuleExpired, m.task(), at.item, m.Host, "%s of %s began at %s, after its deadline %s",
					m.Verb, m.Process, m.At.Format(clockLayout), j.deadline(s).Format(clockLayout))
			}
		}
		begun[operation] = true
	}
}

// task returns the task for which the agent ran the command.
func (m *Mark) task() procfleet.TaskID {
	task, _, _ := strings.Cut(m.Operation, "/")
	return procfleet.TaskID(task)
}
