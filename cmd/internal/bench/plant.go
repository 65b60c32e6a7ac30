package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	startTimeout = 2 * time.Minute // sufficient for 100,000 agents to announce themselves
	stopTimeout  = 10 * time.Second
)

// Names of the processes of a benchmark, in the order of the report columns.
const (
	natsServer  = "nats-server"
	redisServer = "redis"
	dispatcher  = "dispatcher"
	worker      = "worker"
	agents      = "agents"
)

func processNames() []string { return []string{natsServer, redisServer, dispatcher, worker, agents} }

// plant manages the working directory and the processes of one benchmark.
type plant struct {
	self     string // path of this binary, which also runs simulated agents and NATS
	program  string // path of procfleet, which runs the roles; "": procfleet in the directory of self
	dir      string
	env      []string // additional environment variables of the processes
	children []*child
}

func newPlant(program string) (*plant, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "procfleet-bench-")
	if err != nil {
		return nil, err
	}
	return &plant{self: self, program: program, dir: dir}, nil
}

// procfleet returns the path of the procfleet program, which runs the roles.
func (p *plant) procfleet() (string, error) {
	if p.program != "" {
		path, err := exec.LookPath(p.program)
		if err != nil {
			return "", fmt.Errorf("--procfleet: %w", err)
		}
		return path, nil
	}
	path, err := p.beside("procfleet")
	if err != nil {
		return "", fmt.Errorf("no program procfleet in %s, the directory of this program: `make build` builds both, or name it with --procfleet", filepath.Dir(p.self))
	}
	return path, nil
}

// beside returns the path of a program in the directory of this binary.
func (p *plant) beside(name string) (string, error) {
	return exec.LookPath(filepath.Join(filepath.Dir(p.self), name))
}

// startRole starts procfleet with args. The other parameters are those of [plant.start].
func (p *plant) startRole(ctx context.Context, name string, args []string, ready string) error {
	program, err := p.procfleet()
	if err == nil {
		_, err = p.start(ctx, name, program, args, ready)
	}
	return err
}

// close stops the processes and removes the working directory.
func (p *plant) close() error {
	for _, c := range slices.Backward(p.children) {
		c.stop()
	}
	return os.RemoveAll(p.dir)
}

// child returns the last started process with the given name, or nil.
func (p *plant) child(name string) *child {
	for _, c := range slices.Backward(p.children) {
		if c.name == name {
			return c
		}
	}
	return nil
}

// cpu returns the processor time of the running processes, summed by name.
func (p *plant) cpu() map[string]time.Duration {
	used := map[string]time.Duration{}
	for _, c := range p.children {
		used[c.name] += cpuTime(c.runningPID())
	}
	return used
}

// peak returns the maximum resident memory, in bytes, of any running process with the
// given name.
func (p *plant) peak(name string) (most int) {
	for _, c := range p.children {
		if c.name == name {
			most = max(most, peakRSS(c.runningPID()))
		}
	}
	return most
}

// startServers starts NATS and Redis with persistence on disk.
func (l *lab) startServers(ctx context.Context) error {
	p := l.plant
	files := l.NATSTLS
	line, err := p.start(ctx, natsServer, p.self, []string{
		"nats-server", "--listen", "127.0.0.1:0", "--data", filepath.Join(p.dir, "nats"), "--log-level", "warn",
		"--nats-auth", l.natsAuth, "--listen-cert", files.Cert, "--listen-key", files.Key, "--listen-client-ca", files.CA,
	}, "url ")
	if err != nil {
		return err
	}
	l.NATS = strings.TrimPrefix(line, "url ")
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	l.Redis = "redis://127.0.0.1:" + port + "/0"
	args := []string{
		"--bind", "127.0.0.1", "--dir", p.dir, "--save", "",
		"--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction",
	}
	if files := l.RedisTLS; files.None() {
		args = append(args, "--port", port)
	} else {
		l.Redis = "rediss" + strings.TrimPrefix(l.Redis, "redis")
		args = append(args, "--port", "0", "--tls-port", port, "--tls-auth-clients", "yes",
			"--tls-ca-cert-file", files.CA, "--tls-cert-file", files.Cert, "--tls-key-file", files.Key)
	}
	if _, err = p.start(ctx, redisServer, "redis-server", args, "Ready to accept connections"); err != nil {
		return fmt.Errorf("%w (--start requires redis-server; give --redis and --nats to use running servers)", err)
	}
	return nil
}

func freePort(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}

// child is a process of the benchmark.
type child struct {
	name string
	cmd  *exec.Cmd
	log  string // path of the file with the standard error
	done chan struct{}
	// failure describes the failure of the process; empty if it did not fail.
	failure string
}

// start starts a process, waits until a line of its standard output contains ready, and
// returns that line. If ready is empty, start does not wait. Standard error is written to
// a file. If the process fails, the returned error contains the end of this file.
func (p *plant) start(ctx context.Context, name, program string, args []string, ready string) (string, error) {
	logName := filepath.Join(p.dir, fmt.Sprintf("%s-%d.log", name, len(p.children)))
	logFile, err := os.Create(logName) //nolint:gosec // a log of a tool for measuring, in its own folder
	if err != nil {
		return "", err
	}
	defer logFile.Close()
	// Do not use CommandContext: it would kill the process, which close stops gracefully.
	c := &child{name: name, log: logName, done: make(chan struct{})}
	c.cmd = exec.Command(program, args...) //nolint:gosec,noctx // this binary or redis-server, see callers
	c.cmd.Stderr, c.cmd.Env = logFile, append(os.Environ(), p.env...)
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := c.cmd.Start(); err != nil {
		return "", fmt.Errorf("start %s: %w", name, err)
	}
	p.children = append(p.children, c)
	lines := make(chan string, 1)
	go c.follow(stdout, ready, lines)
	if ready == "" {
		return "", nil
	}
	select {
	case line := <-lines:
		return line, nil
	case <-c.done:
		return "", fmt.Errorf("%s ended at its start: %s", name, tail(logName))
	case <-time.After(startTimeout):
		return "", fmt.Errorf("%s was not ready within %v: %s", name, startTimeout, tail(logName))
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// follow reads the standard output to its end, sends the first line that contains ready
// to lines, and then reaps the process.
func (c *child) follow(stdout io.Reader, ready string, lines chan<- string) {
	defer close(c.done)
	scanner := bufio.NewScanner(stdout)
	for scanner.Scan() {
		if ready != "" && strings.Contains(scanner.Text(), ready) {
			select {
			case lines <- scanner.Text():
			default: // only the first ready line is needed
			}
		}
	}
	_ = c.cmd.Wait() // the exit status is not needed
}

// failures stops all processes and returns an error with the last log lines of each process
// that failed.
func (p *plant) failures() (err error) {
	for _, c := range slices.Backward(p.children) {
		if c.stop(); c.failure != "" {
			err = errors.Join(err, errors.New(c.failure))
		}
	}
	return err
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// runningPID returns the pid, or -1 if the process has ended and its pid may be reused.
func (c *child) runningPID() int {
	select {
	case <-c.done:
		return -1
	default:
		return c.pid()
	}
}

func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // fails only if the process has ended
	select {
	case <-c.done:
	case <-time.After(stopTimeout):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
	if c.failure == "" && !c.cmd.ProcessState.Success() {
		c.failure = fmt.Sprintf("%s ended with %s: %s", c.name, c.cmd.ProcessState, tail(c.log))
	}
}

func tail(name string) string {
	const shown = 600
	data, err := os.ReadFile(name) //nolint:gosec // a log of a tool for measuring, in its own folder
	if err != nil || len(data) == 0 {
		return errors.Join(errors.New("no output"), err).Error()
	}
	return strings.TrimSpace(string(data[max(0, len(data)-shown):]))
}
