package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/taskstore"
)

// collector puts what agents publish into the store, one call for a batch,
// and acknowledges only what the store has.
type collector struct {
	recorder *recorder
	believer *believer
	owners   *owners
	held     *held
	clock    *clock
	metrics  *metrics
	timing   *Timing
	max      int // messages in a batch
	reached  func(string)
	traces   *resultTrace
	log      logrus.FieldLogger
}

// maxCollectBytes bounds what one request for results brings.
const maxCollectBytes = 8 << 20

// pull asks for messages once and works on them batch by batch as they come.
// It goes on when its context ends, as fetch does; that of work outlives it.
func (c *collector) pull(_, work context.Context, consumer jetstream.Consumer) error {
	arriving, err := consumer.Fetch(c.max, jetstream.FetchMaxWait(c.timing.Pull), jetstream.FetchMaxBytes(maxCollectBytes))
	if err != nil {
		return err
	}
	for {
		batch := c.gather(arriving.Messages())
		if len(batch) == 0 {
			return ending(arriving)
		}
		if err := c.collect(work, batch); err != nil {
			return err
		}
	}
}

// gather waits for a message and returns it with what else has arrived; none
// if nothing more will. A lone result is stored at once, and while a batch is
// being stored the next one gathers by itself.
func (c *collector) gather(arriving <-chan jetstream.Msg) []jetstream.Msg {
	first, open := <-arriving
	if !open {
		return nil
	}
	batch := []jetstream.Msg{first}
	for len(batch) < c.max {
		select {
		case msg, open := <-arriving:
			if !open {
				return batch
			}
			batch = append(batch, msg)
		default:
			return batch
		}
	}
	return batch
}

// collect stores a batch and acknowledges it. An error leaves its messages to
// come again, to whichever worker asks next.
func (c *collector) collect(ctx context.Context, msgs []jetstream.Msg) error {
	c.held.add(msgs...)
	defer c.held.remove(msgs...)
	c.reached(PointCollecting)
	err := c.store(ctx, msgs)
	if err == nil || storeAway(err) || ctx.Err() != nil {
		return err
	}
	// The store is there and does not take it: find out which message it is.
	c.log.WithError(err).WithField("messages", len(msgs)).Error("batch of results not stored, trying one by one")
	for _, msg := range msgs {
		err := c.store(ctx, []jetstream.Msg{msg})
		if storeAway(err) || ctx.Err() != nil {
			return err
		}
		if err != nil {
			c.putOff(msg, err)
		}
	}
	return nil
}

// store records what the messages say and acknowledges them. A panic over
// them is an error.
func (c *collector) store(ctx context.Context, msgs []jetstream.Msg) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	taken := time.Now()
	good := c.decode(msgs)
	if err := c.keepOwn(ctx, good); err != nil {
		return err
	}
	batches := group(good)
	if len(batches) > 0 {
		if _, err := c.recorder.record(ctx, batches...); err != nil {
			return err
		}
	}
	c.metrics.collected(ctx, batches, c.clock.now())
	c.traces.recorded(ctx, taken, good)
	c.reached(PointCollected)
	for i := range good {
		if err := good[i].msg.Ack(); err != nil { // they are stored; a repeat changes nothing
			c.log.WithError(err).Warn("results not acknowledged, they will come again")
			return nil
		}
	}
	return nil
}

// putOff has a message that cannot be stored come again later, and drops it
// when it came too often: the sweep ends its items.
func (c *collector) putOff(msg jetstream.Msg, cause error) {
	log := c.log.WithError(cause).WithField("subject", msg.Subject())
	answer := func() error { return msg.NakWithDelay(jitter(c.timing.RetryMax)) }
	if meta, err := msg.Metadata(); err == nil && meta.NumDelivered > maxDeliveries {
		log.Error("results dropped, they could not be stored")
		c.metrics.drop(droppedUnstored)
		answer = func() error { return msg.TermWithReason("delivered too often") }
	}
	if err := answer(); err != nil {
		log.WithField("answer", err.Error()).Warn("results not put off, they will come again")
	}
}

// arrived is one message of results.
type arrived struct {
	msg     jetstream.Msg
	task    procfleet.TaskID
	host    procfleet.Host // of the agent that sent it
	results []procfleet.Result
}

// decode reads the messages of a batch. Those that say nothing, or are not
// believed, are terminated: they would be the same next time.
func (c *collector) decode(msgs []jetstream.Msg) []arrived {
	valid := make(map[procfleet.TaskID]bool)
	good := make([]arrived, 0, len(msgs))
	for _, msg := range msgs {
		id, host, results, err := decodeResults(msg.Data(), msg.Subject(), valid)
		if err != nil {
			c.log.WithError(err).WithField("subject", msg.Subject()).Error("results dropped")
			c.metrics.drop(droppedUnread)
			c.terminate(msg, "not results")
			continue
		}
		if c.believer.believe(msg.Headers(), host, &fleetkey.Message{Purpose: agentproto.TypeResults, Body: msg.Data()}) != nil {
			c.terminate(msg, "not believed") // the sweep asks the agent for them
			continue
		}
		c.believer.keepHeldAgentIDs(msg.Headers(), host, results)
		valid[id] = true
		good = append(good, arrived{msg, id, host, results})
	}
	return good
}

// group sorts results by task.
func group(messages []arrived) (batches []taskstore.Batch) {
	at := make(map[procfleet.TaskID]int)
	for i := range messages {
		m := &messages[i]
		if len(m.results) == 0 {
			continue
		}
		n, known := at[m.task]
		if !known {
			n = len(batches)
			at[m.task] = n
			batches = append(batches, taskstore.Batch{Task: m.task})
		}
		batches[n].Results = append(batches[n].Results, m.results...)
	}
	return batches
}

func (c *collector) terminate(msg jetstream.Msg, reason string) {
	if err := msg.TermWithReason(reason); err != nil {
		c.log.WithError(err).Warn("results not terminated")
	}
}

// decodeResults reads one message, which says that it is from the agent of a
// host; ids in valid need not be checked again.
func decodeResults(data []byte, subject string, valid map[procfleet.TaskID]bool) (id procfleet.TaskID, host procfleet.Host, results []procfleet.Result, err error) {
	var message agentproto.Results
	if err := agentproto.Decode(data, agentproto.TypeResults, &message); err != nil {
		return "", host, nil, err
	}
	id = procfleet.TaskID(message.Task)
	if !valid[id] {
		if _, err := procfleet.ParseTaskID(message.Task); err != nil {
			return "", host, nil, err
		}
	}
	if host, err = hostFromWire(message.Host, subject); err != nil {
		return "", host, nil, err
	}
	results = make([]procfleet.Result, len(message.Results))
	for i := range message.Results {
		if message.Results[i].Item < 0 {
			return "", host, nil, fmt.Errorf("result of item %d of task %s", message.Results[i].Item, id)
		}
		results[i] = agentResult(&message.Results[i])
	}
	return id, host, results, nil
}
