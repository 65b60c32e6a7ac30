package proc

import (
	"bytes"
	"os/exec"
	"sync"
)

// ours are the children of this process that os/exec waits for. A process has
// one set of children, so there is one of this.
var ours = children{pids: map[int]bool{}}

// children tells the programs that were started here from orphans that the
// kernel made children of this process, whose end somebody else must hear of.
type children struct {
	starting sync.RWMutex // held for reading from before a fork until its pid is in pids
	mu       sync.Mutex
	pids     map[int]bool
}

func (c *children) start(cmd *exec.Cmd) error {
	c.starting.RLock()
	defer c.starting.RUnlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pids[cmd.Process.Pid] = true
	return nil
}

// wait waits for what start has started.
func (c *children) wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pids, cmd.Process.Pid)
	return err
}

// output runs a command and returns its standard output.
func (c *children) output(cmd *exec.Cmd) ([]byte, error) {
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := c.start(cmd); err != nil {
		return nil, err
	}
	err := c.wait(cmd)
	return out.Bytes(), err
}

func (c *children) has(pid int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pids[pid]
}

// ReadStat reads how a process stands now, a dead one that was not reaped
// included.
func ReadStat(pid int) (Stat, error) { return readStat(pid) }
