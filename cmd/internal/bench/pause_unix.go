//go:build unix

package bench

import "syscall"

// pause suspends the process until goOn. It ignores errors, which mean that the process has ended.
func (c *child) pause() { _ = c.cmd.Process.Signal(syscall.SIGSTOP) }

func (c *child) goOn() { _ = c.cmd.Process.Signal(syscall.SIGCONT) }
