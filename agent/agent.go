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

// Agent is a configured agent; see [Agent.Run].
type Agent struct {
	cfg       Config
	newEngine func(operate.Config) (Engine, error)
	newClock  func() *clock
	prompt    time.Duration // promptWithin; longer in tests that need every result in the reply
	metrics   *metrics
	// session is the current run, after the recovery of the previous agent process's state;
	// nil before the recovery and after the run.
	session atomic.Pointer[session]
}

// Engine is the part of [operate.Engine] that the agent uses.
type Engine interface {
	Apply(agentproto.Settings)
	Recover(journal.Recovered)
	Resume()
	Submit(journal.Op)
	Interrupt(key string, id journal.ID)
	Output(q operate.OutputQuery) (operate.OutputPage, error)
	Supervised() int
	Survey() operate.Survey
	Processes() []agentproto.ManagedProcess
	Overview() []local.Process
	Stop(context.Context)
}

// New validates the configuration and returns an agent. It opens nothing.
func New(cfg Config) (*Agent, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	cfg.Log = cfg.Log.WithFields(map[string]any{"component": "agent", "host": cfg.host()})
	a := &Agent{cfg: cfg, newEngine: func(c operate.Config) (Engine, error) { return operate.New(c) }, newClock: newClock, prompt: promptWithin}
	if m := cfg.Machine; m != nil {
		a.newEngine, a.newClock = m.Engine, m.newClock
	}
	var err error
	if a.metrics, err = newMetrics(cfg.Meter, a); err != nil {
		return nil, fmt.Errorf("agent: metrics: %w", err)
	}
	return a, nil
}

// Run runs the agent until ctx ends. Then it refuses new commands, waits
// [Config.DrainTimeout] for running commands, sends the finished results and returns nil.
// Supervised processes continue. It returns an error if the agent cannot work at all: the
// data folder is in use or unreadable, or the connection was closed.
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
	// Subscribe first: during recovery commands are queued then, instead of failing for
	// lack of responders. Without a connection supervision starts at once.
	var sub *nats.Subscription
	if a.cfg.Conn.IsConnected() {
		if sub, err = s.subscribe(ctx); err != nil || sub == nil {
			s.stop(context.WithoutCancel(ctx), nil)
			return err
		}
	}
	s.reportJournal(recovered)
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

// openJournal opens the journal. If the journal is damaged or has another format, the agent runs
// without a journal and refuses all changes of the host with the error.
func (a *Agent) openJournal(dir string) (*journal.Journal, journal.Recovered, error) {
	ledger, recovered, err := journal.Open(dir, a.cfg.Log)
	if errors.Is(err, journal.ErrDamaged) || errors.Is(err, journal.ErrFormat) {
		a.cfg.Log.WithError(err).Error("journal unusable: supervision off, changes refused")
		return journal.Unavailable(err, a.cfg.Log), journal.Recovered{}, nil
	}
	return ledger, recovered, err
}

// Ready returns nil if the agent accepts commands: it has recovered the state of
// the previous agent process, its journal is writable, and NATS delivers commands
// to it. The error names every condition that is not met. Ready may block on the
// disk, which it writes only after an earlier write failed.
func (a *Agent) Ready() error {
	s := a.session.Load()
	if s == nil {
		return errors.New("the agent is not ready: it is opening its journal, adopting processes, waiting for another agent of this host to stop, or stopping")
	}
	var errs []error
	disconnected := natsconn.Unavailable(a.cfg.Conn)
	switch {
	case disconnected != nil:
		errs = append(errs, fmt.Errorf("not connected to NATS: %w", disconnected))
	case !s.announcer.ready.Load():
		errs = append(errs, errors.New("NATS has not confirmed the subscription to commands"))
	}
	if err := s.ledger.Ready(); err != nil {
		errs = append(errs, fmt.Errorf("the journal cannot be written: %w", err))
	}
	if n := s.engine.Survey().Unsettled; n > 0 {
		errs = append(errs, fmt.Errorf("%d processes have not been observed since the start", n))
	}
	return errors.Join(errs...)
}
