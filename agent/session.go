package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agent/hostcheck"
	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/local"
	"github.com/procfleet/procfleet/agent/operate"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// session is one run of an agent.
type session struct {
	*requester

	cfg       Config
	folder    *folder
	ledger    *journal.Journal
	engine    Engine
	intake    *intake
	reporter  *reporter
	events    *events
	settings  *settingsClient
	announcer *announcer
	processes *processReporter
	findings  atomic.Pointer[[]hostcheck.Finding] // findings of checkHost; nil before it has run
}

func (a *Agent) newSession(ctx context.Context, data *folder, ledger *journal.Journal) (*session, error) {
	requests := &requester{sender: a.cfg.Conn, clock: a.newClock(), identity: identity{
		authenticator: &authenticator{keys: a.cfg.Keys, metrics: a.metrics, log: a.cfg.Log},
		cloud:         a.cfg.Cloud, host: a.cfg.host(), agentID: a.cfg.AgentID, instance: data.instance, incarnation: rand.Text(),
	}}
	s := &session{requester: requests, cfg: a.cfg, folder: data, ledger: ledger}
	prompt := newPrompt(a.prompt)
	s.reporter = newReporter(requests, ledger, a.cfg.Crash)
	s.events = newEvents(requests)
	s.processes = &processReporter{requester: requests, conn: a.cfg.Conn, interval: a.cfg.ReportInterval, changed: make(chan struct{}, 1), awaited: make(chan struct{}, 1)}
	var err error
	s.engine, err = a.newEngine(operate.Config{
		Ledger: ledger, Log: a.cfg.Log, AgentID: a.cfg.AgentID, Instance: data.instance, RunDir: data.run(),
		Scopes: a.cfg.Machine == nil && endsProcesses(ctx), InTime: s.clock.surelyBefore, Timing: a.cfg.Timing, Crash: a.cfg.Crash,
		Restarted: a.metrics.restarted, Changed: s.processes.change, Emit: s.events.emit,
		Finished: func(op journal.Op, r agentproto.Result) {
			a.metrics.finished(op.Action, r.Code)
			if prompt.handOver(op.ID, &r) {
				return
			}
			deliver := func() { s.reporter.add(op.ID, op.Lane, op.Trace) }
			if op.Action == agentproto.ActionStatus || r.Reason == agentproto.ReasonRefused || r.Reason == agentproto.ReasonCancelled {
				deliver() // no process has changed
			} else {
				s.processes.beforeResult(deliver)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	s.processes.engine = s.engine
	s.settings = &settingsClient{
		requester: requests, conn: a.cfg.Conn, engine: s.engine, file: filepath.Join(data.dir, "settings.json"), due: make(chan struct{}, 1),
	}
	s.announcer = &announcer{requester: requests, conn: a.cfg.Conn, cfg: &s.cfg, engine: s.engine, startedAt: time.Now().UTC(), labels: hostLabels(s.cfg.Labels)}
	s.intake = &intake{
		requester: requests, ledger: ledger, engine: s.engine, reporter: s.reporter, prompt: prompt, settings: s.settings,
		sync: s.announcer.sync, resume: sync.OnceFunc(s.engine.Resume), crash: a.cfg.Crash,
	}
	return s, nil
}

func (s *session) run(ctx context.Context, sub *nats.Subscription) error {
	work, stopWork := context.WithCancel(ctx)
	var workers sync.WaitGroup
	// The first announcement reads the servers' time. Commands and recovered operations
	// cannot be checked for expiry before.
	s.announcer.sync(work)
	workers.Go(func() {
		select {
		case <-work.Done():
		case <-s.clock.known:
			s.intake.resume()
		}
	})
	workers.Go(func() {
		s.announcer.run(work, func() {
			s.reporter.retryNow()
			s.events.retries.end()
			s.settings.changed()
			s.processes.change()
		})
	})
	workers.Go(func() { s.processes.run(work) })
	workers.Go(func() { s.reporter.run(work) })
	workers.Go(func() { s.events.run(work) })
	workers.Go(func() { s.settings.run(work) })
	workers.Go(func() { s.watchScheduling(work) })
	workers.Go(func() { s.watchOthers(work) })
	workers.Go(func() { s.recreateFolder(work) })
	if os.Getpid() == 1 {
		workers.Go(func() { proc.ReapOrphans(work) })
	}
	if s.cfg.Machine == nil {
		server := local.Server{Dir: s.folder.dir, Agent: s.describeAgent, Processes: s.engine.Overview, Log: s.log}
		workers.Go(func() { server.Run(work) })
		workers.Go(func() { s.checkHost(work) })
	}
	var err error
	if sub == nil {
		sub, err = s.subscribeOnceConnected(work)
	}
	if sub != nil {
		err = s.intake.run(work, sub)
	}
	stopWork()
	workers.Wait()
	s.stop(context.WithoutCancel(ctx), sub)
	return err
}

// stop stops the session in an order that loses no results: it refuses new commands, waits
// for running commands and then sends the results. sub is nil if the session has not
// subscribed to commands yet.
func (s *session) stop(ctx context.Context, sub *nats.Subscription) {
	s.log.Info("stopping")
	if sub != nil {
		s.intake.refuseQueued(sub)
	}
	withTimeout(ctx, s.cfg.DrainTimeout, s.engine.Stop)
	withTimeout(ctx, flushTimeout, s.flush)
	withTimeout(ctx, leaveTimeout, s.announcer.leave)
	s.log.WithField("unsent_results", s.reporter.waiting()).Info("stopped")
}

func (s *session) flush(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { s.reporter.flush(ctx) })
	both.Go(func() { s.events.flush(ctx) })
	both.Wait()
}

func withTimeout(ctx context.Context, limit time.Duration, do func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	do(ctx)
}

// Timeouts.
const (
	flushTimeout = 5 * time.Second // for sending the queued results and events
	leaveTimeout = 2 * time.Second // for the last announcement
	unitTimeout  = 5 * time.Second // for the query of the agent's systemd unit
)

func newHeader(messageType string) agentproto.Header {
	return agentproto.Header{Type: messageType, ID: uuid.NewString(), Sent: time.Now().UTC()}
}

// reportJournal reports damage of the journal, and every time when the journal becomes
// unwritable from now on.
func (s *session) reportJournal(left journal.Recovered) {
	if d := left.Damage; d != nil && d.Found {
		s.events.emit(agentproto.Event{
			Kind: agentproto.EventJournalDamaged,
			Message: "part of the journal could not be read: running processes are supervised, " +
				"but none is started automatically until a command starts, restarts or supervises it again",
			Details: map[string]any{"found": d.Detail, "copies": "journal.bad-" + d.ID + "-*"},
		})
	}
	if err := s.ledger.Ready(); err != nil {
		s.reportJournalError(err)
	}
	s.ledger.OnWriteError(func(err error) {
		if err != nil {
			s.reportJournalError(err)
		}
	})
}

func (s *session) reportJournalError(err error) {
	kind := agentproto.EventJournalFull
	if errors.Is(err, journal.ErrDamaged) {
		kind = agentproto.EventJournalDamaged
	}
	s.events.emit(agentproto.Event{
		Kind: kind, Message: "the journal cannot be written: commands that change the host are refused",
		Details: map[string]any{"error": err.Error()},
	})
}
