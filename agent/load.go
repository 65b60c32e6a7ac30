package agent

import (
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/proc"
)

// hostLoad reads how much of the host is in use between two announcements.
type hostLoad struct {
	mu      sync.Mutex
	earlier proc.CPUTime // when last was read; zero at first
	last    proc.Load
}

// read returns the load since the call before, and since the host started at
// the first call. What cannot be read is 0.
func (h *hostLoad) read(log logrus.FieldLogger) proc.Load {
	h.mu.Lock()
	defer h.mu.Unlock()
	host, err := proc.ReadHost()
	if err != nil {
		log.WithError(err).Debug("host load unreadable")
		return proc.Load{}
	}
	now, err := proc.ReadCPUTime()
	if err != nil {
		log.WithError(err).Debug("host load unreadable")
		return proc.Load{}
	}
	load, fresh := host.LoadSince(h.earlier, now)
	if fresh {
		h.earlier = now
	} else {
		load.CPU = h.last.CPU
	}
	h.last = load
	return load
}
