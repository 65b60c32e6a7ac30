// Package collect stores the results that agents send, in batches, and replies with
// receipts. The other parts of a worker store results with a [Recorder].
package collect

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/metrics"
	"github.com/procfleet/procfleet/worker/storecall"
)

// Store has the calls to a task store that this package uses.
type Store interface {
	Record(ctx context.Context, batches []taskstore.Batch) ([]taskstore.Recorded, error)
	Owners(ctx context.Context, id procfleet.TaskID, items []int) ([]procfleet.Host, error)
	Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error)
}

// Points at which [agentlink.Link].Reached is called.
const (
	PointCollecting = "worker.collecting" // results are received but not stored
	PointCollected  = "worker.collected"  // results are stored but no receipt is sent
)

// Config holds the dependencies and settings of the collectors.
type Config struct {
	*agentlink.Link
	Store    Store
	Recorder *Recorder
	Max      int // maximum messages in a batch
	Log      logrus.FieldLogger
}

// Inboxes returns the inboxes of results. The caller runs them.
func Inboxes(cfg Config) (inboxes []*agentlink.Inbox) {
	hosts, traces := newItemHosts(cfg.Store), &resultTrace{cfg: &cfg, tasks: map[procfleet.TaskID]*failedItems{}}
	for _, lane := range []string{bus.ResultsSmall, bus.ResultsBig} {
		inboxes = append(inboxes, newCollector(&cfg, lane, hosts, traces).inbox())
	}
	return inboxes
}

// collector stores the results that agents send on one lane, one store call per batch,
// and then sends receipts.
type collector struct {
	*agentlink.Intake
	cfg    *Config
	lane   string
	hosts  *itemHosts
	traces *resultTrace
}

// maxCollectBytes bounds the size of a batch.
const maxCollectBytes = 8 << 20

func newCollector(cfg *Config, lane string, hosts *itemHosts, traces *resultTrace) *collector {
	in := &agentlink.Intake{Name: "results_" + lane, Link: cfg.Link, Log: cfg.Log}
	c := &collector{Intake: in, cfg: cfg, lane: lane, hosts: hosts, traces: traces}
	c.Open, c.Store = c.openResults, c.collect
	return c
}

// inbox returns the inbox of one lane. Small and big tasks have separate lanes, so that
// neither delays the other. A message has about 400 bytes per result.
func (c *collector) inbox() *agentlink.Inbox {
	return &agentlink.Inbox{
		Link: c.Link, Subject: agentproto.ResultsOfLane(c.lane), Name: c.Name, Log: c.Log,
		Limit: 16 << 10, LimitBytes: 32 << 20, Batch: c.cfg.Max, BatchBytes: maxCollectBytes,
		Take: c.Take, Overflow: c.Overflow, Refuses: c.Refuses,
	}
}

// openResults decodes and verifies a message. It returns nil if the message is invalid.
func (c *collector) openResults(msg *nats.Msg) *agentlink.Request {
	var r *agentlink.Request
	err := agentlink.Guarded(func() (err error) {
		r, err = decodeResults(msg)
		return err
	})
	if err != nil {
		c.Log.WithError(err).WithField("subject", msg.Subject).Error("results dropped")
		c.Link.Metrics.DroppedResults.Add(1, metrics.NotUnderstood)
		return nil
	}
	if c.Link.Auth.Verify(msg.Header, r.Host, &fleetkey.Message{Purpose: agentproto.TypeResults, Body: msg.Data}) != nil {
		return nil
	}
	c.Link.Auth.RemoveUnverifiedAgentIDs(msg.Header, r.Host, r.Results)
	return r
}

// collect stores a batch and replies to it. An error means that the store is
// unavailable; left are the requests that are not stored.
func (c *collector) collect(ctx context.Context, requests []*agentlink.Request) (left []*agentlink.Request, err error) {
	if len(requests) == 0 {
		return nil, nil
	}
	c.cfg.Reached(PointCollecting)
	err = c.store(ctx, requests)
	if err == nil {
		return nil, nil
	}
	if c.unavailable(ctx, err) {
		return requests, err
	}
	// The store is available but rejects the batch. Store the messages one by one to
	// find the rejected ones.
	c.Log.WithError(err).WithField("messages", len(requests)).Error("result batch not stored, retrying one by one")
	for i, r := range requests {
		err := c.store(ctx, []*agentlink.Request{r})
		if c.unavailable(ctx, err) {
			return requests[i:], err
		}
		if err != nil {
			c.Log.WithError(err).WithFields(logrus.Fields{"host": r.Host.String(), "task": r.Task}).Error("results refused by the store")
			c.Link.Metrics.DroppedResults.Add(1, metrics.NotStored)
			r.Refused = true
			c.Reply(r, &agentproto.Receipt{Task: string(r.Task), RetryAfterMS: agentlink.RetryRefused.Milliseconds()})
		}
	}
	return nil, nil
}

// unavailable reports whether err means that the store is unavailable or ctx has ended,
// rather than that the store rejects the messages.
func (c *collector) unavailable(ctx context.Context, err error) bool {
	return err != nil && (storecall.Unavailable(err) || ctx.Err() != nil)
}

// store records requests in one attempt and replies to them. A panic becomes an error.
func (c *collector) store(ctx context.Context, requests []*agentlink.Request) error {
	began := time.Now()
	return agentlink.Guarded(func() error {
		callCtx, cancel := c.Link.ReceiptTimeout(ctx)
		defer cancel()
		if err := c.dropForeign(callCtx, requests); err != nil {
			return err
		}
		batches, at := group(requests)
		var recorded []taskstore.Recorded
		if len(batches) > 0 {
			var err error
			if recorded, err = c.cfg.Recorder.Attempt(callCtx, batches); err != nil {
				return err
			}
		}
		c.cfg.Reached(PointCollected)
		for _, r := range requests {
			n, some := at[r.Task]
			c.Reply(r, receiptOfResults(r, some && recorded[n].Known))
		}
		c.Link.Metrics.Collected(ctx, batches, c.Link.Clock.Now())
		c.traces.recorded(ctx, began, requests) // last, because it may read tasks, which must not delay receipts
		return nil
	})
}

// receiptOfResults lists a request's items as stored if the task is known, else
// rejected.
func receiptOfResults(r *agentlink.Request, known bool) *agentproto.Receipt {
	receipt := &agentproto.Receipt{Task: string(r.Task), Rejected: r.Foreign}
	to := &receipt.Stored
	if !known {
		to = &receipt.Rejected
	}
	for i := range r.Results {
		*to = append(*to, r.Results[i].Item)
	}
	return receipt
}

// group groups results by task and returns the index of each task's batch.
func group(requests []*agentlink.Request) (batches []taskstore.Batch, at map[procfleet.TaskID]int) {
	at = make(map[procfleet.TaskID]int)
	for _, r := range requests {
		if len(r.Results) == 0 {
			continue
		}
		n, known := at[r.Task]
		if !known {
			n = len(batches)
			at[r.Task] = n
			batches = append(batches, taskstore.Batch{Task: r.Task})
		}
		batches[n].Results = append(batches[n].Results, r.Results...)
	}
	return batches, at
}

// decodeResults decodes a message without verifying its host.
func decodeResults(msg *nats.Msg) (*agentlink.Request, error) {
	var message agentproto.Results
	if err := agentproto.Decode(msg.Data, agentproto.TypeResults, &message); err != nil {
		return nil, err
	}
	id, err := procfleet.ParseTaskID(message.Task)
	if err != nil {
		return nil, err
	}
	host, err := agentlink.ParseHost(message.Host, msg.Subject)
	if err != nil {
		return nil, err
	}
	r := &agentlink.Request{
		Msg: msg, ID: message.ID, Host: host,
		Task: id, Results: make([]procfleet.Result, len(message.Results)),
	}
	for i := range message.Results {
		if message.Results[i].Item < 0 {
			return nil, fmt.Errorf("result of item %d of task %s", message.Results[i].Item, id)
		}
		r.Results[i] = agentlink.ResultOf(&message.Results[i])
	}
	return r, nil
}
