// Command demo is a program that agents manage in tests: a daemon whose start, behaviour and
// end are determined by flags.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"
)

// behaviour has the values of the flags.
type behaviour struct {
	daemon   bool
	handover bool
	pid      string
	late     time.Duration
	marker   string

	workers  int
	each     int64
	zombie   bool
	busy     int
	leak     int64
	leakWhen string
	spew     int64
	when     string
	alone    string

	ignoreTerm bool
	respawn    int
	linger     time.Duration
	dieWhen    string
	life       time.Duration
	code       int

	ready *os.File // pipe to the process that started this daemon; nil = none
}

func main() {
	var b behaviour
	flag.BoolVar(&b.daemon, "d", false, "start a daemon in its own session, and return when it is ready")
	flag.BoolVar(&b.handover, "handover", false, "start a second process that writes the pid file, and end")
	flag.StringVar(&b.pid, "pid", "", "pid file to write")
	flag.DurationVar(&b.late, "late", 0, "delay of the pid file after the start")
	flag.StringVar(&b.marker, "marker", "", "file to which a line with the pid is appended after all output")
	flag.StringVar(&b.alone, "alone", "", "file to lock; a process that cannot lock it appends its pid to the file with the suffix .twice")
	flag.IntVar(&b.workers, "workers", 0, "number of processes to start that outlive this one, every second in its own session")
	flag.Int64Var(&b.each, "worker-leak", 0, "bytes of memory that each worker fills")
	flag.BoolVar(&b.zombie, "zombie", false, "start a second process with the pid file, and never reap it")
	flag.IntVar(&b.busy, "busy", 0, "number of threads that only use CPU time")
	flag.Int64Var(&b.leak, "leak", 0, "bytes of memory to fill, a hundredth every 20 ms")
	flag.StringVar(&b.leakWhen, "leak-when", "", "start of -leak: when this file exists")
	flag.Int64Var(&b.spew, "spew", 0, "bytes to write to stdout at the start")
	flag.StringVar(&b.when, "spew-when", "", "start of -spew: when this file exists")
	flag.BoolVar(&b.ignoreTerm, "ignore-term", false, "ignore SIGTERM")
	flag.IntVar(&b.respawn, "respawn", 0, "generations of processes that each start two others on SIGTERM")
	flag.DurationVar(&b.linger, "linger", 0, "time from SIGTERM to the end")
	flag.StringVar(&b.dieWhen, "die-when", "", "end when this file exists")
	flag.DurationVar(&b.life, "life", longest, "time from the start to the end")
	flag.IntVar(&b.code, "code", 0, "exit code after -life or -die-when")
	deny := flag.String("deny", "", "execute the program in the arguments and deny it system calls: pidfd, guarded-pidfd or setgroups")
	flag.Parse()
	if *deny != "" {
		fmt.Fprintln(os.Stderr, "demo:", execDenied(*deny, flag.Args()))
		os.Exit(97)
	}
	code, err := b.play()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		code = 97
	}
	os.Exit(code)
}

// Every demo ends after longest, or when the folder in the environment variable leash is
// removed, so that no test leaves processes running.
const (
	longest = 5 * time.Minute
	leash   = "AGENTTEST_LEASH"
)

// poll is the interval of checks for files.
const poll = 20 * time.Millisecond

// A ready daemon writes up to the file descriptor upFile. The environment variable upVariable
// is set if a process waits for that.
const (
	up         = "up\n"
	upFile     = 3
	upVariable = "AGENTTEST_UP"
)

func (b *behaviour) play() (int, error) {
	switch {
	case b.daemon:
		return 0, leaveDaemon()
	case b.handover:
		return 0, again("-pid", b.pid).Start()
	}
	if err := b.openReady(); err != nil {
		return 0, err
	}
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	if err := b.start(); err != nil {
		return 0, err
	}
	return b.live(terminate)
}

// leaveDaemon starts this program without -d and waits until it is ready.
func leaveDaemon() error {
	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(arg string) bool { return arg == "-d" })
	cmd := again(args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.ExtraFiles = []*os.File{w}
	cmd.Env = append(os.Environ(), upVariable+"=1")
	if err := cmd.Start(); err != nil {
		return err
	}
	w.Close()
	said, err := io.ReadAll(r)
	if err == nil && string(said) != up {
		err = errors.New("the daemon did not start")
	}
	return err
}

// again returns a command that runs this program in its own session.
func again(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Path, _ = os.Executable()
	cmd.Args[0] = cmd.Path
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

func (b *behaviour) start() error {
	for i := range b.workers {
		worker := again("-leak", fmt.Sprint(b.each))
		worker.SysProcAttr.Setsid = i%2 == 1
		if err := worker.Start(); err != nil {
			return err
		}
	}
	if b.zombie {
		child := again("-pid", b.pid, "-die-when", b.dieWhen)
		child.Path = filepath.Join(filepath.Dir(child.Path), "demo") // a copy under another name is only the parent
		child.Args[0] = child.Path
		if err := child.Start(); err != nil {
			return err
		}
		if !await(b.pid) {
			return nil
		}
		b.pid, b.dieWhen = "", ""
	}
	if b.alone != "" {
		if err := lock(b.alone); err != nil {
			return err
		}
	}
	if b.late == 0 {
		if err := b.writePid(); err != nil {
			return err
		}
	} else {
		time.AfterFunc(b.late, func() { _ = b.writePid() })
	}
	if err := b.reportReady(); err != nil {
		return err
	}
	return b.work()
}

// openReady opens the pipe to the process that waits for this daemon. Processes that the
// daemon starts do not inherit the pipe.
func (b *behaviour) openReady() error {
	if os.Getenv(upVariable) == "" {
		return nil
	}
	syscall.CloseOnExec(upFile)
	b.ready = os.NewFile(upFile, "ready")
	return os.Unsetenv(upVariable)
}

func (b *behaviour) reportReady() error {
	if b.ready == nil {
		return nil
	}
	defer b.ready.Close()
	_, err := b.ready.WriteString(up)
	return err
}

// writePid replaces the pid file atomically.
func (b *behaviour) writePid() error {
	if b.pid == "" {
		return nil
	}
	part := fmt.Sprintf("%s.%d", b.pid, os.Getpid())
	if err := os.WriteFile(part, fmt.Appendln(nil, os.Getpid()), 0o644); err != nil {
		return err
	}
	return os.Rename(part, b.pid)
}

func addLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(line + "\n")
	return err
}

func (b *behaviour) work() error {
	for range b.busy {
		go func() {
			for { //nolint:staticcheck // the loop uses CPU time on purpose
			}
		}()
	}
	if b.leak > 0 {
		go func() {
			if b.leakWhen == "" || await(b.leakWhen) {
				leak(b.leak)
			}
		}()
	}
	if b.when == "" {
		return b.write()
	}
	go func() {
		if await(b.when) {
			_ = b.write() // on an error the marker is missing
		}
	}()
	return nil
}

func (b *behaviour) write() error {
	if _, err := io.CopyN(os.Stdout, endless{}, b.spew); err != nil {
		return err
	}
	if b.marker == "" {
		return nil
	}
	return addLine(b.marker, fmt.Sprint(os.Getpid()))
}

// lock locks a file until this process ends. If another process has locked the file, it
// appends the pid to the file with the suffix .twice.
func lock(path string) error {
	fd, err := syscall.Open(path, syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return addLine(path+".twice", fmt.Sprint(os.Getpid()))
	}
	return nil
}

func leak(size int64) {
	var blocks [][]byte
	for range 100 {
		block := bytes.Repeat([]byte{1}, int(size/100))
		blocks = append(blocks, block)
		<-time.After(poll)
	}
	<-time.After(longest)
	runtime.KeepAlive(blocks)
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = "0123456789abcde\n"[i%16]
	}
	return len(p), nil
}

// live blocks until the process has to end, and returns the exit code.
func (b *behaviour) live(terminate <-chan os.Signal) (int, error) {
	end := time.After(min(b.life, longest))
	for {
		select {
		case <-end:
			return b.code, nil
		case <-time.After(poll):
			if !leashed() || b.dieWhen != "" && exists(b.dieWhen) {
				return b.code, nil
			}
		case <-terminate:
			if b.respawn > 0 {
				args := []string{"-respawn", fmt.Sprint(b.respawn - 1)}
				if err := errors.Join(again(args...).Start(), again(args...).Start()); err != nil {
					return 0, err
				}
			}
			if !b.ignoreTerm {
				<-time.After(b.linger)
				return 0, nil
			}
		}
	}
}

// await waits until a file exists. It returns false if the test ends before.
func await(path string) bool {
	for !exists(path) {
		if !leashed() {
			return false
		}
		<-time.After(poll)
	}
	return true
}

func leashed() bool {
	folder := os.Getenv(leash)
	return folder == "" || exists(folder)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
