package proc

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Execution is a running command. Its first process, the leader, leads its own session and
// process group, so that [KillGroup] finds the group by Identity.
type Execution struct {
	leader Identity
	done   chan struct{}
	result Result
	output outputFile
	job    job
}

// Identity returns the command's leader: the shell, or the program that replaced it.
func (r *Execution) Identity() Identity { return r.leader }

// Done is closed when the leader has ended and Result is ready. Processes that the command
// left running do not delay Done.
func (r *Execution) Done() <-chan struct{} { return r.done }

// Result returns the exit and the output of the command. Call it only after Done is closed.
func (r *Execution) Result() Result { return r.result }

// Output reads the end of the output file again, at most OutputTail bytes. Unlike
// Result.Output it includes the output that processes left running have written since the
// command ended. It is empty after the file was removed. Call it only after Done is closed.
func (r *Execution) Output() string { return r.output.tail(OutputTail) }

// watch blocks until the command has exited, and bounds its output file meanwhile. If the
// timeout expires before, it ends the whole group and returns true.
func (r *Execution) watch(c Command, exited <-chan struct{}) (timedOut bool) {
	var expired <-chan time.Time
	if c.Timeout > 0 {
		expired = time.After(c.Timeout)
	}
	sizeCheck := time.After(firstSizeCheck)
	var killers sync.WaitGroup
	defer killers.Wait()
	for {
		select {
		case <-exited:
			return timedOut
		case <-sizeCheck:
			sizeCheck = time.After(r.output.bound())
		case <-expired:
			timedOut, expired = true, nil
			// If a process survives SIGKILL, which means that it is blocked in the kernel, Done
			// stays open.
			killers.Go(func() { _ = KillGroup(context.Background(), r.leader, KillGrace) })
		}
	}
}

// wait owns the command until its leader ends: it reaps the leader, bounds the
// output file and enforces the timeout.
func (r *Execution) wait(c Command, cmd *exec.Cmd, out *os.File, started time.Time) {
	defer close(r.done)
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		// The exit status is read from ProcessState; other errors cannot
		// happen, since there are no pipes to copy.
		_ = ownChildren.wait(cmd)
	}()
	r.output = outputFile{path: c.OutputPath, file: out}
	r.result.TimedOut = r.watch(c, exited)
	r.job.close()
	r.result.Elapsed = time.Since(started)
	r.result.setStatus(cmd.ProcessState)
	r.result.Output = r.Output()
	r.result.Hint = hint(c, r.result.ExitCode, r.result.Output)
	out.Close()
	r.result.OutputHeld = OutputHeld(c.OutputPath)
}

func (res *Result) setStatus(state *os.ProcessState) {
	res.ExitCode = state.ExitCode() // -1 without a state, if another part of the program reaped the command
	if state == nil {
		return
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		res.Signal = status.Signal()
	}
}

// ownChildren holds the children of this process that os/exec waits for. It is a global variable
// because a process has one set of children.
var ownChildren = children{pids: map[int]bool{}}

// children distinguishes the programs started here from orphans that the kernel made
// children of this process, see [ReapOrphans].
type children struct {
	starting sync.RWMutex // read-locked from before a fork until the child's pid is in pids
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

func (c *children) wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pids, cmd.Process.Pid)
	return err
}

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
