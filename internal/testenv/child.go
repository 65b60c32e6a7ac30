package testenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Programs is the environment variable with the folder of programs that were built for
// the whole run, by their base name. [BuildBinary] builds what it does not find there. The
// Makefile sets it.
const Programs = "PROCFLEET_TEST_PROGRAMS"

// built holds the binaries of this test process by package. Each binary is built once, for
// the first test that needs it.
var built sync.Map // package -> func() (string, error)

// BuildBinary returns the path of the built main package pkg of this module or of a module
// that it requires, for example "./cmd/procfleet". The program is that of [Programs] if it
// is there; otherwise it is built, without the race detector.
func BuildBinary(tb testing.TB, pkg string) string {
	tb.Helper()
	path, err := Build(pkg)
	if err != nil {
		tb.Fatalf("build %s: %v", pkg, err)
	}
	return path
}

// Build is [BuildBinary] for callers without a testing.TB, such as examples.
func Build(pkg string) (path string, err error) {
	if dir := os.Getenv(Programs); dir != "" {
		path := filepath.Join(dir, programName(pkg))
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return buildOnce(".", pkg)
}

// BuildTool builds the main package pkg in the version that the go.mod in dir requires, and
// returns the path of the binary. dir contains another module of this repository.
func BuildTool(tb testing.TB, dir, pkg string) string {
	tb.Helper()
	path, err := buildOnce(dir, pkg)
	if err != nil {
		tb.Fatalf("build %s: %v", pkg, err)
	}
	return path
}

func buildOnce(dir, pkg string) (path string, err error) {
	once, _ := built.LoadOrStore(filepath.Join(dir, pkg), sync.OnceValues(func() (string, error) { return build(dir, pkg) }))
	return once.(func() (string, error))()
}

// build writes the binary to a new folder in the system's temporary folder, not to one of
// the test: all tests of a package share the binary, so no single test may remove it. It
// uses the flags of the Makefile, whose builds are in the build cache.
func build(from, pkg string) (string, error) {
	dir, err := os.MkdirTemp("", "procfleet-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, programName(pkg))
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, pkg)
	cmd.Dir, cmd.Env = filepath.Join(ModuleRoot(), from), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
}

var majorVersion = regexp.MustCompile(`/v[0-9]+$`)

// programName returns the name that go build gives the program of a package.
func programName(pkg string) string { return path.Base(majorVersion.ReplaceAllString(pkg, "")) }

// CleanUp removes all built binaries. A test package that builds binaries must call
// CleanUp from TestMain after the tests.
func CleanUp() {
	built.Range(func(key, once any) bool {
		if path, err := once.(func() (string, error))(); err == nil {
			_ = os.RemoveAll(filepath.Dir(path)) // a leftover in the temporary folder is harmless
		}
		built.Delete(key)
		return true
	})
}

// moduleRoot is found at the start, because tests may change the working directory later.
var moduleRoot = findModuleRoot()

// ModuleRoot returns the folder of the module's sources.
func ModuleRoot() string { return moduleRoot }

// findModuleRoot returns the nearest folder with a go.mod above the package under test, in
// which go test runs it.
func findModuleRoot() string {
	dir, err := os.Getwd()
	if err != nil {
		return "."
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at
		}
		if at == filepath.Dir(at) {
			return dir
		}
	}
}

// Child is a process that a test started. It is killed when the test ends.
type Child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed after the process has ended and was reaped
	read chan struct{} // closed after the output was read to its end

	mu    sync.Mutex
	lines []string
}

// StartChild starts a program. The entries of env ("KEY=value") are added to the environment
// of the test process. The output of the program is written to the test log.
func StartChild(tb testing.TB, env []string, path string, args ...string) *Child {
	tb.Helper()
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env...)
	return StartCommand(tb, cmd)
}

// StartCommand is [StartChild] for a prepared command, for example with SysProcAttr. It
// overwrites cmd.Stdout and cmd.Stderr.
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
		r.Close() // unblocks the reader: grandchildren may keep the write end open
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

// PID returns the process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

var peakMemory = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// PeakMemory returns the maximum resident memory of the process so far, in bytes. It
// requires Linux.
func (c *Child) PeakMemory(tb testing.TB) int {
	tb.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.PID()))
	found := peakMemory.FindSubmatch(status)
	if err != nil || found == nil {
		tb.Fatalf("read the memory of process %d: %v", c.PID(), err)
	}
	kib, err := strconv.Atoi(string(found[1]))
	if err != nil {
		tb.Fatal(err)
	}
	return kib << 10
}

// Kill sends SIGKILL and waits until the process has ended. It may be called again.
func (c *Child) Kill() {
	_ = c.cmd.Process.Kill() // an error means that the process has already ended
	<-c.done
}

// Signal sends a signal. It does nothing if the process has ended.
func (c *Child) Signal(s syscall.Signal) { _ = c.cmd.Process.Signal(s) }

// Done returns a channel that is closed when the process has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Wait waits for the end of the process and returns the exit code, or -1 if a signal ended
// the process. It fails the test after timeout.
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

// Output returns the standard output and standard error that the process has written so
// far.
func (c *Child) Output() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.lines, "\n")
}

// WholeOutput waits until the output streams are closed, which may be after the end of the
// process, and returns the complete output. It fails the test after timeout, for example
// if children of the process keep the streams open.
func (c *Child) WholeOutput(tb testing.TB, timeout time.Duration) string {
	tb.Helper()
	select {
	case <-c.read:
	case <-time.After(timeout):
		tb.Fatalf("the output of %s did not end within %v", c.cmd.Path, timeout)
	}
	return c.Output()
}

// WaitOutput waits until an output line contains text and returns the first such line. It
// fails the test after timeout, or if the process ends without such a line.
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
		case <-c.read: // the output is complete
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

// WaitHTTP waits until a GET of url returns status 200. It fails the test after timeout.
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
