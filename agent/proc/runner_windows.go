package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// preventInheritance does nothing: on Windows a program inherits only handles that are passed to
// it explicitly.
func preventInheritance() error { return nil }

func (r *Runner) command(c Command, _ Account, out *os.File) (*exec.Cmd, error) {
	system, err := windows.GetSystemDirectory()
	if err != nil {
		return nil, fmt.Errorf("find cmd.exe: %w", err)
	}
	program, line, err := windowsCommand(c.Shell, system, c.Line)
	if err != nil {
		return nil, err
	}
	basic, err := basicEnvironment(r.timezone)
	if err != nil {
		return nil, err
	}
	// No context: the command must be able to outlive its caller.
	cmd := exec.Command(program) //nolint:noctx,gosec // see above; running the given line is the purpose
	cmd.Dir, cmd.Env = c.Dir, c.environment(basic)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		CmdLine: line, HideWindow: true,
		CreationFlags: windows.CREATE_NO_WINDOW | windows.CREATE_NEW_PROCESS_GROUP,
	}
	return cmd, nil
}

// openOutput creates the output file and opens it twice: first to truncate it, then for
// appending, so that the file can be truncated while in use without creating a hole.
func openOutput(path string, _ Account) (*os.File, error) {
	for _, flags := range []int{os.O_CREATE | os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND} {
		f, err := os.OpenFile(path, flags, 0o600)
		if err != nil {
			return nil, fmt.Errorf("create the output file: %w", err)
		}
		if flags&os.O_APPEND != 0 {
			return f, nil
		}
		f.Close()
	}
	return nil, nil
}

// job is a Windows job object with a command and all processes that the command starts;
// they end with the job. The zero value has no job object.
type job struct{ handle windows.Handle }

func (j job) close() {
	if j.handle != 0 {
		_ = windows.TerminateJobObject(j.handle, killedCode) // closing the handle also ends the processes, unless a process inherited it
		closeHandle(j.handle)
	}
}

// startIn starts a command: a contained command in a job that ends with the command, any
// other command outside of the agent's own job, so that a daemon survives a restart of the
// agent's service.
func startIn(cmd *exec.Cmd, c Command) (job, error) {
	if c.Contained {
		return startContained(cmd)
	}
	cmd.SysProcAttr.CreationFlags |= windows.CREATE_BREAKAWAY_FROM_JOB
	err := cmd.Start()
	if !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return job{}, err
	}
	// The agent's own job does not permit a breakaway. A Cmd can be started only once.
	again := *cmd.SysProcAttr
	again.CreationFlags &^= windows.CREATE_BREAKAWAY_FROM_JOB
	*cmd = exec.Cmd{Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, Stdout: cmd.Stdout, Stderr: cmd.Stderr, SysProcAttr: &again}
	return job{}, cmd.Start()
}

// startContained starts a command suspended, adds it to a job and resumes it, so that all
// its processes are in the job.
func startContained(cmd *exec.Cmd) (job, error) {
	handle, err := newJob()
	if err != nil {
		return job{}, fmt.Errorf("make a job for the command: %w", err)
	}
	cmd.SysProcAttr.CreationFlags |= windows.CREATE_SUSPENDED
	if err := cmd.Start(); err != nil {
		closeHandle(handle)
		return job{}, err
	}
	err = assign(handle, cmd.Process.Pid)
	if err == nil {
		err = resume(cmd.Process.Pid)
	}
	if err != nil {
		err = fmt.Errorf("put the command into its job: %w", err)
		err = errors.Join(err, cmd.Process.Kill())
		closeHandle(handle)
		_ = cmd.Wait() // it was killed
		return job{}, err
	}
	return job{handle: handle}, nil
}

// newJob creates a job whose processes end when its last handle is closed, for example when
// the agent ends.
func newJob() (windows.Handle, error) {
	handle, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, err
	}
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	info.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	_, err = windows.SetInformationJobObject(handle, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	if err != nil {
		closeHandle(handle)
		return 0, err
	}
	return handle, nil
}

func assign(job windows.Handle, pid int) error {
	h, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(pid))
	if err != nil {
		return err
	}
	defer closeHandle(h)
	return windows.AssignProcessToJobObject(job, h)
}

// resume resumes the only thread of a process that was started suspended.
func resume(pid int) error {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPTHREAD, 0)
	if err != nil {
		return err
	}
	defer closeHandle(snapshot)
	var entry windows.ThreadEntry32
	entry.Size = uint32(unsafe.Sizeof(entry))
	for err = windows.Thread32First(snapshot, &entry); err == nil; err = windows.Thread32Next(snapshot, &entry) {
		if entry.OwnerProcessID != uint32(pid) {
			continue
		}
		thread, err := windows.OpenThread(windows.THREAD_SUSPEND_RESUME, false, entry.ThreadID)
		if err != nil {
			return err
		}
		defer closeHandle(thread)
		_, err = windows.ResumeThread(thread)
		return err
	}
	return fmt.Errorf("find the thread of pid %d: %w", pid, err)
}

// identifyChild returns the identity of a child, even if the child has ended: its pid is
// not reused before Wait.
func identifyChild(pid int) (Identity, error) {
	boot, err := bootID()
	if err != nil {
		return Identity{}, err
	}
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, uint32(pid))
	if err != nil {
		return Identity{}, err
	}
	defer closeHandle(h)
	times, err := readTimes(h)
	return Identity{BootID: boot, PID: pid, Start: times.start}, err
}

func explainStart(c Command, account Account, err error) error {
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return fmt.Errorf("account %s may not enter setup path %s or run the shell: %w", account.Name, c.Dir, err)
	}
	return fmt.Errorf("start the command: %w", err)
}

func awaitWritten(context.Context, Command) error { return nil }

// hint returns an explanation of the exit code by which cmd.exe reports a missing program;
// "" for other codes.
func hint(c Command, code int, _ string) string {
	const notFound = 9009
	if c.Shell == ShellBat && code == notFound {
		return "not found: the program, or the script, in " + c.Dir
	}
	return ""
}

// OutputHeld reports whether a process has the file open, by opening it exclusively. If
// that fails for another reason it returns true, so that no file in use is removed; for a
// missing file it returns false.
func OutputHeld(path string) bool {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return false
	}
	const alone = 0
	h, err := windows.CreateFile(name, windows.GENERIC_READ, alone, nil, windows.OPEN_EXISTING, windows.FILE_ATTRIBUTE_NORMAL, 0)
	if err == nil {
		closeHandle(h)
		return false
	}
	return !errors.Is(err, os.ErrNotExist)
}

func decodeOutput(text []byte, cut bool) []byte {
	page, _, _ := procGetOEMCP.Call() // cannot fail
	return decodeCodePage(uint32(page), text, cut)
}
