package fleetkey

import "sync"

// hostKeys remembers the keys that a ring gives for hosts, of those that were
// asked for last: deriving one costs as much as signing a message. It is safe
// for concurrent use.
type hostKeys struct {
	mu sync.Mutex
	// When young is full it becomes old, and what was old is forgotten unless
	// it was asked for since.
	young, old map[string][]hostKey
}

// maxYoung hosts are in each of the two maps: room for 100,000, with one key
// about 20 MiB.
const maxYoung = 64 << 10

func (h *hostKeys) of(host string, derive func() []hostKey) []hostKey {
	h.mu.Lock()
	defer h.mu.Unlock()
	if keys, known := h.young[host]; known {
		return keys
	}
	keys, known := h.old[host]
	if !known {
		keys = derive()
	}
	if h.young == nil || len(h.young) >= maxYoung {
		h.young, h.old = make(map[string][]hostKey), h.young
	}
	h.young[host] = keys
	return keys
}
