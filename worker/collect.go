package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/taskstore"
)

// collector stores the results that agents of one lane send, one call for a
// batch, and replies to the agents when the store has them.
type collector struct {
	*intake
	lane     string
	recorder *recorder
	owners   *owners
	timing   *Timing
	max      int // messages in a batch
	reached  func(string)
	traces   *resultTrace
}

// maxCollectBytes bounds the messages of a batch.
const maxCollectBytes = 8 << 20

// newCollector completes a collector: its intake has what all intakes need.
func newCollector(c collector) *collector {
	c.name = "results_" + c.lane
	c.open, c.keep = c.openResults, c.collect
	return &c
}

// inbox holds small tasks and big ones apart, so that neither waits for the
// other. A message has some 400 bytes for each result.
func (c *collector) inbox() *inbox {
	return &inbox{
		conn: c.conn, subject: agentproto.ResultsOfLane(c.lane), name: c.name, log: c.log, metrics: c.metrics,
		room: 16 << 10, roomBytes: 32 << 20, batch: c.max, batchBytes: maxCollectBytes,
		take: c.take, overflow: c.overflow, refuses: c.gate.refuses,
	}
}

// openResults decodes and verifies a message.
func (c *collector) openResults(msg *nats.Msg) *request {
	var r *request
	err := guarded(func() (err error) {
		r, err = decodeResults(msg)
		return err
	})
	if err != nil {
		c.log.WithError(err).WithField("subject", msg.Subject).Error("results dropped")
		c.metrics.drop(droppedUnread)
		return nil
	}
	if c.believer.believe(msg.Header, r.host, &fleetkey.Message{Purpose: agentproto.TypeResults, Body: msg.Data}) != nil {
		return nil
	}
	c.believer.keepHeldAgentIDs(msg.Header, r.host, r.results)
	return r
}

// collect stores a batch and replies to it. An error says that the store is
// unavailable; left are the requests that it does not have then.
func (c *collector) collect(ctx context.Context, requests []*request) (left []*request, err error) {
	if len(requests) == 0 {
		return nil, nil
	}
	c.reached(PointCollecting)
	err = c.store(ctx, requests)
	if err == nil {
		return nil, nil
	}
	if c.unavailable(ctx, err) {
		return requests, err
	}
	// The store is there and refuses the batch: find out which message it is.
	c.log.WithError(err).WithField("messages", len(requests)).Error("result batch not stored, retrying one by one")
	for i, r := range requests {
		err := c.store(ctx, []*request{r})
		if c.unavailable(ctx, err) {
			return requests[i:], err
		}
		if err != nil {
			c.log.WithError(err).WithFields(logrus.Fields{"host": r.host.String(), "task": r.task}).Error("results refused by the store")
			c.metrics.drop(droppedUnstored)
			r.refused = true
			c.reply(r, &agentproto.Receipt{Task: string(r.task), RetryAfterMS: retryRefused.Milliseconds()})
		}
	}
	return nil, nil
}

// unavailable reports whether an error says nothing about the messages.
func (c *collector) unavailable(ctx context.Context, err error) bool {
	return err != nil && (storeAway(err) || ctx.Err() != nil)
}

// store records requests in one attempt and replies to them. A panic over them
// is an error.
func (c *collector) store(ctx context.Context, requests []*request) error {
	began := time.Now()
	return guarded(func() error {
		callCtx, cancel := context.WithTimeoutCause(ctx, c.timing.beforeAgentsRepeat(), errStoreSlow)
		defer cancel()
		if err := c.keepOwn(callCtx, requests); err != nil {
			return err
		}
		batches, at := group(requests)
		var recorded []taskstore.Recorded
		if len(batches) > 0 {
			var err error
			if recorded, err = c.recorder.attempt(callCtx, batches); err != nil {
				return err
			}
		}
		c.reached(PointCollected)
		for _, r := range requests {
			n, some := at[r.task]
			c.reply(r, receiptOfResults(r, some && recorded[n].Known))
		}
		c.metrics.collected(ctx, batches, c.clock.now())
		c.traces.recorded(ctx, began, requests) // may read tasks, for which no receipt waits
		return nil
	})
}

// receiptOfResults says what the store has of a request's items.
func receiptOfResults(r *request, known bool) *agentproto.Receipt {
	receipt := &agentproto.Receipt{Task: string(r.task), Rejected: r.foreign}
	to := &receipt.Stored
	if !known {
		to = &receipt.Rejected
	}
	for i := range r.results {
		*to = append(*to, r.results[i].Item)
	}
	return receipt
}

// group sorts results by task, and returns the index of each task's batch.
func group(requests []*request) (batches []taskstore.Batch, at map[procfleet.TaskID]int) {
	at = make(map[procfleet.TaskID]int)
	for _, r := range requests {
		if len(r.results) == 0 {
			continue
		}
		n, known := at[r.task]
		if !known {
			n = len(batches)
			at[r.task] = n
			batches = append(batches, taskstore.Batch{Task: r.task})
		}
		batches[n].Results = append(batches[n].Results, r.results...)
	}
	return batches, at
}

// decodeResults reads a message, which says that it is from the agent of a host.
func decodeResults(msg *nats.Msg) (*request, error) {
	var message agentproto.Results
	if err := agentproto.Decode(msg.Data, agentproto.TypeResults, &message); err != nil {
		return nil, err
	}
	id, err := procfleet.ParseTaskID(message.Task)
	if err != nil {
		return nil, err
	}
	host, err := hostFromWire(message.Host, msg.Subject)
	if err != nil {
		return nil, err
	}
	r := &request{
		msg: msg, kind: agentproto.TypeResults, id: message.ID, host: host, receipt: message.Receipt,
		task: id, results: make([]procfleet.Result, len(message.Results)),
	}
	for i := range message.Results {
		if message.Results[i].Item < 0 {
			return nil, fmt.Errorf("result of item %d of task %s", message.Results[i].Item, id)
		}
		r.results[i] = agentResult(&message.Results[i])
	}
	return r, nil
}
