package procop

import (
	"sync"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// Claims records to which key each process belongs. It prevents two keys that describe the
// same process by mistake from acting on it alternately, and distinguishes instances of one
// program. A key claims one main process and, if its spec has several instances, all of them.
type Claims struct {
	mu        sync.Mutex
	byKey     map[string]proc.Identity
	byProcess map[proc.Identity]claim
	byPID     map[int]string
	byMark    map[string]program

	instances     map[string][]proc.Identity // only keys with several instances
	byInstance    map[proc.Identity]string
	byInstancePID map[int]string
}

// claim is the claim of a key on a process.
type claim struct {
	key string
	// proven reports that a pid file or a mark identified the process. A proven claim
	// prevails over a claim by name and path.
	proven bool
}

// program identifies the program whose processes carry a mark, and its key.
type program struct{ key, name, setup string }

// NewClaims returns an empty registry of claims.
func NewClaims() *Claims {
	return &Claims{
		byKey: map[string]proc.Identity{}, byProcess: map[proc.Identity]claim{},
		byPID: map[int]string{}, byMark: map[string]program{},
		instances: map[string][]proc.Identity{}, byInstance: map[proc.Identity]string{}, byInstancePID: map[int]string{},
	}
}

// Conflict returns the other key whose claim on the process prevails over a claim of key;
// "" = none. proven applies to the claim of key.
func (c *Claims) Conflict(id proc.Identity, key string, proven bool) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conflict(id, key, proven)
}

func (c *Claims) conflict(id proc.Identity, key string, proven bool) string {
	if other := c.byInstance[id]; other != "" && other != key {
		return other
	}
	if has := c.byProcess[id]; has.key != key && (has.proven || !proven) {
		return has.key
	}
	return ""
}

// Claim makes id the main process of key. If another key's claim prevails, Claim changes
// nothing and returns that key.
func (c *Claims) Claim(id proc.Identity, key string, proven bool) (conflict string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.conflict(id, key, proven); other != "" {
		return other
	}
	has := c.byProcess[id]
	c.release(has.key)
	c.release(key)
	c.byKey[key], c.byPID[id.PID] = id, key
	c.byProcess[id] = claim{key: key, proven: proven || has.key == key && has.proven}
	return ""
}

// Release ends the claim of a key on its main process.
func (c *Claims) Release(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.release(key)
}

func (c *Claims) release(key string) {
	id, has := c.byKey[key]
	if !has {
		return
	}
	delete(c.byKey, key)
	delete(c.byProcess, id)
	if c.byPID[id.PID] == key { // the pid may have been reused by the process of another key
		delete(c.byPID, id.PID)
	}
}

// ClaimInstances replaces the instances of a key.
func (c *Claims) ClaimInstances(key string, ids []proc.Identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range c.instances[key] {
		delete(c.byInstance, id)
		delete(c.byInstancePID, id.PID)
	}
	delete(c.instances, key)
	if len(ids) == 0 {
		return
	}
	c.instances[key] = ids
	for _, id := range ids {
		c.byInstance[id], c.byInstancePID[id.PID] = key, key
	}
}

// OtherHas reports whether a key other than key has claimed the pid.
func (c *Claims) OtherHas(pid int, key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	main, instance := c.byPID[pid], c.byInstancePID[pid]
	return main != "" && main != key || instance != "" && instance != key
}

// PIDs returns the pids of all claimed processes.
func (c *Claims) PIDs() map[int]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	pids := make(map[int]bool, len(c.byPID)+len(c.byInstancePID))
	for pid := range c.byPID {
		pids[pid] = true
	}
	for pid := range c.byInstancePID {
		pids[pid] = true
	}
	return pids
}

// AddMark records that commands of the spec carry the mark.
func (c *Claims) AddMark(mark string, s *agentproto.Spec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byMark[mark] = program{key: s.Key, name: s.ProcName, setup: s.SetupPath}
}

// RemoveMarks removes the marks of a key.
func (c *Claims) RemoveMarks(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for mark, p := range c.byMark {
		if p.key == key {
			delete(c.byMark, mark)
		}
	}
}

// otherInstance reports whether another key with the same program uses the mark. The mark
// of a key with another program proves nothing: one command may start several programs.
func (c *Claims) otherInstance(mark string, s *agentproto.Spec) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, known := c.byMark[mark]
	return known && p.key != s.Key && p.name == s.ProcName && p.setup == s.SetupPath
}
