package proc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// killPoll is the interval at which killed processes are checked.
const killPoll = 20 * time.Millisecond

// KillGroup ends the process group of a command: SIGTERM, and SIGKILL for the processes
// that remain after grace. The processes in spared survive with all their descendants, for
// example main processes that the command has just started. The members need not be children
// of the agent, so KillGroup can end a command of an earlier agent process.
//
// It blocks until the group is gone, at most grace + 2 s and not beyond ctx; the
// error names the processes that remain.
func KillGroup(ctx context.Context, leader Identity, grace time.Duration, spared ...Identity) error {
	members, err := groupExcept(leader, spared)
	if err != nil {
		return err
	}
	// Other errors are ignored here: the final error names the processes that remain. On a
	// system without SIGTERM kill at once.
	if err := signalAll(members, syscall.SIGTERM); errors.Is(err, errors.ErrUnsupported) {
		grace = 0
	}
	termCtx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	left, err := waitGone(termCtx, func() ([]Process, error) { return groupExcept(leader, spared) })
	if err != nil || len(left) == 0 {
		return err
	}
	killCtx, cancel := context.WithTimeout(ctx, maxKillTime)
	defer cancel()
	var refused error
	left, err = waitGone(killCtx, func() ([]Process, error) {
		members, err := groupExcept(leader, spared)
		refused = signalAll(members, syscall.SIGKILL) // repeated, because members may have forked
		return members, err
	})
	if err != nil || len(left) == 0 {
		return err
	}
	alive := describeAll(left)
	if alive == "" { // the last one has ended since
		return nil
	}
	return errors.Join(refused, fmt.Errorf("processes of command group %d alive after SIGKILL: %s", leader.PID, alive))
}

// groupExcept returns the group without the agent, its ancestors, the processes in except
// and the descendants of those processes.
func groupExcept(leader Identity, except []Identity) ([]Process, error) {
	table, err := ReadTable()
	if err != nil {
		return nil, err
	}
	spared := map[int]bool{}
	for _, id := range except {
		for _, st := range table.Tree(id) {
			spared[st.PID] = true
		}
	}
	mine := agentAncestry()
	var members []Stat
	for _, st := range table.group(leader) {
		if !spared[st.PID] && !mine[st.PID] {
			members = append(members, st)
		}
	}
	return table.processes(members), nil
}

func signalAll(processes []Process, sig syscall.Signal) error {
	var errs []error
	for _, p := range processes {
		errs = append(errs, Signal(p.Identity, sig))
	}
	return errors.Join(errs...)
}

// waitGone calls list until it returns no process, fails, or ctx ends, and returns
// the last list.
func waitGone(ctx context.Context, list func() ([]Process, error)) ([]Process, error) {
	for {
		left, err := list()
		if err != nil || len(left) == 0 {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return list()
		case <-time.After(killPoll):
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
