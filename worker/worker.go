package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
)

// Worker delivers chunks, collects results and sweeps. Make one with [New].
type Worker struct {
	cfg      Config
	clock    *clock
	link     *link
	held     *held
	asker    *asker
	deliver  *deliverer
	older    *olderResults
	sweep    *sweeper
	notify   *notifier
	hints    *hints
	inboxes  []*inbox
	room     *parkingRoom
	metrics  *metrics
	believer *believer
	log      logrus.FieldLogger

	pulling atomic.Int32 // pull loops that found their consumer
}

// New returns a worker that does nothing until [Worker.Run].
func New(cfg Config) (*Worker, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	room := newParkingRoom(cfg.Limits.Parked)
	m, err := newMetrics(cfg.Meter, room)
	if err != nil {
		return nil, fmt.Errorf("worker: metrics: %w", err)
	}
	w := &Worker{cfg: cfg, room: room, metrics: m, log: cfg.Log.WithField("component", "worker")}
	w.believer = &believer{keys: cfg.Keys, metrics: m, log: w.log}
	claims := &idClaims{bus: cfg.Bus, believer: w.believer, log: w.log.WithField("component", "worker.agentid")}
	away := &outage{log: w.log}
	w.clock = &clock{store: cfg.Store, timing: &w.cfg.Timing, outage: away, log: w.log}
	claims.clock = w.clock
	w.link = &link{conn: cfg.Conn, clock: w.clock}
	w.held = newHeld()
	w.asker = newAsker(cfg.Conn, func() { m.trouble(troubleOverflowed) })
	w.notify = newNotifier(&w.cfg, w.clock, m)
	if err := w.notify.callbacks.register(cfg.Meter); err != nil {
		return nil, fmt.Errorf("worker: metrics: %w", err)
	}
	w.hints = newHints(cfg.Bus.Hint)
	rec := &recorder{store: cfg.Store, timing: &w.cfg.Timing, finished: w.notify, hints: w.hints, metrics: m}
	w.deliver = &deliverer{
		store: cfg.Store, bus: cfg.Bus, asker: w.asker, believer: w.believer, claims: claims, clock: w.clock, link: w.link, held: w.held,
		recorder: rec, metrics: m, tracer: cfg.Tracer, agents: cfg.AgentTracer, timing: &w.cfg.Timing, reached: cfg.Reached, log: w.log.WithField("component", "worker.deliver"),
	}
	w.sweep = &sweeper{
		id: cfg.ID, store: cfg.Store, bus: cfg.Bus, audit: cfg.Audit, asker: w.asker, believer: w.believer, clock: w.clock, recorder: rec, notifier: w.notify,
		metrics: m, tracer: cfg.Tracer, timing: &w.cfg.Timing, limit: cfg.Limits.SweepTasks, repairs: newRepairSlots(cfg.Limits.SweepItems), stepped: newSteppedClock(), outage: away, log: w.log.WithField("component", "worker.sweep"),
	}
	presence := &presence{
		conn: cfg.Conn, store: cfg.Store, believer: w.believer, claims: claims, clock: w.clock, timing: &w.cfg.Timing, metrics: m,
		log: w.log.WithField("component", "worker.presence"),
	}
	reports := &reports{
		conn: cfg.Conn, store: cfg.Store, believer: w.believer, clock: w.clock, timing: &w.cfg.Timing, metrics: m, log: w.log.WithField("component", "worker.reports"),
	}
	settings := &settings{
		conn: cfg.Conn, store: cfg.Store, believer: w.believer, clock: w.clock, timing: &w.cfg.Timing, metrics: m, log: w.log.WithField("component", "worker.settings"),
	}
	w.inboxes = []*inbox{presence.inbox(), reports.inbox(), settings.inbox()}
	w.takeRequests(rec)
	if err := m.inboxes(cfg.Meter, w.inboxes); err != nil {
		return nil, fmt.Errorf("worker: metrics: %w", err)
	}
	return w, nil
}

// takeRequests adds the inboxes of what agents want a receipt for.
func (w *Worker) takeRequests(rec *recorder) {
	timing := &w.cfg.Timing
	intakeOf := func(component string) *intake {
		return &intake{
			conn: w.cfg.Conn, believer: w.believer, clock: w.clock, metrics: w.metrics, gate: gate{least: timing.RetryMin, most: timing.RetryMax},
			log: w.log.WithField("component", "worker."+component),
		}
	}
	owners, traces := newOwners(w.cfg.Store), newResultTrace(&w.cfg)
	for _, lane := range []string{bus.ResultsSmall, bus.ResultsBig} {
		c := newCollector(collector{
			intake: intakeOf("collect"), lane: lane, recorder: rec, owners: owners, timing: timing, max: w.cfg.Limits.CollectMax,
			reached: w.cfg.Reached, traces: traces,
		})
		w.inboxes = append(w.inboxes, c.inbox())
		w.older = &olderResults{bus: w.cfg.Bus, collect: c, timing: timing, log: c.log}
	}
	events := newHostEvents(hostEvents{intake: intakeOf("events"), bus: w.cfg.Bus, timing: timing})
	w.inboxes = append(w.inboxes, events.inbox())
}

// pullLoops is how many consumers a worker pulls from.
func pullLoops() int32 { return int32(len(procfleet.Lanes())) } //nolint:gosec // a handful of lanes

// Ready reports whether the worker takes work: it is connected and pulls from
// every lane.
func (w *Worker) Ready() bool {
	return w.cfg.Conn.IsConnected() && w.pulling.Load() == pullLoops()
}

// errDrainTimeout is the cause when Run stops waiting for what it holds.
var errDrainTimeout = errors.New("worker: stopped before everything in hand was finished")

// Run works until ctx ends. Then it stops pulling, for which the requests
// under way take up to Timing.Pull, finishes what it holds within
// Timing.Drain, gives the rest back to the queue, and returns nil.
// While the bus or the store is away it waits for them to come back; it does
// nothing before it has read the store's clock. Run may be called once.
func (w *Worker) Run(ctx context.Context) error {
	if w.clock.first(ctx) != nil {
		return nil // stopped before there was a store
	}
	if err := w.asker.start(); err != nil {
		return err
	}
	defer w.asker.stop()
	for _, in := range w.inboxes {
		if err := in.start(); err != nil {
			return err
		}
		defer in.stop() // which run has done unless it was not reached
	}
	defer w.notify.http.CloseIdleConnections()

	// Two lifetimes: pulling ends with ctx, work on what was pulled goes on.
	work, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abandon(nil)
	var services sync.WaitGroup
	defer services.Wait()
	over, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	for _, service := range []func(context.Context){w.clock.run, w.link.run, w.held.run, w.hints.run, w.watchQueues} {
		services.Go(func() { service(over) })
	}
	services.Go(func() {
		select {
		case <-ctx.Done():
		case <-over.Done():
		}
		if pause(over, w.cfg.Timing.Drain) == nil {
			abandon(errDrainTimeout)
		}
	})
	w.work(ctx, work)
	return nil
}

func (w *Worker) watchQueues(ctx context.Context) { w.metrics.queues.watch(ctx, w.cfg.Bus) }

// work pulls until ctx ends and returns when all that was pulled is finished,
// or work has ended.
func (w *Worker) work(ctx, work context.Context) {
	var chunks, pulling, telling sync.WaitGroup
	nothingMore := make(chan struct{})
	for range w.cfg.Limits.Notifiers {
		telling.Go(func() { w.notify.run(work, nothingMore) })
	}
	l := &lanes{
		deliverer: w.deliver,
		small:     newShare(w.cfg.Limits.SmallChunks, w.cfg.Limits.SmallChunks, w.cfg.Limits.Items, w.room),
		big:       newShare(w.cfg.Limits.BigChunks, bigBusy(), w.cfg.Limits.Items, w.room),
	}
	for _, lane := range procfleet.Lanes() {
		pull := l.pullBig
		if lane == procfleet.LaneSmall {
			pull = l.pullSmall
		}
		open := func(ctx context.Context) (jetstream.Consumer, error) { return w.cfg.Bus.DeliverConsumer(ctx, lane) }
		chunks.Go(func() { w.pull(ctx, work, "deliver-"+string(lane), open, pull) })
	}
	for _, in := range w.inboxes {
		pulling.Go(func() { in.run(ctx, work) })
	}
	pulling.Go(func() { w.older.run(ctx, work) })
	pulling.Go(func() { w.sweep.run(ctx, work) })
	chunks.Wait()
	close(w.room.leave)
	pulling.Wait()
	l.deliveries.Wait()
	close(nothingMore)
	telling.Wait()
	w.notify.callbacks.calls.Wait()
}

type (
	openFunc func(context.Context) (jetstream.Consumer, error)
	// pullFunc asks a consumer once; work is the lifetime of what came.
	pullFunc func(ctx, work context.Context, consumer jetstream.Consumer) error
)

// pull opens a consumer and pulls from it until ctx ends. The name is for logs.
func (w *Worker) pull(ctx, work context.Context, name string, open openFunc, pull pullFunc) {
	var consumer jetstream.Consumer
	repeat(ctx, &w.cfg.Timing, w.log.WithField("consumer", name), func(ctx context.Context) (err error) {
		if consumer == nil {
			if consumer, err = open(ctx); err != nil {
				return err
			}
			w.held.within(consumer.CachedInfo().Config.AckWait)
			w.pulling.Add(1)
		}
		return pull(ctx, work, consumer)
	})
	if consumer != nil {
		w.pulling.Add(-1)
	}
}
