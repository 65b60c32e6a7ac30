package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/internal/testenv"
)

// TestAgentKilledAtEveryPointOfAnOperation kills the agent at each point, starts it again and delivers
// the command again, as a worker does. The start command must run at most once, and all results that
// the agent sends must be equal and true.
func TestAgentKilledAtEveryPointOfAnOperation(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"agent.received", "agent.before-exec", "agent.after-spawn", "agent.before-done", "agent.after-done", "agent.after-receipt"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			h, s := newHost(t), newSleeper(t)
			h.start(point)
			c := s.command("task", agentproto.ActionStart, 1)
			if answered, _ := h.deliver(c); answered == (point == "agent.received") {
				t.Errorf("answered %v", answered)
			}
			select {
			case <-h.child.Done():
			case <-time.After(patience):
				t.Fatal("the agent did not reach the point")
			}

			h.start("")
			_, results := h.deliver(c)
			sent := h.received(time.Second)
			if point == "agent.after-receipt" && len(sent) < 2 {
				t.Error("the result is not sent again although the journal does not know the receipt")
			}
			results = append(results, sent...)
			for _, r := range results[1:] {
				if diff := cmp.Diff(results[0].Message, r.Message); diff != "" || r.Code != results[0].Code {
					t.Errorf("two outcomes: %+v and %+v", results[0], r)
				}
			}
			r := results[0]
			t.Logf("code %d: %s", r.Code, r.Message)
			if n := s.started(); n > 1 {
				t.Errorf("the start command ran %d times", n)
			}
			if running := s.process() != 0; running != (r.Code == agentproto.CodeSuccess) {
				t.Errorf("running %v, result %d: %s", running, r.Code, r.Message)
			}
			// A repeated command has the same result.
			if _, again := h.deliver(c); len(again) != 1 || again[0].Code != r.Code {
				t.Errorf("repeat: %+v", again)
			}
		})
	}
}

// Without a worker, results stay on the host until a worker subscribes, also if the agent is killed
// meanwhile.
func TestResultsWaitOnTheHostUntilAWorkerSubscribes(t *testing.T) {
	t.Parallel()
	h, s := newHost(t), newSleeper(t)
	if err := h.worker.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	h.start("")
	c := s.command("task", agentproto.ActionStart, 1)
	testenv.Eventually(t, patience, func() bool {
		_, results := h.deliver(c)
		return len(results) == 1
	}, "the operation ends")
	h.child.Kill()
	h.start("")
	if len(h.results) != 0 {
		t.Error("results were received without a worker")
	}
	h.receive()
	if r := h.received(100 * time.Millisecond)[0]; r.Code != agentproto.CodeSuccess {
		t.Errorf("result %+v", r)
	}
	if n := s.started(); n != 1 {
		t.Errorf("the start command ran %d times", n)
	}
}

func TestAgentLeavesProcessesAloneAndFindsThemAgain(t *testing.T) {
	t.Parallel()
	h, s := newHost(t), newSleeper(t)
	h.start("")
	h.deliver(s.command("start", agentproto.ActionStart, 1))
	if r := h.received(100 * time.Millisecond)[0]; r.Code != agentproto.CodeSuccess {
		t.Fatalf("start: %+v", r)
	}
	pid := s.process()
	h.child.Signal(syscall.SIGTERM)
	if code := h.child.Wait(t, patience); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if s.process() != pid {
		t.Fatal("the process did not outlive the agent")
	}
	h.start("")
	r := h.seen(s.command("status", agentproto.ActionStatus, 2))
	if r.Status == nil || r.Status.PID != pid || !r.Status.Supervised {
		t.Errorf("status after the restart: %+v", r.Status)
	}
	h.deliver(s.command("stop", agentproto.ActionStop, 3))
	if r := h.received(100 * time.Millisecond)[0]; r.Code != agentproto.CodeSuccess || s.process() != 0 {
		t.Errorf("stop: %+v", r)
	}
	if n := s.started(); n != 1 {
		t.Errorf("the start command ran %d times", n)
	}
}

func TestSecondAgentIsRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start("")
	second := testenv.StartChild(t, nil, h.program, "--nats", h.nats.URL, "--ip", "10.0.0.2", "--data", h.data)
	if code := second.Wait(t, patience); code != command.ExitFailed {
		t.Errorf("exit code %d", code)
	}
	testenv.Eventually(t, patience, func() bool {
		return strings.Contains(second.Output(), "in use by another procfleet agent")
	}, "the second agent says why it ended")
	if answered, _ := h.deliver(newSleeper(t).command("look", agentproto.ActionStatus, 1)); !answered {
		t.Error("the first agent does not answer any more")
	}
}

func TestFrozenAgentDoesNotRunWhatWasGivenUp(t *testing.T) {
	t.Parallel()
	h, s := newHost(t), newSleeper(t)
	h.start("")
	h.child.Freeze(t)
	c := s.command("given-up", agentproto.ActionStart, 1)
	c.AcceptBefore = time.Now().Add(time.Second)
	data, err := agentproto.Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	answers, err := h.nats.Conn.SubscribeSync(h.nats.Conn.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.nats.Conn.PublishRequest(subject, answers.Subject, data); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() bool { return time.Now().After(c.AcceptBefore) }, "the command expires")
	h.child.Signal(syscall.SIGCONT)
	msg, err := answers.NextMsg(patience)
	if err != nil {
		t.Fatal(err)
	}
	var reply agentproto.Reply
	if err := agentproto.Decode(msg.Data, agentproto.TypeReply, &reply); err != nil {
		t.Fatal(err)
	}
	if reply.Refused != agentproto.RefusedExpired {
		t.Errorf("reply %+v", reply)
	}
	// The agent executes operations in order: if it had accepted the earlier command, it
	// would have executed it before the result of this one.
	h.seen(s.command("next", agentproto.ActionStatus, 2))
	if n := s.started(); n != 0 {
		t.Errorf("the start command ran %d times", n)
	}
}
