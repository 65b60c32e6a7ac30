package operate

import (
	"sync"

	"github.com/procfleet/procfleet/agent/proc"
)

// owners says which key a process belongs to, so that two keys that describe
// the same process by mistake do not fight over it. A key has one process.
type owners struct {
	mu        sync.Mutex
	byKey     map[string]proc.Identity
	byProcess map[proc.Identity]string
	byPID     map[int]string
}

func newOwners() *owners {
	return &owners{byKey: map[string]proc.Identity{}, byProcess: map[proc.Identity]string{}, byPID: map[int]string{}}
}

// of returns the key that has the process, "" if none has.
func (o *owners) of(id proc.Identity) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byProcess[id]
}

// claim gives the process to key unless another key has it, and returns who
// has it now.
func (o *owners) claim(id proc.Identity, key string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if owner := o.byProcess[id]; owner != "" {
		return owner
	}
	o.give(id, key)
	return key
}

// settle makes id the one process of key, unless another key has it; the zero
// identity takes away what key had.
func (o *owners) settle(id proc.Identity, key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if owner := o.byProcess[id]; owner == "" || owner == key {
		o.give(id, key)
	}
}

func (o *owners) give(id proc.Identity, key string) {
	before := o.byKey[key]
	delete(o.byProcess, before)
	delete(o.byKey, key)
	if o.byPID[before.PID] == key { // a pid may have been reused by another key's process
		delete(o.byPID, before.PID)
	}
	if !id.IsZero() {
		o.byKey[key], o.byProcess[id], o.byPID[id.PID] = id, key, key
	}
}

// otherHas reports whether the pid is the process of another key than key.
func (o *owners) otherHas(pid int, key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	owner := o.byPID[pid]
	return owner != "" && owner != key
}
