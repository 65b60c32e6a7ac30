package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/tracecontext"
)

// Bounds of one message of results.
const (
	resultsPerMessage = 256
	resultsBytes      = 512 << 10
)

// reporter sends results to workers until they are acknowledged. It queues only ids and
// reads the results from the journal, so that a long outage needs little memory.
type reporter struct {
	*requester

	journal *journal.Journal
	crash   func(point string)

	added chan struct{} // holds a token when a lane with results has no sender

	mu     sync.Mutex
	lanes  map[string]*lane // lanes with results
	queued map[journal.ID]struct{}
}

// lane is the queue of one lane. Each lane has its own sender with one request in
// flight, so that big tasks do not delay small ones.
type lane struct {
	name    string
	retries *backOff
	sending bool // true while a sender runs
	groups  map[groupKey][]journal.ID
	order   []groupKey // keys of groups, the next one to send first
}

// groupKey groups the results of a lane that may be sent in one message.
type groupKey struct{ task, trace string }

func newReporter(workers *requester, j *journal.Journal, crash func(point string)) *reporter {
	return &reporter{
		requester: workers, journal: j, crash: crash,
		added: make(chan struct{}, 1), lanes: map[string]*lane{}, queued: map[journal.ID]struct{}{},
	}
}

// add queues the result of a finished operation, unless it is already queued. It does not
// block.
func (r *reporter) add(id journal.ID, name, trace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.queued[id]; ok {
		return
	}
	r.queued[id] = struct{}{}
	r.enqueue(name, groupKey{task: id.Task, trace: trace}, id)
}

// enqueue appends ids to the queue of a lane. The caller holds r.mu.
func (r *reporter) enqueue(name string, key groupKey, ids ...journal.ID) {
	l := r.lanes[name]
	if l == nil {
		l = &lane{name: name, retries: newBackOff(), groups: map[groupKey][]journal.ID{}}
		r.lanes[name] = l
	}
	l.enqueue(key, ids...)
	if !l.sending {
		signal(r.added)
	}
}

// delay appends results to the queue of a lane again after a pause. If the agent stops
// before, they are sent after its next start.
func (r *reporter) delay(name string, key groupKey, ids []journal.ID, pause time.Duration) {
	time.AfterFunc(pause, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.enqueue(name, key, ids...)
	})
}

// enqueue appends ids to the queue. The caller holds the reporter's mu.
func (l *lane) enqueue(key groupKey, ids ...journal.ID) {
	if len(ids) == 0 {
		return
	}
	if len(l.groups[key]) == 0 {
		l.order = append(l.order, key)
	}
	l.groups[key] = append(l.groups[key], ids...)
}

// retryNow ends the pauses after failures. Call it when the connection is back.
func (r *reporter) retryNow() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lanes {
		l.retries.end()
	}
}

// signal sends a token to a channel of capacity 1, unless the channel has one.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (r *reporter) waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queued)
}

// run sends the queued results until ctx ends.
func (r *reporter) run(ctx context.Context) {
	var senders sync.WaitGroup
	defer senders.Wait()
	for ctx.Err() == nil {
		r.startSenders(ctx, &senders)
		select {
		case <-ctx.Done():
		case <-r.added:
		}
	}
}

// flush sends the queued results. Results that remain when ctx ends are sent after the next
// start. Call it only after run has returned.
func (r *reporter) flush(ctx context.Context) {
	r.retryNow() // a pause may outlast ctx
	var senders sync.WaitGroup
	r.startSenders(ctx, &senders)
	senders.Wait()
}

func (r *reporter) startSenders(ctx context.Context, senders *sync.WaitGroup) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lanes {
		if !l.sending {
			l.sending = true
			senders.Go(func() { r.sendAll(ctx, l) })
		}
	}
}

// sendAll sends the results of a lane until its queue is empty or ctx ends.
func (r *reporter) sendAll(ctx context.Context, l *lane) {
	for l.retries.wait(ctx) {
		key, ids := r.next(l)
		if len(ids) == 0 {
			return
		}
		r.send(ctx, l, key, ids)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l.sending = false
}

// next removes the results of one message from a lane's queue and returns them. It removes
// an empty lane from the reporter; the next result creates a new lane.
func (r *reporter) next(l *lane) (groupKey, []journal.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(l.order) == 0 {
		delete(r.lanes, l.name)
		return groupKey{}, nil
	}
	key := l.order[0]
	l.order = l.order[1:]
	ids := l.groups[key]
	delete(l.groups, key)
	n := min(len(ids), resultsPerMessage)
	l.enqueue(key, ids[n:]...)
	return key, ids[:n:n]
}

// send sends one message of results. It acknowledges in the journal the results that the
// receipt names, and queues the others again.
func (r *reporter) send(ctx context.Context, l *lane, key groupKey, ids []journal.ID) {
	results, covered, err := r.collect(ids)
	receipt := &agentproto.Receipt{}
	if err == nil && len(results) > 0 {
		receipt, err = r.requestReceipt(ctx, l.name, key, results)
	}
	if receipt.RetryAfter() > 0 {
		receipt.Stored, receipt.Rejected = nil, nil // nothing was stored
	}
	done, again := sortByReceipt(ids[:covered], results, receipt)
	refused := receipt.RetryAfter() > 0 && receipt.Task == key.task
	if refused {
		r.delay(l.name, key, again, receipt.RetryAfter())
		again = nil
	}
	r.mu.Lock()
	l.enqueue(key, append(again, ids[covered:]...)...)
	r.mu.Unlock()
	r.forget(key.task, done)
	switch pause := receipt.RetryAfter(); {
	case refused:
		r.log.WithFields(logrus.Fields{"lane": l.name, "task": key.task, "retry_after": pause}).Warn("results rejected by the task store, retrying later")
		l.retries.succeeded()
	case pause > 0:
		r.log.WithFields(logrus.Fields{"lane": l.name, "retry_after": pause}).Debug("workers busy, results queued")
		l.retries.busy(pause)
	case err != nil:
		r.backOff(ctx, l, err)
	case len(done) == 0:
		r.backOff(ctx, l, errors.New("the receipt names none of the items"))
	case l.retries.succeeded():
		r.log.WithField("lane", l.name).Info("result acknowledgments resumed")
	}
}

// collect reads results from the journal, in the order of ids, until a message is full.
// covered is the number of ids read, including ids without a stored result.
func (r *reporter) collect(ids []journal.ID) (results []agentproto.Result, covered int, err error) {
	found := r.journal.Results(ids)
	size := 0
	for i, id := range ids {
		result, ok := found[id]
		if !ok {
			continue
		}
		r.clock.correct(&result)
		data, err := json.Marshal(&result)
		if err != nil {
			return nil, 0, fmt.Errorf("encode result %s/%d: %w", id.Task, id.Item, err)
		}
		if size += len(data); size > resultsBytes && len(results) > 0 {
			return results, i, nil
		}
		results = append(results, result)
	}
	return results, len(ids), nil
}

// requestReceipt sends results of one task and returns the receipt.
func (r *reporter) requestReceipt(ctx context.Context, lane string, key groupKey, results []agentproto.Result) (*agentproto.Receipt, error) {
	m := &agentproto.Results{
		Header: newHeader(agentproto.TypeResults), Task: key.task, Host: r.host, Instance: r.instance, Results: results,
	}
	var receipt agentproto.Receipt
	_, err := r.request(tracecontext.FromText(ctx, key.trace), agentproto.ResultSubject(lane, r.cloud), m, agentproto.TypeReceipt, &receipt)
	if err == nil && receipt.RetryAfter() == 0 && receipt.Task != key.task {
		err = fmt.Errorf("the receipt is for task %q, not %q", receipt.Task, key.task)
	}
	if err != nil {
		return &agentproto.Receipt{}, fmt.Errorf("send %d results of task %s: %w", len(results), key.task, err)
	}
	if len(receipt.Rejected) > 0 {
		r.log.WithFields(logrus.Fields{"task": key.task, "items": receipt.Rejected}).Warn("results rejected by workers")
	}
	return &receipt, nil
}

// sortByReceipt splits ids: done are the ids without a stored result or named by the
// receipt, again are the ids whose results have to be sent again.
func sortByReceipt(ids []journal.ID, sent []agentproto.Result, receipt *agentproto.Receipt) (done, again []journal.ID) {
	open := make(map[int]bool, len(sent))
	for i := range sent {
		open[sent[i].Item] = true
	}
	for _, item := range slices.Concat(receipt.Stored, receipt.Rejected) {
		delete(open, item)
	}
	for _, id := range ids {
		if open[id.Item] {
			again = append(again, id)
		} else {
			done = append(done, id)
		}
	}
	return done, again
}

// forget removes results from the queue and acknowledges them in the journal.
func (r *reporter) forget(task string, ids []journal.ID) {
	if len(ids) == 0 {
		return
	}
	r.crash(CrashAfterReceipt)
	if err := r.journal.Acknowledge(ids); err != nil {
		// These results are sent again after the next start, which changes nothing.
		r.log.WithError(err).WithField("task", task).Warn("acknowledgment not written to the journal")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		delete(r.queued, id)
	}
}

// backOff logs a failure and begins a pause.
func (r *reporter) backOff(ctx context.Context, l *lane, cause error) {
	if ctx.Err() != nil {
		return
	}
	entry := r.log.WithError(cause).WithFields(logrus.Fields{"lane": l.name, "waiting": r.waiting()})
	if l.retries.failures == 0 {
		entry.Warn("results not acknowledged, retrying")
	} else {
		entry.Debug("results still not acknowledged")
	}
	l.retries.failed()
}
