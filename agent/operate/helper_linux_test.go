package operate

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/procfleet/procfleet/internal/testenv"
)

// Names under which the test binary is copied. It then acts as a managed program (demo) or as
// a parent that never reaps its child (keeper).
const (
	demoName   = "demo"
	keeperName = "keeper"
)

func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case demoName:
		os.Exit(demo(os.Args[1:]))
	case keeperName:
		os.Exit(keeper(os.Args[1:]))
	}
	testenv.WithoutProfile()
	goleak.VerifyTestMain(m)
}

// demo is a managed program. It exits when its working directory is removed or after two
// minutes, so that it does not outlive a test that crashes.
func demo(args []string) int {
	flags := flag.NewFlagSet(demoName, flag.ExitOnError)
	pidFile := flags.String("pid", "", "pid file to write")
	late := flags.Duration("late", 0, "wait before writing the pid file")
	life := flags.Duration("life", 2*time.Minute, "time to live")
	ignore := flags.Bool("ignore-term", false, "ignore SIGTERM")
	linger := flags.Duration("linger", 0, "time to end after SIGTERM")
	worker := flags.Bool("worker", false, "start another demo in an own session that survives this one")
	heir := flags.String("heir", "", "file that, once it exists, has another demo take over the pid file while this one lives on")
	handover := flags.Bool("handover", false, "start another demo that takes over, and end")
	successor := flags.String("successor", "", "program that, once it exists, this one executes in its place")
	flags.String("tag", "", "nothing but a part of the command line")
	uses := usageFlags(flags)
	_ = flags.Parse(args)

	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	if *worker {
		startDemo()
	}
	if *handover {
		startDemo("-pid", *pidFile)
		time.Sleep(100 * time.Millisecond)
		return 0
	}
	uses.start()
	time.Sleep(*late)
	if *pidFile != "" {
		if err := os.WriteFile(*pidFile, fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
			return 1
		}
	}
	end := time.After(*life)
	poll := time.Tick(100 * time.Millisecond)
	for {
		select {
		case <-end:
			return 0
		case <-poll:
			if _, err := os.Getwd(); err != nil {
				return 0
			}
			if _, err := os.Stat(*heir); *heir != "" && err == nil {
				startDemo("-pid", *pidFile)
				*heir = ""
			}
			if _, err := os.Stat(*successor); *successor != "" && err == nil {
				_ = syscall.Exec(*successor, []string{demoName, "-pid", *pidFile}, os.Environ())
			}
		case <-terminate:
			if *ignore {
				continue
			}
			time.Sleep(*linger)
			return 0
		}
	}
}

func startDemo(args ...string) {
	self, _ := os.Executable()
	cmd := exec.Command(self, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		os.Exit(1)
	}
}

// keeper starts a demo and never reaps it.
func keeper(args []string) int {
	self, _ := os.Executable()
	cmd := exec.Command(filepath.Join(filepath.Dir(self), demoName), args...)
	if err := cmd.Start(); err != nil {
		return 1
	}
	return demo(nil)
}
