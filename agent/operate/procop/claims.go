package procop

import (
	"maps"
	"path/filepath"
	"sync"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// Claims records to which key each process belongs. It prevents two keys that describe the
// same process by mistake from acting on it alternately, and distinguishes instances of one
// program. A key claims one main process and, if its spec has several instances, all of them.
// It also claims its pid file, which is that of no other key.
type Claims struct {
	mu        sync.Mutex
	mains     claims
	proven    map[string]bool // keys whose main process was identified by a pid file or a mark
	instances claims
	byMark    map[string]program
	pidFiles  map[string]string // key of each pid file, by clean path
}

// claims holds the processes of each key. A process belongs to at most one key.
type claims struct {
	byKey     map[string][]proc.Identity
	byProcess map[proc.Identity]string
	byPID     map[int]string
}

func newClaims() claims {
	return claims{byKey: map[string][]proc.Identity{}, byProcess: map[proc.Identity]string{}, byPID: map[int]string{}}
}

// set replaces the processes of a key.
func (c *claims) set(key string, ids ...proc.Identity) {
	for _, id := range c.byKey[key] {
		if c.byProcess[id] == key {
			delete(c.byProcess, id)
		}
		if c.byPID[id.PID] == key { // the pid may have been reused by the process of another key
			delete(c.byPID, id.PID)
		}
	}
	delete(c.byKey, key)
	if len(ids) > 0 {
		c.byKey[key] = ids
	}
	for _, id := range ids {
		c.byProcess[id], c.byPID[id.PID] = key, key
	}
}

// program identifies the program whose processes carry a mark, and its key.
type program struct{ key, name, setup string }

// NewClaims returns an empty registry of claims.
func NewClaims() *Claims {
	return &Claims{mains: newClaims(), proven: map[string]bool{}, instances: newClaims(), byMark: map[string]program{}, pidFiles: map[string]string{}}
}

// Conflict returns the other key whose claim on the process prevails over a claim of key;
// "" = none. A proven claim, by a pid file or a mark, prevails over a claim by name and path.
// proven applies to the claim of key.
func (c *Claims) Conflict(id proc.Identity, key string, proven bool) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conflict(id, key, proven)
}

func (c *Claims) conflict(id proc.Identity, key string, proven bool) string {
	if other := c.instances.byProcess[id]; other != "" && other != key {
		return other
	}
	if other := c.mains.byProcess[id]; other != key && (c.proven[other] || !proven) {
		return other
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
	owner := c.mains.byProcess[id]
	proven = proven || owner == key && c.proven[key]
	c.release(owner)
	c.release(key)
	c.mains.set(key, id)
	if proven {
		c.proven[key] = true
	}
	return ""
}

// Release ends the claim of a key on its main process.
func (c *Claims) Release(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.release(key)
}

func (c *Claims) release(key string) {
	c.mains.set(key)
	delete(c.proven, key)
}

// ClaimInstances replaces the instances of a key.
func (c *Claims) ClaimInstances(key string, ids []proc.Identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.instances.set(key, ids...)
}

// OtherHas reports whether a key other than key has claimed the pid.
func (c *Claims) OtherHas(pid int, key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	main, instance := c.mains.byPID[pid], c.instances.byPID[pid]
	return main != "" && main != key || instance != "" && instance != key
}

// PIDs returns the pids of all claimed processes.
func (c *Claims) PIDs() map[int]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	pids := make(map[int]bool, len(c.mains.byPID)+len(c.instances.byPID))
	for _, claimed := range []claims{c.mains, c.instances} {
		for pid := range claimed.byPID {
			pids[pid] = true
		}
	}
	return pids
}

// AddMark records that commands of the spec carry the mark.
func (c *Claims) AddMark(mark string, s *agentproto.Spec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byMark[mark] = program{key: s.Key, name: s.ProcName, setup: s.SetupPath}
}

// ClaimPidFile makes path the pid file of key, unless another key than former has claimed it:
// then ClaimPidFile changes nothing and returns that key. former = "" stands for no key.
func (c *Claims) ClaimPidFile(path, key, former string) (conflict string) {
	if path == "" {
		return ""
	}
	path = filepath.Clean(path)
	c.mu.Lock()
	defer c.mu.Unlock()
	if owner := c.pidFiles[path]; owner != "" && owner != key && owner != former {
		return owner
	}
	c.pidFiles[path] = key
	return ""
}

// Forget removes the marks and the pid files of a key.
func (c *Claims) Forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.pidFiles, func(_, owner string) bool { return owner == key })
	maps.DeleteFunc(c.byMark, func(_ string, p program) bool { return p.key == key })
}

// otherInstance reports whether another key with the same program uses the mark. The mark
// of a key with another program proves nothing: one command may start several programs.
func (c *Claims) otherInstance(mark string, s *agentproto.Spec) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, known := c.byMark[mark]
	return known && p.key != s.Key && p.name == s.ProcName && p.setup == s.SetupPath
}
