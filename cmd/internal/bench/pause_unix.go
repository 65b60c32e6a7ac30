//go:build unix

package bench

import "syscall"

// pause has the process stand still until goOn. Errors mean that it is gone.
func (c *child) pause() { _ = c.cmd.Process.Signal(syscall.SIGSTOP) }

func (c *child) goOn() { _ = c.cmd.Process.Signal(syscall.SIGCONT) }
