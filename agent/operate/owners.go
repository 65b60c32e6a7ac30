package operate

import (
	"sync"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// owners says which key a process belongs to, so that two keys that describe
// the same process by mistake do not fight over it, and that instances of one
// program are not taken for each other. A key has one process.
type owners struct {
	mu        sync.Mutex
	byKey     map[string]proc.Identity
	byProcess map[proc.Identity]owner
	byPID     map[int]string
	byMark    map[string]program

	mates     map[string][]proc.Identity // all processes of a key that has several
	byMate    map[proc.Identity]string
	byMatePID map[int]string
}

// owner is the key that has a process.
type owner struct {
	key string
	// proven says that more than a search by name and place made it the key's.
	// Such an owner takes the process from one who only found it.
	proven bool
}

// program is what carries a mark, and whose it is.
type program struct{ key, name, setup string }

func newOwners() *owners {
	return &owners{
		byKey: map[string]proc.Identity{}, byProcess: map[proc.Identity]owner{},
		byPID: map[int]string{}, byMark: map[string]program{},
		mates: map[string][]proc.Identity{}, byMate: map[proc.Identity]string{}, byMatePID: map[int]string{},
	}
}

// rival returns the key that has the process and keeps it against key, "" if
// there is none.
func (o *owners) rival(id proc.Identity, key string, proven bool) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.against(id, key, proven)
}

func (o *owners) against(id proc.Identity, key string, proven bool) string {
	if mate := o.byMate[id]; mate != "" && mate != key {
		return mate
	}
	if has := o.byProcess[id]; has.key != key && (has.proven || !proven) {
		return has.key
	}
	return ""
}

// claim makes id the one process of key unless it has a rival, which is
// returned; "" = done.
func (o *owners) claim(id proc.Identity, key string, proven bool) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if rival := o.against(id, key, proven); rival != "" {
		return rival
	}
	has := o.byProcess[id]
	o.release(has.key)
	o.release(key)
	o.byKey[key], o.byPID[id.PID] = id, key
	o.byProcess[id] = owner{key: key, proven: proven || has.key == key && has.proven}
	return ""
}

// drop takes away what key has.
func (o *owners) drop(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.release(key)
}

func (o *owners) release(key string) {
	id, has := o.byKey[key]
	if !has {
		return
	}
	delete(o.byKey, key)
	delete(o.byProcess, id)
	if o.byPID[id.PID] == key { // a pid may have been reused by another key's process
		delete(o.byPID, id.PID)
	}
}

// otherHas reports whether the pid is the process of another key than key.
func (o *owners) otherHas(pid int, key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	owner, mate := o.byPID[pid], o.byMatePID[pid]
	return owner != "" && owner != key || mate != "" && mate != key
}

// pids are those of all processes that keys have.
func (o *owners) pids() map[int]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	pids := make(map[int]bool, len(o.byPID)+len(o.byMatePID))
	for pid := range o.byPID {
		pids[pid] = true
	}
	for pid := range o.byMatePID {
		pids[pid] = true
	}
	return pids
}

// mark notes that commands of the spec leave the mark behind.
func (o *owners) mark(mark string, s *agentproto.Spec) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.byMark[mark] = program{key: s.Key, name: s.ProcName, setup: s.SetupPath}
}

// unmark forgets the marks of a key.
func (o *owners) unmark(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for mark, p := range o.byMark {
		if p.key == key {
			delete(o.byMark, mark)
		}
	}
}

// otherInstance reports whether a mark is that of another key for the same
// program. The mark of a key for another program tells nothing: a command may
// start several programs.
func (o *owners) otherInstance(mark string, s *agentproto.Spec) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, known := o.byMark[mark]
	return known && p.key != s.Key && p.name == s.ProcName && p.setup == s.SetupPath
}
