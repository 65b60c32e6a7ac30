package simulation

import (
	"strings"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/test/cluster/check"
)

// host is a modeled host: its clocks, its processes, and the marks of commands.
type host struct {
	addr procfleet.Host

	mu        sync.Mutex
	booted    time.Time
	boot      string
	pids      int
	processes map[string]*process
	marks     *marks
	jump      time.Duration // offset of the wall clock
	stopped   time.Time     // time at which the wall clock stopped; zero = it runs
}

// process is a running process.
type process struct {
	id   supervise.Identity
	died []func()
}

// marks are the marks of all hosts, in the order of their commands.
type marks struct {
	mu  sync.Mutex
	all []check.Mark
}

func newHost(addr procfleet.Host, m *marks) *host {
	// The host has run for long, so automatic starts do not wait after a boot.
	return &host{addr: addr, marks: m, booted: time.Now().Add(-time.Hour), boot: "boot-1", processes: map[string]*process{}}
}

// clone returns a copy of the host with its processes, like a copy of a virtual
// machine.
func (h *host) clone() *host {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &host{addr: h.addr, marks: h.marks, booted: h.booted, boot: h.boot, pids: h.pids, processes: map[string]*process{}}
	for key, p := range h.processes {
		c.processes[key] = &process{id: p.id}
	}
	return c
}

// wall returns the time of the host's wall clock.
func (h *host) wall() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if !h.stopped.IsZero() {
		now = h.stopped
	}
	return now.Add(h.jump)
}

// elapsed returns the time since the host booted.
func (h *host) elapsed() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.booted)
}

// setClock sets the offset of the wall clock, and stops or resumes it.
func (h *host) setClock(jump time.Duration, stopped bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.jump, h.stopped = jump, time.Time{}
	if stopped {
		h.stopped = time.Now()
	}
}

// main returns the process of a key, or the zero identity if it does not run.
func (h *host) main(key string) supervise.Identity {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.processes[key]; p != nil {
		return p.id
	}
	return supervise.Identity{}
}

// run executes a control command: it writes its mark, and starts or ends the
// process. The marks have the order of the commands on the host.
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

// watch calls died when the process has ended, and reports whether it runs.
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

// losePower ends all processes and boots the host.
func (h *host) losePower() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.processes)
	h.booted, h.boot = time.Now(), h.boot+"+"
}

// add records a mark like the shell line of the load: echo "<token> <process>
// <verb> $PROCFLEET_OP $up".
func (m *marks) add(addr procfleet.Host, verb check.Verb, command, operation string) {
	_, rest, _ := strings.Cut(command, `echo "`)
	words := strings.Fields(rest)
	if len(words) < 3 {
		return // the command writes no mark
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
