//go:build unix

package bench

import "syscall"

// suspend suspends the process until resume. It ignores errors, which mean that the process
// has ended.
func (c *child) suspend() { _ = c.cmd.Process.Signal(syscall.SIGSTOP) }

func (c *child) resume() { _ = c.cmd.Process.Signal(syscall.SIGCONT) }
