package agent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/local"
	"github.com/procfleet/procfleet/agent/operate"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/natsconn"
)

// Agent is a configured agent. It does nothing before Run.
type Agent struct {
	cfg       Config
	newEngine func(operate.Config) (engine, error)
	newClock  func() *clock
	prompt    time.Duration // promptWithin, longer in tests that need every result in the reply
	metrics   *metrics
	// session is the run under way once it has taken over what an earlier
	// process left; nil before and after.
	session atomic.Pointer[session]
}

// engine is the part of an [operate.Engine] that the agent drives.
type engine interface {
	Apply(agentproto.Settings)
	Recover(journal.Recovered)
	Resume()
	Submit(journal.Op)
	Supervised() int
	Survey() operate.Survey
	Processes() []agentproto.ManagedProcess
	Overview() []local.Process
	Stop(context.Context)
}

// New checks the configuration. It opens nothing.
func New(cfg Config) (*Agent, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	cfg.Log = cfg.Log.WithFields(map[string]any{"component": "agent", "host": cfg.host()})
	a := &Agent{cfg: cfg, newEngine: func(c operate.Config) (engine, error) { return operate.New(c) }, newClock: newClock, prompt: promptWithin}
	if m := cfg.Machine; m != nil {
		a.newEngine, a.newClock = m.Engine, m.newClock
	}
	var err error
	if a.metrics, err = newMetrics(cfg.Meter, a); err != nil {
		return nil, fmt.Errorf("agent: metrics: %w", err)
	}
	return a, nil
}

// Run works until ctx ends, then stops in good order and returns nil: no new
// commands, running ones get [Config.DrainTimeout], results that are ready are
// sent. Supervised processes are left alone. An error says what keeps
// the agent from working at all: a data folder in use, a disk that cannot be
// read, a connection that was closed.
func (a *Agent) Run(ctx context.Context) (err error) {
	data, err := openFolder(a.cfg.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	ledger, recovered, err := a.openJournal(data.journal())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ledger.Close()) }()
	ledger.OnWrite(a.metrics.written)
	ledger.OnCrash(a.cfg.Crash)

	s, err := a.newSession(ctx, data, ledger)
	if err != nil {
		return err
	}
	s.reportCopiedFolder()
	// From here on commands wait for the agent instead of finding no responder.
	// Without a connection processes are looked after, and commands follow.
	var sub *nats.Subscription
	if a.cfg.Conn.IsConnected() {
		if sub, err = s.subscribe(ctx); err != nil || sub == nil {
			s.stop(context.WithoutCancel(ctx), nil)
			return err
		}
	}
	s.tellOfJournal(recovered)
	for _, op := range recovered.Unacknowledged {
		s.reporter.add(op.ID, op.Lane, op.Trace)
	}
	s.settings.begin(ctx)
	s.engine.Recover(recovered)
	a.session.Store(s)
	defer context.AfterFunc(ctx, func() { a.session.Store(nil) })()
	defer a.session.Store(nil)
	return s.run(ctx, sub)
}

// openJournal opens the journal. One that cannot be understood leaves the
// agent at work without it: it says in every answer what is wrong, and
// changes nothing on the host.
func (a *Agent) openJournal(dir string) (*journal.Journal, journal.Recovered, error) {
	ledger, recovered, err := journal.Open(dir, a.cfg.Log)
	if errors.Is(err, journal.ErrDamaged) || errors.Is(err, journal.ErrNewerFormat) {
		a.cfg.Log.WithError(err).Error("journal unusable: supervision off, changes refused")
		return journal.Unavailable(err, a.cfg.Log), journal.Recovered{}, nil
	}
	return ledger, recovered, err
}

// Ready returns nil if the agent takes commands: it has taken over what an
// earlier process left, its journal can be written, and NATS passes commands
// on to it. The error names everything that is missing. It may wait for the
// disk, and writes to it only after an earlier write failed.
func (a *Agent) Ready() error {
	s := a.session.Load()
	if s == nil {
		return errors.New("the agent is not ready: it is opening its journal, adopting processes, waiting for another agent of this host to stop, or stopping")
	}
	var errs []error
	unavailable := natsconn.Unavailable(a.cfg.Conn)
	switch {
	case unavailable != nil:
		errs = append(errs, fmt.Errorf("not connected to NATS: %w", unavailable))
	case !s.announcer.ready.Load():
		errs = append(errs, errors.New("NATS has not confirmed the subscription to commands"))
	}
	if err := s.ledger.Ready(); err != nil {
		errs = append(errs, fmt.Errorf("the journal cannot be written: %w", err))
	}
	if n := s.engine.Survey().Unsettled; n > 0 {
		errs = append(errs, fmt.Errorf("%d processes are still looked for after the start", n))
	}
	return errors.Join(errs...)
}
