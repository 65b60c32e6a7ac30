package proc

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/windows"
)

// killedCode is the exit code of what the agent ends, as a shell counts SIGKILL.
const killedCode = 137

// Signal ends exactly the identified process and never a later holder of its
// pid. Windows has no signals: SIGKILL is the only one that can be sent, every
// other gives ErrUnsupported. A process that is gone is no error: the caller
// wanted to influence something that has ended.
func Signal(id Identity, sig syscall.Signal) error {
	if id.PID <= systemPid || id.PID == os.Getpid() {
		return fmt.Errorf("signal pid %d: refused, it is never a managed process", id.PID)
	}
	if sig != syscall.SIGKILL {
		return fmt.Errorf("signal pid %d: Windows can only end a process, not send it %s: %w", id.PID, sig, errors.ErrUnsupported)
	}
	h, err := openSame(id, windows.PROCESS_TERMINATE)
	if err == nil {
		err = windows.TerminateProcess(h, killedCode)
		closeHandle(h)
	}
	switch {
	case err == nil, errors.Is(err, ErrGone), !Alive(id):
		return nil
	case errors.Is(err, windows.ERROR_ACCESS_DENIED):
		return fmt.Errorf("not permitted to end pid %d: %w", id.PID, syscall.EPERM)
	}
	return fmt.Errorf("end pid %d: %w", id.PID, err)
}

// freeze does nothing: what a process starts while it is being ended is found
// by the next look at the host.
func freeze(Identity) error { return nil }

// Thaw does nothing: no process is stopped by a signal.
func Thaw(Identity) error { return nil }

func signalName(sig syscall.Signal) string { return sig.String() }
