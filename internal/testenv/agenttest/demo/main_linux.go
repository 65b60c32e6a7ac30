// Command demo is a program for agents to manage in tests: a daemon that comes
// up, behaves and goes as its flags say.
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
	"slices"
	"syscall"
	"time"
)

// behaviour is what the flags say.
type behaviour struct {
	daemon   bool
	await    string
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

	told *os.File // the starter's; nil = there is none
}

func main() {
	var b behaviour
	flag.BoolVar(&b.daemon, "d", false, "leave a daemon in a session of its own, and return when it is up")
	flag.StringVar(&b.await, "await", "", "come up when this file exists")
	flag.BoolVar(&b.handover, "handover", false, "start another one that takes the pid file over, and end")
	flag.StringVar(&b.pid, "pid", "", "pid file to write")
	flag.DurationVar(&b.late, "late", 0, "write the pid file this long after coming up")
	flag.StringVar(&b.marker, "marker", "", "file to add a line with the pid to when all of the output is written")
	flag.StringVar(&b.alone, "alone", "", "file to lock for life; another one that lives tells it in this file with .twice after its name")
	flag.IntVar(&b.workers, "workers", 0, "start so many others that outlive this one, every second in a session of its own")
	flag.Int64Var(&b.each, "worker-leak", 0, "what each of them leaks")
	flag.BoolVar(&b.zombie, "zombie", false, "start another one with the pid file, and never reap it")
	flag.IntVar(&b.busy, "busy", 0, "threads that do nothing but use the processor")
	flag.Int64Var(&b.leak, "leak", 0, "bytes of memory to fill, a hundredth every 20 ms")
	flag.StringVar(&b.leakWhen, "leak-when", "", "fill it once this file exists")
	flag.Int64Var(&b.spew, "spew", 0, "bytes to write to stdout when coming up")
	flag.StringVar(&b.when, "spew-when", "", "write them when this file exists instead")
	flag.BoolVar(&b.ignoreTerm, "ignore-term", false, "ignore SIGTERM")
	flag.IntVar(&b.respawn, "respawn", 0, "on SIGTERM, start two others that do the same, so many generations long")
	flag.DurationVar(&b.linger, "linger", 0, "how long to take to end after SIGTERM")
	flag.StringVar(&b.dieWhen, "die-when", "", "end when this file exists")
	flag.DurationVar(&b.life, "life", longest, "how long to live after coming up")
	flag.IntVar(&b.code, "code", 0, "exit code at the end of life")
	deny := flag.String("deny", "", "become the program in the arguments, to which the kernel denies this: pidfd, guarded-pidfd or setgroups")
	flag.Parse()
	if *deny != "" {
		fmt.Fprintln(os.Stderr, "demo:", become(*deny, flag.Args()))
		os.Exit(97)
	}
	code, err := b.play()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		code = 97
	}
	os.Exit(code)
}

// longest is the time after which every demo ends, whatever its flags say, and
// leash the variable that names a folder without which it ends: no test leaves
// one behind for good.
const (
	longest = 5 * time.Minute
	leash   = "AGENTTEST_LEASH"
)

// poll is how often files are looked for.
const poll = 20 * time.Millisecond

// up is what a daemon writes to the file descriptor that its starter waits on.
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
	if err := b.starter(); err != nil {
		return 0, err
	}
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	if b.await != "" && !await(b.await) {
		return 0, nil
	}
	if err := b.comeUp(); err != nil {
		return 0, err
	}
	return b.live(terminate)
}

// leaveDaemon starts the same again without -d and waits until it says that
// it is up.
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
		err = errors.New("the daemon did not come up")
	}
	return err
}

// again is this program once more, in a session of its own.
func again(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Path, _ = os.Executable()
	cmd.Args[0] = cmd.Path
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

func (b *behaviour) comeUp() error {
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
	if err := b.tellStarter(); err != nil {
		return err
	}
	return b.work()
}

// starter takes what a daemon's starter waits on, which is nothing for those
// that the daemon starts.
func (b *behaviour) starter() error {
	if os.Getenv(upVariable) == "" {
		return nil
	}
	syscall.CloseOnExec(upFile)
	b.told = os.NewFile(upFile, "starter")
	return os.Unsetenv(upVariable)
}

func (b *behaviour) tellStarter() error {
	if b.told == nil {
		return nil
	}
	defer b.told.Close()
	_, err := b.told.WriteString(up)
	return err
}

// writePid puts the pid file in place at once: nobody sees half of it.
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
			for { //nolint:staticcheck // to use a processor is what it is asked for
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
			_ = b.write() // the marker does not come
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

// lock holds a lock for as long as this process lives, and tells when another
// one has it.
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
	var kept [][]byte
	for range 100 {
		block := bytes.Repeat([]byte{1}, int(size/100))
		kept = append(kept, block)
		<-time.After(poll)
	}
	<-time.After(longest)
	_ = kept[len(kept)-1][0]
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = "0123456789abcde\n"[i%16]
	}
	return len(p), nil
}

// live goes on until there is a reason to end, and returns the exit code.
func (b *behaviour) live(terminate <-chan os.Signal) (int, error) {
	end := time.After(min(b.life, longest))
	look := time.NewTicker(poll)
	defer look.Stop()
	for {
		select {
		case <-end:
			return b.code, nil
		case <-look.C:
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

// await reports whether the file came to exist while the test lasts.
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
