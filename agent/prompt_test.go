package agent

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
)

// looks returns a command for the status of the processes of the given items.
func (h *host) looks(task string, items ...int) *agentproto.Command {
	c := h.starts(task, items...)
	for i := range c.Items {
		c.Items[i].Action = agentproto.ActionStatus
	}
	return c
}

func TestAnswerToACommandThatOnlyLooksHasTheResults(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.prompt = patience // the journal may need longer than promptWithin to sync
	h.start(nil)
	c := h.looks("status", 0, 1)
	for range 2 { // a repeated status has no side effect
		r := h.command(c)
		if len(r.Items) != 2 || r.Items[0].Result == nil || r.Items[1].Result == nil || r.Items[1].Result.Message != "success" {
			t.Fatalf("reply %+v", r)
		}
	}
	// Results are published in order: if the next one is that of the start, the results in the
	// replies were not published as well.
	h.command(h.starts("start", 0))
	if m := h.inbox.next(); m.Task != "start" {
		t.Errorf("published: %+v", m)
	}
}

func TestWhatIsNotSeenAtOnceIsAcceptedAndReported(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	hold := make(chan struct{})
	h.start(hold)
	if r := h.command(h.looks("status", 0, 1)); len(r.Items) != 2 || r.Items[0].Result != nil || r.Items[1].Result != nil {
		t.Errorf("reply %+v", r)
	}
	close(hold)
	h.inbox.collect(2)
}

func TestResultsOfACommandThatNobodyWaitsForAreReported(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.start(nil)
	data, err := agentproto.Encode(h.looks("status", 0))
	if err == nil {
		err = h.conn.Publish(h.cfg.subject(), data)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.inbox.collect(1)
}

func TestWhatIsSeenAndTooLargeForAnAnswerIsReported(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	h.start(nil)
	const items = 100
	c := h.looks("status")
	for i := range items {
		spec, err := json.Marshal(agentproto.Spec{Key: fmt.Sprint(i), StartCmd: "print " + strings.Repeat("x", 9<<10)})
		if err != nil {
			t.Fatal(err)
		}
		c.Specs = append(c.Specs, spec)
		c.Items = append(c.Items, agentproto.CommandItem{Item: i, Action: agentproto.ActionStatus, Spec: i})
	}
	answered := 0
	for _, item := range h.command(c).Items {
		if item.Result != nil {
			answered++
		}
	}
	if answered == items {
		t.Fatal("all results are in the reply")
	}
	h.inbox.collect(items - answered)
}

func TestResultReachesEveryAnswerOrIsPublished(t *testing.T) {
	t.Parallel()
	id := journal.ID{Task: "t"}
	for _, c := range []struct {
		name          string
		first, second func(p *prompt, answer chan agentproto.Result)
		answers       int
		enough        bool
	}{
		{"nobody waits", nil, nil, 0, false},
		{"one waits", (*prompt).awaitOne, nil, 1, true},
		{"a repeat waits too", (*prompt).awaitOne, (*prompt).joinOne, 2, true},
		{"a repeat alone does not wait", (*prompt).joinOne, nil, 0, false},
		{"one answer went without it", (*prompt).awaitOne, (*prompt).missOne, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, answers := newPrompt(promptWithin), make(chan agentproto.Result, 2)
			for _, step := range []func(*prompt, chan agentproto.Result){c.first, c.second} {
				if step != nil {
					step(p, answers)
				}
			}
			if enough := p.handOver(id, &agentproto.Result{}); enough != c.enough || len(answers) != c.answers {
				t.Errorf("%d answers have it, enough: %v", len(answers), enough)
			}
			if p.miss(id) || p.handOver(id, &agentproto.Result{}) || len(answers) != c.answers {
				t.Error("it is still waited for")
			}
		})
	}
}

func (p *prompt) awaitOne(answer chan agentproto.Result) { p.await(journal.ID{Task: "t"}, answer) }
func (p *prompt) joinOne(answer chan agentproto.Result)  { p.join(journal.ID{Task: "t"}, answer) }
func (p *prompt) missOne(chan agentproto.Result)         { p.miss(journal.ID{Task: "t"}) }
