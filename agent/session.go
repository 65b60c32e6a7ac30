package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agent/hostcheck"
	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// identity is who the agent says it is, and how it proves that.
type identity struct {
	*authenticator

	cloud    int64
	host     string // "<cloud>:<ip>"
	instance string
	// incarnation is random for each run: a copy of the data folder has
	// another one.
	incarnation string
}

// session is one run of an agent.
type session struct {
	cfg       Config
	self      identity
	requests  *requester
	folder    *folder
	ledger    *journal.Journal
	engine    engine
	intake    *intake
	reporter  *reporter
	events    *events
	settings  *settingsKeeper
	servers   *clock
	announcer *announcer
	processes *processReporter
	unsafe    atomic.Pointer[[]hostcheck.Finding] // nil = not known yet
}

func (a *Agent) newSession(ctx context.Context, data *folder, ledger *journal.Journal) (*session, error) {
	self := identity{
		authenticator: &authenticator{keys: a.cfg.Keys, metrics: a.metrics, log: a.cfg.Log},
		cloud:         a.cfg.Cloud, host: a.cfg.host(), instance: data.instance, incarnation: rand.Text(),
	}
	servers := a.newClock()
	requests := &requester{authenticator: self.authenticator, conn: a.cfg.Conn, clock: servers}
	s := &session{cfg: a.cfg, self: self, requests: requests, folder: data, ledger: ledger, servers: servers}
	answering := newPrompt(a.prompt)
	s.reporter = newReporter(requests, ledger, self, &s.cfg)
	s.events = newEvents(requests, self, a.metrics, &s.cfg)
	s.processes = newProcessReporter(&s.cfg, self, servers)
	var err error
	s.engine, err = a.newEngine(operate.Config{
		Ledger: ledger, Log: a.cfg.Log, AgentID: a.cfg.AgentID, Instance: data.instance, RunDir: data.run(),
		Scopes: a.cfg.Machine == nil && endsProcesses(ctx), InTime: servers.surelyBefore, Timing: a.cfg.Timing, Crash: a.cfg.Crash,
		Restarted: a.metrics.restarted, Changed: s.processes.change, Tell: s.events.tell,
		Finished: func(op journal.Op, r agentproto.Result) {
			a.metrics.finished(op.Action, r.Code)
			if !answering.take(op.ID, &r) {
				s.reporter.add(op.ID, op.Lane, op.Trace)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	s.processes.engine = s.engine
	s.settings = newSettingsKeeper(&s.cfg, data, requests, self, s.engine)
	s.intake = &intake{
		ledger: ledger, engine: s.engine, reporter: s.reporter, prompt: answering, settings: s.settings, clock: servers, self: self,
		crash: a.cfg.Crash, log: a.cfg.Log,
	}
	s.announcer = newAnnouncer(&s.cfg, requests, self, s.engine)
	s.intake.sync = s.announcer.sync
	s.intake.resume = sync.OnceFunc(s.engine.Resume)
	return s, nil
}

func (s *session) run(ctx context.Context, sub *nats.Subscription) error {
	work, stopWork := context.WithCancel(ctx)
	var workers sync.WaitGroup
	// The first announcement brings the server's time, by which commands and
	// recovered operations are judged; meanwhile they wait.
	s.announcer.announceFirst(work)
	workers.Go(func() {
		select {
		case <-work.Done():
		case <-s.servers.known:
			s.intake.resume()
		}
	})
	workers.Go(func() {
		s.announcer.run(work, func() {
			s.reporter.retryNow()
			s.events.retryNow()
			s.settings.changed()
			s.processes.change()
		})
	})
	workers.Go(func() { s.processes.run(work) })
	workers.Go(func() { s.reporter.run(work) })
	workers.Go(func() { s.events.run(work) })
	workers.Go(func() { s.settings.run(work) })
	workers.Go(func() { s.watchOwnTime(work) })
	workers.Go(func() { s.watchOthers(work) })
	workers.Go(func() { s.keepFolder(work) })
	if os.Getpid() == 1 {
		workers.Go(func() { proc.ReapOrphans(work) })
	}
	if s.cfg.Machine == nil {
		workers.Go(func() { s.answerHost(work) })
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

// stop ends everything in the order in which nothing is lost: what comes in
// is turned away, then what runs gets its time, then results leave. A session
// that did not subscribe to commands yet has no sub.
func (s *session) stop(ctx context.Context, sub *nats.Subscription) {
	s.cfg.Log.Info("stopping")
	if sub != nil {
		s.intake.turnAway(sub)
	}
	within(ctx, s.cfg.DrainTimeout, s.engine.Stop)
	within(ctx, flushTimeout, s.flush)
	within(ctx, leaveTimeout, s.announcer.leave)
	s.cfg.Log.WithField("unsent", s.reporter.waiting()).Info("stopped")
}

// flush sends what waits.
func (s *session) flush(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { s.reporter.flush(ctx) })
	both.Go(func() { s.events.flush(ctx) })
	both.Wait()
}

func within(ctx context.Context, limit time.Duration, do func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	do(ctx)
}

// Bounds of stopping.
const (
	flushTimeout = 5 * time.Second // for results that are ready, and events
	leaveTimeout = 2 * time.Second // for the last announcement
	unitTimeout  = 5 * time.Second // for systemd to say what unit this is
)

func newHeader(messageType string) agentproto.Header {
	return agentproto.Header{Type: messageType, ID: uuid.NewString(), Sent: time.Now().UTC()}
}

// tellOfJournal tells what the journal lost, and from now on whenever it
// cannot be written.
func (s *session) tellOfJournal(left journal.Recovered) {
	if d := left.Damage; d != nil && d.Found {
		s.events.tell(agentproto.Event{
			Kind: agentproto.EventJournalDamaged,
			Message: "part of the journal could not be read: processes that run are looked after, " +
				"but none is started by itself until a command starts, restarts or supervises it again",
			Details: map[string]any{"found": d.Detail, "copies": "journal.bad-" + d.ID + "-*"},
		})
	}
	// A journal that cannot be used at all is not ready from the start.
	if err := s.ledger.Ready(); err != nil {
		s.tellTrouble(err)
	}
	s.ledger.OnTrouble(func(err error) {
		if err != nil {
			s.tellTrouble(err)
		}
	})
}

func (s *session) tellTrouble(err error) {
	kind := agentproto.EventJournalFull
	if errors.Is(err, journal.ErrDamaged) {
		kind = agentproto.EventJournalDamaged
	}
	s.events.tell(agentproto.Event{
		Kind: kind, Message: "the journal cannot be written, what would change the host is refused",
		Details: map[string]any{"error": err.Error()},
	})
}
