package proc

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Watcher reports the end of processes. The system's thread pool waits for the handles of
// all watched processes.
type Watcher struct {
	done sync.WaitGroup // goroutines that call died

	mu      sync.Mutex
	closed  bool
	watched map[uintptr]watched
}

type watched struct {
	id     Identity
	handle windows.Handle
	wait   uintptr // wait handle of RegisterWaitForSingleObject
	died   func(Death)
}

// close ends the wait, blocks until a running callback has returned, and closes the
// handle.
func (e watched) close() {
	_ = callBool(procUnregisterWait, e.wait, uintptr(windows.InvalidHandle))
	closeHandle(e.handle)
}

// slots maps the slot of a wait to its watcher: the system passes only the slot to the
// callback. Slots are never reused.
var slots struct {
	sync.Mutex
	last     uintptr
	watchers map[uintptr]*Watcher
}

// ended is the callback shared by all waits: a program can create only some thousand callbacks.
var ended = sync.OnceValue(func() uintptr {
	return windows.NewCallback(func(slot, _ uintptr) uintptr {
		slots.Lock()
		w := slots.watchers[slot]
		delete(slots.watchers, slot)
		slots.Unlock()
		if w != nil {
			w.done.Go(func() { w.notify(slot) }) // do not block the system's thread
		}
		return 0
	})
})

// NewWatcher returns a watcher.
func NewWatcher() (*Watcher, error) {
	return &Watcher{watched: map[uintptr]watched{}}, nil
}

// Add watches a process. When the process ends, a goroutine of the watcher calls died once;
// died must not block and must not call Close. If the process is already gone, Add returns
// ErrGone and died is not called. stop ends the watch; died may still be running when stop
// returns.
func (w *Watcher) Add(id Identity, died func(Death)) (stop func(), err error) {
	handle, err := openSame(id, 0)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", id, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		closeHandle(handle)
		return nil, fmt.Errorf("watch %s: the watcher is closed", id)
	}
	slot := w.newSlot()
	entry := watched{id: id, handle: handle, died: died}
	if err := register(&entry, slot); err != nil {
		freeSlot(slot)
		closeHandle(handle)
		return nil, fmt.Errorf("watch %s: %w", id, err)
	}
	w.watched[slot] = entry
	return func() { w.remove(slot) }, nil
}

// register starts the system's wait for the process.
func register(entry *watched, slot uintptr) error {
	const executeOnlyOnce = 8
	if err := callBool(procRegisterWait, uintptr(unsafe.Pointer(&entry.wait)), uintptr(entry.handle), ended(), slot,
		windows.INFINITE, executeOnlyOnce); err != nil {
		return fmt.Errorf("wait for its end: %w", err)
	}
	return nil
}

func (w *Watcher) newSlot() uintptr {
	slots.Lock()
	defer slots.Unlock()
	slots.last++
	if slots.watchers == nil {
		slots.watchers = map[uintptr]*Watcher{}
	}
	slots.watchers[slots.last] = w
	return slots.last
}

func freeSlot(slot uintptr) {
	slots.Lock()
	defer slots.Unlock()
	delete(slots.watchers, slot)
}

// remove ends a watch, and returns it if it existed.
func (w *Watcher) remove(slot uintptr) (watched, bool) {
	w.mu.Lock()
	entry, ok := w.watched[slot]
	delete(w.watched, slot)
	w.mu.Unlock()
	if ok {
		freeSlot(slot)
		entry.close()
	}
	return entry, ok
}

func (w *Watcher) notify(slot uintptr) {
	if entry, ok := w.remove(slot); ok {
		entry.died(Death{Identity: entry.id, At: time.Now()})
	}
}

// Close ends all watches and waits for the watcher's goroutines. A second
// Close does nothing.
func (w *Watcher) Close() error {
	w.mu.Lock()
	w.closed = true
	left := w.watched
	w.watched = map[uintptr]watched{}
	w.mu.Unlock()
	for slot, entry := range left {
		freeSlot(slot)
		entry.close()
	}
	w.done.Wait()
	return nil
}

// killedCode is the exit code of processes that the agent kills: the code that a shell
// reports for SIGKILL.
const killedCode = 137

// Signal ends exactly the identified process and never another process that has reused its
// pid. Windows has no signals: Signal supports SIGKILL only and returns
// errors.ErrUnsupported for others. It returns nil if the process is gone.
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

// stopProcess does nothing: Windows has no SIGSTOP. The next reading of the host finds
// processes that were started meanwhile.
func stopProcess(Identity) error { return nil }

// Continue does nothing: Windows has no SIGCONT.
func Continue(Identity) error { return nil }

func signalName(sig syscall.Signal) string { return sig.String() }
