package dispatcher

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
)

// notes makes notes of accepted tasks that no caller waits for. One that is not
// made, also since the dispatcher dies, is the sweep's to make.
type notes struct {
	room    chan struct{} // one for each note under way
	under   sync.WaitGroup
	timeout time.Duration
	log     logrus.FieldLogger
}

// notesAtOnce bounds what waits for a slow store.
const notesAtOnce = 256

func newNotes(cfg *Config) *notes {
	return &notes{room: make(chan struct{}, notesAtOnce), timeout: cfg.Timeouts.Accept, log: cfg.Log}
}

// later makes a note soon, or answers false if too many are under way.
func (n *notes) later(ctx context.Context, id procfleet.TaskID, note func(context.Context) error) bool {
	select {
	case n.room <- struct{}{}:
	default:
		return false
	}
	n.under.Go(func() {
		defer func() { <-n.room }()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.timeout)
		defer cancel()
		if err := note(ctx); err != nil {
			n.log.WithError(err).WithField("task", id).Warn("dispatched mark not stored, left to the sweep")
		}
	})
	return true
}

// wait returns when every note is made, or has failed.
func (n *notes) wait() { n.under.Wait() }
