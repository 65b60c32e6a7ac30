package worker_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker"
	"github.com/procfleet/procfleet/worker/deliver"
)

func TestAcceptedItemsAreDeliveredAndTheChunkLeavesTheQueue(t *testing.T) {
	t.Parallel()
	e := start(t)
	var agents []*fakeAgent
	for _, h := range hosts(3) {
		agents = append(agents, e.agent(h, accept))
	}
	id := e.submit(time.Minute, chunk(procfleet.ActionStart, hosts(3)...))
	for item := range 3 {
		e.waitState(id, item, procfleet.StateDelivered)
	}
	e.eventually(func() bool { return e.queued(bus.StreamOps) == 0 }, "chunk is acknowledged")

	if undone, err := e.store.Undone(t.Context(), id); err != nil || len(undone) > 0 {
		t.Errorf("chunks %v are not done, %v", undone, err)
	}
	command := agents[1].got()[0]
	if len(agents[1].got()) != 1 || command.Instance != agents[1].instance || command.Host != host(2).String() || command.Lane != "s" {
		t.Errorf("host 2 got %+v, want one command for its own instance", command)
	}
	if want := (agentproto.CommandItem{Item: 1, Action: "start", Fence: int64(mustNumber(t, id))}); command.Items[0] != want {
		t.Errorf("item is %+v, want %+v", command.Items[0], want)
	}
	if until := time.Until(command.AcceptBefore); until > quick().Deliver.AcceptWindow {
		t.Errorf("accept_before is %v ahead", until)
	}
}

func mustNumber(t *testing.T, id procfleet.TaskID) procfleet.Number {
	t.Helper()
	n, err := id.Number()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAcceptBeforeNeverPassesTheDeadline(t *testing.T) {
	t.Parallel()
	e := start(t, func(c *worker.Config) { c.Timing.Deliver.AcceptWindow = 10 * time.Second })
	a := e.agent(host(1), silent)
	task := e.store.create(procfleet.LaneSmall, 2*time.Second, chunk(procfleet.ActionStart, host(1)))
	e.queue(task)
	e.eventually(func() bool { return a.asked() > 0 }, "agent is asked")
	if got := a.got()[0].AcceptBefore; got.After(task.Deadline) {
		t.Errorf("accept_before %v is after the deadline %v", got, task.Deadline)
	}
	if got := a.got()[0].NotAfter; !got.Equal(task.Deadline) {
		t.Errorf("not_after is %v, want the deadline %v", got, task.Deadline)
	}
}

func TestARepeatWithAResultIsTheAgentsResult(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.agent(host(1), func(_ int, c *agentproto.Command) *agentproto.Reply {
		r := succeeded(c.Items[0].Item)
		return &agentproto.Reply{Items: []agentproto.ReplyItem{{Item: r.Item, Result: &r}}}
	})
	id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
	if r := e.waitState(id, 0, procfleet.StateSucceeded); r.Rank != procfleet.RankAgent || r.Message != "success" {
		t.Errorf("result is %+v", r)
	}
	e.eventually(func() bool { return e.store.settled(id) }, "the end is told")
}

// results is an agent that replies with a result for every item of the command.
func results(_ int, c *agentproto.Command) *agentproto.Reply {
	reply := &agentproto.Reply{}
	for _, item := range c.Items {
		r := succeeded(item.Item)
		reply.Items = append(reply.Items, agentproto.ReplyItem{Item: r.Item, Result: &r})
	}
	return reply
}

func TestResultsInRepliesDoNotWaitForHostsWithoutReply(t *testing.T) {
	t.Parallel()
	e := start(t, unswept, func(c *worker.Config) {
		ask := &c.Timing.Deliver
		ask.ParkAfter, ask.Again = time.Hour, [2]time.Duration{time.Hour, time.Hour}
	})
	e.agent(host(1), results)
	e.agent(host(2), silent)
	id := e.submit(time.Hour, chunk(procfleet.ActionStatus, host(1), host(2)))
	e.waitState(id, 0, procfleet.StateSucceeded)
	e.waitState(id, 1, procfleet.StatePending)
}

func TestATaskThatRepliesEndLeavesTheQueue(t *testing.T) {
	t.Parallel()
	e := start(t, unswept)
	e.agent(host(1), results)
	id := e.submit(time.Hour, chunk(procfleet.ActionStatus, host(1)))
	e.waitState(id, 0, procfleet.StateSucceeded)
	e.eventually(func() bool { return e.queued(bus.StreamOps) == 0 }, "the chunk is acknowledged")
}

func TestAChunkThatRepliesEndIsDoneThoughItsTaskIsNot(t *testing.T) {
	t.Parallel()
	e := start(t, unswept)
	e.agent(host(1), results)
	e.agent(host(2), silent)
	id := e.submit(time.Hour, chunk(procfleet.ActionStatus, host(1)), chunk(procfleet.ActionStatus, host(2)))
	e.waitState(id, 0, procfleet.StateSucceeded)
	e.eventually(func() bool { return e.queued(bus.StreamOps) <= 1 }, "the first chunk is acknowledged")
	if undone, err := e.store.Undone(t.Context(), id); err != nil || len(undone) != 1 || undone[0].Chunk != 1 {
		t.Errorf("chunks %v are not done, %v", undone, err)
	}
}

func TestAWholeRefusal(t *testing.T) {
	t.Parallel()
	for _, word := range []string{agentproto.RefusedHost, agentproto.RefusedUndecodable, "some new word"} {
		t.Run(word+" ends the items", func(t *testing.T) {
			t.Parallel()
			e := start(t, unswept)
			a := e.agent(host(1), refuse(word, "not mine"))
			id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
			r := e.waitState(id, 0, procfleet.StateFailed)
			if r.Reason != procfleet.ReasonRefused || r.Rank != procfleet.RankServer || !strings.Contains(r.Message, "not mine") {
				t.Errorf("result is %+v", r)
			}
			if a.asked() != 1 {
				t.Errorf("agent was asked %d times", a.asked())
			}
		})
	}
	for _, word := range []string{agentproto.RefusedExpired, agentproto.RefusedStopping, agentproto.RefusedInstance} {
		t.Run(word+" is asked again", func(t *testing.T) {
			t.Parallel()
			e := start(t)
			e.agent(host(1), func(n int, c *agentproto.Command) *agentproto.Reply {
				if n == 0 {
					return &agentproto.Reply{Refused: word}
				}
				return accept(n, c)
			})
			id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
			e.waitState(id, 0, procfleet.StateDelivered)
		})
	}
	t.Run("expired every time ends the items", func(t *testing.T) {
		t.Parallel()
		e := start(t)
		e.agent(host(1), refuse(agentproto.RefusedExpired, ""))
		id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
		if r := e.waitState(id, 0, procfleet.StateFailed); !strings.Contains(r.Message, "clock") {
			t.Errorf("message %q does not say where to look", r.Message)
		}
	})
}

// In TestACommandThatMayHaveBeenAcceptedIsNotReportedAsRefused the reply to the first request
// is lost, and the agent receives every repeat after accept_before.
func TestACommandThatMayHaveBeenAcceptedIsNotReportedAsRefused(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.agent(host(1), func(n int, c *agentproto.Command) *agentproto.Reply {
		if n == 0 {
			return nil
		}
		return &agentproto.Reply{Refused: agentproto.RefusedExpired}
	})
	id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
	r := e.waitState(id, 0, procfleet.StateFailed)
	if r.Reason != procfleet.ReasonCommandFailed || !strings.Contains(r.Message, "outcome unknown") {
		t.Errorf("result is %+v", r)
	}
}

func TestARefusedInstanceIsReplacedByTheOneThatIsAnnounced(t *testing.T) {
	t.Parallel()
	// With shorter times a slow machine would repeat the request, and the outcome on the former
	// instance would be unknown.
	e := start(t, unswept, func(cfg *worker.Config) {
		cfg.Timing.Deliver.AcceptWindow = 10 * time.Second
		cfg.Timing.Deliver.Again = [2]time.Duration{9 * time.Second, 9 * time.Second}
	})
	a := e.agent(host(1), func(n int, c *agentproto.Command) *agentproto.Reply {
		if c.Instance != "new" {
			e.store.present(host(1), "new")
			return &agentproto.Reply{Refused: agentproto.RefusedInstance}
		}
		return accept(n, c)
	})
	id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
	e.waitState(id, 0, procfleet.StateDelivered)
	if got := a.got()[1].Instance; got != "new" {
		t.Errorf("second command is for instance %q", got)
	}
}

func TestHostsWithoutAgentAreUnreachableSoon(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.agent(host(1), accept)
	c := chunk(procfleet.ActionStart, hosts(2)...)
	c.Items = append(c.Items, procfleet.Item{Action: procfleet.ActionStart, Target: procfleet.Target{AgentID: "nobody-7"}})
	id := e.submit(time.Minute, c)
	e.waitState(id, 0, procfleet.StateDelivered)
	r := e.waitState(id, 1, procfleet.StateUnreachable)
	if r.Code != procfleet.CodeAgentAbnormal || r.Rank != procfleet.RankServer || !strings.Contains(r.Message, host(2).String()) {
		t.Errorf("result is %+v", r)
	}
	if r := e.waitState(id, 2, procfleet.StateUnreachable); !strings.Contains(r.Message, "nobody-7") {
		t.Errorf("message %q does not name the agent", r.Message)
	}
}

func TestAnAgentThatComesWithinTheGraceGetsItsCommand(t *testing.T) {
	t.Parallel()
	e := start(t, func(c *worker.Config) { c.Timing.Deliver.Grace = time.Minute })
	e.agent(host(1), accept)
	e.store.present(host(2), "i2") // announced a moment ago, now reconnecting
	first := e.submit(time.Minute, chunk(procfleet.ActionStart, host(2)))
	e.eventually(func() bool { return e.store.called("Presences") > 3 }, "the host is in grace")
	second := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
	e.waitState(second, 0, procfleet.StateDelivered)
	if state := e.state(first, 0); state != procfleet.StatePending {
		t.Fatalf("item is %s during the grace", state)
	}
	(&fakeAgent{t: t, conn: e.Conn, host: host(2), reply: accept}).listen()
	e.waitState(first, 0, procfleet.StateDelivered)
}

func TestAnAgentThatRestartsInGoodOrderGetsItsCommand(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.store.present(host(1), "i1")
	id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
	e.eventually(func() bool { return e.store.called("Presences") > 3 }, "the host is in grace")
	e.store.present(host(1), "i1", func(p *taskstore.Presence) { *p = taskstore.Presence{} }) // the agent has announced its shutdown
	seen := e.store.called("Presences")
	e.eventually(func() bool { return e.store.called("Presences") > seen+3 }, "the host is asked further")
	e.agent(host(1), accept)
	e.waitState(id, 0, procfleet.StateDelivered)
}

// Chunks in grace must not delay the lane: with one slot, the second chunk is
// delivered only if the first is parked, or postponed because the limit of parked
// chunks is reached.
func TestChunksInGraceAreParked(t *testing.T) {
	t.Parallel()
	e := start(t, func(c *worker.Config) {
		c.Limits.SmallChunks, c.Limits.Parked = 1, 1
		c.Timing.Deliver.Grace = time.Hour
	})
	e.agent(host(1), accept)
	e.store.present(host(2), "i2")
	e.store.present(host(3), "i3")
	parked := e.submit(time.Minute, chunk(procfleet.ActionStart, host(2)))
	e.waitState(e.submit(time.Minute, chunk(procfleet.ActionStart, host(1))), 0, procfleet.StateDelivered)

	noRoom := e.submit(time.Minute, chunk(procfleet.ActionStart, host(3)))
	e.eventually(func() bool { return e.store.called("Republished") > 8 }, "the chunk goes back many times")
	e.waitState(e.submit(time.Minute, chunk(procfleet.ActionStart, host(1))), 0, procfleet.StateDelivered)

	for item, h := range map[procfleet.TaskID]procfleet.Host{parked: host(2), noRoom: host(3)} {
		(&fakeAgent{t: t, conn: e.Conn, host: h, reply: accept}).listen()
		e.waitState(item, 0, procfleet.StateDelivered)
	}
}

func TestNoReplyBecomesUnreachableOnlyAfterTheLastAcceptBefore(t *testing.T) {
	t.Parallel()
	e := start(t)
	a := e.agent(host(1), silent)
	id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
	r := e.waitState(id, 0, procfleet.StateUnreachable)
	commands := a.got()
	if len(commands) != 3 {
		t.Fatalf("agent was asked %d times", len(commands))
	}
	for _, c := range commands {
		if !r.FinishedAt.After(c.AcceptBefore) {
			t.Errorf("given up at %v, while the agent might accept until %v", r.FinishedAt, c.AcceptBefore)
		}
	}
	// The result of the resumed agent replaces the server's result, once.
	e.publish(id, host(1), succeeded(0))
	if late := e.waitState(id, 0, procfleet.StateSucceeded); !late.Late {
		t.Error("result is not marked late")
	}
}

func TestALateAnswerToAnEarlierRequestCounts(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.store.present(host(1), "i1")
	var first *nats.Msg
	asked := 0
	sub, err := e.Conn.Subscribe(agentproto.AgentSubject(0, host(1).Addr), func(msg *nats.Msg) {
		if asked++; first == nil {
			first = msg
		}
		if asked < 3 {
			return
		}
		reply := agentproto.Reply{Header: agentproto.Header{Type: agentproto.TypeReply}, Items: []agentproto.ReplyItem{{Item: 0}}}
		data, err := agentproto.Encode(&reply)
		if err == nil {
			err = first.Respond(data)
		}
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	if err := e.Conn.Flush(); err != nil {
		t.Fatal(err)
	}
	id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
	e.waitState(id, 0, procfleet.StateDelivered)
}

// When the time of a host is over, the worker reads the host's presence from the store. A reply
// that arrives during a slow read still counts.
func TestAReplyThatArrivedWhileTheStoreWasSlowCounts(t *testing.T) {
	t.Parallel()
	last, looking, looked := make(chan *nats.Msg, 1), make(chan struct{}), make(chan struct{})
	startLooking := sync.OnceFunc(func() { close(looking) })
	var asked atomic.Int32
	e := start(t)
	e.stop()
	e.store.present(host(1), "i1")
	e.store.looking = func(hosts []procfleet.Host) {
		if hosts[0] == host(1) && asked.Load() == 3 {
			startLooking()
			<-looked
		}
	}
	e.startWorker(unswept)
	if _, err := e.Conn.Subscribe(agentproto.AgentSubject(0, host(1).Addr), func(msg *nats.Msg) {
		if asked.Add(1) == 3 {
			last <- msg
		}
	}); err != nil {
		t.Fatal(err)
	}
	e.agent(host(2), accept)
	id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
	msg := <-last
	<-looking // the worker reads the presence of host 1
	release := sync.OnceFunc(func() { close(looked) })
	t.Cleanup(release)
	(&fakeAgent{t: t, instance: "i1"}).respond(msg, &agentproto.Reply{Items: []agentproto.ReplyItem{{Item: 0}}})
	// Replies arrive in order: after the worker has processed the later reply of host 2, it has
	// received this one.
	e.waitState(e.submit(time.Minute, chunk(procfleet.ActionStart, host(2))), 0, procfleet.StateDelivered)
	release()
	e.eventually(func() bool { return e.queued(bus.StreamOps) == 0 }, "the chunk is done")
	if state, r := e.store.result(id, 0); state != procfleet.StateDelivered {
		t.Errorf("the item is %s: %s", state, r.Message)
	}
}

// A worker that was suspended by the kernel receives the replies of agents only after it
// resumes.
func TestASuspendedWorkerDoesNotGiveUpHosts(t *testing.T) {
	t.Parallel()
	var asked, looks atomic.Int32
	e := start(t)
	e.stop()
	a := e.agent(host(1), func(int, *agentproto.Command) *agentproto.Reply {
		asked.Add(1)
		return nil
	})
	stopped := quick().Deliver.AcceptWindow + 4*quick().Deliver.AcceptMargin
	e.store.looking = func(hosts []procfleet.Host) {
		switch {
		case asked.Load() < 3:
		case hosts[0] == host(1):
			looks.Add(1)
		default:
			<-time.After(stopped) // until the time of host 1 is over
		}
	}
	e.agent(host(2), func(n int, _ *agentproto.Command) *agentproto.Reply {
		if n < 2 {
			return nil
		}
		return &agentproto.Reply{Refused: agentproto.RefusedExpired} // makes the worker read the presence of this host alone
	})
	e.startWorker(unswept)
	id := e.submit(time.Minute, chunk(procfleet.ActionStart, hosts(2)...))
	e.waitState(id, 0, procfleet.StateUnreachable)
	if a.asked() != 3 || looks.Load() < 2 {
		t.Errorf("given up after %d looks", looks.Load())
	}
}

func TestTwoAgentsOfOneHostChangeNothing(t *testing.T) {
	t.Parallel()
	e := start(t)
	a := e.agent(host(1), accept)
	e.store.present(host(1), "i1", conflict)
	c := chunk(procfleet.ActionStart, host(1), host(1))
	c.Items[1].Action = procfleet.ActionStatus
	id := e.submit(time.Minute, c)
	r := e.waitState(id, 0, procfleet.StateFailed)
	if r.Reason != procfleet.ReasonRefused || !strings.Contains(r.Message, "two agents claim host") {
		t.Errorf("result is %+v", r)
	}
	e.waitState(id, 1, procfleet.StateDelivered)
	if got := a.got(); len(got) != 1 || len(got[0].Items) != 1 || got[0].Items[0].Action != "status" {
		t.Errorf("agent got %+v, want the status alone", got)
	}
}

func TestAConflictLeavesTheOutcomeOfACommandOpenThatWasSentBefore(t *testing.T) {
	t.Parallel()
	e := start(t)
	a := e.agent(host(1), nil)
	a.reply = func(int, *agentproto.Command) *agentproto.Reply { // accepts, and its reply is lost
		e.store.present(host(1), "clone", conflict)
		return nil
	}
	id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
	r := e.waitState(id, 0, procfleet.StateFailed)
	if r.Reason != procfleet.ReasonCommandFailed || !strings.Contains(r.Message, "two agents claim host") || !strings.Contains(r.Message, "outcome unknown") {
		t.Errorf("result is %+v", r)
	}
	if a.asked() != 1 {
		t.Errorf("the command was sent %d times", a.asked())
	}
}

func TestAReinstalledAgentGetsNoCommandsThatItsPredecessorMayHaveAccepted(t *testing.T) {
	t.Parallel()
	t.Run("chunk begun before", func(t *testing.T) {
		t.Parallel()
		e := start(t)
		a := e.agent(host(1), accept)
		e.store.present(host(1), "new", func(p *taskstore.Presence) { p.Since = time.Now() })
		c := chunk(procfleet.ActionStart, host(1), host(1))
		c.Items[1].Action = procfleet.ActionStatus
		task := e.store.create(procfleet.LaneSmall, time.Minute, c)
		e.store.change(task.ID, func(f *fakeTask) { f.begun[0] = time.Now().Add(-time.Second) })
		e.queue(task)
		r := e.waitState(task.ID, 0, procfleet.StateFailed)
		if r.Code != procfleet.CodeFailed || r.Reason != procfleet.ReasonCommandFailed || !strings.Contains(r.Message, "reinstalled, outcome unknown") {
			t.Errorf("result is %+v", r)
		}
		e.waitState(task.ID, 1, procfleet.StateDelivered)
		if got := a.got(); len(got) != 1 || got[0].Items[0].Action != "status" {
			t.Errorf("agent got %+v, want the status alone", got)
		}
	})
	t.Run("replaced after a silent request", func(t *testing.T) {
		t.Parallel()
		e := start(t, unswept)
		a := e.agent(host(1), nil)
		a.reply = func(n int, c *agentproto.Command) *agentproto.Reply {
			e.store.present(host(1), "new", sinceNow)
			return nil
		}
		id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
		if r := e.waitState(id, 0, procfleet.StateFailed); !strings.Contains(r.Message, "reinstalled") {
			t.Errorf("result is %+v", r)
		}
		if a.asked() != 1 {
			t.Errorf("the new instance was asked too: %d commands", a.asked())
		}
	})
}

func TestManyItemsOfOneHostGoInPartsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	// A late reply must not cause a second request for the same part.
	e := start(t, unswept, func(c *worker.Config) { c.Timing.Deliver.Again = [2]time.Duration{patience, patience} })
	inFlight := make(chan struct{}, 1)
	a := e.agent(host(1), func(n int, c *agentproto.Command) *agentproto.Reply {
		select {
		case inFlight <- struct{}{}:
		default:
			t.Error("a part was sent before the one before it was answered")
		}
		<-inFlight
		return accept(n, c)
	})
	const n = 600
	same := make([]procfleet.Host, n)
	for i := range same {
		same[i] = host(1)
	}
	c := chunk(procfleet.ActionStatus, same...)
	second := c.Specs[0]
	second.Name = "other"
	c.Specs = append(c.Specs, second)
	for i := range c.Items {
		c.Items[i].Spec = i % 2
	}
	id := e.submit(time.Minute, c)
	e.waitState(id, n-1, procfleet.StateDelivered)
	next := 0
	for _, command := range a.got() {
		if len(command.Items) > 256 || len(command.Specs) != 2 {
			t.Errorf("command has %d items and %d specs", len(command.Items), len(command.Specs))
		}
		for _, item := range command.Items {
			if item.Item != next || !strings.Contains(string(command.Specs[item.Spec]), fmt.Sprintf("%q", []string{"app", "other"}[next%2])) {
				t.Fatalf("item %d came where %d was due, with spec %s", item.Item, next, command.Specs[item.Spec])
			}
			next++
		}
	}
}

func TestAWorkerWaitsForItsStore(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.agent(host(1), accept)
	task := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1)))
	e.queue(task)
	e.waitState(task.ID, 0, procfleet.StateDelivered)

	e.store.setUnavailable(true)
	receipt := e.publish(task.ID, host(1), succeeded(0))
	second := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1)))
	if _, err := e.Bus.PublishChunks(t.Context(), []bus.ChunkRef{{Task: second.ID, Lane: procfleet.LaneSmall}}, "0"); err != nil {
		t.Fatal(err)
	}
	before := e.store.called("Begin")
	e.eventually(func() bool { return e.store.called("Begin") > before+3 && e.store.called("Record") > 3 }, "worker keeps trying")
	if len(receipt) != 0 || e.queued(bus.StreamOps) != 1 {
		t.Error("something was acknowledged that the store does not have")
	}
	e.store.setUnavailable(false)
	e.waitState(task.ID, 0, procfleet.StateSucceeded)
	e.waitState(second.ID, 0, procfleet.StateDelivered)
	e.receives(receipt)
}

func TestClosedGatesAreAcknowledgedAndDropped(t *testing.T) {
	t.Parallel()
	e := start(t)
	a := e.agent(host(1), accept)
	rejected := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1)))
	e.store.change(rejected.ID, func(f *fakeTask) { f.task.State = procfleet.TaskRejected })
	e.queue(rejected)
	gone := bus.ChunkRef{Task: procfleet.Number(1).TaskID(), Lane: procfleet.BigLane(3)}
	if _, err := e.Bus.PublishChunks(t.Context(), []bus.ChunkRef{gone}, "0"); err != nil {
		t.Fatal(err)
	}
	e.eventually(func() bool { return e.store.called("Begin") >= 2 && e.queued(bus.StreamOps) == 0 }, "both are dropped")
	if a.asked() != 0 {
		t.Error("an agent was asked")
	}
}

func TestWhatCannotBeReadIsTerminated(t *testing.T) {
	t.Parallel()
	e := start(t)
	for _, subject := range []string{"procfleet.op.s.0", "procfleet.op.b1.0"} {
		if _, err := e.JS.Publish(t.Context(), subject, []byte(`{"task":7}`)); err != nil {
			t.Fatal(err)
		}
	}
	e.eventually(func() bool { return e.queued(bus.StreamOps) == 0 }, "all are gone")
}

// poisoned configures a worker so that every delivery panics.
func poisoned(c *worker.Config) {
	c.Reached = func(point string) {
		if point == deliver.PointBegun {
			panic("poison")
		}
	}
}

func TestAPoisonedChunkIsIsolated(t *testing.T) {
	t.Parallel()
	e := start(t, poisoned)
	id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
	r := e.waitState(id, 0, procfleet.StateFailed)
	if r.Rank != procfleet.RankServer || !strings.Contains(r.Message, "outcome unknown") {
		t.Errorf("result is %+v", r)
	}
	e.eventually(func() bool { return e.queued(bus.StreamOps) == 0 }, "chunk is gone")
}

func TestBigAndSmallTasksShareAWorker(t *testing.T) {
	t.Parallel()
	e := start(t, func(c *worker.Config) { c.Limits.BigChunks = 2 })
	for _, h := range hosts(20) {
		e.agent(h, accept)
	}
	var ids []procfleet.TaskID
	for n := range uint64(4) {
		chunks := make([]procfleet.Chunk, 5)
		for i := range chunks {
			chunks[i] = chunk(procfleet.ActionStatus, hosts(20)...)
		}
		task := e.store.create(procfleet.BigLane(n), time.Minute, chunks...)
		e.queue(task)
		ids = append(ids, task.ID)
	}
	ids = append(ids, e.submit(time.Minute, chunk(procfleet.ActionStatus, host(1))))
	for _, id := range ids {
		e.waitState(id, 0, procfleet.StateDelivered)
	}
	e.eventually(func() bool { return e.queued(bus.StreamOps) == 0 }, "all chunks are done")
}

func TestTheTraceReachesTheAgent(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.store.present(host(1), "i1")
	headers := make(chan nats.Header, 10)
	sub, err := e.Conn.Subscribe(agentproto.AgentSubject(0, host(1).Addr), func(msg *nats.Msg) { headers <- msg.Header })
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	if err := e.Conn.Flush(); err != nil {
		t.Fatal(err)
	}
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	task := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1)))
	ref := bus.ChunkRef{Task: task.ID, Lane: procfleet.LaneSmall}
	if _, err := e.Bus.PublishChunks(tracecontext.FromText(t.Context(), trace), []bus.ChunkRef{ref}, "0"); err != nil {
		t.Fatal(err)
	}
	select {
	case header := <-headers:
		if got := tracecontext.Text(tracecontext.Extract(t.Context(), header)); got != trace {
			t.Errorf("agent got trace %q, want %q", got, trace)
		}
	case <-time.After(patience):
		t.Fatal("no command came")
	}
}
