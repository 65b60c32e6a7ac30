package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

const (
	// maxKillRounds and maxKillTime end the chase after a fork bomb.
	maxKillRounds = 5
	maxKillTime   = 2 * time.Second

	// killPoll is how often a killed tree is looked at until it is gone.
	killPoll = 20 * time.Millisecond
)

// KillTree kills the root with everything that belongs to it: descendants,
// members of the root's session and marked strays (see [KillScope]). The tree
// is frozen with SIGSTOP until no new member turns up and only then killed, so
// that it cannot fork ahead of the killer. The root may be gone already; its
// session and strays are killed then.
//
// It blocks until all are gone, at most 2 s and not beyond ctx, and returns the
// processes it killed. The error names what is left.
func KillTree(ctx context.Context, root Identity, scope KillScope) ([]Process, error) {
	ctx, cancel := context.WithTimeout(ctx, maxKillTime)
	defer cancel()
	hunt := &hunt{root: root, scope: scope, members: map[Identity]Process{}}
	if err := hunt.checkRoot(); err != nil {
		return nil, err
	}
	for round := 0; ; round++ {
		err := hunt.freeze(ctx)
		// A frozen tree is always killed, even when time is up: a stopped
		// process that nobody continues would be worse than either.
		err = errors.Join(err, hunt.kill())
		left := hunt.waitGone(ctx)
		if err != nil {
			return hunt.killed(), fmt.Errorf("kill the tree of pid %d: %w", root.PID, err)
		}
		if len(left) == 0 && !hunt.grow() {
			return hunt.killed(), nil
		}
		if ctx.Err() != nil || round+1 == maxKillRounds {
			return hunt.killed(), fmt.Errorf("kill the tree of pid %d: still there after SIGKILL: %s",
				root.PID, describeAll(left))
		}
	}
}

// hunt is the state of one KillTree.
type hunt struct {
	root    Identity
	scope   KillScope
	members map[Identity]Process
	order   []Identity
	fresh   []Identity // members not yet stopped
}

func (h *hunt) checkRoot() error {
	if h.root.PID <= 1 || agentLine()[h.root.PID] {
		return fmt.Errorf("kill the tree of pid %d: refused, the agent runs in it", h.root.PID)
	}
	return nil
}

// freeze stops members until a look at the host shows no new one.
func (h *hunt) freeze(ctx context.Context) error {
	for range maxKillRounds {
		if !h.grow() || ctx.Err() != nil {
			break
		}
		for _, id := range h.fresh {
			if err := Signal(id, syscall.SIGSTOP); err != nil {
				return err
			}
		}
		h.fresh = nil
	}
	return nil
}

// grow looks at the host and adds new members; it reports whether there were any.
func (h *hunt) grow() bool {
	table, err := ReadTable()
	if err != nil {
		return false
	}
	for _, st := range table.members(h.seeds(table), h.scope) {
		id := table.identity(st)
		if _, known := h.members[id]; !known {
			h.members[id] = processOf(table.boot, st)
			h.order = append(h.order, id)
			h.fresh = append(h.fresh, id)
		}
	}
	return len(h.fresh) > 0
}

// seeds are the rows from which the tree is closed: root, earlier members,
// the root's session when it is safe, and strays.
func (h *hunt) seeds(table *Table) []Stat {
	var seeds []Stat
	session := h.session(table)
	for _, st := range table.stats {
		id := table.identity(st)
		_, known := h.members[id]
		switch {
		case dead(st.State):
		case id == h.root, known,
			session > 0 && st.Session == session && st.Start >= h.root.Start,
			h.scope.Key != "" && hasMark(st.PID, KeyMark, h.scope.Key):
			seeds = append(seeds, st)
		}
	}
	return seeds
}

// session returns the session to kill as a whole, 0 when there is none. A root
// that is gone can only have left members behind if it led the session, since
// the kernel does not reuse a pid that still names one.
func (h *hunt) session(table *Table) int {
	session := h.root.PID
	for _, st := range table.stats {
		if table.identity(st) == h.root {
			session = st.Session
		} else if st.PID == h.root.PID {
			return 0 // the pid was reused
		}
	}
	ancestors := agentLine()
	for _, st := range table.stats {
		if st.Session == session && (st.PID == 1 || ancestors[st.PID] || h.scope.protects(st.PID)) {
			return 0
		}
	}
	return session
}

func (h *hunt) kill() error {
	var errs []error
	for _, id := range h.order {
		errs = append(errs, Signal(id, syscall.SIGKILL))
	}
	h.fresh = nil
	return errors.Join(errs...)
}

func (h *hunt) waitGone(ctx context.Context) []Process {
	return waitGone(ctx, func() []Process {
		var left []Process
		for _, id := range h.order {
			if Alive(id) {
				left = append(left, h.members[id])
			}
		}
		return left
	})
}

func (h *hunt) killed() []Process {
	killed := make([]Process, 0, len(h.order))
	for _, id := range h.order {
		killed = append(killed, h.members[id])
	}
	return killed
}

// members closes the seeds over their descendants and leaves out what is
// protected, together with everything below it.
func (t *Table) members(seeds []Stat, scope KillScope) []Stat {
	ancestors := agentLine()
	spare := map[int]bool{}
	for _, st := range t.stats {
		if st.PID == 1 || scope.protects(st.PID) {
			spare[st.PID] = true
		}
	}
	spared := map[int]bool{}
	for pid := range spare {
		if pid == 1 {
			continue // everything descends from it
		}
		for _, st := range t.closure(t.rows(pid)) {
			spared[st.PID] = true
		}
	}
	var members []Stat
	for _, st := range t.closure(seeds) {
		if st.PID > 1 && !ancestors[st.PID] && !spared[st.PID] && !dead(st.State) {
			members = append(members, st)
		}
	}
	return members
}

func (t *Table) rows(pid int) []Stat {
	for _, st := range t.stats {
		if st.PID == pid {
			return []Stat{st}
		}
	}
	return nil
}

// Strays returns the live processes that carry the mark of a key, wherever
// they hang in the process tree. A mark is evidence, not proof: a program may
// pass its environment on to something unrelated.
func Strays(key string) ([]Process, error) {
	table, err := ReadTable()
	if err != nil {
		return nil, err
	}
	var strays []Process
	for _, st := range table.stats {
		if !dead(st.State) && hasMark(st.PID, KeyMark, key) {
			strays = append(strays, processOf(table.boot, st))
		}
	}
	return strays, nil
}

func hasMark(pid int, name, value string) bool {
	environ, err := readBounded(procPath(pid, "environ"), maxEnviron)
	if err != nil {
		return false
	}
	mark := []byte(name + "=" + value)
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if bytes.Equal(entry, mark) {
			return true
		}
	}
	return false
}

// GroupMembers returns the live processes of the process group that the
// identified command leads or led. A leader whose pid was reused has none.
func GroupMembers(leader Identity) ([]Process, error) {
	table, err := ReadTable()
	if err != nil {
		return nil, err
	}
	return table.processes(table.group(leader)), nil
}

func (t *Table) group(leader Identity) []Stat {
	if leader.IsZero() || leader.BootID != t.boot {
		return nil
	}
	var members []Stat
	for _, st := range t.stats {
		if st.PID == leader.PID && st.Start != leader.Start {
			return nil
		}
		if st.PGID == leader.PID && st.Start >= leader.Start && !dead(st.State) {
			members = append(members, st)
		}
	}
	return members
}

// KillGroup ends the process group of a command: SIGTERM, and SIGKILL for what
// is left after grace. Processes in keep are spared with all their descendants:
// they are main processes that the command has just started. It needs no
// relation to the processes, so it also ends a command of an earlier agent.
//
// It blocks until the group is gone, at most grace + 2 s and not beyond ctx;
// the error names what is left.
func KillGroup(ctx context.Context, leader Identity, grace time.Duration, keep ...Identity) error {
	list := func() []Process { return groupBut(leader, keep) }
	termCtx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	refused := signalAll(list(), syscall.SIGTERM)
	if len(waitGone(termCtx, list)) == 0 {
		return nil
	}
	killCtx, cancel := context.WithTimeout(ctx, maxKillTime)
	defer cancel()
	left := waitGone(killCtx, func() []Process {
		left := list()
		// Again each time: members may have forked meanwhile.
		refused = signalAll(left, syscall.SIGKILL)
		return left
	})
	if len(left) > 0 {
		return errors.Join(refused,
			fmt.Errorf("command group %d is still there after SIGKILL: %s", leader.PID, describeAll(left)))
	}
	return nil
}

// groupBut lists the group without the kept processes and what descends from
// them. A table that cannot be read gives nobody, so that nobody is signalled.
func groupBut(leader Identity, keep []Identity) []Process {
	table, err := ReadTable()
	if err != nil {
		return nil
	}
	spared := map[int]bool{}
	for _, id := range keep {
		for _, st := range table.Tree(id) {
			spared[st.PID] = true
		}
	}
	mine := agentLine()
	var members []Stat
	for _, st := range table.group(leader) {
		if !spared[st.PID] && !mine[st.PID] {
			members = append(members, st)
		}
	}
	return table.processes(members)
}

func signalAll(processes []Process, sig syscall.Signal) error {
	var errs []error
	for _, p := range processes {
		errs = append(errs, Signal(p.Identity, sig))
	}
	return errors.Join(errs...)
}

// waitGone calls list until it is empty or ctx ends, and returns the last list.
func waitGone(ctx context.Context, list func() []Process) []Process {
	tick := time.NewTicker(killPoll)
	defer tick.Stop()
	for {
		left := list()
		if len(left) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return list()
		case <-tick.C:
		}
	}
}

func describeAll(processes []Process) string {
	var names []string
	for _, p := range processes {
		if st, err := statOf(p.Identity); err == nil {
			names = append(names, fmt.Sprintf("pid %d (%s, state %c)", st.PID, st.Comm, st.State))
		}
	}
	return strings.Join(names, ", ")
}
