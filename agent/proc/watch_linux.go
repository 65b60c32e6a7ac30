package proc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pollPeriod is the interval at which processes without a pidfd are checked.
const pollPeriod = time.Second

// Watcher reports the end of processes. One goroutine waits for all processes in epoll and
// detects an end within milliseconds. Processes for which no pidfd can be opened are polled
// every second.
type Watcher struct {
	poll  bool // true in tests of kernels without pidfd
	epoll int
	wake  int // eventfd that ends the epoll goroutine
	quit  chan struct{}
	done  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	next    uint64
	watched map[uint64]watched
}

type watched struct {
	id    Identity
	pidfd int // -1 = polled
	died  func(Death)
}

func (e watched) close() {
	if e.pidfd >= 0 {
		closeFD(e.pidfd)
	}
}

// NewWatcher starts a watcher; Close ends its goroutines.
func NewWatcher() (*Watcher, error) {
	w := &Watcher{quit: make(chan struct{}), watched: map[uint64]watched{}}
	var err error
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("watch processes: create an epoll: %w", err)
	}
	if w.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		closeFD(w.epoll)
		return nil, fmt.Errorf("watch processes: create an eventfd: %w", err)
	}
	if err := w.register(w.wake, 0); err != nil {
		closeFD(w.epoll)
		closeFD(w.wake)
		return nil, fmt.Errorf("watch processes: %w", err)
	}
	w.done.Go(w.waitEvents)
	w.done.Go(w.pollAll)
	return w, nil
}

// Add watches a process. When the process ends, a goroutine of the watcher calls died once,
// with the exit if it is known; died must not block and must not call Close. If the process
// is already gone, Add returns ErrGone and died is not called. stop ends the watch; died
// may still be running when stop returns.
func (w *Watcher) Add(id Identity, died func(Death)) (stop func(), err error) {
	pidfd, err := w.open(id)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", id, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	entry := watched{id: id, pidfd: pidfd, died: died}
	if w.closed {
		entry.close()
		return nil, fmt.Errorf("watch %s: the watcher is closed", id)
	}
	w.next++
	slot := w.next
	if pidfd >= 0 {
		if err := w.register(pidfd, slot); err != nil {
			entry.close()
			return nil, fmt.Errorf("watch %s: %w", id, err)
		}
	}
	w.watched[slot] = entry
	return func() { w.remove(slot) }, nil
}

func (w *Watcher) open(id Identity) (pidfd int, err error) {
	if !w.poll {
		pidfd, err = openPidfd(id)
		if err == nil || errors.Is(err, ErrGone) {
			return pidfd, err
		}
		// pidfd is not supported, or no descriptors are left: polling needs neither.
	}
	_, err = statOf(id)
	return -1, err
}

// register adds fd to the epoll, with slot as the event's data. Slots are never reused, so
// an event of an ended watch is ignored.
func (w *Watcher) register(fd int, slot uint64) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}
	event.Fd, event.Pad = int32(uint32(slot)), int32(uint32(slot>>32))
	if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("add to epoll: %w", err)
	}
	return nil
}

func slotOf(event unix.EpollEvent) uint64 {
	return uint64(uint32(event.Fd)) | uint64(uint32(event.Pad))<<32
}

// remove ends a watch, and returns it if it existed. Closing the pidfd removes it from the
// epoll.
func (w *Watcher) remove(slot uint64) (watched, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	entry, ok := w.watched[slot]
	if ok {
		delete(w.watched, slot)
		entry.close()
	}
	return entry, ok
}

func (w *Watcher) notify(slot uint64, at time.Time) {
	w.mu.Lock()
	entry, ok := w.watched[slot]
	w.mu.Unlock()
	if !ok {
		return
	}
	exit := howEnded(entry.id, entry.pidfd) // before remove closes the pidfd
	if _, ok := w.remove(slot); ok {
		entry.died(Death{Identity: entry.id, Exit: exit, At: at})
	}
}

func (w *Watcher) waitEvents() {
	var events [64]unix.EpollEvent
	for {
		n, err := retryEINTR(func() (int, error) { return unix.EpollWait(w.epoll, events[:], -1) })
		if err != nil {
			return // fails only after the epoll was closed
		}
		now := time.Now()
		for _, event := range events[:n] {
			slot := slotOf(event)
			if slot == 0 {
				return
			}
			w.notify(slot, now)
		}
	}
}

func (w *Watcher) pollAll() {
	for {
		select {
		case <-w.quit:
			return
		case <-time.After(pollPeriod):
		}
		for slot, id := range w.polled() {
			if _, err := statOf(id); errors.Is(err, ErrGone) {
				w.notify(slot, time.Now())
			}
		}
	}
}

func (w *Watcher) polled() map[uint64]Identity {
	w.mu.Lock()
	defer w.mu.Unlock()
	polled := map[uint64]Identity{}
	for slot, entry := range w.watched {
		if entry.pidfd < 0 {
			polled[slot] = entry.id
		}
	}
	return polled
}

// Close ends all watches and waits for the watcher's goroutines. A second Close does
// nothing.
func (w *Watcher) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	w.mu.Unlock()
	close(w.quit)
	one := binary.NativeEndian.AppendUint64(nil, 1)
	if _, err := unix.Write(w.wake, one); err != nil {
		return fmt.Errorf("stop watching processes: %w", err)
	}
	w.done.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, entry := range w.watched {
		entry.close()
	}
	clear(w.watched)
	return errors.Join(unix.Close(w.epoll), unix.Close(w.wake))
}
