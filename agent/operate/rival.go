package operate

import (
	"context"
	"time"

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
	probe, main := a.probe(), a.state.Main
	a.engine.work.Go(func() {
		read := pidFileRead{event: supervise.Rivalled{Main: main}}
		defer func() { a.mailbox.put(read) }()
		defer a.engine.rescue(a.key, "look at the pid file", a.fault)
		other, kin := probe.PidFileConflict(ctx, proc.Identity(main))
		read.event.Rival, read.event.Kin = supervise.Identity(other), kin
	})
}
