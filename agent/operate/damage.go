package operate

import (
	"context"

	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/supervise"
)

// doubtful reports whether what is kept of the process may be older than what
// was wanted last, because the journal lost records since. Such a process is
// followed and adopted, but not started or taken down until a command says
// again that it is to run.
func (a *actor) doubtful() bool { return a.vouched != a.engine.damage }

// vouch takes an operation that brought the process into supervision, or found
// it running, for a word on what is wanted.
func (a *actor) vouch(ctx context.Context, msg *ended) {
	reached := msg.report.Outcome.Class == supervise.Done || msg.report.Outcome.Class == supervise.Already
	o := a.ops[msg.id] // one of before the damage says nothing new
	if reached && o.interrupted == nil && procspec.StartsProcess(o.op.Action) && a.doubtful() {
		a.vouched = a.engine.damage
		a.hold(ctx)
	}
}
