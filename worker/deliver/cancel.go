package deliver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
)

// The store ends the items of chunks that were never begun. For a begun chunk of a canceled
// task, an agent may have accepted the command of any open item, or may still accept it until
// its accept_before. Therefore the worker requests a decision about each item from its agent.
// After the last accept_before, items of hosts that do not decide end as unreachable: their
// outcome is unknown, and a late result of the agent replaces it.

// errUndecided means that some agents have not decided yet.
var errUndecided = errors.New("agents have not decided about canceled items")

// cancellation is one round of requests for the open items of a begun chunk.
type cancellation struct {
	*Deliverer
	ref    bus.ChunkRef
	begun  *taskstore.Begun
	unsent []int
	log    logrus.FieldLogger

	batch     *agentlink.RequestBatch
	hosts     []*cancelRequest
	presences []taskstore.Presence // of hosts

	results []procfleet.Result
	decided []int // items that have begun, as indexes into the task
}

// cancelRequest is the request to the agent of one host.
type cancelRequest struct {
	host  procfleet.Host
	items []int // open items that are not decided, as indexes into the chunk
	cause string
}

// cancelChunk ends the open items of a begun chunk, as far as agents decide about them. It
// returns errUndecided if some have not decided and may do so later.
//
// If the mode changed from drain to interrupt before the chunk was stored as done, Begin opens
// the chunk no more, so cancelChunk begins again with the new mode.
func (d *Deliverer) cancelChunk(ctx context.Context, ref bus.ChunkRef, begun *taskstore.Begun) error {
	for {
		if err := d.requestCancel(ctx, ref, begun); err != nil {
			return err
		}
		if err := d.storeDone(ctx, ref); err != nil {
			return err
		}
		mode := begun.Task.Cancel.Mode
		err := d.cfg.Calls.Retry(ctx, func(ctx context.Context) (err error) {
			begun.Task, err = d.cfg.Store.Task(ctx, ref.Task)
			return err
		})
		if err != nil || begun.Task.Cancel.Mode == mode || begun.Task.State.Done() {
			return err
		}
	}
}

// cancelItems carries out the cancels of a chunk's items, as cancelChunk does for all items.
func (d *Deliverer) cancelItems(ctx context.Context, ref bus.ChunkRef) error {
	var canceled taskstore.CanceledItems
	err := d.cfg.Calls.Retry(ctx, func(ctx context.Context) (err error) {
		canceled, err = d.cfg.Store.ItemCancels(ctx, ref.Task, ref.Chunk)
		return err
	})
	if err != nil {
		return fmt.Errorf("read the cancels of chunk %s/%d: %w", ref.Task, ref.Chunk, err)
	}
	for _, c := range canceled.Cancels {
		begun := &taskstore.Begun{Task: canceled.Task, Chunk: canceled.Chunk, FirstBegun: canceled.FirstBegun}
		begun.Task.Cancel = procfleet.Cancel{Mode: c.Mode, Reason: c.Reason, Since: c.Since}
		for _, i := range c.Items {
			if slices.Contains(canceled.Open, i) {
				begun.Open = append(begun.Open, i)
			}
		}
		if err := d.requestCancel(ctx, ref, begun, canceled.Unsent...); err != nil {
			return err
		}
		err := d.cfg.Calls.Retry(ctx, func(ctx context.Context) error {
			return d.cfg.Store.ItemsCanceled(ctx, ref.Task, ref.Chunk, c.Seq)
		})
		if err != nil {
			return fmt.Errorf("store cancels of chunk %s/%d as carried out: %w", ref.Task, ref.Chunk, err)
		}
	}
	return nil
}

// requestCancel is one round of requests to the agents of a chunk, of which no agent can have
// accepted the items unsent.
func (d *Deliverer) requestCancel(ctx context.Context, ref bus.ChunkRef, begun *taskstore.Begun, unsent ...int) error {
	c := &cancellation{
		Deliverer: d, ref: ref, begun: begun, unsent: unsent,
		log: d.log.WithFields(logrus.Fields{"task": ref.Task, "chunk": ref.Chunk}),
	}
	c.group()
	if err := c.request(ctx); err != nil {
		return err
	}
	if c.over() {
		c.giveUp()
	}
	if err := c.store(ctx); err != nil {
		return err
	}
	if c.undecided() {
		return errUndecided
	}
	return nil
}

// over reports whether no agent accepts a command of the task any more, and all had the time
// to decide.
func (c *cancellation) over() bool {
	t := &c.cfg.Timing
	return !c.cfg.Clock.Now().Before(c.begun.Task.Cancel.Since.Add(t.AcceptWindow + t.AcceptMargin))
}

// group groups the open items by host. Items without a host or a spec, those of a chunk that was
// never begun, and unsent ones were never sent.
func (c *cancellation) group() {
	never := "canceled before it was sent to the agent"
	if reason := c.begun.Task.Cancel.Reason; reason != "" {
		never += ": " + reason
	}
	byHost := make(map[procfleet.Host]*cancelRequest, len(c.begun.Open))
	for _, i := range c.begun.Open {
		item := &c.begun.Chunk.Items[i]
		host := item.Target.Host
		if c.begun.FirstBegun.IsZero() || slices.Contains(c.unsent, i) || host.IsZero() || c.begun.Chunk.Spec(i).Unregistered {
			c.end(i, procfleet.CodeFailed, procfleet.ReasonCancelled, never)
			continue
		}
		h := byHost[host]
		if h == nil {
			h = &cancelRequest{host: host, cause: "the agent did not reply"}
			byHost[host] = h
			c.hosts = append(c.hosts, h)
		}
		h.items = append(h.items, i)
	}
}

func (c *cancellation) end(i int, code procfleet.Code, reason procfleet.Reason, message string) {
	c.results = append(c.results, agentlink.ServerResult(c.begun.Chunk.First+i, code, reason, message, c.cfg.Clock.Now()))
}

// request sends a request to every host and handles the replies that arrive in time.
func (c *cancellation) request(ctx context.Context) error {
	if len(c.hosts) == 0 {
		return nil
	}
	if err := c.readPresences(ctx); err != nil {
		return err
	}
	c.batch = c.cfg.Requester.Begin(len(c.hosts))
	defer c.batch.End()
	waiting := 0
	for n, h := range c.hosts {
		if err := c.send(n, h); err != nil {
			c.log.WithError(err).WithField("host", h.host.String()).Warn("cancel not sent, retrying")
			continue
		}
		waiting++
	}
	c.cfg.Reached(PointCancelRequested)
	timeout := time.NewTimer(c.cfg.Timing.Again[0])
	defer timeout.Stop()
	for ; waiting > 0; waiting-- {
		select {
		case r := <-c.batch.Replies:
			c.handle(&r)
		case <-timeout.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (c *cancellation) readPresences(ctx context.Context) error {
	hosts := make([]procfleet.Host, len(c.hosts))
	for n, h := range c.hosts {
		hosts[n] = h.host
	}
	err := c.cfg.Calls.Retry(ctx, func(ctx context.Context) (err error) {
		c.presences, err = c.cfg.Store.Presences(ctx, hosts)
		return err
	})
	if err != nil {
		return fmt.Errorf("read the presences of %d hosts: %w", len(hosts), err)
	}
	return nil
}

func (c *cancellation) send(n int, h *cancelRequest) error {
	request := agentproto.Cancel{
		Header: agentproto.Header{Type: agentproto.TypeCancel, ID: c.batch.ReplySubject(n, 0), Sent: c.cfg.Clock.Now()},
		Task:   string(c.ref.Task), Lane: bus.ResultLane(c.begun.Task.Lane), Host: h.host.String(),
		Interrupt: c.begun.Task.Cancel.Mode == procfleet.CancelInterrupt,
	}
	for _, i := range h.items[:min(len(h.items), agentproto.MaxItems)] {
		item := &c.begun.Chunk.Items[i]
		request.Items = append(request.Items, agentproto.CancelItem{
			Item: c.begun.Chunk.First + i, Action: string(item.Action), Key: c.begun.Chunk.Spec(i).Key(), Fence: int64(c.begun.Task.Number),
		})
	}
	data, err := agentproto.Encode(&request)
	if err != nil {
		return err
	}
	header := c.cfg.Auth.Sign(nil, h.host, &fleetkey.Message{Purpose: agentproto.TypeCancel, Body: data})
	return c.batch.Send(n, 0, agentproto.AgentSubject(int64(h.host.Cloud), h.host.Addr), header, data)
}

// handle handles the reply of one agent. A reply that proves nothing counts as no reply.
func (c *cancellation) handle(r *agentlink.Reply) {
	if r.Host >= len(c.hosts) {
		return
	}
	h := c.hosts[r.Host]
	if r.NoResponders {
		h.cause = "no agent is connected"
		return
	}
	message := fleetkey.Message{Purpose: agentproto.TypeCancelReply, Answers: c.batch.ReplySubject(r.Host, r.Try), Body: r.Data}
	var reply agentproto.CancelReply
	if err := c.cfg.Auth.Verify(r.Header, h.host, &message); err != nil {
		h.cause = "the reply of the agent was not verified: " + err.Error()
		return
	}
	if err := agentproto.Decode(r.Data, agentproto.TypeCancelReply, &reply); err != nil {
		c.log.WithError(err).WithField("host", h.host.String()).Warn("reply not decoded, treated as no reply")
		return
	}
	if reply.Refused != "" {
		h.cause = fmt.Sprintf("the agent refused the cancel: %s (%s)", reply.Message, reply.Refused)
		return
	}
	c.decide(h, &c.presences[r.Host], &reply)
}

// decide stores the decisions of an agent.
func (c *cancellation) decide(h *cancelRequest, presence *taskstore.Presence, reply *agentproto.CancelReply) {
	if cause := c.noProof(presence, reply); cause != "" {
		h.cause = cause
		return
	}
	for n := range reply.Items {
		d := &reply.Items[n]
		at := slices.Index(h.items, d.Item-c.begun.Chunk.First)
		if at < 0 {
			continue
		}
		h.items = slices.Delete(h.items, at, at+1)
		if d.Result == nil {
			c.decided = append(c.decided, d.Item)
			continue
		}
		result := agentlink.ResultOf(d.Result)
		result.Item = d.Item
		c.results = append(c.results, result)
	}
}

// noProof returns why another agent than the one that replied may have run the commands; ""
// if none may.
func (c *cancellation) noProof(presence *taskstore.Presence, reply *agentproto.CancelReply) string {
	switch {
	case presence.Conflict:
		return "two agents claim the host"
	case presence.Host.IsZero():
		return "the agent has not announced itself"
	case presence.Instance != reply.Instance:
		return "the agent was reinstalled or a copy of it runs"
	case presence.Since.After(c.begun.FirstBegun):
		return "the agent was reinstalled after the task began"
	}
	return ""
}

// giveUp ends the items about which no agent has decided.
func (c *cancellation) giveUp() {
	for _, h := range c.hosts {
		for _, i := range h.items {
			c.end(i, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable,
				fmt.Sprintf("canceled, but host %s did not confirm it: %s; the command may have run, query the status", h.host, h.cause))
		}
		h.items = nil
	}
}

func (c *cancellation) undecided() bool {
	return slices.ContainsFunc(c.hosts, func(h *cancelRequest) bool { return len(h.items) > 0 })
}

// store stores results first and begun items second, as deliveries do.
func (c *cancellation) store(ctx context.Context) error {
	if len(c.results) > 0 {
		if _, err := c.cfg.Recorder.Record(ctx, c.ref.Task, c.results); err != nil {
			return err
		}
	}
	if len(c.decided) == 0 {
		return nil
	}
	err := c.cfg.Calls.Retry(ctx, func(ctx context.Context) error {
		return c.cfg.Store.Delivered(ctx, c.ref.Task, c.ref.Chunk, c.decided, false)
	})
	if err != nil {
		return fmt.Errorf("store %d begun items of chunk %s/%d as delivered: %w", len(c.decided), c.ref.Task, c.ref.Chunk, err)
	}
	c.cfg.Recorder.Hints.Change(c.ref.Task)
	return nil
}
