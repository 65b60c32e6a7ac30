package worker

import (
	"context"
	"os"
	"time"

	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/worker/storecall"
)

// announceEvery is the interval between announcements to the dispatchers. Dispatchers forget a
// worker after several missing ones.
const announceEvery = 2 * time.Second

// announce reports to the dispatchers that this worker runs, until ctx ends. The
// announcements of a time without NATS are lost.
func (w *Worker) announce(ctx context.Context) {
	self := bus.Worker{ID: w.cfg.ID, Version: w.cfg.Version, Started: time.Now().UTC()}
	self.Host, _ = os.Hostname() // only for display
	publish := func() {
		if w.cfg.Conn.IsConnected() {
			_ = w.cfg.Bus.AnnounceWorker(&self) // the next one follows
		}
	}
	for publish(); storecall.Pause(ctx, announceEvery) == nil; {
		publish()
	}
	self.Stopped = true
	publish()
}
