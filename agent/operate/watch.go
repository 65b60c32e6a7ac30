package operate

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
)

// watch observes the process of a key.
type watch struct {
	watcher *proc.Watcher
	mailbox *mailbox
	log     logrus.FieldLogger

	stopMain  func()                   // ends the watch of the main process; nil = not watched
	instances map[proc.Identity]func() // watched instances, each with the function that ends its watch
	missing   int                      // missing instances at the latest count
	death     proc.Death               // latest reported death
	instance  proc.Death               // latest reported death of an instance, including the main one
	aliveAt   uint64                   // see procop.Knowledge.AliveAt

	searching       bool
	searchGen       int // generation of the machine's latest search request
	checkingPidFile bool
	pidFileWritten  time.Time // modification time of the pid file when it was read last
}

// Messages about observations.
type (
	// searched reports the end of a search for a generation of the machine.
	searched struct {
		event     supervise.Observed
		aliases   []string
		instances []proc.Identity
	}

	// died reports the end of the main process, instanceDied the end of any instance.
	died         struct{ death proc.Death }
	instanceDied struct{ death proc.Death }

	// pidFileChecked reports the modification time of the pid file.
	pidFileChecked struct{ written time.Time }
)

// setMain watches the main process id instead of the previous one; zero = none.
func (w *watch) setMain(id proc.Identity) {
	w.stop()
	if !id.IsZero() {
		w.stopMain = w.add(id, func(death proc.Death) { w.mailbox.put(died{death}) })
	}
}

// add watches a process and returns a function that ends the watch; nil if the process cannot
// be watched. died must not block.
func (w *watch) add(id proc.Identity, died func(proc.Death)) (stop func()) {
	stop, err := w.watcher.Add(id, died)
	switch {
	case errors.Is(err, proc.ErrGone):
		died(proc.Death{Identity: id, At: time.Now()})
	case err != nil:
		w.log.WithError(err).Warn("process watch failed, polling instead")
	default:
		return stop
	}
	return nil
}

// watches reports whether the main process is watched and its end was not reported yet.
func (w *watch) watches(main proc.Identity) bool {
	return w.stopMain != nil && w.death.Identity != main
}

func (w *watch) stop() {
	if w.stopMain != nil {
		w.stopMain()
		w.stopMain = nil
	}
}

// setInstances watches exactly these instances. The main one is also watched by setMain.
func (w *watch) setInstances(ids []proc.Identity) {
	for id, stop := range w.instances {
		if !slices.Contains(ids, id) {
			stop()
			delete(w.instances, id)
		}
	}
	for _, id := range ids {
		if _, watched := w.instances[id]; watched {
			continue
		}
		if stop := w.add(id, func(death proc.Death) { w.mailbox.put(instanceDied{death}) }); stop != nil {
			w.instances[id] = stop
		}
	}
}

func (w *watch) recordAlive() {
	if now, err := proc.NowTicks(); err == nil {
		w.aliveAt = now
	}
}

// pidFileRead records that work has read the pid file as modified at written, so that the
// next sweep does not read it again. written is zero if the file did not name the process.
func (w *watch) pidFileRead(written time.Time) {
	if !written.IsZero() {
		w.pidFileWritten = written
	}
}

// observer handles observations of a process.
type observer struct{ *actor }

// search searches for the process in a separate goroutine, since this may take seconds. At
// most one search runs; a request during a search causes another one after it.
func (a observer) search(ctx context.Context, gen int) {
	a.watch.searchGen = gen
	if a.watch.searching {
		return
	}
	a.watch.searching = true
	probe := a.probe()
	a.engine.work.Go(func() {
		event := supervise.Observed{Gen: gen, Observation: supervise.Indeterminate}
		defer a.engine.rescue(a.key, "search", func(string) { a.mailbox.put(searched{event: event}) })
		report := probe.Observe(ctx)
		event.Main, event.Observation = report.Outcome.Main, report.Outcome.Observation
		a.mailbox.put(searched{event: event, aliases: report.Aliases, instances: report.Instances})
	})
}

// searched handles the end of a search, and starts another one if it was requested
// meanwhile.
func (a observer) searched(ctx context.Context, msg searched) {
	a.watch.searching = false
	a.memory.learn(msg.aliases)
	current := msg.event.Gen == a.state.Gen // otherwise work has changed the process since
	a.step(ctx, msg.event, nil)
	if current && msg.event.Observation != supervise.Indeterminate {
		a.countInstances(msg.instances)
	}
	if msg.event.Gen != a.watch.searchGen {
		a.search(ctx, a.watch.searchGen)
	}
}

func (a observer) died(ctx context.Context, msg died) {
	a.watch.death, a.watch.instance = msg.death, msg.death
	main := supervise.Identity(msg.death.Identity)
	if main == a.state.Main {
		a.watch.recordAlive() // it ran until now
		if a.state.Work == supervise.Idle {
			a.recordExit(msg.death.Identity, a.state) // at once: the search for a successor takes longer
		}
	}
	a.step(ctx, supervise.Died{Main: main}, nil)
}

// quiet reports whether the sweep has nothing to query: the process runs, its end will be
// reported, and nothing about it is checked periodically.
func (a observer) quiet() bool {
	s, spec := &a.state, &a.memory.Spec
	return s.Phase == supervise.Running && s.Work == supervise.Idle && s.Settled() && !s.Suspended &&
		s.Conflict == (supervise.Identity{}) && a.watch.watches(proc.Identity(s.Main)) && s.SpecStored &&
		!procspec.HasInstances(spec) && spec.HealthCmd == "" && a.schedule.table.IsZero()
}

// sweep queries what no event reports: the run state of the process, which is one small
// file, and the modification time of its pid file.
func (a observer) sweep(ctx context.Context) {
	alive, suspended := false, false
	if a.state.Phase == supervise.Running {
		alive, suspended = proc.RunState(proc.Identity(a.state.Main))
	}
	if !alive {
		a.step(ctx, supervise.Swept{}, nil)
		return
	}
	a.watch.recordAlive()
	if suspended != a.state.Suspended {
		a.step(ctx, supervise.Suspended{Main: a.state.Main, On: suspended}, nil)
	}
	a.checkHealth(ctx, time.Now())
	spec, several := &a.memory.Spec, procspec.HasInstances(&a.memory.Spec)
	if several && (len(a.memory.Instances) < spec.Instances || len(alivePIDs(a.memory.Instances)) < len(a.memory.Instances)) {
		a.recount(ctx)
	}
	if path := spec.PidPath; a.state.SpecStored && !several && path != "" && !a.watch.checkingPidFile {
		a.watch.checkingPidFile = true
		a.engine.work.Go(func() { a.mailbox.put(pidFileChecked{written: a.engine.host.Finder.PidFileWritten(ctx, path)}) })
	}
}

// readPidFile reads in a separate goroutine which process the pid file names. It skips a file
// that was not modified since it was read last, unless its conflict is unresolved.
func (a observer) readPidFile(ctx context.Context, msg pidFileChecked) {
	unresolved := a.state.Conflict != supervise.Identity{}
	if msg.written.Equal(a.watch.pidFileWritten) && !unresolved || a.state.Work != supervise.Idle {
		a.watch.checkingPidFile = false
		return
	}
	a.watch.pidFileWritten = msg.written
	probe, main := a.probe(), a.state.Main
	a.engine.work.Go(func() {
		read := supervise.PidFileConflict{Main: main}
		defer func() { a.mailbox.put(read) }()
		defer a.engine.rescue(a.key, "pid file check", nil)
		other, kin := probe.PidFileConflict(ctx, proc.Identity(main))
		read.Other, read.Kin = supervise.Identity(other), kin
	})
}

// countInstances records and watches the running instances of a process. A missing instance
// is reported but not started: the start command starts all instances, and would duplicate
// the running ones.
func (a observer) countInstances(ids []proc.Identity) {
	if !procspec.HasInstances(&a.memory.Spec) || a.state.Desired != supervise.Up {
		ids = nil
	}
	if len(ids) == 0 && len(a.memory.Instances) == 0 {
		return
	}
	was := a.memory.Instances
	a.memory.Instances = ids
	a.engine.host.Claims.ClaimInstances(a.key, ids)
	a.watch.setInstances(ids)
	a.publish()
	a.save()
	missing := max(0, a.memory.Spec.Instances-len(ids))
	if len(ids) == 0 {
		missing = 0
	}
	if missing > 0 && missing != a.watch.missing {
		reporter(a).instancesMissing(was, ids)
	}
	a.watch.missing = missing
}

// recount searches for all instances again, unless work on the process is in progress.
func (a observer) recount(ctx context.Context) {
	if procspec.HasInstances(&a.memory.Spec) && a.state.Desired == supervise.Up && a.state.Work == supervise.Idle && a.state.Phase == supervise.Running {
		a.search(ctx, a.state.Gen)
	}
}

func alivePIDs(ids []proc.Identity) []int {
	var pids []int
	for _, id := range ids {
		if proc.Alive(id) {
			pids = append(pids, id.PID)
		}
	}
	return pids
}
