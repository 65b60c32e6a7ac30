package operate

import (
	"sync"

	"github.com/procfleet/procfleet/agent/proc"
)

// owners says which key a process belongs to, so that two keys that describe
// the same process by mistake do not fight over it. A key has one process.
type owners struct {
	mu    sync.Mutex
	byKey map[string]proc.Identity
}

// of returns the key that has the process, "" if none has.
func (o *owners) of(id proc.Identity) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.find(id)
}

func (o *owners) find(id proc.Identity) string {
	if id.IsZero() {
		return ""
	}
	for key, owned := range o.byKey {
		if owned == id {
			return key
		}
	}
	return ""
}

// claim gives the process to key unless another key has it, and returns who
// has it now.
func (o *owners) claim(id proc.Identity, key string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if owner := o.find(id); owner != "" {
		return owner
	}
	if !id.IsZero() {
		o.byKey[key] = id
	}
	return key
}

// settle makes id the one process of key; the zero identity takes it away.
func (o *owners) settle(id proc.Identity, key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case id.IsZero():
		delete(o.byKey, key)
	case o.find(id) == "":
		o.byKey[key] = id
	}
}

// otherHas reports whether the pid is the process of another key than key.
func (o *owners) otherHas(pid int, key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for owner, id := range o.byKey {
		if owner != key && id.PID == pid {
			return true
		}
	}
	return false
}
