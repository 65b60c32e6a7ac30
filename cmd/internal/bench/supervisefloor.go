package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
)

// bareAtATime is the number of concurrent commands of the floor, as in an agent.
const bareAtATime = 64

// measureBare measures the floor without an agent: detecting the death of a child process,
// and running a start command.
func (s Supervise) measureBare(ctx context.Context, at *site, found *findings) error {
	d := deaths{what: "floor"}
	for range s.Kills {
		took, err := bareWait(ctx)
		if err != nil {
			return err
		}
		d.detected = append(d.detected, took)
	}
	sleepers, err := at.sleepers("bare", s.Runs)
	if err != nil {
		return err
	}
	for _, p := range sleepers {
		begun := time.Now()
		if err := inShell(ctx, bareShell, p.command).Run(); err != nil {
			return err
		}
		d.restarted = append(d.restarted, time.Since(begun))
		if err := kill(p.pid()); err != nil {
			return err
		}
	}
	found.deaths = append(found.deaths, d)
	return nil
}

const bareShell = "/bin/sh"

// loginShell returns the shell in which an agent runs commands of the account.
func loginShell(ctx context.Context, account string) (string, error) {
	a, err := proc.NewAccounts().Lookup(ctx, account)
	return a.Shell, err
}

func inShell(ctx context.Context, shell, command string) *exec.Cmd {
	return exec.CommandContext(ctx, shell, "-c", command) //nolint:gosec // commands of this package
}

// bareWait measures the time from the kill of a child until a wait for it returns.
func bareWait(ctx context.Context) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, sleeperName, sleeperLife)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	over := make(chan time.Time, 1)
	go func() {
		_ = cmd.Wait() // the error reports the kill
		over <- time.Now()
	}()
	// Kill only after the goroutine has begun to wait.
	if err := wait(ctx, time.Millisecond); err != nil {
		return 0, err
	}
	begun := time.Now()
	if err := cmd.Process.Signal(os.Kill); err != nil {
		return 0, err
	}
	return (<-over).Sub(begun), nil
}

// bareCommands measures n runs of a command in a shell, bareAtATime concurrently.
func bareCommands(ctx context.Context, shell string, n int, command string) (time.Duration, error) {
	begun := time.Now()
	left := make(chan struct{}, n)
	for range n {
		left <- struct{}{}
	}
	close(left)
	var work sync.WaitGroup
	errs := make(chan error, bareAtATime)
	for range bareAtATime {
		work.Go(func() {
			for range left {
				if err := inShell(ctx, shell, command).Run(); err != nil {
					errs <- fmt.Errorf("%s: %w", command, err)
					return
				}
			}
		})
	}
	work.Wait()
	select {
	case err := <-errs:
		return 0, err
	default:
		return time.Since(begun), nil
	}
}
