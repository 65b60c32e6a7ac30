package agent

import (
	"errors"
	"fmt"

	"github.com/procfleet/procfleet/internal/natsconn"
)

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
	away := natsconn.Away(a.cfg.Conn)
	switch {
	case away != nil:
		errs = append(errs, fmt.Errorf("not connected to NATS: %w", away))
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
