package proc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// KillScope selects the processes that belong to a tree in addition to the root and its
// descendants, and the processes that are protected.
type KillScope struct {
	// Key is the value of KeyMark in the environment of the tree's orphans, which left
	// the tree by setsid and a double fork; "" = do not search orphans.
	Key string

	// LedOnly excludes the root's session unless the root leads the session: all processes
	// of one start script share a session.
	LedOnly bool

	// Protected reports pids that must survive, such as the processes of other keys and the
	// agent's running commands. Their descendants survive too, and a session with a
	// protected process is not killed as a whole. The agent, its ancestors and pid 1 are
	// always protected. nil = no further pids.
	Protected func(pid int) bool
}

func (s KillScope) protects(pid int) bool { return s.Protected != nil && s.Protected(pid) }

// spared returns the protected processes with all their descendants. The root (0 = none) is
// not spared only because it descends from a protected process, such as a running command.
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
	// maxKillRounds and maxKillTime bound the killing of a fork bomb.
	maxKillRounds = 5
	maxKillTime   = 2 * time.Second
)

// KillTree kills the root with its descendants, the members of its session and marked
// orphans (see [KillScope]). It first stops the processes with SIGSTOP, so that none can
// fork while the others are killed. If the root has ended, it kills the marked orphans only.
//
// It blocks until all these processes are gone, at most 2 s and not beyond ctx, and returns
// the killed processes. The error names the processes that remain.
func KillTree(ctx context.Context, root Identity, scope KillScope) ([]Process, error) {
	ctx, cancel := context.WithTimeout(ctx, maxKillTime)
	defer cancel()
	kill := newTreeKill(root, scope)
	if err := kill.run(ctx); err != nil {
		return kill.members, fmt.Errorf("kill the tree of pid %d: %w", root.PID, err)
	}
	return kill.members, nil
}

// SignalTree sends a signal once to the root and all processes of its tree, and returns
// these processes. Unlike [KillTree] it may miss processes that are forked meanwhile. The
// error names the processes that could not be signalled.
func SignalTree(root Identity, scope KillScope, sig syscall.Signal) ([]Process, error) {
	members, err := treeMembers(root, scope)
	if err != nil {
		return nil, fmt.Errorf("signal the tree of pid %d: %w", root.PID, err)
	}
	return members, signalAll(members, sig)
}

// ContinueTree sends SIGCONT to a tree that an interrupted [KillTree] has stopped.
func ContinueTree(root Identity, scope KillScope) error {
	members, err := treeMembers(root, scope)
	if err != nil {
		return fmt.Errorf("continue the tree of pid %d: %w", root.PID, err)
	}
	for _, p := range members {
		err = errors.Join(err, Continue(p.Identity))
	}
	return err
}

func treeMembers(root Identity, scope KillScope) ([]Process, error) {
	h := newTreeKill(root, scope)
	if err := h.allowed(); err != nil {
		return nil, err
	}
	_, err := h.collect()
	return h.members, err
}

// treeKill is the state of one KillTree, SignalTree or ContinueTree.
type treeKill struct {
	root    Identity
	scope   KillScope
	members []Process
	known   map[Identity]bool // identities of the members
	stopped int               // number of the first members that were stopped
}

func newTreeKill(root Identity, scope KillScope) *treeKill {
	return &treeKill{root: root, scope: scope, known: map[Identity]bool{}}
}

func (h *treeKill) allowed() error {
	if h.root.PID <= 1 || agentAncestry()[h.root.PID] {
		return errors.New("refused: the tree contains the agent")
	}
	return nil
}

func (h *treeKill) run(ctx context.Context) error {
	if err := h.allowed(); err != nil {
		return err
	}
	for range maxKillRounds {
		// Always kill a stopped tree, even if stopping failed or ctx ended: otherwise the
		// tree would stay stopped.
		blind := h.stop(ctx)
		refused := signalAll(h.members, syscall.SIGKILL)
		if blind != nil {
			return errors.Join(blind, refused)
		}
		h.stopped = len(h.members)
		left := h.waitGone(ctx)
		more, err := h.collect()
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

// survivors returns the error of a kill that did not end in time.
func (h *treeKill) survivors() error {
	alive := describeAll(h.members)
	if alive == "" { // the last one has ended since
		return h.checkRoot()
	}
	return fmt.Errorf("alive after SIGKILL: %s", alive)
}

// checkRoot returns an error if the root was protected and not killed.
func (h *treeKill) checkRoot() error {
	if Alive(h.root) {
		return fmt.Errorf("%s is protected", h.root)
	}
	return nil
}

// stop sends SIGSTOP to the members until a reading of the host finds no new member.
func (h *treeKill) stop(ctx context.Context) error {
	for round := 0; round < maxKillRounds && ctx.Err() == nil; round++ {
		more, err := h.collect()
		if err != nil || !more {
			return err
		}
		for _, p := range h.members[h.stopped:] {
			// If a member cannot be stopped, stop the others: the kill reports the error.
			_ = stopProcess(p.Identity)
		}
		h.stopped = len(h.members)
	}
	return nil
}

// collect adds the new processes of the tree to the members, and reports whether there are
// members that were not stopped.
func (h *treeKill) collect() (bool, error) {
	table, err := ReadTable()
	if err != nil {
		return false, err
	}
	mine, spared := agentAncestry(), h.scope.spared(table, h.root.PID)
	for _, st := range table.closure(h.seeds(table), 0) {
		id := table.identity(st)
		if !h.known[id] && st.PID > 1 && !mine[st.PID] && !spared[st.PID] && !dead(st.State) {
			h.known[id] = true
			h.members = append(h.members, processOf(table.boot, st))
		}
	}
	return len(h.members) > h.stopped, nil
}

// seeds returns the root, earlier members, the root's session unless that is
// protected, and marked orphans.
func (h *treeKill) seeds(table *Table) []Stat {
	var seeds []Stat
	session := h.session(table)
	for _, st := range table.stats {
		id := table.identity(st)
		switch {
		case dead(st.State):
		case id == h.root, h.known[id],
			session > 0 && st.Session == session && st.Start >= h.root.Start,
			h.scope.Key != "" && markOf(st.PID) == h.scope.Key:
			seeds = append(seeds, st)
		}
	}
	return seeds
}

// session returns the id of the session to kill as a whole; 0 = none. It returns 0 if the
// root has ended, because another process may have its session id by now.
func (h *treeKill) session(table *Table) int {
	session := 0
	for _, st := range table.stats {
		if table.identity(st) == h.root {
			session = st.Session
		}
	}
	if h.scope.LedOnly && session != h.root.PID {
		return 0
	}
	mine := agentAncestry()
	for _, st := range table.stats {
		if st.Session == session && (st.PID == 1 || mine[st.PID] || h.scope.protects(st.PID)) {
			return 0
		}
	}
	return session
}

func (h *treeKill) waitGone(ctx context.Context) []Process {
	left, _ := waitGone(ctx, func() ([]Process, error) {
		gone := func(p Process) bool { return !Alive(p.Identity) }
		return slices.DeleteFunc(slices.Clone(h.members), gone), nil
	})
	return left
}
