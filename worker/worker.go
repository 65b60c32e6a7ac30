// Package worker is the role between the task store and the agents. A worker is
// stateless; any number share the load. This package configures and connects its parts:
//
//   - [deliver] pulls chunk references from the broker, begins the chunks in the
//     store, and requests that the agents of their hosts accept the items;
//   - [collect] stores the results that agents send, in batches, and replies with
//     receipts;
//   - [sweep] repairs tasks after lost messages and ends overdue tasks;
//   - [notify] sends completion notifications: an event and a callback;
//   - [hosts] stores presence and process reports of agents, replies to their
//     settings requests, and publishes their events.
//
// # One chunk
//
//	reference ──Begin──► open ──request to every host──► accepted | refused | no responders | no reply
//	                      │                                 │           │           │            │
//	                      └─ not open: ack, drop         delivered   result       grace    request again
//	                                                                                       until accept_before
//
// When every item is accepted, refused or recorded, the worker calls Record, then
// Delivered with done, then acknowledges. If a worker dies in between, another worker
// begins the chunk again; the store and the agents' journals make the repeat harmless.
//
// Memory is bounded by the limits of chunks and items in flight and parked, and by the
// limits of the inboxes: the sender of a message beyond them gets a receipt with the
// delay before a resend. A cloud area whose hosts do not reply can use only a share of
// the limit of parked chunks.
package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/collect"
	"github.com/procfleet/procfleet/worker/deliver"
	"github.com/procfleet/procfleet/worker/hosts"
	"github.com/procfleet/procfleet/worker/metrics"
	"github.com/procfleet/procfleet/worker/notify"
	"github.com/procfleet/procfleet/worker/release"
	"github.com/procfleet/procfleet/worker/storecall"
	"github.com/procfleet/procfleet/worker/sweep"
)

// Worker delivers chunks, collects results and sweeps. [New] returns one.
type Worker struct {
	cfg     Config
	link    *agentlink.Link
	inboxes []*agentlink.Inbox
	hints   *collect.Hints
	notify  *notify.Notifier
	release *release.Releaser
	deliver *deliver.Deliverer
	sweep   *sweep.Sweeper
	log     logrus.FieldLogger
}

// New returns a worker that is inactive until [Worker.Run].
func New(cfg Config) (*Worker, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	m, err := metrics.New(cfg.Meter)
	if err != nil {
		return nil, fmt.Errorf("worker: metrics: %w", err)
	}
	log := cfg.Log.WithField("component", "worker")
	calls := storecall.Policy{RetryMin: cfg.Timing.RetryMin, RetryMax: cfg.Timing.RetryMax, Timeout: cfg.Timing.StoreCall}
	outage := &storecall.Outage{Log: log}
	w := &Worker{cfg: cfg, hints: collect.NewHints(cfg.Bus.Hint), log: log}
	w.link = &agentlink.Link{
		Conn: cfg.Conn, Bus: cfg.Bus, Metrics: m, Calls: calls, Tracer: cfg.Tracer, AgentTracer: cfg.AgentTracer, Reached: cfg.Reached,
		Requester: agentlink.NewRequester(cfg.Conn, func() { m.Troubles.Add(1, metrics.TroubleOverflowed) }),
		Auth:      &agentlink.Authenticator{Keys: cfg.Keys, Metrics: m, Log: log},
		Clock:     &storecall.Clock{Store: cfg.Store, Policy: calls, Every: cfg.Timing.ClockSync, Outage: outage, Log: log},
	}
	if err := w.connect(outage); err != nil {
		return nil, fmt.Errorf("worker: metrics: %w", err)
	}
	return w, nil
}

// connect creates the parts of the worker and passes to each its dependencies.
func (w *Worker) connect(outage *storecall.Outage) (err error) {
	cfg, timing, limits := &w.cfg, &w.cfg.Timing, &w.cfg.Limits
	w.notify, err = notify.New(notify.Config{
		Store: cfg.Store, Bus: cfg.Bus, Audit: cfg.Audit, Clock: w.link.Clock, Metrics: w.link.Metrics, Tracer: cfg.Tracer,
		BeforeEvent: w.beforeEvent,
		Receivers:   cfg.Receivers, CallbackTLS: cfg.CallbackTLS, Callback: timing.Callback, CallbackFor: timing.CallbackFor,
		RetryMin: timing.Sweep.RevisitMin, RetryMax: timing.Sweep.RevisitMax,
		Reached: cfg.Reached, Log: w.log.WithField("component", "worker.notify"),
	})
	if err != nil {
		return err
	}
	w.release = release.New(release.Config{Link: w.link, Store: cfg.Store, Registrar: cfg.Store, Audit: cfg.Audit, Changed: w.notify.Soon, Log: w.log.WithField("component", "worker.release")})
	rec := collect.NewRecorder(cfg.Store, w.link.Calls, w.notify, w.release, w.hints, w.link.Metrics)
	claims := &agentlink.IDClaims{Link: w.link, Log: w.log.WithField("component", "worker.agentid")}
	w.deliver = deliver.New(deliver.Config{
		Link: w.link, Store: cfg.Store, Claims: claims, Recorder: rec, Rollouts: w.release, Timing: timing.Deliver, Pull: timing.Pull,
		SmallChunks: limits.SmallChunks, BigChunks: limits.BigChunks, Items: limits.Items, Parked: limits.Parked, Log: w.log,
	})
	w.sweep = sweep.New(sweep.Config{
		Link: w.link, ID: cfg.ID, Store: cfg.Store, Registrar: cfg.Store, Audit: cfg.Audit, Recorder: rec, Notifier: w.notify, Releaser: w.release,
		Timing: timing.Sweep, Tasks: limits.SweepTasks, Items: limits.SweepItems, Outage: outage, Log: w.log.WithField("component", "worker.sweep"),
	})
	w.inboxes = collect.Inboxes(collect.Config{
		Link: w.link, Store: cfg.Store, Recorder: rec, Max: limits.CollectMax, Log: w.log.WithField("component", "worker.collect"),
	})
	w.inboxes = append(w.inboxes, hosts.Inboxes(hosts.Config{
		Link: w.link, Claims: claims, Store: cfg.Store, Catalog: cfg.Store, Log: w.log,
		PresenceLinger: timing.PresenceLinger, ReportLinger: timing.ReportLinger,
	})...)
	return agentlink.ObserveInboxes(w.link.Metrics, w.inboxes)
}

// beforeEvent completes the end of a task.
func (w *Worker) beforeEvent(ctx context.Context, task *procfleet.Task) error {
	if err := (&sweep.Registrations{Store: w.cfg.Store, Registrar: w.cfg.Store}).End(ctx, task); err != nil {
		return err
	}
	return w.release.UndoFailed(ctx, task)
}

// Ready reports whether the worker is connected and pulls from every lane.
func (w *Worker) Ready() bool { return w.cfg.Conn.IsConnected() && w.deliver.Ready() }

// errDrainTimeout is the cause if work is unfinished after Timing.Drain.
var errDrainTimeout = errors.New("worker: drain timeout reached before all chunks and messages were finished")

// Run works until ctx ends. Run then stops pulling, which takes up to Timing.Pull for
// open pull requests, finishes its chunks and messages within Timing.Drain, returns
// unfinished chunks to the queue, and returns nil. Run retries while the broker or the
// store is unavailable, and pulls nothing before it has read the store's clock. Call it
// once.
func (w *Worker) Run(ctx context.Context) error {
	if w.link.Clock.Start(ctx) != nil {
		return nil // stopped before the store was available
	}
	if err := w.link.Requester.Start(); err != nil {
		return err
	}
	defer w.link.Requester.Stop()
	for _, in := range w.inboxes {
		if err := in.Start(); err != nil {
			return err
		}
		defer in.Stop() // no effect if the inbox's Run already stopped it
	}

	// Pulling ends with ctx, but pulled chunks and messages are processed until work
	// ends.
	work, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abandon(nil)
	var services sync.WaitGroup
	defer services.Wait()
	over, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	readQueues := func(ctx context.Context) { w.link.Metrics.Queues.Run(ctx, w.cfg.Bus) }
	for _, service := range []func(context.Context){w.link.Clock.Run, readQueues} {
		services.Go(func() { service(over) })
	}
	services.Go(func() { w.release.Run(over) })
	services.Go(func() { w.announce(ctx) })
	services.Go(func() {
		select {
		case <-ctx.Done():
		case <-over.Done():
		}
		if storecall.Pause(over, w.cfg.Timing.Drain) == nil {
			abandon(errDrainTimeout)
		}
	})
	w.work(ctx, work)
	w.hints.Flush()
	return nil
}

// work pulls until ctx ends, and returns when all pulled chunks and messages are
// finished or the context work has ended.
func (w *Worker) work(ctx, work context.Context) {
	var working, notifying sync.WaitGroup
	nothingMore := make(chan struct{})
	if stop, err := w.cfg.Bus.FollowHolds("notify", w.notify.Soon); err != nil {
		w.log.WithError(err).Warn("events of pauses left to the sweep")
	} else {
		defer stop()
	}
	for range w.cfg.Limits.Notifiers {
		notifying.Go(func() { w.notify.Run(work, nothingMore) })
	}
	for _, in := range w.inboxes {
		working.Go(func() { in.Run(ctx, work) })
	}
	working.Go(func() { w.sweep.Run(ctx, work) })
	working.Go(func() { w.deliver.Run(ctx, work) })
	working.Wait()
	close(nothingMore)
	notifying.Wait()
	w.notify.Close()
}
