// Package dispatcher accepts operations and answers queries about tasks. It decodes
// a published shape, stores the task, queues its chunks, returns the task's id, and
// reads the task store for queries. It has no state of its own, so any number of
// dispatchers may run.
//
// An HTTP call passes http.go (routes), exchange.go (authentication, body, errors)
// and endpoints.go (the list of endpoints, each with its authorizer). An operation
// from NATS passes delivery.go instead. submit.go accepts both, and knows neither
// HTTP nor JSON. Package dialect has the shapes, package auth the callers.
package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/semaphore"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/auth"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/dispatcher/webhook"
	"github.com/procfleet/procfleet/internal/loopback"
	"github.com/procfleet/procfleet/internal/peercred"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/web"
)

// Store is the part of a task store that a dispatcher uses.
type Store interface {
	taskstore.Acceptance
	taskstore.Control
	EndHold(ctx context.Context, id procfleet.TaskID, kind procfleet.HoldKind, failures, seq int) (procfleet.Task, error)
	LinkUndo(ctx context.Context, id, undo procfleet.TaskID) (procfleet.Task, error)
	PreviousSpecs(ctx context.Context, id procfleet.TaskID, chunk int) ([]taskstore.PreviousSpecs, error)
	taskstore.Queries
	taskstore.Clock
	catalog.Registrations
	catalog.Groups
	catalog.HostLabels
	catalog.Freezes
	catalog.Policies
	catalog.Schedules
	catalog.Webhooks
	catalog.Templates
	catalog.Topologies
	Reported(ctx context.Context, hosts []procfleet.Host) ([]catalog.Report, error)
	Entries(ctx context.Context, ps []catalog.Process) ([]catalog.Entry, error)
	EntryPage(ctx context.Context, namespace string, start, limit int) (page []catalog.Entry, total int, err error)
	HostPage(ctx context.Context, after procfleet.Host, limit int) ([]taskstore.Presence, error)
	Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error)
	Resolve(ctx context.Context, agentIDs []string) ([]procfleet.Host, error)
	Claimants(ctx context.Context, agentIDs []string) ([][]procfleet.Host, error)
	Bind(ctx context.Context, bs []taskstore.AgentBinding) error
	Revisit(ctx context.Context, next ...taskstore.NextVisit) error
	Undone(ctx context.Context, id procfleet.TaskID) ([]taskstore.UndoneChunk, error)
	Republished(ctx context.Context, id procfleet.TaskID, chunk int, sequence uint64) error
	Due(ctx context.Context, shard, limit int) ([]taskstore.Visit, error)
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (held bool, err error)
	Release(ctx context.Context, name, holder string) error
}

// Dispatcher serves the published APIs.
type Dispatcher struct {
	cfg           Config
	log           logrus.FieldLogger
	handler       http.Handler
	watches       *watches
	workers       *workers
	console       *web.Console // nil with Config.NoConsole
	marks         *marks
	intake        *intake // nil without Config.Submissions
	firing        *firing
	webhooks      *webhook.Deliverer // nil without Config.TaskFeed
	authenticator *auth.Authenticator
}

// New returns a dispatcher that stores tasks in store and queues their chunks on queue.
// It applies [Config.WithDefaults] and returns an error for an invalid cfg.
func New(cfg Config, store Store, queue Queue) (*Dispatcher, error) {
	return newWithDialects(dialect.All(), cfg, store, queue)
}

// newWithDialects is [New] with the given dialects.
func newWithDialects(dialects []dialect.Dialect, cfg Config, store Store, queue Queue) (*Dispatcher, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	logger := cfg.Log.WithField("component", "dispatcher")
	metrics, err := newMetrics(cfg.Meter)
	if err != nil {
		return nil, err
	}
	authenticator, err := auth.New(&auth.Config{
		AppsFile: cfg.AppsFile, LoginURL: cfg.LoginURL, LoginTLS: cfg.LoginTLS, TrustedESB: cfg.TrustedESB, Meter: cfg.Meter,
	})
	if err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	a := &api{
		cfg:       cfg,
		log:       logger,
		submitter: newSubmitter(store, &instrumentedQueue{queue, metrics, cfg.Tracer}, cfg),
		store:     store,
		metrics:   metrics,
		watches:   newWatches(&cfg, store, metrics, logger),
		bodies:    newBodies(&cfg.Limits),

		unauthenticated: semaphore.NewWeighted(cfg.Limits.UnauthenticatedBodies),
		authenticator:   authenticator,
	}
	a.sender = webhook.NewSender(cfg.Webhooks, cfg.WebhookTLS)
	handler, err := a.handler(dialects)
	if err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	d := &Dispatcher{cfg: cfg, log: logger, handler: handler, watches: a.watches, workers: &a.workers, console: a.console, marks: a.submitter.marks, authenticator: authenticator, firing: newFiring(a, dialects)}
	if cfg.TaskFeed != nil {
		d.webhooks = newWebhooks(a)
	}
	if cfg.Submissions != nil {
		if d.intake, err = newIntake(a, store, dialects); err != nil {
			return nil, fmt.Errorf("dispatcher: %w", err)
		}
	}
	return d, nil
}

// Handler returns the HTTP handler of all paths. It does not listen.
func (d *Dispatcher) Handler() http.Handler { return d.handler }

// Run listens and serves until ctx ends. Then it accepts no more connections and
// submissions, ends the streams of watchers, and waits for the requests in progress, at
// most for Timeouts.Drain. It returns nil after an orderly end. Call it only once.
func (d *Dispatcher) Run(ctx context.Context) error {
	listener, err := d.listener(ctx)
	if err != nil {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	server := d.server()
	var background sync.WaitGroup
	defer background.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if d.intake != nil {
		background.Go(func() { d.intake.Run(ctx, d.intake.handle) })
	}
	background.Go(func() { d.authenticator.Watch(ctx, d.log) })
	background.Go(func() { d.firing.run(ctx) })
	if d.cfg.Broker != nil {
		background.Go(func() {
			if err := d.workers.follow(ctx, d.cfg.Broker); err != nil {
				d.log.WithError(err).Error("workers not followed")
			}
		})
	}
	if d.webhooks != nil {
		background.Go(func() { d.webhooks.Run(ctx) })
	}
	listeners := []net.Listener{listener}
	if d.cfg.Socket != nil {
		listeners = append(listeners, d.cfg.Socket)
	}
	served := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { served <- server.Serve(l) }()
	}
	d.log.WithField("address", listener.Addr().String()).Info("listening")
	if d.cfg.Listening != nil {
		d.cfg.Listening(listener.Addr())
	}
	select {
	case err := <-served:
		return fmt.Errorf("serve HTTP: %w", err)
	case <-ctx.Done():
	}
	err = d.drain(ctx, server)
	for range listeners {
		if last := <-served; !errors.Is(last, http.ErrServerClosed) {
			err = errors.Join(err, fmt.Errorf("serve HTTP: %w", last))
		}
	}
	return err
}

func (d *Dispatcher) listener(ctx context.Context) (net.Listener, error) {
	if d.cfg.Listener != nil {
		return d.cfg.Listener, nil
	}
	if path, is := strings.CutPrefix(d.cfg.Listen, unixSocket); is {
		return new(net.ListenConfig).Listen(ctx, "unix", path)
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", d.cfg.Listen)
}

func (d *Dispatcher) server() *http.Server {
	handler := d.handler
	if d.cfg.onlyThisMachine() {
		handler = loopback.OnlyNames(handler)
	}
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: d.cfg.Timeouts.Header,
		ReadTimeout:       d.cfg.Timeouts.Read,
		WriteTimeout:      d.cfg.Timeouts.Write,
		IdleTimeout:       d.cfg.Timeouts.Idle,
		MaxHeaderBytes:    128 << 10,
		ErrorLog:          log.New(connectionErrors{d.log}, "", 0),
	}
	switch {
	case d.cfg.onlyOwnAccount() && peercred.Supported:
		server.ConnContext = auth.Identify
	case d.cfg.onlyOwnAccount():
		d.log.Warn("local callers not authenticated here, use --apps")
	}
	return server
}

// connectionErrors logs the errors that net/http reports for single connections at
// debug level: callers cause them, and the operator need not act.
type connectionErrors struct{ log logrus.FieldLogger }

func (c connectionErrors) Write(line []byte) (int, error) {
	c.log.WithField("error", strings.TrimSpace(string(line))).Debug("HTTP connection failed")
	return len(line), nil
}

// drain shuts the server down and closes the connections of requests that last longer
// than Timeouts.Drain.
func (d *Dispatcher) drain(ctx context.Context, server *http.Server) error {
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.cfg.Timeouts.Drain)
	defer cancel()
	d.watches.stop()
	if d.console != nil {
		d.console.Stop()
		defer d.console.Wait()
	}
	err := server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		d.log.WithField("elapsed_ms", time.Since(start).Milliseconds()).Warn("requests aborted at the drain timeout")
		err = server.Close()
	}
	d.watches.wait()
	d.marks.wait()
	if err != nil {
		return fmt.Errorf("stop serving HTTP: %w", err)
	}
	return nil
}
