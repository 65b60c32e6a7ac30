package testenv

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// built holds the binaries of this test process by package. They are built
// once, whichever test asks first.
var built sync.Map // package -> func() (string, error)

// BuildBinary builds a main package of this module, for example
// "./cmd/procfleet", and returns the path of the binary. With the race
// detector on in the test it is on in the binary too.
func BuildBinary(tb testing.TB, pkg string) string {
	tb.Helper()
	path, err := Build(pkg)
	if err != nil {
		tb.Fatalf("build %s: %v", pkg, err)
	}
	return path
}

// Build is [BuildBinary] where there is no test, as in examples.
func Build(pkg string) (path string, err error) {
	var flags []string
	if raceEnabled {
		flags = append(flags, "-race")
	}
	return buildOnce(".", pkg, flags...)
}

// BuildPlain is [Build] without the race detector, for helpers of tests that
// are started often.
func BuildPlain(pkg string) (path string, err error) { return buildOnce(".", pkg) }

// BuildTool builds a program that another module of this repository, in dir,
// has the version of.
func BuildTool(tb testing.TB, dir, pkg string) string {
	tb.Helper()
	path, err := buildOnce(dir, pkg)
	if err != nil {
		tb.Fatalf("build %s: %v", pkg, err)
	}
	return path
}

func buildOnce(dir, pkg string, flags ...string) (path string, err error) {
	once, _ := built.LoadOrStore(filepath.Join(dir, pkg), sync.OnceValues(func() (string, error) { return build(dir, pkg, flags) }))
	return once.(func() (string, error))()
}

// build leaves the binary in the system's temporary folder under a name of
// this process: tests of a package share it, so no single test may remove it.
func build(from, pkg string, flags []string) (string, error) {
	dir, err := os.MkdirTemp("", "procfleet-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, filepath.Base(pkg))
	cmd := exec.Command("go", slices.Concat([]string{"build", "-o", path}, flags, []string{pkg})...)
	cmd.Dir = filepath.Join(ModuleRoot(), from)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
}

// CleanUp removes what [BuildBinary] left; a package that builds binaries
// calls it from TestMain after the tests.
func CleanUp() {
	built.Range(func(key, once any) bool {
		if path, err := once.(func() (string, error))(); err == nil {
			_ = os.RemoveAll(filepath.Dir(path)) // a leftover in the temporary folder harms nobody
		}
		built.Delete(key)
		return true
	})
}

// ModuleRoot returns the folder of the module's sources.
func ModuleRoot() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// Child is a process that a test started. It is killed when the test ends.
type Child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and been reaped
	read chan struct{} // closed when its output has been read to the end

	mu    sync.Mutex
	lines []string
}

// StartChild starts a program; env entries ("KEY=value") are added to this
// process's environment. Its output goes to the test's log.
func StartChild(tb testing.TB, env []string, path string, args ...string) *Child {
	tb.Helper()
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env...)
	return StartCommand(tb, cmd)
}

// StartCommand is [StartChild] for a command with attributes of its own; its
// output is set.
func StartCommand(tb testing.TB, cmd *exec.Cmd) *Child {
	tb.Helper()
	c := &Child{cmd: cmd, done: make(chan struct{}), read: make(chan struct{})}
	r, w, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	c.cmd.Stdout, c.cmd.Stderr = w, w
	if err := c.cmd.Start(); err != nil {
		tb.Fatalf("start %s: %v", cmd.Path, err)
	}
	w.Close()
	go func() {
		_ = c.cmd.Wait() // the exit status is read from ProcessState
		close(c.done)
	}()
	go c.follow(tb, r)
	tb.Cleanup(func() {
		c.Kill()
		r.Close() // grandchildren may still hold the other end
		<-c.read
	})
	return c
}

func (c *Child) follow(tb testing.TB, r io.Reader) {
	tb.Helper()
	defer close(c.read)
	name := filepath.Base(c.cmd.Path)
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		tb.Logf("%s[%d]: %s", name, c.cmd.Process.Pid, scanner.Text())
		c.mu.Lock()
		c.lines = append(c.lines, scanner.Text())
		c.mu.Unlock()
	}
}

// PID of the process.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Kill sends SIGKILL and waits until the process is gone; it may be repeated.
func (c *Child) Kill() {
	_ = c.cmd.Process.Kill() // an error means that it is gone already
	<-c.done
}

// Signal sends a signal; a process that is gone takes none.
func (c *Child) Signal(s syscall.Signal) { _ = c.cmd.Process.Signal(s) }

// Done is closed when the process has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Wait waits for the process to end and returns its exit code, -1 if a signal
// ended it. It fails the test after timeout.
func (c *Child) Wait(tb testing.TB, timeout time.Duration) int {
	tb.Helper()
	select {
	case <-c.done:
		return c.cmd.ProcessState.ExitCode()
	case <-time.After(timeout):
		tb.Fatalf("%s did not end within %v", c.cmd.Path, timeout)
		return 0
	}
}

// Output returns what the process has written so far, both streams together.
func (c *Child) Output() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.lines, "\n")
}

// WholeOutput waits for the end of what the process writes, which may come a
// moment after its own, and returns it. It fails the test after timeout, as it
// does with children of the process that hold its output open.
func (c *Child) WholeOutput(tb testing.TB, timeout time.Duration) string {
	tb.Helper()
	select {
	case <-c.read:
	case <-time.After(timeout):
		tb.Fatalf("the output of %s did not end within %v", c.cmd.Path, timeout)
	}
	return c.Output()
}

// WaitOutput waits until the output contains text and returns the first line
// that does. It fails the test when the process ends without it.
func (c *Child) WaitOutput(tb testing.TB, timeout time.Duration, text string) string {
	tb.Helper()
	var found string
	seen := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, line := range c.lines {
			if strings.Contains(line, text) {
				found = line
				return true
			}
		}
		return false
	}
	Eventually(tb, timeout, func() bool {
		if seen() {
			return true
		}
		select {
		case <-c.read: // there will be no more
			if !seen() {
				tb.Fatalf("%s ended before it wrote %q", c.cmd.Path, text)
			}
			return true
		default:
			return false
		}
	}, "output of "+filepath.Base(c.cmd.Path)+" has "+text)
	return found
}

// WaitHTTP waits until a GET of url answers 200.
func (c *Child) WaitHTTP(tb testing.TB, timeout time.Duration, url string) {
	tb.Helper()
	Eventually(tb, timeout, func() bool {
		select {
		case <-c.done:
			tb.Fatalf("%s ended before %s answered", c.cmd.Path, url)
		default:
		}
		return answers(tb.Context(), url)
	}, url+" answers 200")
}

func answers(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
