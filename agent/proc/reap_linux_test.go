package proc

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
	"golang.org/x/sys/unix"
)

// TestFirstProcessReapsOrphansAndStealsNoResult runs playFirst as PID 1 of its
// own PID namespace.
func TestFirstProcessReapsOrphansAndStealsNoResult(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t) // for a PID namespace
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), scenarioVar+"=first="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "good" {
		t.Fatalf("%v\n%s", err, out)
	}
}

func playFirst(dir string) {
	if err := reapAsFirst(dir); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("good")
}

func reapAsFirst(dir string) error {
	if os.Getpid() != 1 {
		return fmt.Errorf("this is pid %d", os.Getpid())
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	runner, err := NewRunner(NewAccounts())
	if err != nil {
		return err
	}
	// Without a reaper an orphan stays.
	if _, err := exitOf(runner, dir, 0); err != nil {
		return err
	}
	await(func() bool { return zombies() > 0 })

	ctx, stop := context.WithCancel(context.Background())
	var reaper sync.WaitGroup
	reaper.Go(func() { ReapOrphans(ctx) })
	defer reaper.Wait()
	defer stop()
	await(func() bool { return zombies() == 0 })

	const commands = 100
	var all sync.WaitGroup
	faults := make(chan error, commands)
	for n := range commands {
		all.Go(func() {
			switch code, err := exitOf(runner, dir, n); {
			case err != nil:
				faults <- err
			case code != n:
				faults <- fmt.Errorf("exit code %d, want %d", code, n)
			}
		})
	}
	all.Wait()
	close(faults)
	for err := range faults {
		return err
	}
	await(func() bool { return zombies() == 0 })
	return nil
}

var outputs struct {
	sync.Mutex
	n int
}

// exitOf runs a command that leaves orphans, some of which die before it, some
// with it and some after it, and ends with the given code.
func exitOf(runner *Runner, dir string, code int) (int, error) {
	outputs.Lock()
	outputs.n++
	output := filepath.Join(dir, strconv.Itoa(outputs.n))
	outputs.Unlock()
	running, err := runner.Start(context.Background(), Command{
		Line: fmt.Sprintf("(sh -c 'exit 91' &); (sleep 0.02 &); (sleep 0.2 &); exit %d", code), Dir: "/", OutputPath: output,
	})
	if err != nil {
		return -1, err
	}
	<-running.Done()
	return running.Result().ExitCode, nil
}

// zombies counts the dead children of this process.
func zombies() (n int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[0] == "Z" && fields[1] == "1" {
			n++
		}
	}
	return n
}
