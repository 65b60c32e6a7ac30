package operate

import (
	"context"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
)

// Steps of the check of a pid file, one at a time.
type (
	// pidFileSeen is when it was written.
	pidFileSeen struct{ written time.Time }

	// pidFileRead is whom it names.
	pidFileRead struct{ event supervise.Rivalled }
)

// readPidFile looks, beside the goroutine, whom the pid file names. A file that
// was not written since has nothing new to say, unless what it said is open.
func (a *actor) readPidFile(ctx context.Context, msg pidFileSeen) {
	open := a.state.Rival != supervise.Identity{}
	if msg.written.Equal(a.pidFileWritten) && !open || a.state.Work != supervise.Idle {
		a.checking = false
		return
	}
	a.pidFileWritten = msg.written
	r, main := a.newRun(journal.Op{Spec: a.spec}), a.state.Main
	a.engine.work.Go(func() {
		read := pidFileRead{event: supervise.Rivalled{Main: main}}
		defer func() { a.mailbox.put(read) }()
		defer a.engine.rescue(a.key, "look at the pid file", a.fault)
		read.event.Rival, read.event.Kin = r.rival(ctx, proc.Identity(main))
	})
}

// rival is whom the pid file alone names, if that is another process than main
// and no other key's, and whether it is main's kin.
func (r *run) rival(ctx context.Context, main proc.Identity) (supervise.Identity, bool) {
	r.known.main = proc.Identity{}
	r.look(ctx)
	id := r.main()
	if !r.seen.UsedPidFile || id.IsZero() || id == main || r.engine.owners.rival(id, r.op.Spec.Key, true) != "" {
		return supervise.Identity{}, false
	}
	return supervise.Identity(id), proc.Kin(main, id)
}
