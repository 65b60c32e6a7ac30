package operate

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
)

// automatic is the state of the work that the engine does without an operation: automatic
// starts and terminations.
type automatic struct {
	timer   *time.Timer
	retryAt time.Time // time of the next automatic start

	yield   context.CancelFunc // makes the automatic start in progress end early
	dueAt   time.Time          // when the waiting automatic start became due; zero = none waits
	trouble string             // error of the latest automatic start

	why   supervise.Why // reason of the latest termination
	ended func(procop.TerminationEnd)
}

func (auto *automatic) arm(effect supervise.Arm, notify *mailbox) {
	auto.disarm()
	delay := effect.Delay
	if effect.Timer == supervise.RetryTimer {
		delay = max(supervise.Jitter(delay, rand.Float64()), effect.Least)
		auto.retryAt = time.Now().Add(delay).UTC()
	}
	auto.timer = time.AfterFunc(delay, func() {
		notify.put(supervise.Fired{Timer: effect.Timer, Gen: effect.Gen})
	})
}

func (auto *automatic) disarm() {
	if auto.timer != nil {
		auto.timer.Stop()
	}
}

func (auto *automatic) reportEnd(end procop.TerminationEnd) {
	if report := auto.ended; report != nil {
		auto.ended = nil
		report(end)
	}
}

// Messages about automatic work.
type (
	// startSpawned reports a start command that runs or is about to run. saved is closed once
	// the command is persisted or persisting it has failed.
	startSpawned struct {
		exec  journal.Exec
		saved chan struct{}
	}

	// autoStarted reports the end of an automatic start.
	autoStarted struct{ report procop.AutoStartReport }

	// terminateRequest requests the termination of a process.
	terminateRequest struct {
		event supervise.TerminateRequested
		ended func(procop.TerminationEnd) // called exactly once; must not block
	}

	// terminated reports the end of a termination.
	terminated struct{ end procop.TerminationEnd }
)

// automation starts and terminates a process without an operation.
type automation struct{ *actor }

func (a automation) autoStart(ctx context.Context) {
	e := a.engine
	if !e.drain.begin() {
		return
	}
	yield, cancel := context.WithCancel(ctx)
	a.auto.yield = cancel
	if a.auto.dueAt.IsZero() {
		a.auto.dueAt = time.Now()
	}
	limiter, due := e.starts, a.auto.dueAt
	if procspec.HasSchedule(&a.memory.Spec) {
		limiter = e.runs
	}
	work := e.host.AutoStart(&a.memory.Spec, a.know(&a.memory.Spec), a.memory.Starting, func(exec journal.Exec) error {
		msg := startSpawned{exec: exec, saved: make(chan struct{})}
		a.mailbox.put(msg)
		select {
		case <-msg.saved:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	e.work.Go(func() {
		msg := notStarted(supervise.Interrupted)
		defer func() { a.mailbox.put(msg) }()
		defer e.rescue(a.key, "automatic start", func(string) { msg = notStarted(supervise.Failed) })
		if !limiter.acquire(yield, due) {
			return
		}
		spawned := false
		defer func() { limiter.release(spawned) }()
		msg.report = work.Run(ctx, yield)
		spawned = msg.report.Spawned
	})
}

func notStarted(class supervise.Class) autoStarted {
	return autoStarted{procop.AutoStartReport{Report: procop.Report{Outcome: supervise.Outcome{Class: class, Observation: supervise.Indeterminate}}}}
}

// startSpawned persists that a start command runs or is about to run, so that no agent
// process runs a second one at the same time.
func (a automation) startSpawned(msg startSpawned) {
	defer close(msg.saved)
	a.memory.Starting = msg.exec
	a.save()
}

func (a automation) autoStarted(ctx context.Context, msg autoStarted) {
	a.auto.yield()
	defer a.engine.drain.end()
	r := &msg.report
	if a.auto.trouble = r.Message; r.Over {
		a.memory.Starting = journal.Exec{}
	}
	a.memory.learn(r.Aliases)
	if r.Ran {
		a.auto.dueAt = time.Time{}
		if a.state.Policy.Resident {
			a.engine.cfg.Restarted()
		}
		if r.Outcome.Observation == supervise.Alive || r.Outcome.Class == supervise.Done {
			a.memory.StartedAt = time.Now().UTC()
		}
	}
	a.watch.pidFileRead(r.PidFileWritten)
	a.step(ctx, supervise.AutoStarted{Outcome: r.Outcome, Ran: r.Ran}, nil)
	observer(a).countInstances(r.Instances)
	reporter(a).logStart(r)
}

// requestTermination requests the termination of the process main of a key, because it
// exceeds a limit. The request is dropped while an operation is in progress, the process is
// frozen or its state is indeterminate; the caller repeats it while its reason persists. It
// does not wait. ended is called exactly once and must not block.
func (e *Engine) requestTermination(key string, main proc.Identity, ended func(procop.TerminationEnd)) {
	request := terminateRequest{event: supervise.TerminateRequested{Main: supervise.Identity(main), Why: supervise.OverLimit}, ended: ended}
	if !e.withActor(key, func(a *actor) { a.mailbox.put(request) }) {
		ended(procop.TerminationEnd{})
	}
}

// terminateRequested passes the request to the state machine, which may drop it.
func (a automation) terminateRequested(ctx context.Context, msg terminateRequest) {
	busy := a.state.Work != supervise.Idle
	defer func() {
		if !busy && a.state.Work == supervise.Terminating {
			a.auto.ended = msg.ended
		} else {
			msg.ended(procop.TerminationEnd{})
		}
	}()
	a.step(ctx, msg.event, nil)
}

// terminate ends the process effect.Main, and no other process, in a separate goroutine.
func (a automation) terminate(ctx context.Context, effect supervise.Terminate) {
	e := a.engine
	if !e.drain.begin() {
		return
	}
	a.auto.why = effect.Why
	work := e.host.Termination(&a.memory.Spec, a.know(&a.memory.Spec))
	e.work.Go(func() {
		var end procop.TerminationEnd
		defer func() { a.mailbox.put(terminated{end}) }()
		defer e.rescue(a.key, "termination", func(cause string) { end = work.Failed(cause) })
		end = work.Run(ctx, proc.Identity(effect.Main))
	})
}

func (a automation) terminated(ctx context.Context, msg terminated) {
	defer a.engine.drain.end()
	defer func() { a.auto.reportEnd(msg.end) }()
	main := a.state.Main
	a.step(ctx, supervise.Terminated{Outcome: msg.end.Outcome}, nil)
	msg.end.Exit = a.exitOf(proc.Identity(main))
	entry := a.log.WithField("pid", main.PID).WithField("why", string(a.auto.why))
	switch {
	case msg.end.Outcome.Class == supervise.Interrupted:
	case !msg.end.Gone:
		entry.WithField("reason", msg.end.Trouble).Error("process termination failed")
	default:
		entry.WithField("how", msg.end.How).Warn("process terminated by agent")
	}
	for _, warning := range msg.end.Warnings {
		entry.WithField("reason", warning).Warn("process termination incomplete")
	}
}
