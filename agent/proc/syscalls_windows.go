package proc

import (
	"errors"
	"fmt"
	"unicode/utf16"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Functions of Windows that golang.org/x/sys lacks.
var (
	kernel32                 = windows.NewLazySystemDLL("kernel32.dll")
	procGetProcessMemoryInfo = kernel32.NewProc("K32GetProcessMemoryInfo")
	procGlobalMemoryStatusEx = kernel32.NewProc("GlobalMemoryStatusEx")
	procGetSystemTimes       = kernel32.NewProc("GetSystemTimes")
	procGetOEMCP             = kernel32.NewProc("GetOEMCP")
	procRegisterWait         = kernel32.NewProc("RegisterWaitForSingleObject")
	procUnregisterWait       = kernel32.NewProc("UnregisterWaitEx")
)

// callBool calls a function that returns 0 on failure. Memory to which args point is not
// moved until it returns.
//
//go:uintptrescapes
func callBool(function *windows.LazyProc, args ...uintptr) error {
	if ok, _, err := function.Call(args...); ok == 0 {
		return err
	}
	return nil
}

// processMemoryCounters is PROCESS_MEMORY_COUNTERS_EX.
type processMemoryCounters struct {
	size, pageFaultCount                               uint32
	peakWorkingSetSize, workingSetSize                 uintptr
	quotaPeakPagedPoolUsage, quotaPagedPoolUsage       uintptr
	quotaPeakNonPagedPoolUsage, quotaNonPagedPoolUsage uintptr
	pagefileUsage, peakPagefileUsage                   uintptr
	privateUsage                                       uintptr
}

// memoryStatus is MEMORYSTATUSEX.
type memoryStatus struct {
	size, load                                       uint32
	totalPhys, availPhys                             uint64
	totalPageFile, availPageFile                     uint64
	totalVirtual, availVirtual, availExtendedVirtual uint64
}

// Maximum number of bytes that are read of a command line and an environment.
const (
	maxCmdline = 64 << 10
	maxEnviron = 256 << 10
)

// parameters holds the start parameters of a process. A process may change its own
// parameters, so they prove nothing.
type parameters struct {
	commandLine string
	dir         string // working directory
	environment string // NUL-terminated entries
}

func parametersOf(pid int) (parameters, error) {
	h, err := open(pid, windows.PROCESS_VM_READ|windows.PROCESS_QUERY_INFORMATION)
	if err != nil {
		return parameters{}, err
	}
	defer closeHandle(h)
	return readParameters(h)
}

// readParameters reads the parameters from the memory of the process; the kernel has
// no copy of them. A 32 bit process has them in the 64 bit form as well.
func readParameters(h windows.Handle) (parameters, error) {
	var basic windows.PROCESS_BASIC_INFORMATION
	err := windows.NtQueryInformationProcess(h, windows.ProcessBasicInformation, unsafe.Pointer(&basic), uint32(unsafe.Sizeof(basic)), nil)
	if err != nil {
		return parameters{}, fmt.Errorf("find the process's parameters: %w", err)
	}
	var peb windows.PEB
	if err := readMemory(h, uintptr(unsafe.Pointer(basic.PebBaseAddress)), unsafe.Slice((*byte)(unsafe.Pointer(&peb)), unsafe.Sizeof(peb))); err != nil {
		return parameters{}, err
	}
	var block windows.RTL_USER_PROCESS_PARAMETERS
	if err := readMemory(h, uintptr(unsafe.Pointer(peb.ProcessParameters)), unsafe.Slice((*byte)(unsafe.Pointer(&block)), unsafe.Sizeof(block))); err != nil {
		return parameters{}, err
	}
	var p parameters
	var errLine, errDir, errEnv error
	p.commandLine, errLine = readText(h, uintptr(unsafe.Pointer(block.CommandLine.Buffer)), min(int(block.CommandLine.Length), maxCmdline))
	p.dir, errDir = readText(h, uintptr(unsafe.Pointer(block.CurrentDirectory.DosPath.Buffer)), int(block.CurrentDirectory.DosPath.Length))
	p.environment, errEnv = readText(h, uintptr(block.Environment), int(min(block.EnvironmentSize, maxEnviron)))
	return p, errors.Join(errLine, errDir, errEnv)
}

// readText reads length bytes of UTF-16 text.
func readText(h windows.Handle, address uintptr, length int) (string, error) {
	if address == 0 || length < 2 {
		return "", nil
	}
	text := make([]uint16, length/2)
	if err := readMemory(h, address, unsafe.Slice((*byte)(unsafe.Pointer(&text[0])), len(text)*2)); err != nil {
		return "", err
	}
	return string(utf16.Decode(text)), nil
}

// readMemory fills buf from another process's memory.
func readMemory(h windows.Handle, address uintptr, buf []byte) error {
	if address == 0 {
		return errors.New("the process has no parameters")
	}
	var n uintptr
	if err := windows.ReadProcessMemory(h, address, &buf[0], uintptr(len(buf)), &n); err != nil {
		return fmt.Errorf("read the process's parameters: %w", err)
	}
	if n != uintptr(len(buf)) {
		return errors.New("read the process's parameters: only a part can be read")
	}
	return nil
}
