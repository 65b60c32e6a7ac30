package proc

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// KillScope says which processes besides the descendants of the root belong to
// a tree, and which never do.
type KillScope struct {
	// Key is the value of the KeyMark environment variable that strays carry:
	// what left the tree by setsid and a double fork. "" = do not look.
	Key string

	// LedOnly leaves out the root's session unless the root leads it: whatever
	// one start script has started shares a session.
	LedOnly bool

	// Protected reports pids that must survive, such as the processes of other
	// keys and the agent's own commands. Their descendants survive too, and a
	// session with one of them is not killed as a session. The agent, its
	// ancestors and pid 1 are always protected. nil = no others.
	Protected func(pid int) bool
}

func (s KillScope) protects(pid int) bool { return s.Protected != nil && s.Protected(pid) }

// spared are the protected processes with all their descendants. A root (0 =
// none) that descends from one, like a program started by a command that still
// runs, is not spared for that.
func (s KillScope) spared(table *Table, root int) map[int]bool {
	var seeds []Stat
	barrier := root
	for _, st := range table.stats {
		if s.protects(st.PID) {
			seeds = append(seeds, st)
			if st.PID == root {
				barrier = 0
			}
		}
	}
	spared := map[int]bool{}
	for _, st := range table.closure(seeds, barrier) {
		spared[st.PID] = true
	}
	return spared
}

const (
	// maxKillRounds and maxKillTime end the chase after a fork bomb.
	maxKillRounds = 5
	maxKillTime   = 2 * time.Second
)

// KillTree kills the root with everything that belongs to it: descendants,
// members of the root's session and marked strays (see [KillScope]). The tree
// is frozen with SIGSTOP until no new member turns up and only then killed, so
// that it cannot fork ahead of the killer. The root may be gone already: then
// only marked strays are left to find.
//
// It blocks until all are gone, at most 2 s and not beyond ctx, and returns the
// processes it killed. The error names what is left.
func KillTree(ctx context.Context, root Identity, scope KillScope) ([]Process, error) {
	ctx, cancel := context.WithTimeout(ctx, maxKillTime)
	defer cancel()
	hunt := &hunt{root: root, scope: scope, members: map[Identity]Process{}}
	if err := hunt.run(ctx); err != nil {
		return hunt.killed(), fmt.Errorf("kill the tree of pid %d: %w", root.PID, err)
	}
	return hunt.killed(), nil
}

// SignalTree sends a signal once to the root and everything that belongs to it,
// and returns whom it found. Unlike with [KillTree] what forks meanwhile may be
// missed. The error names who refused.
func SignalTree(root Identity, scope KillScope, sig syscall.Signal) ([]Process, error) {
	h := &hunt{root: root, scope: scope, members: map[Identity]Process{}}
	if err := h.allowed(); err != nil {
		return nil, fmt.Errorf("signal the tree of pid %d: %w", root.PID, err)
	}
	if _, err := h.grow(); err != nil {
		return nil, fmt.Errorf("signal the tree of pid %d: %w", root.PID, err)
	}
	return h.killed(), signalAll(h.killed(), sig)
}

// ThawTree lets a tree go on that a [KillTree] has stopped whose program ended
// before it could kill it.
func ThawTree(root Identity, scope KillScope) error {
	h := &hunt{root: root, scope: scope, members: map[Identity]Process{}}
	if err := h.allowed(); err != nil {
		return fmt.Errorf("let the tree of pid %d go on: %w", root.PID, err)
	}
	_, err := h.grow()
	for _, p := range h.killed() {
		err = errors.Join(err, Thaw(p.Identity))
	}
	return err
}

// hunt is the state of one KillTree.
type hunt struct {
	root    Identity
	scope   KillScope
	members map[Identity]Process
	order   []Identity
	fresh   []Identity // members not yet stopped
}

func (h *hunt) allowed() error {
	if h.root.PID <= 1 || agentLine()[h.root.PID] {
		return errors.New("refused, the agent runs in it")
	}
	return nil
}

func (h *hunt) run(ctx context.Context) error {
	if err := h.allowed(); err != nil {
		return err
	}
	for range maxKillRounds {
		// A frozen tree is always killed, even when freezing failed or time is
		// up: a stopped process that nobody continues would be worse.
		blind := h.freeze(ctx)
		refused := signalAll(h.killed(), syscall.SIGKILL)
		if blind != nil {
			return errors.Join(blind, refused)
		}
		h.fresh = nil
		left := h.waitGone(ctx)
		more, err := h.grow()
		switch {
		case err != nil:
			return err
		case len(left) == 0 && !more:
			return h.checkRoot()
		case refused != nil:
			return refused
		case ctx.Err() != nil:
			return h.survivors()
		}
	}
	return h.survivors()
}

func (h *hunt) survivors() error {
	return fmt.Errorf("still there after SIGKILL: %s", describeAll(h.killed()))
}

// checkRoot tells a finished hunt from one that was not allowed to begin.
func (h *hunt) checkRoot() error {
	if Alive(h.root) {
		return fmt.Errorf("%s is protected", h.root)
	}
	return nil
}

// freeze stops members until a look at the host shows no new one.
func (h *hunt) freeze(ctx context.Context) error {
	for round := 0; round < maxKillRounds && ctx.Err() == nil; round++ {
		more, err := h.grow()
		if err != nil || !more {
			return err
		}
		for _, id := range h.fresh {
			// A refusal must not keep the others from being stopped; it comes
			// again with the kill, and is told then.
			_ = freeze(id)
		}
		h.fresh = nil
	}
	return nil
}

// grow looks at the host and adds new members; it reports whether there are any.
func (h *hunt) grow() (bool, error) {
	table, err := ReadTable()
	if err != nil {
		return false, err
	}
	mine, spared := agentLine(), h.scope.spared(table, h.root.PID)
	for _, st := range table.closure(h.seeds(table), 0) {
		id := table.identity(st)
		_, known := h.members[id]
		if !known && st.PID > 1 && !mine[st.PID] && !spared[st.PID] && !dead(st.State) {
			h.members[id] = processOf(table.boot, st)
			h.order = append(h.order, id)
			h.fresh = append(h.fresh, id)
		}
	}
	return len(h.fresh) > 0, nil
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
			h.scope.Key != "" && markOf(st.PID) == h.scope.Key:
			seeds = append(seeds, st)
		}
	}
	return seeds
}

// session returns the session to kill as a whole, 0 when there is none. Once
// the root is gone nothing proves any more whose session bears its number.
func (h *hunt) session(table *Table) int {
	session := 0
	for _, st := range table.stats {
		if table.identity(st) == h.root {
			session = st.Session
		}
	}
	if h.scope.LedOnly && session != h.root.PID {
		return 0
	}
	mine := agentLine()
	for _, st := range table.stats {
		if st.Session == session && (st.PID == 1 || mine[st.PID] || h.scope.protects(st.PID)) {
			return 0
		}
	}
	return session
}

// waitGone waits for the members that are known, and returns those that stay.
func (h *hunt) waitGone(ctx context.Context) []Process {
	left, _ := waitGone(ctx, func() ([]Process, error) {
		var left []Process
		for _, id := range h.order {
			if Alive(id) {
				left = append(left, h.members[id])
			}
		}
		return left, nil
	})
	return left
}

func (h *hunt) killed() []Process {
	killed := make([]Process, 0, len(h.order))
	for _, id := range h.order {
		killed = append(killed, h.members[id])
	}
	return killed
}
