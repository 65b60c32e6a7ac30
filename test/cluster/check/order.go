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

// fence is the place of an operation in the order of acceptance.
type fence struct {
	task procfleet.Number
	item int
}

func (f fence) before(o fence) bool {
	return f.task < o.task || f.task == o.task && f.item < o.item
}

// fence reads that of the operation of a mark, which is not automatic.
func (m *Mark) fence() (fence, bool) {
	task, item, _ := strings.Cut(m.Operation, "/")
	number, err := procfleet.TaskID(task).Number()
	if err != nil {
		return fence{}, false
	}
	n, err := strconv.Atoi(item)
	return fence{number, n}, err == nil
}

// clockError is by how much the times of marks and of the test may differ from
// those by which agents judge deadlines.
const clockError = 5 * time.Second

// order judges when commands ran: those on one process in the order of
// acceptance, and none after its deadline.
func (j *judge) order(marks []Mark) {
	last, begun := map[process]Mark{}, map[string]bool{}
	for _, m := range marks {
		at, ok := m.fence()
		switch {
		case m.Operation == automatic:
			continue
		case !ok:
			j.brokenItem(RuleAsked, "", -1, m.Host, "%s of %s ran for %q, which is no operation", m.Verb, m.Token, m.Operation)
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
		// What was begun in time may run more commands.
		if s := j.tasks[m.task()]; s != nil && !begun[operation] {
			if end := j.deadline(s).Add(clockError); m.At.After(end) {
				j.brokenItem(RuleExpired, m.task(), at.item, m.Host, "%s of %s began at %s, its deadline was %s",
					m.Verb, m.Process, m.At.Format(clockLayout), j.deadline(s).Format(clockLayout))
			}
		}
		begun[operation] = true
	}
}

// task is for which the agent ran the command.
func (m *Mark) task() procfleet.TaskID {
	task, _, _ := strings.Cut(m.Operation, "/")
	return procfleet.TaskID(task)
}
