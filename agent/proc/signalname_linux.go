package proc

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// signalName is the name that people look for: SIGSEGV, not "segmentation fault".
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return sig.String()
}
