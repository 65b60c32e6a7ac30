package main

import (
	"context"
	"time"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/dispatcher"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/crashpoint"
	"github.com/procfleet/procfleet/internal/destination"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/telemetry"
	"github.com/procfleet/procfleet/worker"
)

// roleParts are the open resources of a role.
type roleParts struct {
	*backends
	process *daemon.Process
	drain   time.Duration
	traces  *telemetry.Tracing
	audits  *audit.Log
}

// open connects a role to NATS and Redis, and opens its traces and audit log. The caller
// must close the parts after the role has ended.
func (f *roleFlags) open(ctx context.Context, name string, p *daemon.Process) (*roleParts, error) {
	back, err := f.connect(ctx, name, p)
	if err != nil {
		return nil, err
	}
	return f.openParts(ctx, "procfleet-"+name, p, back)
}

// openParts opens traces and audit log in addition to the backends, which it closes after
// an error.
func (f *roleFlags) openParts(ctx context.Context, service string, p *daemon.Process, back *backends) (_ *roleParts, err error) {
	r := &roleParts{backends: back, process: p, drain: f.drain}
	if r.traces, err = f.traces.open(ctx, service, p); err == nil {
		r.audits, err = f.audits.open(back.bus, p)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *roleParts) close() {
	if r.audits != nil {
		r.audits.Close()
	}
	r.backends.close(r.process.Log)
	if r.traces != nil {
		r.traces.Close()
	}
}

// newWorker returns a worker that uses the parts.
func (r *roleParts) newWorker(limits worker.Limits, callbacks *receiverFlags, receivers destination.Policy) (*worker.Worker, error) {
	files, err := callbacks.tls.Open(r.process.Log)
	if err != nil {
		return nil, err
	}
	meter, tracer := r.process.Metrics.Meter("worker"), r.traces.Tracer("worker")
	store, err := stores.Instrument(r.store, "worker", meter, tracer)
	if err != nil {
		return nil, err
	}
	return worker.New(worker.Config{
		Version: command.Version(),
		Conn:    r.conn, Bus: r.bus, Store: store, Keys: r.keys, Audit: r.audits, CallbackTLS: files, Receivers: receivers, Log: r.process.Log,
		Meter: meter, Reached: crashpoint.FromEnv(),
		Tracer: tracer, AgentTracer: r.traces.AgentTracer(),
		Limits: limits, Timing: worker.Timing{Drain: r.drain},
	})
}

// newDispatcher returns a dispatcher that uses the parts.
func (r *roleParts) newDispatcher(cfg dispatcher.Config, f *httpFlags) (_ *dispatcher.Dispatcher, err error) {
	if cfg.LoginTLS, err = f.loginTLS.Open(r.process.Log); err != nil {
		return nil, err
	}
	if cfg.WebhookTLS, err = f.webhooks.tls.Open(r.process.Log); err != nil {
		return nil, err
	}
	cfg.Timeouts.Drain = r.drain
	cfg.ConsoleKey = r.keys().Derive("console")
	cfg.Log, cfg.Meter, cfg.Metrics = r.process.Log, r.process.Metrics.Meter("dispatcher"), r.process.Metrics.Handler()
	cfg.Tracer = r.traces.Tracer("dispatcher")
	cfg.Hints, cfg.Agents, cfg.Events, cfg.TaskFeed, cfg.AuditLog, cfg.Outputs, cfg.Audit = r.bus, r.bus, r.bus, r.bus, r.bus, r.bus, r.audits
	cfg.Broker = r.bus
	cfg.Ready, cfg.Reached = r.process.Ready, crashpoint.FromEnv()
	store, err := stores.Instrument(r.store, "dispatcher", cfg.Meter, cfg.Tracer)
	if err != nil {
		return nil, err
	}
	return dispatcher.New(cfg, store, r.bus)
}
