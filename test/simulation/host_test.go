package simulation

import (
	"strings"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/test/cluster/check"
)

// host is a modeled host: its clocks, the processes that run on it, and the
// marks that commands left.
type host struct {
	addr procfleet.Host

	mu        sync.Mutex
	booted    time.Time
	boot      string
	pids      int
	processes map[string]*process
	marks     *marks
	jump      time.Duration // of the wall clock against true time
	stopped   time.Time     // since when the wall clock stands still; zero = it runs
}

// process is one that runs.
type process struct {
	id   supervise.Identity
	died []func()
}

// marks are those of all hosts, in the order in which commands ran.
type marks struct {
	mu  sync.Mutex
	all []check.Mark
}

func newHost(addr procfleet.Host, m *marks) *host {
	// It has been up for long, so that automatic starts wait for nothing.
	return &host{addr: addr, marks: m, booted: time.Now().Add(-time.Hour), boot: "boot-1", processes: map[string]*process{}}
}

// clone is a copy of the host with what runs on it, as of a virtual machine.
func (h *host) clone() *host {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &host{addr: h.addr, marks: h.marks, booted: h.booted, boot: h.boot, pids: h.pids, processes: map[string]*process{}}
	for key, p := range h.processes {
		c.processes[key] = &process{id: p.id}
	}
	return c
}

// wall is the host's wall clock.
func (h *host) wall() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if !h.stopped.IsZero() {
		now = h.stopped
	}
	return now.Add(h.jump)
}

// elapsed is the time since the host booted.
func (h *host) elapsed() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.booted)
}

// setClock has the wall clock be off, and stand still or go on.
func (h *host) setClock(jump time.Duration, stopped bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.jump, h.stopped = jump, time.Time{}
	if stopped {
		h.stopped = time.Now()
	}
}

// main is the process of a key, the zero identity if it does not run.
func (h *host) main(key string) supervise.Identity {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.processes[key]; p != nil {
		return p.id
	}
	return supervise.Identity{}
}

// run carries out a control command: it leaves its mark, and starts or ends the
// process. The order on one host is that of the marks.
func (h *host) run(key string, verb check.Verb, command, operation string, stays bool) supervise.Identity {
	h.mu.Lock()
	h.marks.add(h.addr, verb, command, operation)
	var died []func()
	switch verb {
	case check.VerbStart:
		if stays {
			h.pids++
			h.processes[key] = &process{id: supervise.Identity{BootID: h.boot, PID: h.pids, Start: uint64(h.pids)}}
		}
	case check.VerbStop, check.VerbKill:
		if p := h.processes[key]; p != nil {
			died = p.died
		}
		delete(h.processes, key)
	case check.VerbReload:
	}
	h.mu.Unlock()
	for _, tell := range died {
		tell()
	}
	return h.main(key)
}

// watch calls died once the process has ended, and reports whether it runs.
func (h *host) watch(id supervise.Identity, died func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.processes {
		if p.id == id {
			p.died = append(p.died, died)
			return true
		}
	}
	return false
}

// losePower ends all processes and boots the host anew.
func (h *host) losePower() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.processes)
	h.booted, h.boot = time.Now(), h.boot+"+"
}

// add records a mark as the shell line of the load writes it:
// echo "<token> <process> <verb> $PROCFLEET_OP $up".
func (m *marks) add(addr procfleet.Host, verb check.Verb, command, operation string) {
	_, rest, _ := strings.Cut(command, `echo "`)
	words := strings.Fields(rest)
	if len(words) < 3 {
		return // it leaves none
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, check.Mark{Host: addr, Token: words[0], Process: words[1], Verb: verb, Operation: operation, At: time.Now()})
}

func (m *marks) read() ([]check.Mark, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]check.Mark(nil), m.all...), nil
}
